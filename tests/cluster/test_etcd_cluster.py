"""A cluster of real processes with several metadata repositories and managers on etcd, as `LocalCluster` runs it.

What it goes through under faults, and what the checkers say of that, is in `test_etcd_faults`; here is what an operator
sees of it.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

import varlog
from tests.cluster.waiting import pause
from tests.metarepo.etcds import own_prefix
from varlog import errors
from varlog.core.messages import Standing
from varlog.etcdserver import EtcdCluster
from varlog.processes import Daemon, LocalCluster

SECONDS = 90.0
GOES_ON_SECONDS = 10.0


@asynccontextmanager
async def cluster_on(etcd: EtcdCluster, path: Path, managers: int = 2) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(
        path,
        store=etcd.url(own_prefix()),
        repositories=3,
        managers=managers,
        any_version=not etcd.program.is_sound,
    )
    async with asyncio.timeout(SECONDS), cluster:
        yield cluster


@asynccontextmanager
async def log_and_admin(path: Path) -> AsyncIterator[tuple[varlog.Log, varlog.Admin]]:
    async with varlog.connect(path) as log, varlog.admin(path) as ops:
        yield log, ops


async def standings(admin: varlog.Admin) -> dict[str, Standing]:
    """Of those that answer."""
    found = await admin.repositories(timeout=1)
    return {address: it for address, it in found.items() if isinstance(it, Standing)}


async def leader_of(cluster: LocalCluster, admin: varlog.Admin) -> tuple[Daemon, int]:
    """The metadata repository that leads and its term; all others that answer know of it."""
    while True:
        known = await standings(admin)
        leading = [it for it in known.values() if it.role == "leading"]
        if len(leading) == 1 and {it.leader for it in known.values()} == {leading[0].address}:
            return next(it for it in cluster.vmrs if it.address == leading[0].address), leading[0].term
        await pause(0.02)


async def page_of(daemon: Daemon, page: str) -> bytes:
    def get() -> bytes:
        with urllib.request.urlopen(f"http://{daemon.http}/{page}", timeout=10) as answer:
            return bytes(answer.read())

    return await asyncio.to_thread(get)


async def health_of(daemon: Daemon) -> dict[str, Any]:
    details: dict[str, Any] = msgspec.json.decode(await page_of(daemon, "healthz"))["details"]
    return details


def test_O3_the_log_goes_on_whichever_metadata_repository_leads(etcd: EtcdCluster, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            cluster_on(etcd, tmp_path) as cluster,
            varlog.connect(tmp_path) as log,
            varlog.admin(tmp_path) as ops,
        ):
            assert (await log.append(b"a")).glsn == 1
            first, term = await leader_of(cluster, ops)
            assert {it.nodes for it in (await standings(ops)).values()} == {3}
            await first.kill()
            async with asyncio.timeout(GOES_ON_SECONDS):
                assert (await log.append(b"b")).glsn == 2
            second, later = await leader_of(cluster, ops)
            assert (second is not first, later > term) == (True, True)
            silent = (await ops.repositories(timeout=1))[first.address]
            assert isinstance(silent, errors.Unreachable)
            await first.start()
            assert await second.stop() == 0
            async with asyncio.timeout(GOES_ON_SECONDS):
                assert (await log.append(b"c")).glsn == 3
            assert await log.tail() == 3
            third, last = await leader_of(cluster, ops)
            assert last > later
            for daemon in (first, third):
                told = await health_of(daemon)
                assert (told["leader"], told["term"]) == (third.address, last)
                assert told["role"] == ("leading" if daemon is third else "following")
                assert told["store"]["name"] == cluster.vmr.options["store"]
            metrics = (await page_of(third, "metrics")).decode().splitlines()
            assert "varlog_metadata_leads 1.0" in metrics
            assert "varlog_metadata_members 2.0" in metrics
            assert "varlog_unreadable_metrics 0.0" in metrics
            assert any(line.startswith("varlog_metadata_store_total_bytes ") for line in metrics)

    asyncio.run(main())


def test_M4_another_manager_takes_over_from_one_that_was_killed(etcd: EtcdCluster, tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_on(etcd, tmp_path) as cluster, varlog.admin(tmp_path) as ops:
            leads = (await ops.metadata()).manager
            (first,) = [it for it in cluster.managers if it.address == leads]
            (second,) = [it for it in cluster.managers if it is not first]
            assert (await health_of(first))["role"] == "leading"
            told = await health_of(second)
            assert (told["role"], leads in told["leader"]) == ("standing by", True)
            await first.kill()
            async with asyncio.timeout(GOES_ON_SECONDS):
                while (await ops.metadata()).manager != second.address:
                    await pause(0.02)
            assert (await ops.add_topic("another")).name == "another"
            await first.start()
            assert (await ops.metadata()).manager == second.address, "it has no reason to give the lead back"

    asyncio.run(main())
