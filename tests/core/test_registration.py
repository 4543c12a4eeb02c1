"""What operators ask of the manager, as conversations: nodes are registered, topics and log streams made."""

from __future__ import annotations

import msgspec
import pytest

from tests.core.operators import MIB, ROOM, World, add_topic, refusing, reply
from varlog import errors, limits
from varlog.core.address import METADATA_REPOSITORY
from varlog.core.conversing import Answer
from varlog.core.messages import (
    AbortStream,
    AddLogStream,
    AddNode,
    AddStream,
    AddTopic,
    AdoptIdentity,
    AttachArchive,
    CreateStream,
    DeleteTopic,
    DrainNode,
    GetInfo,
    GetMetadata,
    IdentityAdopted,
    Message,
    RegisterNode,
    RegisterStream,
    RemoveLogStream,
    RemoveNode,
    RemoveStream,
    RemoveTopic,
    UnregisterStream,
)
from varlog.core.placing import place
from varlog.types import LogStreamID, StorageNodeID, StreamStatus

# Nodes


def test_M1_a_node_is_asked_who_it_is_and_then_registered() -> None:
    world = World(0)
    world.add(7)
    assert world.run(AddNode(1, "host-7:1")) == 7
    assert world.log == [
        ("at/host-7:1", GetInfo),
        ("at/host-7:1", GetInfo),
        (METADATA_REPOSITORY, GetMetadata),
        (METADATA_REPOSITORY, RegisterNode),
        ("at/host-7:1", AdoptIdentity),
    ]
    (node,) = world.metadata.nodes
    assert (node.snid, node.address, node.volumes, node.generation) == (7, "host-7:1", ("/v0",), 1)
    assert world.run(AddNode(2, "host-7:1")) == 7, "the same again"
    assert world.log[-1] == (METADATA_REPOSITORY, GetMetadata), "and it is left alone"


def test_B11_the_secret_a_node_is_given_is_the_one_on_record() -> None:
    world = World(2)
    assert world.given == {1: (f"{1:064x}", 1), 2: (f"{2:064x}", 1)}
    assert world.announce(1)
    assert not world.announce(2, secret=f"{1:064x}")


@pytest.mark.parametrize("kind", [RegisterNode, AdoptIdentity])
def test_B11_a_registration_that_broke_off_is_completed_by_asking_again(kind: type[Message]) -> None:
    """Neither the registration nor the secret is lost on the way: only the answer is, and what would have followed."""
    world = World(0)
    world.add(7)

    def lost(to: str, message: Message) -> Answer:
        assert (world.decide(message) if to == METADATA_REPOSITORY else world.obey(to, message)) is not None
        return errors.ConnectionLost("the connection was lost")

    world.faults[kind] = lost
    with pytest.raises(errors.ConnectionLost):
        world.run(AddNode(1, "host-7:1"))
    world.faults.clear()
    assert world.run(AddNode(1, "host-7:1")) == 7
    assert world.metadata.nodes[0].generation == world.given[7][1]
    assert world.announce(7)


def test_B11_a_secret_that_did_not_arrive_is_replaced_by_the_next() -> None:
    world = World(0)
    world.add(7)
    world.faults[AdoptIdentity] = lambda _to, _message: errors.DeadlineExceeded("nothing heard")
    with pytest.raises(errors.DeadlineExceeded):
        world.run(AddNode(1, "host-7:1"))
    assert not world.given
    world.faults.clear()
    assert world.run(AddNode(1, "host-7:1")) == 7
    assert world.given == {7: (f"{2:064x}", 2)}
    assert world.announce(7)


def test_B11_a_node_that_was_removed_can_come_back_with_what_it_has() -> None:
    world = World(1)
    world.run(RemoveNode(1, StorageNodeID(1)))
    assert world.run(AddNode(1, "host-1:1")) == 1
    assert world.given[1] == (f"{2:064x}", 2)
    assert world.metadata.nodes[0].generation == 2
    assert world.announce(1)


