"""A cluster on paper, for the manager's decisions: the real decisions of the metadata repository, replicas that are a
few numbers each, and managers that look and act. Time passes when a test says so.

What a manager asks for is held against `steprules` and then done as the real ones would do it: a replica keeps to its
epochs, is SEALED only when complete, copies so many entries a second. That nothing is lost is checked at every turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count

from tests.core.steprules import RUNNING, SEALED, SEALING, check_steps
from varlog import errors
from varlog.core.decisions import Already, decide
from varlog.core.describing import describe
from varlog.core.manager import Step, reconcile
from varlog.core.messages import (
    AddLogStream,
    CreateStream,
    CreateTopic,
    Info,
    Message,
    Metadata,
    RegisterNode,
    RegisterStream,
    RemoveLogStream,
    RenewNode,
    ReopenLogStream,
    ReplicaInfo,
    Seal,
    StreamInfo,
    Sync,
    Unseal,
    VolumeInfo,
)
from varlog.core.metastate import Cut, MetadataState, Stream
from varlog.core.world import Memory, NodeView, Refusal, World
from varlog.types import LLSN, Epoch, LogStreamID, ReplicaState, StorageNodeID, StreamStatus, TopicID, Version

TPID, ONE = TopicID(1), LogStreamID(1)
TURN = 0.1
PROOF = "ab" * 32


class Replica:
    """What a replica comes to."""

    def __init__(self, lsid: LogStreamID) -> None:
        self.lsid = lsid
        self.epoch = Epoch(0)
        self.state: ReplicaState = SEALING
        self.committed_end = self.stored_end = LLSN(1)
        """`stored_end`: up to here it has the batches, and cuts alone would complete it."""
        self.seal_point: LLSN | None = None
        self.fault = 0
        self.source = self.suspect = StorageNodeID(0)
        self.source_end = LLSN(0)
        self.renewed = 0.0

    @property
    def healthy(self) -> bool:
        return self.fault == 0

    @property
    def needs_sync(self) -> bool:
        return self.seal_point is not None and self.stored_end < self.seal_point

    def info(self) -> ReplicaInfo:
        return ReplicaInfo(
            self.lsid, self.epoch, self.state, self.committed_end, self.stored_end, self.healthy, TPID, self.fault,
            volume="/disk", needs_sync=self.needs_sync, source=self.source, source_end=self.source_end,
            suspect=self.suspect,
        )  # fmt: skip

    def reach_seal_point(self) -> None:
        if self.healthy and self.seal_point is not None and self.stored_end >= self.seal_point:
            self.committed_end = self.stored_end = self.seal_point
            self.state, self.source, self.source_end = SEALED, StorageNodeID(0), LLSN(0)


class Node:
    """A storage node; `is_up` and `hangs` are set by tests."""

    def __init__(self, snid: int) -> None:
        self.snid = StorageNodeID(snid)
        self.boot = 1
        self.is_up = True
        self.hangs = False
        self.is_identified = True
        self.unanswered = 0.0
        self.rate = 1000.0
        """Entries it copies in a second."""
        self.replicas: dict[LogStreamID, Replica] = {}
        self.refusal = ""
        """Why it makes no replicas."""
        self.heard = 0.0

    @property
    def answers(self) -> bool:
        return self.is_up and not self.hangs

    def restart(self) -> None:
        self.boot += 1
        self.is_up, self.hangs = True, False
        for replica in self.replicas.values():
            replica.state, replica.seal_point = SEALING, None
            replica.source = replica.suspect = StorageNodeID(0)

    def lose_disk(self) -> None:
        self.restart()
        self.replicas.clear()
        self.is_identified = False

    def info(self, request: int) -> Info:
        replicas = tuple(replica.info() for replica in self.replicas.values())
        disk = VolumeInfo("/disk", 1 << 40, 1 << 39)
        return Info(request, self.snid, self.boot, replicas, "", (disk,), self.is_identified, self.unanswered)


class Manager:
    """Looks at the cluster and asks for what follows. `metadata` and `views` are its last look."""

    def __init__(self, paper: Paper) -> None:
        self._paper = paper
        self.memory = Memory()
        self.world = paper.world()
        self.replace_after = 30.0

    def look(self) -> None:
        self.world = self._paper.world()

    def steps(self) -> list[Step]:
        """What follows from the last look."""
        self.memory.observe(self.world)
        found = reconcile(self.world, self.memory, self._paper.request, replace_after=self.replace_after)
        check_steps(self.world, found)
        return found

    def act(self) -> list[Step]:
        """Look, decide, and have it done."""
        self.look()
        found = self.steps()
        for step in found:
            self._paper.deliver(step)
        return found


class Paper:
    """See the module's text."""

    def __init__(self, nodes: int = 3, *, factor: int = 3, least: int = 2, streams: int = 1) -> None:
        self.now = 0.0
        self._requests = count(1)
        self.state = MetadataState()
        self.nodes = {StorageNodeID(snid): Node(snid) for snid in range(1, nodes + 1)}
        self.refused: list[str] = []
        self.refusals: dict[tuple[LogStreamID, StorageNodeID], Refusal] = {}
        """What nodes have answered since the last look."""
        self.asked: Counter[StorageNodeID] = Counter()
        """How often nodes have refused to make a replica."""
        self.told: list[str] = []
        """The sentences of all steps, each once while it stays, though its numbers change."""
        self._known: set[object] = set()
        self.sets: list[list[int]] = []
        """The sets that log stream 1 has run with."""
        self._committed: dict[LogStreamID, LLSN] = {}
        for snid in self.nodes:
            self.ask(RegisterNode(0, snid, "", ("/disk",), f"{snid:064x}"))
        self.ask(CreateTopic(0, "log", factor, least))
        for _ in range(streams):
            self._add_stream(tuple(self.nodes)[:factor])
        self.manager = Manager(self)
        self.managers = [self.manager]

    def _add_stream(self, replicas: tuple[StorageNodeID, ...]) -> None:
        lsid = LogStreamID(self.state.next_lsid)
        self.ask(CreateStream(0, TPID))
        for snid in replicas:
            self.nodes[snid].replicas[lsid] = Replica(lsid)
        self.ask(RegisterStream(0, lsid, replicas, ("/disk",) * len(replicas)))

    def request(self) -> int:
        return next(self._requests)

    # What is there

    def stream(self, lsid: LogStreamID = ONE) -> Stream:
        return self.state.streams[lsid]

    def replica(self, snid: int, lsid: LogStreamID = ONE) -> Replica:
        return self.nodes[StorageNodeID(snid)].replicas[lsid]

    @property
    def running(self) -> list[int]:
        """The nodes that log stream 1 runs on; none if it does not."""
        return sorted(self.stream().replicas) if self.stream().status is StreamStatus.RUNNING else []

    @property
    def says(self) -> str:
        """All that the manager says at present."""
        self.manager.look()
        return " / ".join(step.sentence for step in self.manager.steps())

    def metadata(self) -> Metadata:
        return describe(self.state, self.request())

    def info(self, lsid: LogStreamID = ONE) -> StreamInfo:
        return next(stream for stream in self.metadata().streams if stream.lsid == lsid)

    def world(self) -> World:
        views = [
            NodeView(node.snid, node.info(self.request()), node.answers, self.now - node.heard, node.is_up)
            for node in self.nodes.values()
        ]
        refusals, self.refusals = self.refusals, {}
        return World(self.now, self.metadata(), views, refusals=refusals.values())

    # What is asked

    def ask(self, message: Message) -> bool:
        """Of the metadata repository; False if it refuses."""
        try:
            decision = decide(self.state, message)
        except errors.VarlogError as error:
            self.refused.append(f"{message}: {error}")
            return False
        if not isinstance(decision, Already):
            self.state.apply(Version(self.state.version + 1), decision)
            self._check_nothing_lost()
        return True

    def deliver(self, step: Step) -> None:
        """Do what a step asks for, unless it cannot arrive."""
        message = step.message
        if isinstance(message, RenewNode):
            self._renew(message)
        elif message is not None and step.address == "mr":
            self.ask(message)
        elif message is not None:
            node = self.nodes[StorageNodeID(int(step.address.removeprefix("sn/")))]
            if node.answers:
                self._do(node, message)

    def _renew(self, message: RenewNode) -> None:
        proof = f"{message.snid:032x}{message.generation + 1:032x}"
        if self.ask(RenewNode(0, message.snid, message.generation, proof)):
            self.nodes[message.snid].is_identified = True

    def _do(self, node: Node, message: Message) -> None:
        lsid: LogStreamID = message.lsid  # type: ignore[attr-defined]
        replica = node.replicas.get(lsid)
        if isinstance(message, AddLogStream) and node.refusal:
            self.refusals[lsid, node.snid] = Refusal(lsid, node.snid, node.refusal)
            self.asked[node.snid] += 1
        elif isinstance(message, AddLogStream):
            node.replicas.setdefault(lsid, Replica(lsid))
        elif replica is None:
            return
        elif isinstance(message, RemoveLogStream):
            self._remove(node, replica, message)
        elif isinstance(message, ReopenLogStream):
            assert replica.fault != errors.Corrupt.code
            replica.fault, replica.state = 0, SEALING
        elif replica.healthy:
            self._move(node, replica, message)

    def _remove(self, node: Node, replica: Replica, message: RemoveLogStream) -> None:
        is_old = replica.epoch > 0 or replica.fault == errors.Corrupt.code
        if (message.new_only and is_old) or (message.failed_only and replica.healthy):
            return
        if message.until and replica.epoch > message.until:
            return
        stream = self.state.streams.get(replica.lsid)
        runs = stream is not None and stream.status in (StreamStatus.RUNNING, StreamStatus.UNSEALING)
        is_member = stream is not None and node.snid in stream.replicas
        assert not (runs and is_member), "a replica of a set that runs was removed"
        del node.replicas[replica.lsid]

    def _move(self, node: Node, replica: Replica, message: Message) -> None:
        match message:
            case Seal(_, _, epoch, llsn_end):
                if epoch > replica.epoch or (epoch == replica.epoch and replica.state is not RUNNING):
                    assert replica.committed_end <= llsn_end, "a seal below what is committed"
                    if epoch > replica.epoch:
                        replica.state = SEALING
                    replica.epoch, replica.seal_point = epoch, llsn_end
                    replica.stored_end = max(replica.committed_end, min(replica.stored_end, llsn_end))
                    replica.reach_seal_point()
            case Unseal(_, _, epoch):
                if replica.state is SEALED and epoch == replica.epoch + 1 and node.snid in message.replicas:
                    assert replica.committed_end == self.stream(replica.lsid).llsn_end, "an unseal below the end (M10)"
                    replica.epoch, replica.state, replica.seal_point = epoch, RUNNING, None
                    replica.suspect = StorageNodeID(0)
            case Sync():
                self._sync(replica, message)
            case _:
                raise AssertionError(message)

    def _sync(self, replica: Replica, message: Sync) -> None:
        if message.epoch < replica.epoch or (replica.source and replica.source != message.source):
            return
        if message.epoch == replica.epoch and replica.state is not SEALING:
            return
        if not message.learner and not (message.epoch == replica.epoch and replica.needs_sync):
            return
        if message.epoch > replica.epoch:
            replica.epoch, replica.state, replica.seal_point = message.epoch, SEALING, None
        replica.stored_end = replica.committed_end
        replica.source, replica.renewed = message.source, self.now

    # What happens

    def pass_time(self, seconds: float, until: Callable[[], bool] = lambda: False) -> float:
        """Let time pass, while the nodes go on copying and the managers look and act; how long it took, if there is
        something to wait for."""
        began, end = self.now, self.now + seconds
        while self.now < end and not until():
            self.now += TURN
            for node in self.nodes.values():
                if node.answers:
                    node.heard = self.now
                    for replica in node.replicas.values():
                        self._go_on(node, replica)
            self.settle()
        return self.now - began

    def settle(self) -> None:
        """Let the managers act until they say nothing new."""
        for manager in self.managers:
            before: list[object] = []
            for _ in range(40):
                steps = manager.act()
                self._check_nothing_lost()
                keys: list[object] = [step.key for step in steps]
                self.told += [step.sentence for step in steps if step.key not in self._known]
                self._known = {*keys}
                if keys == before:
                    break
                before = keys
            else:
                raise AssertionError(f"it does not come to rest: {before}")

    def _go_on(self, node: Node, replica: Replica) -> None:
        if not replica.source:
            replica.reach_seal_point()
            return
        source = self.nodes[replica.source]
        given = source.replicas.get(replica.lsid)
        stream = self.state.streams.get(replica.lsid)
        is_source = given is not None and given.healthy and given.state is not SEALING and source.answers
        if given is None or stream is None or not is_source or self.now - replica.renewed > 5:
            replica.source, replica.source_end = StorageNodeID(0), LLSN(0)
            return
        end = LLSN(min(given.committed_end, replica.seal_point or given.committed_end))
        replica.source_end = given.committed_end
        copied = min(end, replica.committed_end + int(node.rate * TURN))
        replica.committed_end = replica.stored_end = LLSN(max(replica.committed_end, copied))
        replica.reach_seal_point()

    def append(self, entries: int = 1, lsid: LogStreamID = ONE) -> bool:
        """Append, and have it committed if all of the set is there; else the primary misses who is not."""
        stream = self.state.streams[lsid]
        replicas = [self.nodes[snid].replicas.get(lsid) for snid in stream.replicas]
        in_step = [
            r for r in replicas if r is not None and r.state is RUNNING and r.epoch == stream.epoch and r.healthy
        ]
        up = all(self.nodes[snid].answers for snid in stream.replicas)
        if stream.status is not StreamStatus.RUNNING or len(in_step) < len(replicas) or not up:
            return False
        hwm = self.state.topics[TPID].hwm
        cut = Cut(
            self.state.time + 1,
            ((TPID, hwm, hwm + entries),),
            ((lsid, stream.epoch, stream.llsn_end, hwm + 1, entries),),
        )
        self.state.apply(Version(self.state.version + 1), cut)
        for replica in in_step:
            replica.committed_end = replica.stored_end = stream.llsn_end
        self._check_nothing_lost()
        return True

    def _check_nothing_lost(self) -> None:
        """A log stream that runs has everything that was ever committed, on all of its set."""
        for stream in self.state.streams.values():
            before = self._committed.get(stream.lsid, LLSN(1))
            assert stream.llsn_end >= before
            self._committed[stream.lsid] = stream.llsn_end
            if stream.status is not StreamStatus.RUNNING:
                continue
            for snid in stream.replicas:
                replica = self.nodes[snid].replicas.get(stream.lsid)
                if replica is not None and replica.state is RUNNING and replica.epoch == stream.epoch:
                    assert replica.committed_end == stream.llsn_end, "it runs without something that was committed"
            if stream.lsid == ONE and self.sets[-1:] != [self.running]:
                self.sets.append(self.running)
