"""Trim: entries are refused at once, files go by whole segments, and a wholly trimmed replica knows where it is."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from threading import Thread

import pytest

from tests.storage.owner import EVERYTHING, IDENTITY, PATH, Owner, check_opened, check_readable, options
from varlog import limits
from varlog.errors import DiskFull, Poisoned, Trimmed
from varlog.sim.disk import SimDisk
from varlog.storage import trim
from varlog.storage.files import OSFile, OSFileSystem
from varlog.storage.format import LogBase
from varlog.storage.log import LogStreamStorage
from varlog.storage.logfiles import TRIM_NAME
from varlog.types import GLSN, LLSN, Epoch, Version


def segments_of(disk: SimDisk) -> list[str]:
    return [name for name in disk.listdir(PATH) if name.endswith(".seg")]


def grown(disk: SimDisk, stores: int = 20) -> Owner:
    owner = Owner(disk, options(600))
    owner.unseal()
    for _ in range(stores):
        owner.store(2, 60)
    return owner


@pytest.mark.parametrize("glsn", [1, 2, 7, 20, 38, 39, 40])
def test_L5_everything_at_or_below_the_point_is_gone_and_the_rest_is_there(glsn: int) -> None:
    disk = SimDisk()
    owner = grown(disk)
    before = len(segments_of(disk))
    owner.trim(glsn)
    owner.check()
    owner.flush()
    owner.check()
    if glsn > 7:
        assert len(segments_of(disk)) < before
    disk.power_loss(random.Random(glsn))
    check_opened(owner.reopen(), owner.model)
    owner.store()
    owner.check()
    assert not list(owner.storage.scrub())


def test_rule14_a_wholly_trimmed_replica_knows_where_it_is() -> None:
    disk = SimDisk()
    owner = grown(disk)
    owner.seal()
    owner.trim(owner.model.hwm)
    owner.flush()
    assert len(segments_of(disk)) == 1
    disk.power_loss(random.Random(0))
    recovered = owner.reopen().recovered
    assert recovered.local_lwm == 0
    assert (recovered.local_hwm, recovered.global_hwm, recovered.version) == (40, 40, 20)
    check_opened(owner.storage, owner.model)
    with pytest.raises(Trimmed):
        owner.storage.read(GLSN(40), GLSN(41), 1)
    assert owner.storage.read(GLSN(41), GLSN(EVERYTHING), 1) == []
    owner.unseal()
    owner.store()
    owner.check()


def test_rule14_the_record_holds_the_deduplication_table() -> None:
    disk = SimDisk()
    owner = grown(disk)
    table = owner._snapshot()
    owner.trim(30)
    owner.flush()
    record = trim.read_record(disk, PATH, IDENTITY)
    assert record is not None
    assert record.snapshot == table
    assert (record.llsn, record.glsn, record.version, record.committed_end) == (31, 30, 20, 41)


def test_rule14_a_trim_never_goes_back() -> None:
    disk = SimDisk()
    owner = grown(disk)
    owner.trim(30)
    owner.flush()
    before = disk.image()
    owner.storage.stage_trim(LLSN(5), GLSN(4), Version(20), Epoch(1))
    owner.storage.stage_trim(LLSN(31), GLSN(30), Version(20), Epoch(1))
    assert not owner.storage.staged
    assert disk.image() == before
    owner.check()


def test_trimming_beyond_this_log_streams_entries_is_remembered() -> None:
    """The point is the topic's: it may lie where other log streams have entries."""
    disk = SimDisk()
    owner = Owner(disk)
    owner.store()
    owner.append()
    owner.flush()
    owner.commit(skip=10)
    owner.flush()
    owner.trim(9)
    owner.flush()
    owner.trim(11)
    owner.flush()
    disk.kill()
    check_opened(owner.reopen(), owner.model)
    assert owner.storage.recovered.trim_glsn == 11
    assert owner.storage.recovered.local_lwm == 13


