"""The replicas of a node: found at start, made, refused, removed, whatever interrupts that."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.core.replica import batch_of
from tests.storage.bad_sectors import BadSectors
from varlog import batch, errors, limits
from varlog.core.chainreplica import ChainReplica
from varlog.core.executor import LogStreamExecutor
from varlog.core.messages import Append, ChainSeal, Seal, Unseal
from varlog.core.states import RUNNING, SEALING
from varlog.sim.crash import crash_states
from varlog.sim.disk import SimDisk
from varlog.storage.options import StorageOptions
from varlog.storagenode.replicas import AnyReplica, ChainedReplica, Replicas
from varlog.storagenode.volumes import Volumes
from varlog.types import GLSN, LLSN, ClusterID, Epoch, LogStreamID, Ordering, Sequence, StorageNodeID, TopicID

CID, SNID, TOPIC, LSID = ClusterID(3), StorageNodeID(8), TopicID(2), LogStreamID(5)
ONE, TWO = "/one", "/two"
OPTIONS = StorageOptions(segment_bytes=4096)


class Host:
    """The replicas of one node that has two volumes on a simulated disk."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.served: list[LogStreamExecutor] = []
        self.chained: list[ChainReplica] = []
        self.volumes = Volumes.open(disk, CID, SNID, [ONE, TWO])
        self.replicas = Replicas(
            disk, self.volumes, OPTIONS, lambda _to, _message: None, lambda _what: None, self._serve
        )

    def _serve(self, replica: AnyReplica) -> None:
        if isinstance(replica, ChainedReplica):
            self.chained.append(replica.executor)
        else:
            self.served.append(replica.executor)

    def add(self, lsid: int = LSID, volume: str = ONE, tpid: int = TOPIC) -> LogStreamExecutor:
        executor = self.replicas.add(TopicID(tpid), LogStreamID(lsid), volume).executor
        assert isinstance(executor, LogStreamExecutor)
        return executor

    def chain(self, lsid: int = LSID, volume: str = ONE, tpid: int = TOPIC) -> ChainReplica:
        executor = self.replicas.add(TopicID(tpid), LogStreamID(lsid), volume, Ordering.SEQUENCER).executor
        assert isinstance(executor, ChainReplica)
        return executor

    def write(self) -> None:
        for replica in self.replicas:
            while (group := replica.storage.take()) is not None:
                replica.storage.write(group)
                replica.storage.sync(group)
                replica.storage.finish(group)
                if isinstance(replica, ChainedReplica):
                    replica.executor.on_durable()
                else:
                    replica.executor.on_durable(None, group.epoch_records, replica.storage.durable_version)

    def seal(self, epoch: int = 1) -> None:
        """Give every replica a past."""
        for replica in self.replicas:
            assert not isinstance(replica, ChainedReplica)
            replica.executor.seal("manager", Seal(1, replica.executor.lsid, Epoch(epoch), LLSN(1), GLSN(0)))
        self.write()

    def remove(self, lsid: int = LSID) -> None:
        self.replicas.delete(self.replicas.let_go(LogStreamID(lsid)))

    def path(self, lsid: int = LSID, volume: str = ONE) -> str:
        return self.volumes.replica_path(volume, LogStreamID(lsid))

    def close(self) -> None:
        self.replicas.close()
        self.volumes.close()


def new_host() -> Host:
    disk = SimDisk()
    disk.mkdir(ONE)
    disk.mkdir(TWO)
    return Host(disk)


def reopened_on(disk: SimDisk) -> Host:
    again = Host(disk)
    again.replicas.open_all()
    return again


def reopened(host: Host) -> Host:
    return reopened_on(host.disk)


def test_B3_what_is_found_on_any_volume_is_loaded() -> None:
    host = new_host()
    host.add(5, ONE)
    host.add(6, TWO)
    host.add(7, "", tpid=9)
    host.close()
    host = reopened(host)
    found = {(int(r.executor.lsid), int(r.executor.tpid)): r.volume for r in host.replicas}
    assert found.keys() == {(5, 2), (6, 2), (7, 9)}
    assert (found[5, 2], found[6, 2]) == (ONE, TWO)
    assert sorted(executor.lsid for executor in host.served) == [5, 6, 7]


