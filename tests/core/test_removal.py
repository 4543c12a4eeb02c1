"""What operators take out again: topics and log streams, first from the metadata and then from the disks."""

from __future__ import annotations

import pytest

from tests.core.operators import World, add_topic
from varlog import errors
from varlog.core.address import METADATA_REPOSITORY
from varlog.core.messages import (
    CreateStream,
    DeleteTopic,
    GetMetadata,
    Message,
    RemoveLogStream,
    RemoveStream,
    RemoveTopic,
    SealStream,
    TrimTopic,
    UnregisterStream,
)
from varlog.types import GLSN, LogStreamID, StreamStatus, TopicID


def test_a_topic_is_taken_out_before_its_data_is_deleted() -> None:
    world = World()
    world.run(add_topic(streams=2))
    world.run(add_topic(name="other"))
    world.log.clear()
    world.run(RemoveTopic(1, "log"))
    assert [kind for _, kind in world.log] == [GetMetadata, DeleteTopic, *[RemoveLogStream] * 6]
    assert world.held == {1: {3: "/v0"}, 2: {3: "/v0"}, 3: {3: "/v0"}}
    assert [topic.name for topic in world.metadata.topics] == ["other"]
    with pytest.raises(errors.UnknownTopic, match="'log'"):
        world.run(RemoveTopic(1, "log"))


def test_a_topic_whose_removal_is_refused_keeps_its_data() -> None:
    world = World()
    world.run(add_topic())
    world.faults[DeleteTopic] = lambda _to, _message: errors.Unreachable("not connected")
    with pytest.raises(errors.Unreachable):
        world.run(RemoveTopic(1, "log"))
    assert not world.asked(RemoveLogStream)


def test_B6_of_what_was_never_registered_only_what_was_just_made_is_deleted() -> None:
    world = World()
    world.run(add_topic())
    world.decide(CreateStream(1, TopicID(1)))
    world.decide(CreateStream(2, TopicID(1)))
    for snid in (1, 2, 3):
        world.held[snid] |= {2: "/v0", 3: "/v0"}
    world.with_a_past |= {(1, 1), (1, 2), (1, 3)}
    world.run(RemoveStream(1, LogStreamID(2)))
    assert [sorted(held) for held in world.held.values()] == [[1, 2, 3], [1, 3], [1, 3]]
    world.run(RemoveTopic(1, "log"))
    assert [sorted(held) for held in world.held.values()] == [[2, 3], [], []]


def test_a_silent_node_does_not_keep_a_topic() -> None:
    world = World()
    world.run(add_topic())
    world.silent.add(2)
    world.run(RemoveTopic(1, "log"))
    assert world.held == {1: {}, 2: {1: "/v0"}, 3: {}}


def test_a_topic_of_many_log_streams_is_deleted_a_part_at_a_time() -> None:
    world = World()
    world.run(add_topic(streams=50))
    world.rounds.clear()
    world.run(RemoveTopic(1, "log"))
    assert world.rounds == [1, 1, 64, 64, 22]
    assert not any(world.held.values())


def test_a_log_stream_that_holds_entries_stays() -> None:
    world = World()
    world.run(add_topic(streams=2))
    world.unseal(1)
    world.unseal(2)
    world.commit(1, 11)
    with pytest.raises(errors.Conflict, match="holds entries up to 10; trim topic 'log' first"):
        world.run(RemoveStream(1, LogStreamID(1)))
    assert world.statuses() == {1: StreamStatus.RUNNING, 2: StreamStatus.RUNNING}, "it is not even sealed"
    world.decide(TrimTopic(1, TopicID(1), GLSN(10)))
    assert world.run(RemoveStream(1, LogStreamID(1))) == 1
    assert world.statuses() == {2: StreamStatus.RUNNING}
    assert all(held == {2: "/v0"} for held in world.held.values())
    with pytest.raises(errors.UnknownLogStream):
        world.run(RemoveStream(1, LogStreamID(1)))


def test_entries_that_come_while_a_log_stream_is_taken_out_keep_it() -> None:
    world = World()
    world.run(add_topic())
    world.unseal(1)

    def appended_before(_to: str, _message: Message) -> None:
        world.commit(1, 3)

    world.faults[SealStream] = appended_before
    with pytest.raises(errors.Conflict, match="holds entries up to 2"):
        world.run(RemoveStream(1, LogStreamID(1)))
    assert not world.asked(RemoveLogStream)


def test_a_manager_that_unseals_meanwhile_makes_it_begin_again() -> None:
    world = World()
    world.run(add_topic())
    world.unseal(1)
    unsealed = 0

    def unseal(_to: str, _message: Message) -> None:
        nonlocal unsealed
        if unsealed < 2:
            unsealed += 1
            world.unseal(1)

    world.faults[UnregisterStream] = unseal
    world.run(RemoveStream(1, LogStreamID(1)))
    assert world.asked(SealStream, UnregisterStream) == [METADATA_REPOSITORY] * 6
    assert not world.metadata.streams


def test_a_log_stream_that_cannot_be_held_still_is_given_up() -> None:
    world = World()
    world.run(add_topic())
    world.unseal(1)
    world.faults[UnregisterStream] = lambda _to, _message: world.unseal(1)
    with pytest.raises(errors.Conflict, match="takes appends"):
        world.run(RemoveStream(1, LogStreamID(1)))
    assert not world.asked(RemoveLogStream)
