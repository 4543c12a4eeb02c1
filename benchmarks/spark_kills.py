"""Drivers of a query from log to log, killed with SIGKILL: is every row there once, and no batch in halves?

    python -m benchmarks.spark_kills --kills 100 --seed 1

The query reads a topic and writes another one. Its driver is a process of its own, with a Spark of its own; both are
killed at once, at a moment that is left to chance, or while rows of a transaction are written, or in the moment after
its commit, before Spark has noted it. Then the next driver goes on, and cuts the rows into another number of
partitions. Some of its tasks fail, or their processes are killed, when they have written rows, and Spark runs them
again.

Every row says which one of the source it was made of, and in which micro-batch, so after each kill what a reader sees
can be judged: rows are *repeated* if one is there twice, *half visible* if their micro-batch is there and has fewer
rows than it should; in the end, *lost* if they are not there.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import varlog
from varlog.processes import LocalCluster
from varlog.spark import session

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

ROOT: Final = Path(__file__).resolve().parents[1]
PER_BATCH: Final = 100
BATCHES_PER_KILL: Final = 20
"""More than a driver gets through before it is killed."""
CONF: Final = {"spark.sql.execution.arrow.maxRecordsPerBatch": "10", "spark.buffer.size": "256"}
"""They have rows written while their task goes on, and not only at its end."""
FAILING: Final = 0.05
"""So many tasks fail at their first attempt."""
SECONDS: Final = 150.0
LOOK_SECONDS: Final = 0.1
MOST_SECONDS: Final = 2.0
"""After the first micro-batch of a driver, if its end is left to chance."""


class Moment(Enum):
    """When a driver is killed."""

    ANY = "at any time"
    WRITING = "when rows are written that are not committed yet"
    COMMITTED = "when a commit is in the log"


class Judged(NamedTuple):
    """What is wrong with what a reader sees: numbers of rows."""

    lost: int
    repeated: int
    half_visible: int


class LogToLog:
    """The query, whose topics and checkpoint outlive its drivers."""

    def __init__(self, cluster: Path, source: str, target: str, directory: Path) -> None:
        self.cluster = cluster
        self.source = source
        self.target = target
        self.directory = directory
        self.checkpoint = directory / "checkpoint"

    async def prepare(self, rows: int, streams: int = 2) -> None:
        """Make the topics, and fill the one that is read."""
        self.directory.mkdir(parents=True, exist_ok=True)
        async with varlog.admin(self.cluster, timeout=SECONDS) as admin:
            for name in (self.source, self.target):
                await admin.add_topic(name, streams=streams)
        async with (
            varlog.connect(self.cluster, topic=self.source, timeout=SECONDS) as log,
            log.appender() as appender,
        ):
            for begin in range(0, rows, 1000):
                await appender.append_batch([b"%d" % number for number in range(begin, min(rows, begin + 1000))])

    def frame(self, spark: SparkSession, per_batch: int, partitions: int, failing: float) -> DataFrame:
        def worked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            number = str(context.getLocalProperty("streaming.sql.batchId"))
            is_failing = context.attemptNumber() == 0 and random.random() < failing
            for batch in batches:
                made = [b"%d %s" % (glsn, number.encode()) for glsn in batch.column(0).to_pylist()]
                yield pa.record_batch([pa.array(made)], ["payload"])
                if is_failing and random.random() < 0.5:
                    os.kill(os.getpid(), signal.SIGKILL)
                if is_failing:
                    raise RuntimeError("this task was chosen to fail")

        read = spark.readStream.format("varlog").option("cluster", str(self.cluster)).option("topic", self.source)
        read = read.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", per_batch)
        return read.load().select("glsn").repartition(partitions).mapInArrow(worked, "payload BINARY")

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        write = frame.writeStream.format("varlog").option("cluster", str(self.cluster)).option("topic", self.target)
        write = write.option("checkpointLocation", str(self.checkpoint))
        return write.trigger(**trigger).start()

    def finish(self, spark: SparkSession) -> None:
        """Go on to the end, without being killed."""
        query = self.start(self.frame(spark, 1_000_000, 3, 0.0), availableNow=True)
        assert query.awaitTermination(int(SECONDS)), query.lastProgress

    # Killing

    def kill(self, moment: Moment, seed: int) -> None:
        """Start a driver, and kill it and its Spark."""
        said, pids = self.directory / f"driver-{seed}.log", self.directory / f"driver-{seed}.pids"
        command = [sys.executable, "-m", "benchmarks.spark_kills", "drive", str(seed), str(pids)]
        command += [str(self.cluster), self.source, self.target, str(self.directory)]
        with said.open("wb") as out:
            env = os.environ | {"TMPDIR": str(self.directory)}
            driver = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, env=env)
        try:
            asyncio.run(asyncio.wait_for(self._until(moment, driver, random.Random(seed)), SECONDS))
            spark = int(pids.read_text())
        except BaseException as error:
            driver.kill()
            error.add_note(said.read_text()[-5000:])
            raise
        os.kill(spark, signal.SIGKILL)
        driver.kill()
        driver.wait(SECONDS)

    async def _until(self, moment: Moment, driver: subprocess.Popen[bytes], chance: random.Random) -> None:
        """Wait for the moment."""
        async with varlog.connect(self.cluster, topic=self.target, timeout=SECONDS) as log:
            entries = log.subscribe(await log.tail() + 1, uncommitted=moment is not Moment.COMMITTED)
            first = asyncio.ensure_future(anext(entries))
            while not first.done():
                assert driver.poll() is None, "the driver ended by itself"
                await asyncio.wait([first], timeout=LOOK_SECONDS)
            await first
            if moment is Moment.ANY:
                await asyncio.sleep(chance.uniform(0, MOST_SECONDS))

    def is_unnoted(self) -> bool:
        """Whether a micro-batch is there of which Spark does not know that it has been done."""
        noted = [int(file.name) for file in (self.checkpoint / "commits").glob("[0-9]*")]
        return max((number for _, number in asyncio.run(self.seen())), default=-1) > max(noted, default=-1)

    # Judging

    async def seen(self) -> list[tuple[int, int]]:
        """What a reader sees: of each row, which one of the source it was made of, and in which micro-batch."""
        async with varlog.connect(self.cluster, topic=self.target, timeout=SECONDS) as log:
            rows = [payload.split() async for batch in log.scan() for payload in batch.payloads()]
        return [(int(glsn), int(number)) for glsn, number in rows]

    def judge(self, rows: int | None = None) -> Judged:
        """What is wrong by now: `rows` should be there, if all are."""
        seen = asyncio.run(self.seen())
        sources = {glsn for glsn, _ in seen}
        batches = Counter(number for _, number in seen)
        half = 0 if rows is not None else sum(count for count in batches.values() if count != PER_BATCH)
        return Judged(rows - len(sources) if rows is not None else 0, len(seen) - len(sources), half)


def drive(seed: int, pids: Path, query: LogToLog) -> None:
    """The driver: it runs until it is killed."""
    spark = session("killed", master="local[2,4]", log_file=pids.with_suffix(".spark.log"), **CONF)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    pids.write_text(str(gateway.proc.pid))
    query.start(query.frame(spark, PER_BATCH, 1 + seed % 4, FAILING), processingTime="0 seconds").awaitTermination()


def chosen(count: int, seed: int) -> list[Moment]:
    """Moments for as many kills: half of them are left to chance."""
    chance = random.Random(seed)
    return chance.choices(list(Moment), weights=[2, 1, 1], k=count)


def main() -> None:
    """See the module's text."""
    if sys.argv[1:2] == ["drive"]:
        seed, pids, cluster, source, target, directory = sys.argv[2:]
        drive(int(seed), Path(pids), LogToLog(Path(cluster), source, target, Path(directory)))
        return
    parser = argparse.ArgumentParser(description="Kill drivers of a query from log to log.")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="varlog-kills-") as path:
        running = LocalCluster(Path(path) / "cluster")
        asyncio.run(running.__aenter__())
        spark = session("kills", master="local[2]", log_file=Path(path) / "spark.log")
        try:
            found = run(spark, running.path, Path(path) / "query", asked.kills, asked.seed, tell)
        finally:
            spark.stop()
            asyncio.run(running.stop())
    tell(f"{asked.kills} kills: rows lost {found.lost}, repeated {found.repeated}, half visible {found.half_visible}")
    sys.exit(any(found))


def run(
    spark: SparkSession, cluster: Path, directory: Path, count: int, seed: int, tell: Callable[[str], None]
) -> Judged:
    """So many kills of one query, and its end in a session that is not killed; what was wrong, then and before."""
    query = LogToLog(cluster, "kill-source", "kill-target", directory)
    rows = count * BATCHES_PER_KILL * PER_BATCH
    asyncio.run(query.prepare(rows))
    found = Judged(0, 0, 0)
    for number, moment in enumerate(chosen(count, seed), start=1):
        began = monotonic()
        query.kill(moment, seed + number)
        found = added(found, query.judge())
        unnoted = ", before Spark has noted it" if query.is_unnoted() else ""
        tell(f"driver {number} of {count} killed {moment.value}{unnoted}, {monotonic() - began:.1f} s")
    query.finish(spark)
    return added(found, query.judge(rows))


def added(one: Judged, other: Judged) -> Judged:
    return Judged(*map(sum, zip(one, other, strict=True)))


def tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
