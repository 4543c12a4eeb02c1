"""What operators do with nodes and log streams: what is written down, and everything that is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.operators import World, add_topic
from varlog import errors
from varlog.core.address import METADATA_REPOSITORY
from varlog.core.conversing import Answer
from varlog.core.messages import (
    AddNode,
    AddStream,
    CreateStream,
    DeclareLost,
    DrainNode,
    GetInfo,
    HoldLogStream,
    HoldStream,
    LoseStream,
    Message,
    Metadata,
    MoveReplica,
    PlanStream,
    RemoveNode,
    ReplaceNode,
    SealStream,
    SetDraining,
    Sync,
    SyncLogStream,
    SyncReply,
    TrimTopic,
    UnsealStream,
)
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, ReplicaState, StorageNodeID, StreamStatus, TopicID

ONE, TWO = LogStreamID(1), LogStreamID(2)
CHANGES = (SetDraining, PlanStream, HoldStream, SealStream, LoseStream, Sync)


def nodes(*snids: int) -> tuple[StorageNodeID, ...]:
    return tuple(map(StorageNodeID, snids))


A, B, C, D = nodes(1, 2, 3, 4)


def running(count: int = 3, streams: int = 1, factor: int = 0, least: int = 0) -> World:
    """A cluster with a topic whose log streams run."""
    world = World(count)
    world.run(add_topic(streams, factor, least))
    for lsid in range(1, streams + 1):
        world.unseal(lsid)
    world.log.clear()
    return world


def refused(world: World, asked: Message, error: type[errors.VarlogError], match: str) -> None:
    """It is refused, with those words, twice; nothing is changed, and nobody is asked to change anything."""
    before = state(world.metadata)
    for _ in range(2):
        with pytest.raises(error, match=match):
            world.run(asked)
    assert state(world.metadata) == before
    assert not [kind for address, kind in world.log if kind in (SealStream, LoseStream, Sync)]


def state(metadata: Metadata) -> tuple[Any, ...]:
    return metadata.nodes, metadata.topics, metadata.streams


def planned(world: World, lsid: int = 1) -> tuple[int, int]:
    stream = world.stream(lsid)
    return stream.joining, stream.leaving


# Drain


def test_a_drained_node_is_marked_and_the_rest_is_the_managers() -> None:
    world = running(4)
    assert world.run(DrainNode(1, B)) == 2
    assert [node.snid for node in world.metadata.nodes if node.is_draining] == [B]
    version = world.metadata.version
    assert world.run(DrainNode(1, B)) == 2
    assert world.metadata.version == version, "to ask twice changes nothing"
    assert world.run(DrainNode(1, B, undo=True)) == 2
    assert world.run(DrainNode(1, B, undo=True)) == 2
    assert not [node for node in world.metadata.nodes if node.is_draining]


def test_a_drain_that_leaves_enough_needs_no_spare() -> None:
    world = running(3)
    world.run(DrainNode(1, B))
    refused(world, DrainNode(1, C), errors.Conflict, "log stream 1 needs 2 replicas and would be left with 1")


def test_a_drain_below_min_replicas_is_refused() -> None:
    world = running(2)
    refused(
        world, DrainNode(1, B), errors.Conflict, "log stream 1 needs 2 replicas and would be left with 1 .*add a node"
    )
    world.add(3)
    world.run(AddNode(1, "host-3:1"))
    world.run(DrainNode(1, B))


def test_a_drain_counts_only_on_nodes_that_answer() -> None:
    world = running(3)
    world.silent.add(3)
    refused(world, DrainNode(1, B), errors.Conflict, "log stream 1 needs 2 .* with 1 that answer")
    world.silent.clear()
    world.run(DrainNode(1, B))
    world.silent.add(3)
    assert world.run(DrainNode(1, B)) == 2, "it is being drained, whoever answers now"


@pytest.mark.parametrize("asked", [DrainNode(1, StorageNodeID(9)), DrainNode(1, StorageNodeID(9), undo=True)])
def test_a_drain_of_nobody_is_refused(asked: Message) -> None:
    refused(running(), asked, errors.UnknownNode, "storage node 9 is not registered")


# Replace


def test_every_replica_of_a_node_goes_to_the_other() -> None:
    world = running(5, factor=3)
    world.run(AddStream(1, "log", nodes(2, 3, 4)))
    world.run(AddStream(1, "log", nodes(1, 3, 4)))
    world.run(ReplaceNode(1, B, StorageNodeID(5)))
    assert [planned(world, lsid) for lsid in (1, 2, 3)] == [(5, B), (5, B), (0, 0)]


def test_a_replaced_node_gets_no_new_replicas() -> None:
    world = running(3)
    world.add(4)
    world.run(AddNode(1, "host-4:1"))
    assert world.run(ReplaceNode(1, B, D)) == 2
    assert planned(world) == (D, B)
    assert [node.snid for node in world.metadata.nodes if node.is_draining] == [B]
    version = world.metadata.version
    assert world.run(ReplaceNode(1, B, D)) == 2
    assert world.metadata.version == version, "to ask twice changes nothing"


def test_a_dead_node_is_replaced_where_a_replica_is_lacking() -> None:
    """By the time somebody replaces a node that has died, the sets go on without it."""
    world = running(4, factor=3)
    assert world.stream(1).replicas == (A, B, C)
    without(world, 1, A, C)
    world.silent.add(2)
    world.run(ReplaceNode(1, B, D))
    assert planned(world) == (D, 0)


def test_a_node_that_is_awaited_is_taken_out_only_when_it_is_drained() -> None:
    world = running(4, factor=3)
    without(world, 1, A, C)
    awaited = "may come back with the replicas that log streams .1. lack; drain it first, or wait"
    refused(world, RemoveNode(1, B), errors.Conflict, awaited)
    world.silent.add(2)
    refused(world, RemoveNode(1, B), errors.Conflict, awaited)
    world.run(DrainNode(1, B))
    assert world.run(RemoveNode(1, B)) == B


def test_a_node_that_nobody_waits_for_may_go() -> None:
    world = running(4, factor=3)
    without(world, 1, A, C)
    assert world.run(RemoveNode(1, D)) == D, "it has nothing"
    world = running(4, factor=3)
    without(world, 1, A, C, D)
    world.silent.add(2)
    assert world.run(RemoveNode(1, B)) == B, "another one has its place"


def test_a_node_that_has_no_replica_leaves_what_lacks_one_alone() -> None:
    world = running(5, factor=3)
    without(world, 1, A, C)
    world.run(ReplaceNode(1, StorageNodeID(5), D))
    assert planned(world) == (0, 0), "what is lacking was on another node"


def without(world: World, lsid: int, *staying: StorageNodeID) -> None:
    """Let a log stream go on with a smaller set."""
    world.decide(SealStream(1, LogStreamID(lsid), world.stream(lsid).epoch))
    stream = world.stream(lsid)
    world.decide(UnsealStream(1, stream.lsid, stream.epoch, staying, staying[0]))


def test_a_replacement_that_cannot_be_is_refused_as_a_whole() -> None:
    world = running(4, streams=1, factor=3)
    world.run(AddStream(1, "log", nodes(2, 3, 4)))
    refused(world, ReplaceNode(1, B, D), errors.Conflict, "log stream 2 has replicas on storage nodes 2 and 4 both")
    refused(world, ReplaceNode(1, B, B), errors.InvalidArgument, "its own place")
    refused(world, ReplaceNode(1, StorageNodeID(9), D), errors.UnknownNode, "9 is not registered")
    refused(world, ReplaceNode(1, B, StorageNodeID(9)), errors.UnknownNode, "9 is not registered")


def test_a_replacement_by_a_node_that_takes_nothing_is_refused() -> None:
    world = running(4, factor=3)
    world.silent.add(4)
    refused(world, ReplaceNode(1, B, D), errors.Unreachable, "storage node 4 does not answer")
    world.silent.clear()
    secret = world.given.pop(4)
    refused(world, ReplaceNode(1, B, D), errors.Conflict, "storage node 4 has lost its disks")
    world.given[4] = secret
    world.run(DrainNode(1, D))
    refused(world, ReplaceNode(1, B, D), errors.Conflict, "storage node 4 is being drained")


def test_two_operators_who_want_different_things_of_a_log_stream() -> None:
    world = running(5, factor=3)
    world.run(MoveReplica(1, ONE, StorageNodeID(5), A))
    refused(world, ReplaceNode(1, B, D), errors.Conflict, "changed already .joining: 5, leaving: 1.")
    refused(world, MoveReplica(1, ONE, D, B), errors.Conflict, "log stream 1 is being changed already")
    world.run(MoveReplica(1, ONE, StorageNodeID(0), StorageNodeID(0)))
    assert planned(world) == (0, 0)
    world.run(ReplaceNode(1, B, D))
    assert planned(world) == (D, B)


def test_the_second_of_two_operators_at_the_same_moment_is_told() -> None:
    """Both have looked before either has decided; the metadata repository decides, in an order."""
    world = running(5, factor=3)
    first, second = (world.registrar.begin(MoveReplica(1, ONE, snid, B)) for snid in nodes(4, 5))
    answers = [[world.answer(*request) for request in next(conversation)] for conversation in (first, second)]
    deciding = [conversation.send(told) for conversation, told in zip((first, second), answers, strict=True)]
    decided = [[world.answer(*request) for request in requests] for requests in deciding]
    with pytest.raises(StopIteration):
        first.send(decided[0])
    with pytest.raises(errors.Conflict, match="storage node 4 is to join"):
        second.send(decided[1])
    assert planned(world) == (D, B)


# Move


@pytest.mark.parametrize(("joining", "leaving"), [(4, 2), (4, 1)])
def test_a_replica_is_moved(joining: int, leaving: int) -> None:
    world = running(4, factor=3)
    asked = MoveReplica(1, ONE, *nodes(joining, leaving))
    assert world.run(asked) == 1
    assert world.run(asked) == 1
    assert planned(world) == (joining, leaving)


def test_what_is_as_asked_for_needs_no_plan() -> None:
    world = running(4, factor=3)
    assert world.run(MoveReplica(1, ONE, B, D)) == 1
    assert planned(world) == (0, 0)


def test_a_replica_more_and_one_less() -> None:
    world = running(4, factor=3)
    world.run(MoveReplica(1, ONE, StorageNodeID(0), B))
    assert planned(world) == (0, B)
    without(world, 1, A, C)
    world.run(MoveReplica(1, ONE, D, StorageNodeID(0)))
    assert planned(world) == (D, 0)


@pytest.mark.parametrize(
    ("joining", "leaving", "error", "match"),
    [
        (9, 2, errors.UnknownNode, "storage node 9 is not registered"),
        (4, 9, errors.UnknownNode, "storage node 9 is not registered"),
        (3, 2, errors.Conflict, "storage node 3 has a replica of log stream 1 already"),
        (4, 0, errors.Conflict, "as its topic wants"),
        (2, 2, errors.Conflict, "storage node 2 has a replica"),
        (4, 4, errors.Conflict, "storage node 4 has no replica"),
    ],
)
def test_a_move_that_makes_no_sense_is_refused(
    joining: int, leaving: int, error: type[errors.VarlogError], match: str
) -> None:
    refused(running(4, factor=3), MoveReplica(1, ONE, *nodes(joining, leaving)), error, match)


def test_a_move_below_min_replicas_is_refused() -> None:
    world = running(2)
    refused(world, MoveReplica(1, ONE, StorageNodeID(0), B), errors.Conflict, "has 2 replicas and needs 2")


def test_a_move_to_a_node_that_takes_nothing_is_refused() -> None:
    world = running(4, factor=3)
    world.silent.add(4)
    refused(world, MoveReplica(1, ONE, D, B), errors.Unreachable, "storage node 4 does not answer")


def test_a_log_stream_that_is_kept_sealed_does_not_move() -> None:
    world = running(4, factor=3)
    world.run(HoldLogStream(1, ONE, seal=True))
    world.log.clear()
    refused(world, MoveReplica(1, ONE, D, B), errors.Conflict, "kept sealed by an operator; unseal it first")
    refused(world, ReplaceNode(1, B, D), errors.Conflict, "kept sealed by an operator; unseal it first")


# Seal and unseal


def test_M5_a_sealed_log_stream_is_held_first_so_that_it_stays_so() -> None:
    world = running()
    assert world.run(HoldLogStream(1, ONE, seal=True)) == 1
    assert world.asked(HoldStream, SealStream) == [METADATA_REPOSITORY] * 2
    assert [kind for _, kind in world.log].index(HoldStream) < [kind for _, kind in world.log].index(SealStream)
    stream = world.stream(1)
    assert (stream.status, stream.is_held, stream.epoch) == (StreamStatus.SEALED, True, 3)
    version = world.metadata.version
    assert world.run(HoldLogStream(1, ONE, seal=True)) == 1
    assert world.metadata.version == version, "to ask twice changes nothing"


def test_M5_a_seal_does_not_mind_that_the_log_stream_was_sealed_and_unsealed_meanwhile() -> None:
    world = running()

    def meanwhile(_to: str, _message: Message) -> None:
        if world.stream(1).epoch == 2:
            world.decide(HoldStream(1, ONE, False))
            without(world, 1, A, B, C)
            world.decide(HoldStream(1, ONE, True))

    world.faults[SealStream] = meanwhile
    world.run(HoldLogStream(1, ONE, seal=True))
    assert (world.stream(1).status, world.stream(1).epoch) == (StreamStatus.SEALED, 5)


def test_M5_a_seal_that_is_never_granted_is_given_up() -> None:
    world = running()
    decided = world.decide(SealStream(1, ONE, Epoch(9)))
    world.faults[SealStream] = lambda _to, _message: decided
    with pytest.raises(errors.Conflict, match="log stream 1 is in epoch 2"):
        world.run(HoldLogStream(1, ONE, seal=True))


def test_M10_an_unsealed_log_stream_is_the_managers_again() -> None:
    world = running()
    world.run(HoldLogStream(1, ONE, seal=True))
    assert world.run(HoldLogStream(1, ONE, seal=False)) == 1
    assert (world.stream(1).status, world.stream(1).is_held) == (StreamStatus.SEALED, False)
    world.log.clear()
    refused(world, HoldLogStream(1, ONE, seal=False), errors.Conflict, "is SEALED, and the manager lets it run again")
    world.unseal(1)
    refused(world, HoldLogStream(1, ONE, seal=False), errors.Conflict, "not sealed by an operator: it is RUNNING$")


def test_M5_what_is_not_registered_is_not_sealed() -> None:
    world = running()
    for seal in (True, False):
        refused(world, HoldLogStream(1, LogStreamID(9), seal=seal), errors.UnknownLogStream, "no log stream 9")
    world.decide(CreateStream(1, TopicID(1)))
    for asked in (
        HoldLogStream(1, TWO, seal=True),
        HoldLogStream(1, TWO, seal=False),
        MoveReplica(1, TWO, A, B),
        SyncLogStream(1, TWO, A),
        DeclareLost(1, TWO),
    ):
        refused(world, asked, errors.Conflict, "log stream 2 is not registered: it is CREATING")


# Sync


def show(world: World, snid: int, state: ReplicaState, epoch: int, **fields: Any) -> None:
    world.held[snid].setdefault(1, "/v0")
    world.shown[snid, 1] = {"state": state, "epoch": Epoch(epoch), **fields}


def sealed(world: World) -> None:
    """Log stream 1 is sealed, node 2 lacks something."""
    world.decide(SealStream(1, ONE, Epoch(2)))
    for snid in (1, 3):
        show(world, snid, ReplicaState.SEALED, 3)
    show(world, 2, ReplicaState.SEALING, 3, needs_sync=True)


def test_M9_a_replica_of_a_sealed_log_stream_copies_from_a_sealed_one() -> None:
    world = running()
    sealed(world)
    asked: list[Sync] = []
    world.faults[Sync] = lambda _to, message: asked.append(message)  # type: ignore[arg-type]
    assert world.run(SyncLogStream(1, ONE, B)) == 25
    assert world.run(SyncLogStream(1, ONE, B, A)) == 25
    assert [(sync.source, sync.epoch, sync.learner) for sync in asked] == [(C, 3, False), (A, 3, False)]
    assert world.asked(Sync) == ["sn/2", "sn/2"]


def test_M9_a_learner_copies_from_a_backup_that_runs() -> None:
    world = running(4, factor=3)
    for snid in (1, 2, 3):
        show(world, snid, ReplicaState.RUNNING, 2)
    show(world, 4, ReplicaState.SEALING, 0)
    asked: list[Sync] = []
    world.faults[Sync] = lambda _to, message: asked.append(message)  # type: ignore[arg-type]
    world.run(SyncLogStream(1, ONE, D))
    assert [(sync.source, sync.learner) for sync in asked] == [(B, True)], "the primary has enough to do"


def test_M9_a_replica_that_copies_goes_on_with_its_source() -> None:
    world = running()
    sealed(world)
    world.shown[2, 1]["source"] = A
    asked: list[Sync] = []
    world.faults[Sync] = lambda _to, message: asked.append(message)  # type: ignore[arg-type]
    world.run(SyncLogStream(1, ONE, B))
    assert [sync.source for sync in asked] == [A]


@pytest.mark.parametrize(
    ("copied", "source", "complete", "percent"),
    [(0, 0, False, 0), (1, 1, False, 0), (101, 101, False, 99), (51, 101, False, 50), (1, 1, True, 100)],
)
def test_M9_how_far_a_copy_is(copied: int, source: int, complete: bool, percent: int) -> None:
    world = running()
    sealed(world)

    def reply(_to: str, message: Message) -> Answer:
        assert isinstance(message, Sync)
        return SyncReply(message.request, ONE, 0, B, complete, C, LLSN(copied), LLSN(source))

    world.faults[Sync] = reply
    assert world.run(SyncLogStream(1, ONE, B)) == percent


def test_M9_who_lacks_nothing_is_done() -> None:
    world = running()
    sealed(world)
    assert world.run(SyncLogStream(1, ONE, A)) == 100
    assert not world.asked(Sync)


def test_M9_a_copy_that_cannot_be_is_refused() -> None:
    world = running(4, factor=3)
    sealed(world)
    refused(world, SyncLogStream(1, ONE, B, B), errors.InvalidArgument, "storage node 2 cannot copy from itself")
    refused(world, SyncLogStream(1, ONE, StorageNodeID(9)), errors.UnknownNode, "9 is not registered")
    refused(world, SyncLogStream(1, ONE, B, StorageNodeID(9)), errors.UnknownNode, "9 is not registered")
    refused(world, SyncLogStream(1, LogStreamID(9), B), errors.UnknownLogStream, "no log stream 9")
    refused(world, SyncLogStream(1, ONE, D), errors.NoSuchReplica, "storage node 4 has no replica .* move one there")
    world.shown[2, 1]["healthy"] = False
    refused(world, SyncLogStream(1, ONE, B), errors.Conflict, "is damaged, and is never mended in place")
    world.silent.add(2)
    refused(world, SyncLogStream(1, ONE, B), errors.Unreachable, "storage node 2 does not answer")


def test_M9_without_a_complete_replica_there_is_no_source() -> None:
    world = running()
    sealed(world)
    for snid in (1, 3):
        world.shown[snid, 1]["state"] = ReplicaState.SEALING
    refused(world, SyncLogStream(1, ONE, B), errors.NoSource, "no replica of log stream 1 is sealed and complete")


def test_M9_what_the_target_says_is_told() -> None:
    world = running()
    sealed(world)

    def reply(_to: str, message: Message) -> Answer:
        assert isinstance(message, Sync)
        return SyncReply(message.request, ONE, errors.AlreadySync.code, B, False, A, detail="it copies from node 1")

    world.faults[Sync] = reply
    with pytest.raises(errors.AlreadySync, match="it copies from node 1"):
        world.run(SyncLogStream(1, ONE, B, C))


# Lost


def broken(world: World) -> None:
    """100 entries in a log stream of two replicas, sealed. Node 1 has 60 of them, node 2 has 40, node 3 nothing."""
    world.commit(1, 101)
    world.decide(SealStream(1, ONE, Epoch(2)))
    assert world.stream(1).last_glsn == 100
    for snid, end in ((1, 61), (2, 41)):
        fields = {"committed_end": LLSN(end), "durable_end": LLSN(end), "local_hwm": GLSN(end - 1), "needs_sync": True}
        show(world, snid, ReplicaState.SEALING, 3, **fields)


def lossy() -> World:
    world = running(3, factor=2, least=2)
    assert world.stream(1).replicas == (A, B)
    broken(world)
    world.log.clear()
    return world


def test_a_range_is_lost_from_where_the_best_replica_ends() -> None:
    world = lossy()
    assert world.run(DeclareLost(1, ONE, only_look=True)) == 61
    assert not world.asked(LoseStream)
    assert world.run(DeclareLost(1, ONE)) == 61
    stream = world.stream(1)
    assert (stream.lost_begin, stream.lost_end, stream.is_held, stream.replicas) == (61, 101, True, (A,))
    version = world.metadata.version
    assert world.run(DeclareLost(1, ONE)) == 61
    assert world.metadata.version == version, "to ask twice changes nothing"
    world.log.clear()
    refused(world, HoldLogStream(1, ONE, seal=False), errors.Conflict, "has lost GLSN 61 to 100 and stays sealed")
    refused(world, MoveReplica(1, ONE, C, A), errors.Conflict, "has lost GLSN 61 to 100")


def test_what_is_lost_can_become_more() -> None:
    world = lossy()
    world.run(DeclareLost(1, ONE))
    world.silent.add(1)
    assert world.run(DeclareLost(1, ONE, gone=(A,))) == 41
    assert (world.stream(1).lost_begin, world.stream(1).replicas) == (41, (B,))


def test_a_node_that_was_taken_out_long_ago_may_have_the_most() -> None:
    world = lossy()
    fields = {"committed_end": LLSN(91), "durable_end": LLSN(91), "local_hwm": GLSN(90)}
    show(world, 3, ReplicaState.SEALING, 1, **fields)
    assert world.run(DeclareLost(1, ONE)) == 91
    assert world.stream(1).replicas == (C,)


def test_if_nobody_has_anything_all_is_lost_that_was_not_trimmed() -> None:
    world = lossy()
    world.decide(TrimTopic(1, TopicID(1), GLSN(20)))
    for snid in (1, 2):
        del world.held[snid][1]
    assert world.run(DeclareLost(1, ONE)) == 21
    assert (world.stream(1).lost_begin, world.stream(1).replicas) == (21, ())


def test_a_node_that_does_not_answer_must_be_named_as_gone() -> None:
    world = lossy()
    world.silent.add(1)
    refused(world, DeclareLost(1, ONE), errors.Conflict, "storage node 1 does not answer, and may have what is missing")
    refused(world, DeclareLost(1, ONE, gone=(A, B)), errors.Conflict, "storage node 2 is not gone: it answers")
    refused(world, DeclareLost(1, ONE, gone=(A, StorageNodeID(9))), errors.UnknownNode, "9 is not registered")
    assert world.run(DeclareLost(1, ONE, gone=(A,))) == 41
    assert world.asked(GetInfo)[-3:] == ["sn/1", "sn/2", "sn/3"], "all of them are asked, whoever is named"


def test_nothing_is_lost_while_somebody_has_it() -> None:
    world = lossy()
    world.shown[2, 1] |= {"committed_end": LLSN(101), "durable_end": LLSN(101), "local_hwm": GLSN(100)}
    refused(world, DeclareLost(1, ONE), errors.Conflict, "nothing is lost: .* on storage node 2 has everything")


def test_nothing_is_lost_while_somebody_may_find_that_it_has_it() -> None:
    world = lossy()
    world.shown[2, 1] |= {"durable_end": LLSN(101), "needs_sync": False}
    refused(
        world, DeclareLost(1, ONE), errors.Conflict, "storage node 2 has everything on disk and is about to find out"
    )


@pytest.mark.parametrize("fault", [errors.Poisoned, errors.DiskFull, errors.NotWritable])
def test_M8_a_replica_that_stopped_is_restarted_before_anything_is_lost(fault: type[errors.VarlogError]) -> None:
    world = lossy()
    world.shown[2, 1] |= {"healthy": False, "fault": fault.code}
    refused(
        world, DeclareLost(1, ONE), errors.Conflict, f"on storage node 2 .* has stopped .{fault.__name__}.; restart"
    )


def test_a_corrupt_replica_is_not_counted_on() -> None:
    world = lossy()
    world.shown[1, 1] |= {"healthy": False, "fault": errors.Corrupt.code}
    assert world.run(DeclareLost(1, ONE)) == 41


def test_what_runs_has_lost_nothing() -> None:
    world = running(3, factor=2)
    refused(world, DeclareLost(1, ONE), errors.Conflict, "log stream 1 is RUNNING; seal it first")
    refused(world, DeclareLost(1, LogStreamID(9)), errors.UnknownLogStream, "no log stream 9")


def test_what_holds_nothing_has_lost_nothing() -> None:
    world = lossy()
    world.decide(TrimTopic(1, TopicID(1), GLSN(100)))
    refused(world, DeclareLost(1, ONE), errors.Conflict, "holds no entry that a reader could ask for")


# Whatever is sent


def test_what_no_operator_asks_for_is_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match="GetInfo"):
        running().registrar.begin(GetInfo(1))
