"""B11: the secrets on a node's volumes. What is not of one and the same node is refused at start; a power loss at any
moment leaves volumes that agree, with a secret that is on record."""

from __future__ import annotations

import copy
import errno
import shutil
import stat
from itertools import count
from pathlib import Path

import pytest

from varlog import errors
from varlog.core.decisions import Already, decide
from varlog.core.identity import boot_of, generation_of, new_secret, proof_of
from varlog.core.messages import AdoptIdentity, AnnounceNode, Decided, RegisterNode, RenewNode
from varlog.core.metastate import MetadataState
from varlog.core.proving import Held, Outcome, Prover
from varlog.sim.crash import crash_states
from varlog.sim.disk import SimDisk
from varlog.storage.files import FileSystem, OSFileSystem
from varlog.storagenode.identity import IDENTITY_NAME
from varlog.storagenode.volumes import Volumes
from varlog.types import ClusterID, StorageNodeID, Version

CID = ClusterID(3)
SNID = StorageNodeID(8)
SECRET, ANOTHER = new_secret(b"a" * 32), new_secret(b"b" * 32)


def node_path(volume: Path | str, cid: int = CID, snid: int = SNID) -> Path:
    return Path(volume) / f"cid={cid}" / f"snid={snid}"


def held(secret: str = SECRET, generation: int = 1) -> Held:
    return Held(generation, secret, proof_of(SNID, secret))


def open_volumes(*paths: Path | str, snid: int | None = SNID, cid: int = CID, fs: FileSystem | None = None) -> Volumes:
    given = StorageNodeID(snid) if snid is not None else None
    return Volumes.open(fs or OSFileSystem(), ClusterID(cid), given, [str(path) for path in paths])


def make(*paths: Path, snid: int = SNID, cid: int = CID, secret: str = SECRET) -> None:
    """Volumes of a node that was registered."""
    for path in paths:
        path.mkdir(exist_ok=True)
    volumes = open_volumes(*paths, snid=snid, cid=cid)
    volumes.secrets.keep(held(secret), None)
    volumes.close()


def refusal(*paths: Path, snid: int | None = SNID, cid: int = CID) -> str:
    before = {path: sorted(path.rglob("*")) for path in paths}
    with pytest.raises(errors.WrongIdentity) as refused:
        open_volumes(*paths, snid=snid, cid=cid)
    assert {path: sorted(path.rglob("*")) for path in paths} == before, "nothing is made where nothing may be"
    assert SECRET not in str(refused.value)
    return str(refused.value)


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return tmp_path / "one"


@pytest.fixture
def two(tmp_path: Path) -> Path:
    return tmp_path / "two"


def test_a_new_node_has_no_secret(tmp_path: Path) -> None:
    volumes = open_volumes(tmp_path)
    assert volumes.secrets.held is None
    assert volumes.boot == boot_of(0, 1)
    volumes.close()


def test_B11_a_secret_is_kept_on_every_volume_for_nobody_else_to_read(one: Path, two: Path) -> None:
    make(one, two)
    volumes = open_volumes(one, two)
    assert volumes.secrets.held == held()
    assert volumes.boot == boot_of(1, 2)
    volumes.close()
    for path in (one, two):
        file = node_path(path) / IDENTITY_NAME
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert SECRET in file.read_text()
        assert open_volumes(path).secrets.held == held()


def test_B11_a_directory_under_the_name_of_another_node_is_refused(one: Path) -> None:
    make(one)
    node_path(one).rename(node_path(one, snid=9))
    assert "storage node 8 of cluster 3, not of storage node 9" in refusal(one, snid=9)


def test_B11_a_directory_under_the_name_of_another_cluster_is_refused(one: Path) -> None:
    make(one)
    (one / "cid=3").rename(one / "cid=4")
    assert "storage node 8 of cluster 3, not of storage node 8 of cluster 4" in refusal(one, cid=4)


def test_B11_the_volumes_of_another_node_are_not_begun_anew(one: Path) -> None:
    """To one that was given its id they would look like new disks."""
    make(one, snid=9)
    assert f"{one} is of storage node 9 of cluster 3" in refusal(one)


def test_B11_the_volumes_of_another_cluster_are_not_begun_anew(one: Path) -> None:
    make(one, cid=4)
    assert f"{one} is of storage node 8 of cluster 4" in refusal(one)
    assert "cluster 4" in refusal(one, snid=None)