def test_B11_a_node_that_lost_its_disks_is_renewed_once_it_is_in_no_set_that_runs() -> None:
    world = World(3)
    world.run(add_topic())
    world.unseal(1)
    del world.given[2]
    for conversation in (world.registrar.begin(AddNode(1, "host-2:1")), world.registrar.renew_node(StorageNodeID(2))):
        with pytest.raises(errors.Conflict, match="it must leave them first"):
            world.carry(conversation)
    assert 2 not in world.given
    world.run(RemoveTopic(1, "log"))
    assert world.carry(world.registrar.renew_node(StorageNodeID(2))) == 2
    assert world.given[2][1] == 2
    assert world.announce(2)
    version = world.metadata.version
    assert world.carry(world.registrar.renew_node(StorageNodeID(2))) == 2
    assert world.metadata.version == version, "one that has a secret is left alone"


def test_B11_of_two_requests_for_one_node_the_second_is_told_to_wait() -> None:
    """Else the second would see a registered node without a secret, and make the first one's void."""
    world = World(0)
    world.add(7)
    first = world.registrar.begin(AddNode(1, "host-7:1"))
    answers: list[Answer] | None = None
    while not world.asked(RegisterNode):
        requests = first.send(answers)  # type: ignore[arg-type]
        answers = [world.answer(*request) for request in requests]
    assert world.registrar.giving == {7}
    with pytest.raises(errors.Busy, match="storage node 7 is just being given its secret"):
        world.run(AddNode(1, "host-7:1"))
    with pytest.raises(errors.Busy):
        world.carry(world.registrar.renew_node(StorageNodeID(7)))
    first.close()
    assert not world.registrar.giving
    assert world.run(AddNode(1, "host-7:1")) == 7


def test_an_archive_is_attached_by_the_topic_s_name() -> None:
    world = World(1)
    world.run(add_topic(factor=1))
    assert world.run(AttachArchive(1, "log", "/archive")) == 1
    assert [topic.archive for topic in world.metadata.topics] == ["/archive"]
    version = world.metadata.version
    assert world.run(AttachArchive(1, "log", "/archive")) == 1
    assert world.metadata.version == version
    with pytest.raises(errors.InvalidArgument, match="an absolute path or a URI"):
        world.run(AttachArchive(1, "log", "here"))
    with pytest.raises(errors.UnknownTopic):
        world.run(AttachArchive(1, "nothing", "/archive"))
    world.run(AttachArchive(1, "log", ""))
    assert [topic.archive for topic in world.metadata.topics] == [""]


def test_B11_a_second_node_of_the_same_id_is_refused() -> None:
    world = World(1)

    def elsewhere(to: str, message: Message) -> Answer | None:
        info = world.info(1, message.request)  # type: ignore[attr-defined]
        return msgspec.structs.replace(info, address="other:1", is_identified=False) if to == "at/other:1" else None

    world.faults[GetInfo] = elsewhere
    with pytest.raises(errors.AlreadyExists, match="storage node 1 is registered already, at host-1:1"):
        world.run(AddNode(1, "other:1"))
    world.silent.add(1)
    world.faults[AdoptIdentity] = lambda _to, message: IdentityAdopted(message.request, 0)  # type: ignore[attr-defined]
    assert world.run(AddNode(1, "other:1")) == 1, "the first is gone, and had nothing: this one takes its place"
    assert world.asked(AdoptIdentity) == ["at/other:1"]


def test_M1_a_node_that_is_silent_or_refused_is_not_registered() -> None:
    world = World(0)
    world.add(7)
    world.silent.add(7)
    with pytest.raises(errors.Unreachable):
        world.run(AddNode(1, "host-7:1"))
    world.silent.clear()
    world.faults[GetInfo] = lambda _to, _message: errors.WrongCluster("the server is of cluster 2")
    with pytest.raises(errors.WrongCluster):
        world.run(AddNode(1, "host-7:1"))
    assert not world.metadata.nodes


def test_M1_an_answer_that_is_none_is_not_taken_for_one() -> None:
    world = World(0)
    world.add(7)
    world.faults[GetInfo] = lambda _to, _message: GetMetadata(1)
    with pytest.raises(errors.ProtocolError, match="GetMetadata"):
        world.run(AddNode(1, "host-7:1"))


def test_M1_a_node_with_replicas_stays() -> None:
    world = World()
    world.run(add_topic())
    with pytest.raises(errors.Conflict, match="has replicas of log streams"):
        world.run(RemoveNode(1, StorageNodeID(2)))
    world.run(RemoveTopic(1, "log"))
    assert world.run(RemoveNode(1, StorageNodeID(2))) == 2
    assert [node.snid for node in world.metadata.nodes] == [1, 3]
    with pytest.raises(errors.UnknownNode):
        world.run(RemoveNode(1, StorageNodeID(2)))


