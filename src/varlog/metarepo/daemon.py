"""`vmr start`: the metadata repository as a process of its own."""

from __future__ import annotations

from varlog.core.metarepo import Role
from varlog.daemon.config import MetadataRepositoryConfig
from varlog.daemon.http import Health
from varlog.daemon.metrics import Metrics
from varlog.daemon.service import Service, run
from varlog.metarepo.server import MetadataRepositoryServer
from varlog.storage.files import FileSystem, OSFileSystem


def main(config: MetadataRepositoryConfig, fs: FileSystem | None = None) -> int:
    """Run until stopped; returns the exit code."""
    files = fs or OSFileSystem()

    async def live(service: Service[MetadataRepositoryConfig]) -> None:
        server = await MetadataRepositoryServer.start(config, files, service.fail)
        try:
            declare(service.metrics, server)
            await service.expose(lambda: health(server))
            service.ready(server.address)
            await service.stop.wait()
        finally:
            await server.stop()

    return run(live, config)


def health(server: MetadataRepositoryServer) -> Health:
    repository = server.repository
    leads = repository.role is Role.LEADING
    details = {
        "address": server.address,
        "role": repository.role.value,
        "term": int(repository.term),
        "version": int(repository.state.version),
        "storage_nodes": len(repository.state.nodes),
        "topics": len(repository.state.topics),
        "log_streams": len(repository.state.streams),
    }
    return Health("ok" if leads else "not leading", details)


def declare(metrics: Metrics, server: MetadataRepositoryServer) -> None:
    repository = server.repository
    metrics.gauge("varlog_connections", "Open connections.", lambda: len(server.peers))
    metrics.counter("varlog_metadata_version", "Decisions made in all.", lambda: repository.state.version)
    metrics.gauge("varlog_metadata_term", "The leadership.", lambda: repository.term)
    metrics.counter("varlog_journal_syncs", "Groups of decisions synced to disk.", lambda: server.groups)
    metrics.gauges(
        "varlog_topic_hwm",
        "The last position of the topic.",
        ("topic",),
        lambda: [((topic.name,), topic.hwm) for topic in repository.state.topics.values()],
    )
    metrics.gauges(
        "varlog_stream_status",
        "0 CREATING, 1 SEALED, 2 UNSEALING, 3 RUNNING, 4 ABORTED.",
        ("log_stream",),
        lambda: [((str(stream.lsid),), stream.status) for stream in repository.state.streams.values()],
    )
    metrics.counters(
        "varlog_protocol_branches",
        "How often the protocol took which way.",
        ("branch",),
        lambda: [((getattr(branch, "name", str(branch)),), count) for branch, count in server.branches.items()],
    )