def test_B11_a_volume_swapped_with_another_node_s_is_refused(one: Path, two: Path, tmp_path: Path) -> None:
    make(one, two)
    make(tmp_path / "three", tmp_path / "four", snid=9)
    assert f"{tmp_path / 'four'} is of storage node 9" in refusal(one, tmp_path / "four")
    assert f"{two} is of storage node 8" in refusal(tmp_path / "three", two, snid=9)


def test_B11_volumes_with_different_secrets_are_refused(one: Path, two: Path) -> None:
    make(one)
    make(two, secret=ANOTHER)
    assert f"{node_path(one)} and {node_path(two)} hold" in refusal(one, two)


def test_B11_volumes_of_different_generations_are_refused(one: Path, two: Path) -> None:
    make(one, two)
    volumes = open_volumes(one)
    volumes.secrets.keep(held(ANOTHER, 2), None)
    volumes.close()
    assert "different identities" in refusal(one, two)


def test_B11_an_older_copy_of_one_volume_is_refused(one: Path, two: Path, tmp_path: Path) -> None:
    make(one, two)
    shutil.copytree(two, tmp_path / "copy")
    volumes = open_volumes(one, two)
    volumes.secrets.keep(held(ANOTHER), None)
    volumes.close()
    assert "of different times" in refusal(one, tmp_path / "copy")
    open_volumes(one, two).close()


def test_B11_a_new_volume_beside_the_others_is_given_the_secret(one: Path, two: Path) -> None:
    make(one)
    two.mkdir()
    open_volumes(one, two).close()
    alone = open_volumes(two)
    assert alone.secrets.held == held()
    assert alone.boot == boot_of(1, 3)
    alone.close()


def test_B11_a_volume_with_log_streams_and_no_secret_beside_others_that_have_one_is_refused(
    one: Path, two: Path
) -> None:
    make(one, two)
    (node_path(two) / "lsid=5").mkdir()
    open_volumes(one, two).close()
    (node_path(two) / IDENTITY_NAME).unlink()
    assert f"{node_path(two)} holds log streams but no identity" in refusal(one, two)


def test_B11_log_streams_without_any_secret_are_for_the_metadata_repository_to_judge(one: Path) -> None:
    """A node that was never registered has none either."""
    make(one)
    (node_path(one) / "lsid=5").mkdir()
    (node_path(one) / IDENTITY_NAME).unlink()
    volumes = open_volumes(one)
    assert volumes.secrets.held is None
    volumes.close()


def test_B11_a_lost_disk_leaves_a_node_without_a_secret(one: Path) -> None:
    make(one)
    shutil.rmtree(one / "cid=3")
    volumes = open_volumes(one)
    assert (volumes.secrets.held, volumes.boot) == (None, 1)
    volumes.close()


@pytest.mark.parametrize("content", [b"", b"{}", b"null", b"\xff", b"x" * 5000, b'{"format":1,"cid":3}', b"[1]"])
def test_B11_what_is_no_identity_is_not_guessed(one: Path, content: bytes) -> None:
    make(one)
    (node_path(one) / IDENTITY_NAME).write_bytes(content)
    assert IDENTITY_NAME in refusal(one)


def test_an_identity_of_a_newer_version_is_left_alone(one: Path) -> None:
    make(one)
    file = node_path(one) / IDENTITY_NAME
    file.write_bytes(file.read_bytes().replace(b'"format":1', b'"format":2'))
    with pytest.raises(errors.UnsupportedFormat, match="newer version"):
        open_volumes(one)


# Power loss


VOLUMES = ("/one", "/two", "/three")


class Registry:
    """The metadata repository, as far as it decides who a node is. What it has decided it notes on the disk, so that a
    crash state tells what was on record then."""

    def __init__(self, disk: SimDisk, state: MetadataState | None = None) -> None:
        self.state = state or MetadataState()
        self._disk = disk
        self._requests = count(1)
        self._randoms = count(1)

    def decide(self, message: AnnounceNode | RegisterNode | RenewNode) -> Decided:
        decision = decide(self.state, message)
        if not isinstance(decision, Already):
            self.state.apply(Version(self.state.version + 1), decision)
        self._disk.note(copy.deepcopy(self.state))
        return Decided(message.request, 0, self.state.version)

    def prover(self, volumes: Volumes) -> Prover:
        return Prover(SNID, volumes.starts, volumes.secrets, lambda: bytes([next(self._randoms)]) * 32)

    def announce(self, prover: Prover) -> None:
        outcome = Outcome.PROVEN
        while outcome is Outcome.PROVEN:
            outcome = prover.on_decided(self.decide(prover.announce(next(self._requests), "a:1", VOLUMES)))
        assert outcome is Outcome.ADMITTED


