"""Segments of a write-once log: its state, how its next frame is laid out, and how its frames are replayed.

A write-once log holds batches, each at its position, and promises of epochs. A promise is a SEAL frame; it names the
position from which on everything that stands before it in the files is void, or `NO_FLOOR`.

Batches of neighbouring positions may stand in different segments, because they come in any order. Looking a position up
begins with a bisection all the same: `reach` never decreases along the segments, and nor does `least`. A hole that is
filled long after makes its segment reach back over all between; so the widest gap in a segment is known, too.

What must always hold: the epoch, the time and the number of records only grow; nothing is there at or beyond the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from varlog.batch import BatchHeader
from varlog.errors import ConsistencyViolation
from varlog.storage import format as fmt
from varlog.storage.files import Buffer
from varlog.storage.format import Context, Footer, FrameKind, Members, SegmentHeader
from varlog.storage.positions import PositionIndex
from varlog.storage.replay import SegmentReplay
from varlog.storage.scan import Frame
from varlog.storage.segment import NO_FLOOR, Layout, SegmentFile
from varlog.types import FIRST_LLSN, GLSN, LLSN, Epoch, Ordering, Version

EMPTY: Final = Context(LLSN(0), FIRST_LLSN, Version(0), GLSN(0), GLSN(0), Epoch(0), Members())
"""The state of a log to which nothing ever happened."""


class PositionState:
    """What a log comes to, moved forward by its records; the same when they are staged and when they are replayed."""

    __slots__ = ("end", "epoch", "time", "version")

    def __init__(self, context: Context) -> None:
        self.end = context.end
        """Nothing is there at or beyond this position."""
        self.time: int = context.hwm
        """The greatest one of all batches that are, or were, there."""
        self.epoch = context.epoch
        """The greatest one promised."""
        self.version = context.version
        """How many records there were: a file that lacks one of them can be told."""

    def context(self) -> Context:
        return Context(LLSN(0), self.end, self.version, GLSN(self.time), GLSN(0), self.epoch, Members())

    def write(self, end: int, time: int, epoch: Epoch, count: int) -> None:
        """So many batches, of which the last one ends there; the greatest of their times."""
        if end > self.end:
            self.end = LLSN(end)
        if time > self.time:
            self.time = time
        if epoch > self.epoch:
            self.epoch = epoch
        self.version = Version(self.version + count)

    def promise(self, epoch: Epoch, wipe: LLSN) -> None:
        if epoch < self.epoch:
            raise ConsistencyViolation(f"a promise of epoch {epoch} goes back behind epoch {self.epoch}")
        self.epoch = epoch
        self.end = min(self.end, wipe)
        self.version = Version(self.version + 1)


class PositionSegment(SegmentFile[PositionIndex]):
    """What readers need to know of a segment. Batches that have a position at or beyond `end` are void."""

    __slots__ = ("begin", "gap", "least", "reach")

    def __init__(self, seq: int, name: str, nonce: int, begin: LLSN, end: LLSN) -> None:
        super().__init__(seq, name, nonce, end)
        self.begin = begin
        """Its batches lie in [begin, end); if there are none, both are 0."""
        self.gap = (0, 0)
        """The widest range in which it has none, if it is closed."""
        self.reach = end
        """The greatest end of this one and all before it,"""
        self.least = begin
        """and the least position of this one and all behind it. Both are known of closed ones only."""

    @classmethod
    def closed(cls, name: str, footer: Footer) -> PositionSegment:
        segment = cls(footer.seq, name, footer.nonce, footer.begin, footer.end)
        segment.index_offset = footer.index_offset
        segment.gap = footer.context.committed_end, footer.context.local_hwm
        return segment

    def following(self, glsn: int) -> int:
        """No batch that ends beyond `glsn` begins before this position; `glsn` itself if one may be there."""
        begin, end = self.gap
        found = self.begin if glsn < self.begin else end if begin <= glsn < end else glsn
        return found if found < self.end else NO_FLOOR


def lay_bounds(closed: Sequence[PositionSegment]) -> None:
    """Work out `reach` and `least` of all closed segments."""
    reach = LLSN(0)
    for segment in closed:
        reach = segment.reach = max(reach, segment.end)
    least = NO_FLOOR
    for segment in reversed(closed):
        if segment.begin < segment.end:
            least = min(least, segment.begin)
        segment.least = least


def extend_bounds(closed: Sequence[PositionSegment], newest: PositionSegment) -> None:
    """The same when one more is closed; those before it change only as far as it reaches back."""
    newest.reach = max(newest.end, closed[-1].reach if closed else LLSN(0))
    newest.least = newest.begin if newest.begin < newest.end else NO_FLOOR
    for segment in reversed(closed):
        if segment.least <= newest.least:
            break
        segment.least = newest.least


class ActivePositions(Layout):
    """The newest segment, as it is laid out."""

    __slots__ = ("index", "segment")

    ordering = Ordering.SEQUENCER
    segment: PositionSegment

    def __init__(self, header: SegmentHeader, context: Context) -> None:
        super().__init__(header, context)
        self.index = PositionIndex()
        self.segment = PositionSegment(self.seq, self.name, self.nonce, LLSN(0), LLSN(0))
        self.segment.index = self.index

    def batch_frames(
        self,
        epoch: Epoch,
        glsns: Sequence[int],
        times: Sequence[int],
        batches: Sequence[Buffer],
        headers: Sequence[BatchHeader],
    ) -> list[Buffer]:
        """The frames of batches, one after another."""
        run = zip(glsns, times, batches, headers, strict=True)
        frames, offsets, self.chain = fmt.encode_batch_frames(
            self.offset, self.chain, self.synced, epoch, self.nonce, run
        )
        counts = [header[4] for header in headers]
        sizes = [fmt.FRAME_HEADER_BYTES + header[0] for header in headers]
        self.offset = offsets[-1] + sizes[-1]
        self.added_batches((glsns, times, counts, list(map(fmt.batch_check, batches)), offsets, sizes))
        return frames

    def closing(self, context: Context) -> bytes:
        begin, end = self.segment.gap = self.index.gap()
        context = context._replace(committed_end=LLSN(begin), local_hwm=GLSN(end))
        return self._ending(self.index.encode(), self.segment.begin, self.segment.end, context)

    # What the records do to the index; the same when they are staged and when they are replayed.

    def added_batches(self, columns: Sequence[Sequence[int]]) -> None:
        self.records += len(columns[0])
        self.index.add(columns)
        self._bound()

    def added_promise(self, wipe: LLSN) -> None:
        self.records += 1
        self.floor = min(self.floor, wipe)
        self.index.drop_beyond(wipe)
        self._bound()

    def _bound(self) -> None:
        self.segment.begin, self.segment.end = LLSN(self.index.begin), LLSN(self.index.end)


class PositionReplay(SegmentReplay):
    """A segment of a write-once log, frame by frame."""

    ordering = Ordering.SEQUENCER
    state: PositionState
    active: ActivePositions

    def __init__(self, header: SegmentHeader, context: Context, snapshot: bytes) -> None:
        super().__init__(header, context, snapshot)
        self.state = PositionState(context)
        self.active = ActivePositions(header, context)

    def apply(self, frame: Frame) -> bool:
        header = frame.header
        if header.kind == FrameKind.BATCH:
            return self._batch(frame)
        if header.kind != FrameKind.SEAL or header.epoch < self.state.epoch:
            return False
        self.state.promise(header.epoch, header.llsn)
        self.active.added_promise(header.llsn)
        return True

    def _batch(self, frame: Frame) -> bool:
        header = frame.header
        glsn, time, count = header.llsn, header.prev_sequence, header.count
        if not count or (glsn + count) >> 63:
            return False
        # What it overlaps was trimmed when it was staged: else it would not have been.
        self.active.index.make_free(glsn, glsn + count)
        self.state.write(glsn + count, time, header.epoch, 1)
        size = fmt.FRAME_HEADER_BYTES + header.length
        self.active.added_batches(((glsn,), (time,), (count,), (header.check,), (frame.offset,), (size,)))
        return True
