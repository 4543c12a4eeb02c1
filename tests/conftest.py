"""What every test shares.

Property tests draw the same examples on every run, so that a failure in CI is a failure at one's desk. To look for new
ones, run them with `--hypothesis-profile=explore`.

Spark takes half a minute to start, so a process of tests has one session for all of them, the fixture `spark`. Tests
that use it stay together in one process (`pytest -n 2 --dist loadgroup`); the others spread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_SECONDS = 240
"""For a test with Spark; the first one has to wait for its start."""

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=5000)
settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and "spark" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.timeout(SPARK_SECONDS))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests of a process. What Spark says is in a file beside the tests' own."""
    from varlog.spark import session  # noqa: PLC0415  # most tests do without

    directory = tmp_path_factory.mktemp("spark")
    found = session(
        "tests",
        master="local[2]",
        log_file=directory / "spark.log",
        **{
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.sql.streaming.stopTimeout": "60s",
        },
    )
    yield found
    found.stop()
