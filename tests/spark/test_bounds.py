"""What a query reads of a topic, as Spark's plan of it tells."""

from __future__ import annotations

import asyncio

import pytest
from pyspark.sql import SparkSession

import varlog
from tests.spark.topics import Topic
from varlog.spark.bounds import EVERYTHING, Bounds, are_within, bounds_of, limiting_options

NOON = 1_769_860_800_000_000


@pytest.fixture
def view(spark: SparkSession, topic: Topic) -> str:
    topic.read(spark).createOrReplaceTempView("bounded")
    return topic.name


@pytest.mark.parametrize(
    ("condition", "bounds"),
    [
        ("true", EVERYTHING),
        ("glsn BETWEEN 11 AND 20", Bounds(11, 20)),
        ("11 <= glsn AND 20 > glsn AND log_stream = 1", Bounds(11, 20)),
        ("glsn = 7", Bounds(7, 7)),
        ("glsn = '7'", Bounds(7, 7)),
        ("glsn IN (7, 3)", Bounds(3, 7)),
        ("glsn IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)", Bounds(1, 12)),
        ("glsn = 3 OR glsn = 70", Bounds(3, 70)),
        ("glsn = 3 OR log_stream = 1", EVERYTHING),
        ("NOT glsn = 3", EVERYTHING),
        ("glsn % 2 = 1", EVERYTHING),
        ("glsn > -5", EVERYTHING),
        ("glsn < llsn", EVERYTHING),
        ("llsn < 5", EVERYTHING),
        ("timestamp >= '2026-01-31T12:00:00Z'", Bounds(since=NOON)),
        ("timestamp < timestamp'2026-01-31 12:00:00' AND glsn > 4", Bounds(first=4, until=NOON)),
    ],
)
def test_a_condition_bounds_what_is_read(spark: SparkSession, view: str, condition: str, bounds: Bounds) -> None:
    assert bounds_of(spark.sql(f"SELECT payload FROM bounded WHERE {condition}")) == {view: bounds}


@pytest.mark.parametrize(
    ("query", "bounds"),
    [
        ("SELECT * FROM bounded WHERE glsn < 9 UNION ALL SELECT * FROM bounded WHERE glsn = 50", Bounds(0, 50)),
        ("SELECT * FROM bounded a JOIN bounded b ON a.glsn = b.llsn WHERE a.glsn < 9", EVERYTHING),
        ("SELECT (SELECT max(glsn) FROM bounded) FROM bounded WHERE glsn = 3", EVERYTHING),
        ("SELECT 1 FROM bounded WHERE glsn = 3 AND llsn > (SELECT min(glsn) FROM bounded WHERE glsn > 2)", Bounds(2)),
        ("WITH a AS (SELECT * FROM bounded) SELECT 1 FROM a WHERE glsn = 2 UNION ALL SELECT llsn FROM a", EVERYTHING),
        ("SELECT b.glsn FROM range(5) JOIN (SELECT glsn + 1 AS glsn FROM bounded WHERE glsn = 4) b", Bounds(4, 4)),
    ],
)
def test_what_any_use_of_a_topic_needs_is_read(spark: SparkSession, view: str, query: str, bounds: Bounds) -> None:
    assert bounds_of(spark.sql(query)) == {view: bounds}


def test_a_plan_that_may_hide_something_has_no_bounds(spark: SparkSession, view: str) -> None:
    assert view
    recursive = "SELECT glsn FROM bounded WHERE glsn = 1 UNION ALL SELECT glsn + 1 FROM t WHERE glsn < 3"
    assert bounds_of(spark.sql(f"WITH RECURSIVE t(glsn) AS ({recursive}) SELECT * FROM t")) == {}
    assert bounds_of(spark.sql("SHOW VIEWS")) == {}


def test_bounds_are_within_others() -> None:
    assert are_within({"t": Bounds(3, 5)}, {"t": Bounds(3, 5)})
    assert are_within({"t": Bounds(3, 5), "other": EVERYTHING}, {"t": Bounds(2, 6)})
    assert not are_within({"t": Bounds(3, 5)}, {"t": Bounds(4, 5)})
    assert not are_within({"t": Bounds(until=9)}, {"t": Bounds(until=8)})
    assert not are_within({}, {"t": EVERYTHING})


def test_options_say_what_there_is_within_bounds(topic: Topic) -> None:
    topic.write_numbers(100)
    topic.write_numbers(100)
    with topic.log() as log:
        log.trim(20)
        at = log.read(150).timestamp
        times = [(entry.glsn, entry.timestamp) for batch in log.scan(21) for entry in batch]
    first = next(glsn for glsn, time in times if time >= at)
    behind = next((glsn for glsn, time in times if time > at), 201)

    async def options(bounds: Bounds) -> dict[str, str]:
        async with varlog.connect(topic.path, topic=topic.name) as log:
            return await limiting_options(log, bounds)

    def said(bounds: Bounds) -> tuple[str, str]:
        told = asyncio.run(options(bounds))
        return told.get("startingOffsets", ""), told.get("endingOffsets", "")

    assert said(EVERYTHING) == ("", "")
    assert said(Bounds(30, 40)) == ("30", "41")
    assert said(Bounds(last=40)) == ("", "41")
    assert said(Bounds(5, 10)) == ("21", "21"), "what is no longer there is not asked for"
    assert said(Bounds(first=1000)) == ("201", "")
    assert said(Bounds(40, 30)) == ("40", "40")
    assert said(Bounds(since=at)) == (str(first), "")
    assert said(Bounds(until=at)) == ("", str(behind))
