"""Reads for verdicts: batches of several entries, which are none, are not read, and no position is left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.counting import CountingFileSystem
from tests.storage.owner import EVERYTHING, Owner, options
from tests.storage.writeonce_owner import WriteOnceOwner
from varlog import limits
from varlog.errors import Trimmed
from varlog.sim.disk import SimDisk
from varlog.storage.reader import StoredBatch
from varlog.types import GLSN


def told(found: Sequence[StoredBatch]) -> tuple[list[tuple[int, int, int]], dict[int, tuple[object, ...]]]:
    """Position, LLSN and time of every entry; and all that is known of batches of one entry."""
    entries = [(one.glsn + i, one.llsn + i, one.time) for one in found for i in range(one.count)]
    return entries, {one.glsn: (*one[:-1], bytes(one.batch)) for one in found if one.count == 1 and one.batch}


def check(whole: Sequence[StoredBatch], sparse: Sequence[StoredBatch], *, to_the_end: bool = True) -> None:
    expected, singles = told(whole)
    entries, read = told(sparse)
    assert entries, "it tells of something, if there is anything"
    assert entries == expected[: len(entries)]
    assert read == {glsn: single for glsn, single in singles.items() if glsn <= entries[-1][0]}
    assert not to_the_end or len(entries) == len(expected)


@given(st.lists(st.tuples(st.sampled_from((1, 1, 2, 5)), st.booleans()), min_size=1, max_size=25), st.integers(0, 99))
def test_nothing_is_left_out_of_a_log(batches: list[tuple[int, bool]], seed: int) -> None:
    """Whatever the sizes of batches and commits, from any position on, over several segments."""
    owner = Owner(SimDisk(), options(600))
    for count, commits in batches:
        owner.append(count, 30)
        if commits:
            owner.flush()
            owner.commit(1 + seed % 4, skip=seed % 3)
    owner.flush()
    storage = owner.storage
    for glsn, batch, _ in owner.model.kept():
        for begin in (glsn, glsn + batch.count - 1):
            whole = storage.read(GLSN(begin), GLSN(EVERYTHING), EVERYTHING)
            check(whole, storage.read(GLSN(begin), GLSN(EVERYTHING), EVERYTHING, verdicts=True))
            part = storage.read(GLSN(begin), GLSN(begin + 4), EVERYTHING)
            check(part, storage.read(GLSN(begin), GLSN(begin + 4), EVERYTHING, verdicts=True))
            check(whole, storage.read(GLSN(begin), GLSN(EVERYTHING), 1, verdicts=True), to_the_end=False)


def test_nothing_is_left_out_of_a_write_once_log() -> None:
    random = Random(7)
    owner = WriteOnceOwner(SimDisk(), options(600))
    owner.promise()
    places, at = [], 1
    while at < 60:
        count = random.choice((1, 1, 3))
        if random.random() < 0.8:
            places.append((at, count))
        at += count
    random.shuffle(places)
    for place in places:
        owner.write(place)
        owner.flush()
    for glsn in range(1, 60):
        whole = owner.storage.read(GLSN(glsn), EVERYTHING)
        for most in (EVERYTHING, 200, 1):
            sparse = owner.storage.read(GLSN(glsn), most, verdicts=True)
            if whole:
                check(whole, sparse, to_the_end=most == EVERYTHING)
            else:
                assert not sparse
    owner.trim(9)
    with pytest.raises(Trimmed):
        owner.storage.read(GLSN(9), 1, verdicts=True)


def test_one_read_looks_at_so_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "VERDICTS_LOOK", 10)
    owner, chained = Owner(SimDisk(), options()), WriteOnceOwner(SimDisk(), options())
    chained.promise()
    for _ in range(30):
        owner.store(3, 10)
        chained.append(3)
    chained.flush()
    for found in (
        owner.storage.read(GLSN(1), GLSN(EVERYTHING), EVERYTHING, verdicts=True),
        chained.storage.read(GLSN(1), EVERYTHING, verdicts=True),
    ):
        assert sum(one.count for one in found) == 30


def test_batches_of_several_entries_are_not_read(tmp_path: Path) -> None:
    fs = CountingFileSystem()
    owner = Owner(fs, options(1 << 20, sync=False), path=str(tmp_path / "log"))
    for number in range(100):
        owner.store(1 if number in {40, 41} else 10, 100)
    fs.reads.clear()
    found = owner.storage.read(GLSN(1), GLSN(EVERYTHING), EVERYTHING, verdicts=True)
    assert sum(one.count for one in found) == owner.model.local_hwm
    assert sum(read.length for read in fs.reads) < 2500, "two batches of one entry, and the last one"
    owner.storage.close()
