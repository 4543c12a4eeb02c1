"""`varlog stream`: make, list, describe and remove log streams."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter

from varlog.cli import records
from varlog.cli.looking import look, metadata_of
from varlog.cli.options import USUAL_CLUSTER, USUAL_TOPIC, Cluster, Identifier, Topic
from varlog.cli.output import Column
from varlog.errors import UnknownLogStream, UnknownTopic

LSID = Annotated[Identifier, Parameter(metavar="LSID")]


async def add_stream(
    *,
    node: Annotated[tuple[Identifier, ...], Parameter(negative=(), show_default=False, metavar="SNID")] = (),
    at: Topic = USUAL_TOPIC,
) -> None:
    """Add a log stream.

    Parameters
    ----------
    node
        A node for one of its replicas; given once for each replica, or not at all.
    """
    async with at.admin() as admin:
        stream = await admin.add_stream(at.topic_name(), nodes=node, timeout=at.patience)
    at.output.record({"log_stream": stream.lsid, "topic": at.topic_name()})
    nodes = ", ".join(map(str, stream.replicas))
    at.output.line(f"added log stream {stream.lsid} to topic {at.topic_name()!r}, on nodes {nodes}")


async def list_stream(*, at: Topic = USUAL_TOPIC) -> None:
    """List log streams."""
    async with at.admin() as admin:
        metadata = await metadata_of(at, admin)
    if at.topic is not None and at.topic not in {topic.name for topic in metadata.topics}:
        raise UnknownTopic(f"there is no topic {at.topic!r}")
    found = [records.stream_record(stream, metadata) for stream in metadata.streams]
    found = [record for record in found if at.topic in {None, record.topic}]
    for record in found:
        at.output.record(record)
    at.output.table(records.STREAM_COLUMNS, map(records.stream_row, found))


async def describe_stream(lsid: LSID, /, *, at: Cluster = USUAL_CLUSTER) -> None:
    """Describe a log stream.

    Parameters
    ----------
    lsid
        Its id.
    """
    seen = await look(at)
    stream = next((stream for stream in seen.metadata.streams if stream.lsid == lsid), None)
    if stream is None:
        raise UnknownLogStream(f"there is no log stream {lsid}")
    record = records.stream_record(stream, seen.metadata)
    replicas = records.replicas_of(stream, seen.infos)
    output = at.output
    output.record({**msgspec.structs.asdict(record), "replica_states": replicas})
    output.table(records.STREAM_COLUMNS, [records.stream_row(record)])
    output.line()
    columns = (Column("node", right=True), *records.REPLICA_COLUMNS)
    output.table(columns, [(replica.node, *records.replica_row(replica)) for replica in replicas])


async def remove_stream(lsid: LSID, /, *, at: Cluster = USUAL_CLUSTER) -> None:
    """Remove a log stream.

    Parameters
    ----------
    lsid
        Its id.
    """
    async with at.admin() as admin:
        await admin.remove_stream(lsid, timeout=at.patience)
    at.output.record({"log_stream": lsid, "removed": True})
    at.output.line(f"removed log stream {lsid}")
