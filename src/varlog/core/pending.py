"""What a replica has stored and not committed: the batches in [committed end, end), in order, and who waits for each.

A batch enters at the end, leaves at the front with the cut that commits it, or at the back with a seal that voids it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from itertools import accumulate, islice
from typing import NamedTuple

import msgspec

from varlog import limits
from varlog.batch import BatchHeader
from varlog.core.address import Address
from varlog.types import LLSN, CommitContext, Epoch, Sequence, WriterID


class Pending(msgspec.Struct, gc=False, eq=False):
    """A stored batch that is not committed yet, and who waits for it."""

    llsn: LLSN
    count: int
    epoch: Epoch
    writer_id: WriterID
    sequence: Sequence
    prev_sequence: Sequence
    size: int
    batch: bytes | memoryview | None = None
    """Kept by a primary with backups, to send again."""
    waiters: tuple[tuple[Address, int], ...] = ()

    @property
    def end(self) -> LLSN:
        return LLSN(self.llsn + self.count)


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

    def add_run(
        self, llsn: LLSN, epoch: Epoch, prev_sequences: Iterable[Sequence], headers: Iterable[BatchHeader]
    ) -> tuple[LLSN, int]:
        """Batches that follow one another from `llsn` on, for which nobody waits; their end, and their bytes in all."""
        add, total = self._batches.append, 0
        for prev_sequence, header in zip(prev_sequences, headers, strict=True):
            size, _, _, _, count, _, writer_id, sequence, _, _ = header
            add(Pending(llsn, count, epoch, writer_id, sequence, prev_sequence, size))
            llsn = LLSN(llsn + count)
            total += size
        self._bytes += total
        return llsn, total

    def fitting(self, sizes: Seq[int]) -> int:
        """How many of those batches may wait, from the first on."""
        most, room = limits.MAX_UNCOMMITTED_BATCHES - len(self._batches), limits.MAX_UNCOMMITTED_BYTES - self._bytes
        if len(sizes) <= most and sum(sizes) <= room:
            return len(sizes)
        return sum(size <= room for size in islice(accumulate(sizes), max(0, most)))

    def at(self, llsn: LLSN) -> Pending | None:
        """The batch that begins at an LLSN."""
        return next((batch for batch in self._batches if batch.llsn == llsn), None)

    def holds(self, cc: CommitContext) -> bool:
        """Every batch of a cut's range is here, written in exactly the cut's epoch (rule 7)."""
        last, epoch, end = None, cc.epoch, cc.llsn_end
        for batch in self._batches:
            if batch.llsn >= end:
                break
            if batch.epoch != epoch:
                return False
            last = batch
        return (cc.llsn_begin if last is None else last.end) == end

    def commit(self, llsn_end: LLSN) -> list[Pending]:
        """Take out what a cut commits, oldest first."""
        committed, batches, size = [], self._batches, 0
        while batches and batches[0].llsn < llsn_end:
            batch = batches.popleft()
            size += batch.size
            committed.append(batch)
        self._bytes -= size
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
