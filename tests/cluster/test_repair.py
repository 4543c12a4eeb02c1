"""Nodes die, hang, are cut off, lose their disks, are drained and moved, with real processes under load: the log goes
on without them and without anybody's doing, nothing acknowledged is lost, repeated or reordered, and they come back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cluster import repairs
from tests.cluster.cluster import Files
from tests.cluster.scenarios import Scenario, live_through


@pytest.mark.parametrize(
    "scenario", [repairs.lose_primary, repairs.lose_backup, repairs.lose_manager], ids=lambda s: s.__name__
)
def test_M6_M7_the_log_goes_on_without_a_node_until_it_is_back(scenario: Scenario, tmp_path: Path) -> None:
    asyncio.run(live_through(scenario, tmp_path / "cluster"))


@pytest.mark.parametrize("scenario", [repairs.hang_primary, repairs.hang_backup], ids=lambda s: s.__name__)
def test_M6_a_node_that_hung_does_no_harm(scenario: Scenario, tmp_path: Path) -> None:
    asyncio.run(live_through(scenario, tmp_path / "cluster"))


def test_O2_the_power_goes_and_one_node_stays_away(tmp_path: Path) -> None:
    asyncio.run(live_through(repairs.lose_power, tmp_path / "cluster", files=Files.FORGETFUL, trims=True))


@pytest.mark.parametrize("scenario", repairs.ON_PROXIED_REPAIR, ids=lambda s: s.__name__)
def test_the_log_goes_on_without_a_node_that_is_cut_off(scenario: Scenario, tmp_path: Path) -> None:
    asyncio.run(live_through(scenario, tmp_path / "cluster", proxied=True))


@pytest.mark.parametrize("scenario", [repairs.delete_data, repairs.delete_data_in_use], ids=lambda s: s.__name__)
def test_B11_a_node_that_has_lost_its_disk_gets_its_replicas_back(scenario: Scenario, tmp_path: Path) -> None:
    asyncio.run(live_through(scenario, tmp_path / "cluster"))


def test_a_spare_takes_over(tmp_path: Path) -> None:
    asyncio.run(live_through(repairs.lose_node_for_good, tmp_path / "cluster", spares=1))


@pytest.mark.parametrize(("scenario", "spares"), [(repairs.drain_each, 0), (repairs.move_and_replace, 1)])
def test_operators_change_sets_under_load(scenario: Scenario, spares: int, tmp_path: Path) -> None:
    asyncio.run(live_through(scenario, tmp_path / "cluster", spares=spares))


@pytest.mark.parametrize("scenario", [repairs.lose_primary, repairs.drain_each], ids=lambda s: s.__name__)
def test_two_managers_at_once_do_no_harm(scenario: Scenario, tmp_path: Path) -> None:
    asyncio.run(live_through(scenario, tmp_path / "cluster", managers=2))
