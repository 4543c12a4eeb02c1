"""A topic that a sequencer orders, on paper, for what the manager does with its chains: the real decisions of the
metadata repository, the real reconfigurations, and replicas that are a few numbers each. Time passes when a test says
so.

A replica keeps to its epochs and copies so many positions a second. That nothing acknowledged is lost is checked
whenever there is a new projection: each member of a chain has all that the next one has.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, pairwise

from tests.core.paper import PROOF, Node, Replica
from tests.core.steprules import RUNNING, SEALING
from varlog import errors
from varlog.core.conversing import Answer, Conversation
from varlog.core.decisions import Already, decide
from varlog.core.describing import describe
from varlog.core.manager import Step, reconcile
from varlog.core.messages import (
    AddLogStream,
    ChainCopied,
    ChainCopy,
    ChainSeal,
    ChainSealed,
    CreateStream,
    CreateTopic,
    Decided,
    GetInfo,
    GetMetadata,
    Info,
    Message,
    Metadata,
    Peek,
    Peeked,
    RegisterNode,
    RegisterSequencer,
    RegisterStream,
    RemoveLogStream,
    RenewNode,
    ReopenLogStream,
    ReplicaReply,
)
from varlog.core.metastate import MetadataState, StreamCreating, TopicCreated
from varlog.core.projection import Projection
from varlog.core.reconfiguring import Change, reconfigure
from varlog.core.registration import Registrar
from varlog.core.world import Memory, NodeView, World
from varlog.manager.doing import Doing
from varlog.manager.reconfiguring import Reconfigurations
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, Ordering, StorageNodeID, TopicID, Version

TPID, ONE = TopicID(1), LogStreamID(1)
TURN = 0.1
SEQUENCER = "vsq:1"


class ChainPaper:
    """See the module's text."""

    def __init__(
        self, nodes: int = 3, *, factor: int = 3, least: int = 1, streams: int = 1, is_projected: bool = True
    ) -> None:
        self.now = 0.0
        self._requests = count(1)
        self.state = MetadataState()
        self.memory = Memory()
        self.doing = Doing()
        self.reconfigurations = Reconfigurations()
        self.nodes = {StorageNodeID(snid): Node(snid) for snid in range(1, nodes + 1)}
        self.has_sequencer = True
        self.loses_sequencer = False
        """It answers once more."""
        self.joining_fails = False
        """Nobody is ever done with the copy that is made while the chain is sealed."""
        self.told: list[str] = []
        self.sealed: list[tuple[StorageNodeID, LogStreamID, Epoch]] = []
        self.acknowledged: dict[LogStreamID, LLSN] = {}
        self._copied: dict[tuple[StorageNodeID, LogStreamID], ChainCopied] = {}
        for snid in self.nodes:
            self.ask(RegisterNode(0, snid, "", ("/disk",), f"{snid:064x}"))
        self.ask(RegisterSequencer(0, SEQUENCER, 1))
        self.ask(CreateTopic(0, "log", factor, least, GLSN(1), Ordering.SEQUENCER))
        for _ in range(streams):
            self.add_stream(tuple(self.nodes)[:factor])
        if is_projected:
            self.reconfigure(Change(Epoch(0)))

    def add_stream(self, replicas: tuple[StorageNodeID, ...]) -> LogStreamID:
        lsid = LogStreamID(self.state.next_lsid)
        self.ask(CreateStream(0, TPID))
        for snid in replicas:
            self.nodes[snid].replicas[lsid] = _replica(lsid)
        self.ask(RegisterStream(0, lsid, replicas, ("/disk",) * len(replicas)))
        self.acknowledged[lsid] = LLSN(1)
        return lsid

    def request(self) -> int:
        return next(self._requests)

    # What is there

    @property
    def projection(self) -> Projection:
        found = self.state.topics[TPID].projection
        assert found is not None
        return found

    def chain(self, lsid: int = ONE) -> list[int]:
        return list(self.projection.chain(LogStreamID(lsid)).nodes)

    def node(self, snid: int) -> Node:
        return self.nodes[StorageNodeID(snid)]

    def replica(self, snid: int, lsid: int = ONE) -> Replica:
        return self.node(snid).replicas[LogStreamID(lsid)]

    def metadata(self) -> Metadata:
        return describe(self.state, self.request())

    def world(self) -> World:
        views = [
            NodeView(node.snid, node.info(self.request()), node.answers, self.now - node.heard, node.is_up)
            for node in self.nodes.values()
        ]
        return World(self.now, self.metadata(), views, copies=self._copied.values())

    @property
    def steps(self) -> list[Step]:
        world = self.world()
        self.memory.observe(world)
        return reconcile(world, self.memory, self.request)

    @property
    def says(self) -> str:
        return " / ".join(step.sentence for step in self.steps)

    # What is asked

    def ask(self, message: Message) -> Decided:
        """Of the metadata repository."""
        request: int = message.request  # type: ignore[attr-defined]
        try:
            decision = decide(self.state, message)
        except errors.VarlogError as error:
            return Decided(request, error.code, self.state.version, detail=str(error))
        if not isinstance(decision, Already):
            self.state.apply(Version(self.state.version + 1), decision)
            self._check()
        value = decision.lsid if isinstance(decision, StreamCreating) else 0
        value = decision.tpid if isinstance(decision, TopicCreated) else value
        return Decided(request, 0, self.state.version, value=value)

    def reconfigure(self, change: Change) -> None:
        """To its end; whoever does not answer, does not."""
        try:
            self.run(reconfigure(self.request, TPID, change))
        except errors.VarlogError as error:
            self.told.append(f"topic {TPID}: {error}")

    def run(self, conversation: Conversation) -> int:
        """Carry it to its end; what it returns, or raises."""
        answers: list[Answer] | None = None
        try:
            while True:
                requests = conversation.send(answers)  # type: ignore[arg-type]  # the first one is None
                answers = [self._answer(address, message) for address, message in requests]
        except StopIteration as stop:
            value: int = stop.value
            return value

    def infos(self) -> dict[StorageNodeID, Info]:
        return {snid: node.info(self.request()) for snid, node in self.nodes.items() if node.answers}

    def operate(self, asked: Message) -> int:
        """What an operator asks of the manager."""
        return self.run(Registrar(self.request, self.infos, lambda: PROOF).begin(asked))

    def _answer(self, address: str, message: Message) -> Answer:
        match message:
            case GetMetadata():
                return self.metadata()
            case Peek(request):
                if not self.has_sequencer:
                    return errors.Unreachable("no sequencer")
                if self.loses_sequencer:
                    self.has_sequencer = self.loses_sequencer = False
                return Peeked(request, 0, Epoch(0), boot=1)
            case ChainSeal() | ChainCopy() | GetInfo():
                node = self.nodes[StorageNodeID(int(address.removeprefix("sn/")))]
                if not node.answers:
                    return errors.Unreachable(f"{address} is down")
                if isinstance(message, GetInfo):
                    return node.info(message.request)
                return self._seal(node, message) if isinstance(message, ChainSeal) else self._copy(node, message)
            case AddLogStream(request, _, lsid) | RemoveLogStream(request, lsid):
                self._do(self.nodes[StorageNodeID(int(address.removeprefix("sn/")))], message)
                return ReplicaReply(request, lsid, 0, StorageNodeID(0), Epoch(0), SEALING, LLSN(0))
            case _:
                return self.ask(message)

    def _seal(self, node: Node, message: ChainSeal) -> ChainSealed:
        replica = node.replicas.get(message.lsid)
        refused = 0
        if replica is None:
            return ChainSealed(message.request, message.lsid, errors.UnknownLogStream.code, node.snid, Epoch(0))
        if not replica.healthy:
            refused = replica.fault
        elif message.epoch <= replica.epoch:
            refused = errors.StaleEpoch.code
        elif not message.joins and replica.epoch < message.base:
            refused = errors.NoSource.code
        else:
            replica.epoch, replica.source = message.epoch, StorageNodeID(0)
            replica.state = SEALING if message.joins else RUNNING
            self.sealed.append((node.snid, message.lsid, message.epoch))
        end = GLSN(replica.stored_end)
        return ChainSealed(message.request, message.lsid, refused, node.snid, replica.epoch, end)

    def _copy(self, node: Node, message: ChainCopy) -> ChainCopied:
        """Of one that joins: at once, if it lacks little. Of one that follows: as time passes."""
        replica = node.replicas[message.lsid]
        reply = ChainCopied(message.request, message.lsid, 0, node.snid)
        if message.epoch < replica.epoch:
            return ChainCopied(message.request, message.lsid, errors.StaleEpoch.code, node.snid)
        if message.end:
            source = self.nodes[message.source].replicas[message.lsid]
            assert message.epoch == replica.epoch == source.epoch
            if self.joining_fails:
                return reply
            replica.committed_end = replica.stored_end = source.stored_end
            replica.state = RUNNING
            return ChainCopied(message.request, message.lsid, 0, node.snid, is_complete=True)
        assert node.snid not in self.state.streams[message.lsid].replicas, "a member was told to copy"
        if replica.source != message.source:
            replica.source, replica.source_end = message.source, LLSN(0)
        replica.epoch, replica.state, replica.renewed = message.epoch, SEALING, self.now
        ends = GLSN(replica.committed_end), GLSN(replica.source_end)
        return ChainCopied(message.request, message.lsid, 0, node.snid, ends[0] == ends[1], GLSN(1), *ends)

    def deliver(self, step: Step) -> None:
        """Do what a step asks for, unless it cannot arrive."""
        message = step.message
        if step.reconfigure is not None and self.reconfigurations.begin(step.reconfigure, self.now):
            self.reconfigure(step.reconfigure.change)
            self.reconfigurations.end(step.reconfigure, self.now)
        elif isinstance(message, RenewNode):
            running = [chain for chain in self.projection.chains if message.snid in chain.nodes]
            assert not running, "a node began anew that is counted on"
            self.ask(RenewNode(0, message.snid, message.generation, PROOF))
            self.nodes[message.snid].is_identified = True
        elif message is not None and step.address == "mr":
            self.ask(message)
        elif message is not None:
            node = self.nodes[StorageNodeID(int(step.address.removeprefix("sn/")))]
            assert node.answers, step
            self._do(node, message)

    def _do(self, node: Node, message: Message) -> None:
        match message:
            case AddLogStream(_, _, lsid, _, ordering):
                assert ordering is Ordering.SEQUENCER
                node.replicas.setdefault(lsid, _replica(lsid))
            case RemoveLogStream(_, lsid, _, failed_only, until):
                stream = self.state.streams.get(lsid)
                is_member = stream is not None and stream.epoch > 0 and node.snid in stream.replicas
                assert not is_member, "a member was removed"
                replica = node.replicas[lsid]
                if (not failed_only or not replica.healthy) and (not until or replica.epoch <= until):
                    del node.replicas[lsid]
            case ReopenLogStream(_, lsid):
                assert node.replicas[lsid].fault != errors.Corrupt.code
                node.replicas[lsid].fault = 0
            case ChainCopy():
                copied = self._copy(node, message)
                if not copied.code:
                    self._copied[node.snid, message.lsid] = copied
            case _:
                raise AssertionError(message)

    # What happens

    def restarted(self, replica: Replica) -> None:
        """It knows its epoch, and not that it was about to join."""
        replica.state, replica.source = RUNNING, StorageNodeID(0)

    def pass_time(self, seconds: float, until: Callable[[], bool] = lambda: False) -> float:
        """Let time pass while the manager looks and acts; how long it took, if there is something to wait for."""
        began, end = self.now, self.now + seconds
        while self.now < end and not until():
            self.now += TURN
            for node in self.nodes.values():
                if node.answers:
                    node.heard = self.now
                    for replica in node.replicas.values():
                        self._go_on(node, replica)
            for step, is_new in self.doing.take(self.steps, self.now):
                if is_new:
                    self.told.append(step.sentence)
                self.deliver(step)
        return self.now - began

    def _go_on(self, node: Node, replica: Replica) -> None:
        source = self.nodes[replica.source] if replica.source else None
        if source is None:
            return
        if not source.answers or self.now - replica.renewed > 5 or replica.lsid not in source.replicas:
            replica.source = StorageNodeID(0)
            return
        replica.source_end = source.replicas[replica.lsid].stored_end
        copied = min(replica.source_end, replica.committed_end + int(node.rate * TURN))
        replica.committed_end = replica.stored_end = LLSN(copied)

    def append(self, entries: int = 1, lsid: int = ONE) -> bool:
        """Write as many positions down the chain, if all of it serves."""
        chain = self.chain(lsid)
        members = [self.node(snid).replicas.get(LogStreamID(lsid)) for snid in chain]
        for snid, replica in zip(chain, members, strict=True):
            is_in_step = replica is not None and replica.healthy and replica.epoch == self.projection.epoch
            if not is_in_step or not self.node(snid).answers:
                return False
        for replica in members:
            assert replica is not None
            replica.committed_end = replica.stored_end = LLSN(replica.stored_end + entries)
            self.acknowledged[LogStreamID(lsid)] = replica.stored_end
        return True

    def _check(self) -> None:
        for chain in self.projection.chains if TPID in self.state.topics and self.state.topics[TPID].projection else ():
            ends = [
                replica.stored_end
                for snid in chain.nodes
                if (replica := self.nodes[snid].replicas.get(chain.lsid)) is not None
            ]
            assert all(one >= next_one for one, next_one in pairwise(ends)), (chain, ends)
            is_whole = len(ends) == len(chain.nodes)
            assert not is_whole or min(ends) >= self.acknowledged.get(chain.lsid, LLSN(1))


def _replica(lsid: LogStreamID) -> Replica:
    replica = Replica(lsid)
    replica.state = RUNNING
    return replica
