"""LogStreamStorage: what goes in comes out, in order, after any number of rolls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.owner import EVERYTHING, IDENTITY, PATH, Owner, check_opened, options
from varlog import batch, limits
from varlog.errors import (
    AlreadyExists,
    ConsistencyViolation,
    InvalidArgument,
    NoSuchReplica,
    NotWritable,
    Trimmed,
)
from varlog.sim.disk import SimDisk
from varlog.storage import format as fmt
from varlog.storage.log import LogStreamStorage, StorageOptions
from varlog.storage.logfiles import MARK_NAME
from varlog.types import GLSN, LLSN, CommitContext, Epoch, StorageNodeID, Version


def segments_of(disk: SimDisk) -> list[str]:
    return [name for name in disk.listdir(PATH) if name.endswith(".seg")]


def test_B8_an_empty_log_has_an_empty_context() -> None:
    owner = Owner(SimDisk())
    check_opened(owner.storage, owner.model)
    owner.storage.close()
    check_opened(owner.reopen(), owner.model)


def test_B9_batches_are_read_back_with_the_positions_their_commits_gave() -> None:
    owner = Owner(SimDisk())
    owner.unseal()
    for skip in (0, 3, 0, 10):
        owner.append(3)
        owner.append(1)
        owner.flush()
        owner.commit(skip=skip)
    owner.flush()
    owner.check()
    owner.storage.close()
    check_opened(owner.reopen(), owner.model)


def test_L2_a_log_rolls_over_many_segments() -> None:
    disk = SimDisk()
    owner = Owner(disk)
    owner.unseal()
    for _ in range(60):
        owner.store()
    assert len(segments_of(disk)) > 10
    owner.check()
    owner.storage.close()
    check_opened(owner.reopen(), owner.model)


def test_a_batch_larger_than_a_segment_is_stored() -> None:
    owner = Owner(SimDisk(), options(512))
    owner.store(count=10, size=5000)
    owner.store()
    owner.check()
    owner.storage.close()
    check_opened(owner.reopen(), owner.model)


def test_L3_a_read_is_answered_from_any_position() -> None:
    owner = Owner(SimDisk())
    for skip in (0, 4, 0, 0, 7, 0, 0, 0, 2):
        owner.append(3)
        owner.append(2)
        owner.flush()
        owner.commit(skip=skip)
        owner.flush()
    kept = owner.model.kept()
    for begin in range(1, owner.model.hwm + 2):
        for end in range(begin + 1, owner.model.hwm + 3):
            found = owner.storage.read(GLSN(begin), GLSN(end), EVERYTHING)
            expected = [glsn for glsn, b, _ in kept if glsn < end and glsn + b.count > begin]
            assert [one.glsn for one in found] == expected, (begin, end)
    for begin in range(1, owner.model.committed_end):
        found = owner.storage.read_llsn(LLSN(begin), LLSN(begin + 1), 1)
        assert len(found) == 1
        assert found[0].llsn <= begin < found[0].llsn + found[0].count


def test_a_read_stops_at_about_the_bytes_wanted_and_returns_at_least_one_batch() -> None:
    owner = Owner(SimDisk(), options(1 << 20))
    for _ in range(10):
        owner.store(count=10, size=100)
    size = len(owner.model.kept()[0][1].data)
    assert len(owner.storage.read(GLSN(1), GLSN(EVERYTHING), 1)) == 1
    assert len(owner.storage.read(GLSN(1), GLSN(EVERYTHING), 3 * size)) in {3, 4}
    assert owner.storage.read(GLSN(5), GLSN(5), EVERYTHING) == []


def test_only_what_is_committed_is_read() -> None:
    owner = Owner(SimDisk())
    owner.store()
    owner.append()
    owner.flush()
    owner.check()
    assert owner.storage.read(GLSN(3), GLSN(EVERYTHING), EVERYTHING) == []
    assert owner.storage.read_llsn(LLSN(3), LLSN(100), EVERYTHING) == []


def test_what_is_not_written_yet_is_not_read() -> None:
    """An owner that commits too early harms nobody but itself."""
    owner = Owner(SimDisk())
    owner.store()
    owner.append()
    owner.commit()
    assert owner.storage.read(GLSN(3), GLSN(EVERYTHING), EVERYTHING) == []
    owner.flush()
    owner.check()


def test_commit_contexts_are_listed_after_a_version() -> None:
    owner = Owner(SimDisk())
    for _ in range(20):
        owner.store()
    for after in range(22):
        found = list(owner.storage.commit_contexts(Version(after)))
        assert found == [cc for cc in owner.model.commits if cc.version > after]


def test_llsn_after_finds_the_first_entry_beyond_a_position() -> None:
    owner = Owner(SimDisk())
    for skip in (2, 0, 5, 0, 0, 3):
        owner.append(3)
        owner.flush()
        owner.commit(skip=skip)
    for glsn in range(owner.model.hwm + 3):
        assert owner.storage.llsn_after(GLSN(glsn)) == owner.model.llsn_after(GLSN(glsn))


def test_a_group_of_commits_alone_needs_no_sync_and_flush_commits_makes_them_durable() -> None:
    owner = Owner(SimDisk())
    owner.append()
    owner.flush()
    cc = owner.commit()
    group = owner.write_group()
    assert group is not None
    assert not group.needs_sync
    assert owner.storage.durable_version == 0
    owner.storage.flush_commits()
    group = owner.write_group()
    assert group is not None
    assert group.needs_sync
    assert owner.storage.durable_version == cc.version
    owner.storage.flush_commits()
    assert owner.write_group() is None, "there is nothing left to sync"


def test_a_group_tells_its_owner_what_became_durable() -> None:
    owner = Owner(SimDisk(), options(1 << 20))
    owner.unseal()
    owner.append(3)
    owner.append(4)
    group = owner.write_group()
    assert group is not None
    assert (group.last_llsn_end, group.last_epoch, group.epoch_records) == (8, 1, [1])
    owner.append(5)
    owner.seal(LLSN(8))
    group = owner.write_group()
    assert group is not None
    assert (group.last_llsn_end, group.last_epoch, group.epoch_records) == (8, 1, [2]), "the last batch is void"
    owner.commit()
    group = owner.write_group()
    assert group is not None
    assert (group.last_llsn_end, group.last_epoch, group.epoch_records) == (None, None, [])


def test_a_group_is_bounded_and_the_rest_is_taken_next() -> None:
    owner = Owner(SimDisk(), StorageOptions(segment_bytes=limits.MAX_SEGMENT_BYTES))
    for _ in range(5):
        owner.append(2, limits.WRITE_GROUP_BYTES // 5)
    sizes = []
    while (group := owner.write_group()) is not None:
        sizes.append(group.size)
    assert len(sizes) == 3
    assert max(sizes) <= limits.WRITE_GROUP_BYTES
    assert not owner.storage.staged
    owner.commit()
    owner.flush()
    owner.check()


def test_one_group_at_a_time() -> None:
    owner = Owner(SimDisk())
    owner.append()
    storage = owner.storage
    group = storage.take()
    assert group is not None
    with pytest.raises(InvalidArgument):
        storage.take()
    storage.write(group)
    storage.sync(group)
    storage.finish(group)
    with pytest.raises(InvalidArgument):
        storage.finish(group)


def test_rule15_a_mark_that_was_left_for_later_is_written_then() -> None:
    disk = SimDisk()
    owner = Owner(disk)
    owner.append()
    storage = owner.storage

    def mark() -> int:
        file = disk.open(f"{PATH}/{MARK_NAME}")
        found = fmt.decode_mark(file.pread(file.size(), 0))
        assert found is not None
        return found.offset

    group = storage.take()
    assert group is not None
    storage.write(group)
    storage.sync(group, mark=False)
    storage.finish(group)
    assert mark() < group.offset
    storage.mark()
    assert mark() == group.offset


def test_a_record_that_does_not_follow_is_refused_and_changes_nothing() -> None:
    owner = Owner(SimDisk())
    owner.unseal()
    owner.store(3)
    owner.append(3)
    storage, data = owner.storage, batch.encode([b"x"])
    header = batch.peek_header(data)
    good = CommitContext(Version(2), Epoch(1), GLSN(6), GLSN(3), LLSN(4), GLSN(4), 3, 0)
    for wrong in (
        good._replace(llsn_begin=LLSN(5)),
        good._replace(count=4, hwm=GLSN(7)),
        good._replace(count=0),
        good._replace(version=Version(1)),
        good._replace(glsn_begin=GLSN(3)),
        good._replace(hwm=GLSN(5)),
    ):
        with pytest.raises(ConsistencyViolation):
            storage.stage_commit(wrong)
    with pytest.raises(ConsistencyViolation):
        storage.stage_batch(LLSN(8), Epoch(1), 0, data, header)
    with pytest.raises(ConsistencyViolation):
        storage.stage_seal(Epoch(0), LLSN(4))
    with pytest.raises(ConsistencyViolation):
        storage.stage_seal(Epoch(2), LLSN(3))
    with pytest.raises(ConsistencyViolation):
        storage.stage_unseal(Epoch(0), (), StorageNodeID(0))
    with pytest.raises(ConsistencyViolation):
        storage.stage_trim(LLSN(5), GLSN(4), Version(1), Epoch(1))
    with pytest.raises(InvalidArgument):
        storage.stage_batch(LLSN(7), Epoch(1), -1, data, header)
    with pytest.raises(InvalidArgument):
        storage.stage_batch(LLSN(7), Epoch(1), 0, data + b"x", header)
    with pytest.raises(InvalidArgument):
        storage.stage_commit(good._replace(time=-1))
    with pytest.raises(InvalidArgument):
        storage.stage_seal(Epoch(1), LLSN(1 << 64))
    with pytest.raises(InvalidArgument):
        storage.stage_unseal(Epoch(1), (StorageNodeID(1 << 32),), StorageNodeID(0))
    with pytest.raises(InvalidArgument):
        storage.stage_unseal(Epoch(1 << 64), (), StorageNodeID(0))
    with pytest.raises(InvalidArgument):
        storage.stage_trim(LLSN(1), GLSN(1), Version(-1), Epoch(1))
    owner.flush()
    owner.commit()
    owner.flush()
    owner.check()
    storage.close()
    check_opened(owner.reopen(), owner.model)


def test_segment_sizes_have_limits() -> None:
    for size in (0, -1, limits.MAX_SEGMENT_BYTES + 1):
        with pytest.raises(InvalidArgument):
            StorageOptions(segment_bytes=size)


def test_B6_create_refuses_a_directory_that_holds_a_log() -> None:
    disk = SimDisk()
    owner = Owner(disk)
    owner.store()
    owner.storage.close()
    before = disk.image()
    with pytest.raises(AlreadyExists):
        LogStreamStorage.create(disk, PATH, IDENTITY)
    assert disk.image() == before
    check_opened(owner.reopen(), owner.model)


def test_open_refuses_what_is_not_there_and_what_is_no_directory() -> None:
    disk = SimDisk()
    with pytest.raises(NoSuchReplica):
        LogStreamStorage.open(disk, PATH, IDENTITY)
    disk.mkdir(PATH)
    with pytest.raises(NoSuchReplica):
        LogStreamStorage.open(disk, PATH, IDENTITY)
    disk.create("/file").close()
    with pytest.raises(NotWritable):
        LogStreamStorage.open(disk, "/file", IDENTITY)
    with pytest.raises(NotWritable):
        LogStreamStorage.create(disk, "/file", IDENTITY)
    with pytest.raises(NotWritable):
        LogStreamStorage.create(disk, "/file/below", IDENTITY)


def test_no_sync_writes_and_says_so() -> None:
    disk = SimDisk()
    owner = Owner(disk, options(sync=False))
    assert not owner.storage.synced
    for _ in range(10):
        owner.store()
    owner.storage.flush_commits()
    owner.flush()
    assert owner.storage.durable_version == owner.model.version
    owner.check()
    disk.kill()
    check_opened(owner.reopen(), owner.model)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4), st.integers(1, 200)),
        st.tuples(st.just("commit"), st.integers(1, 3), st.integers(0, 3)),
        st.tuples(st.just("seal"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("trim"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("flush"), st.just(0), st.just(0)),
        st.tuples(st.just("reopen"), st.integers(0, 1), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from([300, 1024, 4096]))
def test_any_history_is_what_the_model_says(steps: list[tuple[str, int, int]], segment_bytes: int) -> None:
    disk = SimDisk()
    owner = Owner(disk, options(segment_bytes))
    owner.unseal()
    for step, number, other in steps:
        model = owner.model
        if step == "append":
            owner.append(number, other)
        elif step == "commit" and model.uncommitted:
            owner.flush()
            owner.commit(number, skip=other)
        elif step == "seal":
            boundary = [model.committed_end, *(b.end for b in model.uncommitted)]
            owner.seal(boundary[min(number, len(boundary) - 1)])
            owner.unseal()
        elif step == "trim" and number > model.trim_glsn:
            owner.trim(min(number, model.hwm))
        elif step == "flush":
            owner.flush()
        elif step == "reopen":
            owner.flush()
            owner.storage.close() if number else disk.kill()
            check_opened(owner.reopen(), owner.model)
    owner.flush()
    owner.check()
    assert not list(owner.storage.scrub())
    owner.storage.close()
    check_opened(owner.reopen(), owner.model)
    assert not list(owner.storage.scrub())


def test_L5_reading_a_trimmed_position_says_where_the_log_begins() -> None:
    owner = Owner(SimDisk())
    for _ in range(5):
        owner.store()
    owner.trim(3)
    for glsn in range(1, 4):
        with pytest.raises(Trimmed) as caught:
            owner.storage.read(GLSN(glsn), GLSN(100), EVERYTHING)
        assert caught.value.first == 4
    with pytest.raises(Trimmed):
        owner.storage.read_llsn(LLSN(3), LLSN(10), EVERYTHING)
    owner.flush()
    owner.check()
