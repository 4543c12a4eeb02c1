"""PositionReader: what a write-once log holds from a position on, in the order of positions, from any thread.

Batches of neighbouring positions may stand in several segments and in any order in each of them. So the segments that
can hold what is asked for are gone through in file order, what their indexes say is put together, and a segment is left
out if nothing in it can come before what was found already. Frames that lie close together in a file are read at once.
Every frame that is read is verified: its header against its place and against the index, its body against its checksum.

What must always hold: what is told of a position is what was written there, or `Corrupt` is raised; a position is left
out only if nothing is there.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from operator import itemgetter
from typing import Final, NamedTuple

from varlog import limits
from varlog.errors import Corrupt
from varlog.storage import format as fmt
from varlog.storage.files import File, FileSystem
from varlog.storage.positions import ANY_SIZE, Line, PositionIndex, within
from varlog.storage.positionsegment import PositionSegment
from varlog.storage.reader import StoredBatch, StoredFrame, read_run
from varlog.storage.residents import OpenFiles, Residents
from varlog.storage.segment import NO_FLOOR
from varlog.types import GLSN, LLSN, Epoch, Version

Written = tuple[int, int | None]
"""A segment's number, and how far it is in its file; None if it is closed."""

RUNS_LOOK: Final = 4 * limits.SEGMENT_RECORDS
"""About so many batches are looked at to tell runs of positions once: a few milliseconds."""
_GAP: Final = 64 * limits.KIB
"""Bytes that nobody asked for are read if they lie between others and are no more than this."""
_NO_VERSION: Final = Version(0)
_NO_EPOCH: Final = Epoch(0)
_NOT_READ: Final = memoryview(b"")
_new_stored: Final = partial(tuple.__new__, StoredBatch)


class Found(NamedTuple):
    """A batch, and the segment it stands in."""

    line: Line
    segment: PositionSegment


class PositionReader(Residents[PositionIndex]):
    """See the module's text."""

    def __init__(self, fs: FileSystem, directory: str, open_files: OpenFiles, guard: threading.Lock) -> None:
        super().__init__(fs, directory, open_files, PositionIndex.decode)
        self._guard = guard
        """Held while a segment is looked into whose index may change."""

    # What is there

    def find(
        self,
        segments: Sequence[PositionSegment],
        glsn: int,
        most: int,
        size: int = ANY_SIZE,
        written: Written | None = None,
    ) -> list[Found]:
        """The batches that end beyond a position, in order: at most so many, and at least one, that take about `size`
        bytes; if `written` is said, only those in the files up to there."""
        if not segments:
            return []
        last = len(segments) - 1
        number = bisect_right(segments, glsn, hi=last, key=_reach)
        found: list[Found] = []
        bound: int = NO_FLOOR
        """What reaches beyond it is not wanted any more."""
        while number <= last:
            segment = segments[number]
            if number < last and segment.least >= bound:
                number = last
                continue
            if segment.following(glsn) < bound:
                found += self._in(segment, glsn, bound, most, size, written)
                found.sort(key=_glsn)
                del found[within([one.line for one in found], most, size) :]
                if len(found) == most or (size < ANY_SIZE and sum([one.line.size for one in found]) >= size):
                    bound = found[-1].line.end
            number += 1
        return found

    def _in(
        self, segment: PositionSegment, glsn: int, bound: int, most: int, size: int, written: Written | None
    ) -> list[Found]:
        limit = None
        if written is not None:
            seq, offset = written
            if segment.seq > seq:
                return []
            limit = offset if segment.seq == seq else None
        index = segment.index
        if index is None:
            lines = self.index(segment).lines(glsn, min(segment.end, bound), most, size, limit)
        else:
            with self._guard:
                lines = index.lines(glsn, min(segment.end, bound), most, size, limit)
        return [Found(line, segment) for line in lines]

    def runs(self, segments: Sequence[PositionSegment], glsn: int, most: int) -> tuple[list[tuple[int, int]], int]:
        """The positions that are written, as runs [begin, end) that end beyond a position, in order, at most so many;
        and the position below which these are all, NO_FLOOR if there are no others."""
        last = len(segments) - 1
        first = bisect_right(segments, glsn, hi=max(last, 0), key=_reach)
        ahead = sorted([(segment.following(glsn), segment.seq, segment) for segment in segments[first:]])
        told: int = NO_FLOOR
        runs: list[tuple[int, int]] = []
        looked = 0
        for at, _, segment in ahead:
            if at == NO_FLOOR or (looked >= RUNS_LOOK and at > glsn):
                told = at
                break
            found, count = self._runs_in(segment, glsn)
            runs += found
            looked += count
        return _joined(sorted(runs), most, told)

    def _runs_in(self, segment: PositionSegment, glsn: int) -> tuple[list[tuple[int, int]], int]:
        index = segment.index
        if index is None:
            return self.index(segment).runs(glsn, segment.end)
        with self._guard:
            return index.runs(glsn, segment.end)

    # Reading

    def read(
        self, segments: Sequence[PositionSegment], glsn: int, max_bytes: int, written: Written | None
    ) -> list[StoredBatch]:
        """The batches in the files that end beyond a position; at least one if there is one, about `max_bytes`."""
        found = self.find(segments, glsn, ANY_SIZE, max(max_bytes, 1), written)
        batches = self._read_all(found)
        return [batches[one.line.glsn] for one in found]

    def read_verdicts(
        self, segments: Sequence[PositionSegment], glsn: int, max_bytes: int, written: Written | None
    ) -> list[StoredBatch]:
        """The same, for who looks for verdicts: batches that have several entries, and so are none, are not read, and
        told without their bytes."""
        found = self.find(segments, glsn, limits.VERDICTS_LOOK, written=written)
        sizes = accumulate([one.line.size if one.line.count == 1 else 0 for one in found])
        del found[1 + sum(1 for size in sizes if size <= max_bytes) :]
        batches = self._read_all([one for one in found if one.line.count == 1])
        return [batches.get(one.line.glsn) or _unread(one.line) for one in found]

    def _read_all(self, found: Sequence[Found]) -> dict[int, StoredBatch]:
        """By position."""
        batches: dict[int, StoredBatch] = {}
        for segment in {one.segment.seq: one.segment for one in found}.values():
            lines = sorted([one.line for one in found if one.segment is segment], key=itemgetter(4))
            with self.borrow(segment) as resident:
                for run in _close_together(lines):
                    for line, frame in _frames(resident.file, segment, run):
                        batches[line.glsn] = _stored(line, frame)
        return batches

    def read_one(self, segments: Sequence[PositionSegment], glsn: int, written: Written) -> StoredBatch | None:
        """The batch that has a position, if it is in the files, sound, and its index in memory; what is wrong else,
        `read` finds out."""
        last = len(segments) - 1
        number = bisect_right(segments, glsn, hi=max(last, 0), key=_reach)
        while number <= last:
            segment = segments[number]
            if number < last and segment.least > glsn:
                number = last
                continue
            if segment.following(glsn) == glsn:
                index = segment.index if segment.index is not None else self.index_at_hand(segment)
                if index is None:
                    return None
                with self._guard:
                    line = index.at(glsn)
                if line is not None and line.glsn + line.count <= segment.end:
                    return self._read_line(segment, line, written)
            number += 1
        return None

    def _read_line(self, segment: PositionSegment, line: Line, written: Written) -> StoredBatch | None:
        seq, offset = written
        if segment.seq > seq or (segment.seq == seq and offset is not None and line.offset >= offset):
            return None
        glsn, time, count, check, begin, size = line
        resident = self.take(segment)
        try:
            frame = resident.file.pread(size, begin)
        except OSError:
            return None
        finally:
            self.give_back(resident)
        found = fmt.batch_of_frame(frame, begin, (count, check, glsn, time, segment.nonce))
        return None if found is None else _new_stored((glsn, glsn, count, found[0], _NO_VERSION, time, found[1]))


