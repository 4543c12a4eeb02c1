"""What a log gives to another replica: parts of it, and what to begin with where it was trimmed (M9, rule 14)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.storage.owner import IDENTITY, PATH, Owner, check_opened, model_at, options
from varlog import batch, errors, limits
from varlog.sim.disk import SimDisk, SimFile
from varlog.storage import format as fmt
from varlog.storage.copying import Copied, base_of
from varlog.storage.log import LogStreamStorage
from varlog.types import GLSN, LLSN, CommitContext, Epoch, Version

EVERYTHING = 1 << 30
NOTHING = Version(0)


def fold(snapshot: bytes | None, tail: Sequence[tuple[Any, ...]]) -> bytes:
    """The owner's table is the list of all that happened."""
    events = json.loads(snapshot) if snapshot else []
    for kind, *fields in tail:
        events.append([kind, *(fields[0] if kind == "commit" else fields)])
    return json.dumps(events).encode()


def grown(disk: SimDisk | None = None, batches: int = 12) -> Owner:
    """Commits of two batches of two entries, in segments that hold few of them."""
    owner = Owner(disk or SimDisk(), options(600))
    owner.unseal()
    for _ in range(batches // 2):
        owner.append(2, 60)
        owner.append(2, 60)
        owner.flush()
        owner.commit()
        owner.flush()
    owner.storage.flush_commits()
    owner.flush()
    return owner


def part(owner: Owner, begin: int, after: int = 0, size: int = EVERYTHING) -> Copied:
    return owner.storage.copy_from(LLSN(begin), Version(after), size, fold)


def test_M9_a_part_has_batches_as_they_were_stored_and_the_commits_that_end_within() -> None:
    owner = grown(batches=4)
    found = part(owner, 1)
    stored = [one for _, one, _ in owner.model.committed]
    assert [bytes(one) for one in found.batches] == [one.data for one in stored]
    assert found.epochs == tuple(one.epoch for one in stored)
    assert found.prev_sequences == tuple(one.sequence - 1 for one in stored)
    assert found.commits == tuple(owner.model.commits)
    assert (found.llsn, found.base) == (1, b"")


@pytest.mark.parametrize("size", [1, 150, 300, 1000])
def test_M9_a_log_that_is_copied_in_parts_is_the_same_log(size: int) -> None:
    owner = grown()
    copy = Owner(SimDisk(), options(600))
    commits: list[CommitContext] = []
    while copy.model.end < owner.model.committed_end:
        after = commits[-1].version if commits else NOTHING
        found = part(owner, copy.model.end, after, size)
        assert found.llsn == copy.model.end
        for epoch, prev_sequence, content in zip(found.epochs, found.prev_sequences, found.batches, strict=True):
            header = batch.verify(content)
            copy.storage.stage_batch(copy.model.end, epoch, prev_sequence, content, header)
            copy.model.apply(owner.model.committed[len(copy.model.uncommitted) + len(copy.model.committed)][1])
        commits += found.commits
        assert all(cc.llsn_end <= copy.model.end for cc in found.commits)
        assert sum(map(len, found.batches)) < size + 300
    assert commits == owner.model.commits


def test_M9_a_part_has_so_many_batches_and_bytes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = grown()
    monkeypatch.setattr(limits, "COPY_PART_BATCHES", 3)
    assert len(part(owner, 1).batches) == 3
    monkeypatch.setattr(limits, "COPY_PART_BYTES", 1)
    assert len(part(owner, 1).batches) == 1


def test_M9_only_what_is_committed_is_given() -> None:
    owner = grown(batches=2)
    owner.append(2, 60)
    owner.flush()
    assert len(part(owner, 1).batches) == 2
    assert part(owner, 5) == Copied(LLSN(5))
    assert part(owner, 99) == Copied(LLSN(99)), "who asks is ahead"


def test_M9_a_part_begins_with_a_whole_batch() -> None:
    with pytest.raises(errors.InvalidArgument, match="in the middle of a batch"):
        part(grown(), 2)


def test_rule15_a_damaged_batch_is_not_given() -> None:
    disk = SimDisk()
    owner = grown(disk)
    name = next(name for name in disk.listdir(PATH) if name.endswith(".seg"))
    file = disk.open(f"{PATH}/{name}")
    at = file.pread(1 << 16, 0).index(b"...")
    file.pwritev([b"!"], at)
    with pytest.raises(errors.Corrupt):
        part(owner, 1)
    assert part(owner, owner.model.committed_end).batches == ()


# Trimmed logs


@pytest.mark.parametrize("glsn", range(1, 25))
def test_rule14_a_base_is_the_state_where_the_first_kept_commit_begins(glsn: int) -> None:
    owner = grown()
    owner.trim(glsn)
    owner.flush()
    cc = next((cc for cc in owner.model.commits if cc.glsn_end > glsn + 1), None)
    begin = cc.llsn_begin if cc is not None else owner.model.committed_end
    found = part(owner, 1)
    if begin == 1:
        assert found.batches
        return
    assert (found.llsn, found.batches, found.commits) == (begin, (), ())
    before = [one for one in owner.model.commits if one.llsn_end <= begin][-1]
    base = base_of(found.base, Epoch(0))
    assert (base.llsn, base.version, base.hwm, base.local_hwm) == (
        begin, before.version, before.hwm, before.glsn_end - 1,
    )  # fmt: skip
    assert (base.trim_glsn, base.trim_llsn) == (glsn, owner.model.llsn_after(GLSN(glsn)))
    assert json.loads(base.snapshot)[-1] == ["truncate", begin]
    assert ["commit", *before] in json.loads(base.snapshot)
    rest = part(owner, begin, base.version)
    assert rest.commits == tuple(one for one in owner.model.commits if one.llsn_begin >= begin)


def test_rule14_a_commit_is_kept_whole() -> None:
    """Of one that spans many segments no file goes before the trim point has left it."""
    disk = SimDisk()
    owner = Owner(disk, options(600))
    for _ in range(12):
        owner.append(2, 100)
        owner.flush()
    owner.commit()
    owner.append(1)
    owner.flush()
    owner.commit()
    owner.flush()
    before = disk.listdir(PATH)
    owner.trim(23)
    owner.flush()
    assert [name for name in before if name not in disk.listdir(PATH)] == []
    assert len(part(owner, 1).batches) == 13
    owner.trim(24)
    owner.flush()
    assert len(disk.listdir(PATH)) < len(before)
    assert part(owner, 1).llsn == 25


def test_rule14_what_is_promised_later_than_the_base_stays_promised() -> None:
    owner = grown()
    owner.trim(20)
    owner.flush()
    data = part(owner, 1).base
    assert base_of(data, Epoch(9)).epoch == 9
    assert base_of(data, Epoch(0)).epoch == owner.model.epoch


def test_rule14_what_is_no_base_is_refused() -> None:
    owner = grown()
    owner.trim(20)
    owner.flush()
    data = part(owner, 1).base
    for damaged in (b"", data[:-1], data[:40], data + b"x", bytes([data[0] ^ 1]) + data[1:]):
        with pytest.raises(errors.MalformedSnapshot):
            base_of(damaged, Epoch(0))


def test_rule14_a_log_on_a_base_is_the_log_from_there_on() -> None:
    owner = grown()
    owner.trim(13)
    owner.flush()
    base = base_of(part(owner, 1).base, Epoch(5))
    disk = SimDisk()
    copy = Owner(disk, options(600), base=base)
    check_opened(copy.storage, model_at(base))
    rest = part(owner, base.llsn, base.version)
    for (_, one, _), content in zip(owner.model.committed[-len(rest.batches) :], rest.batches, strict=True):
        copy.model.apply(one)
        header = batch.verify(content)
        copy.storage.stage_batch(one.llsn, one.epoch, one.sequence - 1, content, header)
    copy.flush()
    for cc in rest.commits:
        copy.model._commit(cc)
        copy.storage.stage_commit(cc)
    copy.storage.flush_commits()
    copy.flush()
    copy.check()
    disk.kill()
    check_opened(copy.reopen(), copy.model)
    assert not list(copy.storage.scrub())


def test_rule14_a_commit_that_is_not_written_yet_can_wait() -> None:
    owner = grown()
    owner.append(1)
    owner.flush()
    owner.commit()
    owner.trim(owner.model.hwm)
    with pytest.raises(errors.Busy):
        part(owner, 1)
    owner.flush()
    assert part(owner, 1).llsn == owner.model.committed_end


class TrimmedMeanwhile(SimDisk):
    """Lets something happen the next time that a segment is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Any] = []

    def open(self, path: str) -> SimFile:
        if path.endswith(".seg") and self.meanwhile:
            self.meanwhile.pop()()
        return super().open(path)


def test_rule14_files_that_go_while_they_are_read_are_no_damage() -> None:
    disk = TrimmedMeanwhile()
    owner = grown(disk)
    disk.kill()
    owner.reopen()  # so that nothing is open

    def trim() -> None:
        owner.trim(13)
        owner.flush()

    disk.meanwhile.append(trim)
    assert part(owner, 1).llsn == 13


# Making a log anew


def test_rule14_a_record_alone_is_no_log() -> None:
    """What a crash leaves of a log that was only begun does not stand in the way of the next one."""
    owner = grown()
    owner.trim(13)
    owner.flush()
    base = base_of(part(owner, 1).base, Epoch(0))
    for wanted in (None, base):
        disk = SimDisk()
        LogStreamStorage.create(disk, PATH, IDENTITY, options(), base).close()
        for name in disk.listdir(PATH):
            if name != "lwm":
                disk.unlink(f"{PATH}/{name}")
        with pytest.raises(errors.NoSuchReplica):
            LogStreamStorage.open(disk, PATH, IDENTITY, options())
        made = LogStreamStorage.create(disk, PATH, IDENTITY, options(), wanted)
        check_opened(made, model_at(wanted))
        made.close()
        check_opened(LogStreamStorage.open(disk, PATH, IDENTITY, options()), model_at(wanted))


def test_a_log_is_not_made_where_one_is() -> None:
    owner = grown()
    owner.trim(13)
    owner.flush()
    base = base_of(part(owner, 1).base, Epoch(0))
    owner.storage.close()
    with pytest.raises(errors.AlreadyExists):
        LogStreamStorage.create(owner.fs, PATH, IDENTITY, options(), base)
    check_opened(owner.reopen(), owner.model)


def test_a_base_says_what_it_was_made_of() -> None:
    base = fmt.LogBase(LLSN(1), LLSN(2), GLSN(3), Version(4), Epoch(5), GLSN(6), GLSN(7), b"table")
    assert fmt.decode_base(fmt.encode_base(base)) == base