def sim_volumes() -> SimDisk:
    disk = SimDisk()
    for path in VOLUMES:
        disk.mkdir(path)
    return disk


def restarts(disk: SimDisk, given: AdoptIdentity) -> int:
    """Start the node after a power loss at every point of what was recorded: it starts, and is admitted. Only one that
    has not been seen with the secret it was `given` may have to be given it again. Returns how often it had."""
    again = 0
    for crash in crash_states(disk.recorded()):
        survived = SimDisk.from_image(crash.image)
        registry = Registry(survived, copy.deepcopy(crash.notes[-1]))  # type: ignore[arg-type]
        volumes = open_volumes(*VOLUMES, fs=survived)
        prover = registry.prover(volumes)
        has = volumes.secrets.held
        if has is None or has.generation < given.generation:
            assert generation_of(registry.state.nodes[SNID].boot) < given.generation, crash.how
            assert prover.adopt(given).code == 0
            again += 1
        registry.announce(prover)
    return again


def test_B11_power_may_fail_while_a_node_is_given_its_secret() -> None:
    disk = sim_volumes()
    registry, volumes = Registry(disk), open_volumes(*VOLUMES, fs=disk)
    given = AdoptIdentity(1, SNID, SECRET, 1)
    disk.start_recording()
    registry.decide(RegisterNode(1, SNID, "a:1", (), proof_of(SNID, SECRET), 1))
    prover = registry.prover(volumes)
    assert prover.adopt(given).code == 0
    assert restarts(disk, given) > 0
    registry.announce(prover)
    assert restarts(disk, given) > 0


def test_B11_power_may_fail_while_a_node_changes_its_secret() -> None:
    disk = sim_volumes()
    registry, volumes = Registry(disk), open_volumes(*VOLUMES, fs=disk)
    given = AdoptIdentity(1, SNID, SECRET, 1)
    registry.decide(RegisterNode(1, SNID, "a:1", (), proof_of(SNID, SECRET), 1))
    prover = registry.prover(volumes)
    assert prover.adopt(given).code == 0
    registry.announce(prover)
    volumes.close()
    disk.start_recording()
    disk.note(copy.deepcopy(registry.state))
    registry.announce(registry.prover(open_volumes(*VOLUMES, fs=disk)))
    assert restarts(disk, given) == 0


def test_B11_power_may_fail_while_a_node_is_given_another_secret() -> None:
    """Its volumes hold the one before: it was removed from the cluster, and added again."""
    disk = sim_volumes()
    registry, volumes = Registry(disk), open_volumes(*VOLUMES, fs=disk)
    registry.decide(RegisterNode(1, SNID, "a:1", (), proof_of(SNID, SECRET), 1))
    prover = registry.prover(volumes)
    assert prover.adopt(AdoptIdentity(1, SNID, SECRET, 1)).code == 0
    registry.announce(prover)
    registry.decide(RenewNode(1, SNID, 1, proof_of(SNID, ANOTHER)))
    given = AdoptIdentity(1, SNID, ANOTHER, 2)
    disk.start_recording()
    disk.note(copy.deepcopy(registry.state))
    assert prover.adopt(given).code == 0
    registry.announce(prover)
    assert restarts(disk, given) > 0


@pytest.mark.parametrize("number", range(40))
def test_B11_an_error_while_a_node_changes_its_secret_leaves_it_one(number: int) -> None:
    """Whichever operation of the disk fails."""
    disk = sim_volumes()
    registry, volumes = Registry(disk), open_volumes(*VOLUMES, fs=disk)
    registry.decide(RegisterNode(1, SNID, "a:1", (), proof_of(SNID, SECRET), 1))
    prover = registry.prover(volumes)
    assert prover.adopt(AdoptIdentity(1, SNID, SECRET, 1)).code == 0
    disk.fail_operation(disk.operations + number, errno.EIO)
    registry.announce(prover)
    disk.heal()
    registry.announce(prover)
    volumes.close()
    registry.announce(registry.prover(open_volumes(*VOLUMES, fs=disk)))
