"""What the metadata repository grants of a topic that a sequencer orders, and what it refuses: nothing changes then."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from varlog import errors, limits
from varlog.core import metastate as m
from varlog.core.decisions import ALREADY, Already, decide
from varlog.core.describing import decided, describe
from varlog.core.messages import (
    CreateTopic,
    HoldStream,
    LoseStream,
    Message,
    PlanStream,
    ProposeProjection,
    RegisterSequencer,
    RegisterStream,
    RenewNode,
    RunStream,
    SealStream,
    SequencerInfo,
    SetDraining,
    TrimTopic,
    UnregisterNode,
    UnregisterStream,
    UnsealStream,
)
from varlog.core.metastate import AnyEntry, MetadataState
from varlog.core.projection import MAX_EPOCH, NEVER, Chain, Projection, Stripe
from varlog.types import GLSN, Epoch, LogStreamID, Ordering, StorageNodeID, StreamStatus, TopicID, Version

ORDERS, COMMITTED, NEW = TopicID(1), TopicID(2), TopicID(3)
ONE, TWO, LATER, CREATING, CUT, YOUNG = map(LogStreamID, range(1, 7))
SET = tuple(map(StorageNodeID, (1, 2, 3)))


def nodes(*snids: int) -> tuple[StorageNodeID, ...]:
    return tuple(map(StorageNodeID, snids))


def chain(lsid: LogStreamID, *snids: int) -> Chain:
    return Chain(lsid, nodes(*snids))


STRIPE = Stripe(GLSN(1), 10, (ONE, TWO))
FIRST = Projection(Epoch(4), "host:1", 7, GLSN(101), 50, (STRIPE,), (chain(ONE, 1, 2, 3), chain(TWO, 2, 3, 1)))
NEXT = replace(FIRST, epoch=Epoch(5), start=GLSN(151), time=60)
YOUNGEST = Projection(Epoch(1), "host:2", 9, GLSN(41), 0, (Stripe(GLSN(41), 4096, (YOUNG,)),), (chain(YOUNG, 1, 2, 3),))


def cluster() -> MetadataState:
    """Five nodes, of which 5 is being drained, and two sequencers. Topic 1, trimmed to 20, is in epoch 4; its log
    stream 3 was registered since, and 4 is being made. Topic 2 is ordered by commits. Topic 3, from 41 on, has no
    projection yet, and needs two replicas."""
    state = MetadataState()
    entries: list[AnyEntry] = [m.NodeRegistered(StorageNodeID(snid)) for snid in range(1, 6)]
    entries += [m.NodeDraining(StorageNodeID(5), True)]
    entries += [m.SequencerRegistered("host:1", 7), m.SequencerRegistered("host:2", 9)]
    entries += [
        m.TopicCreated(ORDERS, "orders", 3, 1, GLSN(1), Ordering.SEQUENCER, 10),
        m.TopicCreated(COMMITTED, "audit", 3, 2),
        m.TopicCreated(NEW, "new", 3, 2, GLSN(41), Ordering.SEQUENCER, 4096),
    ]
    tpids = {ONE: ORDERS, TWO: ORDERS, LATER: ORDERS, CREATING: ORDERS, CUT: COMMITTED, YOUNG: NEW}
    entries += [m.StreamCreating(lsid, tpid) for lsid, tpid in tpids.items()]
    sets = {ONE: SET, TWO: nodes(2, 3, 1), LATER: nodes(3, 1, 2), CUT: SET, YOUNG: SET}
    entries += [m.StreamRegistered(lsid, replicas) for lsid, replicas in sets.items()]
    entries += [m.Projected(ORDERS, FIRST), m.Trimmed(ORDERS, GLSN(20))]
    return applied(state, *entries)


def applied(state: MetadataState, *entries: AnyEntry) -> MetadataState:
    for entry in entries:
        state.apply(Version(state.version + 1), entry)
    return state


def propose(projection: Projection, base: int = 4, tpid: TopicID = ORDERS) -> ProposeProjection:
    return ProposeProjection(1, tpid, Epoch(base), projection)


def chained(*chains: Chain, of: Projection = NEXT) -> Projection:
    """With other chains."""
    others = {chain.lsid: chain for chain in chains}
    return replace(of, chains=tuple(others.get(chain.lsid, chain) for chain in of.chains))


def grown(lsid: LogStreamID, *snids: int) -> Projection:
    """With one more log stream."""
    stripe = Stripe(NEXT.start, 10, (ONE, TWO, lsid))
    return replace(NEXT, stripes=(STRIPE, stripe), chains=(*NEXT.chains, chain(lsid, *snids)))


def create(ordering: Ordering, block: int = 0) -> CreateTopic:
    return CreateTopic(1, "more", 3, 1, GLSN(1), ordering, block)


MORE = TopicID(4)
GRANTED: dict[str, tuple[Message, AnyEntry]] = {
    "a topic that a sequencer orders": (
        create(Ordering.SEQUENCER),
        m.TopicCreated(MORE, "more", 3, 1, GLSN(1), Ordering.SEQUENCER, limits.STRIPE_BLOCK),
    ),
    "a topic with blocks of its own": (
        create(Ordering.SEQUENCER, 7),
        m.TopicCreated(MORE, "more", 3, 1, GLSN(1), Ordering.SEQUENCER, 7),
    ),
    "a log stream for it": (RegisterStream(1, CREATING, SET), m.StreamRegistered(CREATING, SET)),
    "the first projection": (propose(YOUNGEST, 0, NEW), m.Projected(NEW, YOUNGEST)),
    "the next projection": (propose(NEXT), m.Projected(ORDERS, NEXT)),
    "one whose proposer before died": (
        propose(replace(NEXT, epoch=Epoch(9))),
        m.Projected(ORDERS, replace(NEXT, epoch=Epoch(9))),
    ),
    "one with the start of a sequencer that has just begun": (
        propose(replace(NEXT, sequencer="host:2", boot=10)),
        m.Projected(ORDERS, replace(NEXT, sequencer="host:2", boot=10)),
    ),
    "one without the head": (
        propose(chained(chain(ONE, 2, 3))),
        m.Projected(ORDERS, chained(chain(ONE, 2, 3))),
    ),
    "one without the middle": (
        propose(chained(chain(ONE, 1, 3))),
        m.Projected(ORDERS, chained(chain(ONE, 1, 3))),
    ),
    "one with a single replica left": (
        propose(chained(chain(ONE, 3), chain(TWO, 3))),
        m.Projected(ORDERS, chained(chain(ONE, 3), chain(TWO, 3))),
    ),
    "one that gains a tail": (
        propose(chained(chain(ONE, 1, 3, 4))),
        m.Projected(ORDERS, chained(chain(ONE, 1, 3, 4))),
    ),
    "one over more log streams": (propose(grown(LATER, 3, 1, 2)), m.Projected(ORDERS, grown(LATER, 3, 1, 2))),
    "a trim beyond the last reconfiguration": (
        TrimTopic(1, ORDERS, GLSN(5000)),
        m.Trimmed(ORDERS, GLSN(5000)),
    ),
    "a sequencer": (RegisterSequencer(1, "host:3", 1), m.SequencerRegistered("host:3", 1)),
    "a sequencer that was started again": (RegisterSequencer(1, "host:1", 8), m.SequencerRegistered("host:1", 8)),
    "that a chain's member moves": (
        PlanStream(1, ONE, StorageNodeID(4), StorageNodeID(2)),
        m.StreamPlanned(ONE, StorageNodeID(4), StorageNodeID(2)),
    ),
    "that a node of chains is drained": (SetDraining(1, SET[0], True), m.NodeDraining(SET[0], True)),
    "the end of a log stream that no position lies in": (
        UnregisterStream(1, LATER),
        m.StreamUnregistered(LATER),
    ),
}
ALREADY_SO: dict[str, Message] = {
    "the projection that is in force": propose(FIRST),
    "the projection that is in force, proposed from the one before": propose(FIRST, 3),
    "a trim of what is trimmed": TrimTopic(1, ORDERS, GLSN(20)),
    "a trim of nothing": TrimTopic(1, NEW, GLSN(0)),
    "a sequencer that is known": RegisterSequencer(1, "host:1", 7),
    "the same registration": RegisterStream(1, ONE, SET),
}
REFUSED: dict[str, tuple[Message, type[errors.VarlogError]]] = {
    "blocks of a topic ordered by commits": (create(Ordering.COMMIT, 10), errors.InvalidArgument),
    "blocks of less than nothing": (create(Ordering.SEQUENCER, -1), errors.InvalidArgument),
    "blocks too large": (create(Ordering.SEQUENCER, limits.MAX_STRIPE_BLOCK + 1), errors.InvalidArgument),
    "a projection of no topic": (propose(NEXT, tpid=TopicID(9)), errors.UnknownTopic),
    "a projection of a topic ordered by commits": (propose(YOUNGEST, 0, COMMITTED), errors.WrongOrdering),
    "the projection of a loser": (propose(NEXT, 3), errors.Conflict),
    "a projection of who has seen none": (propose(NEXT, 0), errors.Conflict),
    "a projection of who knows the future": (propose(NEXT, 5), errors.Conflict),
    "a projection of the same epoch": (propose(replace(NEXT, epoch=Epoch(4))), errors.InvalidArgument),
    "a projection of an earlier epoch": (propose(replace(NEXT, epoch=Epoch(3))), errors.InvalidArgument),
    "an epoch that leaves no room": (propose(replace(NEXT, epoch=Epoch(MAX_EPOCH + 1))), errors.InvalidArgument),
    "position 0": (propose(replace(NEXT, start=GLSN(0))), errors.InvalidArgument),
    "positions that were given out": (propose(replace(NEXT, start=GLSN(100))), errors.InvalidArgument),
    "a time that has passed": (propose(replace(NEXT, time=49)), errors.InvalidArgument),
    "positions that are trimmed": (propose(replace(YOUNGEST, start=GLSN(40)), 0, NEW), errors.InvalidArgument),
    "written positions that move": (
        propose(replace(NEXT, stripes=(replace(STRIPE, block=20),))),
        errors.InvalidArgument,
    ),
    "a sequencer that nobody knows": (propose(replace(NEXT, sequencer="host:9")), errors.InvalidArgument),
    "a chain with one node twice": (propose(chained(chain(ONE, 1, 2, 1))), errors.InvalidArgument),
    "a chain with an unknown node": (propose(chained(chain(ONE, 1, 9))), errors.UnknownNode),
    "a chain of others altogether": (propose(chained(chain(ONE, 4))), errors.InvalidArgument),
    "a chain in another order": (propose(chained(chain(ONE, 2, 1, 3))), errors.InvalidArgument),
    "a returner at the head": (propose(chained(chain(ONE, 4, 1, 2))), errors.InvalidArgument),
    "a returner in the middle": (propose(chained(chain(ONE, 1, 4, 3))), errors.InvalidArgument),
    "a chain too short": (propose(chained(chain(YOUNG, 1), of=YOUNGEST), 0, NEW), errors.Conflict),
    "a log stream of another topic": (propose(grown(YOUNG, 1, 2)), errors.UnknownLogStream),
    "a log stream that is being made": (propose(grown(CREATING, 1)), errors.UnknownLogStream),
    "a log stream that is not there": (propose(grown(LogStreamID(99), 1)), errors.UnknownLogStream),
    "sealing": (SealStream(1, ONE, Epoch(4)), errors.WrongOrdering),
    "sealing what is being made": (SealStream(1, CREATING, Epoch(0)), errors.WrongOrdering),
    "unsealing": (UnsealStream(1, ONE, Epoch(4), SET, SET[0]), errors.WrongOrdering),
    "running": (RunStream(1, ONE, Epoch(4)), errors.WrongOrdering),
    "holding": (HoldStream(1, ONE, True), errors.WrongOrdering),
    "losing": (LoseStream(1, ONE, Epoch(4), GLSN(1)), errors.WrongOrdering),
    "a trim before there are positions": (TrimTopic(1, NEW, GLSN(41)), errors.InvalidArgument),
    "a trim of all that will ever be": (TrimTopic(1, ORDERS, NEVER), errors.InvalidArgument),
    "a sequencer nowhere": (RegisterSequencer(1, "", 1), errors.InvalidArgument),
    "a sequencer too far away": (RegisterSequencer(1, "h" * (limits.MAX_ADDRESS + 1), 1), errors.InvalidArgument),
    "a sequencer that never started": (RegisterSequencer(1, "host:3", 0), errors.InvalidArgument),
    "the end of a log stream that positions lie in": (UnregisterStream(1, ONE), errors.Conflict),
    "that a node of chains goes": (UnregisterNode(1, SET[0]), errors.Conflict),
    "another secret for a node of chains": (RenewNode(1, SET[0], 0, "0" * 64), errors.Conflict),
}


@pytest.mark.parametrize("case", GRANTED)
def test_a_request_is_granted_by_one_entry(case: str) -> None:
    request, entry = GRANTED[case]
    state = cluster()
    assert decide(state, request) == entry
    assert state == cluster(), "deciding changes nothing"
    applied(state, m.decode_entry(m.encode_entry(entry)))
    if not isinstance(request, CreateTopic):
        assert decide(state, request) is ALREADY, "an answer may be lost"


@pytest.mark.parametrize("case", ALREADY_SO)
def test_what_is_already_so_needs_no_entry(case: str) -> None:
    assert decide(cluster(), ALREADY_SO[case]) is ALREADY


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_is_typed_and_changes_nothing(case: str) -> None:
    request, error = REFUSED[case]
    state = cluster()
    with pytest.raises(errors.VarlogError) as refusal:
        decide(state, request)
    assert type(refusal.value) is error
    assert str(refusal.value)
    assert state == cluster()


def test_S7_of_two_proposals_one_wins() -> None:
    """Both from the same projection; the loser is told which epoch there is, and may replace that."""
    state = applied(cluster(), m.Projected(ORDERS, NEXT))
    late = chained(chain(ONE, 2, 3), of=replace(NEXT, epoch=Epoch(6)))
    with pytest.raises(errors.Conflict, match="in epoch 5, not 4"):
        decide(state, propose(late, 4))
    assert decide(state, propose(late, 5)) == m.Projected(ORDERS, late)


def test_rule22_a_member_that_was_left_out_comes_back_at_the_tail() -> None:
    state = applied(cluster(), m.Projected(ORDERS, chained(chain(ONE, 2, 3))))
    back = replace(NEXT, epoch=Epoch(6))
    with pytest.raises(errors.InvalidArgument, match="tail"):
        decide(state, propose(back, 5))
    assert decide(state, propose(chained(chain(ONE, 2, 3, 1), of=back), 5)) == m.Projected(
        ORDERS, chained(chain(ONE, 2, 3, 1), of=back)
    )


def test_a_plan_is_done_by_the_projection_that_fulfils_it() -> None:
    state = applied(cluster(), m.StreamPlanned(ONE, StorageNodeID(4), StorageNodeID(1)))
    applied(state, m.Projected(ORDERS, chained(chain(ONE, 1, 2, 3, 4))))
    assert (state.streams[ONE].joining, state.streams[ONE].leaving) == (0, 1)
    applied(state, m.Projected(ORDERS, chained(chain(ONE, 2, 3, 4), of=replace(NEXT, epoch=Epoch(6)))))
    assert (state.streams[ONE].joining, state.streams[ONE].leaving) == (0, 0)


def test_a_node_without_room_joins_no_chain() -> None:
    state = cluster()
    for lsid in range(100, 100 + limits.MAX_LOG_STREAMS_PER_NODE):
        state.streams[LogStreamID(lsid)] = m.Stream(LogStreamID(lsid), COMMITTED, replicas=nodes(4))
    with pytest.raises(errors.LimitExceeded, match="storage node 4"):
        decide(state, propose(chained(chain(ONE, 1, 3, 4))))


def test_the_sequencer_that_registered_longest_ago_and_has_no_topic_is_forgotten() -> None:
    state = cluster()
    for number in range(3, limits.MAX_SEQUENCERS + 1):
        applied(state, m.SequencerRegistered(f"host:{number}", 1))
    assert decide(state, RegisterSequencer(1, "more:1", 1)) == m.SequencerRegistered("more:1", 1, "host:2")
    applied(state, m.SequencerRegistered("more:1", 1, "host:2"))
    assert len(state.sequencers) == limits.MAX_SEQUENCERS
    assert decide(state, RegisterSequencer(1, "host:3", 2)) == m.SequencerRegistered("host:3", 2)


def test_the_number_of_sequencers_with_topics_is_limited() -> None:
    state = cluster()
    state.sequencers = {f"host:{number}": 1 for number in range(limits.MAX_SEQUENCERS)}
    for number in range(limits.MAX_SEQUENCERS):
        topic = m.Topic(TopicID(100 + number), f"{number}", 1, 1, ordering=Ordering.SEQUENCER)
        topic.projection = replace(YOUNGEST, sequencer=f"host:{number}")
        state.topics[topic.tpid] = topic
    with pytest.raises(errors.LimitExceeded):
        decide(state, RegisterSequencer(1, "more:1", 1))


def test_S2_everybody_is_told_the_projection_and_the_sequencers() -> None:
    told = describe(cluster(), 5)
    orders, audit, new = told.topics
    assert (orders.ordering, orders.block, orders.projection) == (Ordering.SEQUENCER, 10, FIRST)
    assert (audit.ordering, audit.block, audit.projection) == (Ordering.COMMIT, 0, None)
    assert (new.ordering, new.projection, new.hwm, new.trim) == (Ordering.SEQUENCER, None, 40, 40)
    assert told.sequencers == (SequencerInfo("host:1", 7), SequencerInfo("host:2", 9))
    streams = {stream.lsid: (stream.status, stream.epoch, stream.replicas) for stream in told.streams}
    assert streams[TWO] == (StreamStatus.CHAINED, 4, (2, 3, 1))
    assert streams[LATER] == (StreamStatus.CHAINED, 0, (3, 1, 2))


@pytest.mark.parametrize("entry", [m.Projected(ORDERS, FIRST), None], ids=["proposed", "there already"])
def test_whoever_proposed_is_told_the_epoch_in_force(entry: AnyEntry | None) -> None:
    assert decided(cluster(), 1, propose(FIRST), entry).value == 4


def test_a_topic_goes_with_its_projection() -> None:
    state = applied(cluster(), m.TopicDeleted(ORDERS))
    assert [stream.tpid for stream in state.streams.values()] == [COMMITTED, NEW]
    entry = decide(state, UnregisterNode(1, StorageNodeID(4)))
    assert not isinstance(entry, Already)
