"""`varlog topic`: make, list, describe and remove topics, and say where their archives are."""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import Parameter

from varlog.cli import records
from varlog.cli.failures import Exit
from varlog.cli.looking import metadata_of, see
from varlog.cli.options import USUAL_CLUSTER, Cluster, Positive, Text, Yes
from varlog.cli.output import confirmed
from varlog.core.messages import Metadata, TopicInfo
from varlog.errors import UnknownTopic
from varlog.types import Ordering

if TYPE_CHECKING:
    from varlog import Admin

Name = Annotated[Text, Parameter(metavar="NAME")]


async def add_topic(
    name: Name,
    /,
    *,
    streams: Positive = 1,
    replicas: Positive | None = None,
    min_replicas: Positive | None = None,
    first: Positive = 1,
    ordering: Literal["commit", "sequencer"] = "commit",
    block: Positive | None = None,
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
        With how many of them it may go on while others are away; 2 if not given, or 1 if there is just one or a
        sequencer orders it.
    first
        The position at which its log begins; what comes before counts as trimmed.
    ordering
        Who says where its entries stand: the metadata repository as it commits them, or a sequencer before they are
        written.
    block
        With a sequencer: how many consecutive positions lie in one log stream before the next one's turn comes; 4096
        if not given.
    """
    async with at.admin() as admin:
        topic = await admin.add_topic(
            name,
            replication_factor=replicas or 0,
            min_replicas=min_replicas or 0,
            streams=streams,
            first=first,
            ordering=ordering,
            block=block or 0,
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
        infos = await _infos(at, admin, metadata.topics)
    found = [records.topic_record(topic, metadata, infos) for topic in metadata.topics]
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
        found = _find(metadata, name)
        infos = await _infos(at, admin, [found])
    topic = records.topic_record(found, metadata, infos)
    mine = [stream for stream in metadata.streams if stream.tpid == topic.id]
    streams = [records.stream_record(stream, metadata, infos) for stream in mine]
    output = at.output
    output.record({**msgspec.structs.asdict(topic), "streams": streams})
    output.table(records.TOPIC_COLUMNS, [records.topic_row(topic)])
    for sentence in filter(None, (records.ordering_sentence(topic), records.archive_sentence(topic))):
        output.line(sentence)
    if topic.block:
        output.line(f"its positions lie in one log stream after the other, {topic.block} at a time")
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
        metadata = await metadata_of(at, admin)
        topic = _find(metadata, name)
        known = records.topic_record(topic, metadata, await _infos(at, admin, [topic]))
        entries = known.high_watermark - topic.trim
        if not yes and not await confirmed(f"Delete topic {name!r} with {entries:,} entries, for good?"):
            return Exit.FAILED
        await admin.remove_topic(name, timeout=at.patience)
    at.output.record({"topic": name, "removed": True})
    at.output.line(f"removed topic {name!r}")
    return Exit.OK


async def _infos(at: Cluster, admin: Admin, topics: Iterable[TopicInfo]) -> records.Infos:
    """What nodes say of themselves, if how far one of the topics is can only be known from them."""
    if any(topic.ordering is Ordering.SEQUENCER for topic in topics):
        return (await see(at, admin)).infos
    return records.NO_INFOS


def _find(metadata: Metadata, name: str) -> TopicInfo:
    for topic in metadata.topics:
        if topic.name == name:
            return topic
    raise UnknownTopic(f"there is no topic {name!r}")
