"""What the metadata repository may decide: a request and the present state in, an entry or a typed refusal out.

Each function answers one request. It returns the entry to be made, or an `Already` where the state is what the request
asks for, so that a request can be repeated safely after a lost answer. (Those that give out an id give out another
one; a log stream left in CREATING is aborted by whoever finds it.) A refusal changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from varlog import errors, limits
from varlog.core import metastate as m
from varlog.core.messages import (
    AbortStream,
    AnnounceNode,
    CreateStream,
    CreateTopic,
    DeleteTopic,
    Message,
    RegisterManager,
    RegisterNode,
    RegisterStream,
    RunStream,
    SealStream,
    TrimTopic,
    UnregisterNode,
    UnregisterStream,
    UnsealStream,
)
from varlog.core.metastate import AnyEntry, MetadataState, Stream
from varlog.types import FIRST_EPOCH, MAX_ID, Epoch, LogStreamID, StorageNodeID, StreamStatus


class Already(NamedTuple):
    """The state is as asked for; nothing is to be written."""


ALREADY = Already()

Decision = AnyEntry | Already


def decide(state: MetadataState, request: Message) -> Decision:
    """The entry that grants a request, or a typed error."""
    match request:
        case SealStream():
            return seal(state, request)
        case UnsealStream():
            return unseal(state, request)
        case RunStream():
            return run(state, request)
        case TrimTopic():
            return trim(state, request)
        case CreateTopic():
            return create_topic(state, request)
        case DeleteTopic(_, tpid):
            return m.TopicDeleted(tpid) if tpid in state.topics else ALREADY
        case CreateStream():
            return create_stream(state, request)
        case RegisterStream():
            return register_stream(state, request)
        case UnregisterStream():
            return unregister_stream(state, request)
        case AbortStream():
            return abort_stream(state, request)
        case _:
            return _decide_on_member(state, request)


def _decide_on_member(state: MetadataState, request: Message) -> Decision:
    match request:
        case RegisterNode():
            return register_node(state, request)
        case AnnounceNode():
            return announce_node(state, request)
        case UnregisterNode():
            return unregister_node(state, request)
        case RegisterManager(_, address):
            _check_place(address)
            return ALREADY if state.manager == address else m.ManagerRegistered(address)
        case _:
            raise errors.InvalidArgument(f"{type(request).__name__} is nothing to decide on")


def register_node(state: MetadataState, request: RegisterNode) -> Decision:
    """A node is registered once; where it is afterwards, it says itself."""
    if not 1 <= request.snid <= MAX_ID:
        raise errors.InvalidArgument(f"a storage node's id goes from 1 to {MAX_ID}, not {request.snid}")
    _check_place(request.address, request.volumes)
    node = state.nodes.get(request.snid)
    if node is None:
        if len(state.nodes) >= limits.MAX_NODES:
            raise errors.LimitExceeded(f"there are {limits.MAX_NODES} storage nodes already")
        return m.NodeRegistered(request.snid, request.address, request.volumes)
    if node.address != request.address:
        raise errors.AlreadyExists(f"storage node {request.snid} is registered already, at {node.address}")
    return ALREADY


def announce_node(state: MetadataState, request: AnnounceNode) -> Decision:
    node = state.nodes.get(request.snid)
    if node is None:
        raise errors.UnknownNode(f"storage node {request.snid} is not registered; add it with its address")
    _check_place(request.address, request.volumes)
    if (node.address, node.volumes) == (request.address, request.volumes):
        return ALREADY
    return m.NodeRegistered(request.snid, request.address, request.volumes)


def unregister_node(state: MetadataState, request: UnregisterNode) -> Decision:
    """A node goes only when it has nothing that the log is made of."""
    if request.snid not in state.nodes:
        return ALREADY
    hosted = [stream.lsid for stream in state.streams.values() if request.snid in stream.replicas]
    if hosted:
        raise errors.Conflict(f"storage node {request.snid} has replicas of log streams {hosted}")
    return m.NodeUnregistered(request.snid)


def _stream(state: MetadataState, lsid: LogStreamID) -> Stream:
    stream = state.streams.get(lsid)
    if stream is None:
        raise errors.UnknownLogStream(f"there is no log stream {lsid}")
    return stream


def _registered(state: MetadataState, lsid: LogStreamID) -> Stream:
    stream = _stream(state, lsid)
    if stream.epoch < FIRST_EPOCH:
        raise errors.Conflict(f"log stream {lsid} is not registered: it is {stream.status.name}")
    return stream


def seal(state: MetadataState, request: SealStream) -> Decision:
    """Seal a log stream in the epoch the requester saw; one sealed since is fine."""
    stream = _registered(state, request.lsid)
    if stream.status is StreamStatus.SEALED and stream.epoch in (request.epoch, request.epoch + 1):
        return ALREADY
    if stream.epoch != request.epoch:
        raise errors.Conflict(f"log stream {stream.lsid} is in epoch {stream.epoch}, not {request.epoch}")
    return m.StreamSealed(stream.lsid, Epoch(stream.epoch + 1))


def unseal(state: MetadataState, request: UnsealStream) -> Decision:
    """Decide the next epoch's set and primary."""
    stream = _registered(state, request.lsid)
    _check_set(state, request.replicas)
    if request.primary not in request.replicas:
        raise errors.InvalidArgument(f"the primary {request.primary} is not among the replicas {request.replicas}")
    same = (stream.replicas, stream.primary) == (request.replicas, request.primary)
    if stream.epoch == request.epoch + 1 and stream.status is not StreamStatus.SEALED and same:
        return ALREADY
    if stream.status is not StreamStatus.SEALED or stream.epoch != request.epoch:
        raise errors.Conflict(f"log stream {stream.lsid} is {stream.status.name} in epoch {stream.epoch}")
    least = state.topics[stream.tpid].min_replicas
    if len(request.replicas) < least:
        raise errors.InvalidArgument(f"log stream {stream.lsid} runs on at least {least} replicas")
    if not set(request.replicas) <= set(stream.replicas):
        raise errors.Conflict(f"log stream {stream.lsid} has its replicas on {stream.replicas}")
    return m.StreamUnsealing(stream.lsid, Epoch(stream.epoch + 1), request.replicas, request.primary)