def test_leftovers_of_a_deletion_cut_short_are_deleted_after_the_next_opening() -> None:
    disk = SimDisk()
    owner = grown(disk)
    doomed = segments_of(disk)[:3]
    for number in range(40):
        again = SimDisk.from_image(disk.image())
        other = Owner.resume(again, options(600), owner.model)
        other.trim(30)
        again.fail_operation(again.operations + number, 5)
        try:
            other.flush()
        except Poisoned:
            is_deleted = False
        else:
            is_deleted = not other.undeleted
        again.kill()
        again.heal()
        other.model.trim_glsn = other.reopen().recovered.trim_glsn
        assert other.model.trim_glsn in {0, 30}
        check_opened(other.storage, other.model)
        other.clear()
        assert (not set(segments_of(again)) & set(doomed)) == (other.model.trim_glsn == 30)
        other.check()
        if is_deleted:
            break
    else:
        raise AssertionError("the trim never came to its end")


def test_rule14_a_trim_deletes_nothing_itself_and_files_go_a_few_at_a_time() -> None:
    disk = SimDisk()
    owner = grown(disk, 40)
    before = segments_of(disk)
    owner.trim(78)
    owner.write_group()
    assert segments_of(disk) == before, "who appends does not wait for any deletion"
    counts = [len(before)]
    while owner.storage.doomed:
        owner.storage.delete_doomed()
        counts.append(len({*before} & {*segments_of(disk)}))
        owner.append()
        owner.write_group()
        owner.check()
        assert not list(owner.storage.scrub())
    assert len(counts) > 3
    assert max(a - b for a, b in pairwise(counts)) <= limits.DELETIONS_AT_ONCE


def test_rule14_a_log_that_is_trimmed_again_before_all_is_deleted_is_whole_after_any_crash() -> None:
    for ending in ("power loss", "kill", "close"):
        disk = SimDisk()
        owner = grown(disk, 40)
        owner.trim(50)
        owner.write_group()
        owner.storage.delete_doomed()
        left = owner.storage.doomed
        assert left > 0
        owner.trim(78)
        owner.write_group()
        assert owner.storage.doomed > left
        owner.storage.delete_doomed()
        if ending == "close":
            owner.storage.close()
        elif ending == "kill":
            disk.kill()
        else:
            disk.power_loss(random.Random(1))
        check_opened(owner.reopen(), owner.model)
        assert owner.storage.doomed > 0, ending
        owner.clear()
        owner.check()
        assert owner.storage._segments[0].name == segments_of(disk)[0]
        disk.power_loss(random.Random(2))
        check_opened(owner.reopen(), owner.model)


def test_a_file_that_cannot_be_deleted_harms_nobody_and_is_tried_again_after_the_next_trim() -> None:
    disk = SimDisk()
    owner = grown(disk)
    before = segments_of(disk)
    owner.trim(20)
    owner.write_group()
    disk.fail_operation(disk.operations, errno.EIO)
    with pytest.raises(OSError, match="fail"):
        owner.storage.delete_doomed()
    assert (owner.storage.poisoned, owner.storage.doomed, segments_of(disk)) == (False, 0, before)
    owner.store()
    owner.trim(21)
    owner.flush()
    assert segments_of(disk)[0] > before[1]
    owner.check()


def test_a_file_that_somebody_else_has_deleted_is_in_nobodys_way() -> None:
    disk = SimDisk()
    owner = grown(disk)
    owner.trim(30)
    owner.write_group()
    disk.unlink(f"{PATH}/{segments_of(disk)[0]}")
    owner.clear()
    assert owner.storage._segments[0].name == segments_of(disk)[0]
    owner.check()


def test_files_are_deleted_also_where_the_disk_is_full() -> None:
    """And the log can be written on then."""
    disk = SimDisk()
    owner = grown(disk)
    owner.trim(30)
    owner.write_group()
    disk.set_free_bytes(0)
    owner.append(2, 2000)
    with pytest.raises(DiskFull):
        owner.flush()
    before = len(segments_of(disk))
    owner.clear()
    assert len(segments_of(disk)) < before
    disk.kill()
    owner.model.uncommitted.clear()
    check_readable(owner.reopen(), owner.model)
    owner.store()


