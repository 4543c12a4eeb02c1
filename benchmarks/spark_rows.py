"""The rows of Spark: each function measures one or some, with the limit they are held against.

What is read goes to Spark's `noop` sink, on both sides of a ratio: every column of every row is made, and dropped. An
aggregate might let Spark leave out columns of a Parquet file, or read only the lengths of payloads; a real sink would
measure itself. That both sides have the same rows is made sure of once, beforehand, by a hash over all columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from benchmarks.harness import Row, against_limit, in_turns
from benchmarks.spark_data import watched
from varlog.pipeline.archive import Wanted, archive
from varlog.spark.options import Connection

MB: Final = 1_000_000
ROUNDS: Final = 9
WARM_UP: Final = 12
"""Rounds in which Java still compiles what both sides need: of what ran for the source, compiling was a tenth up to the
tenth round, and a thirtieth from the twelfth on."""
PER_TRIGGER: Final = 1_000_000
SECONDS: Final = 120
"""For a stream to come to its end."""


class Topic(NamedTuple):
    """So many rows of a log, from its first position on, and of how many bytes each."""

    name: str
    rows: int
    entry_bytes: int

    def rate(self, action: Callable[[], object]) -> float:
        """Rows/s of something that is done with all of them."""
        began = perf_counter()
        action()
        return self.rows / (perf_counter() - began)


class Place(NamedTuple):
    """Where rows are measured: a warm session, a cluster, and a directory for what is written."""

    spark: SparkSession
    cluster: Path
    directory: Path
    numbers: Iterator[int] = count()

    def options(self, topic: Topic, **more: object) -> dict[str, str]:
        """Of the source."""
        chosen = {"cluster": self.cluster, "topic": topic.name, **more}
        return {key: str(value) for key, value in chosen.items()}

    def source(self, topic: Topic, **more: object) -> DataFrame:
        options = self.options(topic, endingOffsets=topic.rows + 1, **more)
        return self.spark.read.format("varlog").options(**options).load()

    def parquet(self, topic: Topic) -> DataFrame:
        """The same rows, as Spark itself writes them; so they are in the page cache."""
        path = self.directory / f"{topic.name}.parquet"
        if not path.exists():
            self.source(topic).write.parquet(str(path))
        found = self.spark.read.parquet(str(path))
        assert digest(found) == digest(self.source(topic))
        assert digest(found)[0] == topic.rows
        return found

    def fresh(self, name: str) -> Path:
        """A path that nothing lies at."""
        return self.directory / f"{name}-{next(self.numbers)}"


def digest(frame: DataFrame) -> tuple[int, int]:
    """How many rows there are, and a number that changes with any byte of them."""
    (found,) = frame.select(sql.xxhash64("*").alias("hash")).agg(sql.count("*"), sql.bit_xor("hash")).collect()
    return found[0], found[1]


def drain(frame: DataFrame) -> None:
    """Make every row, and drop it."""
    frame.write.format("noop").mode("overwrite").save()


def source_row(place: Place, name: str, topic: Topic, rounds: list[tuple[float, ...]]) -> Row:
    row = against_limit(name, "rows/s", rounds, "parquet", ">=", 0.5)
    partitions = place.source(topic).rdd.getNumPartitions()
    return _noted(row, f"{row.value * topic.entry_bytes / MB:.0f} MB/s of payload; {partitions} partitions")


def small_rows(place: Place, topic: Topic) -> list[Row]:
    """Batch and stream, in the same rounds."""
    parquet = place.parquet(topic)
    rounds = in_turns(
        ROUNDS,
        lambda: topic.rate(lambda: drain(place.source(topic))),
        lambda: topic.rate(lambda: drain(parquet)),
        lambda: topic.rate(lambda: catch_up(place, topic)),
        warm_up=WARM_UP,
    )
    read = source_row(place, "source-100", topic, [(source, limit) for source, limit, _ in rounds])
    streamed = against_limit(
        "catch-up-100", "rows/s", [(stream, source) for source, _, stream in rounds], "source-100", ">=", 0.5
    )
    note = f"AvailableNow, {PER_TRIGGER:,} rows per trigger, from the start of the query to its end"
    return [read, _noted(streamed, note)]


def catch_up(place: Place, topic: Topic) -> None:
    """A streaming query from the first row to the last."""
    options = place.options(topic, startingOffsets="earliest", maxOffsetsPerTrigger=PER_TRIGGER)
    query = (
        place.spark.readStream.format("varlog")
        .options(**options)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(place.fresh("checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SECONDS), f"the query did not come to its end within {SECONDS} s"
    assert sum(progress.numInputRows for progress in query.recentProgress) == topic.rows


def large_row(place: Place, topic: Topic) -> Row:
    parquet = place.parquet(topic)
    rounds = in_turns(
        ROUNDS,
        lambda: topic.rate(lambda: drain(place.source(topic))),
        lambda: topic.rate(lambda: drain(parquet)),
        warm_up=WARM_UP,
    )
    return source_row(place, "source-1k", topic, rounds)


def memory_row(place: Place, topic: Topic) -> Row:
    """One task reads it all."""
    with watched() as peaks:
        seconds = topic.rows / topic.rate(lambda: drain(place.source(topic, maxRecordsPerPartition=topic.rows)))
    gigabytes = topic.rows * topic.entry_bytes / MB / 1000
    note = f"VmHWM of the largest of {len(peaks)}; {gigabytes:.1f} GB of payload in one partition, {seconds:.1f} s"
    return Row("worker-rss", max(peaks.values()) / MB, "MB", op="<=", target=300, note=note)


def archive_row(place: Place, topic: Topic) -> Row:
    """The archive job against Spark's own writer, which has all rows in its memory."""
    rows = place.parquet(topic).cache()
    drain(rows)
    rounds = in_turns(
        ROUNDS,
        lambda: topic.rate(lambda: archive_all(place, topic)),
        lambda: topic.rate(lambda: rows.write.parquet(str(place.fresh("written")))),
    )
    rows.unpersist()
    row = against_limit("archive-100", "rows/s", rounds, "memory to parquet", ">=", 0.5)
    return _noted(row, "a new archive, synced and committed")


def archive_all(place: Place, topic: Topic) -> None:
    """Run the job from an empty archive to the log's tail."""
    wanted = Wanted(str(place.fresh("archive")))
    done = archive(Connection(str(place.cluster), topic.name), wanted, lambda: place.spark)
    assert done.rows == topic.rows


def _noted(row: Row, note: str) -> Row:
    return replace(row, note=note)
