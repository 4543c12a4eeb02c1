"""What operators do with topics that a sequencer orders: see `tests.core.chainpaper`."""

from __future__ import annotations

import pytest

from tests.core.chainpaper import ONE, SEQUENCER, TPID, ChainPaper
from varlog import errors
from varlog.core.messages import (
    AddStream,
    AddTopic,
    DeclareLost,
    DrainNode,
    HoldLogStream,
    Message,
    MoveReplica,
    RemoveStream,
    RemoveTopic,
    ReplaceNode,
    SyncLogStream,
)
from varlog.types import LogStreamID, Ordering, StorageNodeID, TopicID

TWO, FOUR = StorageNodeID(2), StorageNodeID(4)


@pytest.mark.parametrize(
    ("asked", "instead"),
    [
        (HoldLogStream(1, ONE, True), "varlog sequencer seal"),
        (HoldLogStream(1, ONE, False), "never kept sealed"),
        (SyncLogStream(1, ONE, TWO, StorageNodeID(1)), "move a replica"),
        (DeclareLost(1, ONE), "remove the topic"),
    ],
    ids=["seal", "unseal", "sync", "declare lost"],
)
@pytest.mark.parametrize("is_projected", [True, False])
def test_what_is_for_the_other_ordering_is_refused(asked: Message, instead: str, is_projected: bool) -> None:
    paper = ChainPaper(is_projected=is_projected)
    version = paper.state.version
    with pytest.raises(errors.WrongOrdering, match=instead):
        paper.operate(asked)
    assert paper.state.version == version


def test_S8_a_topic_is_made_with_its_first_projection_and_its_heads_are_spread() -> None:
    paper = ChainPaper()
    tpid = paper.operate(AddTopic(1, "moves", 0, 0, 3, ordering=Ordering.SEQUENCER))
    projection = paper.state.topics[TopicID(tpid)].projection
    assert projection is not None
    assert (projection.epoch, projection.start, projection.sequencer) == (1, 1, SEQUENCER)
    assert sorted(chain.head for chain in projection.chains) == [1, 2, 3]
    assert paper.state.topics[TopicID(tpid)].min_replicas == 1


def test_nothing_is_made_where_no_sequencer_answers() -> None:
    paper = ChainPaper()
    paper.has_sequencer = False
    version = paper.state.version
    for asked in (AddTopic(1, "moves", 0, 0, 1, ordering=Ordering.SEQUENCER), AddStream(1, "log", ())):
        with pytest.raises(errors.Unreachable, match="vsq start"):
            paper.operate(asked)
    assert paper.state.version == version


@pytest.mark.parametrize(
    "asked",
    [AddTopic(1, "moves", 0, 0, 1, ordering=Ordering.SEQUENCER), AddStream(1, "log", ())],
    ids=["topic", "log stream"],
)
def test_what_was_made_is_told_where_its_sequencer_has_gone_meanwhile(asked: Message) -> None:
    paper = ChainPaper()
    streams = len(paper.state.streams)
    paper.loses_sequencer = True
    with pytest.raises(errors.Unknown, match="was made, and has no positions yet"):
        paper.operate(asked)
    assert len(paper.state.streams) == streams + 1


def test_a_log_stream_is_added_and_gets_positions_from_there_on() -> None:
    paper = ChainPaper()
    paper.append(100)
    assert paper.operate(AddStream(1, "log", ())) == 2
    assert [(stripe.begin, [*stripe.lsids]) for stripe in paper.projection.stripes] == [(1, [1]), (101, [1, 2])]


def test_a_log_stream_that_has_positions_stays() -> None:
    paper = ChainPaper()
    with pytest.raises(errors.Conflict, match="go only with their topic"):
        paper.operate(RemoveStream(1, ONE))
    paper.loses_sequencer = True
    with pytest.raises(errors.Unknown):
        paper.operate(AddStream(1, "log", ()))
    assert paper.operate(RemoveStream(1, LogStreamID(2))) == 2, "nothing was ever written there"
    assert all(LogStreamID(2) not in node.replicas for node in paper.nodes.values())


def test_a_topic_is_removed() -> None:
    paper = ChainPaper()
    paper.append(10)
    assert paper.operate(RemoveTopic(1, "log")) == TPID
    assert not any(node.replicas for node in paper.nodes.values())


def test_a_node_is_drained_replaced_and_a_replica_moved() -> None:
    paper = ChainPaper(4)
    paper.append(100)
    paper.operate(MoveReplica(1, ONE, FOUR, StorageNodeID(1)))
    paper.pass_time(5)
    assert paper.chain() == [2, 3, 4]
    paper.operate(ReplaceNode(1, FOUR, StorageNodeID(1)))
    paper.pass_time(5)
    assert paper.chain() == [2, 3, 1]
    paper.operate(DrainNode(1, TWO))
    paper.pass_time(5)
    assert paper.chain() == [3, 1], "nobody else may have one"
    with pytest.raises(errors.Conflict, match="is being drained"):
        paper.operate(MoveReplica(1, ONE, TWO, StorageNodeID(0)))
