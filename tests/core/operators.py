"""A cluster that does what a registrar asks for: the production metadata repository, and nodes that obey.

Between any request and its answer anything may go wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from tests.core.repository import Repository
from tests.metarepo.rigs import SimRig
from varlog import errors, limits
from varlog.core.address import METADATA_REPOSITORY
from varlog.core.conversing import Answer, Conversation
from varlog.core.describing import describe
from varlog.core.identity import boot_of
from varlog.core.messages import (
    AddLogStream,
    AddNode,
    AddTopic,
    AdoptIdentity,
    AnnounceNode,
    Decided,
    GetInfo,
    IdentityAdopted,
    Info,
    Message,
    Metadata,
    RemoveLogStream,
    ReplicaInfo,
    ReplicaReply,
    RunStream,
    StreamInfo,
    Sync,
    SyncReply,
    UnsealStream,
    VolumeInfo,
)
from varlog.core.registration import Registrar
from varlog.types import LLSN, Epoch, LogStreamID, ReplicaState, StorageNodeID, StreamStatus

MIB = limits.MIB
ROOM = 1024 * MIB


class World:
    """A metadata repository, some nodes, and a registrar. `log` is what was asked, in order."""

    def __init__(self, nodes: int = 3) -> None:
        self.repository = Repository(SimRig())
        self.log: list[tuple[str, type[Message]]] = []
        self.rounds: list[int] = []
        """How many requests were made at once each time."""
        self.held: dict[int, dict[int, str]] = {}
        """Of each node: the log streams it holds, and on which volume."""
        self.with_a_past: set[tuple[int, int]] = set()
        """Nodes and log streams that something has happened to."""
        self.shown: dict[tuple[int, int], dict[str, Any]] = {}
        """Of nodes and log streams: what their replicas say of themselves, if it is not the usual."""
        self.given: dict[int, tuple[str, int]] = {}
        """Of each node: the secret it has, and its generation (B11)."""
        self.volumes: dict[int, tuple[VolumeInfo, ...]] = {}
        self.silent: set[int] = set()
        self.faults: dict[type[Message], Callable[[str, Message], Answer | None]] = {}
        """In place of an answer; None lets the request through."""
        self._requests = count(1000)
        self.secrets = (f"{number:064x}" for number in count(1))
        self.registrar = Registrar(lambda: next(self._requests), self.infos, lambda: next(self.secrets))
        for snid in range(1, nodes + 1):
            self.add(snid)
            self.run(AddNode(1, f"host-{snid}:1"))
        self.log.clear()
        self.rounds.clear()

    def add(self, snid: int, *free: int) -> None:
        """A node, with as many volumes as there are numbers, each with so much room."""
        self.held[snid] = {}
        self.volumes[snid] = tuple(VolumeInfo(f"/v{n}", 2 * ROOM, room) for n, room in enumerate(free or (ROOM,)))

    def infos(self) -> dict[StorageNodeID, Info]:
        return {StorageNodeID(snid): self.info(snid) for snid in self.held if snid not in self.silent}

    def info(self, snid: int, request: int = 0) -> Info:
        replicas = tuple(
            msgspec.structs.replace(
                ReplicaInfo(LogStreamID(lsid), Epoch(1), ReplicaState.SEALED, LLSN(1), LLSN(1), True, volume=volume),
                **self.shown.get((snid, lsid), {}),
            )
            for lsid, volume in self.held[snid].items()
        )
        boot = boot_of(self.given.get(snid, ("", 0))[1], 1)
        address, volumes = f"host-{snid}:1", self.volumes[snid]
        return Info(request, StorageNodeID(snid), boot, replicas, address, volumes, is_identified=snid in self.given)

    def run(self, asked: Message) -> int:
        return self.carry(self.registrar.begin(asked))

    def carry(self, conversation: Conversation) -> int:
        answers: list[Answer] | None = None
        try:
            while True:
                requests = conversation.send(answers)  # type: ignore[arg-type]
                self.rounds.append(len(requests))
                answers = [self.answer(address, message) for address, message in requests]
        except StopIteration as stop:
            value: int = stop.value
            return value

    def answer(self, address: str, message: Message) -> Answer:
        self.log.append((address, type(message)))
        fault = self.faults.get(type(message))
        answer = fault(address, message) if fault is not None else None
        if answer is not None:
            return answer
        return self.decide(message) if address == METADATA_REPOSITORY else self.obey(address, message)

    def decide(self, message: Message) -> Message:
        repository = self.repository
        repository.receive(message)
        repository.rig.settle()
        return repository.sent[-1][1]

    def obey(self, address: str, message: Message) -> Answer:
        snid = int(address.partition("/")[2].removeprefix("host-").partition(":")[0])
        if snid in self.silent:
            return errors.Unreachable(f"{address} is silent")
        if isinstance(message, GetInfo):
            return self.info(snid, message.request)
        if isinstance(message, AdoptIdentity):
            assert message.snid == snid
            self.given[snid] = message.secret, message.generation
            self.announce(snid)
            return IdentityAdopted(message.request, 0)
        if isinstance(message, Sync):
            return self.synced(message, snid)
        if isinstance(message, AddLogStream):
            if (snid, message.lsid) in self.with_a_past:
                return reply(message, snid, errors.AlreadyExists.code)
            self.held[snid][message.lsid] = message.volume
        else:
            assert isinstance(message, RemoveLogStream)
            if message.new_only and (snid, message.lsid) in self.with_a_past:
                return reply(message, snid, errors.AlreadyExists.code)
            self.held[snid].pop(message.lsid, None)
        return reply(message, snid)

    def announce(self, snid: int, secret: str = "") -> bool:
        """A node shows the secret it has, so that its reports count; whether it is believed."""
        info = self.info(snid)
        volumes = tuple(volume.path for volume in info.volumes)
        shown = AnnounceNode(1, info.snid, info.address, volumes, info.boot, secret or self.given[snid][0])
        self.repository.receive(shown, f"sn/{snid}")
        self.repository.rig.settle()
        return self.repository.messages(Decided)[-1].code == 0

    def synced(self, message: Sync, snid: int) -> SyncReply:
        """A quarter of what the source has is there already."""
        return SyncReply(
            message.request, message.lsid, 0, StorageNodeID(snid), False, message.source, LLSN(26), LLSN(101)
        )

    @property
    def metadata(self) -> Metadata:
        return describe(self.repository.core.state, 0)

    def stream(self, lsid: int) -> StreamInfo:
        return next(stream for stream in self.metadata.streams if stream.lsid == lsid)

    def statuses(self) -> dict[int, StreamStatus]:
        return {int(stream.lsid): stream.status for stream in self.metadata.streams}

    def asked(self, *kinds: type[Message]) -> list[str]:
        """Who was asked for one of these, in order."""
        return [address for address, kind in self.log if kind in kinds]

    def unseal(self, lsid: int) -> None:
        """What the manager's watching does meanwhile."""
        stream = self.stream(lsid)
        self.decide(UnsealStream(1, stream.lsid, stream.epoch, stream.replicas, stream.replicas[0]))
        self.decide(RunStream(2, stream.lsid, Epoch(stream.epoch + 1)))

    def commit(self, lsid: int, end: int) -> None:
        """Entries up to an end, stored on all replicas and cut."""
        stream = self.stream(lsid)
        for snid in stream.replicas:
            self.repository.report(snid, (stream.lsid, stream.epoch, 0, 1, end, True), boot=self.info(snid).boot)
        self.repository.rig.settle()


def reply(message: AddLogStream | RemoveLogStream, snid: int, code: int = 0, detail: str = "") -> ReplicaReply:
    state = (Epoch(0), ReplicaState.SEALING, LLSN(1))
    return ReplicaReply(message.request, message.lsid, code, StorageNodeID(snid), *state, detail)


def add_topic(streams: int = 1, factor: int = 0, least: int = 0, name: str = "log") -> AddTopic:
    return AddTopic(1, name, factor, least, streams)


def refusing(address: str, error: type[errors.VarlogError]) -> Callable[[str, Message], Answer | None]:
    def fault(to: str, message: Message) -> Answer | None:
        assert isinstance(message, AddLogStream | RemoveLogStream)
        return reply(message, 0, error.code, f"{address} says no") if to == address else None

    return fault
