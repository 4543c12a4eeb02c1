"""The pipeline from one topic to another: every order comes out once, also when Spark has forgotten what it did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import varlog.sync
from examples import log_to_log
from examples.log_to_log import PRICES
from tests.spark.conftest import cluster, topic
from tests.spark.topics import Topic

__all__ = ["cluster", "topic"]

ITEMS = [*PRICES, "caviar"]


@pytest.fixture
def target(topic: Topic) -> Iterator[Topic]:
    made = Topic(topic.path, f"{topic.name[:90]}-priced")
    with varlog.sync.admin(topic.path) as admin:
        admin.add_topic(made.name, streams=2)
        yield made
        admin.remove_topic(made.name)


def order(topic: Topic, first: int, count: int) -> None:
    with topic.log() as log:
        for number in range(first, first + count):
            log.append(json.dumps({"item": ITEMS[number % len(ITEMS)], "quantity": number}).encode())


def outcome(topic: Topic, target: Topic) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """What is there, and what should be."""
    with topic.log() as log, target.log() as other:
        there = [json.loads(entry.data) for batch in other.scan() for entry in batch]
        orders = [(entry.glsn, json.loads(entry.data)) for batch in log.scan() for entry in batch]
    due = [
        {"order": glsn, **one, "cents": one["quantity"] * PRICES[one["item"]]}
        for glsn, one in orders
        if one["item"] in PRICES
    ]
    return sorted(there, key=lambda row: int(str(row["order"]))), due


def test_P1_every_order_comes_out_once(spark: SparkSession, topic: Topic, target: Topic, tmp_path: Path) -> None:
    def run() -> None:
        log_to_log.run(spark, str(topic.path), topic.name, target.name, str(tmp_path / "checkpoint"))

    order(topic, 0, 10)
    run()
    there, due = outcome(topic, target)
    assert there == due
    for note in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        note.unlink()  # as if the driver had been killed between its commit in the log and its own note
    order(topic, 10, 10)
    run()
    assert (tmp_path / "checkpoint" / "commits" / "0").exists(), "the first micro-batch was done again"
    there, due = outcome(topic, target)
    assert there == due
    assert len(due) == 15
