"""The deduplication table of a replica: what became of each writer's batches (rules 18, 19).

The table follows the log and nothing else. A batch enters it when it is stored (`add`), moves from pending to committed
with its cut (`commit`), and leaves with a seal that voids it (`truncate`). Records expire by log position only: each
writer keeps its last `per_writer` sequences, and when there are more than `total` over all writers, the writer that has
been silent for longest is forgotten. What was forgotten is remembered as a *floor*: a batch first sent when the log
stream was shorter than the floor may have been among it, so its fate is unknown, never "did not happen".

What must hold:

- the table depends only on the sequence of calls, which is the log's order, so replicas with equal logs agree;
- a sequence is answered `NEW` at most once as long as the log keeps it, whatever is retried, delayed or repeated.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import Enum
from typing import Annotated, Final, NamedTuple

import msgspec

from varlog import limits
from varlog.errors import MalformedSnapshot
from varlog.types import GLSN, LLSN, CommitContext, Epoch, Sequence, WriterID


class Fate(Enum):
    """What the table says of a batch."""

    NEW = "new"
    COMMITTED = "committed"
    PENDING = "pending"
    GAP = "gap"
    EXPIRED = "expired"
    DID_NOT_HAPPEN = "did not happen"


class Record(NamedTuple):
    """One batch of one writer; `epoch` and `glsn` are 0 while it is pending."""

    writer_id: WriterID
    sequence: Sequence
    llsn: LLSN
    count: int  # type: ignore[assignment]
    epoch: Epoch
    glsn: GLSN


class _Writer:
    __slots__ = ("floor", "recent")

    def __init__(self) -> None:
        self.recent: deque[Record] = deque()
        self.floor = LLSN(0)


class DedupTable:
    """See the module's text."""

    def __init__(
        self, *, per_writer: int = limits.DEDUP_SEQUENCES_PER_WRITER, total: int = limits.DEDUP_SEQUENCES
    ) -> None:
        self._per_writer = per_writer
        self._total = total
        self._writers: OrderedDict[WriterID, _Writer] = OrderedDict()
        self._size = 0
        self._floor = LLSN(0)
        self._pending: deque[Record] = deque()
        self._pending_of: dict[WriterID, dict[Sequence, Record]] = {}

    @property
    def floor(self) -> LLSN:
        """Writers the table does not know may have been forgotten with entries below this LLSN."""
        return self._floor

    @property
    def size(self) -> int:
        """How many batches the table knows of."""
        return self._size + len(self._pending)

    def judge(
        self, writer_id: WriterID, sequence: Sequence, prev_sequence: Sequence, horizon: LLSN
    ) -> tuple[Fate, Record | None]:
        """What to do with a batch that arrives to be appended."""
        fate, record = self.fate(writer_id, sequence, horizon)
        if fate is not Fate.DID_NOT_HAPPEN:
            return fate, record
        last = self._last_sequence(writer_id)
        if sequence <= last or prev_sequence != last:
            return Fate.GAP, None
        return Fate.NEW, None

    def fate(self, writer_id: WriterID, sequence: Sequence, horizon: LLSN) -> tuple[Fate, Record | None]:
        """What became of a batch, as far as this log stream is concerned."""
        pending = self._pending_of.get(writer_id)
        if pending is not None and (record := pending.get(sequence)) is not None:
            return Fate.PENDING, record
        writer = self._writers.get(writer_id)
        if writer is None:
            return (Fate.EXPIRED if horizon < self._floor else Fate.DID_NOT_HAPPEN), None
        recent = writer.recent
        if sequence > recent[-1].sequence:
            return Fate.DID_NOT_HAPPEN, None
        if sequence < recent[0].sequence:
            forgotten = horizon < max(self._floor, writer.floor)
            return (Fate.EXPIRED if forgotten else Fate.DID_NOT_HAPPEN), None
        for record in reversed(recent):
            if record.sequence == sequence:
                return Fate.COMMITTED, record
        return Fate.DID_NOT_HAPPEN, None

    def _last_sequence(self, writer_id: WriterID) -> Sequence:
        pending = self._pending_of.get(writer_id)
        if pending:
            return next(reversed(pending))
        writer = self._writers.get(writer_id)
        return writer.recent[-1].sequence if writer is not None else Sequence(0)

    def add(self, writer_id: WriterID, sequence: Sequence, llsn: LLSN, count: int) -> None:
        """A batch was stored."""
        record = Record(writer_id, sequence, llsn, count, Epoch(0), GLSN(0))
        self._pending.append(record)
        self._pending_of.setdefault(writer_id, {})[sequence] = record

    def commit(self, cc: CommitContext) -> bool:
        """A cut was applied; its batches are now committed. True if a writer's records expired by it."""
        end = cc.llsn_end
        shift = cc.glsn_begin - cc.llsn_begin
        pending = self._pending
        expired = False
        while pending and pending[0].llsn < end:
            record = pending.popleft()
            self._forget_pending(record)
            expired |= self._remember(record._replace(epoch=cc.epoch, glsn=GLSN(record.llsn + shift)))
        return expired

    def truncate(self, llsn_end: LLSN) -> int:
        """Everything stored at or above `llsn_end` is void. Returns how many batches that were."""
        pending = self._pending
        count = 0
        while pending and pending[-1].llsn >= llsn_end:
            self._forget_pending(pending.pop())
            count += 1
        return count

    def _forget_pending(self, record: Record) -> None:
        of_writer = self._pending_of[record.writer_id]
        del of_writer[record.sequence]
        if not of_writer:
            del self._pending_of[record.writer_id]

    def _remember(self, record: Record) -> bool:
        writer = self._writers.get(record.writer_id)
        if writer is None:
            writer = self._writers[record.writer_id] = _Writer()
        else:
            self._writers.move_to_end(record.writer_id)
        writer.recent.append(record)
        self._size += 1
        if len(writer.recent) > self._per_writer:
            oldest = writer.recent.popleft()
            writer.floor = LLSN(oldest.llsn + oldest.count)
            self._size -= 1
        if self._size <= self._total or len(self._writers) == 1:
            return False
        _, silent = self._writers.popitem(last=False)
        self._size -= len(silent.recent)
        last = silent.recent[-1]
        self._floor = max(self._floor, LLSN(last.llsn + last.count))
        return True

    # Snapshots: footers, low-watermark records and copies of a replica carry the table with them.

    def snapshot(self) -> bytes:
        """The whole table as bytes."""
        writers = [(w.floor, [r[1:] for r in w.recent]) for w in self._writers.values()]
        ids = list(self._writers)
        return msgspec.msgpack.encode((int(self._floor), ids, writers, list(self._pending)))

    def restore(self, snapshot: bytes) -> None:
        """Become what `snapshot` was taken of. MalformedSnapshot if it is of no table; then nothing has changed."""
        floor, ids, writers, pending = _take_apart(snapshot)
        self._writers.clear()
        self._pending.clear()
        self._pending_of.clear()
        self._floor = LLSN(floor)
        self._size = 0
        for writer_id, (writer_floor, records) in zip(ids, writers, strict=True):
            writer = self._writers[WriterID(writer_id)] = _Writer()
            writer.floor = LLSN(writer_floor)
            writer.recent.extend(Record._make((writer_id, *fields)) for fields in records)
            self._size += len(records)
        for fields in pending:
            record = Record._make(fields)
            self.add(record.writer_id, record.sequence, record.llsn, record.count)


_Number = Annotated[int, msgspec.Meta(ge=0)]
_Committed = tuple[_Number, _Number, _Number, _Number, _Number]
_Pending = tuple[_Number, _Number, _Number, _Number, _Number, _Number]
_Table = tuple[
    _Number,
    list[_Number],
    list[tuple[_Number, Annotated[list[_Committed], msgspec.Meta(min_length=1)]]],
    list[_Pending],
]
_TABLE: Final = msgspec.msgpack.Decoder(_Table)


def _take_apart(snapshot: bytes) -> _Table:
    """A writer is known by a batch at least, and no batch is there twice: what else a table holds is for the log."""
    try:
        table: _Table = _TABLE.decode(snapshot)
    except (ValueError, RecursionError) as e:
        raise MalformedSnapshot(f"{len(snapshot)} bytes are not a deduplication table: {e}") from None
    _, ids, writers, pending = table
    if not len(set(ids)) == len(ids) == len(writers) or len({fields[:2] for fields in pending}) != len(pending):
        raise MalformedSnapshot("a deduplication table has a writer or a batch twice, or a writer nothing is known of")
    return table
