"""Drivers of a query from log to log that are killed with SIGKILL: at the two moments that matter most. The benchmark
`kill-driver` kills ten of them, `make soak` a hundred."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.spark_kills import BATCHES_PER_KILL, PER_BATCH, LogToLog, Moment
from tests.spark.topics import Topic

pytestmark = pytest.mark.timeout(400)  # two Sparks are started for it


def test_P1_killed_drivers_leave_no_row_twice_lost_or_in_half_a_batch(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    query = LogToLog(topic.path, "kill-source", "kill-target", tmp_path / "query")
    rows = 2 * BATCHES_PER_KILL * PER_BATCH
    asyncio.run(query.prepare(rows))
    for seed, moment in enumerate((Moment.WRITING, Moment.COMMITTED)):
        query.kill(moment, seed)
        assert query.judge() == (0, 0, 0)
    seen = asyncio.run(query.seen())
    assert 0 < len(seen) < rows, "they got somewhere, and not to the end"
    query.finish(spark)
    assert query.judge(rows) == (0, 0, 0)
