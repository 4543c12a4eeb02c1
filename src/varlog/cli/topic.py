"""`varlog topic`: make, list, describe and remove topics, and say where their archives are."""

from __future__ import annotations

from shlex import quote
from typing import Annotated

import msgspec
from cyclopts import Parameter

from varlog.cli import records
from varlog.cli.failures import Exit
from varlog.cli.looking import metadata_of
from varlog.cli.options import USUAL_CLUSTER, Cluster, Positive, Yes
from varlog.cli.output import confirmed
from varlog.core.messages import Metadata, TopicInfo
from varlog.errors import UnknownTopic

Name = Annotated[str, Parameter(metavar="NAME")]


async def add_topic(
    name: Name,
    /,
    *,
    streams: Positive = 1,
    replicas: Positive | None = None,
    min_replicas: Positive | None = None,
    first: Positive = 1,
    at: Cluster = USUAL_CLUSTER,
) -> None:
    """Make a topic.

    Parameters
    ----------
    name
        What it is called.
    streams
        How many log streams it has.
    replicas
        How many copies there are of every entry; 3 if not given, or as many as there are nodes if these are fewer.
    min_replicas
        With how many of them it may go on while others are away; 2 if not given, or 1 if there is just one.
    first
        The position at which its log begins; what comes before counts as trimmed.
    """
    async with at.admin() as admin:
        topic = await admin.add_topic(
            name,
            replication_factor=replicas or 0,
            min_replicas=min_replicas or 0,
            streams=streams,
            first=first,
            timeout=at.patience,
        )
    at.output.record({"topic": topic.name, "id": topic.tpid})
    at.output.line(
        f"made topic {topic.name!r}: log streams {streams}, replicas of each {topic.replication_factor}; "
        f"append with: varlog append --topic {quote(topic.name)} ..."
    )


async def list_topic(*, at: Cluster = USUAL_CLUSTER) -> None:
    """List topics."""
    async with at.admin() as admin:
        metadata = await metadata_of(at, admin)
    found = [records.topic_record(topic, metadata) for topic in metadata.topics]
    for record in found:
        at.output.record(record)
    at.output.table(records.TOPIC_COLUMNS, map(records.topic_row, found))


async def describe_topic(name: Name, /, *, at: Cluster = USUAL_CLUSTER) -> None:
    """Describe a topic.

    Parameters
    ----------
    name
        Which one.
    """
    async with at.admin() as admin:
        metadata = await metadata_of(at, admin)
    topic = records.topic_record(_find(metadata, name), metadata)
    streams = [records.stream_record(stream, metadata) for stream in metadata.streams if stream.tpid == topic.id]
    output = at.output
    output.record({**msgspec.structs.asdict(topic), "streams": streams})
    output.table(records.TOPIC_COLUMNS, [records.topic_row(topic)])
    if topic.archive:
        output.line(records.archive_sentence(topic))
    output.line()
    output.table(records.STREAM_COLUMNS, map(records.stream_row, streams))


async def attach_archive_topic(
    name: Name, uri: Annotated[str, Parameter(metavar="URI")], /, *, at: Cluster = USUAL_CLUSTER
) -> None:
    """Let reads go on in an archive where the topic was trimmed.

    Parameters
    ----------
    name
        Which one.
    uri
        Where the archive is: a path or a URI.
    """
    async with at.admin() as admin:
        topic = await admin.attach_archive(name, uri, timeout=at.patience)
    at.output.record({"topic": topic.name, "archive": topic.archive})
    at.output.line(f"what was trimmed of topic {topic.name!r} is read from {topic.archive} from now on")


async def detach_archive_topic(name: Name, /, *, at: Cluster = USUAL_CLUSTER) -> None:
    """Do without the archive of a topic.

    Parameters
    ----------
    name
        Which one.
    """
    async with at.admin() as admin:
        topic = await admin.detach_archive(name, timeout=at.patience)
    at.output.record({"topic": topic.name, "archive": topic.archive})
    at.output.line(f"what was trimmed of topic {topic.name!r} cannot be read any more; its archive is left as it is")


async def remove_topic(name: Name, /, *, yes: Yes = False, at: Cluster = USUAL_CLUSTER) -> Exit:
    """Remove a topic.

    Parameters
    ----------
    name
        Which one.
    """
    async with at.admin() as admin:
        topic = _find(await metadata_of(at, admin), name)
        entries = topic.hwm - topic.trim
        if not yes and not confirmed(f"Delete topic {name!r} with {entries:,} entries, for good?"):
            return Exit.FAILED
        await admin.remove_topic(name, timeout=at.patience)
    at.output.record({"topic": name, "removed": True})
    at.output.line(f"removed topic {name!r}")
    return Exit.OK


def _find(metadata: Metadata, name: str) -> TopicInfo:
    for topic in metadata.topics:
        if topic.name == name:
            return topic
    raise UnknownTopic(f"there is no topic {name!r}")
