"""Metadata made anew, of topics that a sequencer orders: when a backup tells where positions lie, and when not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.pasts import Past, node
from varlog.core import metastate as m
from varlog.core.decisions import decide
from varlog.core.messages import ProposeProjection
from varlog.core.metastate import AnyEntry, Checkpoint, MetadataState
from varlog.core.projection import Chain, Projection, Stripe
from varlog.core.rebuilding import VERSIONS_SKIPPED, Wishes, rebuild
from varlog.core.surveys import NodeSurvey, ReplicaSurvey
from varlog.errors import SurveysDisagree, SurveysIncomplete
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, Ordering, StorageNodeID, StreamStatus, TopicID, Version

AUDIT, ORDERS = TopicID(1), TopicID(2)
CUT, ONE, TWO = LogStreamID(1), LogStreamID(2), LogStreamID(3)
SET = tuple(map(StorageNodeID, (1, 2, 3)))
PROJECTION = Projection(
    Epoch(4),
    "host:1",
    7,
    GLSN(51),
    900,
    (Stripe(GLSN(1), 10, (ONE,)), Stripe(GLSN(31), 10, (ONE, TWO))),
    (Chain(ONE, SET), Chain(TWO, (SET[1], SET[2], SET[0]))),
)
NEXT = replace(PROJECTION, epoch=Epoch(5), start=GLSN(80))


def backup(*more: AnyEntry) -> MetadataState:
    """Topic 2 in epoch 4, ordered by a sequencer, trimmed to 12."""
    state = MetadataState()
    entries: list[AnyEntry] = [m.NodeRegistered(snid) for snid in SET]
    entries += [m.SequencerRegistered("host:1", 7), m.TopicCreated(AUDIT, "audit", 3, 2)]
    entries += [m.TopicCreated(ORDERS, "orders", 3, 1, GLSN(1), Ordering.SEQUENCER, 10)]
    entries += [m.StreamCreating(CUT, AUDIT), m.StreamCreating(ONE, ORDERS), m.StreamCreating(TWO, ORDERS)]
    entries += [m.StreamRegistered(chain.lsid, chain.nodes) for chain in PROJECTION.chains]
    entries += [m.Projected(ORDERS, PROJECTION), m.Trimmed(ORDERS, GLSN(12)), *more]
    for entry in entries:
        state.apply(Version(state.version + 1), entry)
    return state


def replica(lsid: int, *, epoch: int = 4, end: int = 61, trim: int = 12, tpid: int = ORDERS) -> ReplicaSurvey:
    return ReplicaSurvey(
        LogStreamID(lsid), TopicID(tpid), "/volume", Epoch(epoch), (), StorageNodeID(0), Version(0), LLSN(end), GLSN(0),
        GLSN(end - 1), GLSN(trim), LLSN(trim + 1), (), (), "", Ordering.SEQUENCER,
    )  # fmt: skip


def surveys(**of_third: int) -> list[NodeSurvey]:
    """Three nodes with both chains; the third one may have log stream 2 otherwise."""
    alike = [node(snid, replica(ONE), replica(TWO, end=77)) for snid in (1, 2)]
    return [*alike, node(3, replica(ONE, **of_third), replica(TWO, end=77))]


KNOWN = Wishes(known=backup())


def test_S2_a_topic_is_back_if_the_backup_has_its_last_projection() -> None:
    rebuilt = rebuild(surveys(trim=20), KNOWN)
    state = rebuilt.checkpoint.state
    (told,) = rebuilt.topics
    assert (told.name, told.log_streams, told.first, told.last, told.lost, told.uncertain) == (
        "orders",
        2,
        21,
        76,
        (),
        0,
    )
    topic = state.topics[ORDERS]
    assert (topic.projection, topic.trim, topic.block, topic.ordering) == (PROJECTION, 20, 10, Ordering.SEQUENCER)
    for chain in PROJECTION.chains:
        stream = state.streams[chain.lsid]
        assert (stream.status, stream.epoch, stream.replicas, stream.primary) == (
            StreamStatus.CHAINED,
            4,
            chain.nodes,
            chain.head,
        )
        assert stream.volumes == dict.fromkeys(chain.nodes, "/volume")
        assert stream.touched == state.version
    assert state.version == backup().version + VERSIONS_SKIPPED
    assert state.sequencers == {"host:1": 7}
    assert state.next_lsid > TWO
    assert rebuilt.remarks == ["topic 'audit' is in the backup, and no storage node holds anything of it: left out"]
    assert Checkpoint.decode(rebuilt.checkpoint.encode()).state == state


def test_S7_what_is_brought_back_is_reconfigured_as_ever() -> None:
    state = rebuild(surveys(), KNOWN).checkpoint.state
    assert decide(state, ProposeProjection(1, ORDERS, Epoch(4), NEXT)) == m.Projected(ORDERS, NEXT)


def test_both_orderings_come_back_together() -> None:
    past = Past(1)
    past.cut({1: 3})
    both = [joined(survey, past.replica(1)) for survey in surveys()]
    rebuilt = rebuild(both, KNOWN)
    assert [(told.name, told.last) for told in rebuilt.topics] == [("audit", 3), ("orders", 76)]
    assert rebuilt.remarks == []


def joined(survey: NodeSurvey, *replicas: ReplicaSurvey) -> NodeSurvey:
    return replace(survey, replicas=(*survey.replicas, *replicas))


def test_rule22_after_a_later_promise_nothing_is_believed() -> None:
    """One replica has promised epoch 5: perhaps the projection of epoch 5 exists, perhaps its proposer died."""
    with pytest.raises(SurveysIncomplete, match=r"storage node 3 has promised epoch 5 .* ends with epoch 4"):
        rebuild(surveys(epoch=5), KNOWN)


def test_S6_who_has_not_promised_the_epoch_of_a_chain_is_no_member_of_it() -> None:
    """The third node alone was kept by the reconfiguration to epoch 5, which the backup knows of."""
    last = replace(NEXT, chains=(Chain(ONE, SET[2:]), Chain(TWO, SET[2:])))
    both = [
        node(snid, replica(ONE, epoch=epoch), replica(TWO, epoch=epoch)) for snid, epoch in ((1, 4), (2, 4), (3, 5))
    ]
    state = rebuild(both, Wishes(known=backup(m.Projected(ORDERS, last)))).checkpoint.state
    assert [state.streams[lsid].replicas for lsid in (ONE, TWO)] == [(3,), (3,)]
    joined = replace(last, chains=(Chain(ONE, (SET[2], SET[0])), Chain(TWO, SET[2:])))
    state = rebuild(both, Wishes(known=backup(m.Projected(ORDERS, joined)))).checkpoint.state
    assert state.streams[ONE].replicas == (3,)


def test_without_a_backup_nobody_knows_where_positions_lie() -> None:
    with pytest.raises(SurveysIncomplete, match="no backup tells"):
        rebuild(surveys(), Wishes())


def test_what_cannot_be_brought_back_is_left_out_if_that_is_wanted() -> None:
    past = Past(1)
    past.cut({1: 3})
    both = [joined(survey, past.replica(1)) for survey in surveys()]
    rebuilt = rebuild(both, Wishes({AUDIT: "audit"}, declare_lost=True))
    assert [told.name for told in rebuilt.topics] == ["audit"]
    (remark,) = rebuilt.remarks
    assert remark.startswith("topic 2, which a sequencer orders, is left out: ")
    assert rebuilt.checkpoint.state.streams.keys() == {CUT}
    assert rebuilt.checkpoint.state.next_lsid > TWO, "what the nodes have of it is taken for nothing else"


def test_a_topic_that_was_never_written_to_is_left_out_without_much_ado() -> None:
    unwritten = [node(snid, replica(ONE, epoch=0, end=1, trim=0)) for snid in (1, 2, 3)]
    assert rebuild(unwritten, Wishes()).remarks == [
        "topic 2, which a sequencer orders, is left out: nothing was ever written to it"
    ]


def test_every_member_of_a_chain_is_asked_for() -> None:
    with pytest.raises(SurveysIncomplete, match=r"'orders' was there last: storage nodes 1;.*--without"):
        rebuild(surveys()[1:], KNOWN)
    rebuilt = rebuild(surveys()[1:], KNOWN._replace(without={SET[0]}))
    streams = rebuilt.checkpoint.state.streams
    assert [streams[lsid].replicas for lsid in (ONE, TWO)] == [(2, 3), (2, 3)]
    assert rebuilt.checkpoint.state.topics[ORDERS].projection == replace(
        PROJECTION, chains=(Chain(ONE, SET[1:]), Chain(TWO, SET[1:]))
    )
    assert "that of log stream 2 on storage nodes 1" in rebuilt.remarks[0]


def test_a_member_that_was_made_anew_is_left_out() -> None:
    rebuilt = rebuild(surveys(epoch=0, end=1, trim=0), KNOWN)
    assert rebuilt.checkpoint.state.streams[ONE].replicas == (1, 2)
    assert "log stream 2 on storage nodes 3" in rebuilt.remarks[0]


def test_a_chain_that_nobody_is_left_of_is_not_made_up() -> None:
    only_one = [node(snid, replica(ONE)) for snid in (1, 2, 3)]
    with pytest.raises(SurveysIncomplete, match="no member of the chain of log stream 3 is left"):
        rebuild(only_one, KNOWN)


def test_a_replica_outside_of_its_chain_says_nothing() -> None:
    learner = node(4, replica(ONE, epoch=3, end=99, trim=40))
    topic = rebuild([*surveys(), learner], KNOWN).checkpoint.state.topics[ORDERS]
    assert (topic.projection, topic.trim, topic.hwm) == (PROJECTION, 12, 76)


def test_a_topic_may_get_another_name() -> None:
    rebuilt = rebuild(surveys(), KNOWN._replace(names={ORDERS: "sales"}))
    assert rebuilt.checkpoint.state.topics[ORDERS].name == "sales"
    assert backup().topics[ORDERS].name == "orders"


def test_nodes_that_contradict_each_other_are_believed_nothing() -> None:
    past = Past(2)
    past.cut({2: 3})
    with pytest.raises(SurveysDisagree, match="log stream 2 is ordered by commits and by a sequencer"):
        rebuild([*surveys(), node(4, past.replica(2))], KNOWN)
    with pytest.raises(SurveysDisagree, match="topics 1 are ordered by commits and by a sequencer"):
        rebuild([node(1, replica(ONE, tpid=AUDIT)), node(2, Past(1).replica(1, on=[2]))], Wishes(declare_lost=True))
    with pytest.raises(SurveysDisagree, match="of topics"):
        rebuild([*surveys(), node(4, replica(ONE, tpid=AUDIT))], KNOWN)
    with pytest.raises(SurveysDisagree, match="'audit' is ordered by commits in the backup"):
        rebuild([node(snid, replica(CUT, tpid=AUDIT)) for snid in (1, 2, 3)], KNOWN)
