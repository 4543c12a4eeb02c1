"""A write-once log on a disk that fails: every write, sync and name of a run fails once (see `test_faults`).

Whatever fails, the caller gets a typed error, the log is poisoned (M8) and goes on being read, and opening it again
finds a prefix of the records with all that was reported durable, which survives a power loss.
"""

from __future__ import annotations

import errno
import random

import pytest

from tests.core.writeonce_paper import PaperWriteOnceLog
from tests.storage.owner import EVERYTHING, IDENTITY, PATH, options
from tests.storage.test_faults import FailingDisk
from tests.storage.writeonce_owner import WriteOnceOwner, check, contents, told
from varlog.errors import DiskFull, NoSuchReplica, Poisoned
from varlog.sim.disk import SimDisk
from varlog.storage.writeonce import WriteOnceStorage
from varlog.types import GLSN

SEGMENT_BYTES = 600


class Story:
    """A run over rolls, a wipe, trims and a clean close, which remembers how far it was told it came."""

    def __init__(self) -> None:
        self.owner: WriteOnceOwner | None = None

    def tell(self, disk: SimDisk) -> None:
        owner = self.owner = WriteOnceOwner(disk, options(SEGMENT_BYTES))
        owner.promise()
        for glsn, size in ((2, 30), (5, 250), (1, 120), (3, 300), (8, 200)):
            owner.write(glsn, size=size)
            owner.flush()
        owner.promise(4)
        owner.write((6, 2), 4, size=100)
        owner.flush()
        owner.trim(3)
        owner.write(9, size=100)
        owner.flush()
        owner.write(8)
        owner.storage.close()
        owner.paper.make_durable()


def tell_until_it_fails(disk: SimDisk) -> Story:
    story = Story()
    try:
        story.tell(disk)
    except (DiskFull, Poisoned):
        pass
    else:
        assert story.owner is not None
        assert story.owner.undeleted
    owner = story.owner
    if owner is not None:
        owner.paper.make_durable(owner.storage.durable)
    if owner is not None and owner.storage.poisoned:
        with pytest.raises(Poisoned):
            owner.storage.take()
        first = GLSN(owner.paper.trim + 1)
        assert contents(owner.storage.read(first, EVERYTHING)) == contents(owner.paper.read(first, EVERYTHING))
    return story


def check_reopens(disk: SimDisk, story: Story) -> None:
    """The log opens to an allowed prefix, and to the same one after a power loss."""
    disk.kill()
    disk.heal()
    owner = story.owner
    durable, staged = (-1, 0) if owner is None else (owner.paper.durable, owner.paper.staged)
    try:
        storage = WriteOnceStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES))
    except NoSuchReplica:
        assert durable < 0
        return
    paper = owner.paper if owner is not None else PaperWriteOnceLog()
    papers = [paper.restarted(k) for k in range(staged, max(0, durable) - 1, -1)]
    found = next((one for one in papers if told(one) == told(storage)), None)
    assert found is not None, f"no prefix of {durable} to {staged} records: {told(storage)}"
    check(storage, found)
    disk.power_loss(random.Random(1))
    check(WriteOnceStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES)), found)


def test_M8_any_sync_may_fail() -> None:
    total = FailingDisk(0, None)
    Story().tell(total)
    assert total.syncs > 20
    for number in range(1, total.syncs + 1):
        for chance in (None, random.Random(number)):
            disk = FailingDisk(number, chance)
            check_reopens(disk, tell_until_it_fails(disk))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_M8_any_operation_may_fail(error: int) -> None:
    total = SimDisk()
    Story().tell(total)
    assert total.operations > 40
    for number in range(total.operations):
        disk = SimDisk()
        disk.fail_operation(number, error)
        check_reopens(disk, tell_until_it_fails(disk))
