"""What a worker of Spark has at its beginning is not looked through after every task."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

from pyspark.sql import SparkSession

from varlog.spark.settling import is_worker, settle


def frozen(_: object) -> Iterator[tuple[int, int, int]]:
    """In a task: the worker, what is frozen there, and how much is left to be looked through."""
    settle()
    yield os.getpid(), gc.get_freeze_count(), len(gc.get_objects())


def test_what_a_worker_begins_with_is_taken_for_permanent(spark: SparkSession) -> None:
    tasks = [spark.sparkContext.parallelize([1], 1).mapPartitions(frozen).collect()[0] for _ in range(4)]
    assert all(count > 10_000 > left for _, count, left in tasks)


def test_elsewhere_nothing_changes() -> None:
    before = gc.get_freeze_count()
    assert not is_worker()
    settle()
    assert gc.get_freeze_count() == before
