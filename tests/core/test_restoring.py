"""A restored backup: nothing is given out twice, and what lies between is known to be somebody else's."""

from __future__ import annotations

import msgspec
import pytest

from tests.core.repository import ONE, A, B, Repository, line
from tests.core.sketch import metadata, stream
from tests.metarepo.rigs import SimRig
from varlog.core.gaps import last_known
from varlog.core.messages import Info, ReplicaInfo, Snapshot
from varlog.core.metastate import Checkpoint, MetadataState, Stream
from varlog.core.restoring import go_on_above
from varlog.core.world import World
from varlog.types import LLSN, Epoch, LogStreamID, ReplicaState, StorageNodeID, StreamStatus, TopicID, Version

DAY = 24 * 3600


def backed_up(epoch: int = 2, status: StreamStatus = StreamStatus.RUNNING, version: int = 40) -> MetadataState:
    return MetadataState(Version(version), streams={ONE: Stream(ONE, TopicID(1), status, Epoch(epoch))})


def restored(seconds: int, epoch: int = 2, version: int = 40) -> MetadataState:
    state = backed_up(epoch, version=version)
    go_on_above(state, seconds)
    return state


@pytest.mark.parametrize(
    ("status", "epoch"), [(StreamStatus.SEALED, 3), (StreamStatus.UNSEALING, 4), (StreamStatus.RUNNING, 4)]
)
def test_rule2_a_restored_log_stream_is_sealed_far_above_the_backups_epoch(status: StreamStatus, epoch: int) -> None:
    state = backed_up(epoch, status)
    go_on_above(state, 0)
    found = state.streams[ONE]
    assert (found.status, found.epoch % 2, found.touched) == (StreamStatus.SEALED, 1, state.version)
    assert found.epoch > epoch + 1000
    assert state.version > 40 + 1_000_000
    assert (state.next_lsid, state.next_tpid) > (LogStreamID(1), TopicID(1))
    assert [found.known_epoch(number) for number in (epoch, epoch + 1, found.epoch - 1)] == [epoch] * 3
    assert [found.known_epoch(found.epoch + more) for more in (0, 1)] == [found.epoch] * 2
    assert [state.known_version(Version(number)) for number in (7, 40, 41)] == [7, 40, 40]
    assert Checkpoint.decode(Checkpoint(state, {}).encode()).state == state


@pytest.mark.parametrize("status", [StreamStatus.CREATING, StreamStatus.ABORTED, StreamStatus.CHAINED])
def test_what_has_no_epochs_of_its_own_stays_as_it_was(status: StreamStatus) -> None:
    state = backed_up(0, status)
    go_on_above(state, 0)
    assert state.streams == backed_up(0, status).streams


def test_rule2_the_same_backup_or_an_older_one_restored_later_goes_on_above_what_was_given_out_before() -> None:
    first, again, older = restored(DAY), restored(DAY + 60), restored(DAY + 120, epoch=2, version=1)
    epochs = [state.streams[ONE].epoch for state in (first, again, older)]
    assert sorted({*epochs}) == epochs
    assert first.version < again.version < older.version


def test_rule2_metadata_that_was_restored_and_backed_up_again_knows_of_both_times() -> None:
    state = restored(0)
    first = state.streams[ONE].epoch
    go_on_above(state, 0)
    found = state.streams[ONE]
    assert [found.known_epoch(epoch) for epoch in (3, first, first + 1)] == [2, first, first]


def test_a_backup_from_before_there_were_gaps_is_read() -> None:
    fields = msgspec.to_builtins(backed_up())
    del fields["skipped"]
    fields["streams"] = {lsid: values[:-1] for lsid, values in fields["streams"].items()}
    assert Checkpoint.decode(msgspec.msgpack.encode([fields, {}])).state == backed_up()


def test_what_lies_beyond_all_is_not_known() -> None:
    assert [last_known(number, 9, [(2, 5), (6, 8)]) for number in range(1, 11)] == [1, 2, 2, 2, 5, 6, 6, 8, 9, 9]


# What follows from it


@pytest.fixture
def repository(rig: SimRig) -> Repository:
    """One that was restored."""
    found = Repository(rig).set_up()
    go_on_above(found.core.state, 0)
    return found


@pytest.fixture
def rig() -> SimRig:
    return SimRig()


def test_rule5_a_node_that_has_seen_an_epoch_after_the_backup_is_told_so(repository: Repository) -> None:
    repository.report(A, line(ONE, 1, epoch=4), version=1, full=True, ask=True)
    repository.report(B, line(ONE, 1, epoch=2), version=1, full=True, ask=True)
    repository.rig.settle()
    assert [told.unknown_epochs for told in repository.to("sn/1", Snapshot)] == [((ONE, 4, 2),)]
    assert [told.unknown_epochs for told in repository.to("sn/2", Snapshot)] == [()]


def test_rule5_a_node_that_has_seen_a_version_after_the_backup_is_told_so(repository: Repository) -> None:
    before, _ = repository.core.state.skipped[0]
    for snid, version in ((A, before + 1), (B, before)):
        repository.report(snid, line(ONE, 1), version=version, full=True, ask=True)
    repository.rig.settle()
    told = [repository.to(f"sn/{snid}", Snapshot)[-1] for snid in (A, B)]
    assert [(one.reported_version, one.known_version) for one in told] == [(before + 1, before), (before, before)]


def test_rule5_the_manager_leaves_a_log_stream_alone_while_a_replica_has_seen_an_epoch_after_the_backup() -> None:
    info = msgspec.structs.replace(
        stream(1, StreamStatus.SEALED, epoch=1027), skipped=((Epoch(2), Epoch(1027)),)
    )  # fmt: skip
    infos = {}
    for snid, epoch in ((1, 2), (2, 4), (3, 1027)):
        end = LLSN(1)
        replica = ReplicaInfo(LogStreamID(1), Epoch(epoch), ReplicaState.SEALING, end, end, True)
        infos[StorageNodeID(snid)] = Info(1, StorageNodeID(snid), 1, (replica,))
    assert World.of(metadata(1, info), infos).later(info) == {2: 4}
