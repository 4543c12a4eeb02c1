"""PositionIndex: where in one segment of a write-once log the batch at a position lies.

Sorted columns: the positions of the batches that are there, their times, counts and checksums, where their frames begin
and how long they are. Batches come in any order; most of them, and whole runs of them, come behind all others or fit
between two, so that a run is put in with one move per column.

Nothing here is guarded: whoever looks into the index of a segment that is still written holds the log's lock, and an
index that was read from a file does not change.

What must always hold: no two batches overlap.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from operator import add
from typing import Final, NamedTuple

from varlog.storage import format as fmt
from varlog.storage.files import Buffer

ANY_SIZE: Final = 1 << 62
_FEW: Final = 32


class Line(NamedTuple):
    """A batch as the index knows it."""

    glsn: int
    time: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses here
    check: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.glsn + self.count


_new_line: Final = partial(tuple.__new__, Line)


class PositionIndex:
    """See the module's text."""

    __slots__ = ("_columns", "_counts", "_glsns", "_offsets")

    def __init__(self, columns: Sequence[array[int]] | None = None) -> None:
        self._set(columns if columns is not None else [array(code) for code in fmt.POSITION_COLUMNS])

    def _set(self, columns: Sequence[array[int]]) -> None:
        self._columns = columns
        self._glsns, _, self._counts, _, self._offsets, _ = columns

    @classmethod
    def decode(cls, body: Buffer) -> PositionIndex | None:
        columns = fmt.decode_positions(body)
        return None if columns is None else cls(columns)

    def encode(self) -> bytes:
        return fmt.encode_positions(self._columns, len(self))

    def __len__(self) -> int:
        return len(self._glsns)

    @property
    def begin(self) -> int:
        """The first position; 0 if there is none."""
        return self._glsns[0] if self._glsns else 0

    @property
    def end(self) -> int:
        """Beyond the last position; 0 if there is none."""
        return self._glsns[-1] + self._counts[-1] if self._glsns else 0

    def first(self, glsn: int) -> int:
        """The number of the first batch that ends beyond a position."""
        number = bisect_right(self._glsns, glsn)
        if number and self._glsns[number - 1] + self._counts[number - 1] > glsn:
            return number - 1
        return number

    def gap(self) -> tuple[int, int]:
        """The widest range between two batches; (0, 0) if there is none."""
        runs, _ = self.runs(0, self.end)
        gaps = [(before[1], after[0]) for before, after in pairwise(runs)]
        widest = max(gaps, key=lambda gap: gap[1] - gap[0], default=(0, 0))
        return widest if widest[0] < widest[1] else (0, 0)

    def runs(self, glsn: int, end: int) -> tuple[list[tuple[int, int]], int]:
        """The positions of the batches that end beyond `glsn`, and not beyond `end`, as runs [begin, end), in order,
        some of which may touch; and how many batches these are."""
        number, last = self.first(glsn), self._up_to(end)
        runs: list[tuple[int, int]] = []
        if number < last:
            self._add_runs(number, last, runs)
        return runs, max(0, last - number)

    def _add_runs(self, number: int, last: int, runs: list[tuple[int, int]]) -> None:
        """Halves are looked at only where there is a hole somewhere: most of a log has none."""
        begin, end = self._glsns[number], self._glsns[last - 1] + self._counts[last - 1]
        if end - begin == sum(self._counts[number:last]):
            runs.append((begin, end))
            return
        if last - number <= _FEW:
            glsns = self._glsns[number:last]
            runs += zip(glsns, map(add, glsns, self._counts[number:last]), strict=True)
            return
        middle = (number + last) // 2
        self._add_runs(number, middle, runs)
        self._add_runs(middle, last, runs)

    def at(self, glsn: int) -> Line | None:
        """The batch that has a position."""
        number = bisect_right(self._glsns, glsn) - 1
        if number < 0 or self._glsns[number] + self._counts[number] <= glsn:
            return None
        glsns, times, counts, checks, offsets, sizes = self._columns
        return _new_line((glsns[number], times[number], counts[number], checks[number], offsets[number], sizes[number]))

    def line(self, number: int) -> Line | None:
        return Line._make([column[number] for column in self._columns]) if number < len(self._glsns) else None

    def add(self, columns: Sequence[Sequence[int]]) -> None:
        """Batches at positions that are free, in columns, in any order."""
        glsns, counts = columns[0], columns[2]
        number = bisect_left(self._glsns, glsns[0])
        if _ascends(glsns) and (number == len(self._glsns) or self._glsns[number] >= glsns[-1] + counts[-1]):
            for column, values in zip(self._columns, columns, strict=True):
                if number == len(column):
                    column.extend(values)
                else:
                    column[number:number] = array(column.typecode, values)
            return
        for row in zip(*columns, strict=True):
            number = bisect_left(self._glsns, row[0])
            for column, value in zip(self._columns, row, strict=True):
                column.insert(number, value)

    def make_free(self, glsn: int, end: int) -> None:
        """What has a position in [glsn, end) is void."""
        first, last = self.first(glsn), bisect_left(self._glsns, end)
        if first < last:
            self._set([column[:first] + column[last:] for column in self._columns])

    def drop_beyond(self, end: int) -> None:
        """Batches that have a position at or beyond `end` are void."""
        keep = self._up_to(end)
        if keep < len(self):
            self._set([column[:keep] for column in self._columns])

    def _up_to(self, end: int) -> int:
        """How many batches lie below `end` with all their positions."""
        keep = bisect_left(self._glsns, end)
        return keep - 1 if keep and self._glsns[keep - 1] + self._counts[keep - 1] > end else keep

    def lines(self, glsn: int, end: int, most: int, size: int, written: int | None) -> list[Line]:
        """The batches that end beyond `glsn` and not beyond `end`, in order: at most so many, and at least one, that
        take about `size` bytes; if `written` is said, only those that stand before it in the file."""
        number, last = self.first(glsn), self._up_to(end)
        found: list[Line] = []
        step = 16
        while number < last and most > 0 and size > 0:
            upto = min(number + min(step, most), last)
            lines: Iterable[Line] = map(Line, *[column[number:upto] for column in self._columns])
            if written is not None and max(self._offsets[number:upto]) >= written:
                lines = [line for line in lines if line.offset < written]
            block = list(lines)
            take = within(block, most, size)
            found += block[:take]
            most -= take
            if size < ANY_SIZE:
                size -= sum([line.size for line in block[:take]])
            number, step = upto, step * 4
        return found


def within(lines: Sequence[Line], most: int, size: int) -> int:
    """How many of them, from the first one on, make up `size` bytes, but at most so many."""
    if size >= ANY_SIZE:
        return min(len(lines), most)
    ends = list(accumulate([line.size for line in lines[:most]]))
    return min(len(ends), bisect_left(ends, size) + 1)


def _ascends(glsns: Sequence[int]) -> bool:
    return len(glsns) == 1 or all(map(int.__lt__, glsns, glsns[1:]))
