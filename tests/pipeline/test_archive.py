"""The archive job: what it leaves is exact, whoever else archives, trims or appends meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import varlog.sync
from tests.archive import made as sample
from tests.pipeline.archives import At, check, no_spark, trim, wanted
from tests.spark.topics import Topic
from varlog import errors
from varlog.archive import Archive
from varlog.cli.output import Output
from varlog.oneprocess import CID
from varlog.pipeline.archive import FILES_PER_CORE, Archiver, Step, Steps, archive, split
from varlog.spark.connections import pin

COUNT = 2500
SECONDS = 60.0


@pytest.fixture
def payloads(topic: Topic) -> list[bytes]:
    """What is written, in the order of the log."""
    topic.write_numbers(COUNT)
    return topic.payloads(1, COUNT + 1)


@given(st.integers(1, 10**9), st.integers(1, 10**7), st.integers(1, 10**6), st.integers(1, 64))
def test_parts_follow_upon_each_other(begin: int, length: int, rows_per_file: int, cores: int) -> None:
    parts = split(begin, begin + length, rows_per_file, cores)
    assert parts[0].begin == begin
    assert all(before.end == after.begin for before, after in pairwise(parts))
    sizes = [part.end - part.begin for part in parts]
    assert 0 < min(sizes) <= max(sizes) <= rows_per_file
    assert max(sizes) - min(sizes) <= 1
    assert len(parts) <= cores * FILES_PER_CORE
    assert parts[-1].end == min(begin + length, begin + rows_per_file * cores * FILES_PER_CORE)


def test_P1_a_topic_is_archived_and_continued(
    spark: SparkSession, topic: Topic, payloads: list[bytes], tmp_path: Path
) -> None:
    uri = tmp_path / "an archive"
    done = archive(topic.connection, wanted(uri), lambda: spark)
    assert (done.positions, done.rows, done.begin, done.end) == (COUNT, COUNT, 1, COUNT + 1)
    assert (done.commits, done.conflicts, done.log_first) == (3, 0, 0)
    made = check(topic, uri, payloads)
    assert all(held.end - held.begin <= 250 for held in made.ranges)
    assert archive(topic.connection, wanted(uri), no_spark).positions == 0
    topic.write([b"more", b"and more"])
    done = archive(topic.connection, wanted(uri), lambda: spark)
    assert (done.positions, done.files) == (2, 1)
    check(topic, uri, [*payloads, b"more", b"and more"])


def test_P1_spark_reads_the_files_of_an_archive(
    spark: SparkSession, topic: Topic, payloads: list[bytes], tmp_path: Path
) -> None:
    archive(topic.connection, wanted(tmp_path / "it"), lambda: spark)
    made = Archive.open(str(tmp_path / "it"))
    read = spark.read.parquet(*(f"file://{made.path(held)}" for held in made.ranges))
    assert read.dtypes == topic.read(spark).dtypes
    rows = sorted(read.collect(), key=lambda row: int(row["glsn"]))
    assert [bytes(row["payload"]) for row in rows] == payloads
    assert rows == topic.read(spark).collect()


def test_up_to_a_position(spark: SparkSession, topic: Topic, payloads: list[bytes], tmp_path: Path) -> None:
    archive(topic.connection, wanted(tmp_path / "it", until=700), lambda: spark)
    check(topic, tmp_path / "it", payloads[:700])
    archive(topic.connection, wanted(tmp_path / "it", until=700), no_spark)
    archive(topic.connection, wanted(tmp_path / "it", until=10**9), lambda: spark)
    check(topic, tmp_path / "it", payloads)


def test_fill_has_no_row(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    with topic.log() as log:
        log.append(b"one")
        log.append_fill(1000)
        log.append(b"two")
    done = archive(topic.connection, wanted(tmp_path / "it"), lambda: spark)
    assert (done.positions, done.rows) == (1002, 2)
    made = Archive.open(str(tmp_path / "it"))
    assert [batch.column("glsn").to_pylist() for batch in made.scan(1, 1003)] == [[1], [1002]]


def test_a_topic_that_was_trimmed_is_archived_from_where_it_begins(
    spark: SparkSession, topic: Topic, payloads: list[bytes], tmp_path: Path
) -> None:
    trim(topic, 100)
    archive(topic.connection, wanted(tmp_path / "it"), lambda: spark)
    check(topic, tmp_path / "it", payloads[100:], first=101)


# Trimming


def test_P1_what_is_trimmed_is_read_from_the_archive(
    spark: SparkSession, topic: Topic, payloads: list[bytes], tmp_path: Path
) -> None:
    uri = tmp_path / "it"
    done = archive(topic.connection, wanted(uri, attach=True, trim=True, keep=300), lambda: spark)
    assert done.log_first == COUNT - 300 + 1
    with topic.log() as log:
        assert log.first() == done.log_first
        assert log.topic.archive == str(uri)
    check(topic, uri, payloads)
    topic.write([b"more"])
    assert topic.payloads(1, COUNT + 2) == [*payloads, b"more"]
    done = archive(topic.connection, wanted(uri, attach=True, trim=True), lambda: spark)
    assert done.log_first == COUNT + 2
    check(topic, uri, [*payloads, b"more"])


def test_P1_nothing_is_trimmed_that_could_not_be_read_any_more(
    spark: SparkSession, topic: Topic, payloads: list[bytes], tmp_path: Path
) -> None:
    uri, other = tmp_path / "it", tmp_path / "other"
    with pytest.raises(errors.InvalidArgument, match=r"has no archive attached.*--attach, or say --detached"):
        archive(topic.connection, wanted(uri, trim=True), no_spark)
    assert not uri.exists()
    archive(topic.connection, wanted(other, attach=True, until=10), lambda: spark)
    for options in ({"trim": True}, {"trim": True, "attach": True}):
        with pytest.raises(errors.InvalidArgument, match=f"has the archive {other} attached"):
            archive(topic.connection, wanted(uri, **options), no_spark)
    with topic.log() as log:
        assert log.first() == 1
    done = archive(topic.connection, wanted(uri, trim=True, detached=True), lambda: spark)
    assert done.log_first == COUNT + 1
    with pytest.raises(errors.Trimmed, match="neither in the log nor in its archive"):
        topic.payloads(1, COUNT + 1)
    made = Archive.open(str(uri))
    assert [row for batch in made.scan(1, COUNT + 1) for row in batch.column("payload").to_pylist()] == payloads


def test_P1_an_archive_that_is_detached_meanwhile_is_trimmed_behind_no_more(
    spark: SparkSession, topic: Topic, payloads: list[bytes], tmp_path: Path
) -> None:
    def detach() -> None:
        with varlog.sync.admin(topic.path) as admin:
            admin.detach_archive(topic.name)

    at = At(Step.COMMITTED, detach)
    with pytest.raises(errors.InvalidArgument, match="has no archive attached"):
        archive(topic.connection, wanted(tmp_path / "it", attach=True, trim=True), lambda: spark, steps=at)
    assert Step.WRITTEN in at.seen
    with topic.log() as log:
        assert log.first() == 1
    check(topic, tmp_path / "it", payloads[:1000])


def test_what_was_archived_and_not_trimmed_is_trimmed_by_the_next_run(
    spark: SparkSession, topic: Topic, payloads: list[bytes], tmp_path: Path
) -> None:
    archive(topic.connection, wanted(tmp_path / "it", attach=True), lambda: spark)
    done = archive(topic.connection, wanted(tmp_path / "it", trim=True), no_spark)
    assert (done.positions, done.log_first) == (0, COUNT + 1)
    check(topic, tmp_path / "it", payloads)


def test_P1_a_trim_that_overtakes_the_archive_is_told(
    spark: SparkSession, topic: Topic, payloads: list[bytes], tmp_path: Path
) -> None:
    uri = tmp_path / "it"
    at = At(Step.PLANNED, lambda: trim(topic, 1500), time=2)
    with pytest.raises(errors.Trimmed, match="1001 to 1500 are neither in the log nor in its archive"):
        archive(topic.connection, wanted(uri, attach=True), lambda: spark, steps=at)
    assert Archive.open(str(uri)).end == 1001, "what was committed is still there, and nothing behind a gap"
    with pytest.raises(errors.Trimmed, match="1001 to 1500 are neither in the log nor in its archive"):
        archive(topic.connection, wanted(uri), no_spark)
    archive(topic.connection, wanted(tmp_path / "new"), lambda: spark)
    made = Archive.open(str(tmp_path / "new"))
    assert (made.begin, made.end) == (1501, COUNT + 1)
    assert [row for b in made.scan(1501, COUNT + 1) for row in b.column("payload").to_pylist()] == payloads[1500:]


# Several at once


@pytest.mark.parametrize("detached", [True, False])
def test_P1_an_archiver_goes_on_behind_another_one(
    detached: bool, spark: SparkSession, topic: Topic, payloads: list[bytes], tmp_path: Path
) -> None:
    """The other one archives and trims all that this one has planned to archive."""
    uri = tmp_path / "it"
    archive(topic.connection, wanted(uri, attach=not detached, until=1), lambda: spark)
    faster = wanted(uri, trim=True, detached=detached, until=1800)
    at = At(Step.PLANNED, lambda: archive(topic.connection, faster, lambda: spark))
    done = archive(topic.connection, wanted(uri, trim=True, detached=detached), lambda: spark, steps=at)
    assert done.conflicts == 1
    assert done.positions == COUNT - 1800
    made = check(topic, uri, payloads)
    assert {f"data/{path.name}" for path in (uri / "data").iterdir()} == {held.path for held in made.ranges}


def test_P1_two_archivers_at_once(spark: SparkSession, topic: Topic, payloads: list[bytes], tmp_path: Path) -> None:
    uri = tmp_path / "it"
    archive(topic.connection, wanted(uri, attach=True, until=1), lambda: spark)
    archived: list[int] = []

    def run(rows_per_file: int) -> None:
        asked = wanted(uri, trim=True, rows_per_file=rows_per_file)
        archived.append(archive(topic.connection, asked, lambda: spark).positions)

    threads = [threading.Thread(target=run, args=(rows,)) for rows in (100, 70)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert len(archived) == 2
    assert sum(archived) == COUNT - 1
    check(topic, uri, payloads)


# Archives of something else


@pytest.mark.usefixtures("payloads")
def test_archives_of_others_are_refused(topic: Topic, tmp_path: Path) -> None:
    with topic.log() as log:
        tpid = log.topic.tpid
    for name, cid, known, number in (
        ("c", CID + 1, topic.name, tpid),
        ("t", CID, "x", tpid),
        ("n", CID, topic.name, 99),
    ):
        Archive.create(str(tmp_path / name), cid=cid, topic=known, tpid=number, first=1)
        with pytest.raises(errors.WrongIdentity, match="use another place"):
            archive(topic.connection, wanted(tmp_path / name), no_spark)
    for name, until, what in (
        ("same", 20, "has another entry at 19 than the log"),
        ("longer", COUNT + 20, "only up to"),
    ):
        namesake = Archive.create(str(tmp_path / name), cid=CID, topic=topic.name, tpid=tpid, first=1)
        namesake.commit([sample.file(namesake.uri, 1, until)], 1)
        with pytest.raises(errors.WrongIdentity, match=what):
            archive(topic.connection, wanted(tmp_path / name), no_spark)


def test_a_place_that_cannot_be_written_is_told(
    spark: SparkSession, topic: Topic, payloads: list[bytes], tmp_path: Path
) -> None:
    uri = tmp_path / "it"

    def spoil() -> None:
        (uri / "data").rmdir()
        (uri / "data").write_text("a file where a directory should be")

    with pytest.raises(errors.NotWritable, match=f"the archive at {uri} cannot be written"):
        archive(topic.connection, wanted(uri), lambda: spark, steps=At(Step.PLANNED, spoil))
    (uri / "data").unlink()
    (uri / "data").mkdir()
    archive(topic.connection, wanted(uri), lambda: spark)
    check(topic, uri, payloads)


# Following


@contextmanager
def following(spark: SparkSession, topic: Topic, uri: Path, steps: Steps) -> Iterator[Archiver]:
    asked = wanted(uri, follow=True, every=0.2, attach=True, trim=True)
    archiver = Archiver(pin(topic.connection), asked, lambda: spark, Output(json=True), steps)
    thread = threading.Thread(target=archiver.run)
    thread.start()
    try:
        yield archiver
    finally:
        archiver.stop()
        thread.join(SECONDS)
        assert not thread.is_alive()


def test_P1_an_archive_follows_its_log(
    spark: SparkSession, topic: Topic, payloads: list[bytes], tmp_path: Path
) -> None:
    committed = threading.Semaphore(0)

    class Tells(Steps):
        def reached(self, step: Step) -> None:
            if step is Step.COMMITTED:
                committed.release()

    uri = tmp_path / "it"
    with following(spark, topic, uri, Tells()) as archiver:
        for _ in range(3):
            assert committed.acquire(timeout=SECONDS)
        for number in range(2):
            topic.write([b"later %d" % number])
            assert committed.acquire(timeout=SECONDS)
    later = [b"later 0", b"later 1"]
    assert archiver.summary.positions == COUNT + 2
    assert archiver.summary.commits == 5
    made = check(topic, uri, [*payloads, *later])
    assert [held.end - held.begin for held in made.ranges[-2:]] == [1, 1]
