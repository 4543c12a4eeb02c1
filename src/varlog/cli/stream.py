"""`varlog stream`: make, list, describe, seal, move, synchronise and remove log streams."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import msgspec
from cyclopts import Parameter

from varlog.cli import records
from varlog.cli.failures import Exit
from varlog.cli.following import NoWait, Patience, bar, follow
from varlog.cli.looking import Seen, look, metadata_of, see
from varlog.cli.options import USUAL_CLUSTER, USUAL_TOPIC, Cluster, Flag, Identifier, Topic, Yes, check_text
from varlog.cli.output import Column, confirmed
from varlog.core.messages import StreamInfo
from varlog.errors import InvalidArgument, UnknownLogStream, UnknownTopic, VarlogError
from varlog.types import StreamStatus

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
    nodes = _listed(stream.replicas)
    at.output.line(f"added log stream {stream.lsid} to topic {at.topic_name()!r}, on nodes {nodes}")


async def list_stream(
    *,
    topic: Annotated[str | None, Parameter(metavar="NAME", validator=check_text)] = None,
    at: Cluster = USUAL_CLUSTER,
) -> None:
    """List log streams.

    Parameters
    ----------
    topic
        Those of this topic; without it all.
    """
    async with at.admin() as admin:
        metadata, infos = await metadata_of(at, admin), records.NO_INFOS
        if any(stream.status is StreamStatus.CHAINED for stream in metadata.streams):
            infos = (await see(at, admin)).infos
    if topic is not None and topic not in {known.name for known in metadata.topics}:
        raise UnknownTopic(f"there is no topic {topic!r}")
    found = [records.stream_record(stream, metadata, infos) for stream in metadata.streams]
    found = [record for record in found if topic in {None, record.topic}]
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
    record = records.stream_record(stream, seen.metadata, seen.infos)
    replicas = [*records.replicas_of(stream, seen.infos), *records.outsiders_of(stream, seen.infos)]
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


async def seal_stream(lsid: LSID, /, *, at: Cluster = USUAL_CLUSTER) -> None:
    """Seal a log stream.

    Parameters
    ----------
    lsid
        Its id.
    """
    async with at.admin() as admin:
        stream = await admin.seal_stream(lsid, timeout=at.patience)
    at.output.record(_sealing_record(stream))
    at.output.line(f"log stream {lsid} is sealed at GLSN {stream.last_glsn} and stays so; see varlog stream unseal")


async def unseal_stream(lsid: LSID, /, *, at: Cluster = USUAL_CLUSTER) -> None:
    """Unseal a log stream.

    Parameters
    ----------
    lsid
        Its id.
    """
    async with at.admin() as admin:
        stream = await admin.unseal_stream(lsid, timeout=at.patience)
    at.output.record(_sealing_record(stream))
    at.output.line(f"log stream {lsid} runs on nodes {_listed(stream.replicas)}")


async def sync_stream(
    lsid: LSID,
    /,
    *,
    to: Annotated[Identifier, Parameter(metavar="SNID")],
    from_: Annotated[Identifier | None, Parameter(name="--from", metavar="SNID")] = None,
    no_wait: NoWait = False,
    at: Cluster = USUAL_CLUSTER,
) -> None:
    """Synchronise a replica.

    Parameters
    ----------
    lsid
        The log stream's id.
    to
        The node whose replica copies what it lacks.
    from_
        The node it copies from; without it the manager chooses.
    """
    patience = Patience(at)
    title = f"log stream {lsid}: copying to node {to}"
    percent = -1
    async with at.admin() as admin:
        with bar(at.output, title) as show:
            while percent < 100:
                try:
                    percent = await admin.sync_stream(lsid, to, source=from_ or 0, timeout=at.patience)
                except VarlogError as error:
                    if percent < 0 or not error.retriable:
                        raise
                if no_wait or percent == 100:
                    break
                show(percent / 100, "")
                await patience.moment(percent, title)
    at.output.record({"log_stream": lsid, "node": to, "percent": percent})
    what = f"the replica of log stream {lsid} on node {to}"
    at.output.line(f"{what} lacks nothing" if percent == 100 else f"{what} has {percent} % of it, and is copying")


async def move_stream(
    lsid: LSID,
    /,
    *,
    to: Annotated[Identifier | None, Parameter(metavar="SNID")] = None,
    from_: Annotated[Identifier | None, Parameter(name="--from", metavar="SNID")] = None,
    cancel: Flag = False,
    no_wait: NoWait = False,
    at: Cluster = USUAL_CLUSTER,
) -> None:
    """Move a replica.

    Parameters
    ----------
    lsid
        The log stream's id.
    to
        The node that is to have a replica.
    from_
        The node that is to have none any more.
    cancel
        Give up a move that is under way.
    """
    if cancel == bool(to or from_):
        raise InvalidArgument("say where the replica goes with --to and --from, or --cancel alone")

    def remaining(seen: Seen) -> list[StreamInfo]:
        streams = [stream for stream in seen.metadata.streams if stream.lsid == lsid]
        return [stream for stream in streams if stream.joining or stream.leaving in stream.replicas]

    async with at.admin() as admin:
        stream = await admin.move_replica(lsid, to=to or 0, away_from=from_ or 0, timeout=at.patience)
        if not no_wait and not cancel:
            seen = await follow(at, admin, f"moving log stream {lsid}", remaining)
            stream = next((stream for stream in seen.metadata.streams if stream.lsid == lsid), stream)
    record = {"log_stream": lsid, "replicas": stream.replicas, "joining": stream.joining, "leaving": stream.leaving}
    at.output.record(record)
    under_way = stream.joining or stream.leaving in stream.replicas
    at.output.line(
        f"log stream {lsid} is on nodes {_listed(stream.replicas)}{', and is being moved' if under_way else ''}"
    )


async def declare_lost_stream(
    lsid: LSID,
    /,
    *,
    gone: Annotated[tuple[Identifier, ...], Parameter(negative=(), show_default=False, metavar="SNID")] = (),
    yes: Yes = False,
    at: Cluster = USUAL_CLUSTER,
) -> Exit:
    """Declare a range lost.

    Parameters
    ----------
    lsid
        The log stream's id.
    gone
        A node that does not answer and never will; given once for each.
    """
    async with at.admin() as admin:
        lost = await admin.declare_lost(lsid, gone=gone, dry_run=True, timeout=at.patience)
        what = f"log stream {lsid}: what it had from GLSN {lost.begin} to {lost.end - 1}"
        if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise InvalidArgument(f"{what} would be lost for good; say --yes if that is meant")
        if not yes and not await confirmed(f"{what} has no copy any more. Declare it lost, for good?"):
            return Exit.FAILED
        lost = await admin.declare_lost(lsid, gone=gone, timeout=at.patience)
    at.output.record({"log_stream": lsid, "lost_begin": lost.begin, "lost_end": lost.end})
    at.output.line(f"{what} is lost; readers get an error there and can go on at {lost.end}")
    return Exit.OK


def _sealing_record(stream: StreamInfo) -> dict[str, object]:
    status = stream.status.name
    return {"log_stream": stream.lsid, "status": status, "held": stream.is_held, "last_glsn": stream.last_glsn}


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))