def test_B3_each_ordering_is_loaded_as_what_it_is() -> None:
    host = new_host()
    host.add(5)
    host.chain(6).seal("client", ChainSeal(1, LogStreamID(6), Epoch(4)))
    host.write()
    host.close()
    host = reopened(host)
    assert [executor.lsid for executor in host.served] == [5]
    assert [(executor.lsid, executor.tpid, executor.epoch) for executor in host.chained] == [(6, TOPIC, 4)]


def test_B6_a_log_stream_of_the_other_ordering_is_in_the_way() -> None:
    host = new_host()
    host.add(5)
    host.chain(6)
    assert host.chain(6) is host.chained[0], "the same request again"
    with pytest.raises(errors.AlreadyExists):
        host.chain(5)
    with pytest.raises(errors.AlreadyExists):
        host.add(6)


def recovered_after_a_past() -> LogStreamExecutor:
    """A replica that ran, and had stored a batch, before its node was started again."""
    host = new_host()
    executor = host.add()
    host.seal()
    executor.unseal("manager", Unseal(2, LSID, Epoch(2), (SNID,), SNID, GLSN(0)), 0.0)
    host.write()
    packed = batch_of(1, b"a", b"b")
    executor.append("client", Append(3, LSID, Epoch(2), Sequence(0), LLSN(1), packed), batch.verify(packed), 0.0)
    executor.stage()
    host.write()
    assert executor.state is RUNNING
    host.close()
    (recovered,) = reopened(host).served
    return recovered


def test_B3_the_former_state_is_recovered() -> None:
    recovered = recovered_after_a_past()
    assert (recovered.epoch, recovered.end, recovered.committed_end) == (2, 3, 1)
    assert (recovered.replicas, recovered.primary) == ((SNID,), SNID)


def test_B7_a_new_replica_and_one_that_ran_before_are_sealing() -> None:
    assert new_host().add().state is SEALING
    assert recovered_after_a_past().state is SEALING


def test_B3_a_directory_that_was_only_begun_is_nothing() -> None:
    host = new_host()
    host.disk.mkdir(host.path())
    host.close()
    host = reopened(host)
    assert len(host.replicas) == 0
    assert host.add().epoch == 0, "and in nobody's way"


def test_B3_what_was_only_begun_when_a_process_was_killed_holds_no_space() -> None:
    host = new_host()
    host.disk.mkdir(host.path())
    for name in ("lock", "0000000001-00000000000000000001.seg.tmp"):
        host.disk.create(f"{host.path()}/{name}").close()
    host.close()
    host = reopened(host)
    assert len(host.replicas) == 0
    assert not host.disk.exists(host.path())


def test_B3_data_of_another_node_is_not_taken_for_ones_own() -> None:
    host = new_host()
    host.add(5)
    host.close()
    disk = host.disk
    disk.mkdir(host.path(6))
    for name in disk.listdir(host.path(5)):
        copy = disk.create(f"{host.path(6)}/{name}")
        copied = disk.open(f"{host.path(5)}/{name}")
        copy.pwritev([copied.pread(copied.size(), 0)], 0)
    with pytest.raises(errors.WrongIdentity):
        reopened(host)


def damaged_host() -> Host:
    """A node that was stopped and has log streams 5 and 6, 5 with damage in the head of its only segment."""
    host = new_host()
    host.add(5)
    host.add(6)
    host.seal()
    host.close()
    host.disk.flip_bit(segment_of(host), 40)
    return host


def segment_of(host: Host, lsid: int = LSID) -> str:
    (name,) = [name for name in host.disk.listdir(host.path(lsid)) if name.endswith(".seg")]
    return f"{host.path(lsid)}/{name}"


def check_set_aside(host: Host, error: type[errors.VarlogError]) -> None:
    """Log stream 5 is told of and not served, 6 is served as ever."""
    assert [executor.lsid for executor in host.served] == [6]
    (unopened,) = host.replicas.unopened.values()
    info = unopened.info()
    assert (info.lsid, info.healthy, info.fault, info.volume) == (LSID, False, error.code, ONE)
    assert (info.epoch, info.state, info.committed_end, info.durable_end) == (0, SEALING, 1, 1)
    assert host.replicas.get(LSID) is None
    with pytest.raises(errors.AlreadyExists, match="log stream 5 has data in /one"):
        host.add(5)


