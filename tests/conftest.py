"""What every test shares.

Property tests draw the same examples on every run, so that a failure in CI is a failure at one's desk. To look for new
ones, run them with `--hypothesis-profile=explore`.

Spark takes half a minute to start, so a process of tests has one session for all of them, the fixture `spark`. Files
with tests that use it stay together in one process (`pytest -n 2 --dist loadgroup`), and so do the tests of a file that
shares something among them; all other tests spread. No Java process lives long here, so none is given the compiler that
makes code faster in the long run: it takes half of the processor time of a Spark that starts, does a little and ends.

An etcd of three members is shared by all tests of a process, too: the fixture `etcd`. Each test has a prefix of its own
in it, or starts one of its own if it is to break it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from varlog.etcdserver import EtcdCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
SPARK_SECONDS = 240
"""For a test with Spark; the first one has to wait for its start."""

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ |= {"SPARK_LAUNCHER_OPTS": JAVA_OPTIONS, "SPARK_SUBMIT_OPTS": JAVA_OPTIONS}

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=5000)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and "spark" in item.fixturenames:
            item.add_marker(pytest.mark.timeout(SPARK_SECONDS))


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out tests one by one, those of Spark all together, and those of a file that shares something as a file.

    The mark `xdist_group` would say the same, but pytest-xdist 3.8 puts it where pytest 9.2 does not look.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _scope_of(nodeid.partition("::")[0]) or nodeid


@cache
def _scope_of(file: str) -> str:
    """What the tests of a file are handed out with; empty if each is by itself."""
    text = (ROOT / file).read_text()
    return "spark" if "spark: SparkSession" in text else file if 'scope="module"' in text else ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    return Together(config, log) if config.getoption("dist") == "loadgroup" else None


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


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One etcd for all tests of a process, which they leave running as they found it."""
    cluster = EtcdCluster(tmp_path_factory.mktemp("etcd"))
    asyncio.run(cluster.start())
    yield cluster
    asyncio.run(cluster.stop())
