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
from varlog.core import invariants
from varlog.core.address import Address
from varlog.core.invariants import Invariant
from varlog.core.messages import Append
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


def replicated_alone(llsn: LLSN, epoch: Epoch, prev_sequence: Sequence, header: BatchHeader) -> Pending:
    """A batch that a backup stores at `llsn`."""
    size, _, _, _, count, _, writer_id, sequence, _, _ = header
    return Pending(llsn, count, epoch, writer_id, sequence, prev_sequence, size)


def replicated(
    llsn: LLSN, epoch: Epoch, prev_sequences: Iterable[Sequence], headers: Iterable[BatchHeader]
) -> list[Pending]:
    """Batches that a backup stores from `llsn` on."""
    run = []
    for prev_sequence, header in zip(prev_sequences, headers, strict=True):
        size, _, _, _, count, _, writer_id, sequence, _, _ = header
        run.append(Pending(llsn, count, epoch, writer_id, sequence, prev_sequence, size))
        llsn = LLSN(llsn + count)
    return run


def appended_alone(llsn: LLSN, source: Address, message: Append, header: BatchHeader, keeps: bool) -> Pending:
    """A batch that a primary stores at `llsn`, with who waits for it."""
    size, _, _, _, count, _, writer_id, sequence, _, _ = header
    batch = message.batch if keeps else None
    waiters = ((source, message.request),)
    return Pending(llsn, count, message.epoch, writer_id, sequence, message.prev_sequence, size, batch, waiters)


def appended(
    llsn: LLSN, source: Address, messages: Iterable[Append], headers: Iterable[BatchHeader], keeps: bool
) -> list[Pending]:
    """Batches that a primary stores from `llsn` on, each with who waits for it."""
    run = []
    for message, header in zip(messages, headers, strict=True):
        size, _, _, _, count, _, writer_id, sequence, _, _ = header
        batch = message.batch if keeps else None
        waiters = ((source, message.request),)
        run.append(
            Pending(llsn, count, message.epoch, writer_id, sequence, message.prev_sequence, size, batch, waiters)
        )
        llsn = LLSN(llsn + count)
    return run


class Question(NamedTuple):
    """Somebody wants to know what became of a batch."""

    source: Address
    request: int
    writer_id: WriterID
    sequence: Sequence
    horizon: LLSN

    @property
    def subject(self) -> tuple[Address, WriterID, Sequence]:
        """Who asks, about which batch."""
        return self.source, self.writer_id, self.sequence


class PendingBatches:
    """See the module's text."""

    def __init__(self) -> None:
        self._batches: deque[Pending] = deque()
        self._bytes = 0

    def __iter__(self) -> Iterator[Pending]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def is_full(self, size: int) -> bool:
        """Whether a batch of `size` bytes is more than may wait."""
        too_many = len(self._batches) >= limits.MAX_UNCOMMITTED_BATCHES
        return too_many or self._bytes + size > limits.MAX_UNCOMMITTED_BYTES

    def add(self, batch: Pending) -> int:
        """A batch; how many bytes it has."""
        self._batches.append(batch)
        self._bytes += batch.size
        return batch.size

    def add_run(self, batches: Seq[Pending]) -> int:
        """Batches that follow one another; how many bytes they have in all."""
        self._batches.extend(batches)
        size = sum([batch.size for batch in batches])
        self._bytes += size
        return size

    def takes(self, sizes: Seq[int]) -> bool:
        """Whether batches of those sizes may wait, all of them."""
        too_many = len(self._batches) + len(sizes) > limits.MAX_UNCOMMITTED_BATCHES
        return not too_many and self._bytes + sum(sizes) <= limits.MAX_UNCOMMITTED_BYTES

    def fitting(self, sizes: Seq[int]) -> int:
        """How many of those batches may wait, from the first on."""
        if self.takes(sizes):
            return len(sizes)
        most, room = limits.MAX_UNCOMMITTED_BATCHES - len(self._batches), limits.MAX_UNCOMMITTED_BYTES - self._bytes
        return sum(size <= room for size in islice(accumulate(sizes), max(0, most)))

    def at(self, llsn: LLSN) -> Pending | None:
        """The batch that begins at an LLSN."""
        return next((batch for batch in self._batches if batch.llsn == llsn), None)

    def across(self, llsn: LLSN) -> Pending | None:
        """The batch that begins before an LLSN and ends after it."""
        return next((batch for batch in self._batches if batch.llsn < llsn < batch.end), None)

    def check_repeated(self, llsn: LLSN, header: BatchHeader, where: str) -> None:
        """A batch that is here comes again, and must be the same one."""
        stored = self.at(llsn)
        if stored is not None:
            invariants.require(
                Invariant.ONE_CONTENT,
                (stored.writer_id, stored.sequence) == (header.writer_id, header.sequence),
                f"{where}: two batches at LLSN {stored.llsn} in epoch {stored.epoch}",
            )

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
