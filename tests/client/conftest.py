"""A cluster for the tests of a module that need a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.orderings import add_topics
from tests.conformance.rigs import Loop
from varlog.oneprocess import EmbeddedCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One for all, in a thread of its own, with a topic of each ordering."""
    path = tmp_path_factory.mktemp("cluster")
    loop = Loop()
    running = loop.run(EmbeddedCluster.start(path))
    try:
        loop.run(add_topics(path))
        yield path
    finally:
        loop.run(running.stop())
        loop.close()
