"""Anyone and the metadata repository: what the cluster is, and requests to change it."""

from __future__ import annotations

import msgspec

from varlog.core.messages.base import Message
from varlog.core.projection import Projection
from varlog.types import (
    GLSN,
    LLSN,
    Epoch,
    LogStreamID,
    Ordering,
    StorageNodeID,
    StreamStatus,
    Term,
    TopicID,
    Version,
)


class GetMetadata(Message, frozen=True):
    request: int


class NodeInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    snid: StorageNodeID
    address: str = ""
    volumes: tuple[str, ...] = ()
    is_draining: bool = False
    """An operator wants no replicas there."""
    generation: int = 0
    """How often it was given a secret (B11); 0 if never."""


class TopicInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    tpid: TopicID
    name: str
    hwm: GLSN
    trim: GLSN
    replication_factor: int = 0
    min_replicas: int = 0
    archive: str = ""
    """Where what was trimmed can be read; empty if nowhere."""
    ordering: Ordering = Ordering.COMMIT
    block: int = 0
    """Of a topic that a sequencer orders: how many consecutive positions go to one log stream,"""
    projection: Projection | None = None
    """and what is where; None before its first reconfiguration (S8)."""


class SequencerInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    address: str
    boot: int
    """Of its last start."""


class StreamInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    lsid: LogStreamID
    tpid: TopicID
    epoch: Epoch
    status: StreamStatus
    replicas: tuple[StorageNodeID, ...]
    primary: StorageNodeID
    llsn_end: LLSN
    last_glsn: GLSN
    volumes: tuple[str, ...] = ()
    """Where each of the replicas has its data, in their order."""
    is_held: bool = False
    """An operator sealed it: it stays so until an operator unseals it."""
    joining: StorageNodeID = StorageNodeID(0)
    """An operator wants a replica there,"""
    leaving: StorageNodeID = StorageNodeID(0)
    """and none there any more."""
    lost_begin: GLSN = GLSN(0)
    lost_end: GLSN = GLSN(0)
    """An operator has declared that what this log stream had in [lost_begin, lost_end) is lost; it stays sealed."""
    skipped: tuple[tuple[Epoch, Epoch], ...] = ()
    """The epochs that it came from and went to when a backup was restored: none between them is known of."""


class Metadata(Message, frozen=True):
    """One consistent state of the cluster: everything in it is of the same version."""

    request: int
    version: Version
    nodes: tuple[NodeInfo, ...]
    topics: tuple[TopicInfo, ...]
    streams: tuple[StreamInfo, ...]
    manager: str = ""
    """The address of the manager that registered last."""
    next_lsid: LogStreamID = LogStreamID(0)
    """Ids of log streams below this one were given out. What is not listed of them is no more, and never will be."""
    sequencers: tuple[SequencerInfo, ...] = ()


class Leading(Message, frozen=True):
    """A metadata repository leads. It says so to everybody who connects, and to all when it begins to."""

    term: Term


class NotLeading(Message, frozen=True):
    """A metadata repository does not lead. It says so to everybody who connects, to all when it ceases to lead, and to
    whoever asks it for what only the leader answers."""

    term: Term
    """Of the leader it knows of; 0 if it knows of none."""
    address: str = ""
    """Where that one is."""


class GetStanding(Message, frozen=True):
    """Ask a metadata repository how it is, whether it leads or not."""

    request: int


class StoreInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The metadata store, as a metadata repository meets it."""

    name: str
    """Where it is."""
    endpoint: str = ""
    """The member that is spoken to, of one that has several,"""
    release: str = ""
    """and what it runs."""
    round_trip: float = 0.0
    """Seconds that the last request took."""
    total_bytes: int = 0
    """Its size on disk,"""
    used_bytes: int = 0
    """and how much of it is in use."""
    error: str = ""
    """Why a member was left last; empty if none ever was."""


class Standing(Message, frozen=True):
    """How a metadata repository is."""

    request: int
    address: str
    role: str
    """leading, loading, campaigning or following."""
    term: Term
    """Of the leader, itself or the one it knows of; 0 if it knows of none."""
    leader: str
    """Where that one is."""
    version: Version
    """The last one decided, if it leads."""
    silence: float
    """For how many seconds, at most, the leader had not been heard of in the store."""
    lag: float
    """For how many seconds the decision that is being written has been waiting for the store."""
    nodes: int
    """How many storage nodes it hears."""
    store: StoreInfo
    members: tuple[tuple[str, int], ...] = ()
    """(address, storage nodes that it hears) of all that share the store."""


class GetTail(Message, frozen=True):
    request: int
    tpid: TopicID


class Tail(Message, frozen=True):
    request: int
    code: int
    hwm: GLSN = GLSN(0)
    trim: GLSN = GLSN(0)
    epoch: Epoch = Epoch(0)
    """Of the projection, if the topic has one: a peek in this epoch, made before the question, holds (rule 20)."""
    transactions: int = 0
    """How many are not known to have ended; `GetTransactions` tells which."""


class RegisterNode(Message, frozen=True):
    """Let a node take part (M1)."""

    request: int
    snid: StorageNodeID
    address: str = ""
    volumes: tuple[str, ...] = ()
    proof: str = ""
    """Of the secret it is about to be given (`core.identity`)."""
    generation: int = 1
    """How many secrets it has had with this one: more than 1 if it was part of the cluster before."""


class AnnounceNode(Message, frozen=True):
    """A registered node says where it can be reached now, what volumes it has, and proves that it is who it was."""

    request: int
    snid: StorageNodeID
    address: str
    volumes: tuple[str, ...]
    boot: int = 0
    secret: str = ""
    """What its volumes hold; empty if nothing."""
    next_proof: str = ""
    """Of the secret it will have from its next announcement on, so that a copy of its volumes made before is found."""

    def __repr__(self) -> str:
        return f"AnnounceNode({self.request}, {self.snid}, {self.address!r}, {self.volumes}, {self.boot}, ...)"


class RenewNode(Message, frozen=True):
    """A node has lost its disks and is in no replica set any more: let it begin anew, with another secret."""

    request: int
    snid: StorageNodeID
    generation: int
    """The one it has now."""
    proof: str


class SetDraining(Message, frozen=True):
    """Say that no replicas are wanted on a node, or that they are again."""

    request: int
    snid: StorageNodeID
    is_draining: bool


class UnregisterNode(Message, frozen=True):
    """Take out a node that has no replica of any log stream."""

    request: int
    snid: StorageNodeID


class RegisterManager(Message, frozen=True):
    """The manager says where it can be reached."""

    request: int
    address: str


class CreateTopic(Message, frozen=True):
    request: int
    name: str
    replication_factor: int
    min_replicas: int
    first: GLSN = GLSN(1)
    """The first position it gives out."""
    ordering: Ordering = Ordering.COMMIT
    block: int = 0
    """Of a topic that a sequencer orders: how many consecutive positions go to one log stream; 0: as many as usual."""


class ProposeProjection(Message, frozen=True):
    """Replace the projection of a topic that a sequencer orders (S7). Who was overtaken by another is refused."""

    request: int
    tpid: TopicID
    base: Epoch
    """The epoch of the projection to be replaced; 0 if there is none."""
    projection: Projection


class RegisterSequencer(Message, frozen=True):
    """A sequencer says where it is, and that it has been started."""

    request: int
    address: str
    boot: int


class DeleteTopic(Message, frozen=True):
    """Take out a topic with all its log streams. Its data on the nodes is nobody's from then on."""

    request: int
    tpid: TopicID


class CreateStream(Message, frozen=True):
    """Give out an LSID in CREATING (rule 13)."""

    request: int
    tpid: TopicID


class RegisterStream(Message, frozen=True):
    """CREATING to SEALED at the first epoch, with its replicas."""

    request: int
    lsid: LogStreamID
    replicas: tuple[StorageNodeID, ...]
    volumes: tuple[str, ...] = ()
    """The paths of their data (M2), in their order."""


class UnregisterStream(Message, frozen=True):
    """Take out a log stream that holds no entry a reader could ask for."""

    request: int
    lsid: LogStreamID


class AbortStream(Message, frozen=True):
    """CREATING to ABORTED: from then on the log stream can be collected."""

    request: int
    lsid: LogStreamID


class PlanStream(Message, frozen=True):
    """Say where a log stream is to gain a replica and where it is to lose one; 0 for neither."""

    request: int
    lsid: LogStreamID
    joining: StorageNodeID
    leaving: StorageNodeID


class HoldStream(Message, frozen=True):
    """Let a log stream stay sealed, or let it run again."""

    request: int
    lsid: LogStreamID
    is_held: bool


class LoseStream(Message, frozen=True):
    """Declare that what a sealed log stream had from `glsn_begin` on has no copy any more. It takes no more appends."""

    request: int
    lsid: LogStreamID
    epoch: Epoch
    glsn_begin: GLSN
    replicas: tuple[StorageNodeID, ...] = ()
    """The nodes that have what is left of it, if anyone does: its set from then on."""


class SealStream(Message, frozen=True):
    """Seal a log stream that is still in `epoch`."""

    request: int
    lsid: LogStreamID
    epoch: Epoch


class UnsealStream(Message, frozen=True):
    """SEALED in `epoch` to UNSEALING in the next, naming its set and primary (rules 2, 3)."""

    request: int
    lsid: LogStreamID
    epoch: Epoch
    replicas: tuple[StorageNodeID, ...]
    primary: StorageNodeID
    volumes: tuple[str, ...] = ()
    """Where each of the replicas has its data, in their order."""


class RunStream(Message, frozen=True):
    """UNSEALING to RUNNING: from then on cuts count it."""

    request: int
    lsid: LogStreamID
    epoch: Epoch


class TrimTopic(Message, frozen=True):
    request: int
    tpid: TopicID
    glsn: GLSN


class SetArchive(Message, frozen=True):
    """Say where what was trimmed of a topic can be read; empty: nowhere."""

    request: int
    tpid: TopicID
    uri: str


class Decided(Message, frozen=True):
    """The answer to every request that changes metadata."""

    request: int
    code: int
    version: Version
    value: int = 0
    """The id given out, the epoch reached, or the trim point in force."""
    llsn_end: LLSN = LLSN(0)
    """Of a seal: the last committed end."""
    detail: str = ""
    """What an error says beyond its code."""
