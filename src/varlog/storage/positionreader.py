"""PositionReader: what a write-once log holds from a position on, in the order of positions, from any thread.

Batches of neighbouring positions may stand in several segments and in any order in each of them. So the segments that
can hold what is asked for are gone through in file order, what their indexes say is put together, and it is done when
nothing that comes first can be in a segment further on (`PositionSegment.least`). Frames that lie close together in a
file are read at once. Every frame that is read is verified: its header against its place and against the index, its
body against its checksum.

What must always hold: what is told of a position is what was written there, or `Corrupt` is raised; a position is left
out only if nothing is there.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from varlog import limits
from varlog.errors import Corrupt
from varlog.storage.files import FileSystem
from varlog.storage.positions import Line, PositionIndex, within
from varlog.storage.positionsegment import PositionSegment
from varlog.storage.reader import StoredBatch, read_run
from varlog.storage.residents import Residents
from varlog.types import GLSN, LLSN, Version

_GAP: Final = 64 * limits.KIB
"""Bytes that nobody asked for are read if they lie between others and are no more than this."""
_NO_VERSION: Final = Version(0)
_ANY: Final = 1 << 62


class Found(NamedTuple):
    """A batch, and the segment it stands in."""

    line: Line
    segment: PositionSegment


class PositionReader(Residents[PositionIndex]):
    """See the module's text."""

    def __init__(self, fs: FileSystem, directory: str, guard: threading.Lock) -> None:
        super().__init__(fs, directory, PositionIndex.decode)
        self._guard = guard
        """Held while a segment is looked into whose index may change."""

    def find(
        self,
        segments: Sequence[PositionSegment],
        glsn: int,
        most: int,
        size: int = _ANY,
        written: tuple[int, int | None] | None = None,
    ) -> list[Found]:
        """The batches that end beyond a position, in order: at most so many, and at least one, that take about `size`
        bytes; if `written` is said, only those in the files up to there."""
        if not segments:
            return []
        found = self._in(segments[-1], glsn, most, size, written)
        last = len(segments) - 1
        for number in range(bisect_right(segments, glsn, hi=last, key=_reach), last):
            segment = segments[number]
            before = bisect_left(found, segment.least, key=_glsn)
            if before >= most or sum([one.line.size for one in found[:before]]) >= size:
                break
            if segment.end > glsn and segment.begin < segment.end:
                found += self._in(segment, glsn, most, size, written)
                found.sort(key=_glsn)
                del found[within([one.line for one in found], most, size) :]
        return found

    def _in(
        self,
        segment: PositionSegment,
        glsn: int,
        most: int,
        size: int,
        written: tuple[int, int | None] | None,
    ) -> list[Found]:
        limit = None
        if written is not None:
            seq, offset = written
            if segment.seq > seq:
                return []
            limit = offset if segment.seq == seq else None
        index = segment.index
        if index is None:
            lines = self.index(segment).lines(glsn, segment.end, most, size, limit)
        else:
            with self._guard:
                lines = index.lines(glsn, segment.end, most, size, limit)
        return [Found(line, segment) for line in lines]

    def read(
        self, segments: Sequence[PositionSegment], glsn: int, max_bytes: int, written: tuple[int, int | None] | None
    ) -> list[StoredBatch]:
        """The batches in the files that end beyond a position; at least one if there is one, about `max_bytes`."""
        found = self.find(segments, glsn, _ANY, max(max_bytes, 1), written)
        batches: dict[int, StoredBatch] = {}
        for segment in {one.segment.seq: one.segment for one in found}.values():
            lines = sorted([one.line for one in found if one.segment is segment], key=itemgetter(4))
            with self.borrow(segment) as resident:
                for run in _runs(lines):
                    frames = read_run(resident.file, segment, [(line.glsn, line.offset, line.size) for line in run])
                    for line, (header, batch) in zip(run, frames, strict=True):
                        if (header.prev_sequence, header.count, header.check) != line[1:4]:
                            raise Corrupt("an index that is not that of its frames", segment=segment.name,
                                          offset=segment.index_offset)  # fmt: skip
                        batches[line.glsn] = StoredBatch(
                            GLSN(line.glsn), LLSN(line.glsn), line.count, header.epoch, _NO_VERSION, line.time, batch
                        )
        return [batches[one.line.glsn] for one in found]


def _runs(lines: Sequence[Line]) -> Iterator[list[Line]]:
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


def _glsn(found: Found) -> LLSN:
    return LLSN(found.line.glsn)


def _reach(segment: PositionSegment) -> int:
    return segment.reach
