"""Queries while nodes die and logs are trimmed, and queries that go through an archive into the live log."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import monotonic

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

import varlog.sync
from tests.spark.topics import Topic
from varlog.archive import Archive, write_range
from varlog.client.cluster import find
from varlog.processes import LocalCluster
from varlog.spark.task import read_range

SECONDS = 60.0


def under_way(spark: SparkSession, job: Future[list[Row]]) -> None:
    """Wait until some of a job's tasks are done, and others are not."""
    tracker = spark.sparkContext.statusTracker()
    deadline, pause = monotonic() + SECONDS, Event()
    while True:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        if any(stage is not None and stage.numCompletedTasks > 0 for stage in stages):
            break
        assert not job.done(), job.result()
        assert monotonic() < deadline
        pause.wait(0.01)
    assert not job.done(), "it was over too soon to be disturbed"


def summary(frame: DataFrame) -> list[Row]:
    return frame.selectExpr(
        "count(*) AS count", "count(DISTINCT glsn) AS positions", "min(glsn) AS first", "max(glsn) AS last"
    ).collect()


def test_P1_a_node_killed_during_a_query_makes_no_difference(spark: SparkSession, own_cluster: LocalCluster) -> None:
    topic = Topic(own_cluster.path, "log")
    tail = topic.write_numbers(40_000, per_batch=500, size=1000)
    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(summary, topic.read(spark, maxRecordsPerPartition=800))
        under_way(spark, job)
        asyncio.run(own_cluster.nodes[1].kill())
        assert job.result(SECONDS) == [Row(count=tail, positions=tail, first=1, last=tail)]


@pytest.mark.parametrize("fails", [True, False])
def test_a_trim_during_a_query_is_a_loss_or_is_passed_over(spark: SparkSession, topic: Topic, fails: bool) -> None:
    tail = topic.write_numbers(40_000, per_batch=500, size=1000)
    with ThreadPoolExecutor(1) as thread:
        frame = topic.read(spark, maxRecordsPerPartition=800, failOnDataLoss=fails)
        job = thread.submit(lambda: frame.select("glsn").collect())
        under_way(spark, job)
        with topic.log() as log:
            log.trim(tail - 100)
        if fails:
            with pytest.raises(PySparkException, match=r"DataLoss: \d+ to \d+ can no longer be read"):
                job.result(SECONDS)
        else:
            glsns = [row.glsn for row in job.result(SECONDS)]
            assert glsns == sorted(set(glsns))
            assert len(glsns) < tail
            assert glsns[-100:] == list(range(tail - 99, tail + 1))


def archive_of(topic: Topic, directory: Path, end: int, rows_per_file: int) -> Archive:
    """Archive everything before `end`."""
    with topic.log() as log:
        tpid = log.topic.tpid
    archive = Archive.create(str(directory), cid=find(topic.path).cid, topic=topic.name, tpid=tpid, first=1)
    for begin in range(1, end, rows_per_file):
        until = min(end, begin + rows_per_file)
        made = write_range(str(directory), begin, until, read_range(topic.connection, begin, until))
        archive.commit([made], begin)
    return archive


def test_P1_a_table_goes_through_the_archive_into_the_live_log(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    tail = topic.write_numbers(5000)
    before = topic.read(spark).collect()
    archive = archive_of(topic, tmp_path / "archive", 3001, 700)
    with varlog.sync.admin(topic.path) as admin:
        admin.attach_archive(topic.name, archive.uri)
    with topic.log() as log:
        log.trim(2500)
    assert topic.read(spark, minPartitions=7).collect() == before
    assert topic.read(spark, startingOffsets=2000, endingOffsets=3500).collect() == before[1999:3499]
    one = before[0].log_stream
    chosen = topic.read(spark, columns="payload,glsn", logStreams=one).collect()
    assert chosen == [Row(payload=row.payload, glsn=row.glsn) for row in before if row.log_stream == one]
    edges = topic.read(spark, maxRecordsPerPartition=700, endingOffsets=2801)
    assert edges.rdd.mapPartitions(lambda rows: [next(iter(rows)).glsn]).collect() == [1, 701, 1401, 2101]
    assert tail == len(before)


def test_what_neither_archive_nor_log_has_is_named(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    topic.write_numbers(1000)
    archive = archive_of(topic, tmp_path / "archive", 401, 200)
    with varlog.sync.admin(topic.path) as admin:
        admin.attach_archive(topic.name, archive.uri)
    with topic.log() as log:
        log.trim(600)
    with pytest.raises(PySparkException, match=r"DataLoss: 401 to 600 can no longer be read: .* has 1 to 400"):
        topic.read(spark).collect()
    rows = topic.read(spark, failOnDataLoss=False).collect()
    assert [row.glsn for row in rows] == [*range(1, 401), *range(601, 1001)]