def run(state: MetadataState, request: RunStream) -> Decision:
    """Let cuts count a log stream all of whose replicas run."""
    stream = _registered(state, request.lsid)
    if stream.epoch != request.epoch or stream.status is StreamStatus.SEALED:
        raise errors.Conflict(f"log stream {stream.lsid} is {stream.status.name} in epoch {stream.epoch}")
    return ALREADY if stream.status is StreamStatus.RUNNING else m.StreamRunning(stream.lsid, stream.epoch)


def trim(state: MetadataState, request: TrimTopic) -> Decision:
    """Trim points only grow, and never pass the tail (rule 14)."""
    topic = state.topics.get(request.tpid)
    if topic is None:
        raise errors.UnknownTopic(f"there is no topic {request.tpid}")
    if request.glsn > topic.hwm:
        raise errors.InvalidArgument(f"cannot trim to {request.glsn}: the tail of topic {topic.tpid} is {topic.hwm}")
    return ALREADY if request.glsn <= topic.trim else m.Trimmed(topic.tpid, request.glsn)


def create_topic(state: MetadataState, request: CreateTopic) -> Decision:
    if not 1 <= len(request.name) <= limits.MAX_TOPIC_NAME or not request.name.isprintable():
        raise errors.InvalidArgument(f"a topic's name has 1 to {limits.MAX_TOPIC_NAME} printable characters")
    for topic in state.topics.values():
        if topic.name == request.name:
            raise errors.AlreadyExists(f"topic {request.name!r} exists already")
    if len(state.topics) >= limits.MAX_TOPICS:
        raise errors.LimitExceeded(f"there are {limits.MAX_TOPICS} topics already")
    if not 1 <= request.min_replicas <= request.replication_factor <= limits.MAX_REPLICAS:
        raise errors.InvalidArgument(
            f"1 <= min_replicas <= replication factor <= {limits.MAX_REPLICAS} does not hold for "
            f"{request.min_replicas} and {request.replication_factor}"
        )
    return m.TopicCreated(state.next_tpid, request.name, request.replication_factor, request.min_replicas)


