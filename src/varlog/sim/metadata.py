"""Simulated metadata repositories and the manager: the production core in simulated processes.

A metadata repository runs on the production journal over a simulated disk, or, where a run has two of them, on the
simulated store that both share. The manager asks everyone how they are a few times a second and sends what
`varlog.core.manager` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, NamedTuple

from varlog import errors
from varlog.core.address import METADATA_REPOSITORY, node_address
from varlog.core.branches import Branch, Observe
from varlog.core.manager import reconcile
from varlog.core.messages import (
    AddLogStream,
    CreateStream,
    CreateTopic,
    Decided,
    GetInfo,
    GetMetadata,
    Info,
    Message,
    Metadata,
    RegisterNode,
    RegisterStream,
    ReplicaReply,
    Seal,
    SealStream,
    StreamInfo,
    Unseal,
)
from varlog.core.metarepo import MetadataRepository, Role
from varlog.core.world import Memory, World
from varlog.metarepo.journal import Journal, JournalGroup, JournalOptions
from varlog.sim.disk import SimDisk
from varlog.sim.network import Network
from varlog.sim.nodes import CID, SYNC_SECONDS
from varlog.sim.process import Process
from varlog.sim.store import SimStore, SimStoreClient
from varlog.types import LogStreamID, StorageNodeID, TopicID

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


Conversation = Generator[tuple[str, Message], Message, None]


class ManagerHost:
    """The manager: sets the cluster up, then watches it."""

    def __init__(
        self,
        process: Process,
        network: Network,
        snids: list[StorageNodeID],
        streams: list[tuple[StorageNodeID, ...]],
        replication_factor: int,
        outsider: StorageNodeID | None,
    ) -> None:
        self.process = process
        self._network = network
        self._snids = snids
        self._streams = streams
        self._replication_factor = replication_factor
        self._outsider = outsider
        """A node that has data of a log stream it is no replica of, as one taken out of a set has."""
        self._rng = process.world.rng("manager")
        self._requests = 0
        self._metadata: Metadata | None = None
        self._infos: dict[StorageNodeID, tuple[float, Info]] = {}
        self._memory = Memory()
        self._conversation: Conversation | None = None
        self._question: tuple[str, Message] | None = None
        self._asked = 0.0
        self.is_set_up = False
        self.steps: list[tuple[float, str]] = []
        """What it decided, and when."""
        network.attach(process.name, process, self._receive)

    def start(self) -> None:
        """Begin; the process is alive."""
        self._metadata = None
        self._infos.clear()
        self._memory = Memory()
        if not self.is_set_up:
            self._converse(self._set_up())
        self._tick()

    def kill(self) -> None:
        self.process.kill()

    def add_stream(self, replicas: tuple[StorageNodeID, ...]) -> None:
        """Make one more log stream, as an operator would."""
        if self._conversation is None:
            self._converse(self._add_stream(replicas))

    def seal(self, lsid: LogStreamID) -> None:
        """Seal a log stream for no reason, as an operator may. The manager will unseal it."""
        streams = self._metadata.streams if self._metadata is not None else ()
        for stream in streams:
            if stream.lsid == lsid:
                self._network.send(self.process, METADATA_REPOSITORY, SealStream(self._request(), lsid, stream.epoch))

    def _converse(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._question = next(conversation)

    def _request(self) -> int:
        self._requests += 1
        return self._requests

    def _set_up(self) -> Conversation:
        """Register nodes, the topic and its log streams (M1, M2), as a new cluster's operator does."""
        for snid in self._snids:
            yield METADATA_REPOSITORY, RegisterNode(self._request(), snid)
        least = min(2, self._replication_factor)
        yield METADATA_REPOSITORY, CreateTopic(self._request(), "log", self._replication_factor, least)
        for replicas in self._streams:
            yield from self._add_stream(replicas)

    def _add_stream(self, replicas: tuple[StorageNodeID, ...]) -> Conversation:
        created = yield METADATA_REPOSITORY, CreateStream(self._request(), TopicID(1))
        assert isinstance(created, Decided)
        lsid = LogStreamID(created.value)
        outsiders = () if self._outsider is None or self._outsider in replicas else (self._outsider,)
        for snid in (*replicas, *outsiders):
            yield node_address(snid), AddLogStream(self._request(), TopicID(1), lsid)
        yield METADATA_REPOSITORY, RegisterStream(self._request(), lsid, replicas)

    def _ask(self) -> None:
        assert self._question is not None
        self._asked = self.process.monotonic()
        self._network.send(self.process, *self._question)

    def _on_answer(self, message: Decided | ReplicaReply) -> None:
        question = self._question
        if self._conversation is None or question is None or question[1].request != message.request:  # type: ignore[attr-defined]
            return
        if message.code in (errors.NotLeader.code, errors.Busy.code) or (
            message.code and isinstance(message, ReplicaReply)
        ):
            return  # asked again by and by
        try:
            self._question = self._conversation.send(message)
        except StopIteration:
            self._conversation = self._question = None
            self.is_set_up = True
        else:
            self._ask()

    def _receive(self, _source: str, message: Message) -> None:
        match message:
            case Metadata():
                if self._metadata is None or message.version >= self._metadata.version:
                    self._metadata = message
            case Info():
                before = self._infos.get(message.snid)
                if before is None or message.boot >= before[1].boot:
                    self._infos[message.snid] = (self.process.monotonic(), message)
            case Decided() | ReplicaReply():
                self._on_answer(message)
            case _:
                raise errors.InvalidArgument(f"a manager does not take {type(message).__name__}")

    def _tick(self) -> None:
        now = self.process.monotonic()
        if self._question is not None and now - self._asked > ASK_AGAIN:
            self._ask()
        if self._metadata is not None:
            infos = {snid: info for snid, (heard, info) in self._infos.items() if now - heard < FRESH}
            world = World.of(self._metadata, infos, now)
            self._memory.observe(world)
            for step in reconcile(world, self._memory, self._request, self._choose_primary):
                self.steps.append((self.process.world.now, step.sentence))
                self.process.world.trace("manager", self.process, step.sentence)
                if step.message is not None:
                    self._network.send(self.process, step.address, step.message)
                if isinstance(step.message, Seal | Unseal) and self._outsider is not None:
                    self._network.send(self.process, node_address(self._outsider), step.message)
        self._network.send(self.process, METADATA_REPOSITORY, GetMetadata(self._request()))
        for snid in self._snids:
            self._network.send(self.process, node_address(snid), GetInfo(self._request()))
        self.process.at(HEARTBEAT, self._tick)

    def _choose_primary(self, stream: StreamInfo) -> StorageNodeID:
        return self._rng.choice(stream.replicas)
