"""Rows written by Spark over real nodes: exactly once, whatever is tried again."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import varlog.sync
from tests.spark.topics import Topic
from varlog import errors

SECONDS = 90


@pytest.fixture
def source(topic: Topic) -> Iterator[Topic]:
    """A second topic, to read from."""
    with varlog.sync.admin(topic.path) as admin:
        name = f"source of {topic.name}"[:100]
        admin.add_topic(name, streams=2)
        yield Topic(topic.path, name)
        admin.remove_topic(name)


def write(frame: DataFrame, target: Topic, **options: Any) -> None:
    frame.write.format("varlog").options(**target.options(**options)).mode("append").save()


def seen(topic: Topic) -> list[bytes]:
    """What a reader sees, without waiting for anything that is open."""
    with topic.log() as log:
        return [payload for batch in log.scan() for payload in batch.payloads()]


def nothing_is_open(topic: Topic) -> bool:
    with topic.log() as log:
        return log.stable() == log.tail() and not log.transactions()


class Query:
    """From one topic to another; what it was goes on, with whatever its checkpoint says."""

    def __init__(self, spark: SparkSession, source: Topic, target: Topic, checkpoint: Path) -> None:
        self._spark = spark
        self._source = source
        self._target = target
        self.checkpoint = checkpoint

    def run(self, partitions: int = 2, **options: Any) -> None:
        """Up to what there is now."""
        frame = self._source.stream(self._spark, startingOffsets="earliest", maxOffsetsPerTrigger=100)
        self.write(frame.select("payload").repartition(partitions), **options)

    def write(self, frame: DataFrame, **options: Any) -> None:
        writer = frame.writeStream.format("varlog").options(**self._target.options(**options))
        writer = writer.option("checkpointLocation", str(self.checkpoint)).queryName("a name is no option of ours")
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(SECONDS)

    def forget(self, batch: int) -> None:
        """As if the driver had died before it noted that the micro-batch is done."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.fixture
def query(spark: SparkSession, source: Topic, topic: Topic, tmp_path: Path) -> Query:
    return Query(spark, source, topic, tmp_path / "checkpoint")


def test_P1_rows_of_a_table_become_entries(spark: SparkSession, topic: Topic) -> None:
    rows = spark.range(0, 5000, numPartitions=3)
    write(rows.selectExpr("id", "CAST(CAST(id AS STRING) AS BINARY) AS payload"), topic)
    expected = [b"%d" % number for number in range(5000)]
    assert sorted(seen(topic), key=int) == expected
    write(rows.where("id < 2").selectExpr("CONCAT('é', id) AS text"), topic, payload="text")
    write(rows.where("id = 7").selectExpr("id", "named_struct('a', id) AS s"), topic, json=True)
    write(rows.where("id = 7").selectExpr("id", "named_struct('a', id) AS s"), topic, json=True, payload="S")
    write(rows.where("id < 0").selectExpr("string(id) AS payload"), topic)
    assert sorted(seen(topic)[5000:]) == sorted(
        ["é0".encode(), "é1".encode(), b'{"id":7,"s":{"a":7}}', b'{"a":7}']
    )  # fmt: skip
    assert topic.read(spark).count() == 5004
    assert nothing_is_open(topic)


def test_P1_a_micro_batch_that_spark_repeats_is_not_written_again(query: Query, source: Topic, topic: Topic) -> None:
    source.write_numbers(150)
    query.run()
    expected = source.payloads(1, 151)
    assert sorted(seen(topic)) == sorted(expected)
    with topic.log() as log:
        tail = log.tail()
    query.forget(1)
    source.write_numbers(100)
    query.run(partitions=3)
    assert sorted(seen(topic)) == sorted(expected + source.payloads(151, 251)), "in whatever partitions its rows come"
    with topic.log() as log:
        assert log.tail() == tail + 101, "nor was anything written that is not seen, but the commit of what was new"
    assert nothing_is_open(topic)


def test_an_old_copy_of_a_checkpoint_is_an_error_before_rows_are_passed_over(
    query: Query, source: Topic, topic: Topic, tmp_path: Path
) -> None:
    source.write_numbers(10)
    query.run()
    old = shutil.copytree(query.checkpoint, tmp_path / "old")
    source.write_numbers(10)
    query.run()
    source.write_numbers(10)
    query.checkpoint = old
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=r"ConsistencyViolation: .* with 10 rows, and now has 20"):
            query.run()
    assert sorted(seen(topic)) == sorted(source.payloads(1, 21))
    assert nothing_is_open(topic)