def create_stream(state: MetadataState, request: CreateStream) -> Decision:
    if request.tpid not in state.topics:
        raise errors.UnknownTopic(f"there is no topic {request.tpid}")
    if len(state.streams) >= limits.MAX_LOG_STREAMS:
        raise errors.LimitExceeded(f"there are {limits.MAX_LOG_STREAMS} log streams already")
    return m.StreamCreating(state.next_lsid, request.tpid)


def register_stream(state: MetadataState, request: RegisterStream) -> Decision:
    stream = _stream(state, request.lsid)
    _check_set(state, request.replicas)
    if stream.status is not StreamStatus.CREATING:
        if stream.replicas == request.replicas and stream.status is not StreamStatus.ABORTED:
            return ALREADY
        raise errors.Conflict(f"log stream {stream.lsid} is {stream.status.name} already")
    if request.volumes:
        _check_place("", request.volumes)
        if len(request.volumes) != len(request.replicas):
            raise errors.InvalidArgument(f"{len(request.volumes)} volumes for {len(request.replicas)} replicas")
    wanted = state.topics[stream.tpid].replication_factor
    if len(request.replicas) != wanted:
        raise errors.InvalidArgument(f"log stream {stream.lsid} has {wanted} replicas, not {len(request.replicas)}")
    load = dict.fromkeys(request.replicas, 0)
    for other in state.streams.values():
        for snid in other.replicas:
            if snid in load:
                load[snid] += 1
    for snid, count in load.items():
        if count >= limits.MAX_LOG_STREAMS_PER_NODE:
            raise errors.LimitExceeded(f"storage node {snid} has {count} log streams already")
    return m.StreamRegistered(stream.lsid, request.replicas, request.volumes)


def unregister_stream(state: MetadataState, request: UnregisterStream) -> Decision:
    """A log stream goes only when no reader can miss it: every entry of it is trimmed, and no append is under way."""
    stream = state.streams.get(request.lsid)
    if stream is None:
        return ALREADY
    if stream.status in (StreamStatus.RUNNING, StreamStatus.UNSEALING):
        raise errors.Conflict(f"log stream {stream.lsid} takes appends; seal it first")
    if stream.last_glsn > state.topics[stream.tpid].trim:
        raise errors.Conflict(f"log stream {stream.lsid} holds entries up to {stream.last_glsn}; trim the topic first")
    return m.StreamUnregistered(stream.lsid)


def abort_stream(state: MetadataState, request: AbortStream) -> Decision:
    stream = _stream(state, request.lsid)
    if stream.status is StreamStatus.ABORTED:
        return ALREADY
    if stream.status is not StreamStatus.CREATING:
        raise errors.Conflict(f"log stream {stream.lsid} was registered; it cannot be aborted")
    return m.StreamAborted(stream.lsid)


def _check_set(state: MetadataState, replicas: tuple[StorageNodeID, ...]) -> None:
    if not 1 <= len(replicas) <= limits.MAX_REPLICAS or len(set(replicas)) != len(replicas):
        raise errors.InvalidArgument(f"a replica set has 1 to {limits.MAX_REPLICAS} different nodes, not {replicas}")
    for snid in replicas:
        if snid not in state.nodes:
            raise errors.UnknownNode(f"storage node {snid} is not registered")


def _check_place(address: str, volumes: tuple[str, ...] = ()) -> None:
    """Metadata is kept and sent as a whole; no single part of it may be of any size."""
    if len(address) > limits.MAX_ADDRESS:
        raise errors.InvalidArgument(f"an address has at most {limits.MAX_ADDRESS} characters, not {len(address)}")
    if len(volumes) > limits.MAX_VOLUMES:
        raise errors.InvalidArgument(f"a storage node has at most {limits.MAX_VOLUMES} volumes, not {len(volumes)}")
    if max(map(len, volumes), default=0) > limits.MAX_VOLUME_PATH:
        raise errors.InvalidArgument(f"a volume's path has at most {limits.MAX_VOLUME_PATH} characters")