# Log streams


def test_M2_a_log_stream_is_made_on_its_nodes_and_then_registered() -> None:
    world = World()
    tpid = world.run(add_topic())
    assert world.log[-5:] == [
        (METADATA_REPOSITORY, CreateStream),
        *((f"sn/{snid}", AddLogStream) for snid in (1, 2, 3)),
        (METADATA_REPOSITORY, RegisterStream),
    ]
    (stream,) = world.metadata.streams
    assert (stream.tpid, stream.status, stream.replicas) == (tpid, StreamStatus.SEALED, (1, 2, 3))
    assert stream.volumes == ("/v0",) * 3
    assert world.held == {1: {1: "/v0"}, 2: {1: "/v0"}, 3: {1: "/v0"}}


@pytest.mark.parametrize(("nodes", "factor", "least"), [(1, 1, 1), (2, 2, 2), (3, 3, 2), (5, 3, 2)])
def test_M2_how_many_replicas_there_are_if_nobody_says(nodes: int, factor: int, least: int) -> None:
    world = World(nodes)
    world.run(add_topic())
    (topic,) = world.metadata.topics
    assert (topic.replication_factor, topic.min_replicas) == (factor, least)


def test_M2_a_topic_without_enough_nodes_is_not_made() -> None:
    world = World()
    world.silent.add(3)
    for asked in (add_topic(), AddTopic(1, "log", 3, 1, 2)):
        with pytest.raises(errors.Unreachable, match="storage nodes are needed and 2 of 3"):
            world.run(asked)
    with pytest.raises(errors.Conflict, match="4 replicas need as many storage nodes, and 3 are registered"):
        world.run(add_topic(factor=4))
    with pytest.raises(errors.InvalidArgument, match="1 to 7 replicas, not 8"):
        world.run(add_topic(factor=8))
    assert not world.metadata.topics


@pytest.mark.parametrize("asked", [add_topic(0), add_topic(-1), add_topic(limits.MAX_LOG_STREAMS + 1)])
def test_M2_a_topic_has_a_sensible_number_of_log_streams(asked: AddTopic) -> None:
    world = World()
    with pytest.raises(errors.InvalidArgument, match="log streams"):
        world.run(asked)
    assert not world.metadata.topics


@pytest.mark.parametrize(
    "asked",
    [
        add_topic(factor=2, least=3),
        add_topic(factor=-1),
        add_topic(factor=1, least=-1),
        add_topic(name=""),
        add_topic(name="x" * 256),
    ],
)
def test_M2_what_no_topic_can_be_is_refused_by_the_metadata_repository(asked: AddTopic) -> None:
    world = World()
    with pytest.raises(errors.InvalidArgument):
        world.run(asked)
    assert not world.metadata.topics
    assert not world.asked(AddLogStream)


def test_M2_a_refusal_by_one_node_leaves_nothing_anywhere() -> None:
    world = World()
    world.faults[AddLogStream] = refusing("sn/2", errors.DiskFull)
    with pytest.raises(errors.DiskFull, match="sn/2 says no"):
        world.run(add_topic())
    assert world.statuses() == {}
    assert not world.metadata.topics, "so that it may be asked for again as it was"
    assert world.held == {1: {}, 2: {}, 3: {}}
    order = [kind for _, kind in world.log]
    assert order.index(AbortStream) < order.index(RemoveLogStream), "only what cannot be registered is deleted"
    world.faults.clear()
    world.run(add_topic())


def test_B6_what_was_there_before_is_not_deleted_with_what_could_not_be_made() -> None:
    """After metadata was lost, ids are given again, and what nodes hold by them may be all that is left."""
    world = World()
    for snid in (1, 2):
        world.held[snid][1] = "/old"
        world.with_a_past.add((snid, 1))
    with pytest.raises(errors.AlreadyExists):
        world.run(add_topic())
    assert world.held == {1: {1: "/old"}, 2: {1: "/old"}, 3: {}}


def test_M2_a_node_that_goes_silent_in_the_middle() -> None:
    world = World()
    world.faults[AddLogStream] = lambda to, _: errors.DeadlineExceeded("nothing heard") if to == "sn/3" else None
    with pytest.raises(errors.DeadlineExceeded):
        world.run(add_topic())
    assert world.asked(RemoveLogStream) == ["sn/1", "sn/2", "sn/3"], "it may have done it all the same"


