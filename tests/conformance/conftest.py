"""The logs of the conformance suite: each ordering, carried by each of what can carry it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.rigs import LogUnderTest, Place, embedded, processes
from tests.conformance.simulated import simulated

RIGS = {"simulated": simulated, "embedded": embedded, "processes": processes}


@pytest.fixture(scope="session", params=["commit", "sequencer"])
def ordering(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", params=RIGS)
def place(request: pytest.FixtureRequest, ordering: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with RIGS[request.param](tmp_path_factory.mktemp("conformance"), ordering) as made:
        yield made


@pytest.fixture
def log(place: Place) -> Iterator[LogUnderTest]:
    yield place.new_log()
    place.remove_logs()
