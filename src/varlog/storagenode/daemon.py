"""`vsn start`: the storage node as a process of its own."""

from __future__ import annotations

import asyncio
from typing import Final

from varlog.daemon import logs
from varlog.daemon.config import StorageNodeConfig
from varlog.daemon.http import Health
from varlog.daemon.metrics import Metrics
from varlog.daemon.service import Service, run
from varlog.storage.files import FileSystem, OSFileSystem
from varlog.storagenode.server import StorageNodeServer

ADD_SECONDS: Final = 10.0
"""Within this time a new node is added, usually."""


def main(config: StorageNodeConfig, fs: FileSystem | None = None) -> int:
    """Run until stopped; returns the exit code."""
    files = fs or OSFileSystem()

    async def live(service: Service[StorageNodeConfig]) -> None:
        node = await StorageNodeServer.start(config, files, service.fail)
        try:
            declare(service.metrics, node)
            await service.expose(lambda: health(node))
            service.ready(node.listening)
            asyncio.get_running_loop().call_later(ADD_SECONDS, remind, node)
            await service.stop.wait()
        finally:
            await node.stop()

    return run(live, config, writer_thread=True)


def remind(node: StorageNodeServer) -> None:
    """Say that something is to be done, if nobody has done it since the start."""
    if node.announcing.is_unknown:
        logs.get().warning("not registered, and of no use", do=f"varlog node add {node.address}")


def health(node: StorageNodeServer) -> Health:
    """Whether it serves: the metadata repository answers and knows it, and none of its replicas needs repair."""
    replicas = [replica.executor.info() for replica in node.replicas]
    replicas += [unopened.info() for unopened in node.replicas.unopened.values()]
    broken = [replica.lsid for replica in replicas if not replica.healthy]
    details = {
        "snid": node.snid,
        "address": node.address,
        "metadata_repository": node.repositories.told(answers=node.is_answered),
        "refused": node.announcing.refusal or None,
        "log_streams": {replica.lsid: replica.state.name for replica in replicas},
        "in_need_of_repair": broken,
    }
    return Health("degraded" if broken else _standing(node), details)


def _standing(node: StorageNodeServer) -> str:
    """How it stands with the metadata repository."""
    if not node.is_answered:
        return "disconnected"
    if node.announcing.is_unknown:
        return "not registered"
    return "refused" if node.announcing.refusal else "ok"


def declare(metrics: Metrics, node: StorageNodeServer) -> None:
    """What the node counts (M12)."""
    metrics.gauge("varlog_connections", "Open connections.", lambda: len(node.peers))
    metrics.counters(
        "varlog_protocol_branches",
        "How often the protocol took which way.",
        ("branch",),
        lambda: [((getattr(branch, "name", str(branch)),), count) for branch, count in node.branches.items()],
    )
    loop, chains = asyncio.get_running_loop(), node.node.chains
    unserved = "0 if the metadata repository is silent: no chain is served."
    metrics.gauge("varlog_leased", unserved, lambda: int(chains.is_leased(loop.time())))
    metrics.counter("varlog_scrubbed_bytes", "Bytes read to find damage.", lambda: node.scrubbing.bytes)
    metrics.counter("varlog_scrub_passes", "How often all replicas were read through.", lambda: node.scrubbing.passes)
    for name, meaning in (
        ("batches", "Batches stored."),
        ("entries", "Entries stored."),
        ("bytes", "Bytes of batches stored."),
        ("commits", "Cuts applied."),
        ("refused", "Appends refused."),
        ("scans", "Reads answered with data."),
        ("syncs", "Groups synced to disk."),
    ):
        metrics.counters(
            f"varlog_replica_{name}",
            meaning,
            ("log_stream",),
            lambda name=name: [  # type: ignore[misc]
                ((str(replica.executor.lsid),), getattr(replica.executor, name)) for replica in node.replicas
            ],
        )
    for name, meaning in (
        ("committed_end", "The LLSN that is committed next."),
        ("durable_end", "The LLSN that is synced next."),
        ("end", "The LLSN that is given next."),
        ("global_hwm", "The GLSN up to which the replica is complete."),
        ("state", "0 SEALING, 1 SEALED, 2 RUNNING."),
        ("epoch", "The epoch the replica is in."),
    ):
        metrics.gauges(
            f"varlog_replica_{name}",
            meaning,
            ("log_stream",),
            lambda name=name: [  # type: ignore[misc]
                ((str(replica.executor.lsid),), int(getattr(replica.executor, name))) for replica in node.replicas
            ],
        )
    metrics.gauges(
        "varlog_replica_healthy",
        "0 if the replica has failed or is corrupt.",
        ("log_stream",),
        lambda: [
            *[((str(replica.executor.lsid),), int(replica.executor.healthy)) for replica in node.replicas],
            *[((str(lsid),), 0) for lsid in node.replicas.unopened],
        ],
    )
