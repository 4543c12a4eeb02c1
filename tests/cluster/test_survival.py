"""Real processes under load, killed, stopped, hung and cut off: nothing acknowledged is lost, repeated or reordered,
and appends go on by themselves.

The longer version of this is `python -m tests.cluster.soak`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cluster import scenarios
from tests.cluster.cluster import Files
from tests.cluster.scenarios import Scenario, live_through


@pytest.mark.parametrize("files", [Files.PLAIN, Files.FORGETFUL], ids=lambda files: files.value)
def test_O2_everything_is_killed_at_once(files: Files, tmp_path: Path) -> None:
    asyncio.run(live_through(scenarios.kill_everything, tmp_path / "cluster", files=files, trims=True))


@pytest.mark.parametrize(
    "scenario", [scenarios.kill_each, scenarios.stop_each, scenarios.hang_each], ids=lambda s: s.__name__
)
def test_each_daemon_fails_alone(scenario: Scenario, tmp_path: Path) -> None:
    asyncio.run(live_through(scenario, tmp_path / "cluster"))


@pytest.mark.parametrize("scenario", scenarios.ON_PROXIES, ids=lambda s: s.__name__)
def test_connections_fail(scenario: Scenario, tmp_path: Path) -> None:
    asyncio.run(live_through(scenario, tmp_path / "cluster", proxied=True))


def test_strangers_disturb_nobody(tmp_path: Path) -> None:
    asyncio.run(live_through(scenarios.pester, tmp_path / "cluster"))
