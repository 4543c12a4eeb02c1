"""Replay: the newest segment's frames, applied one after another to the context it begins with.

The same steps as when the records were staged: the state (`state`), the index and layout (`segment.ActiveSegment`), and
beside them what only recovery wants to know: which batches are uncommitted, and what the deduplication table missed
since the snapshot the segment begins with.

`SegmentReplay` is what recovery and scrub ask of it, and of the replay of a write-once log (`positions`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Any, ClassVar, Final, NamedTuple

from varlog.errors import ConsistencyViolation
from varlog.storage import format as fmt
from varlog.storage.format import Context, Footer, FrameHeader, FrameKind, SegmentHeader
from varlog.storage.scan import Frame
from varlog.storage.segment import ActiveSegment, Layout
from varlog.storage.state import LogState, State
from varlog.types import LLSN, Epoch, Ordering, Sequence, WriterID

_BATCH: Final = int(FrameKind.BATCH)


class UncommittedBatch(NamedTuple):
    """A whole batch after the last commit."""

    llsn: LLSN
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses here
    epoch: Epoch
    writer_id: WriterID
    sequence: Sequence
    prev_sequence: Sequence
    size: int


def uncommitted_batch(header: FrameHeader, body: memoryview) -> UncommittedBatch:
    """What a batch's frame and its own header say; both are verified by their checksums."""
    writer_id, sequence = fmt.batch_origin(body)
    return UncommittedBatch(
        header.llsn, header.count, header.epoch, writer_id, sequence, Sequence(header.prev_sequence), header.length
    )


class SegmentReplay(ABC):
    """A segment, replayed frame by frame."""

    ordering: ClassVar[Ordering]
    state: State
    active: Layout

    @abstractmethod
    def __init__(self, header: SegmentHeader, context: Context, snapshot: bytes) -> None:
        """A segment that begins with these."""
        self.snapshot = snapshot

    @abstractmethod
    def apply(self, frame: Frame) -> bool:
        """Apply a whole frame; False if it does not follow from what is before it."""

    def ending(self, _footer: Footer) -> bytes:
        """What the segment must end with, if it is closed here; `_footer` is what it has."""
        return self.active.closing(self.state.context())


class Replay(SegmentReplay):
    """See the module's text."""

    ordering = Ordering.COMMIT
    state: LogState
    active: ActiveSegment

    def __init__(self, header: SegmentHeader, context: Context, snapshot: bytes) -> None:
        super().__init__(header, context, snapshot)
        self.state = LogState(context)
        self.active = ActiveSegment(header, context)
        self.carried_end = context.end
        """Uncommitted batches below this LLSN stand in earlier segments."""
        self.uncommitted: deque[UncommittedBatch] = deque()
        self.dedup_tail: list[tuple[Any, ...]] = []

    def apply(self, frame: Frame) -> bool:
        kind = frame.header.kind
        try:
            if kind == _BATCH:
                return self._batch(frame)
            if kind == FrameKind.COMMIT:
                return self._commit(frame)
            if kind == FrameKind.SEAL:
                return self._seal(frame)
            return kind == FrameKind.UNSEAL and self._unseal(frame)
        except ConsistencyViolation:
            return False

    def ending(self, footer: Footer) -> bytes:
        # A high watermark may have been learnt from a commit that was dropped (B10).
        self.state.hwm = max(self.state.hwm, footer.context.hwm)
        return super().ending(footer)

    def _batch(self, frame: Frame) -> bool:
        header = frame.header
        batch = uncommitted_batch(header, frame.body)
        llsn, count = batch.llsn, batch.count
        self.state.batch(llsn, count, batch.epoch)
        self.active.added_batch(llsn, count, frame.offset, fmt.FRAME_HEADER_BYTES + header.length)
        self.uncommitted.append(batch)
        self.dedup_tail.append(("batch", llsn, count, batch.writer_id, batch.sequence))
        return True

    def _commit(self, frame: Frame) -> bool:
        cc = fmt.decode_commit(frame.body)
        if cc is None:
            return False
        self.state.commit(cc)
        self.active.added_commit(cc)
        while self.uncommitted and self.uncommitted[0].llsn < cc.llsn_end:
            self.uncommitted.popleft()
        self.dedup_tail.append(("commit", cc))
        return True

    def _seal(self, frame: Frame) -> bool:
        llsn_end = frame.header.llsn
        self.state.seal(frame.header.epoch, llsn_end)
        self.active.added_seal(llsn_end)
        self.carried_end = min(self.carried_end, llsn_end)
        while self.uncommitted and self.uncommitted[-1].llsn >= llsn_end:
            self.uncommitted.pop()
        self.dedup_tail.append(("truncate", llsn_end))
        return True

    def _unseal(self, frame: Frame) -> bool:
        members = fmt.decode_members(frame.body)
        if members is None:
            return False
        self.state.unseal(frame.header.epoch, members)
        self.active.added_unseal()
        return True
