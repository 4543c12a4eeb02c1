"""The simulated manager of chains: makes the cluster, and sees that chains have as many members as they should.

It asks everyone how they are a few times a second. A chain that has a member which is gone or has failed is
reconfigured without it, if no client did that before. A chain with too few members gets one at its tail: the node that
came back, or another one, follows the chain until it lacks little, and joins in a reconfiguration (rule 22).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from collections.abc import Sequence as Seq
from enum import Enum
from typing import Final

from varlog import errors
from varlog.core.address import METADATA_REPOSITORY, node_address
from varlog.core.conversing import Answer, Conversation, Requests
from varlog.core.identity import SECRET_BYTES, new_secret, proof_of
from varlog.core.messages import (
    AddLogStream,
    AdoptIdentity,
    ChainCopied,
    ChainCopy,
    CreateStream,
    CreateTopic,
    Decided,
    GetInfo,
    GetMetadata,
    Info,
    Message,
    Metadata,
    RegisterManager,
    RegisterNode,
    RegisterStream,
    RemoveLogStream,
    ReopenLogStream,
    ReplicaInfo,
)
from varlog.core.projection import Chain, Projection
from varlog.core.reconfiguring import PAUSE, Change, reconfigure
from varlog.core.registration import Registrar
from varlog.sim.chains.clients import TOPIC
from varlog.sim.chains.talking import Talks
from varlog.sim.network import Network
from varlog.sim.process import Process
from varlog.types import GLSN, LogStreamID, Ordering, StorageNodeID

HEARTBEAT: Final = 0.2
FRESH: Final = 1.0
SMALL_LAG: Final = 32
LOOKS: Final = 60
"""How often, a pause apart, it is looked whether a replica that follows has caught up."""
_AGAIN: Final = frozenset(
    error.code for error in (errors.NotLeader, errors.StandBy, errors.Busy, errors.DeadlineExceeded, errors.Unreachable)
)


class Repair(Enum):
    """What the manager did."""

    LEFT_OUT = "chain was reconfigured without a member that had failed"
    JOINED = "replica joined a chain at its tail"
    NOT_JOINED = "replica that was to join a chain did not"
    MADE_ANEW = "replica was made anew"
    GROWN = "log stream was added"


class RepairerHost:
    """See the module's text."""

    def __init__(
        self,
        process: Process,
        network: Network,
        snids: Seq[StorageNodeID],
        streams: Seq[tuple[StorageNodeID, ...]],
        block: int,
    ) -> None:
        self.process = process
        self._network = network
        self._snids = snids
        self._streams = streams
        self._block = block
        self._rng = process.world.rng(process.name)
        self._requests = 0
        self.is_set_up = False
        self._talks = Talks(process, self._rng, self._send)
        network.attach(process.name, process, self._receive)

    def start(self) -> None:
        """Begin; the process is alive."""
        self._talks.clear()
        self._is_busy = False
        self._metadata: Metadata | None = None
        self._infos: dict[StorageNodeID, tuple[float, Info]] = {}
        self._registrar = Registrar(self._request, self._fresh, self._secret)
        if not self.is_set_up:
            self._begin(self._set_up(), self._on_set_up)
        self._tick()

    def kill(self) -> None:
        self.process.kill()

    def _request(self) -> int:
        self._requests += 1
        return self._requests

    def _secret(self) -> str:
        return new_secret(self._rng.randbytes(SECRET_BYTES))

    def _send(self, address: str, message: Message) -> None:
        self._network.send(self.process, address, message)

    def _receive(self, _source: str, message: Message) -> None:
        if isinstance(message, Metadata) and (self._metadata is None or message.version >= self._metadata.version):
            self._metadata = message
        if isinstance(message, Info):
            self._infos[message.snid] = (self.process.monotonic(), message)
        self._talks.on_answer(message)

    def _fresh(self) -> dict[StorageNodeID, Info]:
        """The nodes that answered lately."""
        since = self.process.monotonic() - FRESH
        return {snid: info for snid, (at, info) in sorted(self._infos.items()) if at >= since}

    def _tick(self) -> None:
        self._send(METADATA_REPOSITORY, RegisterManager(self._request(), self.process.name))
        self._send(METADATA_REPOSITORY, GetMetadata(self._request()))
        for snid in self._snids:
            self._send(node_address(snid), GetInfo(self._request()))
        if self.is_set_up and not self._is_busy:
            self._act()
        self.process.at(HEARTBEAT, self._tick)

    def _begin(self, conversation: Conversation, ended: Callable[[int | errors.VarlogError], None]) -> None:
        self._is_busy = True
        self._talks.begin(conversation, ended)

    def _rest(self, outcome: int | errors.VarlogError) -> None:
        self.process.world.note("manager", self.process, outcome)
        self._is_busy = False

    # The cluster is made

    def _set_up(self) -> Conversation:
        for snid in self._snids:
            secret = self._secret()
            yield from self._insist(METADATA_REPOSITORY, RegisterNode, snid, "", (), proof_of(snid, secret))
            yield from self._insist(node_address(snid), AdoptIdentity, snid, secret, 1)
        factor = len(self._streams[0])
        fields = ("log", factor, 1, GLSN(1), Ordering.SEQUENCER, self._block)
        yield from self._insist(METADATA_REPOSITORY, CreateTopic, *fields)
        for replicas in self._streams:
            yield from self._add_stream(replicas)
        return (yield from reconfigure(self._request, TOPIC, Change()))

    def _on_set_up(self, outcome: int | errors.VarlogError) -> None:
        if isinstance(outcome, errors.VarlogError):  # there is no sequencer yet, perhaps
            self._begin(reconfigure(self._request, TOPIC, Change()), self._on_set_up)
            return
        self.is_set_up = True
        self._rest(outcome)

    def _add_stream(self, replicas: tuple[StorageNodeID, ...]) -> Conversation:
        created = yield from self._insist(METADATA_REPOSITORY, CreateStream, TOPIC)
        assert isinstance(created, Decided)
        lsid = LogStreamID(created.value)
        for snid in replicas:
            yield from self._insist(node_address(snid), AddLogStream, TOPIC, lsid, "", Ordering.SEQUENCER)
        yield from self._insist(METADATA_REPOSITORY, RegisterStream, lsid, replicas, ("",) * len(replicas))
        return lsid

    def add_stream(self, replicas: tuple[StorageNodeID, ...]) -> None:
        """Let positions go to one more log stream."""
        if not self.process.alive or self._is_busy:
            return

        def grow() -> Conversation:
            yield from self._add_stream(replicas)
            return (yield from reconfigure(self._request, TOPIC, Change()))

        def ended(outcome: int | errors.VarlogError) -> None:
            if not isinstance(outcome, errors.VarlogError):
                self.process.world.count(Repair.GROWN, self.process)
            self._rest(outcome)

        self._begin(grow(), ended)

    def _insist(
        self, address: str, kind: Callable[..., Message], *fields: object
    ) -> Generator[Requests, Seq[Answer], Answer]:
        """Ask again until somebody has the time to answer."""
        for _ in range(LOOKS):
            (answer,) = yield [(address, kind(self._request(), *fields))]
            code = answer.code if isinstance(answer, errors.VarlogError) else getattr(answer, "code", 0)
            if code not in _AGAIN:
                if code not in (0, errors.AlreadyExists.code):
                    raise errors.VarlogError.of(code, getattr(answer, "detail", ""))
                return answer
            yield PAUSE
        raise errors.DeadlineExceeded(f"{address} had no time for {kind.__name__}")

    # Chains are repaired

    def _act(self) -> None:
        """Do the first thing that is to be done."""
        metadata, infos = self._metadata, self._fresh()
        topic = next((topic for topic in metadata.topics if topic.tpid == TOPIC), None) if metadata else None
        if topic is None or topic.projection is None or not infos:
            return
        for snid, info in infos.items():
            if not info.is_identified:
                self._begin(self._registrar.renew_node(snid), self._rest)
                return
        for chain in topic.projection.chains:
            if self._repair(topic.projection, chain, topic.replication_factor, infos):
                return

    def _repair(self, projection: Projection, chain: Chain, factor: int, infos: dict[StorageNodeID, Info]) -> bool:
        """Whether something is done for a chain."""
        sound = [snid for snid in chain.nodes if (replica := _replica(infos, chain.lsid, snid)) and replica.healthy]
        failed = [snid for snid in chain.nodes if snid not in sound]
        if failed and sound:
            self._leave_out(projection, chain, failed)
            return True
        if failed:
            return self._mend_last(chain, infos)
        if len(chain.nodes) >= factor:
            return False
        outside = [snid for snid in infos if snid not in chain.nodes]
        outside.sort(key=lambda snid: (_replica(infos, chain.lsid, snid) is None, snid))
        if not outside:
            return False
        self._begin(self._join(projection, chain, outside[0], infos), self._on_joined)
        return True

    def _leave_out(self, projection: Projection, chain: Chain, failed: Seq[StorageNodeID]) -> None:
        change = Change(projection.epoch, leavers=frozenset((chain.lsid, snid) for snid in failed))

        def ended(outcome: int | errors.VarlogError) -> None:
            if not isinstance(outcome, errors.VarlogError):
                self.process.world.count(Repair.LEFT_OUT, self.process, chain)
            self._rest(outcome)

        self._begin(reconfigure(self._request, TOPIC, change), ended)

    def _mend_last(self, chain: Chain, infos: dict[StorageNodeID, Info]) -> bool:
        """Nobody else has what the last members have: one that only failed to write is opened once more."""
        for snid in chain.nodes:
            replica = _replica(infos, chain.lsid, snid)
            if replica is not None and not replica.healthy and replica.fault != errors.Corrupt.code:
                self._send(node_address(snid), ReopenLogStream(self._request(), chain.lsid))
        return False

    def _join(
        self, projection: Projection, chain: Chain, snid: StorageNodeID, infos: dict[StorageNodeID, Info]
    ) -> Conversation:
        """A node that is outside of a chain follows it, and joins it when it lacks little."""
        lsid, to = chain.lsid, node_address(snid)
        replica = _replica(infos, lsid, snid)
        if replica is not None and not replica.healthy:
            yield [(to, RemoveLogStream(self._request(), lsid, failed_only=True))]
        if replica is None or not replica.healthy:
            self.process.world.count(Repair.MADE_ANEW, self.process, chain, snid)
            yield from self._insist(to, AddLogStream, TOPIC, lsid, "", Ordering.SEQUENCER)
        for _ in range(LOOKS):
            (answer,) = yield [(to, ChainCopy(self._request(), lsid, projection.epoch, chain.tail))]
            if isinstance(answer, errors.VarlogError):
                raise answer
            if not isinstance(answer, ChainCopied) or answer.code:
                raise errors.VarlogError.of(getattr(answer, "code", 0), getattr(answer, "detail", ""))
            if answer.is_complete or 0 < answer.source_end <= answer.copied + SMALL_LAG:
                break
            yield PAUSE
        yield from reconfigure(self._request, TOPIC, Change(None, joiners=((lsid, snid),)))
        return snid

    def _on_joined(self, outcome: int | errors.VarlogError) -> None:
        joined = not isinstance(outcome, errors.VarlogError)
        self.process.world.count(Repair.JOINED if joined else Repair.NOT_JOINED, self.process)
        self._rest(outcome)


def _replica(infos: dict[StorageNodeID, Info], lsid: LogStreamID, snid: StorageNodeID) -> ReplicaInfo | None:
    info = infos.get(snid)
    return next((replica for replica in info.replicas if replica.lsid == lsid), None) if info is not None else None
