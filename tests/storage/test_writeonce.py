"""A write-once log: what is staged is there, what is durable is read, in the order of positions, however it came."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from tests.storage.counting import CountingFileSystem
from tests.storage.owner import EVERYTHING, IDENTITY, PATH, Owner, options
from tests.storage.writeonce_owner import WriteOnceOwner, check, check_every_position, contents
from varlog import batch, limits
from varlog.errors import (
    AlreadyExists,
    ConsistencyViolation,
    DiskFull,
    InvalidArgument,
    NoSuchReplica,
    Poisoned,
    Trimmed,
    WrongIdentity,
    WrongOrdering,
)
from varlog.sim.disk import SimDisk
from varlog.storage import positionreader
from varlog.storage.files import OSFileSystem
from varlog.storage.identity import identify, ordering_of
from varlog.storage.log import LogStreamStorage
from varlog.storage.writeonce import WriteOnceStorage
from varlog.types import GLSN, Epoch, LogStreamIdentity, Ordering, Version


def positions(storage: WriteOnceStorage, glsn: int = 1, size: int = EVERYTHING) -> list[int]:
    return [one.glsn for one in storage.read(GLSN(glsn), size)]


def test_S3_batches_come_in_any_order_and_are_read_in_the_order_of_positions() -> None:
    owner = WriteOnceOwner(SimDisk())
    owner.promise()
    owner.write((7, 3), 2, (4, 2))
    owner.write(1)
    assert [line.glsn for line in owner.storage.digest(GLSN(1), 9)] == [1, 2, 4, 7]
    assert owner.storage.runs(GLSN(1), 9) == ([(1, 3), (4, 6), (7, 10)], 10)
    owner.flush()
    owner.write(3, 6)
    owner.flush()
    assert positions(owner.storage) == [1, 2, 3, 4, 6, 7]
    assert owner.storage.runs(GLSN(8), 9) == ([(7, 10)], 10)
    owner.check()
    check_every_position(owner.storage, owner.paper)
    for one in owner.storage.read(GLSN(1), EVERYTHING):
        assert (int(one.llsn), one.version, one.epoch) == (int(one.glsn), Version(0), Epoch(1))


def test_S4_what_is_staged_is_held_and_only_what_is_durable_is_read() -> None:
    owner = WriteOnceOwner(SimDisk())
    owner.write(1, 3)
    owner.flush()
    owner.write(2)
    owner.write(4)
    assert owner.storage.held(GLSN(2), GLSN(3)) is not None
    assert positions(owner.storage) == [1, 3]
    assert (owner.storage.staged, owner.storage.durable) == (4, 2)
    assert owner.storage.urgent_bytes
    group = owner.storage.take()
    assert group is not None
    owner.storage.write(group)
    assert positions(owner.storage, 2) == [3]
    owner.storage.sync(group)
    owner.storage.finish(group)
    owner.paper.make_durable()
    assert positions(owner.storage, 2) == [2, 3, 4]
    owner.check()


def test_S4_one_position_is_read_at_once_if_it_is_at_hand() -> None:
    disk = SimDisk()
    owner = WriteOnceOwner(disk, options(500))
    owner.write(3, (1, 2), size=60)
    assert owner.storage.read_one(GLSN(1)) is None, "not durable"
    owner.flush()
    owner.write(*range(5, 20), size=60)
    owner.flush()
    owner.write(20)
    one = owner.storage.read_one(GLSN(19))
    assert one is not None
    assert contents([one]) == contents(owner.paper.read(GLSN(19), 1))
    assert owner.storage.read_one(GLSN(4)) is None
    assert owner.storage.read_one(GLSN(20)) is None
    assert owner.storage.read_one(GLSN(2)) is None, "its index is on disk"
    assert positions(owner.storage, 2, 1) == [1]
    one = owner.storage.read_one(GLSN(2))
    assert one is not None
    assert one.glsn == 1
    owner.trim(2)
    assert owner.storage.read_one(GLSN(2)) is None
    owner.promise(19)
    assert owner.storage.read_one(GLSN(19)) is None


def test_S3_a_position_that_is_written_is_not_written_again() -> None:
    owner = WriteOnceOwner(SimDisk(), options(600))
    for glsn in (1, 5, 9, 13, 17):
        owner.write((glsn, 3), size=100)
        owner.flush()
    before = owner.storage.staged
    for places in ([1], [3], [(4, 2)], [(20, 1), (17, 1)], [(21, 2), (22, 1)], [(4, 20)]):
        with pytest.raises(ConsistencyViolation):
            owner.write(*places)
    assert owner.storage.staged == before
    owner.write(4, 8, (20, 5))
    owner.flush()
    owner.check()


@pytest.mark.parametrize("seed", range(12))
def test_any_run_gives_the_log_that_is_on_paper(seed: int) -> None:
    rng = random.Random(seed)
    disk = SimDisk()
    owner = WriteOnceOwner(disk, options(rng.choice((500, 900, 3000))))
    owner.promise()
    for _ in range(80):
        act(owner, rng)
        if rng.random() < 0.25:
            owner.flush()
            owner.check()
        if rng.random() < 0.04:
            owner.flush()
            check_every_position(owner.storage, owner.paper)
            if rng.random() < 0.5:
                owner.storage.close()
            else:
                disk.power_loss(rng)
            owner.paper = owner.paper.restarted()
            owner.reopen()
            owner.check()
    owner.flush()
    check_every_position(owner.storage, owner.paper)
    assert not list(owner.storage.scrub())


def act(owner: WriteOnceOwner, rng: random.Random) -> None:
    """Stage something, most of it near the end."""
    paper = owner.paper
    kind = rng.choices(("write", "promise", "wipe", "trim"), (20, 2, 1, 2))[0]
    if kind == "promise":
        owner.promise()
    elif kind == "wipe":
        owner.promise(max(1, paper.end - rng.randint(0, 10)))
    elif kind == "trim":
        owner.trim(max(1, paper.end - rng.randint(-2, 15)))
    else:
        places: list[tuple[int, int]] = []
        for _ in range(rng.randint(1, 5)):
            glsn, count = max(1, paper.end + rng.randint(-12, 6)), rng.randint(1, 3)
            is_free = all(glsn + count <= at or at + number <= glsn for at, number in places)
            if is_free and glsn + count > paper.trim + 1 and paper.held(GLSN(glsn), GLSN(glsn + count)) is None:
                places.append((glsn, count))
        if places:
            owner.write(*places, size=rng.choice((10, 90, 300)))


def test_a_long_run_of_batches_rolls_and_fills_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call stages more than a segment, and more than a group, take."""
    monkeypatch.setattr(limits, "WRITE_GROUP_BYTES", 2500)
    owner = WriteOnceOwner(SimDisk(), options(1000))
    owner.write(*range(40, 0, -1), size=120)
    owner.write(*range(41, 81), size=5)
    owner.write(200, 100, size=4000)
    groups = 0
    while owner.write_group() is not None:
        groups += 1
        check(owner.storage, owner.paper)
    assert groups > 5
    assert len(owner.storage._segments) > 5
    owner.storage.close()
    owner.paper = owner.paper.restarted()
    check(owner.reopen(), owner.paper)
    assert not list(owner.storage.scrub())


