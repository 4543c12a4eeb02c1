"""Operators and the manager."""

from __future__ import annotations

import msgspec

from varlog.core.messages.base import Message
from varlog.types import GLSN, LogStreamID, Ordering, StorageNodeID


class AddNode(Message, frozen=True):
    """Register the storage node that listens at an address."""

    request: int
    address: str


class RemoveNode(Message, frozen=True):
    request: int
    snid: StorageNodeID


class AddTopic(Message, frozen=True):
    """Make a topic and its log streams."""

    request: int
    name: str
    replication_factor: int
    min_replicas: int
    """0: as many as the manager thinks right."""
    streams: int
    first: GLSN = GLSN(1)
    """The first position it gives out."""
    ordering: Ordering = Ordering.COMMIT
    block: int = 0
    """Of a topic that a sequencer orders: how many consecutive positions go to one log stream; 0: as many as usual."""


class RemoveTopic(Message, frozen=True):
    """Delete a topic, its log streams and their data."""

    request: int
    name: str


class AttachArchive(Message, frozen=True):
    """Let readers of a topic find there what was trimmed of it; an empty `uri` ends that."""

    request: int
    topic: str
    uri: str


class AddStream(Message, frozen=True):
    """Make one more log stream in a topic."""

    request: int
    topic: str
    nodes: tuple[StorageNodeID, ...] = ()
    """The nodes its replicas go to; empty lets the manager choose."""


class RemoveStream(Message, frozen=True):
    request: int
    lsid: LogStreamID


class DrainNode(Message, frozen=True):
    """Take all replicas off a node, to others where there are any; or end that and let it have replicas again."""

    request: int
    snid: StorageNodeID
    undo: bool = False


class ReplaceNode(Message, frozen=True):
    """Move every replica of one node to another."""

    request: int
    snid: StorageNodeID
    by: StorageNodeID


class HoldLogStream(Message, frozen=True):
    """Seal a log stream and keep it so, or unseal it (`seal` False)."""

    request: int
    lsid: LogStreamID
    seal: bool


class SyncLogStream(Message, frozen=True):
    """Let a replica copy what it lacks, from a source the manager chooses if 0 is given; the value is how far it is in
    percent."""

    request: int
    lsid: LogStreamID
    target: StorageNodeID
    source: StorageNodeID = StorageNodeID(0)


class MoveReplica(Message, frozen=True):
    """Let a log stream gain a replica on one node and lose that on another; 0 for neither."""

    request: int
    lsid: LogStreamID
    joining: StorageNodeID
    leaving: StorageNodeID


class DeclareLost(Message, frozen=True):
    """Declare lost what no replica of a log stream has any more; the value is the first lost GLSN. Refused while a
    storage node that does not answer could still have it."""

    request: int
    lsid: LogStreamID
    gone: tuple[StorageNodeID, ...] = ()
    """Storage nodes that do not answer and, says the operator, never will."""
    only_look: bool = False
    """Tell what would be lost, and change nothing."""


class Diagnose(Message, frozen=True):
    """Ask the manager what is wrong."""

    request: int


class Finding(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something that is not as it should be."""

    kind: str
    """A stable word for scripts."""
    severity: str
    """How bad it is, as `core.diagnosing.Severity` has it."""
    subject: str
    """A node, a log stream, a topic, a process: "node 2", "log stream 3"."""
    what: str
    """What is wrong, in a sentence."""
    seconds: float
    """For how long the manager has seen it."""
    doing: str = ""
    """What the manager is doing about it."""
    person: str = ""
    """What only a person can do."""


class Diagnosis(Message, frozen=True):
    request: int
    code: int
    findings: tuple[Finding, ...] = ()
    doing: tuple[str, ...] = ()
    """What the manager has asked for of late, in sentences."""
    detail: str = ""


class Managed(Message, frozen=True):
    """The answer to what an operator asks of the manager."""

    request: int
    code: int
    detail: str = ""
    value: int = 0
    """The id of what was made."""
