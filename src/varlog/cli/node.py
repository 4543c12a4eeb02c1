"""`varlog node`: register, list, describe, drain, replace, scrub and remove storage nodes."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from cyclopts import Parameter

from varlog.cli import records
from varlog.cli.failures import Exit
from varlog.cli.following import NoWait, Patience, bar, follow
from varlog.cli.looking import Seen, look, metadata_of, see
from varlog.cli.options import USUAL_CLUSTER, Cluster, Identifier
from varlog.cli.output import Column, size_of
from varlog.core.messages import NodeInfo, StreamInfo

SNID = Annotated[Identifier, Parameter(metavar="SNID")]
_DRAINING = ("being drained", "drained")


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
    seen = await look(at)
    metadata = seen.metadata
    replicas = Counter(snid for stream in metadata.streams for snid in stream.replicas)
    for node in metadata.nodes:
        at.output.record(
            {
                "id": node.snid,
                "address": node.address,
                "state": _state_of(node, seen),
                "volumes": node.volumes,
                "replicas": replicas[node.snid],
                "draining": node.is_draining,
            }
        )
    at.output.table(
        (Column("node", right=True), "address", "state", Column("replicas", right=True), "volumes", "remarks"),
        [
            (
                node.snid,
                node.address or "-",
                _state_of(node, seen),
                replicas[node.snid],
                ", ".join(node.volumes),
                _DRAINING[replicas[node.snid] == 0] if node.is_draining else "",
            )
            for node in metadata.nodes
        ],
    )


def _state_of(node: NodeInfo, seen: Seen) -> str:
    """In the words of `varlog status`."""
    info = seen.infos.get(node.snid)
    if info is None:
        return "does not answer"
    if not info.is_identified:
        return "has lost its disks"
    return "draining" if node.is_draining else "ok"


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
    draining = any(node.snid == snid and node.is_draining for node in metadata.nodes)
    output.record(
        {
            "id": snid,
            "address": info.address,
            "boot": info.boot,
            "draining": draining,
            "identified": info.is_identified,
            "volumes": volumes,
            "replica_states": replicas,
        }
    )
    remark = "" if info.is_identified else ", without its secret: it has lost its disks, or was never added"
    output.line(f"storage node {snid} at {info.address}{', being drained' if draining else ''}{remark}")
    output.line()
    output.table(
        ("volume", Column("free", right=True), Column("of", right=True)),
        [(volume.path, size_of(volume.free_bytes), size_of(volume.total_bytes)) for volume in info.volumes],
    )
    output.line()
    columns = (Column("log stream", right=True), *records.REPLICA_COLUMNS)
    output.table(columns, [(replica.log_stream, *records.replica_row(replica)) for replica in replicas])


async def drain_node(snid: SNID, /, *, no_wait: NoWait = False, at: Cluster = USUAL_CLUSTER) -> None:
    """Drain a node.

    Parameters
    ----------
    snid
        Its id.
    """

    def remaining(seen: Seen) -> list[StreamInfo]:
        return [stream for stream in seen.metadata.streams if snid in stream.replicas and not stream.lost_end]

    async with at.admin() as admin:
        await admin.drain_node(snid, timeout=at.patience)
        seen = await (see(at, admin) if no_wait else follow(at, admin, f"draining node {snid}", remaining))
    left = len(remaining(seen))
    at.output.record({"node": snid, "draining": True, "replicas": left})
    if left:
        at.output.line(f"storage node {snid} is being drained; it has {left} replicas to give away")
    else:
        at.output.line(f"storage node {snid} is drained; take it out with: varlog node remove {snid}")


async def undrain_node(snid: SNID, /, *, at: Cluster = USUAL_CLUSTER) -> None:
    """Let a node have replicas again.

    Parameters
    ----------
    snid
        Its id.
    """
    async with at.admin() as admin:
        await admin.undrain_node(snid, timeout=at.patience)
        metadata = await metadata_of(at, admin)
    replicas = sum(snid in stream.replicas for stream in metadata.streams)
    at.output.record({"node": snid, "draining": False, "replicas": replicas})
    at.output.line(f"storage node {snid} may have replicas again")


async def replace_node(
    snid: SNID,
    /,
    *,
    by: Annotated[Identifier, Parameter(metavar="SNID")],
    no_wait: NoWait = False,
    at: Cluster = USUAL_CLUSTER,
) -> None:
    """Replace a node.

    Parameters
    ----------
    snid
        The id of the one that goes.
    by
        The id of the one that takes its place.
    """

    def remaining(seen: Seen) -> list[StreamInfo]:
        streams = [stream for stream in seen.metadata.streams if not stream.lost_end]
        return [stream for stream in streams if stream.joining == by or snid in stream.replicas]

    async with at.admin() as admin:
        await admin.replace_node(snid, by, timeout=at.patience)
        title = f"replacing node {snid} by node {by}"
        seen = await (see(at, admin) if no_wait else follow(at, admin, title, remaining))
    left = len(remaining(seen))
    at.output.record({"node": snid, "by": by, "replicas": left})
    if left:
        at.output.line(f"storage node {by} is taking the place of storage node {snid}: {left} replicas to go")
    else:
        at.output.line(
            f"storage node {by} has the place of storage node {snid}; take that out with: varlog node remove {snid}"
        )


async def scrub_node(snid: SNID, /, *, no_wait: NoWait = False, at: Cluster = USUAL_CLUSTER) -> int:
    """Read a node's data through.

    Parameters
    ----------
    snid
        Its id.
    """
    async with at.admin() as admin:
        begun = state = await admin.scrub_node(snid, timeout=at.patience)
        patience, total = Patience(at), max(1, begun.left)
        with bar(at.output, f"scrubbing node {snid}") as show:
            while state.passes == begun.passes and not no_wait:
                show(1 - state.left / total, f"{size_of(state.bytes - begun.bytes)} read")
                await patience.moment((state.left, state.bytes), f"scrubbing node {snid}: it is not done yet")
                state = await admin.scrub_node(snid, begin=False, timeout=at.patience)
    done, read = state.passes > begun.passes, state.bytes - begun.bytes
    at.output.record({"node": snid, "done": done, "bytes": read, "damaged": state.damaged})
    if not done:
        at.output.line(f"storage node {snid} reads its data through; it has {state.left} replicas to go")
    else:
        at.output.line(f"storage node {snid} has read {size_of(read)}")
    for lsid in state.damaged:
        at.output.line(f"its replica of log stream {lsid} is corrupt; the manager makes it anew from another one")
    return Exit.NOT_WELL if state.damaged else Exit.OK


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
