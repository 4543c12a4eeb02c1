"""Clusters on etcd under load, whose metadata repositories and managers die, hang and are cut off, and whose etcd does:
nothing acknowledged is lost, repeated or reordered, appends go on by themselves, and a deposed leader changes nothing.

A cluster goes through several faults, because it takes longer to start one than to break it. The longer version of
this is `python -m tests.cluster.meta_soak`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import meta_scenarios as faults
from tests.cluster.meta_scenarios import live_through_on_etcd
from tests.cluster.on_etcd import QUICK
from varlog.etcdserver import EtcdCluster


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """An etcd that tests break and leave whole."""
    cluster = EtcdCluster(tmp_path_factory.mktemp("etcd"), flags=QUICK)
    asyncio.run(cluster.start())
    yield cluster
    asyncio.run(cluster.stop())


def test_O2_the_leader_is_killed_and_cut_off_and_a_paused_one_changes_nothing(
    breakable: EtcdCluster, tmp_path: Path
) -> None:
    scenarios = (
        faults.pause_leader,
        faults.kill_leader,
        faults.cut_leader_off_etcd_silently,
        faults.cut_leader_off_nodes_silently,
    )
    asyncio.run(live_through_on_etcd(scenarios, tmp_path / "cluster", breakable, managers=1, trims=True))


def test_O3_etcd_loses_its_leader_then_its_majority_and_leaves_outcomes_unknown(
    breakable: EtcdCluster, tmp_path: Path
) -> None:
    scenarios = (faults.lose_requests, faults.lose_answers, faults.kill_etcd_leader, faults.lose_etcd_majority)
    asyncio.run(live_through_on_etcd(scenarios, tmp_path / "cluster", breakable, managers=1))


def test_M4_a_standby_takes_over_from_a_manager_that_hangs(breakable: EtcdCluster, tmp_path: Path) -> None:
    asyncio.run(live_through_on_etcd((faults.pause_manager,), tmp_path / "cluster", breakable, repositories=1))