def test_the_number_of_records_fills_a_segment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEGMENT_RECORDS", 8)
    owner = WriteOnceOwner(SimDisk(), options(1 << 20))
    owner.write(*range(1, 31))
    owner.promise()
    owner.flush()
    assert len(owner.storage._segments) == 4
    owner.check()


def test_rule22_a_wipe_voids_what_was_written_from_a_position_on() -> None:
    disk = SimDisk()
    owner = WriteOnceOwner(disk, options(500))
    for glsn in range(1, 30, 2):
        owner.write((glsn, 2), size=60)
    owner.flush()
    assert len(owner.storage._segments) > 3
    owner.promise(12)
    assert owner.storage.end == 12
    assert [line.glsn for line in owner.storage.digest(GLSN(9), 9)] == [9], "[11, 13) reaches beyond 12"
    assert owner.storage.held(GLSN(11), GLSN(90)) is None
    owner.write(11, (12, 3), 20)
    owner.flush()
    check_every_position(owner.storage, owner.paper)
    disk.power_loss(random.Random(1))
    owner.paper = owner.paper.restarted()
    owner.reopen()
    check_every_position(owner.storage, owner.paper)
    assert not list(owner.storage.scrub())


def test_S6_a_promise_is_kept_over_a_crash_and_never_taken_back() -> None:
    disk = SimDisk()
    owner = WriteOnceOwner(disk)
    owner.promise()
    owner.promise()
    owner.flush()
    with pytest.raises(ConsistencyViolation):
        owner.storage.stage_epoch(Epoch(1))
    owner.storage.stage_epoch(Epoch(2))
    disk.power_loss(random.Random(1))
    assert owner.reopen().epoch == 2


def test_S6_writes_of_earlier_epochs_keep_theirs() -> None:
    """A learner copies what was written in any of them."""
    owner = WriteOnceOwner(SimDisk())
    for epoch in (1, 3, 2):
        owner.write(epoch, epoch=epoch)
    owner.flush()
    assert [one.epoch for one in owner.storage.read(GLSN(1), EVERYTHING)] == [1, 2, 3]
    assert owner.storage.epoch == 3


