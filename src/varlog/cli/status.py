"""`varlog status`: how the cluster is, on one screen.

What the manager has to do is worked out here as the manager does it, from the same world with the same function
(`varlog.core.manager.reconcile`), so both say the same sentences.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final

import msgspec

from varlog.cli import records
from varlog.cli.looking import Seen, look
from varlog.cli.options import USUAL_CLUSTER, Cluster
from varlog.cli.output import Column, Output, size_of
from varlog.cli.records import ReplicaRecord, StreamRecord, TopicRecord
from varlog.core.manager import reconcile
from varlog.core.messages import NodeInfo, StreamInfo
from varlog.core.world import Memory, World
from varlog.types import StorageNodeID, StreamStatus

_STREAM_COLUMNS: Final = (
    Column("log stream", right=True),
    Column("topic"),
    Column("status"),
    Column("primary", right=True),
    Column("replicas"),
    Column("last GLSN", right=True),
    Column("behind", right=True),
    Column("waiting", right=True),
)
"""What fits on a terminal of 80 columns; `varlog stream list` tells more."""


class NodeState(msgspec.Struct):
    id: int
    address: str
    answers: bool
    error: str
    """Why it does not answer."""
    replicas: int
    free_bytes: int
    total_bytes: int


class StreamState(StreamRecord):
    behind: int
    """Committed entries that the slowest replica that answers does not know to be."""
    waiting: int
    """Entries on the disk of a replica that have no position yet."""


class ClusterState(msgspec.Struct):
    healthy: bool
    version: int
    manager: str
    manager_answers: bool
    problems: list[str]
    doing: list[str]
    nodes: list[NodeState]
    topics: list[TopicRecord]
    streams: list[StreamState]


async def status(*, at: Cluster = USUAL_CLUSTER) -> None:
    """Show how the cluster is."""
    state = _state_of(await look(at))
    at.output.record(state)
    if not at.json:
        _show(at.output, state)


def _state_of(seen: Seen) -> ClusterState:
    metadata = seen.metadata
    infos = {StorageNodeID(snid): info for snid, info in seen.infos.items()}
    problems = list(_problems(seen))
    return ClusterState(
        healthy=not problems,
        version=metadata.version,
        manager=metadata.manager,
        manager_answers=not seen.manager_error,
        problems=problems,
        doing=[step.sentence for step in reconcile(World.of(metadata, infos), Memory(), count(1).__next__)],
        nodes=[_node_state(node, seen) for node in metadata.nodes],
        topics=[records.topic_record(topic, metadata) for topic in metadata.topics],
        streams=[_stream_state(stream, seen) for stream in metadata.streams],
    )


def _node_state(node: NodeInfo, seen: Seen) -> NodeState:
    info = seen.infos.get(node.snid)
    volumes = info.volumes if info is not None else ()
    return NodeState(
        id=node.snid,
        address=node.address,
        answers=info is not None,
        error=seen.silent.get(node.snid, ""),
        replicas=sum(node.snid in stream.replicas for stream in seen.metadata.streams),
        free_bytes=sum(volume.free_bytes for volume in volumes),
        total_bytes=sum(volume.total_bytes for volume in volumes),
    )


def _stream_state(stream: StreamInfo, seen: Seen) -> StreamState:
    replicas = records.replicas_of(stream, seen.infos)
    return StreamState(
        **msgspec.structs.asdict(records.stream_record(stream, seen.metadata)),
        behind=max((replica.behind for replica in replicas), default=0),
        waiting=max((replica.waiting for replica in replicas), default=0),
    )


def _problems(seen: Seen) -> Iterator[str]:
    """What is not as it should be, in sentences."""
    if seen.manager_error:
        yield f"the manager cannot be reached ({seen.manager_error}): nothing can be added, and nothing is brought back"
    for snid, why in seen.silent.items():
        yield f"storage node {snid} does not answer: {why}"
    for stream in seen.metadata.streams:
        if stream.status is not StreamStatus.RUNNING:
            yield f"log stream {stream.lsid} is {stream.status.name}: it takes no appends"
        for replica in records.replicas_of(stream, seen.infos):
            yield from _replica_problems(replica, answers=replica.node in seen.infos)
    with_streams = {stream.tpid for stream in seen.metadata.streams}
    for topic in seen.metadata.topics:
        if topic.tpid not in with_streams:
            yield f"topic {topic.name!r} has no log stream: varlog stream add --topic {topic.name}"


def _replica_problems(replica: ReplicaRecord, *, answers: bool) -> Iterator[str]:
    where = f"log stream {replica.log_stream}: its replica on node {replica.node}"
    if not answers:
        yield f"log stream {replica.log_stream} takes no appends while node {replica.node} is away"
    elif not replica.answers:
        yield f"{where} is missing"
    elif not replica.healthy:
        yield f"{where} needs repair ({replica.fault or 'see the log of the node'})"


def _show(output: Output, state: ClusterState) -> None:
    verdict = "all is well" if state.healthy else "not all is well"
    output.line(f"{verdict}; metadata version {state.version}, manager at {state.manager or 'no address'}")
    for problem in state.problems:
        output.line(f"  ! {problem}")
    output.line()
    output.table(
        (Column("node", right=True), "address", "state", Column("replicas", right=True), Column("free", right=True)),
        [
            (
                node.id,
                node.address or "-",
                "ok" if node.answers else "does not answer",
                node.replicas,
                f"{size_of(node.free_bytes)} of {size_of(node.total_bytes)}" if node.answers else "",
            )
            for node in state.nodes
        ],
    )
    output.line()
    output.table(records.TOPIC_COLUMNS, map(records.topic_row, state.topics))
    output.line()
    output.table(
        _STREAM_COLUMNS,
        [
            (
                stream.id,
                stream.topic,
                stream.status,
                stream.primary or "-",
                ", ".join(map(str, stream.replicas)) or "-",
                stream.last_glsn,
                stream.behind,
                stream.waiting,
            )
            for stream in state.streams
        ],
    )
    output.line()
    away = ", ".join(str(node.id) for node in state.nodes if not node.answers)
    if not state.doing:
        output.line(f"the manager waits for nodes: {away}" if away else "the manager has nothing to do")
    for sentence in state.doing:
        output.line(f"the manager: {sentence}")
