"""The list of files: a commit is a compare-and-swap, and a list that contradicts itself is refused."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction

from tests.archive.made import archive, create, file, glsns_of
from varlog.archive import Archive, Range
from varlog.errors import (
    ArchiveConflict,
    BrokenArchive,
    InvalidArgument,
    NoArchive,
    UnsupportedFormat,
)
from varlog.spark.columns import ARROW_SCHEMA

SECONDS = 60.0


def extend(uri: str, number: int, until: int) -> int:
    """Extend an archive up to a position, in steps of a size of one's own, going on behind others; how often that
    was oneself."""
    known = Archive.open(uri)
    won = 0
    while known.end < until:
        begin = known.end
        held = file(uri, begin, min(until, begin + 3 + number))
        try:
            known.commit([held], begin)
            won += 1
        except ArchiveConflict:
            known.refresh()
            known.discard([held])
    return won


def check_extended(uri: str, until: int, commits: int) -> None:
    made = Archive.open(uri)
    assert made.version == commits, "every commit is one version, and those that lost made none"
    assert len(made.ranges) == commits
    assert glsns_of(made.scan(1, until)) == list(range(1, until))
    assert len(list((Path(uri) / "data").iterdir())) == commits


def test_P1_two_archivers_in_threads(tmp_path: Path) -> None:
    uri = create(tmp_path / "it").uri
    won: list[int] = []
    threads = [threading.Thread(target=lambda n=n: won.append(extend(uri, n, 300))) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert len(won) == 2
    check_extended(uri, 300, sum(won))


def test_P1_archivers_in_processes(tmp_path: Path) -> None:
    uri = create(tmp_path / "it").uri
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        won = pool.starmap_async(extend, [(uri, number, 300) for number in range(2)]).get(SECONDS)
    check_extended(uri, 300, sum(won))


def test_archives_made_at_the_same_time_are_one(tmp_path: Path) -> None:
    uri, barrier = str(tmp_path / "it"), threading.Barrier(4)
    made: list[Archive] = []

    def make() -> None:
        barrier.wait(SECONDS)
        made.append(create(uri))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert [(known.version, known.end) for known in made] == [(0, 1)] * 4
    assert [path.name for path in (tmp_path / "it" / "_delta_log").glob("*.json")] == ["00000000000000000000.json"]


def test_a_commit_on_an_old_version_fails_whatever_it_says(tmp_path: Path) -> None:
    """The swap itself: deltalake is not asked to put it behind what somebody else has written."""
    uri = archive(tmp_path / "it", 1, 10).uri
    table = DeltaTable(uri)
    Archive.open(uri).commit([file(uri, 10, 20)], 10)
    with pytest.raises(Exception, match="Failed to commit transaction"):
        _add(table, file(uri, 10, 20))
    assert Archive.open(uri).end == 20


def test_files_have_to_follow_upon_the_archive(tmp_path: Path) -> None:
    made = archive(tmp_path / "it", 1, 10)
    after_gap, after_that = file(made.uri, 11, 20), file(made.uri, 20, 30)
    for ranges in ([after_gap], [file(made.uri, 10, 20), file(made.uri, 19, 30)], [after_that, after_gap]):
        with pytest.raises(BrokenArchive, match="hold"):
            made.commit(ranges, 10)
    with pytest.raises(InvalidArgument, match="at least one file"):
        made.commit([], 10)
    with pytest.raises(ArchiveConflict, match="goes up to 10 now, not to 11"):
        made.commit([after_gap], 11)
    assert Archive.open(made.uri).end == 10


def test_a_file_that_is_not_whole_is_not_committed(tmp_path: Path) -> None:
    made = archive(tmp_path / "it", 1, 10)
    held = file(made.uri, 10, 20)
    path = tmp_path / "it" / held.path
    with pytest.raises(BrokenArchive, match="has 10 rows"):
        made.commit([held._replace(rows=9)], 10)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BrokenArchive, match=r"has \d+ bytes instead of"):
        made.commit([held], 10)
    path.unlink()
    with pytest.raises(BrokenArchive, match="is not there"):
        made.commit([held], 10)
    assert Archive.open(made.uri).end == 10


def _add(table: DeltaTable, held: Range, path: str = "") -> None:
    action = AddAction(path or held.path, held.bytes, {}, 0, True, json.dumps({"numRecords": held.rows}))
    table.create_write_transaction(
        [action], "append", ARROW_SCHEMA, commit_properties=CommitProperties(max_commit_retries=0)
    )


@pytest.mark.parametrize(
    ("begin", "end", "what"),
    [(12, 20, "nothing holds the positions 10 to 11"), (8, 20, "two files hold the positions 8 to 9")],
)
def test_gaps_and_overlaps_are_found(begin: int, end: int, what: str, tmp_path: Path) -> None:
    made = archive(tmp_path / "it", 1, 10)
    _add(DeltaTable(made.uri), file(made.uri, begin, end))
    with pytest.raises(BrokenArchive, match=what):
        Archive.open(made.uri)
    with pytest.raises(BrokenArchive, match=what):
        made.refresh()
    looked_at = Archive.open(made.uri, check=False)
    assert [(held.begin, held.end) for held in looked_at.ranges] == sorted([(1, 10), (begin, end)])


def test_a_file_that_is_said_to_be_empty_is_looked_at(tmp_path: Path) -> None:
    """A bit makes of 8 rows none, or lets the archive end elsewhere."""
    made = archive(tmp_path / "rows", 1, 9)
    edit(
        tmp_path / "rows" / "_delta_log" / f"{1:020d}.json", lambda text: text.replace('Records\\": 8', 'Records\\": 0')
    )
    with pytest.raises(BrokenArchive, match="does not say clearly how many rows it has"):
        Archive.open(made.uri)

    made = archive(tmp_path / "end", 1, 10, 20, hidden=range(10, 20))
    name = made.ranges[-1].path
    entry = tmp_path / "end" / "_delta_log" / f"{1:020d}.json"
    edit(entry, lambda text: text.replace(name, name.replace(f"{20:020d}", f"{60:020d}")))
    longer = Archive.open(made.uri)
    assert longer.end == 60
    for look in (longer.last, lambda: list(longer.scan(1, 60)), lambda: list(longer.scan(30, 40))):
        with pytest.raises(BrokenArchive, match="is not there"):
            look()


@pytest.mark.parametrize("path", ["data/part-0.parquet", "elsewhere.parquet"])
def test_files_of_others_are_refused(path: str, tmp_path: Path) -> None:
    made = archive(tmp_path / "it", 1, 10)
    _add(DeltaTable(made.uri), file(made.uri, 10, 20), path)
    with pytest.raises(BrokenArchive, match="none of those that an archive consists of"):
        Archive.open(made.uri)


def test_what_is_not_an_archive(tmp_path: Path) -> None:
    uri = str(tmp_path / "it")
    DeltaTable.create(uri, ARROW_SCHEMA)
    with pytest.raises(NoArchive, match="is not an archive of Varlog"):
        Archive.open(uri)
    with pytest.raises(NoArchive, match="is not an archive of Varlog"):
        create(uri)


def edit(entry: Path, change: Callable[[str], str]) -> None:
    entry.write_text(change(entry.read_text()))


def test_an_archive_of_a_later_release_is_refused(tmp_path: Path) -> None:
    made = archive(tmp_path / "it", 1, 10)
    first = tmp_path / "it" / "_delta_log" / f"{0:020d}.json"
    edit(first, lambda text: text.replace('"varlog.format":"1"', '"varlog.format":"2"'))
    with pytest.raises(UnsupportedFormat, match="has format 2; this release knows 1"):
        Archive.open(made.uri)
    edit(first, lambda text: text.replace('"varlog.format":"2"', '"varlog.format":"1"').replace("varlog.tpid", "tpid"))
    with pytest.raises(BrokenArchive, match="does not say whose it is"):
        Archive.open(made.uri)


def test_a_damaged_list_is_refused(tmp_path: Path) -> None:
    cuts = [1, 10, 20, 30]
    made = create(tmp_path / "it")
    for begin, end in pairwise(cuts):
        made.commit([file(made.uri, begin, end)], begin)
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "it" / "_delta_log", kept)
    log = tmp_path / "it" / "_delta_log"
    damages: list[tuple[int, Callable[[str], str] | None]] = [
        (3, lambda text: text[: len(text) // 2]),
        (2, None),
        (2, lambda _: ""),
    ]
    for number, change in damages:
        entry = log / f"{number:020d}.json"
        if change is None:
            entry.unlink()
        else:
            edit(entry, change)
        with pytest.raises(BrokenArchive):
            Archive.open(made.uri)
        shutil.rmtree(log)
        shutil.copytree(kept, log)
    assert Archive.open(made.uri).end == 30
