"""The writer's thread: many logs, one thread, groups that grow while a sync is under way."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import pytest

from tests.storage.owner import IDENTITY, Owner, check_opened, options
from varlog.errors import Corrupt, InvalidArgument, Poisoned, VarlogError
from varlog.sim.disk import SimDisk
from varlog.storage.files import OSFileSystem
from varlog.storage.group import WriteGroup
from varlog.storage.grouped import AnyLog
from varlog.storage.log import LogStreamStorage
from varlog.storage.writer import GroupCommitWriter

Completion = tuple[AnyLog, WriteGroup | None, VarlogError | None]


class Completions:
    """What a writer says, in the order it says it; the owner's thread waits for it here."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Completion] = queue.Queue()

    def __call__(self, storage: AnyLog, group: WriteGroup | None, error: VarlogError | None) -> None:
        self._queue.put((storage, group, error))

    def next(self) -> Completion:
        return self._queue.get(timeout=60)


def test_many_logs_are_written_by_one_thread(tmp_path: Path) -> None:
    writer = GroupCommitWriter()
    owners = [Owner(OSFileSystem(), options(5000), path=str(tmp_path / str(n))) for n in range(5)]
    done = Completions()
    busy: set[AnyLog] = set()
    groups = 0
    of: dict[AnyLog, Owner] = {owner.storage: owner for owner in owners}
    for round_ in range(40):
        for number, owner in enumerate(owners):
            for _ in range(1 + number):
                owner.append(1, 50 * (round_ % 7))
            if owner.storage not in busy:
                busy.add(owner.storage)
                writer.submit(owner.storage, done)
        while len(busy) > 2:
            groups += finish_one(done, busy, writer)
    while busy:
        groups += finish_one(done, busy, writer)
    assert groups < 5 * 40, "what is staged while a group is written makes up one group"
    for owner in of.values():
        owner.commit()
        owner.flush()
        owner.check()
        owner.storage.close()
        check_opened(owner.reopen(), owner.model)
        owner.storage.close()
    writer.stop()


def finish_one(done: Completions, busy: set[AnyLog], writer: GroupCommitWriter) -> int:
    storage, group, error = done.next()
    assert error is None
    assert group is not None
    storage.finish(group)
    assert isinstance(storage, LogStreamStorage)
    if storage.staged:
        writer.submit(storage, done)
    else:
        busy.discard(storage)
    return 1


def test_stop_writes_what_was_submitted_and_then_takes_nothing(tmp_path: Path) -> None:
    writer = GroupCommitWriter()
    owners = [Owner(OSFileSystem(), options(), path=str(tmp_path / str(n))) for n in range(10)]
    done = Completions()
    for owner in owners:
        owner.append()
        writer.submit(owner.storage, done)
        writer.submit(owner.storage, done)
    writer.stop()
    for _ in owners:
        storage, group, error = done.next()
        assert group is not None
        assert error is None
        storage.finish(group)
        storage.close()
    with pytest.raises(InvalidArgument):
        writer.submit(owners[0].storage, done)
    assert not [thread for thread in threading.enumerate() if thread.name == "varlog-writer"]


def test_a_failed_group_is_told_and_does_not_stop_the_others() -> None:
    writer = GroupCommitWriter()
    done = Completions()
    failing = SimDisk()
    broken, sound = Owner(failing), Owner(SimDisk())
    failing.fail_syncs(1)
    for owner in (broken, sound):
        owner.append()
        writer.submit(owner.storage, done)
    storage, group, error = done.next()
    assert storage is broken.storage
    assert group is not None
    assert isinstance(error, Poisoned)
    assert storage.poisoned
    storage, group, error = done.next()
    assert storage is sound.storage
    assert error is None
    writer.submit(sound.storage, done)
    _, _, error = done.next()
    assert isinstance(error, InvalidArgument), "the group before was not finished"
    writer.stop()


def test_nothing_staged_and_nothing_taken_is_told_too() -> None:
    writer = GroupCommitWriter()
    done = Completions()
    disk = SimDisk()
    owner = Owner(disk)
    writer.submit(owner.storage, done)
    assert done.next() == (owner.storage, None, None)
    owner.store()
    owner.storage.close()
    name = next(name for name in disk.listdir(owner.path) if name.endswith(".seg"))
    disk.flip_bit(f"{owner.path}/{name}", 70)
    corrupt = LogStreamStorage.open(disk, owner.path, IDENTITY, owner.options)
    writer.submit(corrupt, done)
    storage, group, error = done.next()
    assert (storage, group) == (corrupt, None)
    assert isinstance(error, Corrupt)
    writer.stop()
