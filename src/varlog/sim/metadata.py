"""Simulated metadata repositories: the production core in simulated processes.

A metadata repository runs on the production journal over a simulated disk, or, where a run has several of them, on the
simulated store that they share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from varlog import errors
from varlog.core.branches import Branch, Observe
from varlog.core.leading import Candidate
from varlog.core.messages import Message, Report
from varlog.core.metarepo import MetadataRepository, Role
from varlog.metarepo.journal import Journal, JournalGroup, JournalOptions
from varlog.sim.disk import SimDisk
from varlog.sim.hosts import CID
from varlog.sim.network import Network
from varlog.sim.nodes import SYNC_SECONDS
from varlog.sim.process import Process
from varlog.sim.store import SimStore, SimStoreClient

TICK: Final = 0.1
HEARD_SECONDS: Final = 2.5
"""A storage node that was heard so lately counts as connected; it reports every second."""
STOP_SECONDS: Final = 1.0
"""Who is to end waits no longer than this for the store to take its lease back."""


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


class MetadataHost:
    """One metadata repository. Of several, a `Candidate` says which is to lead."""

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
        self._candidate: Candidate | None = None
        self._heard: dict[str, float] = {}
        """When each storage node was last heard."""
        self._network = network
        self._observe = observe
        self._rng = process.world.rng(f"nonces of {process.name}")
        self.stopped: errors.VarlogError | None = None
        self.is_stopping = False
        """It is about to end."""
        network.attach(process.name, process, self._receive)

    def start(self) -> None:
        """Begin to serve; the process is alive."""
        self.is_stopping = False
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
            self._heard.clear()
            self._client = SimStoreClient(self._shared, self.process.at)
            self.repository = MetadataRepository(self._client, self._send, self._observe)
            self._candidate = Candidate(self._client, self.repository, self.process.name, self._observe)
        self._tick()

    def _nonce(self) -> int:
        return self._rng.getrandbits(64)

    def doubt_leader(self) -> None:
        """Take the leader for silent when it is next asked after."""
        if self._client is not None:
            self._client.misjudges = True

    def set_store_reachable(self, reachable: bool) -> None:
        """Cut this one off from the metadata store, or end that."""
        if self._client is not None:
            self._client.connected = reachable

    def stop(self) -> None:
        """End in an orderly way: resign first, if that does not take too long."""
        self.is_stopping = True
        if self._candidate is not None and not self.process.paused:
            self._candidate.resign(self.kill)
            self.process.at(STOP_SECONDS, self.kill)
        else:
            self.kill()

    def kill(self) -> None:
        if not self.process.alive:
            return
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

    def _receive(self, source: str, message: Message) -> None:
        if isinstance(message, Report):
            self._heard[source] = self.process.monotonic()
        try:
            self.repository.on_message(source, message, self.process.clock())
        except errors.InvalidArgument as error:
            self.process.world.trace("stray message", self.process, str(error))
        except errors.VarlogError as error:
            self._stop(error)

    def _tick(self) -> None:
        now, wall = self.process.monotonic(), self.process.clock()
        try:
            self.repository.tick(wall)
            if self._candidate is not None:
                self._candidate.hears(sum(now - heard < HEARD_SECONDS for heard in self._heard.values()))
                self._candidate.tick(now, wall)
            elif self.repository.role is Role.FOLLOWING:
                self.repository.campaign(wall)
        except errors.VarlogError as error:
            self._stop(error)
            return
        self.process.at(TICK, self._tick)
