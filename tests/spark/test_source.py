"""The log as a table: `spark.read.format("varlog")`, over real nodes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.topics import Topic
from varlog.spark.columns import COLUMNS


def glsns(frame: DataFrame) -> list[int]:
    """In the order in which Spark has them."""
    return [row.glsn for row in frame.select("glsn").collect()]


def ranges_of(frame: DataFrame) -> list[tuple[int, int]]:
    """The first and the last position of each partition."""

    def ends(rows: Any) -> Any:
        found = [row.glsn for row in rows]
        assert found == list(range(found[0], found[-1] + 1)), "a partition is a range, in order"
        return [(found[0], found[-1])]

    return sorted(tuple(pair) for pair in frame.rdd.mapPartitions(ends).collect())


def refusal(frame_of: Any) -> str:
    """What a query that cannot be made says."""
    with pytest.raises(PySparkException) as raised:
        frame_of().collect()
    return str(raised.value)


def test_P1_the_log_is_a_table_in_its_order(spark: SparkSession, topic: Topic) -> None:
    tail = topic.write_numbers(3000)
    frame = topic.read(spark)
    assert frame.dtypes == [
        ("glsn", "bigint"),
        ("llsn", "bigint"),
        ("log_stream", "int"),
        ("timestamp", "timestamp"),
        ("payload", "binary"),
    ]
    rows = frame.collect()
    with topic.log() as log:
        entries = [entry for batch in log.scan() for entry in batch]
    assert [(row.glsn, row.llsn, row.log_stream, bytes(row.payload)) for row in rows] == [
        (entry.glsn, entry.llsn, entry.log_stream, entry.data) for entry in entries
    ]
    assert len(rows) == tail
    epochs = [row.at for row in frame.selectExpr("unix_micros(timestamp) AS at").collect()]
    assert epochs == [entry.timestamp for entry in entries]


def test_the_source_is_found_by_its_name_alone(spark: SparkSession, topic: Topic) -> None:
    """Nobody has registered it: `pyspark_varlog` is looked for by Spark."""
    topic.write([b"one"])
    assert [bytes(row.payload) for row in topic.read(spark).collect()] == [b"one"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(1, 301)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, range(1, 301)),
        ({"startingOffsets": 50}, range(50, 301)),
        ({"endingOffsets": 50}, range(1, 50)),
        ({"startingOffsets": 120, "endingOffsets": 130}, range(120, 130)),
        ({"startingOffsets": "latest"}, range(0)),
        ({"startingOffsets": 301}, range(0)),
        ({"startingOffsets": 77, "endingOffsets": 77}, range(0)),
        ({"endingOffsets": "earliest"}, range(0)),
        ({"minPartitions": 7}, range(1, 301)),
    ],
)
def test_time_travel_by_position(
    spark: SparkSession, topic: Topic, options: dict[str, Any], expected: Sequence[int]
) -> None:
    topic.write_numbers(300)
    assert glsns(topic.read(spark, **options)) == list(expected)


def test_time_travel_by_time(spark: SparkSession, topic: Topic) -> None:
    topic.write_numbers(200)
    topic.write_numbers(200)
    with topic.log() as log:
        at = log.read(250).timestamp
        first = next(entry.glsn for batch in log.scan() for entry in batch if entry.timestamp >= at)
    time = datetime.fromtimestamp(at // 1_000_000, UTC) + timedelta(microseconds=at % 10**6)
    assert glsns(topic.read(spark, startingTimestamp=time.isoformat())) == list(range(first, 401))
    assert glsns(topic.read(spark, endingTimestamp=time.isoformat())) == list(range(1, first))
    assert glsns(topic.read(spark, startingTimestamp=0)) == list(range(1, 401))
    assert glsns(topic.read(spark, startingTimestamp="2999-01-01")) == []


def test_P1_partitions_are_consecutive_ranges(spark: SparkSession, topic: Topic) -> None:
    topic.write_numbers(1000)
    assert ranges_of(topic.read(spark)) == [(1, 1000)]
    assert ranges_of(topic.read(spark, minPartitions=4)) == [(1, 250), (251, 500), (501, 750), (751, 1000)]
    by_size = ranges_of(topic.read(spark, maxRecordsPerPartition=300))
    assert len(by_size) == 4
    assert [glsn for first, last in by_size for glsn in range(first, last + 1)] == list(range(1, 1001))


def test_columns_and_log_streams_can_be_chosen(spark: SparkSession, topic: Topic) -> None:
    topic.write_numbers(2000)
    assert topic.read(spark).columns == list(COLUMNS)
    assert topic.read(spark, includeMetadata=False).columns == ["payload"]
    assert topic.read(spark, columns="timestamp,glsn").columns == ["timestamp", "glsn"]
    rows = topic.read(spark).select("glsn", "log_stream").collect()
    one = rows[0].log_stream
    frame = topic.read(spark, logStreams=one, columns="glsn")
    assert glsns(frame) == [row.glsn for row in rows if row.log_stream == one]


def test_filled_positions_are_no_rows(spark: SparkSession, topic: Topic) -> None:
    with topic.log() as log:
        log.append(b"one")
        log.append_fill(10)
        log.append(b"two")
    assert glsns(topic.read(spark)) == [1, 12]
    assert glsns(topic.read(spark, startingOffsets=2, endingOffsets=12)) == []


def test_an_empty_topic_is_an_empty_table(spark: SparkSession, topic: Topic) -> None:
    assert topic.read(spark).collect() == []


def test_a_position_that_was_trimmed_obeys_fail_on_data_loss(spark: SparkSession, topic: Topic) -> None:
    topic.write_numbers(1000)
    with topic.log() as log:
        log.trim(300)
    said = refusal(lambda: topic.read(spark, startingOffsets=101))
    assert "DataLoss" in said
    assert "101 to 300 can no longer be read" in said
    assert "now begins at 301" in said
    assert glsns(topic.read(spark, startingOffsets=101, failOnDataLoss=False)) == list(range(301, 1001))
    assert glsns(topic.read(spark)) == list(range(301, 1001)), "the earliest is what there is"
    assert glsns(topic.read(spark, startingOffsets=5, endingOffsets=200, failOnDataLoss=False)) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffset": 1}, "BadOption: there is no option startingoffset (its value is '1'); did you mean"),
        ({"failOnDataLoss": "maybe"}, "BadOption: option failOnDataLoss = 'maybe'; allowed is true or false"),
        ({"startingOffsets": "oldest"}, "BadOption: option startingOffsets = 'oldest'; allowed is earliest, latest"),
        ({"startingOffsets": 12}, "BadOption: option startingOffsets = '12': the log ends before 11"),
        ({"endingOffsets": 100}, "BadOption: option endingOffsets = '100': the log ends before 11"),
        ({"startingOffsets": 5, "endingOffsets": 3}, "BadOption: the query begins at 5"),
        ({"logStreams": "4000000"}, "BadOption: option logStreams = '4000000'; allowed are those of topic"),
        ({"maxOffsetsPerTrigger": 5}, "BadOption: option maxOffsetsPerTrigger = '5' is for streaming queries only"),
        ({"topic": "absent"}, "UnknownTopic: there is no topic 'absent'; the cluster has"),
        ({"cluster": "/nowhere"}, "BadConfig: /nowhere: neither a cluster file"),
        ({"cluster": "127.0.0.1:1"}, "SecretUnusable: name the secret file of the cluster at 127.0.0.1:1"),
        ({"columns": "key"}, "BadOption: option columns = 'key'; allowed is one or more of glsn, llsn"),
    ],
)
def test_bad_input_is_named_with_what_is_allowed(
    spark: SparkSession, topic: Topic, options: dict[str, Any], said: str
) -> None:
    topic.write_numbers(10)
    assert said in refusal(lambda: topic.read(spark, **options))


def test_a_schema_of_the_querys_own_is_refused(spark: SparkSession, topic: Topic) -> None:
    reader = spark.read.format("varlog").options(**topic.options()).schema("value STRING")
    assert "a schema with the columns value; allowed are glsn, llsn" in refusal(reader.load)


def test_nothing_is_null_and_a_schema_may_say_otherwise(spark: SparkSession, topic: Topic) -> None:
    topic.write_numbers(100)
    frame = topic.read(spark)
    assert not any(field.nullable for field in frame.schema)
    careful = "glsn BIGINT, llsn BIGINT NOT NULL, log_stream INT, timestamp TIMESTAMP, payload BINARY"
    read = spark.read.format("varlog").options(**topic.options()).schema(careful).load()
    assert [field.name for field in read.schema if not field.nullable] == ["llsn"]
    assert read.collect() == frame.collect()


def test_conditions_of_one_query_are_not_those_of_another(spark: SparkSession, topic: Topic) -> None:
    """Spark would hand them down to the table that both read, where they would limit both."""
    topic.write_numbers(100)
    frame = topic.read(spark)
    assert frame.where("glsn BETWEEN 11 AND 20").count() == 10
    assert frame.count() == 100
    assert frame.where("glsn <= 10").union(frame.where("glsn > 95")).count() == 15
