"""Groups are carried to disk in the loop or by a thread, files are deleted by another, and stopping waits for them
without keeping the loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.daemon.small import run, until
from tests.storage.owner import Owner, options
from tests.storagenode.gated import GatedFileSystem
from varlog import batch, limits
from varlog.errors import VarlogError
from varlog.storage.group import WriteGroup
from varlog.storage.grouped import AnyLog
from varlog.storage.log import LogStreamStorage
from varlog.storagenode.writing import INLINE_BYTES, VolumeWriting
from varlog.types import LLSN, ClusterID, Epoch, LogStreamID, LogStreamIdentity, Sequence, StorageNodeID, TopicID

IDENTITY = LogStreamIdentity(ClusterID(1), StorageNodeID(2), TopicID(3), LogStreamID(4))


class Volume:
    """One log stream on a disk that can be made to take its time, and what was told of its groups."""

    def __init__(self, path: Path) -> None:
        self.fs = GatedFileSystem()
        self.path = str(path / "log")
        self.storage = LogStreamStorage.create(self.fs, self.path, IDENTITY)
        self.told: list[tuple[WriteGroup | None, VarlogError | None]] = []
        self.writing = VolumeWriting(asyncio.get_running_loop(), self._on_written)
        self._end = 1

    def _on_written(self, _storage: AnyLog, group: WriteGroup | None, error: VarlogError | None) -> None:
        self.told.append((group, error))

    def stage(self, size: int) -> None:
        packed = batch.encode([bytes(size)], writer_id=1, sequence=self._end)
        self.storage.stage_batch(LLSN(self._end), Epoch(2), Sequence(0), packed, batch.verify(packed))
        self._end += 1

    def submit(self, size: int, *, at_once: bool = False) -> None:
        self.stage(size)
        self.writing.submit(self.storage, at_once=at_once)

    def recovered_end(self) -> int:
        """What another start finds."""
        storage = LogStreamStorage.open(self.fs, self.path, IDENTITY)
        storage.close()
        return storage.recovered.uncommitted_llsn_end


def test_a_small_group_is_written_at_once_if_that_is_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        volume = Volume(tmp_path)
        volume.submit(100, at_once=True)
        ((group, error),) = volume.told
        assert error is None
        assert group is not None
        assert group.synced
        assert not volume.writing.is_busy(volume.storage)
        await volume.writing.stop()
        volume.storage.close()
        assert volume.recovered_end() == 2

    run(main())


def test_a_small_group_is_written_one_turn_later_and_a_large_one_by_a_thread(tmp_path: Path) -> None:
    async def main() -> None:
        volume = Volume(tmp_path)
        volume.submit(100)
        assert volume.writing.is_busy(volume.storage)
        assert not volume.told
        await until(lambda: len(volume.told) == 1)
        volume.fs.syncs.close()
        volume.submit(2 * INLINE_BYTES)
        await until(lambda: volume.fs.syncs.waiting == 1)
        assert volume.writing.is_busy(volume.storage), "and the loop goes on meanwhile"
        volume.fs.syncs.open()
        await until(lambda: len(volume.told) == 2)
        assert all(group is not None and group.synced and error is None for group, error in volume.told)
        assert not volume.writing.is_busy(volume.storage)
        await volume.writing.stop()
        volume.storage.close()
        assert volume.recovered_end() == 3

    run(main())


def test_stopping_waits_for_the_thread_and_the_loop_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        volume = Volume(tmp_path)
        volume.fs.syncs.close()
        volume.submit(2 * INLINE_BYTES)
        await until(lambda: volume.fs.syncs.waiting == 1)
        stopping = asyncio.ensure_future(volume.writing.stop())
        turns = 0
        while turns < 10:
            await asyncio.wait({stopping}, timeout=0)
            turns += 1
        assert not stopping.done()
        volume.fs.syncs.open()
        await stopping
        assert [error for _, error in volume.told] == [None]
        volume.storage.close()
        assert volume.recovered_end() == 2

    run(main())


def test_a_group_that_was_about_to_begin_is_left_to_the_closing_of_the_storage(tmp_path: Path) -> None:
    """Large enough for a thread: one that begins behind the back of a stop would have its files taken away."""

    async def main() -> None:
        volume = Volume(tmp_path)
        volume.submit(2 * INLINE_BYTES)
        await volume.writing.stop()
        assert not volume.told
        assert not volume.writing.is_busy(volume.storage)
        volume.storage.close()
        assert volume.recovered_end() == 2

    run(main())


def test_a_failure_is_told_and_the_storage_is_left_alone_from_then_on(tmp_path: Path) -> None:
    async def main() -> None:
        volume = Volume(tmp_path)
        volume.storage.abandon()
        volume.submit(100)
        await until(lambda: len(volume.told) == 1)
        assert volume.told[0][1] is not None
        volume.storage.poisoned = True
        volume.submit(100)
        assert not volume.writing.is_busy(volume.storage)
        await volume.writing.stop()

    run(main())


def trimmed(path: Path) -> tuple[Owner, GatedFileSystem]:
    """A log of which many files are to be deleted, by a disk that does not do it at once."""
    disk = GatedFileSystem()
    owner = Owner(disk, options(600), path=str(path / "log"))
    for _ in range(30):
        owner.store(2, 60)
    owner.trim(50)
    owner.write_group()
    assert owner.storage.doomed > limits.DELETIONS_AT_ONCE
    disk.deletions.close()
    return owner, disk


def test_L5_groups_are_written_while_files_are_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        owner, disk = trimmed(tmp_path)
        doomed = owner.storage.doomed
        told: list[WriteGroup | None] = []
        writing = VolumeWriting(asyncio.get_running_loop(), lambda _storage, group, _error: told.append(group))
        for _ in range(2):
            writing.clear(owner.storage)
        await until(lambda: disk.deletions.waiting == 1)
        assert writing.is_busy(owner.storage), "its files are in use"
        owner.append()
        writing.submit(owner.storage, at_once=True)
        (group,) = told
        assert group is not None
        assert group.synced
        disk.deletions.open()
        await until(lambda: told[1:] == [None])
        assert not writing.is_busy(owner.storage)
        assert owner.storage.doomed == doomed - limits.DELETIONS_AT_ONCE
        await writing.stop()
        owner.check()
        owner.storage.close()

    run(main())


def test_stopping_waits_for_a_deletion_and_begins_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        owner, disk = trimmed(tmp_path)
        writing = VolumeWriting(asyncio.get_running_loop(), lambda *_: None)
        writing.clear(owner.storage)
        await until(lambda: disk.deletions.waiting == 1)
        stopping = asyncio.ensure_future(writing.stop())
        await asyncio.wait({stopping}, timeout=0)
        assert not stopping.done()
        disk.deletions.open()
        await stopping
        left = owner.storage.doomed
        writing.clear(owner.storage)
        assert not writing.is_busy(owner.storage)
        owner.storage.close()
        assert owner.reopen().doomed == left > 0
        owner.storage.close()

    run(main())


def test_a_file_that_cannot_be_deleted_is_told_and_the_log_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        owner, disk = trimmed(tmp_path)
        told: list[VarlogError | None] = []
        writing = VolumeWriting(asyncio.get_running_loop(), lambda _storage, _group, error: told.append(error))
        disk.deletions.open()
        in_the_way = f"{owner.path}/{disk.listdir(owner.path)[0]}"
        disk.unlink(in_the_way)
        disk.mkdir(in_the_way)
        writing.clear(owner.storage)
        await until(lambda: told == [None])
        assert owner.storage.doomed == 0
        assert not owner.storage.poisoned
        await writing.stop()
        owner.storage.close()

    run(main())
    assert "could not be deleted" in caplog.text
