"""A cluster of real processes for all tests of Spark, and a topic for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import varlog.sync
from tests.spark.topics import Topic, small_cluster
from varlog.processes import LocalCluster
from varlog.spark.connections import connections


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = small_cluster(tmp_path_factory.mktemp("cluster"))
    asyncio.run(running.__aenter__())
    yield running
    connections.close()
    asyncio.run(running.stop())


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """One that may be damaged."""
    running = small_cluster(tmp_path / "cluster")
    asyncio.run(running.__aenter__())
    try:
        yield running
    finally:
        connections.close()
        asyncio.run(running.stop())


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Topic]:
    """Two log streams on three nodes, empty; gone afterwards."""
    name = request.node.name[:100]
    with varlog.sync.admin(cluster.path) as admin:
        admin.add_topic(name, streams=2)
        yield Topic(cluster.path, name)
        admin.remove_topic(name)
