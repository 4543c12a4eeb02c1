"""The volumes of a storage node: what they must be, who the node is, and how often it was started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from varlog import errors
from varlog.sim.disk import SimDisk
from varlog.storage.files import FileSystem, OSFileSystem
from varlog.storagenode.volumes import Volumes
from varlog.types import ClusterID, LogStreamID, StorageNodeID

CID = ClusterID(3)
SNID = StorageNodeID(8)


def open_volumes(
    *paths: Path | str, snid: int | None = SNID, fs: FileSystem | None = None, new: bool = False
) -> Volumes:
    given = StorageNodeID(snid) if snid is not None else None
    return Volumes.open(fs or OSFileSystem(), CID, given, [str(path) for path in paths], error_if_exists=new)


def start(*paths: Path | str, snid: int | None = SNID) -> tuple[int, int]:
    """Start and stop once: who the node was, and the number of the start."""
    volumes = open_volumes(*paths, snid=snid)
    volumes.close()
    return volumes.snid, volumes.boot


def test_B1_a_volume_must_exist(tmp_path: Path) -> None:
    with pytest.raises(errors.NotWritable, match="nowhere"):
        open_volumes(tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


def test_B1_a_volume_must_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "good").mkdir()
    with pytest.raises(errors.NotWritable, match="file"):
        open_volumes(tmp_path / "good", tmp_path / "file")
    assert not list((tmp_path / "good").iterdir()), "nothing is begun before all volumes are looked at"


def test_B1_a_volume_must_take_directories() -> None:
    """Also where the operating system says that it may be written, and then finds another word for no."""
    with pytest.raises(errors.NotWritable, match="/proc"):
        open_volumes("/proc")


@pytest.mark.parametrize("taken", ["cid=3", "cid=3/snid=8"])
@pytest.mark.parametrize("snid", [SNID, None])
def test_B1_a_file_in_the_place_of_a_directory(tmp_path: Path, taken: str, snid: int | None) -> None:
    (tmp_path / taken).parent.mkdir(exist_ok=True)
    (tmp_path / taken).touch()
    with pytest.raises(errors.NotWritable):
        open_volumes(tmp_path, snid=snid)


def test_B1_a_full_volume_says_so() -> None:
    disk = SimDisk()
    disk.mkdir("/volume")
    disk.set_free_bytes(0)
    with pytest.raises(errors.DiskFull):
        open_volumes("/volume", fs=disk)


def test_B1_an_id_is_made_at_random_and_kept(tmp_path: Path) -> None:
    snid, boot = start(tmp_path, snid=None)
    assert 1 <= snid < 1 << 32
    assert boot == 1
    assert start(tmp_path, snid=None) == (snid, 2)
    (tmp_path / "other").mkdir()
    another, _ = start(tmp_path / "other", snid=None)
    assert another != snid


def test_B1_an_id_that_was_given_is_found_again(tmp_path: Path) -> None:
    assert start(tmp_path) == (SNID, 1)
    assert start(tmp_path, snid=None) == (SNID, 2)


def test_B1_several_ids_found_need_one_that_is_given(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    start(first, snid=8)
    start(second, snid=9)
    with pytest.raises(errors.InvalidArgument, match=r"\[8, 9\].*--snid"):
        open_volumes(first, second, snid=None)
    assert start(first, second, snid=9) == (9, 2)


def test_B1_data_of_another_cluster_says_nothing_of_who_the_node_is(tmp_path: Path) -> None:
    (tmp_path / "cid=4" / "snid=8").mkdir(parents=True)
    snid, _ = start(tmp_path, snid=None)
    assert snid != 8


def test_B1_two_processes_cannot_be_the_same_node(tmp_path: Path) -> None:
    first = open_volumes(tmp_path)
    with pytest.raises(errors.DirectoryLocked):
        open_volumes(tmp_path)
    other = open_volumes(tmp_path, snid=9)
    first.close()
    assert start(tmp_path) == (SNID, 2), "the one that was refused is not counted"
    other.close()


def test_B2_where_data_lies(tmp_path: Path) -> None:
    volumes = open_volumes(tmp_path)
    assert volumes.replica_path(str(tmp_path), LogStreamID(5)) == f"{tmp_path}/cid=3/snid=8/lsid=5"
    assert (tmp_path / "cid=3" / "snid=8").is_dir()
    volumes.close()


def test_B2_a_volume_may_be_named_relatively(tmp_path: Path) -> None:
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        Path("volume").mkdir()
        volumes = open_volumes("volume")
        assert volumes.paths == (str(tmp_path / "volume"),)
        volumes.close()
    finally:
        os.chdir(before)


def test_B3_only_what_is_named_like_a_log_stream_is_one(tmp_path: Path) -> None:
    start(tmp_path)
    for name in ("lsid=5", "lsid=05", "lsid=", "lsid=x", "lsid=0", "lsid=4294967296", "lsid=²", "other"):
        (tmp_path / "cid=3" / "snid=8" / name).mkdir()
    volumes = open_volumes(tmp_path)
    assert volumes.replicas() == {5: str(tmp_path)}
    volumes.close()


def test_B4_the_same_log_stream_on_two_volumes(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        (path / "cid=3" / "snid=8" / "lsid=5").mkdir(parents=True)
    volumes = open_volumes(*paths)
    with pytest.raises(errors.WrongIdentity, match="log stream 5 is on two volumes"):
        volumes.replicas()
    volumes.close()


def test_B5_error_if_exists(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    open_volumes(old, new=True).close()
    with pytest.raises(errors.AlreadyExists, match="snid=8 exists already"):
        open_volumes(new, old, new=True)
    assert not list(new.iterdir()), "a start that is refused leaves nothing behind"
    assert start(old) == (SNID, 2)


def test_B5_without_an_id_it_is_what_was_found_that_exists(tmp_path: Path) -> None:
    start(tmp_path)
    with pytest.raises(errors.AlreadyExists):
        open_volumes(tmp_path, snid=None, new=True)


def test_the_number_of_the_start_grows_on_whatever_volumes_are_left(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for path in (one, two, three):
        path.mkdir()
    assert [start(one), start(one), start(one, two)] == [(SNID, 1), (SNID, 2), (SNID, 3)]
    assert start(two) == (SNID, 4)
    assert start(one, three) == (SNID, 4), "not known there, and not needed: that start was without this volume"
    assert start(one, two, three) == (SNID, 5)


@pytest.mark.parametrize("content", [b"", b"x", b"-1", b"9" * 40])
def test_a_number_of_the_start_that_is_none_is_not_guessed(tmp_path: Path, content: bytes) -> None:
    start(tmp_path)
    (tmp_path / "cid=3" / "snid=8" / "boot").write_bytes(content)
    with pytest.raises(errors.WrongIdentity, match="boot"):
        open_volumes(tmp_path)


def test_the_number_of_the_start_is_durable_before_it_is_used() -> None:
    disk = SimDisk()
    disk.mkdir("/volume")
    open_volumes("/volume", fs=disk)
    disk.evict()
    disk.kill()
    assert open_volumes("/volume", fs=disk).boot == 2
