"""What an operator asks of the manager, as conversations: register and remove nodes, topics and log streams (M1, M2).

A conversation is a generator. It yields the requests to send, all at once, is sent their answers in the same order, or
an error in place of one that stays out, and returns the id of what it made; whoever runs it carries the messages. It
remembers nothing outside of itself: a manager that dies in the middle leaves a log stream in CREATING, which counts for
nothing and is found later (M3, rule 13).

A log stream is made on the nodes first and registered last, so that a registered log stream has all its replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from collections.abc import Sequence as Seq
from typing import NamedTuple, TypeVar

from varlog import errors, limits
from varlog.core.address import METADATA_REPOSITORY, Address, node_address, unnamed_address
from varlog.core.messages import (
    AbortStream,
    AddLogStream,
    AddNode,
    AddStream,
    AddTopic,
    CreateStream,
    CreateTopic,
    Decided,
    DeleteTopic,
    GetInfo,
    GetMetadata,
    Info,
    Message,
    Metadata,
    RegisterNode,
    RegisterStream,
    RemoveLogStream,
    RemoveNode,
    RemoveStream,
    RemoveTopic,
    ReplicaReply,
    SealStream,
    StreamInfo,
    TopicInfo,
    UnregisterNode,
    UnregisterStream,
)
from varlog.types import LogStreamID, StorageNodeID, StreamStatus, TopicID

Requests = Seq[tuple[Address, Message]]
Answer = Message | errors.VarlogError
Conversation = Generator[Requests, Seq[Answer], int]

DEFAULT_REPLICATION_FACTOR = 3
_SEAL_ATTEMPTS = 5
_REMOVALS_AT_ONCE = 64

_T = TypeVar("_T", bound=Message)


class Place(NamedTuple):
    """Where a replica goes."""

    snid: StorageNodeID
    volume: str


class Registrar:
    """Begins conversations. `infos` holds the nodes that answered lately, by id."""

    def __init__(self, new_request: Callable[[], int], infos: Callable[[], Mapping[StorageNodeID, Info]]) -> None:
        self._request = new_request
        self._infos = infos

    def begin(self, asked: Message) -> Conversation:
        """The conversation that does what an operator asks for."""
        match asked:
            case AddNode(_, address):
                return self.add_node(address)
            case RemoveNode(_, snid):
                return self.remove_node(snid)
            case AddTopic():
                return self.add_topic(asked)
            case RemoveTopic(_, name):
                return self.remove_topic(name)
            case AddStream(_, topic, nodes):
                return self.add_stream(topic, nodes)
            case RemoveStream(_, lsid):
                return self.remove_stream(lsid)
            case _:
                raise errors.InvalidArgument(f"a manager is not asked for {type(asked).__name__}")

    # Nodes

    def add_node(self, address: str) -> Conversation:
        """M1: ask the node who it is, then register it."""
        info = _one(Info, (yield [(unnamed_address(address), GetInfo(self._request()))]))
        volumes = tuple(volume.path for volume in info.volumes)
        yield from self._decide(RegisterNode(self._request(), info.snid, info.address or address, volumes))
        return info.snid

    def remove_node(self, snid: StorageNodeID) -> Conversation:
        metadata = yield from self._metadata()
        if snid not in {node.snid for node in metadata.nodes}:
            raise errors.UnknownNode(f"storage node {snid} is not registered")
        yield from self._decide(UnregisterNode(self._request(), snid))
        return snid

    # Topics

    def add_topic(self, asked: AddTopic) -> Conversation:
        metadata = yield from self._metadata()
        if not 1 <= asked.streams <= limits.MAX_LOG_STREAMS:
            raise errors.InvalidArgument(f"a topic has 1 to {limits.MAX_LOG_STREAMS} log streams, not {asked.streams}")
        factor = asked.replication_factor or min(DEFAULT_REPLICATION_FACTOR, max(1, len(metadata.nodes)))
        least = asked.min_replicas or min(2, factor)
        place(metadata, self._infos(), factor)  # rather no topic than one without a log stream
        created = yield from self._decide(CreateTopic(self._request(), asked.name, factor, least))
        tpid = TopicID(created.value)
        for number in range(asked.streams):
            try:
                yield from self._add_stream(tpid, factor, ())
            except errors.VarlogError:
                if number == 0:  # nobody can have appended to it: the same request may be made again
                    yield [(METADATA_REPOSITORY, DeleteTopic(self._request(), tpid))]
                raise
        return tpid

    def remove_topic(self, name: str) -> Conversation:
        metadata = yield from self._metadata()
        topic = _topic(metadata, name)
        yield from self._decide(DeleteTopic(self._request(), topic.tpid))
        streams = [stream for stream in metadata.streams if stream.tpid == topic.tpid]
        for new_only in (False, True):
            some = [stream for stream in streams if bool(stream.replicas) is not new_only]
            hosts = [(snid, stream.lsid) for stream in some for snid in self._hosts(stream)]
            yield from self._remove_data(hosts, new_only=new_only)
        return topic.tpid

    # Log streams

    def add_stream(self, name: str, nodes: tuple[StorageNodeID, ...]) -> Conversation:
        """M2, in a topic that exists."""
        metadata = yield from self._metadata()
        topic = _topic(metadata, name)
        if nodes and len(nodes) != topic.replication_factor:
            raise errors.InvalidArgument(
                f"topic {name!r} has {topic.replication_factor} replicas of each log stream, not {len(nodes)}"
            )
        if len(set(nodes)) != len(nodes):
            raise errors.InvalidArgument("the replicas of a log stream are on different storage nodes")
        return (yield from self._add_stream(topic.tpid, topic.replication_factor, nodes))

    def _add_stream(self, tpid: TopicID, factor: int, nodes: tuple[StorageNodeID, ...]) -> Conversation:
        metadata = yield from self._metadata()
        places = place(metadata, self._infos(), factor, nodes)
        created = yield from self._decide(CreateStream(self._request(), tpid))
        lsid = LogStreamID(created.value)
        try:
            replies = yield [
                (node_address(snid), AddLogStream(self._request(), tpid, lsid, volume)) for snid, volume in places
            ]
            for reply in replies:
                _succeeded(reply, ReplicaReply)
            replicas, volumes = tuple(p.snid for p in places), tuple(p.volume for p in places)
            yield from self._decide(RegisterStream(self._request(), lsid, replicas, volumes))
        except errors.VarlogError:
            if not (yield from self._undo(lsid, places)):
                raise
        return lsid

    def _undo(self, lsid: LogStreamID, places: Seq[Place]) -> Generator[Requests, Seq[Answer], bool]:
        """Abort first: only what can never be registered any more is deleted (rule 13). True if it turns out to have
        been registered after all, by a request whose answer was lost."""
        (aborted,) = yield [(METADATA_REPOSITORY, AbortStream(self._request(), lsid))]
        code = aborted.code if isinstance(aborted, Decided) else None
        if code in {0, errors.UnknownLogStream.code}:
            yield from self._remove_data([(place.snid, lsid) for place in places], new_only=True)
        return code == errors.Conflict.code

    def remove_stream(self, lsid: LogStreamID) -> Conversation:
        """Seal and take out in one go; the manager itself may unseal it in between, then once more."""
        for attempt in range(_SEAL_ATTEMPTS):
            metadata = yield from self._metadata()
            stream = _stream(metadata, lsid)
            topic = next(t for t in metadata.topics if t.tpid == stream.tpid)
            if stream.last_glsn > topic.trim:
                raise errors.Conflict(
                    f"log stream {lsid} holds entries up to {stream.last_glsn}; trim topic {topic.name!r} first"
                )
            try:
                if stream.status in (StreamStatus.RUNNING, StreamStatus.UNSEALING):
                    yield from self._decide(SealStream(self._request(), lsid, stream.epoch))
                yield from self._decide(UnregisterStream(self._request(), lsid))
            except errors.Conflict:
                if attempt == _SEAL_ATTEMPTS - 1:
                    raise
            else:
                hosts = [(snid, lsid) for snid in self._hosts(stream)]
                yield from self._remove_data(hosts, new_only=not stream.replicas)
                break
        return lsid

    def _hosts(self, stream: StreamInfo) -> Seq[StorageNodeID]:
        """Who has data of a log stream: its replicas, or, if it was never registered, whoever says so."""
        if stream.replicas:
            return stream.replicas
        infos = self._infos().items()
        return [snid for snid, info in infos if any(replica.lsid == stream.lsid for replica in info.replicas)]

    def _remove_data(
        self, replicas: Seq[tuple[StorageNodeID, LogStreamID]], *, new_only: bool = False
    ) -> Generator[Requests, Seq[Answer], None]:
        """Data of what is no more. Of a node that does not answer it stays, and is in nobody's way: no log stream gets
        its id again. Of what was never registered, only what was just made is deleted: what a node holds by that id
        otherwise is of a cluster whose metadata was lost, and may be all that is left of it."""
        for first in range(0, len(replicas), _REMOVALS_AT_ONCE):
            some = replicas[first : first + _REMOVALS_AT_ONCE]
            yield [(node_address(snid), RemoveLogStream(self._request(), lsid, new_only)) for snid, lsid in some]

    # The metadata repository

    def _metadata(self) -> Generator[Requests, Seq[Answer], Metadata]:
        return _one(Metadata, (yield [(METADATA_REPOSITORY, GetMetadata(self._request()))]))

    def _decide(self, request: Message) -> Generator[Requests, Seq[Answer], Decided]:
        return _one(Decided, (yield [(METADATA_REPOSITORY, request)]))


def place(
    metadata: Metadata, infos: Mapping[StorageNodeID, Info], factor: int, nodes: Seq[StorageNodeID] = ()
) -> list[Place]:
    """Nodes and volumes for the replicas of a new log stream: those that have fewest, then those with most room."""
    load = Counter(snid for stream in metadata.streams for snid in stream.replicas)
    registered = {node.snid for node in metadata.nodes}
    answering = {snid: info for snid, info in infos.items() if snid in registered}
    for snid in nodes:
        if snid not in registered:
            raise errors.UnknownNode(f"storage node {snid} is not registered")
        if snid not in answering:
            raise errors.Unreachable(f"storage node {snid} does not answer")

    def least_loaded(snid: StorageNodeID) -> tuple[int, int, int]:
        return load[snid], -sum(volume.free_bytes for volume in answering[snid].volumes), snid

    chosen = list(nodes) or sorted(answering, key=least_loaded)[:factor]
    if len(chosen) < factor:
        raise errors.Unreachable(
            f"{factor} storage nodes are needed and {len(answering)} of {len(registered)} registered ones answer"
        )
    return [Place(snid, _volume(answering[snid])) for snid in chosen]


def _volume(info: Info) -> str:
    """The one with room that has fewest replicas."""
    load = Counter(replica.volume for replica in info.replicas)
    full = limits.SEGMENT_BYTES
    volumes = sorted(info.volumes, key=lambda v: (v.free_bytes < full, load[v.path], -v.free_bytes))
    return volumes[0].path if volumes else ""


def _topic(metadata: Metadata, name: str) -> TopicInfo:
    """By its name, which may be anything that somebody sent."""
    for topic in metadata.topics:
        if topic.name == name:
            return topic
    raise errors.UnknownTopic(f"there is no topic {name[: limits.MAX_TOPIC_NAME]!r}")


def _stream(metadata: Metadata, lsid: LogStreamID) -> StreamInfo:
    for stream in metadata.streams:
        if stream.lsid == lsid:
            return stream
    raise errors.UnknownLogStream(f"there is no log stream {lsid}")


def _one(kind: type[_T], replies: Seq[Answer]) -> _T:
    (reply,) = replies
    return _succeeded(reply, kind)


def _succeeded(reply: Answer, kind: type[_T]) -> _T:
    if isinstance(reply, errors.VarlogError):
        raise reply
    if not isinstance(reply, kind):
        raise errors.ProtocolError(f"answered with {type(reply).__name__}")
    if code := getattr(reply, "code", 0):
        raise errors.VarlogError.of(code, getattr(reply, "detail", ""))
    return reply
