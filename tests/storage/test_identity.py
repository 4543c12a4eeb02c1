"""Whose log a directory holds, as its own files say it."""

from __future__ import annotations

import pytest

from tests.storage.bad_sectors import BadSectors
from varlog.errors import Corrupt
from varlog.sim.disk import SimDisk
from varlog.storage.identity import identify
from varlog.storage.log import LogStreamStorage
from varlog.storage.options import StorageOptions
from varlog.types import LLSN, ClusterID, Epoch, LogStreamID, LogStreamIdentity, StorageNodeID, TopicID

PATH = "/volume/log"
IDENTITY = LogStreamIdentity(ClusterID(1), StorageNodeID(2), TopicID(3), LogStreamID(4))


def disk_with_log(rolls: int = 0) -> SimDisk:
    """A log of so many closed segments and the one it ends with."""
    disk = SimDisk()
    disk.mkdir("/volume")
    storage = LogStreamStorage.create(disk, PATH, IDENTITY, StorageOptions(segment_bytes=1024))
    epoch = 0
    while len(segments(disk)) <= rolls:
        epoch += 1
        storage.stage_seal(Epoch(epoch), LLSN(1))
        group = storage.take()
        assert group is not None
        storage.write(group)
        storage.sync(group)
        storage.finish(group)
    storage.close()
    return disk


def segments(disk: SimDisk) -> list[str]:
    return [f"{PATH}/{name}" for name in disk.listdir(PATH) if name.endswith(".seg")]


def test_a_log_says_whose_it_is() -> None:
    assert identify(disk_with_log(), PATH) == IDENTITY


def test_a_directory_without_a_segment_is_nobodys() -> None:
    disk = SimDisk()
    disk.mkdir(PATH)
    disk.lock(f"{PATH}/lock")
    disk.create(f"{PATH}/0000000001-00000000000000000001.seg.tmp")
    assert identify(disk, PATH) is None


def test_one_sound_head_is_enough() -> None:
    disk = disk_with_log(rolls=2)
    *others, newest = segments(disk)
    assert len(others) == 2
    disk.flip_bit(newest, 20)
    assert identify(disk, PATH) == IDENTITY
    disk.flip_bit(others[1], 20)
    assert identify(disk, PATH) == IDENTITY


def test_segments_of_which_none_says_whose_it_is_are_not_guessed() -> None:
    disk = disk_with_log(rolls=1)
    for path in segments(disk):
        disk.flip_bit(path, 20)
    with pytest.raises(Corrupt, match="no segment says whose it is"):
        identify(disk, PATH)


def test_an_empty_file_with_a_segments_name_is_damage() -> None:
    disk = SimDisk()
    disk.mkdir(PATH)
    disk.create(f"{PATH}/0000000001-00000000000000000001.seg").close()
    with pytest.raises(Corrupt):
        identify(disk, PATH)


def test_a_head_that_cannot_be_read_is_as_good_as_a_damaged_one() -> None:
    image = disk_with_log(rolls=1).image()
    older, newest = segments(SimDisk.from_image(image))
    assert identify(BadSectors.under(image, newest), PATH) == IDENTITY
    with pytest.raises(Corrupt, match="unreadable bytes"):
        identify(BadSectors.under(image, older, newest), PATH)


def test_what_is_no_directory_is_damage() -> None:
    disk = SimDisk()
    disk.create("/log").close()
    with pytest.raises(Corrupt):
        identify(disk, "/log")
