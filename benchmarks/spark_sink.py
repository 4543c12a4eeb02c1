"""The rows of Spark's sink: how fast it writes, and what killed drivers leave behind.

`sink-100` is held against the slower of two things that it cannot do without: a plain client that appends the same
batches, and Spark handing the same rows to a Python writer that drops them. All three take turns. What was written is
trimmed away after each turn, so that none of them pays for the disk that others filled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import uvloop
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

import varlog
from benchmarks import spark_kills
from benchmarks.cluster import TIMEOUT
from benchmarks.harness import Row, against_limit, in_turns
from benchmarks.spark_rows import ROUNDS, WARM_UP, Place, Topic
from varlog import limits
from varlog.spark.sinking_payloads import pieces

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TARGET: Final = "written"
ROWS: Final = 2_000_000
KILLS: Final = 10
SEED: Final = 1


def sink_row(place: Place, topic: Topic, count: int = ROWS) -> Row:
    """Rows/s of `write.format("varlog")`."""
    rows = place.source(topic._replace(rows=count), includeMetadata="false").cache()
    assert rows.count() == count
    batches = list(batches_of(rows))
    assert sum(map(len, batches)) == count
    place.spark.dataSource.register(nothing())
    writing = topic._replace(name=TARGET, rows=count)
    asyncio.run(prepare(place.cluster))

    def measured(action: Callable[[], object]) -> float:
        rate = writing.rate(action)
        asyncio.run(empty(place.cluster))
        return rate

    rounds = in_turns(
        ROUNDS,
        lambda: measured(lambda: write(rows, "varlog", place.options(writing))),
        lambda: uvloop.run(plain(place.cluster, batches)),
        lambda: measured(lambda: write(rows, "nothing", {})),
        warm_up=WARM_UP,
    )
    rows.unpersist()
    row = against_limit(
        "sink-100",
        "rows/s",
        [(sink, min(client, dropped)) for sink, client, dropped in rounds],
        "client or writer",
        ">=",
        0.5,
    )
    _, client, dropped = min(rounds, key=lambda one: abs(one[0] - row.value))
    return replace(row, note=f"in that round a plain client {client:,.0f} rows/s, a writer that drops {dropped:,.0f}")


def batches_of(rows: DataFrame) -> Iterator[pa.Array]:
    """The batches that the sink makes of them."""
    for batch in rows.toArrow().to_batches(max_chunksize=10_000):
        yield from pieces(batch.column(0))


def write(rows: DataFrame, format_: str, options: dict[str, str]) -> None:
    rows.write.format(format_).options(**options).mode("append").save()


def nothing() -> type[DataSource]:
    """A sink that drops what it is given. Made here, so that Spark sends it to its workers as it is."""

    class Dropping(DataSourceArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Nothing(DataSource):
        @classmethod
        def name(cls) -> str:
            return "nothing"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
            return Dropping()

    return Nothing


async def prepare(cluster: Path) -> None:
    async with varlog.admin(cluster, timeout=TIMEOUT) as admin:
        await admin.add_topic(TARGET, replication_factor=3, streams=1)


async def empty(cluster: Path) -> None:
    """Trim all that was written."""
    async with varlog.connect(cluster, topic=TARGET, timeout=TIMEOUT) as log:
        tail = await log.tail()
        if tail >= await log.first():
            await log.trim(tail)


async def plain(cluster: Path, batches: list[pa.Array]) -> float:
    """Rows/s of a client that appends the batches, as many at once as the tasks of the sink do."""
    async with varlog.connect(cluster, topic=TARGET, timeout=TIMEOUT) as log:
        began = perf_counter()
        async with log.appender(window=2 * limits.SPARK_SINK_WINDOW) as appender:
            for batch in batches:
                await appender.append_batch(batch)
        rate = sum(map(len, batches)) / (perf_counter() - began)
        await log.trim(await log.tail())
    return rate


def kill_row(place: Place, tell: Callable[[str], None]) -> Row:
    """What drivers that are killed leave behind."""
    found = spark_kills.run(place.spark, place.cluster, place.fresh("kills"), KILLS, SEED, tell)
    note = f"{KILLS} kills; rows lost {found.lost}, repeated {found.repeated}, half visible {found.half_visible}"
    return Row("kill-driver", sum(found), "rows", op="<=", target=0, note=note)
