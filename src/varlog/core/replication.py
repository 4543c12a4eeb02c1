"""The primary's view of its backups in one epoch.

Every batch is sent to every backup, together with the others that were appended in the same turn. A cut is proof that
every backup has what it commits; only where no cut comes does a backup say how far it is, at its next tick. One that
says nothing new for a while is sent what it lacks again, from what it has; only uncommitted batches can be lacking,
because a cut needs all replicas of the set, so the primary keeps exactly those. A backup that stays silent although
something is outstanding is given up: the caller seals itself and leaves the rest to the manager (M7).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from itertools import islice
from typing import Final, Protocol

from varlog import limits
from varlog.core.address import Address, Send, node_address
from varlog.core.messages import Replicate, ReplicateAck
from varlog.types import LLSN, Epoch, LogStreamID, Sequence, StorageNodeID

RESEND_AFTER: Final = 0.2
GIVE_UP_AFTER: Final = 1.0
RESEND_BATCHES: Final = 256


class Replicable(Protocol):
    """A stored batch as the primary keeps it."""

    llsn: LLSN
    count: int
    prev_sequence: Sequence
    size: int
    batch: bytes | memoryview | None


class _Backup:
    __slots__ = ("address", "durable_end", "heard", "received_end", "sent")

    def __init__(self, snid: StorageNodeID, end: LLSN, now: float) -> None:
        self.address = node_address(snid)
        self.received_end = end
        self.durable_end = end
        self.heard = now
        self.sent = now


class Backups:
    """See the module's text."""

    def __init__(
        self, lsid: LogStreamID, epoch: Epoch, snids: Iterable[StorageNodeID], end: LLSN, send: Send, now: float
    ) -> None:
        self._lsid = lsid
        self._epoch = epoch
        self._send = send
        self._end = end
        self._now = now
        """As of the last look at the clock, a fraction of a second ago at most."""
        self._unsent: list[Replicable] = []
        self._backups = {snid: _Backup(snid, end, now) for snid in snids}

    def replicate(self, batches: Seq[Replicable], now: float) -> None:
        """New batches for every backup, which follow one another; they are sent by `flush`."""
        if not self._unsent:
            self._now = now
            end = self._end
            for backup in self._backups.values():
                if backup.durable_end == end:  # nothing was outstanding: the waiting starts here
                    backup.heard = backup.sent = now
        self._unsent += batches
        last = batches[-1]
        self._end = LLSN(last.llsn + last.count)

    def flush(self) -> None:
        """Send what is new to every backup, as few messages as it takes."""
        unsent, self._unsent = self._unsent, []
        for message in self._messages(unsent) if len(unsent) != 1 else (self._alone(unsent[0]),):
            for backup in self._backups.values():
                self._send(backup.address, message)

    def acknowledged(self, message: ReplicateAck, now: float) -> None:
        """A backup says how far it is."""
        backup = self._backups.get(message.snid)
        if backup is None:
            return
        if message.received_end > backup.received_end or message.durable_end > backup.durable_end:
            backup.received_end = max(backup.received_end, message.received_end)
            backup.durable_end = max(backup.durable_end, message.durable_end)
            backup.heard = now

    def connected(self, snid: StorageNodeID, outstanding: Iterable[Replicable], now: float) -> None:
        """There is a new way to a backup: what was sent the old way may be lost (rule 5). That it can be connected to
        is not taken for a sign of life: it may do nothing else."""
        backup = self._backups.get(snid)
        if backup is not None and backup.durable_end < self._end:
            backup.sent = now
            self._resend(backup.address, backup.received_end, outstanding)

    def committed(self, llsn_end: LLSN) -> None:
        """A cut is proof that every replica has everything below it, whether its answer arrived or not."""
        for backup in self._backups.values():
            backup.received_end = max(backup.received_end, llsn_end)
            backup.durable_end = max(backup.durable_end, llsn_end)
            backup.heard = self._now

    def tick(self, outstanding: Iterable[Replicable], now: float) -> StorageNodeID | None:
        """Send again what is overdue. Returns a backup that has been silent for too long."""
        self._now = now
        for snid, backup in self._backups.items():
            if backup.durable_end >= self._end:
                continue
            if now - backup.heard > GIVE_UP_AFTER:
                return snid
            if now - max(backup.sent, backup.heard) > RESEND_AFTER:
                backup.sent = now
                self._resend(backup.address, backup.received_end, outstanding)
        return None

    def _resend(self, address: Address, begin: LLSN, outstanding: Iterable[Replicable]) -> None:
        lacking = (batch for batch in outstanding if batch.llsn >= begin)
        for message in self._messages(islice(lacking, RESEND_BATCHES)):
            self._send(address, message)

    def _messages(self, batches: Iterable[Replicable]) -> Iterator[Replicate]:
        """Runs of consecutive batches, none larger than it may be unless it is a single batch."""
        run: list[Replicable] = []
        size = 0
        for batch in batches:
            if run and (size + batch.size > limits.REPLICATE_BYTES or len(run) == limits.REPLICATE_BATCHES):
                yield self._message(run)
                run, size = [], 0
            run.append(batch)
            size += batch.size
        if run:
            yield self._message(run)

    def _alone(self, batch: Replicable) -> Replicate:
        assert batch.batch is not None, "the primary keeps what it may have to send again"
        return Replicate(self._lsid, self._epoch, batch.llsn, (batch.prev_sequence,), (batch.batch,))

    def _message(self, run: list[Replicable]) -> Replicate:
        # The primary keeps what it may have to send again, so every batch of a run has its bytes.
        prev_sequences = tuple([batch.prev_sequence for batch in run])
        contents = tuple([batch.batch for batch in run if batch.batch is not None])
        return Replicate(self._lsid, self._epoch, run[0].llsn, prev_sequences, contents)
