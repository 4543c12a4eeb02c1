"""A client's copy of the metadata: it only moves forward, and tells where to append and where to read."""

from __future__ import annotations

import pytest

from tests.core.sketch import TOPIC, metadata, stream
from varlog.core.blacklist import FIRST_TERM
from varlog.core.routing import Routing, takes_appends
from varlog.types import LogStreamID, StorageNodeID, StreamStatus, TopicID

CREATING, SEALED, UNSEALING, RUNNING, ABORTED = (
    StreamStatus.CREATING,
    StreamStatus.SEALED,
    StreamStatus.UNSEALING,
    StreamStatus.RUNNING,
    StreamStatus.ABORTED,
)


def test_the_copy_only_moves_forward() -> None:
    routing = Routing()
    assert routing.update(metadata(0, stream(1)))
    assert routing.update(metadata(5, stream(1, SEALED, epoch=3), hwm=7))
    assert not routing.update(metadata(4, stream(1)))
    assert not routing.update(metadata(5, stream(2)))
    assert routing.version == 5
    known = routing.stream(LogStreamID(1))
    assert known is not None
    assert (known.status, known.epoch) == (SEALED, 3)
    topic = routing.topic(TOPIC)
    assert topic is not None
    assert topic.hwm == 7


def test_it_knows_nothing_before_the_first_metadata() -> None:
    routing = Routing()
    assert routing.topic(TOPIC) is None
    assert routing.stream(LogStreamID(1)) is None
    assert routing.streams(TOPIC) == []
    assert routing.choose(TOPIC, 0, 0.0) is None


def test_a_topic_is_made_of_the_log_streams_that_may_hold_entries() -> None:
    routing = Routing()
    statuses = (RUNNING, CREATING, SEALED, ABORTED, UNSEALING)
    streams = [stream(lsid, status) for lsid, status in enumerate(statuses, 1)]
    routing.update(metadata(1, *reversed(streams), stream(9, tpid=2)))
    assert [s.lsid for s in routing.streams(TOPIC)] == [1, 3, 5]
    assert [s.lsid for s in routing.streams(TopicID(2))] == [9]
    assert routing.stream(LogStreamID(2)) is None


@pytest.mark.parametrize("status", StreamStatus)
def test_a_sealed_log_stream_takes_no_appends(status: StreamStatus) -> None:
    routing = Routing()
    routing.update(metadata(1, stream(1, status)))
    open_to_appends = status is RUNNING
    assert takes_appends(stream(1, status)) == open_to_appends
    assert (routing.choose(TOPIC, 7, 0.0) is not None) == open_to_appends


def test_equal_affinities_choose_alike_and_different_ones_spread() -> None:
    routing = Routing()
    routing.update(metadata(1, *(stream(lsid) for lsid in (1, 2, 3)), stream(9, tpid=2)))
    chosen = [routing.choose(TOPIC, affinity, 0.0) for affinity in range(6)]
    assert [s.lsid for s in chosen if s is not None] == [1, 2, 3, 1, 2, 3]
    assert routing.choose(TOPIC, 4, 0.0) == routing.choose(TOPIC, 4, 9.0)


# What did not work (M11)


def chosen(routing: Routing, now: float) -> set[int]:
    """The log streams that appends go to."""
    return {stream.lsid for a in range(6) if (stream := routing.choose(TOPIC, a, now)) is not None}


def test_M11_a_log_stream_that_failed_is_avoided_until_its_term_has_passed() -> None:
    routing = Routing()
    routing.update(metadata(1, *(stream(lsid) for lsid in (1, 2, 3))))
    routing.streams_avoided.unusable(LogStreamID(2), 5.0)
    assert chosen(routing, 5.0) == {1, 3}
    assert chosen(routing, 5.0 + FIRST_TERM) == {1, 2, 3}


def test_M11_log_streams_on_a_node_that_failed_are_avoided_and_not_excluded() -> None:
    routing = Routing()
    routing.update(metadata(1, stream(1, replicas=(1, 2)), stream(2, replicas=(2, 3)), stream(3, replicas=(3, 4))))
    routing.nodes_avoided.unusable(StorageNodeID(2), 0.0)
    assert chosen(routing, 0.0) == {3}, "an append needs all replicas, not only the primary"
    routing.nodes_avoided.unusable(StorageNodeID(4), 0.0)
    assert chosen(routing, 0.0) == {1, 3}, "this client may reach the primary, and the primary its backup"
    for snid in (1, 3):
        routing.nodes_avoided.unusable(StorageNodeID(snid), 0.0)
    assert chosen(routing, 0.0) == {1, 2, 3}, "there is nothing better"


def test_M11_a_new_epoch_is_a_new_beginning() -> None:
    routing = Routing()
    routing.update(metadata(1, stream(1), stream(2)))
    routing.streams_avoided.unusable(LogStreamID(1), 0.0)
    routing.streams_avoided.unusable(LogStreamID(2), 0.0)
    routing.update(metadata(2, stream(1), stream(2, epoch=4)))
    assert chosen(routing, 0.0) == {2}


def test_a_node_that_is_not_listed_any_more_is_forgotten() -> None:
    routing = Routing()
    routing.update(metadata(1, stream(1)))
    routing.nodes_avoided.unusable(StorageNodeID(9), 0.0)
    routing.update(metadata(2, stream(1)))
    assert not routing.nodes_avoided


def test_replicas_are_asked_in_turn_the_well_ones_first() -> None:
    routing = Routing()
    replicas = tuple(map(StorageNodeID, (4, 5, 6)))
    assert list(routing.in_turn(replicas, 0, 0.0)) == [4, 5, 6]
    assert list(routing.in_turn(replicas, 4, 0.0)) == [5, 6, 4]
    routing.nodes_avoided.unusable(StorageNodeID(5), 0.0)
    assert list(routing.in_turn(replicas, 1, 0.0)) == [6, 4, 5]
    assert list(routing.in_turn(replicas, 1, 0.0, asked=[StorageNodeID(6)])) == [4, 5]