def test_P1_a_batch_whose_driver_died_before_its_commit_is_written_by_the_next_one(
    query: Query, source: Topic, topic: Topic
) -> None:
    """It has left a transaction open, with rows in it; the next run takes its place at once."""
    source.write_numbers(100)
    query.checkpoint.mkdir()
    (query.checkpoint / "metadata").write_text('{"id":"00000000-0000-0000-0000-00000000e1e7"}')
    with topic.log() as log:
        died = log.begin("spark/00000000-0000-0000-0000-00000000e1e7", number=0, token="a run", expires=3600)
        died.append(b"half of it")
        query.run()
        assert sorted(seen(topic)) == sorted(source.payloads(1, 101))
        with pytest.raises(errors.TransactionAborted, match="a later attempt"):
            died.commit()
    assert nothing_is_open(topic)


def fail_in(partition: int, message: str) -> Any:
    """A function that ends with an error after some batches of a partition have been handed on."""

    def handed_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        yield from batches
        if context is not None and context.partitionId() == partition:
            raise ValueError(message)

    return handed_on


def test_P1_what_a_failed_job_wrote_is_never_seen_and_holds_nobody_up(spark: SparkSession, topic: Topic) -> None:
    rows = spark.range(0, 60_000, numPartitions=2).selectExpr("string(id) AS payload")
    for partition, parts in ((1, 2), (0, 1)):
        with pytest.raises(PySparkException, match="planned"):
            write(rows.coalesce(parts).mapInArrow(fail_in(partition, "planned"), "payload STRING"), topic)
        with topic.log() as log:
            assert log.tail() > 10_000, "it had written"
        assert seen(topic) == []
        assert nothing_is_open(topic)


def test_P1_what_a_failed_stream_wrote_is_never_seen_and_holds_nobody_up(
    spark: SparkSession, query: Query, source: Topic, topic: Topic
) -> None:
    source.write_numbers(30_000, per_batch=1000)
    frame = source.stream(spark, startingOffsets="earliest").select("payload")
    with pytest.raises(StreamingQueryException, match="planned"):
        query.write(frame.coalesce(1).mapInArrow(fail_in(0, "planned"), "payload BINARY"))
    with topic.log() as log:
        assert log.tail() > 10_000, "it had written"
    assert seen(topic) == []
    assert nothing_is_open(topic), "although no task could tell of it: it was the only one"
    query.write(frame)
    assert len(seen(topic)) == 30_000


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ("IF(id = 2, NULL, string(id)) AS payload", {}, "InvalidArgument: payload is null in row 2 of the task's"),
        (
            "id AS payload",
            {},
            "BadOption: option payload = 'payload': the column is BIGINT; allowed is BINARY or STRING",
        ),
        (
            "string(id) AS text",
            {},
            "BadOption: option payload = 'payload': there is no such column; the rows have text",
        ),
        ("string(id) AS payload", {"topic": "none"}, "UnknownTopic: there is no topic 'none'"),
        (
            "string(id) AS payload",
            {"startingOffsets": 1},
            "BadOption: option startingOffsets = '1' is for reading only",
        ),
        ("repeat('x', 17000000) AS payload", {}, "EntryTooLarge: an entry of 17000000 bytes"),
        ("string(id) AS payload", {"transactionTimeout": 0}, "BadOption: option transactionTimeout = '0'; allowed is"),
    ],
)
def test_bad_input_ends_a_write_and_nothing_is_seen(
    spark: SparkSession, topic: Topic, rows: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        write(spark.range(3).coalesce(1).selectExpr(rows), topic, **options)
    assert said in str(raised.value)
    assert seen(topic) == []
    assert nothing_is_open(topic)


def test_what_is_there_is_never_replaced(spark: SparkSession, topic: Topic, query: Query, source: Topic) -> None:
    frame = spark.range(3).selectExpr("string(id) AS payload")
    with pytest.raises(PySparkException, match=r"BadOption: mode\(.overwrite.\) would replace what is there"):
        frame.write.format("varlog").options(**topic.options()).mode("overwrite").save()
    counted = source.stream(spark).groupBy("payload").count().select("payload")
    writer = counted.writeStream.format("varlog").options(**topic.options()).outputMode("complete")
    running = writer.option("checkpointLocation", str(query.checkpoint)).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match=r"BadOption: outputMode\(.complete.\) would replace"):
        running.awaitTermination(SECONDS)
