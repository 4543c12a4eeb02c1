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
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from enum import Enum
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from varlog import limits
from varlog.batch import BatchHeader
from varlog.core.messages import Append
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
    """One batch of one writer; `epoch` and `glsn` are 0 while it is pending.

    The table itself keeps plain tuples of these fields, which are made for every batch; this is what it hands out."""

    writer_id: WriterID
    sequence: Sequence
    llsn: LLSN
    count: int  # type: ignore[assignment]
    epoch: Epoch
    glsn: GLSN


_Pending = tuple[WriterID, Sequence, LLSN, int]
_Committed = tuple[WriterID, Sequence, LLSN, int, Epoch, GLSN]


class _Writer:
    __slots__ = ("floor", "recent")

    def __init__(self) -> None:
        self.recent: deque[_Committed] = deque()
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
        self._pending: deque[_Pending] = deque()
        self._pending_of: dict[WriterID, dict[Sequence, _Pending]] = {}

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
        pending = self._pending_of.get(writer_id)
        if (
            pending is not None
            and prev_sequence < sequence
            and next(reversed(pending)) == prev_sequence
            and horizon >= self._floor
        ):
            return _NEW  # it follows what the writer sent before: the way nearly all go
        fate, record = self.fate(writer_id, sequence, horizon)
        if fate is not Fate.DID_NOT_HAPPEN:
            return fate, record
        last = self._last_sequence(writer_id)
        if sequence <= last or prev_sequence != last:
            return Fate.GAP, None
        return _NEW

    def end_of_chain(self, messages: Seq[Append], headers: Seq[BatchHeader], begin: int) -> int:
        """How far those from `begin` on, which arrive one after another, follow the one before: if the first of them is
        new, so are the others up to there."""
        floor, epoch, writer_id, last = self._floor, messages[begin].epoch, headers[begin][6], headers[begin][7]
        for at in range(begin + 1, len(messages)):
            message, header = messages[at], headers[at]
            sequence = header[7]
            if (
                message.prev_sequence != last
                or sequence <= last
                or header[6] != writer_id
                or message.epoch != epoch
                or message.horizon < floor
            ):
                return at
            last = sequence
        return len(messages)

    def fate(self, writer_id: WriterID, sequence: Sequence, horizon: LLSN) -> tuple[Fate, Record | None]:
        """What became of a batch, as far as this log stream is concerned."""
        pending = self._pending_of.get(writer_id)
        if pending is not None and (stored := pending.get(sequence)) is not None:
            return Fate.PENDING, Record(*stored, Epoch(0), GLSN(0))
        writer = self._writers.get(writer_id)
        if writer is None:
            return (Fate.EXPIRED if horizon < self._floor else Fate.DID_NOT_HAPPEN), None
        recent = writer.recent
        if sequence > recent[-1][1]:
            return Fate.DID_NOT_HAPPEN, None
        if sequence < recent[0][1]:
            forgotten = horizon < max(self._floor, writer.floor)
            return (Fate.EXPIRED if forgotten else Fate.DID_NOT_HAPPEN), None
        for record in reversed(recent):
            if record[1] == sequence:
                return Fate.COMMITTED, Record._make(record)
        return Fate.DID_NOT_HAPPEN, None

    def _last_sequence(self, writer_id: WriterID) -> Sequence:
        pending = self._pending_of.get(writer_id)
        if pending:
            return next(reversed(pending))
        writer = self._writers.get(writer_id)
        return writer.recent[-1][1] if writer is not None else Sequence(0)

    def add(self, writer_id: WriterID, sequence: Sequence, llsn: LLSN, count: int) -> None:
        """A batch was stored."""
        stored = (writer_id, sequence, llsn, count)
        self._pending.append(stored)
        of_writer = self._pending_of.get(writer_id)
        if of_writer is None:
            self._pending_of[writer_id] = {sequence: stored}
        else:
            of_writer[sequence] = stored

    def add_all(self, llsn: LLSN, headers: Iterable[BatchHeader]) -> None:
        """Batches were stored that follow one another."""
        pending, pending_of = self._pending, self._pending_of
        writer_id, of_writer = WriterID(0), None
        for header in headers:
            count = header[4]
            stored = (header[6], header[7], llsn, count)
            pending.append(stored)
            if of_writer is None or stored[0] != writer_id:
                writer_id = stored[0]
                of_writer = pending_of.setdefault(writer_id, {})
            of_writer[stored[1]] = stored
            llsn = LLSN(llsn + count)

    def commit(self, cc: CommitContext) -> bool:
        """A cut was applied; its batches are now committed. True if a writer's records expired by it."""
        begin, epoch = cc.llsn_begin, cc.epoch
        end, shift = begin + cc.count, cc.glsn_begin - begin
        pending, pending_of = self._pending, self._pending_of
        committed: list[_Committed] = []
        is_mixed = len(pending_of) > 1
        of_writer = pending_of[pending[0][0]] if pending else {}
        while pending and pending[0][2] < end:
            writer_id, sequence, llsn, count = pending.popleft()
            if is_mixed:
                of_writer = pending_of[writer_id]
            del of_writer[sequence]
            if not of_writer:
                del pending_of[writer_id]
            committed.append((writer_id, sequence, llsn, count, epoch, llsn + shift))  # type: ignore[arg-type]
        if committed and not is_mixed and self._size + len(committed) <= self._total:
            self._remember_all(committed[0][0], committed)
            return False
        return sum(map(self._remember, committed)) > 0

    def _remember_all(self, writer_id: WriterID, committed: list[_Committed]) -> None:
        """As `_remember` of each, where all are of one writer and no other has to be forgotten for them."""
        writer = self._writers.get(writer_id)
        if writer is None:
            writer = self._writers[writer_id] = _Writer()
        else:
            self._writers.move_to_end(writer_id)
        recent = writer.recent
        recent.extend(committed)
        self._size += len(committed)
        if (surplus := len(recent) - self._per_writer) > 0:
            self._size -= surplus
            for _ in range(surplus - 1):
                recent.popleft()
            oldest = recent.popleft()
            writer.floor = LLSN(oldest[2] + oldest[3])

    def truncate(self, llsn_end: LLSN) -> int:
        """Everything stored at or above `llsn_end` is void. Returns how many batches that were."""
        pending = self._pending
        count = 0
        while pending and pending[-1][2] >= llsn_end:
            writer_id, sequence, _, _ = pending.pop()
            of_writer = self._pending_of[writer_id]
            del of_writer[sequence]
            if not of_writer:
                del self._pending_of[writer_id]
            count += 1
        return count

    def _remember(self, record: _Committed) -> bool:
        writer_id = record[0]
        writers = self._writers
        writer = writers.get(writer_id)
        if writer is None:
            writer = writers[writer_id] = _Writer()
        elif len(writers) > 1:
            writers.move_to_end(writer_id)
        recent = writer.recent
        recent.append(record)
        if len(recent) > self._per_writer:
            oldest = recent.popleft()
            writer.floor = LLSN(oldest[2] + oldest[3])
        else:
            self._size += 1
        if self._size <= self._total or len(writers) == 1:
            return False
        _, silent = writers.popitem(last=False)
        self._size -= len(silent.recent)
        last = silent.recent[-1]
        self._floor = max(self._floor, LLSN(last[2] + last[3]))
        return True

    # Snapshots: footers, low-watermark records and copies of a replica carry the table with them.

    def snapshot(self) -> bytes:
        """The whole table as bytes."""
        writers = [(w.floor, [r[1:] for r in w.recent]) for w in self._writers.values()]
        ids = list(self._writers)
        pending = [(*stored, 0, 0) for stored in self._pending]
        return msgspec.msgpack.encode((int(self._floor), ids, writers, pending))

    def recover(self, snapshot: bytes | None, tail: Iterable[tuple[Any, ...]]) -> None:
        """Become what a log's last snapshot, and what the log holds behind it, make of an empty table."""
        if snapshot:
            self.restore(snapshot)
        for kind, *fields in tail:
            if kind == "batch":
                llsn, count, writer_id, sequence = fields
                self.add(writer_id, sequence, llsn, count)
            elif kind == "commit":
                self.commit(fields[0])
            else:
                self.truncate(fields[0])

    def fold(self, snapshot: bytes | None, tail: Iterable[tuple[Any, ...]]) -> bytes:
        """The snapshot that a table of this kind would be after that; this one is not touched."""
        table = DedupTable(per_writer=self._per_writer, total=self._total)
        table.recover(snapshot, tail)
        return table.snapshot()

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
            for sequence, llsn, count, epoch, glsn in records:
                committed = (WriterID(writer_id), Sequence(sequence), LLSN(llsn), count, Epoch(epoch), GLSN(glsn))
                writer.recent.append(committed)
            self._size += len(records)
        for writer_id, sequence, llsn, count, _, _ in pending:
            self.add(WriterID(writer_id), Sequence(sequence), LLSN(llsn), count)


_NEW: Final[tuple[Fate, Record | None]] = (Fate.NEW, None)
_Number = Annotated[int, msgspec.Meta(ge=0)]
_SavedCommitted = tuple[_Number, _Number, _Number, _Number, _Number]
_SavedPending = tuple[_Number, _Number, _Number, _Number, _Number, _Number]
_Table = tuple[
    _Number,
    list[_Number],
    list[tuple[_Number, Annotated[list[_SavedCommitted], msgspec.Meta(min_length=1)]]],
    list[_SavedPending],
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
