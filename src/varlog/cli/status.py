"""`varlog status`: how the cluster is, on one screen; with `--watch` as it changes (`varlog.cli.watching`)."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from varlog.cli import records
from varlog.cli.examining import Examination, examine
from varlog.cli.looking import Seen
from varlog.cli.options import USUAL_CLUSTER, Cluster
from varlog.cli.output import Column, Output, duration_of, size_of
from varlog.cli.records import StreamRecord, TopicRecord
from varlog.core.messages import Finding, Metadata, NodeInfo, Standing, StreamInfo
from varlog.core.world import Memory
from varlog.errors import InvalidArgument

EVERY_SECONDS: Final = 1.0
LONGEST_SILENCE: Final = 1e9
"""Said of a leader that is gone: JSON has no infinity."""

_STREAM_COLUMNS: Final = (
    Column("stream", right=True),
    Column("topic"),
    Column("status"),
    Column("epoch", right=True),
    Column("replicas"),
    Column("of", right=True),
    Column("last GLSN", right=True),
    Column("behind", right=True),
    Column("waiting", right=True),
)
"""What fits on a terminal of 80 columns; `varlog stream list` tells more."""

_NODE_COLUMNS: Final = (
    Column("node", right=True),
    Column("address"),
    Column("state"),
    Column("replicas", right=True),
    Column("free", right=True),
)


_REPOSITORY_COLUMNS: Final = (
    Column("metadata repository"),
    Column("role"),
    Column("term", right=True),
    Column("hears", right=True),
    Column("lag", right=True),
    Column("store answers in", right=True),
)


class RepositoryState(msgspec.Struct):
    address: str
    role: str
    """leading, following, campaigning or loading; empty if it does not answer."""
    error: str
    """Why it does not answer."""
    term: int = 0
    leader: str = ""
    leader_silent: float = 0.0
    """For how many seconds, at most, it had not heard of the leader in the store."""
    lag: float = 0.0
    """Seconds that the decision being written has been waiting for the store."""
    nodes: int = 0
    """How many storage nodes it hears."""
    store: dict[str, Any] = {}
    """Its name, and for an etcd how it is reached: as `varlog.core.messages.StoreInfo` has it."""


class NodeState(msgspec.Struct):
    id: int
    address: str
    state: str
    """ok, draining, has lost its disks, or does not answer."""
    answers: bool
    error: str
    """Why it does not answer."""
    silent: float
    """Seconds since it last answered the manager, as far as is known."""
    replicas: int
    free_bytes: int
    total_bytes: int


class CopyState(msgspec.Struct):
    """A replica that copies what it lacks from another one."""

    node: int
    source: int
    copied: int
    """Entries it has,"""
    of: int
    """of so many."""


class SequencerState(msgspec.Struct):
    address: str
    topics: list[str]
    """Those it orders."""


class StreamState(StreamRecord):
    wanted: int
    """How many replicas it should have."""
    behind: int
    """Committed entries that the slowest replica that answers does not know to be."""
    waiting: int
    """Entries on the disk of a replica that have no position yet."""
    copies: list[CopyState]


class ClusterState(msgspec.Struct):
    healthy: bool
    version: int
    manager: str
    manager_answers: bool
    problems: list[str]
    notes: list[str]
    doing: list[str]
    nodes: list[NodeState]
    topics: list[TopicRecord]
    streams: list[StreamState]
    leader: str = ""
    """The metadata repository that leads."""
    term: int = 0
    repositories: list[RepositoryState] = []
    sequencers: list[SequencerState] = []


async def status(
    *,
    watch: Annotated[bool | float, Parameter(negative=(), show_default=False, metavar="[SECONDS]")] = False,
    at: Cluster = USUAL_CLUSTER,
) -> None:
    """Show how the cluster is.

    Parameters
    ----------
    watch
        Look again and again, every so many seconds, 1 if it does not say; until Ctrl-C.
    """
    if watch is not False:
        from varlog.cli.watching import watch_status  # noqa: PLC0415

        seconds = EVERY_SECONDS if watch is True else watch
        if not 0 < seconds <= 3600:
            raise InvalidArgument(f"--watch {seconds:g}: give a number of seconds above 0")
        await watch_status(at, seconds)
        return
    async with at.admin() as admin:
        state = state_of(await examine(at, admin, Memory()))
    at.output.record(state)
    if not at.json:
        show(at.output, state)


def state_of(examination: Examination) -> ClusterState:
    seen = examination.seen
    metadata = seen.metadata
    repositories = [_repository_state(address, found) for address, found in seen.repositories.items()]
    return ClusterState(
        healthy=not examination.problems,
        version=metadata.version,
        manager=metadata.manager,
        manager_answers=not seen.manager_error,
        leader=next((it.address for it in repositories if it.role == "leading"), ""),
        term=max((it.term for it in repositories), default=0),
        repositories=repositories,
        problems=[_sentence(found) for found in examination.problems],
        notes=[_sentence(found) for found in examination.notes],
        doing=list(examination.doing),
        nodes=[_node_state(node, examination) for node in metadata.nodes],
        topics=[records.topic_record(topic, metadata, seen.infos) for topic in metadata.topics],
        streams=[_stream_state(stream, seen) for stream in metadata.streams],
        sequencers=[_sequencer_state(info.address, metadata) for info in metadata.sequencers],
    )


def _sentence(found: Finding) -> str:
    return f"{found.subject}: {found.what}"


def _repository_state(address: str, found: Standing | str) -> RepositoryState:
    if isinstance(found, str):
        return RepositoryState(address, "", found)
    return RepositoryState(
        address,
        found.role,
        "",
        found.term,
        found.leader,
        min(found.silence, LONGEST_SILENCE),
        found.lag,
        found.nodes,
        msgspec.structs.asdict(found.store),
    )


def _node_state(node: NodeInfo, examination: Examination) -> NodeState:
    seen = examination.seen
    info = seen.infos.get(node.snid)
    volumes = info.volumes if info is not None else ()
    kinds = {found.kind: found for found in examination.findings if found.subject == f"node {node.snid}"}
    state = "draining" if node.is_draining else "ok"
    if info is None:
        state = "does not answer"
    elif "node-unidentified" in kinds:
        state = "has lost its disks"
    return NodeState(
        id=node.snid,
        address=node.address,
        state=state,
        answers=info is not None,
        error=seen.silent.get(node.snid, ""),
        silent=kinds["node-silent"].seconds if "node-silent" in kinds else 0.0,
        replicas=sum(node.snid in stream.replicas for stream in seen.metadata.streams),
        free_bytes=sum(volume.free_bytes for volume in volumes),
        total_bytes=sum(volume.total_bytes for volume in volumes),
    )


def _sequencer_state(address: str, metadata: Metadata) -> SequencerState:
    orders = {topic.name: topic.projection.sequencer for topic in metadata.topics if topic.projection is not None}
    return SequencerState(address, [name for name, sequencer in orders.items() if sequencer == address])


def _stream_state(stream: StreamInfo, seen: Seen) -> StreamState:
    replicas = records.replicas_of(stream, seen.infos)
    topic = next((topic for topic in seen.metadata.topics if topic.tpid == stream.tpid), None)
    copies = [
        CopyState(snid, replica.source, replica.committed_end - 1, max(replica.source_end, stream.llsn_end) - 1)
        for snid, info in seen.infos.items()
        for replica in info.replicas
        if replica.lsid == stream.lsid and replica.source
    ]
    return StreamState(
        **msgspec.structs.asdict(records.stream_record(stream, seen.metadata, seen.infos)),
        wanted=topic.replication_factor if topic is not None else len(stream.replicas),
        behind=max((replica.behind for replica in replicas), default=0),
        waiting=max((replica.waiting for replica in replicas), default=0),
        copies=copies,
    )


# For people


def show(output: Output, state: ClusterState) -> None:
    output.line(headline(state))
    for problem in state.problems:
        output.line(f"  ! {problem}")
    for note in state.notes:
        output.line(f"  - {note}")
    output.line()
    if len(state.repositories) > 1:
        output.table(_REPOSITORY_COLUMNS, map(repository_row, state.repositories))
        output.line()
    output.table(_NODE_COLUMNS, map(node_row, state.nodes))
    output.line()
    output.table(records.TOPIC_COLUMNS, map(records.topic_row, state.topics))
    for topic in state.topics:
        for sentence in filter(None, (records.ordering_sentence(topic), records.archive_sentence(topic))):
            output.line(sentence)
    output.line()
    output.table(_STREAM_COLUMNS, map(stream_row, state.streams))
    for stream in state.streams:
        for copy in stream.copies:
            output.line(f"log stream {stream.id}: {copy_sentence(copy)}")
    output.line()
    for sentence in doing_of(state):
        output.line(sentence)


def headline(state: ClusterState) -> str:
    verdict = "all is well" if state.healthy else "not all is well"
    return f"{verdict}; metadata version {state.version}, manager at {state.manager or 'no address'}"


def doing_of(state: ClusterState) -> list[str]:
    """What the manager is about."""
    if not state.manager_answers:
        return ["the manager does not answer: varlog doctor"]
    return [f"the manager: {sentence}" for sentence in state.doing] or ["the manager has nothing to do"]


def repository_row(repository: RepositoryState) -> tuple[object, ...]:
    if not repository.role:
        return repository.address, "does not answer", "", "", "", ""
    answers = f"{repository.store['round_trip'] * 1000:.1f} ms"
    lag = f"{repository.lag:.1f} s"
    return repository.address, repository.role, repository.term, repository.nodes, lag, answers


def node_row(node: NodeState) -> tuple[object, ...]:
    since = f" ({duration_of(node.silent)})" if node.silent and not node.answers else ""
    free = f"{size_of(node.free_bytes)} of {size_of(node.total_bytes)}" if node.answers else ""
    return node.id, node.address or "-", node.state + since, node.replicas, free


def stream_row(stream: StreamState) -> tuple[object, ...]:
    replicas = ", ".join(f"{snid}*" if snid == stream.primary else str(snid) for snid in stream.replicas)
    if stream.head:
        replicas = records.chain_of(stream)
    return (
        stream.id,
        stream.topic,
        stream.status,
        stream.epoch,
        replicas or "-",
        stream.wanted,
        stream.last_glsn,
        stream.behind,
        stream.waiting,
    )


def copy_sentence(copy: CopyState) -> str:
    return f"node {copy.node} copies from node {copy.source}: {copy.copied} of {copy.of} entries ({percent(copy)} %)"


def percent(copy: CopyState) -> int:
    return min(100, 100 * copy.copied // copy.of) if copy.of > 0 else 100
