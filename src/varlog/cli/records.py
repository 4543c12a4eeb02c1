"""A cluster's nodes, topics, log streams and replicas as commands show them: as JSON objects, and as rows of tables.

The names of the fields are part of the interface: scripts read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from varlog.cli.output import Column, size_of
from varlog.core.messages import Info, Metadata, ReplicaInfo, StreamInfo, TopicInfo
from varlog.errors import VarlogError
from varlog.types import StreamStatus

Infos = Mapping[int, Info]
"""What nodes say of themselves, by id."""
NO_INFOS: Final[Infos] = MappingProxyType({})


class TopicRecord(msgspec.Struct):
    id: int
    name: str
    first: int
    """The first position that is not trimmed."""
    high_watermark: int
    """The last position that is written."""
    log_streams: int
    replication_factor: int
    min_replicas: int
    archive: str = ""
    """Where what was trimmed can be read; empty if nowhere."""
    ordering: str = "commit"
    epoch: int = 0
    """Of the projection, if a sequencer orders it; 0 before there is one."""
    sequencer: str = ""
    """The address of that sequencer,"""
    start: int = 0
    """the first position that it gave out in this epoch,"""
    block: int = 0
    """and how many consecutive positions lie in one log stream."""


TOPIC_COLUMNS: Final = (
    Column("topic"),
    Column("ordering"),
    Column("first", right=True),
    Column("high watermark", right=True),
    Column("log streams", right=True),
    Column("replicas", right=True),
    Column("at least", right=True),
)


def topic_record(topic: TopicInfo, metadata: Metadata, infos: Infos = NO_INFOS) -> TopicRecord:
    """How far a topic is that a sequencer orders, only its storage nodes know."""
    ends = [chain_end(stream, infos) for stream in metadata.streams if stream.tpid == topic.tpid]
    projection = topic.projection
    return TopicRecord(
        id=topic.tpid,
        name=topic.name,
        first=topic.trim + 1,
        high_watermark=max(topic.hwm, *(end - 1 for end in ends), 0),
        log_streams=sum(stream.tpid == topic.tpid for stream in metadata.streams),
        replication_factor=topic.replication_factor,
        min_replicas=topic.min_replicas,
        archive=topic.archive,
        ordering=topic.ordering.label,
        epoch=projection.epoch if projection is not None else 0,
        sequencer=projection.sequencer if projection is not None else "",
        start=projection.start if projection is not None else 0,
        block=topic.block,
    )


def chain_end(stream: StreamInfo, infos: Infos) -> int:
    """Where a chain ends, as its tail says, or the last of its members that answers; 0 of what is no chain."""
    if stream.status is StreamStatus.CHAINED:
        for snid in reversed(stream.replicas):
            for replica in infos[snid].replicas if snid in infos else ():
                if replica.lsid == stream.lsid:
                    return replica.committed_end
    return 0


def archive_sentence(topic: TopicRecord) -> str:
    """Where what was trimmed of it is; nothing if it is nowhere."""
    return f"topic {topic.name}: what was trimmed is read from the archive at {topic.archive}" if topic.archive else ""


def ordering_sentence(topic: TopicRecord) -> str:
    """Who orders it, of a topic that a sequencer orders."""
    if topic.ordering == "commit":
        return ""
    if not topic.epoch:
        return f"topic {topic.name}: a sequencer is to order it, and there is no projection yet"
    return f"topic {topic.name}: sequencer at {topic.sequencer}, epoch {topic.epoch}, from position {topic.start} on"


def topic_row(topic: TopicRecord) -> tuple[object, ...]:
    return (
        topic.name,
        topic.ordering,
        topic.first,
        topic.high_watermark,
        topic.log_streams,
        topic.replication_factor,
        topic.min_replicas,
    )


class StreamRecord(msgspec.Struct):
    id: int
    topic: str
    status: str
    epoch: int
    primary: int
    replicas: tuple[int, ...]
    """Ids of nodes."""
    llsn_end: int
    last_glsn: int
    held: bool
    """An operator keeps it sealed."""
    joining: int
    """The node where it is to have a replica, 0 for none,"""
    leaving: int
    """and the one where it is to have none any more."""
    lost_begin: int
    lost_end: int
    """What it had in [lost_begin, lost_end) was declared lost; 0 if nothing was."""
    head: int
    """Of a chain: the node where it is written first, 0 of what is no chain,"""
    tail: int
    """and the one where it is read."""


STREAM_COLUMNS: Final = (
    Column("log stream", right=True),
    Column("topic"),
    Column("status"),
    Column("epoch", right=True),
    Column("primary", right=True),
    Column("replicas"),
    Column("entries", right=True),
    Column("last GLSN", right=True),
    Column("remarks"),
)


def stream_record(stream: StreamInfo, metadata: Metadata, infos: Infos = NO_INFOS) -> StreamRecord:
    """How far a chain is, only its storage nodes know."""
    end = chain_end(stream, infos)
    is_chain = stream.status is StreamStatus.CHAINED and stream.replicas != ()
    return StreamRecord(
        id=stream.lsid,
        topic=next((topic.name for topic in metadata.topics if topic.tpid == stream.tpid), str(stream.tpid)),
        status=stream.status.name,
        epoch=stream.epoch,
        primary=stream.primary,
        replicas=stream.replicas,
        llsn_end=max(stream.llsn_end, end),
        last_glsn=max(stream.last_glsn, end - 1),
        held=stream.is_held,
        joining=stream.joining,
        leaving=stream.leaving,
        lost_begin=stream.lost_begin,
        lost_end=stream.lost_end,
        head=stream.replicas[0] if is_chain else 0,
        tail=stream.replicas[-1] if is_chain else 0,
    )


def stream_row(stream: StreamRecord) -> tuple[object, ...]:
    return (
        stream.id,
        stream.topic,
        stream.status,
        stream.epoch,
        stream.primary or "-",
        chain_of(stream) if stream.head else ", ".join(map(str, stream.replicas)) or "-",
        "-" if stream.head else stream.llsn_end - 1,
        stream.last_glsn,
        stream_remarks(stream),
    )


def chain_of(stream: StreamRecord) -> str:
    """Its members, from head to tail."""
    return " > ".join(map(str, stream.replicas))


def stream_remarks(stream: StreamRecord) -> str:
    """What an operator wants of it, in a few words."""
    remarks = []
    if stream.lost_end:
        remarks.append(f"GLSN {stream.lost_begin} to {stream.lost_end - 1} lost")
    elif stream.held:
        remarks.append("kept sealed")
    if stream.joining:
        remarks.append(f"node {stream.joining} joins")
    if stream.leaving in stream.replicas:
        remarks.append(f"node {stream.leaving} leaves")
    return ", ".join(remarks)


class ReplicaRecord(msgspec.Struct):
    node: int
    log_stream: int
    answers: bool
    """False: its node did not answer, and nothing below is known."""
    state: str = ""
    epoch: int = 0
    healthy: bool = False
    fault: str = ""
    """The name of the error that made it unhealthy."""
    committed_end: int = 0
    durable_end: int = 0
    behind: int = 0
    """Entries that are committed and that it does not know to be."""
    waiting: int = 0
    """Entries on its disk that have no position yet."""
    in_set: bool = True
    """False of one that appends do not wait for: it was taken out, or is about to join."""
    needs_sync: bool = False
    """It lacks what only a copy from another replica can bring."""
    source: int = 0
    """The node it copies from at present, 0 for none,"""
    source_end: int = 0
    """and how far that one is."""
    volume: str = ""
    batches: int = 0
    entries: int = 0
    bytes: int = 0
    commits: int = 0
    refused: int = 0
    scans: int = 0
    syncs: int = 0


REPLICA_COLUMNS: Final = (
    Column("state"),
    Column("health"),
    Column("epoch", right=True),
    Column("committed", right=True),
    Column("behind", right=True),
    Column("waiting", right=True),
    Column("written", right=True),
    Column("copying"),
    Column("volume"),
)
"""Of a replica; the column before them says which one it is."""


def replica_record(stream: StreamInfo | None, node: int, replica: ReplicaInfo) -> ReplicaRecord:
    stats = replica.stats
    return ReplicaRecord(
        node=node,
        log_stream=replica.lsid,
        answers=True,
        state=replica.state.name,
        epoch=replica.epoch,
        healthy=replica.healthy,
        fault=fault_of(replica),
        committed_end=replica.committed_end,
        durable_end=replica.durable_end,
        behind=max(0, stream.llsn_end - replica.committed_end) if stream is not None else 0,
        waiting=max(0, replica.durable_end - replica.committed_end),
        in_set=stream is None or node in stream.replicas,
        needs_sync=replica.needs_sync,
        source=replica.source,
        source_end=replica.source_end,
        volume=replica.volume,
        batches=stats.batches,
        entries=stats.entries,
        bytes=stats.bytes,
        commits=stats.commits,
        refused=stats.refused,
        scans=stats.scans,
        syncs=stats.syncs,
    )


def replica_row(replica: ReplicaRecord) -> tuple[object, ...]:
    if not replica.answers:
        return ("", "does not answer", "", "", "", "", "", "", "")
    return (
        replica.state if replica.in_set else f"{replica.state}, outside",
        "ok" if replica.healthy else replica.fault or "in need of repair",
        replica.epoch,
        replica.committed_end - 1,
        replica.behind,
        replica.waiting,
        size_of(replica.bytes),
        f"{percent_of(replica)} % from {replica.source}" if replica.source else "",
        replica.volume,
    )


def percent_of(replica: ReplicaRecord) -> int:
    """How much it has of what it copies."""
    wanted = replica.source_end - 1
    return min(100, 100 * (replica.committed_end - 1) // wanted) if wanted > 0 else 100


def fault_of(replica: ReplicaInfo) -> str:
    """The name of the error that made a replica unhealthy."""
    if replica.healthy or not replica.fault:
        return ""
    known = VarlogError.registry.get(replica.fault)
    return known.__name__ if known is not None else f"error {replica.fault}"


def replicas_of(stream: StreamInfo, infos: Infos) -> list[ReplicaRecord]:
    """Every replica of a log stream's set, in its order; `infos` holds the nodes that answered."""
    records = []
    for snid in stream.replicas:
        found = [replica for replica in infos[snid].replicas if replica.lsid == stream.lsid] if snid in infos else []
        if found:
            records.append(replica_record(stream, snid, found[0]))
        else:
            records.append(ReplicaRecord(node=snid, log_stream=stream.lsid, answers=False))
    return records


def outsiders_of(stream: StreamInfo, infos: Infos) -> list[ReplicaRecord]:
    """The replicas of a log stream that are not in its set: they were taken out of it, or are about to join."""
    return [
        replica_record(stream, snid, replica)
        for snid, info in sorted(infos.items())
        for replica in info.replicas
        if replica.lsid == stream.lsid and snid not in stream.replicas
    ]
