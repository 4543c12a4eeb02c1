"""Simulated metadata repositories: the production core in simulated processes.

A metadata repository runs on the production journal over a simulated disk, or, where a run has two of them, on the
simulated store that both share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from varlog import errors
from varlog.core.address import METADATA_REPOSITORY
from varlog.core.branches import Branch, Observe
from varlog.core.messages import (
    Message,
)
from varlog.core.metarepo import MetadataRepository, Role
from varlog.metarepo.journal import Journal, JournalGroup, JournalOptions
from varlog.sim.disk import SimDisk
from varlog.sim.network import Network
from varlog.sim.nodes import CID, SYNC_SECONDS
from varlog.sim.process import Process
from varlog.sim.store import SimStore, SimStoreClient

TICK: Final = 0.1
HEARTBEAT: Final = 0.1
FRESH: Final = 1.0
ASK_AGAIN: Final = 0.5
SILENCE: Final = 1.0


class JournalDriver:
    """Carries a journal's groups to its disk, with time in between."""

    def __init__(self, process: Process, disk: SimDisk, journal: Journal, on_failed: Callable[[], None]) -> None:
        self._process = process
        self._disk = disk
        self._journal = journal
        self._on_failed = on_failed
        self._rng = process.world.rng(f"disk of {process.name}")
        journal.wake = self._wake

    def _wake(self) -> None:
        self._process.at(0.0, self._take)

    def _take(self) -> None:
        group = self._journal.take()
        if group is not None:
            self._process.at(self._delay(0.0001), self._write, group)

    def _delay(self, mean: float) -> float:
        return mean * self._disk.slowness * (0.5 + self._rng.random())

    def _write(self, group: JournalGroup) -> None:
        self._journal.write(group)
        self._process.at(self._delay(SYNC_SECONDS) if group.needs_sync else 0.0, self._sync, group)

    def _sync(self, group: JournalGroup) -> None:
        self._journal.sync(group)
        self._journal.finish(group)
        if self._journal.failed is not None:
            self._on_failed()
        else:
            self._take()


class Heartbeat(NamedTuple):
    """A leader tells the others that it is there."""

    term: int


class MetadataHost:
    """One metadata repository. Of several, one that has heard of no leader for a while tries to lead."""

    def __init__(
        self,
        process: Process,
        network: Network,
        disk: SimDisk,
        shared: SimStore | None,
        observe: Observe,
    ) -> None:
        self.process = process
        self.disk = disk
        self._shared = shared
        self._client: SimStoreClient | None = None
        self._network = network
        self._observe = observe
        self._rng = process.world.rng(f"nonces of {process.name}")
        self.stopped: errors.VarlogError | None = None
        network.attach(process.name, process, self._receive)

    def start(self) -> None:
        """Begin to serve; the process is alive."""
        self._heard = self.process.monotonic()
        self._patience = SILENCE * (1.0 + self._rng.random())
        if self._shared is None:
            try:
                journal = Journal.open(
                    self.disk, "/metadata", CID, JournalOptions(compact_bytes=1 << 16, nonce=self._nonce)
                )
            except errors.VarlogError as error:
                self._stop(error)
                return
            if journal.was_torn:
                self._observe(Branch.RULE16_TORN_TAIL)
            JournalDriver(self.process, self.disk, journal, self._on_journal_failed)
            self.repository = MetadataRepository(journal, self._send, self._observe)
        else:
            self._client = SimStoreClient(self._shared, self.process.at)
            self.repository = MetadataRepository(self._client, self._send, self._observe)
        self._tick()

    def _nonce(self) -> int:
        return self._rng.getrandbits(64)

    def campaign(self) -> None:
        """Try to take the lead."""
        if self.repository.role is Role.FOLLOWING:
            self._heard = self.process.monotonic()
            self.repository.campaign(self.process.clock())

    def kill(self) -> None:
        self.process.kill()
        self.disk.kill()
        if self._client is not None:
            self._client.close()

    def _on_journal_failed(self) -> None:
        self._observe(Branch.RULE16_STOPPED)
        self.kill()

    def _stop(self, error: errors.VarlogError) -> None:
        self.stopped = error
        self.process.world.trace("stopped", self.process, str(error))
        self.kill()

    @property
    def leads(self) -> bool:
        return self.process.alive and self.repository.role is Role.LEADING

    def _send(self, address: str, message: Message) -> None:
        self._network.send(self.process, address, message)

    def _receive(self, source: str, message: Message | Heartbeat) -> None:
        if isinstance(message, Heartbeat):
            if message.term >= self.repository.term:
                self._heard = self.process.monotonic()
            return
        try:
            self.repository.on_message(source, message, self.process.clock())
        except errors.InvalidArgument as error:
            self.process.world.trace("stray message", self.process, str(error))
        except errors.VarlogError as error:
            self._stop(error)

    def _tick(self) -> None:
        try:
            self.repository.tick(self.process.clock())
        except errors.VarlogError as error:
            self._stop(error)
            return
        if self.leads and self._shared is not None:
            self._network.send(self.process, METADATA_REPOSITORY, Heartbeat(self.repository.term))
        elif self._shared is None or self.process.monotonic() - self._heard > self._patience:
            self.campaign()
        self.process.at(TICK, self._tick)
