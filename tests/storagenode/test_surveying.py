"""What the volumes of a stopped node hold, surveyed on a disk of the simulator."""

from __future__ import annotations

import pytest

from tests.storage.owner import IDENTITY, PATH, Owner, options
from varlog import batch, errors, limits
from varlog.core.identity import boot_of, proof_of
from varlog.core.proving import Held
from varlog.core.surveys import NodeSurvey
from varlog.sim.disk import SimDisk
from varlog.storage.log import LogStreamStorage
from varlog.storage.logfiles import CONDEMNED_NAME, publish
from varlog.storage.writeonce import WriteOnceStorage
from varlog.storagenode.replicas import REMOVED_NAME
from varlog.storagenode.surveying import survey
from varlog.storagenode.volumes import Volumes
from varlog.types import GLSN, ClusterID, Epoch, Ordering, StorageNodeID

CID, SNID = ClusterID(1), StorageNodeID(2)
FIRST = Held(3, "a" * 64, "b" * 64)
SECOND = Held(3, "c" * 64, "b" * 64)


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.mkdir("/volume")
    disk.mkdir("/other")
    return disk


def surveyed(disk: SimDisk, *volumes: str, cid: int | None = None, snid: int | None = None) -> NodeSurvey:
    return survey(disk, volumes or ("/volume",), cid, snid, 17)


def start(disk: SimDisk, *volumes: str, snid: int = SNID) -> Volumes:
    return Volumes.open(disk, CID, StorageNodeID(snid), volumes or ("/volume",))


def test_B8_where_a_replica_ends_is_told(disk: SimDisk) -> None:
    start(disk).close()
    owner = Owner(disk, options(4096))
    owner.unseal(2, 5, 9)
    for _ in range(5):
        owner.store()
    owner.trim(3)
    owner.append(3)
    owner.append(1)
    owner.flush()
    owner.storage.close()
    found = surveyed(disk)
    (replica,) = found.replicas
    model = owner.model
    assert (found.cid, found.snid, found.time, found.volumes) == (CID, SNID, 17, ("/volume",))
    assert (replica.lsid, replica.tpid, replica.volume) == (IDENTITY.lsid, IDENTITY.tpid, "/volume")
    assert (replica.epoch, replica.replicas, replica.primary) == (model.epoch, (2, 5, 9), 2)
    assert (replica.version, replica.committed_end, replica.hwm) == (model.version, 11, 10)
    assert (replica.last_glsn, replica.trim_glsn, replica.trim_llsn) == (10, 3, 4)
    assert [(b.llsn, b.entries, b.epoch) for b in replica.uncommitted] == [(11, 3, model.epoch), (14, 1, model.epoch)]
    assert replica.commits[-1].llsn_end == 11
    assert replica.damage == ""
    assert replica.is_whole
    assert surveyed(disk) == found


