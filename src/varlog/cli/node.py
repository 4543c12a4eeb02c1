"""`varlog node`: register, list, describe and remove storage nodes."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from cyclopts import Parameter

from varlog.cli import records
from varlog.cli.looking import metadata_of
from varlog.cli.options import USUAL_CLUSTER, Cluster, Identifier
from varlog.cli.output import Column, size_of

SNID = Annotated[Identifier, Parameter(metavar="SNID")]


async def add_node(
    *addresses: Annotated[str, Parameter(metavar="HOST:PORT", required=True)], at: Cluster = USUAL_CLUSTER
) -> None:
    """Add nodes.

    Parameters
    ----------
    addresses
        Where they listen.
    """
    async with at.admin() as admin:
        for address in addresses:
            snid = await admin.add_node(address, timeout=at.patience)
            at.output.record({"node": snid, "address": address})
            at.output.line(f"storage node {snid} at {address} is part of the cluster")


async def list_node(*, at: Cluster = USUAL_CLUSTER) -> None:
    """List nodes."""
    async with at.admin() as admin:
        metadata = await metadata_of(at, admin)
    replicas = Counter(snid for stream in metadata.streams for snid in stream.replicas)
    for node in metadata.nodes:
        at.output.record(
            {"id": node.snid, "address": node.address, "volumes": node.volumes, "replicas": replicas[node.snid]}
        )
    at.output.table(
        (Column("node", right=True), "address", Column("replicas", right=True), "volumes"),
        [(node.snid, node.address or "-", replicas[node.snid], ", ".join(node.volumes)) for node in metadata.nodes],
    )


async def describe_node(snid: SNID, /, *, at: Cluster = USUAL_CLUSTER) -> None:
    """Describe a node.

    Parameters
    ----------
    snid
        Its id.
    """
    async with at.admin() as admin:
        metadata = await metadata_of(at, admin)
        info = await admin.node(snid, timeout=at.patience)
    streams = {stream.lsid: stream for stream in metadata.streams}
    replicas = [records.replica_record(streams.get(replica.lsid), snid, replica) for replica in info.replicas]
    output = at.output
    volumes = [
        {"path": volume.path, "total_bytes": volume.total_bytes, "free_bytes": volume.free_bytes}
        for volume in info.volumes
    ]
    output.record(
        {"id": snid, "address": info.address, "boot": info.boot, "volumes": volumes, "replica_states": replicas}
    )
    output.line(f"storage node {snid} at {info.address}")
    output.line()
    output.table(
        ("volume", Column("free", right=True), Column("of", right=True)),
        [(volume.path, size_of(volume.free_bytes), size_of(volume.total_bytes)) for volume in info.volumes],
    )
    output.line()
    columns = (Column("log stream", right=True), *records.REPLICA_COLUMNS)
    output.table(columns, [(replica.log_stream, *records.replica_row(replica)) for replica in replicas])


async def remove_node(snid: SNID, /, *, at: Cluster = USUAL_CLUSTER) -> None:
    """Remove a node.

    Parameters
    ----------
    snid
        Its id.
    """
    async with at.admin() as admin:
        await admin.remove_node(snid, timeout=at.patience)
    at.output.record({"node": snid, "removed": True})
    at.output.line(f"storage node {snid} is no longer part of the cluster")
