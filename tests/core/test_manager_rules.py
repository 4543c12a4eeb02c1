"""Whatever the world looks like, and whatever happens, the manager asks for nothing that the rules forbid; and when
everything is there again it brings everything back."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.paper import ONE, Manager, Node, Paper, Replica
from tests.core.sketch import stream
from tests.core.steprules import check_steps
from varlog import errors
from varlog.core.manager import Step, reconcile
from varlog.core.messages import (
    CreateStream,
    HoldStream,
    Info,
    Message,
    Metadata,
    NodeInfo,
    PlanStream,
    ReplicaInfo,
    SealStream,
    SetDraining,
    StreamInfo,
    TopicInfo,
)
from varlog.core.world import Memory, NodeView, World
from varlog.types import (
    GLSN,
    LLSN,
    Epoch,
    LogStreamID,
    ReplicaState,
    StorageNodeID,
    StreamStatus,
    TopicID,
    Version,
)

STREAMS = (ONE, LogStreamID(2))
SNIDS = [StorageNodeID(snid) for snid in range(1, 6)]
snids = st.sampled_from(SNIDS)
nobody_or_somebody = st.sampled_from([StorageNodeID(0), *SNIDS])
ends = st.integers(1, 30).map(LLSN)
seconds = st.sampled_from([0.0, 0.6, 1.1, 40.0])

# Any world


def mostly(usual: bool = True, *, of: int = 10) -> st.SearchStrategy[bool]:
    """The usual but for one time of so many."""
    return st.sampled_from([usual] * (of - 1) + [not usual])


@st.composite
def streams(draw: st.DrawFn, lsid: int) -> StreamInfo:
    status = draw(st.sampled_from([*StreamStatus, StreamStatus.RUNNING, StreamStatus.SEALED, StreamStatus.UNSEALING]))
    registered = status not in (StreamStatus.CREATING, StreamStatus.ABORTED)
    replicas = draw(st.lists(snids, min_size=2, max_size=3, unique=True)) if registered else []
    epoch = draw(st.integers(1, 3)) * 2 - (status is StreamStatus.SEALED) if registered else 0
    primary = draw(st.sampled_from(replicas)) if replicas else 0
    info = stream(
        lsid, status, epoch=epoch, replicas=tuple(replicas), primary=primary, llsn_end=draw(st.integers(20, 30))
    )
    leaving = draw(st.sampled_from([0, 0, 0, *replicas]))
    joining = draw(st.sampled_from([0, 0, 0, *(snid for snid in SNIDS if snid not in replicas)]))
    return msgspec.structs.replace(
        info, is_held=draw(mostly(False)), joining=StorageNodeID(joining), leaving=StorageNodeID(leaving)
    )


def in_step(info: StreamInfo, *, has_run: bool) -> tuple[ReplicaState, int]:
    """What a replica is like that has followed its log stream."""
    if info.status is StreamStatus.UNSEALING and not has_run:
        return ReplicaState.SEALED, info.epoch - 1
    if info.status is StreamStatus.SEALED:
        return ReplicaState.SEALED, info.epoch
    return ReplicaState.RUNNING, info.epoch


@st.composite
def replicas(draw: st.DrawFn, info: StreamInfo, snid: StorageNodeID) -> ReplicaInfo:
    """In step with its log stream, mostly, if it is of the set; or anything."""
    state, epoch = in_step(info, has_run=draw(mostly(of=3)))
    replica = ReplicaInfo(info.lsid, Epoch(epoch), state, info.llsn_end, info.llsn_end, True)
    if draw(mostly(snid in info.replicas, of=8)):
        return replica
    end = draw(st.one_of(st.just(info.llsn_end), ends))
    source = draw(nobody_or_somebody)
    return msgspec.structs.replace(
        replica,
        epoch=Epoch(max(0, info.epoch + draw(st.sampled_from([0, 0, 0, 0, -1, -1, -1, -2, -2, 1])))),
        state=draw(st.sampled_from(ReplicaState)),
        committed_end=end,
        durable_end=LLSN(end + draw(st.sampled_from([0, 0, 5]))),
        healthy=draw(mostly(of=5)),
        needs_sync=draw(st.booleans()),
        source=source if draw(st.booleans()) else StorageNodeID(0),
        source_end=LLSN(end + draw(st.sampled_from([0, 1, 20]))),
        suspect=draw(nobody_or_somebody),
    )


class Look(NamedTuple):
    """A world without its time."""

    metadata: Metadata
    views: list[NodeView]
    making: frozenset[LogStreamID]
    changed: dict[LogStreamID, int]

    def at(self, now: float) -> World:
        return World(now, self.metadata, self.views, making=self.making, changed=self.changed)


@st.composite
def looks(draw: st.DrawFn) -> Look:
    known = [draw(streams(lsid)) for lsid in range(1, draw(st.integers(2, 4)))]
    nodes, views = [], []
    for snid in SNIDS:
        nodes.append(NodeInfo(snid, is_draining=draw(mostly(False)), generation=draw(st.integers(0, 1))))
        hosted = [draw(replicas(info, snid)) for info in known if draw(mostly(of=10 if snid in info.replicas else 2))]
        unanswered = 0.0 if draw(mostly(of=20)) else 3.0
        boot, identified = draw(st.integers(1, 2)), draw(mostly(of=15))
        info = Info(1, snid, boot, tuple(hosted), is_identified=identified, unanswered=unanswered)
        silent = draw(st.sampled_from([*[0.0] * 20, 0.7, 1.5]))
        views.append(NodeView(snid, info, draw(mostly(of=20)), silent, draw(mostly())))
    factor = draw(st.integers(3, 4))
    topics = (TopicInfo(TopicID(1), "log", GLSN(0), GLSN(0), factor, draw(st.integers(1, 2))),)
    making = frozenset(draw(st.sets(st.sampled_from([info.lsid for info in known]))))
    changed = {info.lsid: 0 if draw(mostly(of=8)) else 1 for info in known}
    return Look(Metadata(1, Version(1), tuple(nodes), topics, tuple(known)), views, making, changed)


@given(looks(), looks(), seconds)
@settings(max_examples=500)
def test_in_any_world_nothing_is_asked_for_that_the_rules_forbid(before: Look, now: Look, lasted: float) -> None:
    """Also if the worlds that the memory is of have nothing to do with each other."""
    memory = Memory()
    for number, look in enumerate((before, now, now)):
        world = look.at(number * lasted)
        memory.observe(world)
        found = reconcile(world, memory, lambda: 1)
        check_steps(world, found)
        again = [step.sentence for step in reconcile(world, memory, lambda: 1)]
        assert again == [step.sentence for step in found], "the same follows from the same"


# Anything that happens


class Happening:
    """One thing after another happens to a cluster, and managers look on."""

    def __init__(self, second_manager: bool) -> None:
        self.paper = Paper(5, factor=3, least=2, streams=2)
        self.paper.pass_time(1)
        if second_manager:
            self.paper.managers.append(Manager(self.paper))
        self.late: list[Step] = []
        """What a manager decided a while ago, still on its way."""

    def happen(self, what: str, snid: StorageNodeID, other: StorageNodeID, passes: float) -> None:
        paper = self.paper
        if what in REQUESTS:
            paper.ask(REQUESTS[what](paper, snid, other))
        elif what in ("corrupt", "poison"):
            self.fail(snid, errors.Corrupt if what == "corrupt" else errors.Poisoned)
        elif what == "slow":
            self.slow(snid)
        elif what == "make":
            self.make(snid)
        elif what == "delay":
            self.late += paper.manager.steps()
        elif what == "deliver":
            late, self.late = self.late, []
            for step in late:
                paper.deliver(step)
        else:
            self.disturb(what, paper.nodes[snid])
        for lsid in STREAMS:
            paper.append(50, lsid)
        paper.pass_time(passes)

    def disturb(self, what: str, node: Node) -> None:
        if what == "restart":
            node.restart()
        elif what in ("hang", "go on"):
            node.hangs = what == "hang"
        elif what == "kill":
            node.is_up = False
        elif all(self.spared(node.snid, lsid) for lsid in STREAMS):
            node.lose_disk()

    def make(self, snid: StorageNodeID) -> None:
        """Begin to make a log stream, and stop in the middle."""
        lsid = LogStreamID(self.paper.state.next_lsid)
        self.paper.ask(CreateStream(0, self.paper.stream().tpid))
        if self.paper.nodes[snid].answers:
            self.paper.nodes[snid].replicas[lsid] = Replica(lsid)

    def spared(self, snid: StorageNodeID, lsid: LogStreamID) -> bool:
        """Whether others of the set have everything too: what no copy is left of, no manager brings back."""
        nodes, stream = self.paper.nodes, self.paper.state.streams[lsid]
        whole = [
            other
            for other in stream.replicas
            if lsid in (has := nodes[other].replicas) and has[lsid].healthy and has[lsid].stored_end >= stream.llsn_end
        ]
        return snid not in stream.replicas or len([other for other in whole if other != snid]) >= 2

    def fail(self, snid: StorageNodeID, error: type[errors.VarlogError]) -> None:
        replica = self.paper.nodes[snid].replicas.get(ONE)
        if replica is not None and self.spared(snid, ONE):
            replica.fault, replica.state, replica.source = error.code, ReplicaState.SEALING, StorageNodeID(0)

    def slow(self, snid: StorageNodeID) -> None:
        stream = self.paper.stream()
        primary = self.paper.nodes[stream.primary].replicas.get(ONE) if stream.primary else None
        if primary is not None and primary.state is ReplicaState.RUNNING and snid in stream.replicas:
            primary.state, primary.suspect = ReplicaState.SEALING, snid

    def heal(self) -> None:
        """Everybody is there and nobody wants anything."""
        paper = self.paper
        for node in paper.nodes.values():
            paper.ask(SetDraining(0, node.snid, False))
            if not node.is_up:
                node.restart()
            node.hangs = False
        paper.ask(PlanStream(0, ONE, StorageNodeID(0), StorageNodeID(0)))
        paper.ask(HoldStream(0, ONE, False))


REQUESTS: dict[str, Callable[[Paper, StorageNodeID, StorageNodeID], Message]] = {
    "drain": lambda _, snid, __: SetDraining(0, snid, True),
    "undrain": lambda _, snid, __: SetDraining(0, snid, False),
    "move": lambda _, snid, other: PlanStream(0, ONE, other, snid),
    "hold": lambda *_: HoldStream(0, ONE, True),
    "release": lambda *_: HoldStream(0, ONE, False),
    "seal": lambda paper, *_: SealStream(0, ONE, paper.stream().epoch),
}
OTHERS = [
    "kill",
    "restart",
    "restart",
    "hang",
    "go on",
    "corrupt",
    "poison",
    "lose",
    "slow",
    "make",
    "delay",
    "deliver",
]
events = st.tuples(st.sampled_from([*REQUESTS, *OTHERS]), snids, snids, st.sampled_from([0.1, 0.3, 0.7, 1.5, 12.0]))


@given(st.booleans(), st.lists(events, max_size=25))
@settings(max_examples=30, deadline=None)
def test_whatever_happens_nothing_is_lost_and_in_the_end_everything_is_back(
    second: bool, happenings: list[tuple[str, StorageNodeID, StorageNodeID, float]]
) -> None:
    happening = Happening(second)
    for what, snid, other, passes in happenings:
        happening.happen(what, snid, other, passes)
    happening.heal()
    paper = happening.paper
    paper.pass_time(700, lambda: _is_whole(paper))
    assert _is_whole(paper), (paper.says, paper.state.streams)
    paper.pass_time(60)
    assert paper.state.streams.keys() == {*STREAMS}, "what was not finished is cleared away"


def _is_whole(paper: Paper) -> bool:
    """Whether both log streams run on three nodes, and take appends."""
    return all(len(paper.stream(lsid).replicas) == 3 and paper.append(1, lsid) for lsid in STREAMS)
