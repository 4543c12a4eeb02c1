"""What a worker of Spark has at its beginning is not looked through after every task."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
from collections.abc import Iterator

from pyspark.sql import SparkSession

from varlog.spark.connections import connections
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


def warned(_: object) -> Iterator[str]:
    """In a task: what is said on standard error, which is the executor's log, when something warns."""

    async def nothing() -> None: ...

    connections.run(nothing())
    with contextlib.redirect_stderr(io.StringIO()) as said:
        logging.getLogger("varlog.spark.task").warning("passing over a loss")
    yield said.getvalue()


def test_what_a_task_warns_of_is_in_the_log_of_its_executor(spark: SparkSession) -> None:
    assert spark.sparkContext.parallelize([1], 1).mapPartitions(warned).collect() == ["passing over a loss\n"]
