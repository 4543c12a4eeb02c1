"""The log as a stream: `spark.readStream.format("varlog")`, over real nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery

import varlog.sync
from tests.spark.topics import Topic
from varlog import errors
from varlog.spark.options import parse
from varlog.spark.streaming import StreamReader

SECONDS = 90.0


def until(condition: Callable[[], bool], query: StreamingQuery) -> None:
    """Look again and again until it holds; Spark brings it about."""
    deadline, pause = monotonic() + SECONDS, Event()
    while not condition():
        assert query.isActive, query.exception()
        assert monotonic() < deadline, query.lastProgress
        pause.wait(0.05)


class Sink:
    """What a query has written, micro-batch by micro-batch, in files that outlive it."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self.rows = directory / "rows"
        self.checkpoint = directory / "checkpoint"

    def start(self, stream: DataFrame, **trigger: Any) -> StreamingQuery:
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger).start(str(self.rows))

    def run(self, stream: DataFrame) -> StreamingQuery:
        """Everything that there is now."""
        query = self.start(stream, availableNow=True)
        assert query.awaitTermination(int(SECONDS))
        return query

    def glsns(self) -> list[int]:
        return sorted(row.glsn for row in self._spark.read.parquet(str(self.rows)).select("glsn").collect())

    def ends(self) -> list[int]:
        """Of the micro-batches, by the checkpoint."""
        files = sorted((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
        return [json.loads(file.read_text().splitlines()[2])["glsn"] for file in files]


@pytest.fixture
def sink(spark: SparkSession, tmp_path: Path) -> Sink:
    return Sink(spark, tmp_path)


def test_P1_available_now_reads_what_there_is_in_limited_micro_batches(
    spark: SparkSession, topic: Topic, sink: Sink
) -> None:
    topic.write_numbers(1000)
    stream = topic.stream(spark, startingOffsets="earliest", maxOffsetsPerTrigger=300)
    sink.run(stream)
    assert sink.glsns() == list(range(1, 1001))
    assert sink.ends() == [301, 601, 901, 1001]
    topic.write_numbers(100)
    query = sink.run(stream)
    assert sink.glsns() == list(range(1, 1101)), "a query goes on where it was"
    progress = query.lastProgress
    assert progress is not None
    assert json.loads(progress["sources"][0]["latestOffset"])["glsn"] == 1101


def test_a_stream_begins_at_the_tail_and_follows_it(spark: SparkSession, topic: Topic, sink: Sink) -> None:
    topic.write_numbers(100)
    query = sink.start(topic.stream(spark), processingTime="0 seconds")
    try:
        until(lambda: (sink.checkpoint / "offsets" / "0").exists() or bool(query.recentProgress), query)
        topic.write_numbers(50)
        until(lambda: sink.ends()[-1:] == [151], query)
        query.processAllAvailable()
    finally:
        query.stop()
    assert sink.glsns() == list(range(101, 151))


def test_a_micro_batch_has_about_as_many_bytes_as_allowed(spark: SparkSession, topic: Topic, sink: Sink) -> None:
    topic.write_numbers(1000, size=1000)
    sink.run(topic.stream(spark, startingOffsets=1, maxBytesPerTrigger=300_000, columns="glsn"))
    assert sink.glsns() == list(range(1, 1001))
    lengths = [end - begin for begin, end in zip([1, *sink.ends()], sink.ends(), strict=False)]
    assert sum(lengths) == 1000
    assert max(lengths) <= 330
    assert len(lengths) <= 5


def test_a_stream_may_begin_at_a_time(spark: SparkSession, topic: Topic, sink: Sink) -> None:
    topic.write_numbers(100)
    sink.run(topic.stream(spark, startingTimestamp=0, logStreams=_one_stream(topic)))
    with topic.log() as log:
        expected = [entry.glsn for batch in log.scan() for entry in batch if entry.log_stream == _one_stream(topic)]
    assert sink.glsns() == expected


def _one_stream(topic: Topic) -> int:
    with topic.log() as log:
        return int(log.read(1).log_stream)


def test_a_stream_that_was_overtaken_by_a_trim_obeys_fail_on_data_loss(
    spark: SparkSession, topic: Topic, sink: Sink
) -> None:
    topic.write_numbers(100)
    sink.run(topic.stream(spark, startingOffsets="earliest"))
    topic.write_numbers(900)
    with topic.log() as log:
        log.trim(400)
    with pytest.raises(StreamingQueryException, match="DataLoss: 101 to 400 can no longer be read"):
        sink.run(topic.stream(spark))
    sink.run(topic.stream(spark, failOnDataLoss=False))
    assert sink.glsns() == [*range(1, 101), *range(401, 1001)]


def test_a_checkpoint_of_another_log_is_refused(spark: SparkSession, topic: Topic, sink: Sink) -> None:
    topic.write_numbers(100)
    sink.run(topic.stream(spark, startingOffsets="earliest"))
    offset = sink.checkpoint / "offsets" / "0"
    offset.write_text(offset.read_text().replace('{"glsn": 101,', '{"glsn": 500,'))
    (sink.checkpoint / "offsets" / ".0.crc").unlink(missing_ok=True)
    with pytest.raises(
        StreamingQueryException, match=r"has read up to 499, and topic .* ends at 100: it is another log"
    ):
        sink.run(topic.stream(spark))


def test_an_offset_is_of_one_topic_whatever_its_name(topic: Topic) -> None:
    reader = StreamReader(parse(topic.options(startingOffsets=1), streaming=True))
    topic.write_numbers(100)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ReadAllAvailable())
    assert (begin["glsn"], end["glsn"], begin["topic"]) == (1, 101, end["topic"])
    assert reader.reportLatestOffset() == end
    with varlog.sync.admin(topic.path) as admin:
        admin.remove_topic(topic.name)
        admin.add_topic(topic.name, streams=2)
    topic.write_numbers(200)
    refused = f"has read topic number {end['topic']}, and .* it is another log than the one that the checkpoint is of"
    with pytest.raises(errors.ConsistencyViolation, match=refused):
        reader.latestOffset(end, ReadAllAvailable())
    with pytest.raises(errors.ConsistencyViolation, match=refused):
        reader.partitions(begin, end)
    assert reader.latestOffset({"glsn": 101}, ReadAllAvailable())["glsn"] == 201, "as older checkpoints have it"


def test_log_streams_are_checked_whenever_a_query_is_started(spark: SparkSession, topic: Topic, sink: Sink) -> None:
    """Otherwise one that is started again would pass over what it does not find."""
    topic.write_numbers(100)
    sink.run(topic.stream(spark, startingOffsets="earliest"))
    topic.write_numbers(100)
    refused = "BadOption: option logStreams = '4000000'; allowed are those of topic"
    with pytest.raises(StreamingQueryException, match=refused):
        sink.run(topic.stream(spark, logStreams=4_000_000))
    sink.run(topic.stream(spark))
    for name in ("1", ".1.crc"):
        (sink.checkpoint / "commits" / name).unlink(missing_ok=True)
    with pytest.raises(StreamingQueryException, match=refused):
        sink.run(topic.stream(spark, logStreams=4_000_000))
    assert sink.glsns() == list(range(1, 201))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endingOffsets": 5}, "BadOption: option endingOffsets = '5' is for batch queries only"),
        ({"maxOffsetsPerTrigger": 0}, "BadOption: option maxOffsetsPerTrigger = '0'; allowed is a whole number"),
        ({"startingOffsets": 12}, "BadOption: option startingOffsets = '12': the log ends before 11"),
    ],
)
def test_bad_input_ends_a_stream_at_once(
    spark: SparkSession, topic: Topic, sink: Sink, options: dict[str, Any], said: str
) -> None:
    topic.write_numbers(10)
    with pytest.raises(PySparkException) as raised:
        sink.run(topic.stream(spark, **options))
    assert said in str(raised.value)
    assert "UnboundLocalError" not in str(raised.value), "Spark's own error about a reader that there is not"


def test_a_stream_with_a_schema_of_its_own_is_refused(spark: SparkSession, topic: Topic, sink: Sink) -> None:
    stream = spark.readStream.format("varlog").options(**topic.options()).schema("value STRING").load()
    with pytest.raises(StreamingQueryException, match="BadOption: a schema with the columns value; allowed") as raised:
        sink.run(stream)
    assert "UnboundLocalError" not in str(raised.value)
