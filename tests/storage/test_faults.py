"""A disk that fails: every write, sync and name of a run fails once, in every way a disk has of failing.

Whatever fails, the caller gets a typed error, the log is poisoned (M8) and goes on being read, and opening it again
finds a prefix of the records with all that was reported durable. What that opening believed must survive a power loss:
after a failed sync the page cache shows what the disk does not have. Only deletions may fail without any harm.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from tests.storage.owner import IDENTITY, PATH, Model, Owner, check_opened, check_recovered, model_of, options
from varlog.errors import Corrupt, DirectoryLocked, DiskFull, NoSuchReplica, NotWritable, Poisoned
from varlog.sim.disk import SimDisk
from varlog.storage.files import FileSystem
from varlog.storage.log import LogStreamStorage
from varlog.types import GLSN, LLSN

SEGMENT_BYTES = 700


class FailingDisk(SimDisk):
    """Fails one sync of a file or a directory, by its number: what it should have made durable is clean but lost."""

    def __init__(self, number: int, rng: random.Random | None) -> None:
        super().__init__()
        self.syncs = 0
        self._number = number
        self._chance = rng

    def _count_sync(self) -> None:
        self.syncs += 1
        if self.syncs == self._number:
            self.fail_syncs(1, rng=self._chance)

    def sync(self, inode, path):  # type: ignore[no-untyped-def]
        self._count_sync()
        super().sync(inode, path)

    def sync_dir(self, path: str) -> None:
        self._count_sync()
        super().sync_dir(path)


class Story:
    """A run over rolls, a seal, a trim and a clean close, which remembers how far it was told it came."""

    def __init__(self) -> None:
        self.owner: Owner | None = None
        self.durable = -1
        """How many records were reported durable; -1 if not even the log's creation was."""

    def tell(self, disk: FileSystem) -> None:
        owner = self.owner = Owner(disk, options(SEGMENT_BYTES))
        self.durable = 0
        owner.unseal()
        for size in (30, 250, 120, 300):
            owner.append(2, size)
            self._flush(owner)
            owner.commit()
            self._flush(owner)
        owner.append(1, 400)
        self._flush(owner)
        owner.seal()
        owner.unseal()
        owner.append(2, 50)
        self._flush(owner)
        owner.commit()
        owner.trim(5)
        self._flush(owner)
        owner.trim(7)
        self._flush(owner)
        owner.append(1, 30)
        owner.storage.close()
        self.durable = len(owner.records)

    def _flush(self, owner: Owner) -> None:
        while (group := owner.write_group()) is not None:
            if group.needs_sync:
                self.durable = len(owner.records)
        owner.clear()


def tell_until_it_fails(disk: SimDisk) -> Story:
    """Run the story; the error that ends it must be one a caller can act on, and reads must go on."""
    story = Story()
    try:
        story.tell(disk)
    except (DiskFull, Poisoned):
        pass
    else:
        assert story.owner is not None
        assert story.owner.undeleted
    owner = story.owner
    if owner is not None and story.durable < len(owner.records) and owner.storage.poisoned:
        check_reads_go_on(owner)
        with pytest.raises(Poisoned):
            owner.storage.take()
    return story


def check_reads_go_on(owner: Owner) -> None:
    for glsn, stored, _ in owner.model.kept():
        found = owner.storage.read(max(glsn, GLSN(owner.model.trim_glsn + 1)), GLSN(glsn + stored.count), 1)
        assert [bytes(one.batch) for one in found] == [stored.data]


def check_reopens(disk: SimDisk, story: Story) -> None:
    """The log opens to an allowed prefix, and to the same one after a power loss."""
    disk.kill()
    disk.heal()
    records = story.owner.records if story.owner is not None else []
    try:
        storage = LogStreamStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES))
    except NoSuchReplica:
        assert story.durable < 0
        return
    model = prefix_of(storage, [model_of(records[:k]) for k in range(max(0, story.durable), len(records) + 1)])
    check_opened(storage, model)
    disk.power_loss(random.Random(1))
    check_opened(LogStreamStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES)), model)


def prefix_of(storage: LogStreamStorage, models: list[Model]) -> Model:
    assert storage.recovered.corruption is None
    for model in reversed(models):
        try:
            check_recovered(storage.recovered, model)
        except AssertionError:
            continue
        return model
    raise AssertionError(f"not a prefix: {storage.recovered}")


def operations_of_the_story() -> int:
    disk = SimDisk()
    Story().tell(disk)
    return disk.operations


def syncs_of_the_story() -> int:
    disk = FailingDisk(0, None)
    Story().tell(disk)
    return disk.syncs


