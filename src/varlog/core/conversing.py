"""Conversations: what the manager does for an operator, message by message.

A conversation is a generator. It yields the requests to send, all at once, is sent their answers in the same order, or
an error in place of one that stays out, and returns a number that says what came of it: the id of what it made, mostly.
Whoever runs it carries the messages. It remembers nothing outside of itself, so a manager that dies in the middle of
one leaves nothing that another one could not find in the metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from collections.abc import Sequence as Seq
from typing import TypeVar

from varlog import errors, limits
from varlog.core.address import METADATA_REPOSITORY, Address
from varlog.core.messages import Decided, GetMetadata, Info, Message, Metadata, NodeInfo, StreamInfo, TopicInfo
from varlog.types import FIRST_EPOCH, LogStreamID, StorageNodeID, StreamStatus, TopicID

Requests = Seq[tuple[Address, Message]]
Answer = Message | errors.VarlogError
Conversation = Generator[Requests, Seq[Answer], int]
Infos = Callable[[], Mapping[StorageNodeID, Info]]
"""The nodes that answered lately, by id."""

_T = TypeVar("_T", bound=Message)


class Conversing:
    """What conversations have in common: request numbers, a look at the nodes, and the metadata repository."""

    def __init__(self, new_request: Callable[[], int], infos: Infos) -> None:
        self._request = new_request
        self._infos = infos

    def _metadata(self) -> Generator[Requests, Seq[Answer], Metadata]:
        return one(Metadata, (yield [(METADATA_REPOSITORY, GetMetadata(self._request()))]))

    def _decide(self, request: Message) -> Generator[Requests, Seq[Answer], Decided]:
        return one(Decided, (yield [(METADATA_REPOSITORY, request)]))


def one(kind: type[_T], replies: Seq[Answer]) -> _T:
    """The only answer, if it is one of that kind and no error."""
    (reply,) = replies
    return succeeded(reply, kind)


def succeeded(reply: Answer, kind: type[_T]) -> _T:
    if isinstance(reply, errors.VarlogError):
        raise reply
    if not isinstance(reply, kind):
        raise errors.ProtocolError(f"answered with {type(reply).__name__}")
    if code := getattr(reply, "code", 0):
        raise errors.VarlogError.of(code, getattr(reply, "detail", ""))
    return reply


def find_node(metadata: Metadata, snid: StorageNodeID) -> NodeInfo:
    for node in metadata.nodes:
        if node.snid == snid:
            return node
    raise errors.UnknownNode(f"storage node {snid} is not registered")


def find_topic(metadata: Metadata, name: str) -> TopicInfo:
    """By its name, which may be anything that somebody sent."""
    for topic in metadata.topics:
        if topic.name == name:
            return topic
    raise errors.UnknownTopic(f"there is no topic {name[: limits.MAX_TOPIC_NAME]!r}")


def topic_of(metadata: Metadata, tpid: TopicID) -> TopicInfo:
    return next(topic for topic in metadata.topics if topic.tpid == tpid)


def find_stream(metadata: Metadata, lsid: LogStreamID) -> StreamInfo:
    for stream in metadata.streams:
        if stream.lsid == lsid:
            return stream
    raise errors.UnknownLogStream(f"there is no log stream {lsid}")


def find_registered_stream(metadata: Metadata, lsid: LogStreamID) -> StreamInfo:
    """One that has replicas: not one that is being made, or was given up while it was."""
    stream = find_stream(metadata, lsid)
    if stream.epoch < FIRST_EPOCH and stream.status is not StreamStatus.CHAINED:
        raise errors.Conflict(f"log stream {lsid} is not registered: it is {stream.status.name}")
    return stream