def test_rule15_a_replica_that_cannot_be_opened_concerns_itself_alone_and_is_left_as_it_is() -> None:
    host = damaged_host()
    before = host.disk.image().files
    host = reopened(host)
    check_set_aside(host, errors.Corrupt)
    files = host.disk.image().files
    assert {path: files[path] for path in before if path.startswith(host.path())} == {
        path: file for path, file in before.items() if path.startswith(host.path())
    }
    with pytest.raises(errors.Corrupt):
        host.replicas.reopen(ONE, LSID)
    check_set_aside(host, errors.Corrupt)
    host.remove()
    assert not host.disk.exists(host.path())
    assert host.add().epoch == 0, "it can be made anew"


def test_rule15_a_mark_without_a_segment_is_a_damaged_replica() -> None:
    host = damaged_host()
    host.disk.unlink(segment_of(host))
    check_set_aside(reopened(host), errors.Corrupt)


def test_rule15_what_the_disk_does_not_give_back_is_a_damaged_replica() -> None:
    host = damaged_host()
    host.disk.flip_bit(segment_of(host), 40)
    check_set_aside(reopened_on(BadSectors.under(host.disk.image(), segment_of(host))), errors.Corrupt)


def test_a_replica_that_cannot_be_made_good_is_opened_when_it_can_be() -> None:
    host = damaged_host()
    host.disk.flip_bit(segment_of(host), 40)
    host.disk.mkdir(f"{host.path()}/x.tmp")
    host = reopened(host)
    check_set_aside(host, errors.Poisoned)
    host.disk.rmdir(f"{host.path()}/x.tmp")
    assert host.replicas.reopen(ONE, LSID).executor.epoch == 1
    assert not host.replicas.unopened


def test_a_replica_of_which_nothing_is_left_is_forgotten() -> None:
    host = reopened(damaged_host())
    for name in host.disk.listdir(host.path()):
        host.disk.unlink(f"{host.path()}/{name}")
    with pytest.raises(errors.NoSuchReplica):
        host.replicas.reopen(ONE, LSID)
    assert not host.replicas.unopened


def test_a_node_that_lacks_files_does_not_start() -> None:
    host = damaged_host()
    with pytest.raises(errors.Poisoned):
        reopened_on(BadSectors.under(host.disk.image(), segment_of(host, 6), error=errno.EMFILE))


def test_B6_a_log_stream_with_a_past_is_not_made_anew() -> None:
    host = new_host()
    host.add()
    host.seal()
    for volume in (ONE, TWO, ""):
        with pytest.raises(errors.AlreadyExists, match="log stream 5 has data on this node, in /one"):
            host.add(volume=volume)
    host.close()
    host = reopened(host)
    with pytest.raises(errors.AlreadyExists):
        host.add(volume=TWO)
    assert not host.disk.exists(host.path(volume=TWO))


def test_B6_a_directory_on_another_volume_is_enough() -> None:
    """Whatever is in it, and though it is not served: a second one would make the node refuse to start (B4)."""
    host = new_host()
    host.disk.mkdir(host.path(volume=TWO))
    with pytest.raises(errors.AlreadyExists, match="/two"):
        host.add(volume=ONE)
    assert not host.disk.exists(host.path(volume=ONE))


def test_B6_data_that_appeared_on_the_volume_is_left_as_it_is() -> None:
    host = new_host()
    host.add()
    host.seal()
    host.close()
    late = Host(host.disk)  # a node that has not looked
    with pytest.raises(errors.AlreadyExists):
        late.add()
    late.close()
    (found,) = reopened(late).served
    assert found.epoch == 1


def test_M2_the_same_request_again_is_granted_as_long_as_nothing_has_happened() -> None:
    host = new_host()
    executor = host.add()
    assert host.add() is executor
    assert host.add(volume="") is executor
    assert len(host.replicas) == len(host.served) == 1
    with pytest.raises(errors.AlreadyExists):
        host.add(tpid=9)
    with pytest.raises(errors.AlreadyExists):
        host.add(volume=TWO)