def test_L5_what_is_trimmed_is_refused_at_once_and_its_segments_go() -> None:
    disk = SimDisk()
    owner = WriteOnceOwner(disk, options(500))
    for glsn in range(1, 40, 2):
        owner.write((glsn, 2), size=60)
        owner.flush()
    files = len(disk.listdir(PATH))
    owner.trim(20)
    with pytest.raises(Trimmed) as caught:
        owner.storage.read(GLSN(20), 1)
    assert caught.value.first == 21
    assert owner.storage.held(GLSN(1), GLSN(20)) is None
    assert positions(owner.storage, 21)[0] == 21
    owner.flush()
    assert len(disk.listdir(PATH)) < files - 3
    owner.trim(7)
    assert owner.storage.trim == 20
    with pytest.raises(ConsistencyViolation):
        owner.write((18, 3))
    owner.trim(1000)
    owner.flush()
    assert len(disk.listdir(PATH)) == 4, "the newest segment, the mark, the record and the lock"
    assert owner.storage.digest(GLSN(1), 9) == []
    owner.storage.close()
    owner.paper = owner.paper.restarted()
    check(owner.reopen(), owner.paper)
    assert (owner.storage.end, owner.storage.trim) == (41, 1000)


def test_rule22_a_copy_may_hold_the_batch_that_reaches_beyond_what_is_trimmed() -> None:
    """Also where something else was that is trimmed as a whole."""
    disk = SimDisk()
    owner = WriteOnceOwner(disk)
    owner.write((3, 2), (5, 1))
    owner.trim(5)
    owner.write((4, 4))
    owner.flush()
    assert positions(owner.storage, 6) == [4]
    check_every_position(owner.storage, owner.paper)
    disk.power_loss(random.Random(1))
    owner.paper = owner.paper.restarted()
    check(owner.reopen(), owner.paper)
    assert not list(owner.storage.scrub())


def test_a_hole_of_long_ago_is_filled_and_found() -> None:
    """The segment that has it reaches back over all the others."""
    owner = WriteOnceOwner(SimDisk(), options(400))
    owner.write(1)
    for glsn in range(3, 60):
        owner.write(glsn, size=50)
    owner.flush()
    assert owner.storage.held(GLSN(2), GLSN(3)) is None
    owner.write(2)
    for glsn in range(60, 80):
        owner.write(glsn, size=50)
    owner.flush()
    check_every_position(owner.storage, owner.paper)
    assert positions(owner.storage, 1, 300)[:2] == [1, 2]
    owner.storage._reader.close()
    assert positions(owner.storage, 30, 1) == [30]
    assert owner.storage._reader.residents <= 2, "who looks beside the hole need not look where it is filled"
    assert owner.storage.runs(GLSN(1), 9) == ([(1, 80)], 80)


def test_runs_are_told_as_far_as_one_look_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positionreader, "RUNS_LOOK", 10)
    owner = WriteOnceOwner(SimDisk(), options(400))
    owner.write(*range(1, 26), 30, 31, 40)
    owner.write(*range(50, 70), 27)
    owner.flush()
    at, seen = GLSN(1), set[int]()
    while at < owner.storage.end:
        runs, end = owner.storage.runs(at, 2)
        assert at < end <= at + 40
        seen.update(glsn for run in runs for glsn in range(*run))
        at = end
    assert seen == {*range(1, 26), 27, 30, 31, 40, *range(50, 70)}
    assert owner.storage.runs(GLSN(90), 3) == ([], 70)


def test_memory_is_bounded_by_few_resident_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESIDENT_SEGMENT_INDEXES", 3)
    fs = CountingFileSystem()
    owner = WriteOnceOwner(fs, options(2000), path=str(tmp_path / "log"))
    for glsn in range(1, 200):
        owner.write(glsn, size=100)
    owner.flush()
    assert len(owner.storage._segments) > 10
    owner.check()
    assert owner.storage._reader.residents <= 3
    fs.reads.clear()
    assert owner.storage.held(GLSN(199), GLSN(200)) is not None
    assert owner.storage.held(GLSN(200), GLSN(300)) is None
    assert not fs.reads, "what is asked for all the time needs no look at the disk"
    assert positions(owner.storage, 50, 1) == [50]
    assert len({read.name for read in fs.reads}) == 1
    owner.storage.close()


