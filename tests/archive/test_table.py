"""An archive as a whole: what was committed is read back, exactly."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.archive.made import PER_ROW, TIME, archive, create, file, glsns_of
from varlog.archive import Archive
from varlog.errors import ArchiveConflict, InvalidArgument, NoArchive, WrongIdentity

DAY = 86400.0


def test_P1_what_is_committed_is_read_back(tmp_path: Path) -> None:
    made = archive(tmp_path / "it", 5, 105, 106, 406)
    for known in (made, Archive.open(str(tmp_path / "it"))):
        assert (known.begin, known.end, known.version) == (5, 406, 1)
        assert (known.cid, known.topic, known.tpid) == (1, "log", 1)
        assert [(held.begin, held.end, held.rows) for held in known.ranges] == [
            (5, 105, 100),
            (105, 106, 1),
            (106, 406, 300),
        ]
        assert glsns_of(known.scan(5, 406)) == list(range(5, 406))


@settings(max_examples=30)
@given(data=st.data())
def test_any_part_can_be_read(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, 400), min_size=2, max_size=6), label="cuts"))
    hidden = data.draw(st.sets(st.integers(cuts[0], cuts[-1]), max_size=30), label="hidden")
    begin = data.draw(st.integers(cuts[0], cuts[-1] - 1), label="begin")
    end = data.draw(st.integers(begin, cuts[-1]), label="end")
    batch = data.draw(st.integers(1, 200), label="rows of a batch")
    made = archive(tmp_path_factory.mktemp("part") / "it", *cuts, hidden=sorted(hidden))
    found = list(made.scan(begin, end, batch))
    assert glsns_of(found) == [glsn for glsn in range(begin, end) if glsn not in hidden]
    assert all(0 < len(part) <= batch for part in found)


def test_what_an_archive_does_not_have_is_refused(tmp_path: Path) -> None:
    made = archive(tmp_path / "it", 5, 10)
    for begin, end in ((4, 6), (9, 11), (10, 11)):
        with pytest.raises(InvalidArgument, match=r"has \[5, 10\), not all of"):
            made.scan(begin, end)
    assert list(made.scan(7, 7)) == []


def test_positions_without_a_row_are_passed_over(tmp_path: Path) -> None:
    made = archive(tmp_path / "it", 1, 10, 20, 30, hidden=[1, 9, *range(10, 20), 25])
    assert [held.rows for held in made.ranges] == [7, 0, 9]
    assert glsns_of(made.scan(1, 30)) == [*range(2, 9), *range(20, 25), *range(26, 30)]
    assert list(made.scan(10, 20)) == []


@pytest.mark.parametrize("glsn", [2, 8, 20, 24, 26, 29])
def test_a_time_leads_to_its_position(glsn: int, tmp_path: Path) -> None:
    made = archive(tmp_path / "it", 1, 10, 20, 30, hidden=[1, 9, *range(10, 20), 25])
    visible = [*range(2, 9), *range(20, 25), *range(26, 30)]
    assert made.find_time(TIME + glsn * PER_ROW) == glsn
    after = next((other for other in visible if other > glsn), 30)
    assert made.find_time(TIME + glsn * PER_ROW + 1) == after


def test_times_before_and_after_everything(tmp_path: Path) -> None:
    assert create(tmp_path / "empty", 7).find_time(TIME) == 7
    made = archive(tmp_path / "it", 7, 10)
    assert made.find_time(0) == 7
    assert made.find_time(TIME * 2) == 10


def test_an_archive_that_is_there_is_continued(tmp_path: Path) -> None:
    archive(tmp_path / "it", 5, 10)
    again = create(tmp_path / "it", first=1)
    assert (again.begin, again.end) == (5, 10)
    again.commit([file(tmp_path / "it", 10, 20)], 10)
    assert glsns_of(again.scan(5, 20)) == list(range(5, 20))


@pytest.mark.parametrize(("cid", "topic", "tpid"), [(2, "log", 1), (1, "other", 1), (1, "log", 2)])
def test_an_archive_of_something_else_is_refused(cid: int, topic: str, tpid: int, tmp_path: Path) -> None:
    archive(tmp_path / "it", 5, 10)
    with pytest.raises(WrongIdentity, match=r"is of topic 'log' \(id 1\) of cluster 1, not of"):
        Archive.create(str(tmp_path / "it"), cid=cid, topic=topic, tpid=tpid, first=1)


def test_where_no_archive_is(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NoArchive, match="there is no archive at"):
            Archive.open(str(place))
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing behind"


def test_others_see_what_was_added_when_they_look_again(tmp_path: Path) -> None:
    made = archive(tmp_path / "it", 1, 10)
    reader = Archive.open(made.uri)
    begun = reader.scan(1, 10)
    made.commit([file(made.uri, 10, 20)], 10)
    assert reader.end == 10
    reader.refresh()
    assert reader.ranges == made.ranges
    assert glsns_of(begun) == list(range(1, 10)), "a scan that was begun goes on as it was"


def test_files_that_belong_to_no_commit_go_after_a_while(tmp_path: Path) -> None:
    made = archive(tmp_path / "it", 1, 10)
    data = tmp_path / "it" / "data"
    old, young = file(made.uri, 10, 20), file(made.uri, 10, 20)
    unfinished = data / ".00000000000000000010-00000000000000000020-x.parquet"
    unfinished.write_bytes(b"PAR1")
    for path in (tmp_path / "it" / old.path, unfinished, tmp_path / "it" / made.ranges[0].path):
        os.utime(path, (time.time() - 2 * DAY, time.time() - 2 * DAY))
    assert sorted(made.collect(DAY)) == sorted([old.path, f"data/{unfinished.name}"])
    assert {f"data/{path.name}" for path in data.iterdir()} == {made.ranges[0].path, young.path}
    made.commit([young], 10)
    assert glsns_of(made.scan(1, 20)) == list(range(1, 20))


def test_half_written_files_of_others_disturb_nobody(tmp_path: Path) -> None:
    made = archive(tmp_path / "it", 1, 10)
    whole = tmp_path / "it" / file(made.uri, 10, 20).path
    whole.write_bytes(whole.read_bytes()[:500])
    again = Archive.open(made.uri)
    assert glsns_of(again.scan(1, 10)) == list(range(1, 10))
    again.commit([file(made.uri, 10, 15)], 10)
    assert again.end == 15


def test_what_one_does_not_commit_can_be_taken_away(tmp_path: Path) -> None:
    made = archive(tmp_path / "it", 1, 10)
    other = Archive.open(made.uri)
    mine, theirs = file(made.uri, 10, 20), file(made.uri, 10, 30)
    other.commit([theirs], 10)
    with pytest.raises(ArchiveConflict, match="goes up to 30 now, not to 10"):
        made.commit([mine], 10)
    made.discard([mine, theirs])
    assert glsns_of(made.scan(1, 30)) == list(range(1, 30))
    assert len(list((tmp_path / "it" / "data").iterdir())) == 2


def test_many_commits_later_it_still_opens_at_once(tmp_path: Path) -> None:
    cuts = range(1, 122)
    made = create(tmp_path / "it")
    for begin, end in pairwise(cuts):
        made.commit([file(made.uri, begin, end)], begin)
    log = tmp_path / "it" / "_delta_log"
    checkpoints = sorted(log.glob("*.checkpoint.parquet"))
    assert checkpoints, "opening would have to read every entry"
    for entry in sorted(log.glob("*.json")):
        if int(entry.stem) <= int(checkpoints[-1].name.partition(".")[0]):
            entry.unlink()  # as Delta itself does with those that have become old
    again = Archive.open(made.uri)
    assert again.ranges == made.ranges
    assert glsns_of(again.scan(1, 121)) == list(range(1, 121))