def test_M2_a_node_has_only_so_many_log_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LOG_STREAMS_PER_NODE", 2)
    host = new_host()
    host.add(1)
    host.add(2)
    with pytest.raises(errors.LimitExceeded, match="2 log streams already"):
        host.add(3)
    assert host.add(2).lsid == 2, "that one is there"
    host.remove(1)
    host.add(3)


def test_M2_a_node_that_may_choose_spreads_over_its_volumes() -> None:
    host = new_host()
    for lsid in range(1, 5):
        host.add(lsid, "")
    assert sorted(replica.volume for replica in host.replicas) == [ONE, ONE, TWO, TWO]


@pytest.mark.parametrize(("tpid", "lsid"), [(0, 1), (1, 0), (-1, 1), (1, -1), (1 << 32, 1), (1, 1 << 32), (1, 1 << 63)])
def test_M2_ids_that_cannot_be_are_refused(tpid: int, lsid: int) -> None:
    host = new_host()
    with pytest.raises(errors.InvalidArgument):
        host.add(lsid, tpid=tpid)
    assert len(host.replicas) == 0


@pytest.mark.parametrize("volume", ["/three", "/one/", "/one/../two", "one"])
def test_M2_only_the_nodes_own_volumes_are_used(volume: str) -> None:
    host = new_host()
    with pytest.raises(errors.InvalidArgument, match="none of this node's volumes /one, /two"):
        host.add(volume=volume)


def test_M2_a_full_disk_refuses_and_keeps_nothing_of_it() -> None:
    host = new_host()
    host.disk.set_free_bytes(2048)
    with pytest.raises(errors.DiskFull):
        host.add()
    assert not host.disk.exists(host.path())
    host.disk.set_free_bytes(None)
    host.add()


def test_a_removed_replica_leaves_nothing() -> None:
    host = new_host()
    host.add(5)
    host.add(6)
    host.seal()
    host.remove(5)
    assert host.disk.listdir(f"{ONE}/cid=3/snid=8") == ["boot", "lock", "lsid=6"]
    assert [replica.executor.lsid for replica in host.replicas] == [6]
    host.close()
    assert [executor.lsid for executor in reopened(host).served] == [6]


def test_a_replica_can_be_removed_from_a_full_disk() -> None:
    host = new_host()
    host.add()
    host.disk.set_free_bytes(0)
    host.remove()
    assert not host.disk.exists(host.path())


def after_power_losses(host: Host) -> Iterator[Host]:
    """The node started again after every power loss there could have been since the recording began."""
    states = list(crash_states(host.disk.recorded()))
    assert len(states) > 5
    for state in states:
        yield reopened_on(SimDisk.from_image(state.image))


def test_a_removal_that_is_interrupted_is_finished_at_the_next_start() -> None:
    host = new_host()
    host.add()
    host.seal()
    host.disk.start_recording()
    host.remove()
    found = set()
    for again in after_power_losses(host):
        found.add(len(again.replicas))
        for executor in again.served:
            assert (executor.healthy, executor.epoch) == (True, 1), "all of it is there, or nothing counts"
        if not again.served and again.disk.exists(again.path()):
            assert not again.disk.listdir(again.path())
    assert found == {0, 1}


def test_a_making_that_is_interrupted_is_all_or_nothing() -> None:
    host = new_host()
    host.disk.start_recording()
    host.add()
    for again in after_power_losses(host):
        assert all(executor.healthy for executor in again.served)
        assert again.add().epoch == 0, "the same request again is granted"


def test_a_disk_that_fails_at_the_end_fails_its_own_replicas_only() -> None:
    host = new_host()
    first, second = host.add(5, ONE), host.add(6, TWO)
    for executor in (first, second):
        executor.seal("manager", Seal(1, executor.lsid, Epoch(1), LLSN(1), GLSN(0)))
    host.disk.fail_syncs(prefix=ONE)
    host.close()
    assert (first.healthy, second.healthy) == (False, True)
    recovered = {executor.lsid: executor.epoch for executor in reopened(host).served}
    assert recovered[LogStreamID(6)] == 1, "it was closed in good order"
