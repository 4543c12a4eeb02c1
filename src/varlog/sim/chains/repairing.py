"""The simulated manager of chains: makes the cluster, and then does what the production manager decides.

It asks everyone how they are a few times a second and sends what `varlog.core.manager` decides; where that wants a
topic reconfigured, it holds the conversation. Nothing of it outlives its process.
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
from varlog.core.manager import reconcile
from varlog.core.messages import (
    AddLogStream,
    AddStream,
    AdoptIdentity,
    ChainCopied,
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
    RenewNode,
    ReplicaReply,
)
from varlog.core.reconfiguring import PAUSE, Change, reconfigure
from varlog.core.registration import Registrar
from varlog.core.steps import Reconfigure, Step
from varlog.core.world import Memory
from varlog.manager.doing import Doing
from varlog.manager.lookout import Lookout
from varlog.manager.reconfiguring import Reconfigurations
from varlog.sim.chains.clients import TOPIC
from varlog.sim.chains.talking import Talks
from varlog.sim.managing import COLLECT_AFTER, FRESH, REGISTER_EVERY, REPLACE_AFTER
from varlog.sim.network import Network
from varlog.sim.process import Process
from varlog.types import GLSN, LogStreamID, Ordering, StorageNodeID

TOPIC_NAME: Final = "log"
HEARTBEAT: Final = 0.2
ATTEMPTS: Final = 60
_AGAIN: Final = frozenset(
    error.code for error in (errors.NotLeader, errors.StandBy, errors.Busy, errors.DeadlineExceeded, errors.Unreachable)
)


class Repair(Enum):
    """What the manager did."""

    LEFT_OUT = "manager reconfigured a topic without members that had failed"
    JOINED = "manager let replicas join chains at their tails"
    OVERTOOK = "manager went above an epoch that somebody had sealed in and not proposed"
    FAILED = "manager's reconfiguration came to nothing"
    GROWN = "log stream was added"
    NOT_GROWN = "log stream was not added"

    @classmethod
    def of(cls, change: Change) -> Repair:
        if change.joiners:
            return cls.JOINED
        return cls.LEFT_OUT if change.suspects or change.leavers else cls.OVERTOOK


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
        self._lookout = Lookout()
        self._memory = Memory()
        self._doing = Doing()
        self._reconfigurations = Reconfigurations()
        self._registrar = Registrar(self._request, self._fresh, self._secret)
        self._leads = False
        self._registration = 0
        self._register_at = 0.0
        if not self.is_set_up:
            self._talks.begin(self._set_up(), self._on_set_up)
        self._tick()

    def kill(self) -> None:
        self.process.kill()

    def _request(self) -> int:
        self._requests += 1
        return self._requests

    def _secret(self) -> str:
        return new_secret(self._rng.randbytes(SECRET_BYTES))

    def _fresh(self) -> dict[StorageNodeID, Info]:
        return self._lookout.fresh_infos(FRESH, self.process.monotonic())

    def _send(self, address: str, message: Message) -> None:
        self._network.send(self.process, address, message)

    # The cluster is made

    def _set_up(self) -> Conversation:
        for snid in self._snids:
            secret = self._secret()
            yield from self._insist(METADATA_REPOSITORY, RegisterNode, snid, "", (), proof_of(snid, secret))
            yield from self._insist(node_address(snid), AdoptIdentity, snid, secret, 1)
        factor = len(self._streams[0])
        fields = (TOPIC_NAME, factor, 1, GLSN(1), Ordering.SEQUENCER, self._block)
        yield from self._insist(METADATA_REPOSITORY, CreateTopic, *fields)
        for replicas in self._streams:
            created = yield from self._insist(METADATA_REPOSITORY, CreateStream, TOPIC)
            assert isinstance(created, Decided)
            lsid = LogStreamID(created.value)
            for snid in replicas:
                yield from self._insist(node_address(snid), AddLogStream, TOPIC, lsid, "", Ordering.SEQUENCER)
            yield from self._insist(METADATA_REPOSITORY, RegisterStream, lsid, replicas, ("",) * len(replicas))
        return (yield from reconfigure(self._request, TOPIC, Change()))

    def _on_set_up(self, outcome: int | errors.VarlogError) -> None:
        if isinstance(outcome, errors.VarlogError):  # there is no sequencer yet, perhaps
            self._talks.begin(reconfigure(self._request, TOPIC, Change()), self._on_set_up)
        else:
            self.is_set_up = True

    def _insist(
        self, address: str, kind: Callable[..., Message], *fields: object
    ) -> Generator[Requests, Seq[Answer], Answer]:
        """Ask again until somebody has the time to answer."""
        for _ in range(ATTEMPTS):
            (answer,) = yield [(address, kind(self._request(), *fields))]
            code = answer.code if isinstance(answer, errors.VarlogError) else getattr(answer, "code", 0)
            if code not in _AGAIN:
                if code not in (0, errors.AlreadyExists.code):
                    raise errors.VarlogError.of(code, getattr(answer, "detail", ""))
                return answer
            yield PAUSE
        raise errors.DeadlineExceeded(f"{address} had no time for {kind.__name__}")

    # An operator

    def add_stream(self) -> None:
        """Let positions go to one more log stream."""

        def ended(outcome: int | errors.VarlogError) -> None:
            failed = isinstance(outcome, errors.VarlogError)
            self.process.world.count(Repair.NOT_GROWN if failed else Repair.GROWN, self.process, outcome)

        if self.process.alive:
            self._talks.begin(self._registrar.begin(AddStream(0, TOPIC_NAME)), ended)

    # Watching

    def _tick(self) -> None:
        now = self.process.monotonic()
        if now >= self._register_at:
            self._register_at = now + REGISTER_EVERY
            self._registration = self._request()
            self._send(METADATA_REPOSITORY, RegisterManager(self._registration, self.process.name))
        self._send(METADATA_REPOSITORY, GetMetadata(self._request()))
        self._act()
        self.process.at(HEARTBEAT, self._tick)

    def _receive(self, _source: str, message: Message) -> None:
        now, known = self.process.monotonic(), self._lookout.metadata
        match message:
            case Metadata():
                if known is None or message.version >= known.version:
                    self._lookout.on_metadata(message, self._requests, now)
                    for node in message.nodes:
                        self._send(node_address(node.snid), GetInfo(self._request()))
            case Info():
                if self._lookout.on_info(message, now):
                    self._act()
            case ChainCopied():
                self._lookout.on_copied(message)
            case Decided(request, code) if request == self._registration:
                self._leads = code == 0
            case ReplicaReply():
                self._send(METADATA_REPOSITORY, GetMetadata(self._request()))
            case _:
                pass
        self._talks.on_answer(message)

    def _act(self) -> None:
        world = self._lookout.world(self.process.monotonic(), lambda _: True, frozenset())
        if world is None or not self.is_set_up:
            return
        self._memory.observe(world)
        if not self._leads:
            return
        steps = reconcile(world, self._memory, self._request, replace_after=REPLACE_AFTER, collect_after=COLLECT_AFTER)
        for step, is_new in self._doing.take(steps, world.now):
            if is_new:
                self.process.world.trace("manager", self.process, step.sentence)
            self._do(step, world.now)

    def _do(self, step: Step, now: float) -> None:
        if step.reconfigure is not None:
            if self._reconfigurations.begin(step.reconfigure, now):
                self._reconfigure(step.reconfigure)
        elif isinstance(step.message, RenewNode):
            if step.message.snid not in self._registrar.giving:
                self._talks.begin(self._registrar.renew_node(step.message.snid), lambda _: None)
        elif step.message is not None:
            self._send(step.address, step.message)

    def _reconfigure(self, wanted: Reconfigure) -> None:
        def ended(outcome: int | errors.VarlogError) -> None:
            self._reconfigurations.end(wanted, self.process.monotonic())
            failed = isinstance(outcome, errors.VarlogError)
            self.process.world.count(Repair.FAILED if failed else Repair.of(wanted.change), self.process, outcome)

        self._talks.begin(reconfigure(self._request, wanted.tpid, wanted.change), ended)