def test_a_full_disk_that_does_not_take_the_record_again_keeps_the_leftovers() -> None:
    """That the record is durable is not certain when a log is opened, and without it they would be missed."""
    disk = SimDisk()
    owner = grown(disk)
    owner.trim(30)
    owner.write_group()
    before = segments_of(disk)
    disk.kill()
    disk.set_free_bytes(0)
    check_opened(owner.reopen(), owner.model)
    assert (owner.storage.doomed, segments_of(disk)) == (0, before)
    disk.heal()
    owner.trim(31)
    owner.flush()
    assert owner.storage._segments[0].name == segments_of(disk)[0]
    disk.power_loss(random.Random(3))
    check_opened(owner.reopen(), owner.model)


def test_files_of_trimmed_segments_are_let_go_of_when_nobody_reads_them() -> None:
    disk = SimDisk()
    owner = grown(disk)
    owner.check()
    reader, segment = owner.storage._reader, owner.storage._segments[0]
    held = reader.residents
    assert held > 3
    with reader.borrow(segment) as resident:
        owner.trim(36)
        owner.flush()
        assert reader.residents < held
        assert segment.name not in segments_of(disk)
        assert resident.file.pread(8, 0), "a reader goes on with what it has"
    with pytest.raises(OSError, match="closed"):
        resident.file.pread(8, 0)
    owner.check()


class TrimmingFileSystem(OSFileSystem):
    """Something happens just before the next segment is opened."""

    def __init__(self) -> None:
        self.meanwhile: list[Callable[[], None]] = []

    def open(self, path: str) -> OSFile:
        if path.endswith(".seg") and self.meanwhile:
            thread = Thread(target=self.meanwhile.pop())  # as the server does: readers have threads of their own
            thread.start()
            thread.join()
        return super().open(path)


@pytest.mark.parametrize("what", ["read", "read_llsn", "copy_from", "commit_contexts"])
def test_L5_what_a_trim_takes_from_under_a_reader_is_no_damage(tmp_path: Path, what: str) -> None:
    """A replica that is told to be damaged is thrown away."""
    fs = TrimmingFileSystem()
    owner = Owner(fs, options(600), path=str(tmp_path / "log"))
    owner.unseal()
    for _ in range(30):
        owner.store(1, 100)
    owner.storage.close()
    owner.reopen()  # nothing is resident
    storage = owner.storage

    def trim_and_write() -> None:
        owner.trim(20)
        owner.flush()

    fs.meanwhile.append(trim_and_write)
    if what.startswith("read"):
        with pytest.raises(Trimmed) as trimmed:
            storage.read(GLSN(3), GLSN(31), 1000) if what == "read" else storage.read_llsn(LLSN(3), LLSN(31), 1000)
        assert trimmed.value.first == 21
    elif what == "copy_from":
        copied = storage.copy_from(LLSN(1), Version(0), 1000, lambda *_: b"")
        assert (copied.llsn, bool(copied.base)) == (21, True)
    else:
        versions = [context.version for context in storage.commit_contexts(Version(0))]
        assert versions == sorted(set(versions))
        assert versions[-1] == storage.recovered.version
    assert not fs.meanwhile, "the trim came in between"
    assert not list(storage.scrub())
    storage.close()


def test_rule14_a_log_that_began_with_a_base_and_has_lost_its_record_is_damaged() -> None:
    disk = SimDisk()
    base = LogBase(LLSN(101), LLSN(101), GLSN(500), Version(50), Epoch(3), GLSN(500), GLSN(500), b"[]")
    owner = Owner(disk, options(1 << 16), base=base)
    owner.storage.close()
    disk.unlink(f"{PATH}/{TRIM_NAME}")
    storage = LogStreamStorage.open(disk, PATH, IDENTITY, owner.options)
    assert "the record of the trim it began with is missing" in str(storage.corruption)
