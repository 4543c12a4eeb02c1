"""`vmr start`: the metadata repository as a process of its own."""

from __future__ import annotations

from typing import Final

import msgspec

from varlog.core.leading import SILENT
from varlog.core.metarepo import Role
from varlog.daemon.config import MetadataRepositoryConfig
from varlog.daemon.http import Health
from varlog.daemon.metrics import Metrics
from varlog.daemon.service import Service, run
from varlog.metarepo.keeping import JournalKeeper, Keeper
from varlog.metarepo.server import MetadataRepositoryServer
from varlog.storage.files import FileSystem, OSFileSystem

LONGEST_SILENCE: Final = 1e9
"""Said of a leader that is gone: infinity is no number that all readers know."""


def main(config: MetadataRepositoryConfig, fs: FileSystem | None = None) -> int:
    """Run until stopped; returns the exit code."""
    files = fs or OSFileSystem()

    async def live(service: Service[MetadataRepositoryConfig]) -> None:
        server = await MetadataRepositoryServer.start(config, files, service.fail)
        try:
            declare(service.metrics, server)
            await service.expose(lambda: health(server))
            service.ready(server.listening)
            await service.stop.wait()
        finally:
            await server.stop()

    return run(live, config)


def health(server: MetadataRepositoryServer) -> Health:
    """Whether it does its part: it leads, or knows of one that does."""
    repository = server.repository
    standing = server.standing(0)
    leads = repository.role is Role.LEADING
    details = {
        "address": server.address,
        "role": repository.role.value,
        "term": int(standing.term),
        "leader": standing.leader or None,
        "leader_silent_seconds": min(standing.silence, LONGEST_SILENCE),
        "lag_seconds": standing.lag,
        "version": int(repository.state.version),
        "storage_nodes": len(repository.state.nodes),
        "storage_nodes_connected": server.nodes,
        "topics": len(repository.state.topics),
        "log_streams": len(repository.state.streams),
        "store": msgspec.structs.asdict(standing.store),
        "members": dict(standing.members),
    }
    follows = bool(standing.leader) and standing.silence < SILENT
    return Health("ok" if leads or follows else "not leading", details)


def declare_shared(metrics: Metrics, keeper: Keeper) -> None:
    """What there is to tell of a store that others share."""
    metrics.gauge(
        "varlog_leader_silent_seconds",
        "For how long, at most, the leader had not been heard of in the store.",
        lambda: min(keeper.silence(), LONGEST_SILENCE),
    )
    metrics.gauge("varlog_metadata_members", "Metadata repositories there are.", lambda: len(keeper.members()))
    for name, meaning in (
        ("round_trip", "Seconds that the last request to the metadata store took."),
        ("total_bytes", "Size of the metadata store on disk."),
        ("used_bytes", "How much of it is in use."),
    ):
        metrics.gauge(
            f"varlog_metadata_store_{name.replace('round_trip', 'round_trip_seconds')}",
            meaning,
            lambda name=name: getattr(keeper.health(), name),  # type: ignore[misc]
        )


def declare(metrics: Metrics, server: MetadataRepositoryServer) -> None:
    repository, keeper = server.repository, server.keeper
    metrics.gauge("varlog_connections", "Open connections.", lambda: len(server.peers))
    metrics.counter("varlog_metadata_version", "Decisions made in all.", lambda: repository.state.version)
    metrics.gauge("varlog_metadata_term", "The leadership.", lambda: keeper.standing().term)
    metrics.gauge("varlog_metadata_leads", "1 if this one leads.", lambda: repository.role is Role.LEADING)
    metrics.gauge(
        "varlog_metadata_lag_seconds",
        "For how long the decision that is being written has been waiting for the store.",
        lambda: server.lag,
    )
    if isinstance(keeper, JournalKeeper):
        metrics.counter("varlog_journal_syncs", "Groups of decisions synced to disk.", lambda: keeper.groups)
    else:
        declare_shared(metrics, keeper)
    metrics.gauges(
        "varlog_topic_hwm",
        "The last position of the topic.",
        ("topic",),
        lambda: [((topic.name,), topic.hwm) for topic in repository.state.topics.values()],
    )
    metrics.gauges(
        "varlog_open_transactions",
        "Transactions of the topic that are not known to have ended.",
        ("topic",),
        lambda: [
            ((topic.name,), len(register.open) if (register := repository.state.registers.get(tpid)) else 0)
            for tpid, topic in repository.state.topics.items()
        ],
    )
    metrics.gauges(
        "varlog_stream_status",
        "0 CREATING, 1 SEALED, 2 UNSEALING, 3 RUNNING, 4 ABORTED, 5 CHAINED.",
        ("log_stream",),
        lambda: [((str(stream.lsid),), stream.status) for stream in repository.state.streams.values()],
    )
    metrics.counters(
        "varlog_protocol_branches",
        "How often the protocol took which way.",
        ("branch",),
        lambda: [((getattr(branch, "name", str(branch)),), count) for branch, count in server.branches.items()],
    )