def test_the_story_is_long_enough() -> None:
    story = Story()
    disk = SimDisk()
    story.tell(disk)
    assert operations_of_the_story() > 80
    assert syncs_of_the_story() > 40
    assert len([name for name in disk.listdir(PATH) if name.endswith(".seg")]) > 1


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_M8_any_operation_may_fail(error: int) -> None:
    for number in range(operations_of_the_story()):
        disk = SimDisk()
        disk.fail_operation(number, error)
        story = tell_until_it_fails(disk)
        check_reopens(disk, story)


@pytest.mark.parametrize("chance", [None, 1, 2, 3], ids=["lost", "part-1", "part-2", "part-3"])
def test_M8_any_sync_may_fail_and_lose_what_it_should_have_kept(chance: int | None) -> None:
    for number in range(1, syncs_of_the_story() + 1):
        disk = FailingDisk(number, None if chance is None else random.Random(100 * chance + number))
        story = tell_until_it_fails(disk)
        check_reopens(disk, story)


def test_a_disk_may_fill_up_at_any_byte() -> None:
    reached = 0
    for free in range(0, 9000, 97):
        disk = SimDisk()
        disk.set_free_bytes(free)
        story = Story()
        try:
            story.tell(disk)
        except DiskFull:
            reached += 1
        check_reopens(disk, story)
    assert reached > 20


def test_a_full_disk_does_not_keep_a_replica_from_being_read() -> None:
    disk = SimDisk()
    owner = Owner(disk, options(SEGMENT_BYTES))
    for _ in range(10):
        owner.store()
    owner.trim(4)
    owner.flush()
    owner.storage.close()
    disk.set_free_bytes(0)
    check_opened(owner.reopen(), owner.model)
    owner.append(1, 2000)
    with pytest.raises(DiskFull):
        owner.flush()
    assert owner.storage.poisoned


def test_opening_may_fail_at_any_operation_and_is_tried_again() -> None:
    """Recovery itself meets a failing disk; what is there is not harmed by it."""

    def crashed() -> tuple[SimDisk, Model, list[Model]]:
        disk = SimDisk()
        owner = Owner(disk, options(SEGMENT_BYTES))
        for size in (30, 250, 120, 300):
            owner.append(2, size)
            owner.flush()
            owner.commit()
            owner.flush()
        at_least = model_of(owner.records)
        owner.append(1, 300)
        group = owner.storage.take()
        assert group is not None
        owner.storage.write(group)
        disk.kill()
        return disk, at_least, [at_least, model_of(owner.records)]

    disk, _, _ = crashed()
    before = disk.operations
    LogStreamStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES)).close()
    wanted = disk.operations - before
    assert wanted > 3
    for number in range(wanted):
        for error, typed in ((errno.ENOSPC, DiskFull), (errno.EIO, Poisoned), (errno.EROFS, NotWritable)):
            disk, _, allowed = crashed()
            disk.fail_operation(disk.operations + number, error)
            with pytest.raises(typed):
                LogStreamStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES)).close()
            disk.kill()
            storage = LogStreamStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES))
            model = prefix_of(storage, allowed)
            disk.power_loss(random.Random(number))
            check_opened(LogStreamStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES)), model)


def test_two_owners_of_one_directory() -> None:
    disk = SimDisk()
    owner = Owner(disk)
    owner.store()
    before = disk.image()
    for attempt in (LogStreamStorage.open, LogStreamStorage.create):
        with pytest.raises(DirectoryLocked):
            attempt(disk, PATH, IDENTITY)
    assert disk.image() == before
    owner.storage.close()
    check_opened(owner.reopen(), owner.model)


def test_a_poisoned_log_can_be_let_go_of() -> None:
    disk = SimDisk()
    owner = Owner(disk)
    owner.store()
    owner.append()
    disk.fail_syncs(1)
    with pytest.raises(Poisoned):
        owner.flush()
    owner.storage.close()
    owner.model = model_of(owner.records)
    check_opened(owner.reopen(), owner.model)


def test_reading_bytes_the_disk_cannot_give_is_corruption() -> None:
    owner = Owner(UnreadableDisk())
    owner.store()
    owner.store()
    assert isinstance(owner.fs, UnreadableDisk)
    owner.fs.broken = True
    with pytest.raises(Corrupt, match="unreadable"):
        owner.storage.read_llsn(LLSN(1), LLSN(2), 1)
    assert [finding for finding in owner.storage.scrub() if finding.segment.endswith(".seg")]


class UnreadableDisk(SimDisk):
    """Fails reads of segments while `broken`."""

    broken = False

    def open(self, path):  # type: ignore[no-untyped-def]
        file = super().open(path)
        return _Unreadable(self, file) if path.endswith(".seg") else file


class _Unreadable:
    def __init__(self, disk: UnreadableDisk, file: object) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name == "pread" and self._disk.broken:
            raise OSError(errno.EIO, "unreadable sector")
        found: Callable[..., object] = getattr(self._file, name)
        return found