def test_M2_a_topic_that_has_a_log_stream_is_kept_when_a_later_one_fails() -> None:
    world = World()

    def second_fails(_to: str, message: Message) -> Answer | None:
        assert isinstance(message, AddLogStream)
        return reply(message, 0, errors.DiskFull.code) if message.lsid == 2 else None

    world.faults[AddLogStream] = second_fails
    with pytest.raises(errors.Unknown, match=r"with 1 of 3 log streams.* No space is left") as caught:
        world.run(add_topic(streams=3))
    assert isinstance(caught.value.__cause__, errors.DiskFull)
    assert world.statuses() == {1: StreamStatus.SEALED, 2: StreamStatus.ABORTED}
    assert not world.asked(DeleteTopic)
    assert world.run(AddStream(2, "log")) == 3


def test_M2_the_metadata_repositorys_limit_holds_whatever_the_manager_thinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LOG_STREAMS_PER_NODE", 2)
    world = World()
    world.run(add_topic(streams=2))
    with pytest.raises(errors.LimitExceeded, match="2 log streams already"):
        world.run(AddStream(1, "log"))
    assert all(len(held) == 2 for held in world.held.values())


def test_M2_a_registration_whose_answer_was_lost_is_found_to_have_happened() -> None:
    world = World()

    def lost(_to: str, message: Message) -> Answer | None:
        world.decide(message)
        return errors.ConnectionLost("the connection was lost")

    world.faults[RegisterStream] = lost
    world.run(add_topic())
    assert world.statuses() == {1: StreamStatus.SEALED}
    assert all(held == {1: "/v0"} for held in world.held.values())


def test_M2_a_registration_that_was_lost_before_it_was_heard_is_undone() -> None:
    world = World()
    world.faults[RegisterStream] = lambda _to, _message: errors.ConnectionLost("the connection was lost")
    with pytest.raises(errors.ConnectionLost):
        world.run(add_topic())
    assert world.held == {1: {}, 2: {}, 3: {}}


def test_M2_when_the_metadata_repository_is_gone_nothing_is_deleted() -> None:
    world = World()
    world.faults[RegisterStream] = lambda _to, _message: errors.ConnectionLost("the connection was lost")
    world.faults[AbortStream] = lambda _to, _message: errors.Unreachable("not connected")
    with pytest.raises(errors.ConnectionLost):
        world.run(add_topic())
    assert not world.asked(RemoveLogStream), "it may be registered"
    assert all(held == {1: "/v0"} for held in world.held.values())


def test_M3_a_manager_that_dies_in_the_middle_leaves_what_counts_for_nothing() -> None:
    world = World()
    conversation = world.registrar.begin(add_topic())
    answers: list[Answer] | None = None
    while not world.asked(AddLogStream):
        requests = conversation.send(answers)  # type: ignore[arg-type]
        answers = [world.answer(*request) for request in requests]
    conversation.close()
    assert world.statuses() == {1: StreamStatus.CREATING}
    assert not world.asked(AbortStream, RemoveLogStream)
    assert world.run(AddStream(1, "log")) == 2
    assert world.statuses() == {1: StreamStatus.CREATING, 2: StreamStatus.SEALED}
    assert world.run(RemoveStream(1, LogStreamID(1))) == 1
    assert all(held == {2: "/v0"} for held in world.held.values()), "whoever says that it has some of it is told"


def test_M3_a_log_stream_taken_out_while_it_is_being_made_is_undone() -> None:
    world = World()

    def removed_meanwhile(_to: str, message: Message) -> None:
        assert isinstance(message, AddLogStream)
        world.decide(UnregisterStream(1, message.lsid))

    world.faults[AddLogStream] = removed_meanwhile
    with pytest.raises(errors.UnknownLogStream):
        world.run(add_topic())
    assert world.held == {1: {}, 2: {}, 3: {}}