def test_only_the_last_commit_contexts_are_told(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SURVEY_COMMITS", 20)
    start(disk).close()
    owner = Owner(disk)
    commits = []
    for _ in range(30):
        owner.append(1)
        commits.append(owner.commit())
        owner.flush()
    owner.storage.close()
    (replica,) = surveyed(disk).replicas
    assert list(replica.commits) == commits[10:]
    assert not replica.is_whole


def test_B11_the_proof_is_told_of_the_secret_that_the_node_will_show(disk: SimDisk) -> None:
    volumes = start(disk, "/volume", "/other")
    assert (surveyed_stopped(volumes, disk).generation, surveyed_stopped(volumes, disk).proof) == (0, "")
    volumes = start(disk, "/volume", "/other")
    volumes.secrets.keep(FIRST, SECOND)
    found = surveyed_stopped(volumes, disk)
    assert (found.generation, found.boot) == (3, boot_of(3, 2))
    assert (found.proof, found.next_proof) == (proof_of(SNID, FIRST.secret), proof_of(SNID, SECOND.secret))
    volumes = start(disk, "/volume")  # the change was interrupted: one volume has the next one already
    volumes.secrets.keep(SECOND, None)
    found = surveyed_stopped(volumes, disk)
    assert (found.proof, found.next_proof) == (proof_of(SNID, SECOND.secret), "")


def surveyed_stopped(volumes: Volumes, disk: SimDisk) -> NodeSurvey:
    volumes.close()
    return surveyed(disk, "/volume", "/other")


def test_B11_volumes_that_are_not_of_one_node_are_refused(disk: SimDisk) -> None:
    volumes = start(disk)
    volumes.secrets.keep(FIRST, None)
    volumes.close()
    volumes = start(disk, "/other")
    volumes.secrets.keep(SECOND._replace(generation=1), None)
    volumes.close()
    with pytest.raises(errors.WrongIdentity, match="different identities"):
        surveyed(disk, "/volume", "/other")
    disk.mkdir("/copy/cid=1/snid=7")
    disk.rename("/other/cid=1/snid=2/identity", "/copy/cid=1/snid=7/identity")
    with pytest.raises(errors.WrongIdentity, match="copied or renamed"):
        surveyed(disk, "/copy")


def test_which_node_is_meant_has_to_be_said_if_there_are_several(disk: SimDisk) -> None:
    start(disk, snid=2).close()
    start(disk, snid=5).close()
    with pytest.raises(errors.InvalidArgument, match="storage node 2 of cluster 1, storage node 5 of cluster 1"):
        surveyed(disk)
    assert surveyed(disk, snid=5).snid == 5
    with pytest.raises(errors.NoSuchReplica):
        surveyed(disk, cid=2)


def test_B4_a_replica_on_two_volumes_is_refused(disk: SimDisk) -> None:
    start(disk, "/volume", "/other").close()
    for path in (PATH, PATH.replace("/volume", "/other")):
        LogStreamStorage.create(disk, path, IDENTITY, options()).close()
    with pytest.raises(errors.WrongIdentity, match="on two volumes"):
        surveyed(disk, "/volume", "/other")


def test_what_was_being_removed_or_only_begun_is_left_out(disk: SimDisk) -> None:
    start(disk).close()
    LogStreamStorage.create(disk, PATH, IDENTITY, options()).close()
    publish(disk, PATH, REMOVED_NAME, b"").close()
    disk.mkdir("/volume/cid=1/snid=2/lsid=9")
    assert surveyed(disk).replicas == ()


def test_a_node_that_runs_is_not_surveyed(disk: SimDisk) -> None:
    volumes = start(disk)
    with pytest.raises(errors.DirectoryLocked):
        surveyed(disk)
    volumes.close()
    with pytest.raises(errors.NotWritable):
        surveyed(disk, "/nowhere")


def test_a_replica_of_a_chain_is_told_as_what_it_is(disk: SimDisk) -> None:
    start(disk).close()
    storage = WriteOnceStorage.create(disk, PATH, IDENTITY, options(4096))
    storage.stage_epoch(Epoch(4))
    for glsn in (3, 9, 5):
        packed = batch.encode([b"x", b"y"], writer_id=1, sequence=glsn)
        storage.stage_writes(Epoch(4), [glsn], [7], [packed], [batch.verify(packed)])
    storage.stage_trim(GLSN(4))
    storage.close()
    (replica,) = surveyed(disk).replicas
    assert (replica.ordering, replica.lsid, replica.tpid) == (Ordering.SEQUENCER, IDENTITY.lsid, IDENTITY.tpid)
    assert (replica.epoch, replica.committed_end, replica.last_glsn, replica.trim_glsn) == (4, 11, 10, 4)
    assert (replica.commits, replica.uncommitted, replica.damage) == ((), (), "")


def test_B8_a_damaged_replica_of_a_chain_is_told_with_its_damage(disk: SimDisk) -> None:
    start(disk).close()
    storage = WriteOnceStorage.create(disk, PATH, IDENTITY, options(4096))
    storage.stage_epoch(Epoch(4))
    storage.close()
    publish(disk, PATH, CONDEMNED_NAME, b"8 00000001").close()
    (replica,) = surveyed(disk).replicas
    assert replica.epoch == 4
    assert replica.damage
