"""The measures of Spark: they count what they say they count. How fast anything is, is not asked here."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import varlog
from benchmarks import spark_data, spark_rows, transactions_rows
from benchmarks.cluster_load import Load
from benchmarks.spark_rows import Place, Topic
from varlog.client.log import Log
from varlog.processes import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORKS = """
import os, sys
if os.fork():
    os.wait()
else:
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""
"""As Spark's daemon does."""


def test_no_two_entries_are_alike(tmp_path: Path) -> None:
    async def test(log: Log) -> None:
        await spark_data.append(log, Load(100, 10, 3), 50)
        found = [entry.data async for entry in log.subscribe(1, end=51)]
        assert await log.tail() == 50
        assert len(set(found)) == 50
        assert {len(data) for data in found} == {100}

    async def whole() -> None:
        async with varlog.embedded(tmp_path) as log:
            await test(log)

    asyncio.run(whole())


def test_a_worker_is_what_a_daemon_of_spark_has_forked() -> None:
    command = [sys.executable, "-c", FORKS, spark_data.DAEMON.decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdin is not None
        worker = int(daemon.stdout.readline())
        assert worker in spark_data.workers(os.getpid())
        assert not spark_data.workers(worker)
        with spark_data.watched() as peaks:
            pass
        assert daemon.pid not in peaks
        assert peaks[worker] > 1_000_000
        daemon.stdin.close()


def test_rows_are_measured_from_a_cluster_of_processes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_rows, "ROUNDS", 1)
    monkeypatch.setattr(spark_rows, "WARM_UP", 1)
    monkeypatch.setattr(spark_rows, "PER_TRIGGER", 2_000)
    for name, value in {"ROUNDS": 1, "SECONDS": 0.3, "WARM_UP": 0.1, "WRITERS": 4, "SMALL": 3}.items():
        monkeypatch.setattr(transactions_rows, name, value)
    topic = Topic("log", 5_000, 100)

    async def measured() -> None:
        async with LocalCluster(tmp_path / "cluster") as cluster:
            async with varlog.connect(cluster.path) as log:
                await spark_data.append(log, Load(100, 1000, 2), topic.rows)
            place = Place(spark, cluster.path, tmp_path)
            assert spark_rows.digest(place.parquet(topic))[0] == topic.rows
            rows = [*spark_rows.small_rows(place, topic), spark_rows.large_row(place, topic)]
            rows += [spark_rows.memory_row(place, topic), spark_rows.archive_row(place, topic)]
            rows += await transactions_rows.measured(cluster)
            names = ["source-100", "catch-up-100", "source-1k", "worker-rss", "archive-100"]
            assert [row.name for row in rows] == [*names, "txn-overhead", "txn-latency"]
            assert all(row.value > 0 and row.target for row in rows)

    asyncio.run(measured())
