"""The figures of the data pipeline on Spark. `make bench-spark` runs this; docs/benchmarks.md explains every row.

A cluster of real processes and one Spark session, on this machine. All rows are measured in that session, which has
been warmed up: Spark's own code gets faster for some seconds after its start.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

import uvloop

import varlog
from benchmarks import spark_data, spark_rows, spark_sink, transactions_rows
from benchmarks.cluster import TIMEOUT, Progress, alone
from benchmarks.cluster_load import Load
from benchmarks.harness import Row, options, report, scratch
from benchmarks.spark_rows import Place, Topic
from varlog.processes import LocalCluster
from varlog.spark import session

SMALL: Final = Topic("small", 5_000_000, 100)
LARGE: Final = Topic("large", 1_000_000, 1024)
LONG: Final = Topic("large", 2_000_000, 1024)
"""The same topic has a second million rows: 2 GB in all."""


async def fill(cluster: LocalCluster) -> None:
    """Two topics of one log stream and three replicas."""
    for topic, in_flight in ((SMALL, 48), (LONG, 16)):
        async with varlog.admin(cluster.path, timeout=TIMEOUT) as admin:
            await admin.add_topic(topic.name, replication_factor=3, streams=1)
        async with varlog.connect(cluster.path, topic=topic.name, timeout=TIMEOUT) as log:
            await spark_data.append(log, Load(topic.entry_bytes, spark_data.BATCH, in_flight), topic.rows)
            assert await log.tail() == topic.rows


@contextmanager
def filled(path: Path, tell: Progress) -> Iterator[LocalCluster]:
    """A cluster that runs beside Spark, with everything in it that is read."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        cluster = LocalCluster(path)
        try:
            tell("starting the cluster")
            runner.run(cluster.__aenter__())
            tell("writing 5 M rows of 100 B and 2 M of 1 KiB")
            runner.run(fill(cluster))
            yield cluster
        finally:
            runner.run(cluster.stop())


def run(directory: Path, tell: Progress) -> list[Row]:
    """Every row."""
    with filled(directory / "cluster", tell) as cluster:
        tell("transactions")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            transactions = runner.run(transactions_rows.measured(cluster))
        tell("starting Spark")
        conf = {"spark.driver.memory": "4g", "spark.local.dir": str(directory / "spark")}
        spark = session("varlog benchmark", log_file=directory / "spark.log", **conf)
        try:
            place = Place(spark, cluster.path, directory)
            tell("rows of 1 KiB")
            rows = [spark_rows.large_row(place, LARGE)]
            tell("a worker's memory")
            rows.append(spark_rows.memory_row(place, LONG))
            tell("rows of 100 B, as a batch and as a stream")
            rows = [*spark_rows.small_rows(place, SMALL), *rows]
            tell("archive")
            rows.append(spark_rows.archive_row(place, SMALL))
            tell("writing from Spark")
            rows.append(spark_sink.sink_row(place, SMALL))
            tell("drivers that are killed")
            rows.append(spark_sink.kill_row(place, tell))
            rows += transactions
            tell("done")
        finally:
            spark.stop()
    return rows


def main() -> int:
    options(__doc__).parse_args()
    signal.signal(signal.SIGTERM, _end)
    with alone(), scratch() as directory:
        rows = run(directory, Progress())
    return report("spark", rows)


def _end(*_: object) -> NoReturn:
    """Who ends the benchmark finds no daemons and no gigabytes left behind."""
    raise SystemExit("terminated")


if __name__ == "__main__":
    sys.exit(main())
