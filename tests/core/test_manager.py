"""The manager's decisions: from every state of the world the next step, each with a sentence, each harmless twice.
What becomes of a cluster that follows them is told in `test_manager_failures` and `test_manager_repair`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import msgspec
import pytest

from tests.core.sketch import metadata, stream
from tests.core.steprules import check_steps
from varlog.core.manager import Step, reconcile
from varlog.core.messages import (
    AddLogStream,
    Info,
    Metadata,
    ReopenLogStream,
    ReplicaInfo,
    RunStream,
    Seal,
    SealStream,
    StreamInfo,
    Sync,
    Unseal,
    UnsealStream,
)
from varlog.core.world import Memory, NodeView, World
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, ReplicaState, StorageNodeID, StreamStatus

SEALING, SEALED, RUNNING = ReplicaState.SEALING, ReplicaState.SEALED, ReplicaState.RUNNING
LSID = LogStreamID(1)
SET = tuple(map(StorageNodeID, (1, 2, 3)))
PRIMARY = StorageNodeID(2)
TRIM = GLSN(3)

Seen = tuple[ReplicaState, int]
"""A replica as its node tells of it: state and epoch."""


def ls(status: StreamStatus, epoch: int, *, is_held: bool = False) -> StreamInfo:
    info = stream(LSID, status, epoch=epoch, primary=PRIMARY, llsn_end=10, last_glsn=9)
    return msgspec.structs.replace(info, is_held=is_held)


def cluster(*streams: StreamInfo) -> Metadata:
    """Topics of three replicas that need two."""
    sketched = metadata(1, *streams, hwm=9, trim=TRIM)
    topics = [msgspec.structs.replace(topic, replication_factor=3, min_replicas=2) for topic in sketched.topics]
    return msgspec.structs.replace(sketched, topics=tuple(topics))


def told(seen: Mapping[int, Seen | None], *, unhealthy: int = 0, lags: int = 0) -> dict[StorageNodeID, Info]:
    """What the nodes answer; None is a node that has no such replica. One of them may have failed, one may need a
    copy."""
    infos = {}
    for snid, replica in seen.items():
        replicas: tuple[ReplicaInfo, ...] = ()
        if replica is not None:
            state, epoch = replica
            end = LLSN(4 if snid == lags else 10)
            info = ReplicaInfo(
                LSID, Epoch(epoch), state, end, end, snid != unhealthy, needs_sync=snid == lags, volume=f"/{snid}"
            )
            replicas = (ReplicaInfo(LogStreamID(8), Epoch(1), SEALING, LLSN(1), LLSN(1), True), info)
        infos[StorageNodeID(snid)] = Info(1, StorageNodeID(snid), 1, replicas)
    return infos


def steps(
    info: StreamInfo,
    seen: Mapping[int, Seen | None],
    *,
    unhealthy: int = 0,
    lags: int = 0,
    unheard: int = 0,
    seconds: float = 0.0,
) -> list[Step]:
    """What follows from a world that has been as it is for so many seconds. A node that is not in `seen` is dead, or
    only not heard of yet."""
    infos = told(seen, unhealthy=unhealthy, lags=lags)
    views = [
        NodeView(snid, infos.get(snid), snid in infos, 0.0 if snid in infos or snid == unheard else 3.2) for snid in SET
    ]
    memory = Memory()
    memory.observe(World(0.0, cluster(info), views))
    world = World(seconds, cluster(info), views)
    memory.observe(world)
    requests = count(1)
    found = reconcile(world, memory, lambda: next(requests), lambda _: PRIMARY)
    check_steps(world, found)
    again = reconcile(world, memory, lambda: 0, lambda _: PRIMARY)
    assert [step.key for step in again] == [step.key for step in found]
    assert all(step.subject == f"log stream {LSID}" for step in found)
    return found


def asked(found: list[Step]) -> list[tuple[str, object]]:
    """Whom is asked for what, without the request numbers."""
    return [(step.address, step.message.__class__) for step in found]


def alike(state: ReplicaState, epoch: int) -> Mapping[int, Seen | None]:
    return {int(snid): (state, epoch) for snid in SET}


# A running log stream


def test_a_log_stream_that_runs_on_all_its_replicas_needs_nothing() -> None:
    assert steps(ls(StreamStatus.RUNNING, 4), alike(RUNNING, 4)) == []


def test_B7_a_running_log_stream_with_a_restarted_replica_is_sealed() -> None:
    (step,) = steps(ls(StreamStatus.RUNNING, 4), {**alike(RUNNING, 4), 2: (SEALING, 4)})
    assert step.address == "mr"
    assert step.message == SealStream(1, LSID, Epoch(4))
    assert step.sentence == "log stream 1: sealing at GLSN 9 because node 2 is SEALING"


def test_M6_a_running_log_stream_with_a_dead_replica_is_sealed() -> None:
    (step,) = steps(ls(StreamStatus.RUNNING, 4), {1: (RUNNING, 4), 3: (RUNNING, 4)})
    assert step.message == SealStream(1, LSID, Epoch(4))
    assert step.sentence == "log stream 1: sealing at GLSN 9 because node 2 has not answered for 3.2 s"


def test_M8_a_running_log_stream_with_a_failed_replica_is_sealed() -> None:
    (step,) = steps(ls(StreamStatus.RUNNING, 4), alike(RUNNING, 4), unhealthy=3)
    assert step.message == SealStream(1, LSID, Epoch(4))
    assert step.sentence.endswith("because the replica on node 3 has failed")


def test_a_running_log_stream_with_a_replica_of_an_older_epoch_is_sealed() -> None:
    (step,) = steps(ls(StreamStatus.RUNNING, 4), {**alike(RUNNING, 4), 1: (SEALED, 3)})
    assert step.message == SealStream(1, LSID, Epoch(4))
    assert step.sentence.endswith("because node 1 is SEALED in epoch 3")


def test_a_running_log_stream_of_which_a_replica_has_not_answered_yet_is_left_alone() -> None:
    assert steps(ls(StreamStatus.RUNNING, 4), {1: (RUNNING, 4), 3: (RUNNING, 4)}, unheard=2) == []


def test_it_is_not_sealed_for_a_backup_if_too_few_could_go_on() -> None:
    """It may be read, and appends wait for the backup; to seal it would make neither better."""
    (step,) = steps(ls(StreamStatus.RUNNING, 4), {2: (RUNNING, 4)})
    assert step.message is None
    assert step.sentence == (
        "log stream 1: runs on as it is though node 1 has not answered for 3.2 s; node 3 has not answered for 3.2 s; "
        "it needs 2 replicas, node 2 can go on"
    )


def test_M7_it_is_sealed_in_any_case_if_its_primary_takes_no_appends() -> None:
    """Who waits for an append learns what became of it then."""
    (step,) = steps(ls(StreamStatus.RUNNING, 4), {2: (SEALING, 4)})
    assert step.message == SealStream(1, LSID, Epoch(4))
    assert steps(ls(StreamStatus.RUNNING, 4), {1: (RUNNING, 4)})[0].message is None, "it may be cut off from us alone"
    (step,) = steps(ls(StreamStatus.RUNNING, 4), {1: (RUNNING, 4)}, seconds=1.5)
    assert step.message == SealStream(1, LSID, Epoch(4)), "nothing was committed either"


def test_a_log_stream_that_an_operator_holds_is_sealed() -> None:
    for status in (StreamStatus.RUNNING, StreamStatus.UNSEALING):
        (step,) = steps(ls(status, 4, is_held=True), alike(RUNNING, 4))
        assert step.message == SealStream(1, LSID, Epoch(4))
        assert step.sentence.endswith("because an operator holds it")


def test_nothing_is_decided_on_metadata_older_than_a_replica() -> None:
    later = {1: (RUNNING, 6), 2: (SEALING, 6), 3: (RUNNING, 6)}
    assert steps(ls(StreamStatus.RUNNING, 4), later) == []
    assert steps(ls(StreamStatus.UNSEALING, 4), later) == []
    assert steps(ls(StreamStatus.SEALED, 3), later) == []


@pytest.mark.parametrize("status", [StreamStatus.RUNNING, StreamStatus.UNSEALING, StreamStatus.SEALED])
def test_rule5_metadata_that_stays_older_than_a_replica_is_waited_for_and_told(status: StreamStatus) -> None:
    epoch = 3 if status is StreamStatus.SEALED else 4
    (step,) = steps(ls(status, epoch), {1: (SEALING, 6), 2: (SEALING, epoch), 3: (SEALING, 5)}, seconds=1.0)
    assert step.message is None
    assert step.sentence == (
        f"log stream 1: nodes 1, 3 have seen epoch 6 of it, and the metadata is at epoch {epoch}: it was restored from "
        "an older state; nothing is done until it is rebuilt"
    )


# A sealed one


def test_M5_every_replica_of_a_sealed_log_stream_is_told_the_seal_point() -> None:
    found = steps(ls(StreamStatus.SEALED, 5), {1: (RUNNING, 4), 2: (SEALING, 4), 3: (SEALING, 5)})
    assert [step.address for step in found] == ["sn/1", "sn/2", "sn/3"]
    assert [step.message for step in found] == [Seal(n, LSID, Epoch(5), LLSN(10), TRIM) for n in (1, 2, 3)]
    assert found[0].sentence == "log stream 1: node 1 is to seal at LLSN 10"


def test_M5_a_new_log_stream_is_sealed_first() -> None:
    found = steps(stream(LSID, StreamStatus.SEALED, epoch=1), alike(SEALING, 0))
    assert [step.message for step in found] == [Seal(n, LSID, Epoch(1), LLSN(1), TRIM) for n in (1, 2, 3)]


def test_M10_a_log_stream_is_unsealed_when_all_its_replicas_are_complete() -> None:
    (step,) = steps(ls(StreamStatus.SEALED, 5), alike(SEALED, 5))
    assert step.address == "mr"
    assert step.message == UnsealStream(1, LSID, Epoch(5), SET, PRIMARY, ("/1", "/2", "/3"))
    assert step.sentence == "log stream 1: sealed at GLSN 9; going on with nodes 1, 2, 3"


@pytest.mark.parametrize("behind", [(SEALING, 5), (SEALED, 3), (RUNNING, 4)])
def test_M10_one_that_is_behind_is_waited_for_but_not_long(behind: Seen) -> None:
    seen = {1: (SEALED, 5), 2: (SEALED, 5), 3: behind}
    (step,) = steps(ls(StreamStatus.SEALED, 5), seen, seconds=0.4)
    assert isinstance(step.message, Seal)
    *_, step = steps(ls(StreamStatus.SEALED, 5), seen, seconds=0.6)
    assert step.message == UnsealStream(2, LSID, Epoch(5), SET[:2], PRIMARY, ("/1", "/2"))
    assert f"because node 3 is {behind[0].name} at LLSN 10 of 10; going on with nodes 1, 2" in step.sentence


def test_M10_one_that_has_not_answered_yet_is_waited_for_but_not_long() -> None:
    seen = {1: (SEALED, 5), 2: (SEALED, 5)}
    assert steps(ls(StreamStatus.SEALED, 5), seen, unheard=3, seconds=0.4) == []
    (step,) = steps(ls(StreamStatus.SEALED, 5), seen, unheard=3, seconds=0.6)
    assert "because node 3 has not answered yet; going on with nodes 1, 2" in step.sentence


@pytest.mark.parametrize(
    ("seen", "unhealthy", "why"),
    [
        ({1: (SEALED, 5), 2: (SEALED, 5)}, 0, "node 3 has not answered for 3.2 s"),
        ({1: (SEALED, 5), 2: (SEALED, 5), 3: None}, 0, "node 3 has no replica of it"),
        ({1: (SEALED, 5), 2: (SEALED, 5), 3: (SEALED, 5)}, 3, "the replica on node 3 has failed"),
    ],
)
def test_one_that_cannot_become_ready_is_not_waited_for(seen: Mapping[int, Seen], unhealthy: int, why: str) -> None:
    (step,) = steps(ls(StreamStatus.SEALED, 5), seen, unhealthy=unhealthy)
    assert step.message == UnsealStream(1, LSID, Epoch(5), SET[:2], PRIMARY, ("/1", "/2"))
    assert step.sentence == f"log stream 1: sealed at GLSN 9 because {why}; going on with nodes 1, 2"


def test_below_min_replicas_it_stays_sealed_and_says_why() -> None:
    (step,) = steps(ls(StreamStatus.SEALED, 5), {1: (SEALED, 5)}, seconds=2.0)
    assert step.message is None
    assert step.sentence == (
        "log stream 1: stays sealed at GLSN 9: it needs 2 replicas and has node 1; node 2 has not answered for 3.2 s; "
        "node 3 has not answered for 3.2 s"
    )


def test_M8_replicas_that_failed_to_write_are_opened_anew_if_too_few_are_left() -> None:
    stays, reopen = steps(ls(StreamStatus.SEALED, 5), {1: (SEALED, 5), 2: (SEALED, 5)}, unhealthy=2)
    assert stays.message is None
    assert (reopen.address, reopen.message) == ("sn/2", ReopenLogStream(1, LSID))
    assert reopen.sentence == "log stream 1: the replica on node 2 has failed; it is opened anew"


def test_M9_a_replica_that_cuts_cannot_complete_copies_from_a_sealed_one() -> None:
    seal, sync, unseal = steps(
        ls(StreamStatus.SEALED, 5), {1: (SEALED, 5), 2: (SEALED, 5), 3: (SEALING, 5)}, lags=3, seconds=0.6
    )
    assert seal.message == Seal(1, LSID, Epoch(5), LLSN(10), TRIM)
    assert (sync.address, sync.message) == ("sn/3", Sync(2, LSID, Epoch(5), StorageNodeID(1), learner=False))
    assert sync.sentence == "log stream 1: node 3 copies from node 1, so far to LLSN 4 of 10"
    assert isinstance(unseal.message, UnsealStream)


def test_M9_nobody_copies_from_a_replica_that_is_not_sealed() -> None:
    found = steps(ls(StreamStatus.SEALED, 5), {1: (SEALING, 5), 2: (SEALING, 5), 3: (SEALING, 5)}, lags=3, seconds=9.0)
    assert not any(isinstance(step.message, Sync) for step in found)
    assert found[-1].message is None


def test_a_member_that_has_lost_its_replica_gets_a_new_one_if_too_few_are_left() -> None:
    told, add = steps(ls(StreamStatus.SEALED, 5), {1: (SEALED, 5), 2: None})
    assert told.message is None
    assert (add.address, add.message) == ("sn/2", AddLogStream(1, stream(LSID).tpid, LSID, ""))


def test_one_that_is_held_is_sealed_everywhere_and_not_unsealed() -> None:
    assert steps(ls(StreamStatus.SEALED, 5, is_held=True), alike(SEALED, 5), seconds=9.0) == []
    (step,) = steps(ls(StreamStatus.SEALED, 5, is_held=True), {**alike(SEALED, 5), 1: (RUNNING, 4)})
    assert step.message == Seal(1, LSID, Epoch(5), LLSN(10), TRIM)


# One that is being unsealed


def test_rule3_backups_are_unsealed_before_the_primary() -> None:
    found = steps(ls(StreamStatus.UNSEALING, 6), alike(SEALED, 5))
    assert [step.address for step in found] == ["sn/1", "sn/3"]
    assert [step.message for step in found] == [Unseal(n, LSID, Epoch(6), SET, PRIMARY, TRIM) for n in (1, 2)]
    assert found[0].sentence == "log stream 1: node 1 is to run as backup in epoch 6"
    found = steps(ls(StreamStatus.UNSEALING, 6), {1: (RUNNING, 6), 2: (SEALED, 5), 3: (SEALED, 5)})
    assert [step.address for step in found] == ["sn/3"]
    (step,) = steps(ls(StreamStatus.UNSEALING, 6), {1: (RUNNING, 6), 2: (SEALED, 5), 3: (RUNNING, 6)})
    assert step.address == "sn/2"
    assert step.sentence.endswith("as primary in epoch 6")


def test_M10_the_repository_counts_it_again_when_all_replicas_run() -> None:
    (step,) = steps(ls(StreamStatus.UNSEALING, 6), alike(RUNNING, 6))
    assert step.address == "mr"
    assert step.message == RunStream(1, LSID, Epoch(6))
    assert step.sentence == "log stream 1: nodes 1, 2, 3 run in epoch 6, node 2 as primary"


def test_nobody_is_unsealed_while_a_replica_is_unheard_of() -> None:
    assert steps(ls(StreamStatus.UNSEALING, 6), {1: (SEALED, 5), 2: (SEALED, 5)}, unheard=3) == []
    assert steps(ls(StreamStatus.UNSEALING, 6), {1: (RUNNING, 6), 2: (RUNNING, 6)}, unheard=3) == []


def test_B7_a_replica_that_restarted_before_its_unseal_is_sealed_again_first() -> None:
    """It is SEALING, and complete; the seal of the epoch before is repeated, and makes it SEALED."""
    found = steps(ls(StreamStatus.UNSEALING, 6), {1: (SEALED, 5), 2: (SEALED, 5), 3: (SEALING, 5)})
    assert [(step.address, step.message) for step in found] == [("sn/3", Seal(1, LSID, Epoch(5), LLSN(10), TRIM))]


def test_B7_a_replica_that_restarted_after_its_unseal_makes_the_log_stream_seal_again() -> None:
    (step,) = steps(ls(StreamStatus.UNSEALING, 6), {1: (RUNNING, 6), 2: (SEALED, 5), 3: (SEALING, 6)})
    assert step.message == SealStream(1, LSID, Epoch(6))
    assert step.sentence == "log stream 1: sealing at GLSN 9 again because node 3 fell out of epoch 6"


def test_M8_a_replica_that_fails_while_unsealing_makes_the_log_stream_seal_again() -> None:
    (step,) = steps(ls(StreamStatus.UNSEALING, 6), alike(SEALED, 5), unhealthy=1)
    assert step.message == SealStream(1, LSID, Epoch(6))


def test_a_replica_that_dies_while_unsealing_makes_the_log_stream_seal_again() -> None:
    (step,) = steps(ls(StreamStatus.UNSEALING, 6), {1: (SEALED, 5), 2: (SEALED, 5)})
    assert step.message == SealStream(1, LSID, Epoch(6))
    assert step.sentence.endswith("again because node 3 has not answered for 3.2 s")


@pytest.mark.parametrize("late", [(SEALED, 5), (SEALING, 5)])
def test_a_replica_that_does_not_run_when_it_is_told_to_makes_the_log_stream_seal_again(late: Seen) -> None:
    seen = {1: (RUNNING, 6), 2: (SEALED, 5), 3: late}
    assert steps(ls(StreamStatus.UNSEALING, 6), seen, seconds=0.9)[0].address == "sn/3"
    (step,) = steps(ls(StreamStatus.UNSEALING, 6), seen, seconds=1.1)
    assert step.message == SealStream(1, LSID, Epoch(6))
    assert step.sentence.endswith("again because node 3 did not run in epoch 6 within 1.1 s")


# What is nobody's business


def test_a_log_stream_that_is_being_made_is_left_alone() -> None:
    assert steps(ls(StreamStatus.CREATING, 0), {1: None, 2: None, 3: None}) == []


def test_each_log_stream_is_looked_at_by_itself() -> None:
    """A node of which nothing is known for one log stream says nothing of another."""
    one = ls(StreamStatus.RUNNING, 4)
    other = stream(2, StreamStatus.RUNNING, epoch=2, replicas=(4,))
    infos = told({**alike(RUNNING, 4), 3: (SEALING, 4)})
    views = [NodeView(StorageNodeID(4)), *(NodeView(snid, info, True) for snid, info in infos.items())]
    world = World(0.0, cluster(other, one), views)
    found = reconcile(world, Memory(), lambda: 1)
    assert [step.message for step in found] == [SealStream(1, LSID, Epoch(4))]


def test_the_restart_flow_comes_to_rest_with_everything_running() -> None:
    """Follow the steps from a cluster that lost power whole, each replica doing as it is told."""
    status, epoch, seen = StreamStatus.RUNNING, 4, {int(snid): (SEALING, 4) for snid in SET}
    went: list[object] = []
    while found := steps(ls(status, epoch), dict(seen)):
        went.append(asked(found))
        for address, message in ((step.address, step.message) for step in found):
            match message:
                case SealStream() | UnsealStream():
                    epoch += 1
                    status = StreamStatus.SEALED if isinstance(message, SealStream) else StreamStatus.UNSEALING
                case RunStream():
                    status = StreamStatus.RUNNING
                case Seal():
                    seen[int(address.removeprefix("sn/"))] = (SEALED, message.epoch)
                case Unseal():
                    seen[int(address.removeprefix("sn/"))] = (RUNNING, message.epoch)
                case _:
                    raise AssertionError(message)
        assert len(went) <= 6
    assert went == [
        [("mr", SealStream)],
        [("sn/1", Seal), ("sn/2", Seal), ("sn/3", Seal)],
        [("mr", UnsealStream)],
        [("sn/1", Unseal), ("sn/3", Unseal)],
        [("sn/2", Unseal)],
        [("mr", RunStream)],
    ]
    assert (status, epoch) == (StreamStatus.RUNNING, 6)
