"""What a replica has stored and not committed: the batches in [committed end, end), in order, and who waits for each.

A batch enters at the end, leaves at the front with the cut that commits it, or at the back with a seal that voids it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from varlog import limits
from varlog.core.address import Address
from varlog.types import LLSN, CommitContext, Epoch, Sequence, WriterID


class Pending:
    """A stored batch that is not committed yet, and who waits for it."""

    __slots__ = ("batch", "count", "end", "epoch", "llsn", "prev_sequence", "sequence", "size", "waiters", "writer_id")

    def __init__(
        self,
        llsn: LLSN,
        count: int,
        epoch: Epoch,
        writer_id: WriterID,
        sequence: Sequence,
        prev_sequence: Sequence,
        size: int,
        batch: bytes | memoryview | None = None,
    ) -> None:
        self.llsn = llsn
        self.count = count
        self.end = LLSN(llsn + count)
        self.epoch = epoch
        self.writer_id = writer_id
        self.sequence = sequence
        self.prev_sequence = prev_sequence
        self.size = size
        self.batch = batch
        """Kept by a primary with backups, to send again."""
        self.waiters: list[tuple[Address, int]] = []


class Question(NamedTuple):
    """Somebody wants to know what became of a batch."""

    source: Address
    request: int
    writer_id: WriterID
    sequence: Sequence
    horizon: LLSN


class PendingBatches:
    """See the module's text."""

    def __init__(self) -> None:
        self._batches: deque[Pending] = deque()
        self._bytes = 0

    def __iter__(self) -> Iterator[Pending]:
        return iter(self._batches)

    def __bool__(self) -> bool:
        return bool(self._batches)

    def is_full(self, size: int) -> bool:
        """Whether a batch of `size` bytes is more than may wait."""
        too_many = len(self._batches) >= limits.MAX_UNCOMMITTED_BATCHES
        return too_many or self._bytes + size > limits.MAX_UNCOMMITTED_BYTES

    def add(self, batch: Pending) -> None:
        self._batches.append(batch)
        self._bytes += batch.size

    def at(self, llsn: LLSN) -> Pending | None:
        """The batch that begins at an LLSN."""
        return next((batch for batch in self._batches if batch.llsn == llsn), None)

    def holds(self, cc: CommitContext) -> bool:
        """Every batch of a cut's range is here, written in exactly the cut's epoch (rule 7)."""
        end = cc.llsn_begin
        for batch in self._batches:
            if batch.llsn >= cc.llsn_end:
                break
            if batch.epoch != cc.epoch:
                return False
            end = batch.end
        return end == cc.llsn_end

    def commit(self, llsn_end: LLSN) -> list[Pending]:
        """Take out what a cut commits, oldest first."""
        committed = []
        while self._batches and self._batches[0].llsn < llsn_end:
            batch = self._batches.popleft()
            self._bytes -= batch.size
            committed.append(batch)
        return committed

    def void(self, llsn_end: LLSN) -> list[Pending]:
        """Take out what is at or above a point, newest first."""
        voided = []
        while self._batches and self._batches[-1].llsn >= llsn_end:
            batch = self._batches.pop()
            self._bytes -= batch.size
            voided.append(batch)
        return voided

    @property
    def end(self) -> LLSN | None:
        """Where the last batch ends; None if there is none."""
        return self._batches[-1].end if self._batches else None
