"""Clients and nodes that do not belong to the cluster are refused with the reason, and disturb nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import varlog
from tests.cluster.cluster import CID, Cluster
from tests.cluster.processes import Daemon
from varlog import errors
from varlog.wire.secret import Secret

TIMEOUT = 5.0


async def refused(error: type[errors.VarlogError], cluster: Cluster, address: str, **wrong: Any) -> None:
    """Both kinds of clients are, with that error."""
    right: dict[str, Any] = {"cid": CID, "secret_file": cluster.path / "secret", "timeout": TIMEOUT}
    with pytest.raises(error):
        await varlog.connect(address, **right | wrong)
    with pytest.raises(error):
        await varlog.admin(address, **right | wrong)


async def try_to_get_in(cluster: Cluster) -> None:
    Secret.create(cluster.path / "other")
    vmr, node = cluster.vmr.address, cluster.nodes[0].address
    await refused(errors.WrongSecret, cluster, vmr, secret_file=cluster.path / "other")
    await refused(errors.WrongCluster, cluster, vmr, cid=CID + 1)
    await refused(errors.WrongRole, cluster, node)
    await refused(errors.Unreachable, cluster, "127.0.0.1:1", timeout=0.5)
    await refused(errors.SecretUnusable, cluster, vmr, secret_file=cluster.path / "missing")
    with pytest.raises(errors.UnknownTopic, match="there is no topic 'other'; the cluster has 'log'"):
        await varlog.connect(cluster.path, topic="other")


async def try_to_register(cluster: Cluster) -> None:
    volume = cluster.volume("stranger")
    volume.mkdir()
    options = {"volumes": str(volume), "secret_file": str(cluster.path / "secret"), "cluster": str(CID + 1)}
    stranger = Daemon("stranger", "vsn", cluster.path, options | {"metadata_repository": cluster.vmr.address})
    await stranger.start()
    try:
        async with varlog.admin(cluster.path) as admin:
            with pytest.raises(errors.WrongCluster):
                await admin.add_node(stranger.address)
            with pytest.raises(errors.WrongRole):
                await admin.add_node(cluster.vmr.address)
            assert [node.snid for node in await admin.nodes()] == [1]
    finally:
        await stranger.kill()


def test_M1_strangers_are_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path / "cluster", nodes=1, streams=1) as cluster, varlog.connect(cluster.path) as log:
            first = await log.append(b"before")
            await try_to_get_in(cluster)
            await try_to_register(cluster)
            second = await log.append(b"after")
            assert (first.glsn, second.glsn) == (1, 2)
            assert (first.epoch, first.log_stream) == (second.epoch, second.log_stream), "it was not even sealed"

    asyncio.run(test())
