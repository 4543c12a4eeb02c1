"""The manager's decisions: from every state of the world the next step, each with a sentence, each harmless twice."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import pytest

from tests.core.sketch import metadata, stream
from varlog.core.manager import Step, reconcile, spread_primaries
from varlog.core.messages import Info, ReplicaInfo, RunStream, Seal, SealStream, StreamInfo, Unseal, UnsealStream
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, ReplicaState, StorageNodeID, StreamStatus

SEALING, SEALED, RUNNING = ReplicaState.SEALING, ReplicaState.SEALED, ReplicaState.RUNNING
LSID = LogStreamID(1)
SET = tuple(map(StorageNodeID, (1, 2, 3)))
PRIMARY = StorageNodeID(2)
TRIM = GLSN(3)

Seen = tuple[ReplicaState, int]
"""A replica as its node tells of it: state and epoch."""


def ls(status: StreamStatus, epoch: int) -> StreamInfo:
    return stream(LSID, status, epoch=epoch, primary=PRIMARY, llsn_end=10)


def told(seen: Mapping[int, Seen | None], *, unhealthy: int = 0) -> dict[StorageNodeID, Info]:
    """What the nodes answer; None is a node that has no such replica."""
    infos = {}
    for snid, replica in seen.items():
        replicas: tuple[ReplicaInfo, ...] = ()
        if replica is not None:
            state, epoch = replica
            info = ReplicaInfo(LSID, Epoch(epoch), state, LLSN(10), LLSN(10), snid != unhealthy)
            replicas = (ReplicaInfo(LogStreamID(8), Epoch(1), SEALING, LLSN(1), LLSN(1), True), info)
        infos[StorageNodeID(snid)] = Info(1, StorageNodeID(snid), 1, replicas)
    return infos


def steps(info: StreamInfo, seen: Mapping[int, Seen | None], *, unhealthy: int = 0) -> list[Step]:
    requests = count(1)
    world = metadata(1, info, hwm=9, trim=TRIM), told(seen, unhealthy=unhealthy)
    found = reconcile(*world, lambda: next(requests), lambda _: PRIMARY)
    assert [step.sentence for step in reconcile(*world, lambda: 0, lambda _: PRIMARY)] == [s.sentence for s in found]
    assert all(step.sentence.startswith(f"log stream {LSID}: ") for step in found)
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
    assert step.sentence == "log stream 1: sealing epoch 4 because node 2 is SEALING"


def test_M8_a_running_log_stream_with_a_failed_replica_is_sealed() -> None:
    (step,) = steps(ls(StreamStatus.RUNNING, 4), alike(RUNNING, 4), unhealthy=3)
    assert step.message == SealStream(1, LSID, Epoch(4))
    assert step.sentence.endswith("because node 3 is in need of repair")


def test_a_running_log_stream_with_a_replica_of_an_older_epoch_is_sealed() -> None:
    (step,) = steps(ls(StreamStatus.RUNNING, 4), {**alike(RUNNING, 4), 1: (SEALED, 3)})
    assert step.message == SealStream(1, LSID, Epoch(4))


def test_nothing_is_decided_on_metadata_older_than_a_replica() -> None:
    later = {1: (RUNNING, 6), 2: (SEALING, 6), 3: (RUNNING, 6)}
    assert steps(ls(StreamStatus.RUNNING, 4), later) == []
    assert steps(ls(StreamStatus.UNSEALING, 4), later) == []
    assert steps(ls(StreamStatus.SEALED, 3), later) == []


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
    assert step.message == UnsealStream(1, LSID, Epoch(5), SET, PRIMARY)
    assert step.sentence == "log stream 1: all 3 replicas are sealed at LLSN 10; unsealing"


@pytest.mark.parametrize(
    "seen",
    [
        {1: (SEALED, 5), 2: (SEALED, 5)},
        {1: (SEALED, 5), 2: (SEALED, 5), 3: None},
        {1: (SEALED, 5), 2: (SEALED, 5), 3: (SEALING, 5)},
        {1: (SEALED, 5), 2: (SEALED, 5), 3: (SEALED, 3)},
    ],
    ids=["a node is silent", "a node has no replica", "one is behind", "one is sealed in an older epoch"],
)
def test_M10_it_is_not_unsealed_before(seen: Mapping[int, Seen | None]) -> None:
    found = steps(ls(StreamStatus.SEALED, 5), seen)
    assert not any(isinstance(step.message, UnsealStream) for step in found)
    assert {step.address for step in found} <= {"sn/3"}


def test_rule15_a_replica_in_need_of_repair_keeps_it_sealed() -> None:
    assert steps(ls(StreamStatus.SEALED, 5), alike(SEALED, 5), unhealthy=2) == []


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


def test_nobody_is_unsealed_while_a_replica_is_unheard_of() -> None:
    assert steps(ls(StreamStatus.UNSEALING, 6), {1: (SEALED, 5), 2: (SEALED, 5)}) == []
    assert steps(ls(StreamStatus.UNSEALING, 6), {1: (RUNNING, 6), 2: (RUNNING, 6)}) == []


def test_B7_a_replica_that_restarted_before_its_unseal_is_sealed_again_first() -> None:
    """It is SEALING, and complete; the seal of the epoch before is repeated, and makes it SEALED."""
    found = steps(ls(StreamStatus.UNSEALING, 6), {1: (SEALED, 5), 2: (SEALED, 5), 3: (SEALING, 5)})
    assert [(step.address, step.message) for step in found] == [("sn/3", Seal(1, LSID, Epoch(5), LLSN(10), TRIM))]


def test_B7_a_replica_that_restarted_after_its_unseal_makes_the_log_stream_seal_again() -> None:
    (step,) = steps(ls(StreamStatus.UNSEALING, 6), {1: (RUNNING, 6), 2: (SEALED, 5), 3: (SEALING, 6)})
    assert step.message == SealStream(1, LSID, Epoch(6))
    assert step.sentence == "log stream 1: sealing epoch 6 again because node 3 fell out of it"


def test_M8_a_replica_that_fails_while_unsealing_makes_the_log_stream_seal_again() -> None:
    (step,) = steps(ls(StreamStatus.UNSEALING, 6), alike(SEALED, 5), unhealthy=1)
    assert step.message == SealStream(1, LSID, Epoch(6))


# What is nobody's business


@pytest.mark.parametrize("status", [StreamStatus.CREATING, StreamStatus.ABORTED])
def test_a_log_stream_that_is_not_registered_is_left_alone(status: StreamStatus) -> None:
    assert steps(ls(status, 0), alike(SEALING, 0)) == []


def test_each_log_stream_is_looked_at_by_itself() -> None:
    """A node of which nothing is known for one log stream says nothing of another."""
    one = ls(StreamStatus.RUNNING, 4)
    other = stream(2, StreamStatus.RUNNING, epoch=2, replicas=(4,))
    infos = told({**alike(RUNNING, 4), 3: (SEALING, 4)})
    found = reconcile(metadata(1, other, one), infos, lambda: 1)
    assert [step.message for step in found] == [SealStream(1, LSID, Epoch(4))]


def test_primaries_go_round_over_the_replicas() -> None:
    primaries = {spread_primaries(stream(lsid, StreamStatus.SEALED, replicas=(7, 8, 9))) for lsid in (1, 2, 3)}
    assert primaries == {7, 8, 9}


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
