"""The primary's view of its backups in one epoch.

Every batch is sent to every backup as it is appended. A cut is proof that every backup has what it commits; only where
no cut comes does a backup say how far it is, at its next tick. One that says nothing new for a while is sent what it
lacks again, from what it has; only uncommitted batches can be lacking, because a cut needs all replicas of the set, so
the primary keeps exactly those. A backup that stays silent although something is outstanding is given up: the caller seals
itself and leaves the rest to the manager (M7).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from varlog.core.address import Address, Send, node_address
from varlog.core.messages import Replicate, ReplicateAck
from varlog.types import LLSN, Epoch, LogStreamID, Sequence, StorageNodeID

RESEND_AFTER: Final = 0.2
GIVE_UP_AFTER: Final = 1.0
RESEND_BATCHES: Final = 256


class Replicable(Protocol):
    """A stored batch as the primary keeps it."""

    llsn: LLSN
    prev_sequence: Sequence
    batch: bytes | memoryview | None

    @property
    def end(self) -> LLSN: ...


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
        self._backups = {snid: _Backup(snid, end, now) for snid in snids}

    def replicate(self, batch: Replicable, now: float) -> None:
        """Send a new batch to every backup."""
        self._now = now
        message = self._message(batch)
        end, send = self._end, self._send
        for backup in self._backups.values():
            if backup.durable_end == end:  # nothing was outstanding: the waiting starts here
                backup.heard = backup.sent = now
            send(backup.address, message)
        self._end = batch.end

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

    def tick(self, outstanding: Iterable[Replicable], now: float) -> bool:
        """Send again what is overdue. True if a backup has been silent for too long."""
        self._now = now
        for backup in self._backups.values():
            if backup.durable_end >= self._end:
                continue
            if now - backup.heard > GIVE_UP_AFTER:
                return True
            if now - max(backup.sent, backup.heard) > RESEND_AFTER:
                backup.sent = now
                self._resend(backup.address, backup.received_end, outstanding)
        return False

    def _resend(self, address: Address, begin: LLSN, outstanding: Iterable[Replicable]) -> None:
        count = 0
        for batch in outstanding:
            if batch.llsn >= begin:
                self._send(address, self._message(batch))
                count += 1
                if count == RESEND_BATCHES:
                    return

    def _message(self, batch: Replicable) -> Replicate:
        assert batch.batch is not None, "the primary keeps what it may have to send again"
        return Replicate(self._lsid, self._epoch, batch.llsn, batch.prev_sequence, batch.batch)