def _joined(runs: Iterable[tuple[int, int]], most: int, told: int) -> tuple[list[tuple[int, int]], int]:
    """Runs in order, what begins at position `told` or beyond left out, as at most so many that do not touch."""
    joined: list[tuple[int, int]] = []
    for begin, end in runs:
        if begin >= told:
            break
        if joined and joined[-1][1] == begin:
            joined[-1] = joined[-1][0], end
        elif len(joined) < most:
            joined.append((begin, end))
        else:
            return joined, joined[-1][1]
    return joined, told


def _close_together(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Lines in file order, in runs that are read at once."""
    run: list[Line] = []
    for line in lines:
        if run and (
            line.offset - (run[-1].offset + run[-1].size) > _GAP
            or line.offset + line.size - run[0].offset > limits.READ_CHUNK_BYTES
        ):
            yield run
            run = []
        run.append(line)
    if run:
        yield run


def _frames(file: File, segment: PositionSegment, run: list[Line]) -> Iterator[tuple[Line, StoredFrame]]:
    """Lines with their frames, which must be what the index says they are."""
    frames = read_run(file, segment, [(line.glsn, line.offset, line.size) for line in run])
    for line, frame in zip(run, frames, strict=True):
        _check(frame, line, segment)
        yield line, frame


def _check(frame: StoredFrame, line: Line, segment: PositionSegment) -> None:
    header = frame.header
    if (header.prev_sequence, header.count, header.check) != line[1:4]:
        raise Corrupt("an index that is not that of its frames", segment=segment.name, offset=segment.index_offset)


def _stored(line: Line, frame: StoredFrame) -> StoredBatch:
    epoch = frame.header.epoch
    return StoredBatch(GLSN(line.glsn), LLSN(line.glsn), line.count, epoch, _NO_VERSION, line.time, frame.batch)


def _unread(line: Line) -> StoredBatch:
    return StoredBatch(GLSN(line.glsn), LLSN(line.glsn), line.count, _NO_EPOCH, _NO_VERSION, line.time, _NOT_READ)


def _glsn(found: Found) -> int:
    return found.line.glsn


def _reach(segment: PositionSegment) -> int:
    return segment.reach