def test_M2_log_streams_go_where_they_are_told_to() -> None:
    world = World(4)
    world.run(add_topic())
    assert world.run(AddStream(1, "log", tuple(map(StorageNodeID, (4, 2, 1))))) == 2
    assert world.metadata.streams[1].replicas == (4, 2, 1)
    for nodes, error in (
        ((1, 2), errors.InvalidArgument),
        ((1, 2, 2), errors.InvalidArgument),
        ((1, 2, 9), errors.UnknownNode),
        ((1, 2, 3, 4), errors.InvalidArgument),
    ):
        with pytest.raises(error):
            world.run(AddStream(1, "log", tuple(map(StorageNodeID, nodes))))
    world.silent.add(3)
    with pytest.raises(errors.Unreachable, match="storage node 3 does not answer"):
        world.run(AddStream(1, "log", tuple(map(StorageNodeID, (1, 2, 3)))))
    with pytest.raises(errors.UnknownTopic):
        world.run(AddStream(1, "nothing"))
    assert len(world.metadata.streams) == 2


# Placement


def test_M2_replicas_go_to_the_nodes_that_have_fewest() -> None:
    world = World(4)
    for _ in range(4):
        world.run(AddStream(1, "log") if world.metadata.topics else add_topic(factor=3))
    assert {len(held) for held in world.held.values()} == {3}


def test_M2_then_to_those_with_most_room() -> None:
    world = World(3)
    world.add(4, 3 * ROOM)
    world.run(AddNode(1, "host-4:1"))
    chosen = place(world.metadata, world.infos(), 1)
    assert [(where.snid, where.volume) for where in chosen] == [(4, "/v0")]


@pytest.mark.parametrize(
    ("free", "held", "volume"),
    [
        ((ROOM, ROOM), {}, "/v0"),
        ((ROOM, 2 * ROOM), {}, "/v1"),
        ((ROOM, ROOM), {1: "/v0"}, "/v1"),
        ((2 * ROOM, ROOM), {1: "/v0"}, "/v1"),
        ((ROOM, MIB), {1: "/v0", 2: "/v0"}, "/v0"),
        ((MIB, 0), {}, "/v0"),
    ],
    ids=["any", "most room", "fewest", "fewest before most room", "one with room before fewest", "the least full"],
)
def test_M2_on_a_node_the_volume_is_chosen(free: tuple[int, ...], held: dict[int, str], volume: str) -> None:
    world = World(0)
    world.add(7, *free)
    world.run(AddNode(1, "host-7:1"))
    world.held[7] = dict(held)
    assert [where.volume for where in place(world.metadata, world.infos(), 1)] == [volume]


def test_M2_a_node_that_is_drained_or_has_no_secret_gets_nothing() -> None:
    world = World(4)
    world.run(DrainNode(1, StorageNodeID(1)))
    del world.given[2]
    world.run(add_topic(factor=2))
    assert world.stream(1).replicas == (3, 4)
    for snid, match in ((1, "is being drained"), (2, "has lost its disks")):
        with pytest.raises(errors.Conflict, match=match):
            world.run(AddStream(1, "log", (StorageNodeID(snid), StorageNodeID(3))))
    with pytest.raises(errors.Unreachable, match="3 storage nodes are needed and 2 of 4"):
        place(world.metadata, world.infos(), 3)
    with pytest.raises(errors.Unreachable, match="1 storage nodes are needed and 0 of 4"):
        place(world.metadata, world.infos(), 1, without=world.stream(1).replicas)


def test_M2_a_node_that_was_not_registered_gets_nothing_though_it_answers() -> None:
    world = World(2)
    world.add(9)
    with pytest.raises(errors.Unreachable, match="3 storage nodes are needed and 2 of 2"):
        place(world.metadata, world.infos(), 3)


# Whatever is sent


def test_what_no_operator_asks_for_is_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match="GetInfo"):
        World(0).registrar.begin(GetInfo(1))


def test_a_name_of_any_length_is_answered_in_a_few_words() -> None:
    world = World()
    with pytest.raises(errors.UnknownTopic) as refused:
        world.run(RemoveTopic(1, "x" * 1_000_000))
    assert len(str(refused.value)) < 500


def test_an_error_that_only_the_node_knows_keeps_its_code() -> None:
    world = World()

    def newer(_to: str, message: Message) -> Answer:
        assert isinstance(message, AddLogStream)
        return reply(message, 1, 9999, "something of a later release")

    world.faults[AddLogStream] = newer
    with pytest.raises(errors.VarlogError, match=r"error 9999.*something of a later release") as refused:
        world.run(add_topic())
    assert refused.value.code == 9999
