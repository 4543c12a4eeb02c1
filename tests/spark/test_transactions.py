"""The source on a topic with transactions: what is committed is read, by whatever ranges, and nothing that is not
decided."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.spark.topics import Topic
from tests.spark.transacting import Story
from varlog import errors
from varlog.spark import planning
from varlog.spark.connections import connections
from varlog.spark.options import Connection, parse
from varlog.spark.streaming import StreamReader
from varlog.spark.task import read_range

COLUMNS = ("glsn", "payload")


def found(batches: Any) -> dict[int, bytes]:
    table = pa.Table.from_batches(list(batches))
    rows = dict(zip(table.column("glsn").to_pylist(), table.column("payload").to_pylist(), strict=True))
    assert len(rows) == len(table)
    return rows


def read(connection: Connection, begin: int, end: int, *, uncommitted: bool = False) -> dict[int, bytes]:
    batches = list(read_range(connection, begin, end, columns=COLUMNS, uncommitted=uncommitted))
    return found(batches) if batches else {}


def of_frame(frame: DataFrame) -> dict[int, bytes]:
    rows = frame.select(*COLUMNS).collect()
    assert len({row.glsn for row in rows}) == len(rows)
    return {row.glsn: bytes(row.payload) for row in rows}


@pytest.mark.parametrize("width", [1, 3, 1000])
def test_P1_tasks_read_what_is_committed_whatever_their_ranges(topic: Topic, width: int) -> None:
    """Also where a verdict lies beyond a task's range; each task counts what rules hide, so nothing can be missing."""
    with topic.log() as log:
        story = Story(log)
        story.tell()
        end = log.tail() + 1
    cuts = [*range(1, end, width), end]
    committed = [read(topic.connection, *cut) for cut in pairwise(cuts)]
    assert {glsn: data for part in committed for glsn, data in part.items()} == story.visible
    assert read(topic.connection, 1, end, uncommitted=True) == story.everything
    assert len(story.visible) < len(story.everything) < end - 1, "some are hidden, and verdicts have positions"


def test_a_micro_batch_never_ends_beyond_what_is_decided(topic: Topic) -> None:
    """Also of a query that has read further: with another isolation level, or before a slow client began."""
    reader = StreamReader(parse(topic.options(), streaming=True))
    with topic.log() as log:
        log.append_batch([b"one", b"two"])
        transaction = log.begin("open")
        transaction.append(b"three")
        log.append(b"four")
        for start, end in ((1, 3), (3, 3), (4, 4), (5, 5)):
            assert reader.latestOffset({"glsn": start}, ReadAllAvailable())["glsn"] == end
        with pytest.raises(errors.ConsistencyViolation, match="has read up to 5"):
            reader.latestOffset({"glsn": 6}, ReadAllAvailable())
        transaction.commit()
        assert reader.latestOffset({"glsn": 4}, ReadAllAvailable())["glsn"] == 6


def test_P1_a_query_ends_before_the_first_transaction_that_is_not_decided(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    def stream() -> dict[int, bytes]:
        query = (
            topic.stream(spark, startingOffsets="earliest", maxOffsetsPerTrigger=9)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "copy"))
        )
        query.awaitTermination()
        return of_frame(spark.read.parquet(str(tmp_path / "copy")))

    with topic.log() as log:
        story = Story(log)
        story.tell()
        before = dict(story.visible)
        undecided = log.begin("open")
        written = story.write(undecided, [b"open/0", b"open/1"])
        story.plain(b"behind it")
        assert stream() == before
        assert of_frame(topic.read(spark)) == before
        assert of_frame(topic.read(spark, isolationLevel="READ_UNCOMMITTED")) == story.everything
        undecided.commit()
        story.visible |= written
        assert stream() == story.visible, "the stream goes on, and shows everything once"
        assert of_frame(topic.read(spark, minPartitions=4)) == story.visible


def test_where_the_latest_position_is(topic: Topic) -> None:
    """A time that is to come means what is decided now; a position means itself."""

    def ends(**options: str) -> tuple[int, int]:
        parsed = parse(options, streaming=False)

        async def plan(log: Any) -> tuple[int, int]:
            return await planning.range_of(log, await planning.extent_of(log), parsed)

        return connections.ask(topic.connection, plan)

    with topic.log() as log:
        log.append_batch([b"1", b"2"])
        open_one = log.begin("open")
        open_one.append_batch([b"3", b"4"])
        assert ends() == (1, 3)
        assert ends(endingTimestamp="2999-01-01") == (1, 3)
        assert ends(isolationLevel="read_uncommitted") == (1, 5)
        assert ends(startingOffsets="4", endingOffsets="5") == (4, 5)
        assert ends(startingOffsets="latest") == (3, 3)
        open_one.abort()
        assert ends() == (1, 6)