def test_it_is_read_while_it_is_written_and_trimmed(tmp_path: Path) -> None:
    owner = WriteOnceOwner(OSFileSystem(), options(3000), path=str(tmp_path / "log"))
    owner.write(1)
    owner.flush()
    stop, wrong = threading.Event(), list[object]()
    end = 2
    """All positions below it are durable."""

    def read() -> None:
        rng = random.Random(1)
        while not stop.is_set():
            known = end
            begin = max(owner.storage.trim + 1, known - rng.randint(1, 60))
            try:
                found = positions(owner.storage, begin, EVERYTHING)
            except Trimmed:
                continue
            except Exception as e:
                wrong.append(e)
                return
            if found[: known - begin] != list(range(begin, known)) or found != sorted(found):
                wrong.append((begin, found))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    rng = random.Random(2)
    for base in range(2, 302, 10):
        for places in ([*range(base + 5, base + 10)], [*range(base, base + 5)]):
            owner.write(*places, size=rng.choice((10, 200)))
        owner.flush()
        end = base + 10
        if rng.random() < 0.1:
            owner.trim(max(1, base - rng.randint(20, 100)))
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong
    owner.check()
    owner.storage.close()


def test_without_sync_it_says_so() -> None:
    owner = WriteOnceOwner(SimDisk(), options(sync=False))
    owner.write(1)
    owner.flush()
    assert not owner.storage.synced
    assert owner.storage.durable == 1


def test_M8_the_first_failed_sync_is_the_last() -> None:
    disk = SimDisk()
    owner = WriteOnceOwner(disk)
    owner.write(1)
    owner.flush()
    disk.fail_syncs()
    owner.write(2)
    with pytest.raises(Poisoned):
        owner.flush()
    assert owner.storage.poisoned
    assert positions(owner.storage) == [1]
    with pytest.raises(Poisoned):
        owner.storage.take()


def test_M8_a_full_disk_is_told() -> None:
    disk = SimDisk()
    owner = WriteOnceOwner(disk, options(400))
    disk.set_free_bytes(0)
    owner.write(*range(1, 30), size=100)
    with pytest.raises(DiskFull):
        owner.flush()
    assert owner.storage.poisoned


@pytest.mark.parametrize(
    ("glsn", "time", "epoch"),
    [(0, 1, 1), (-3, 1, 1), ((1 << 63) - 1, 1, 1), (1, 1 << 64, 1), (1, -1, 1), (1, 1, 1 << 64)],
)
def test_what_no_frame_can_say_is_refused(glsn: int, time: int, epoch: int) -> None:
    owner = WriteOnceOwner(SimDisk())
    data = batch.encode([b"x"], writer_id=7, sequence=1)
    header = batch.peek_header(data)
    with pytest.raises(InvalidArgument):
        owner.storage.stage_writes(Epoch(epoch), [glsn], [time], [data], [header])
    with pytest.raises(InvalidArgument):
        owner.storage.stage_writes(Epoch(1), [1], [1], [data + b"more"], [header])
    with pytest.raises(InvalidArgument):
        owner.storage.stage_epoch(Epoch(1), GLSN(0))
    with pytest.raises(InvalidArgument):
        owner.storage.stage_epoch(Epoch(1 << 64))
    with pytest.raises(InvalidArgument):
        owner.storage.stage_trim(GLSN(1 << 63))
    owner.storage.stage_writes(Epoch(1), [], [], [], [])
    owner.check()


def test_a_log_of_the_other_ordering_is_refused_untouched() -> None:
    disk = SimDisk()
    WriteOnceOwner(disk).storage.close()
    assert ordering_of(disk, PATH) is Ordering.SEQUENCER
    assert identify(disk, PATH) == IDENTITY
    before = disk.image()
    with pytest.raises(WrongOrdering, match="SEQUENCER"):
        LogStreamStorage.open(disk, PATH, IDENTITY, options())
    with pytest.raises(AlreadyExists):
        LogStreamStorage.create(disk, PATH, IDENTITY, options())
    assert disk.image() == before
    disk = SimDisk()
    other = Owner(disk, options(500))
    for _ in range(6):
        other.store(1, 100)
    other.storage.close()
    assert ordering_of(disk, PATH) is Ordering.COMMIT
    with pytest.raises(WrongOrdering, match="COMMIT"):
        WriteOnceStorage.open(disk, PATH, IDENTITY, options(500))
    with pytest.raises(WrongIdentity):
        WriteOnceStorage.open(disk, PATH, LogStreamIdentity._make(n + 1 for n in IDENTITY), options(500))
    with pytest.raises(NoSuchReplica):
        WriteOnceStorage.open(SimDisk(), PATH, IDENTITY, options())


def test_a_log_is_made_once_also_where_one_was_only_begun() -> None:
    disk = SimDisk()
    disk.mkdir(PATH)
    disk.create(f"{PATH}/lwm").close()
    assert ordering_of(disk, PATH) is None
    owner = WriteOnceOwner(disk)
    owner.storage.abandon()
    with pytest.raises(AlreadyExists):
        WriteOnceStorage.create(disk, PATH, IDENTITY, options())
    check(owner.reopen(), owner.paper)
    assert contents(owner.storage.read(GLSN(1), 1)) == []
