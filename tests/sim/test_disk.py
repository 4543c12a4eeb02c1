"""The simulated disk: what it shows, what it keeps, and how it fails."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from varlog.sim.disk import DiskFault, SimDisk
from varlog.sim.medium import SECTOR_BYTES
from varlog.storage.files import FileSystem, OSFileSystem


def lossy_seeds(disk_of: Callable[[], SimDisk], seeds: int = 200) -> list[SimDisk]:
    """The same disk after a power loss under many seeds."""
    disks = []
    for seed in range(seeds):
        disk = disk_of()
        disk.power_loss(random.Random(seed))
        disks.append(disk)
    return disks


def content(disk: SimDisk, path: str) -> bytes:
    file = disk.open(path)
    return file.pread(file.size(), 0)


def synced_file(path: str = "/d/f", data: bytes = b"") -> SimDisk:
    disk = SimDisk()
    disk.mkdir("/d")
    file = disk.create(path)
    if data:
        file.pwritev([data], 0)
    file.fdatasync()
    disk.sync_dir("/d")
    return disk


@pytest.fixture(params=["simulated", "operating system"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    return (SimDisk(), "/v") if request.param == "simulated" else (OSFileSystem(), f"{tmp_path}/v")


class TestSeam:
    """The simulated and the real file system answer alike."""

    def test_files(self, place: tuple[FileSystem, str]) -> None:
        fs, root = place
        fs.mkdir(f"{root}/a/b")
        file = fs.create(f"{root}/a/b/f")
        file.pwritev([b"hello ", bytearray(b"wor"), memoryview(b"ld")], 4)
        assert file.size() == 15
        assert file.pread(100, 0) == b"\0\0\0\0hello world"
        assert file.pread(3, 20) == b""
        file.allocate(32)
        file.allocate(8)
        assert file.size() == 32
        assert file.pread(100, 14) == b"d" + bytes(17)
        file.truncate(6)
        file.truncate(10)
        assert file.pread(100, 0) == b"\0\0\0\0he\0\0\0\0"
        file.fdatasync()
        file.close()
        assert fs.open(f"{root}/a/b/f").size() == 10

    def test_names(self, place: tuple[FileSystem, str]) -> None:
        fs, root = place
        fs.mkdir(root)
        fs.mkdir(root)
        fs.create(f"{root}/b").pwritev([b"b"], 0)
        fs.create(f"{root}/a").pwritev([b"a"], 0)
        assert fs.listdir(root) == ["a", "b"]
        fs.rename(f"{root}/a", f"{root}/b")
        assert fs.listdir(root) == ["b"]
        assert fs.open(f"{root}/b").pread(9, 0) == b"a"
        assert fs.is_writable_directory(root)
        assert not fs.is_writable_directory(f"{root}/b")
        assert not fs.exists(f"{root}/a")
        fs.sync_dir(root)
        fs.unlink(f"{root}/b")
        fs.rmdir(root)
        assert not fs.exists(root)

    def test_refusals(self, place: tuple[FileSystem, str]) -> None:
        fs, root = place
        fs.mkdir(f"{root}/sub")
        fs.create(f"{root}/f").close()
        with pytest.raises(FileExistsError):
            fs.create(f"{root}/f")
        with pytest.raises(FileNotFoundError):
            fs.open(f"{root}/none")
        with pytest.raises(FileNotFoundError):
            fs.create(f"{root}/none/f")
        with pytest.raises(FileNotFoundError):
            fs.unlink(f"{root}/none")
        with pytest.raises(FileNotFoundError):
            fs.listdir(f"{root}/none")
        with pytest.raises(NotADirectoryError):
            fs.listdir(f"{root}/f")
        with pytest.raises(OSError, match="empty"):
            fs.rmdir(root)
        with pytest.raises(FileExistsError):
            fs.mkdir(f"{root}/f")

    def test_lock_is_exclusive(self, place: tuple[FileSystem, str]) -> None:
        fs, root = place
        fs.mkdir(root)
        lock = fs.lock(f"{root}/lock")
        with pytest.raises(BlockingIOError):
            fs.lock(f"{root}/lock")
        lock.release()
        fs.lock(f"{root}/lock").release()


def test_kill_keeps_the_page_cache_and_ends_files_and_locks() -> None:
    disk = synced_file(data=b"old")
    file = disk.open("/d/f")
    file.pwritev([b"new"], 0)
    disk.lock("/d/lock")
    disk.kill()
    with pytest.raises(OSError, match="closed"):
        file.pread(1, 0)
    with pytest.raises(OSError, match="closed"):
        file.pwritev([b"late"], 0)
    assert content(disk, "/d/f") == b"new"
    disk.lock("/d/lock")


def test_power_loss_keeps_what_was_synced() -> None:
    def make() -> SimDisk:
        disk = synced_file(data=b"kept")
        disk.open("/d/f").pwritev([b"more"], 4)
        return disk

    found = {content(disk, "/d/f") for disk in lossy_seeds(make)}
    assert found == {b"kept", b"keptmore", b"kept\0\0\0\0"}


def test_power_loss_cuts_at_the_files_sectors() -> None:
    def make() -> SimDisk:
        disk = synced_file(data=b"x" * 100)
        disk.open("/d/f").pwritev([b"y" * 1500], 100)
        return disk

    sizes = {len(content(disk, "/d/f").rstrip(b"\0")) for disk in lossy_seeds(make)}
    assert sizes == {100, 1600, SECTOR_BYTES, 2 * SECTOR_BYTES, 3 * SECTOR_BYTES}


def test_power_loss_draws_for_each_write_by_itself() -> None:
    def make() -> SimDisk:
        disk = synced_file()
        disk.open("/d/f").pwritev([b"a"], 0)
        disk.open("/d/f").pwritev([b"b"], 1)
        return disk

    found = {content(disk, "/d/f").rstrip(b"\0") for disk in lossy_seeds(make)}
    assert found == {b"", b"a", b"\0b", b"ab"}


def test_power_loss_does_not_harm_bytes_that_are_written_again() -> None:
    def make() -> SimDisk:
        disk = synced_file(data=b"precious")
        disk.open("/d/f").pwritev([b"precious and new"], 0)
        return disk

    assert all(content(disk, "/d/f").startswith(b"precious") for disk in lossy_seeds(make))


def test_unsynced_names_may_be_missing_with_their_content() -> None:
    def make() -> SimDisk:
        disk = SimDisk()
        disk.mkdir("/d")
        file = disk.create("/d/f")
        file.pwritev([b"data"], 0)
        file.fdatasync()
        return disk

    after = lossy_seeds(make, 50)
    assert {disk.exists("/d/f") for disk in after} == {True, False}
    assert all(content(disk, "/d/f") == b"data" for disk in after if disk.exists("/d/f"))
    assert all(disk.is_writable_directory("/d") for disk in after)


def test_unsynced_rename_leaves_the_old_or_the_new() -> None:
    def make() -> SimDisk:
        disk = synced_file(data=b"old")
        tmp = disk.create("/d/tmp")
        tmp.pwritev([b"new"], 0)
        tmp.fdatasync()
        disk.rename("/d/tmp", "/d/f")
        return disk

    after = lossy_seeds(make, 50)
    assert {content(disk, "/d/f") for disk in after} == {b"old", b"new"}
    assert {tuple(disk.listdir("/d")) for disk in after} == {("f",), ("f", "tmp")}


def test_synced_rename_and_unlink_stay() -> None:
    disk = synced_file(data=b"old")
    disk.rename("/d/f", "/d/g")
    disk.sync_dir("/d")
    disk.power_loss(random.Random(0))
    assert disk.listdir("/d") == ["g"]
    disk.unlink("/d/g")
    disk.sync_dir("/d")
    disk.power_loss(random.Random(0))
    assert disk.listdir("/d") == []


def test_after_a_failed_sync_data_is_clean_but_lost() -> None:
    disk = synced_file(data=b"base")
    file = disk.open("/d/f")
    file.pwritev([b"lost"], 4)
    disk.fail_syncs(prefix="/d")
    with pytest.raises(OSError, match="fsync"):
        file.fdatasync()
    assert content(disk, "/d/f") == b"baselost"
    file.fdatasync()
    file.pwritev([b"!"], 8)
    file.fdatasync()
    disk.kill()
    assert content(disk, "/d/f") == b"baselost!"
    disk.power_loss(random.Random(0))
    assert content(disk, "/d/f") == b"base\0\0\0\0!"
    assert disk.faults[DiskFault.SYNC_ERROR] == 1


def test_writing_again_after_a_failed_sync_makes_it_durable() -> None:
    disk = synced_file()
    file = disk.open("/d/f")
    disk.fail_syncs()
    file.pwritev([b"data"], 0)
    with pytest.raises(OSError, match="fsync"):
        file.fdatasync()
    file.pwritev([b"data"], 0)
    file.fdatasync()
    disk.power_loss(random.Random(0))
    assert content(disk, "/d/f") == b"data"


def test_evict_shows_what_a_failed_sync_lost() -> None:
    disk = synced_file(data=b"base")
    file = disk.open("/d/f")
    file.pwritev([b"lost"], 4)
    disk.fail_syncs()
    with pytest.raises(OSError, match="fsync"):
        file.fdatasync()
    file.pwritev([b"dirty"], 10)
    disk.evict()
    assert file.pread(20, 0) == b"base\0\0\0\0\0\0dirty"


def test_full_disk_writes_what_fits() -> None:
    disk = synced_file(data=b"12345678")
    file = disk.open("/d/f")
    disk.set_free_bytes(10)
    file.allocate(12)
    file.pwritev([b"abcd"], 8)
    with pytest.raises(OSError, match="space") as caught:
        file.pwritev([b"0123456789"], 12)
    assert caught.value.errno == errno.ENOSPC
    assert content(disk, "/d/f") == b"12345678abcd012345"
    with pytest.raises(OSError, match="space"):
        file.allocate(19)
    with pytest.raises(OSError, match="space"):
        disk.create("/d/g")
    file.truncate(8)
    file.pwritev([b"0123456789"], 8)
    disk.unlink("/d/f")
    disk.create("/d/g").allocate(18)
    assert disk.faults[DiskFault.FULL] == 3


def test_write_error_may_leave_a_part() -> None:
    left = set()
    for seed in range(60):
        disk = synced_file()
        disk.fail_writes(rng=random.Random(seed))
        with pytest.raises(OSError, match="write"):
            disk.open("/d/f").pwritev([b"abc"], 0)
        left.add(content(disk, "/d/f"))
        disk.open("/d/f").pwritev([b"abc"], 0)
    assert left == {b"", b"a", b"ab", b"abc"}


def test_faults_have_a_place_and_end_with_heal() -> None:
    disk = synced_file()
    disk.mkdir("/dd")
    disk.fail_writes(count=2, prefix="/d")
    disk.create("/dd/g").pwritev([b"x"], 0)
    with pytest.raises(OSError, match="write"):
        disk.open("/d/f").pwritev([b"x"], 0)
    disk.heal()
    disk.open("/d/f").pwritev([b"x"], 0)


def test_any_single_operation_can_be_made_to_fail() -> None:
    def run(disk: SimDisk) -> None:
        disk.mkdir("/d")
        file = disk.create("/d/f")
        file.allocate(100)
        file.pwritev([b"x"], 0)
        file.fdatasync()
        disk.rename("/d/f", "/d/g")
        disk.sync_dir("/d")
        disk.unlink("/d/g")

    whole = SimDisk()
    run(whole)
    for number in range(whole.operations):
        disk = SimDisk()
        disk.fail_operation(number, errno.ENOSPC)
        with pytest.raises(OSError, match="space"):
            run(disk)
        assert disk.operations == number + 1


def test_bit_rot_hits_synced_bytes_only() -> None:
    places = set()
    for seed in range(300):
        disk = synced_file(data=b"\0" * 8)
        disk.open("/d/f").allocate(1 << 20)
        disk.open("/d/f").pwritev([b"zz"], 6)
        hit = disk.rot(random.Random(seed), prefix="/d", suffix="f")
        if hit is not None:
            path, offset = hit
            places.add(offset)
            found = content(disk, path)[:6]
            assert found[offset].bit_count() == 1
            disk.power_loss(random.Random(seed))
            assert content(disk, path)[:6] == found
    assert places == {0, 1, 2, 3, 4, 5}
    assert SimDisk().rot(random.Random(0)) is None


def test_reserved_space_costs_nothing_and_many_small_writes_are_cheap() -> None:
    disk = synced_file()
    file = disk.open("/d/f")
    file.allocate(1 << 40)
    for i in range(20_000):
        file.pwritev([b"0123456789abcdef" * 4], i * 64)
        if i % 100 == 0:
            file.fdatasync()
    assert file.pread(4, (1 << 40) - 4) == bytes(4)
    assert file.size() == 1 << 40
    assert len(disk.image().files["/d/f"].data) == 20_000 * 64


def test_image_and_back() -> None:
    disk = synced_file(data=b"data")
    disk.mkdir("/d/e")
    again = SimDisk.from_image(disk.image())
    assert again.image() == disk.image()
    again.power_loss(random.Random(1))
    assert again.image() == disk.image()
