"""The sink on executors of their own: one is killed with SIGKILL, and slow tasks run twice. Part of `make soak`.

    python -m tests.spark.sink_soak

A Spark cluster of two executors on this machine writes a DataFrame. Some of its tasks are slow at their first attempt,
so Spark runs them again beside it (`spark.speculation`); when some rows are in the log, an executor is killed, and what
its tasks wrote is written again by the other. More must have been written than is seen, and every row is seen once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Final

import pyarrow as pa
from pyspark import TaskContext

import varlog.sync
from benchmarks.spark_data import parents
from tests.spark.topics import small_cluster
from varlog.spark import session
from varlog.spark.connections import connections

ROWS: Final = 12_000
BEFORE: Final = 2000
"""Rows in the log when an executor is killed."""
SECONDS: Final = 120.0
EXECUTOR: Final = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
CONF: Final = {
    "spark.executor.memory": "600m",
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.task.maxFailures": "8",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    "spark.buffer.size": "256",
}
"""The last two have rows written while their task goes on, and not only at its end."""


def slowly(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Every third task takes its time, unless it is tried again."""
    context = TaskContext.get()
    assert context is not None
    is_slow = context.attemptNumber() == 0 and context.partitionId() % 3 == 0
    for batch in batches:
        yield batch
        sleep(0.5 if is_slow else 0.02)


def kill_an_executor(cluster: Path) -> None:
    """When rows have been written."""
    deadline = monotonic() + SECONDS
    with varlog.sync.connect(cluster, timeout=SECONDS) as log:
        while log.tail() < BEFORE:
            assert monotonic() < deadline, "nothing is written"
            sleep(0.05)
    parent = parents()
    ours = {os.getpid()}
    for _ in parent:  # children of children, until there are no more
        ours |= {pid for pid, of in parent.items() if of in ours}
    executors = [pid for pid in ours if EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
    os.kill(executors[0], signal.SIGKILL)


def main() -> None:
    """See the module's text."""
    with tempfile.TemporaryDirectory(prefix="varlog-soak-") as path:
        cluster = small_cluster(Path(path) / "varlog-data")
        asyncio.run(cluster.__aenter__())
        spark = session("soak", master="local-cluster[2,2,700]", log_file=Path(path) / "spark.log", **CONF)
        try:
            rows = spark.range(0, ROWS, numPartitions=12).selectExpr("string(id) AS payload")
            killer = threading.Thread(target=kill_an_executor, args=(cluster.path,))
            killer.start()
            write = rows.mapInArrow(slowly, "payload STRING").write.format("varlog")
            write.option("cluster", str(cluster.path)).mode("append").save()
            killer.join()
            with varlog.sync.connect(cluster.path, timeout=SECONDS) as log:
                seen = sorted(int(payload) for batch in log.scan() for payload in batch.payloads())
                written = sum(len(batch.payloads()) for batch in log.scan(uncommitted=True))
            assert seen == list(range(ROWS)), f"{len(seen)} rows, {len(set(seen))} different ones"
            assert written > ROWS, "nothing was written twice, so nothing was tried"
            print(f"sink, an executor killed: {written} rows written, {ROWS} seen")  # noqa: T201
        finally:
            spark.stop()
            connections.close()
            asyncio.run(cluster.stop())


if __name__ == "__main__":
    main()
