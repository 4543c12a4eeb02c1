"""The messages the processes exchange.

Plain immutable records; how they become bytes is not decided here. Any of them may be lost, delayed, repeated or
overtaken by another: the receiving state machines rely on none of that not happening. A request carries a `request`
number chosen by its sender, its reply repeats it.

Tuples inside messages are plain, because one message carries thousands of them:

- a *range* is `(lsid, epoch, llsn_begin, glsn_begin, count)`: what a cut gives one log stream;
- a *report line* is `(lsid, epoch, durable_cc_version, committed_end, durable_end, healthy)`;
- a *stored batch* is `(glsn, llsn, count, epoch, version, time, batch)`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from varlog.types import (
    GLSN,
    LLSN,
    CommitContext,
    Epoch,
    LogStreamID,
    ReplicaState,
    Sequence,
    StorageNodeID,
    StreamStatus,
    Term,
    TopicID,
    Version,
)

Range = tuple[int, int, int, int, int]
ReportLine = tuple[int, int, int, int, int, bool]
StoredLine = tuple[int, int, int, int, int, int, bytes | memoryview]


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Anything sent between processes."""


# Client and storage node


class Append(Message, frozen=True):
    """Append one record batch as the primary of `epoch` (rule 17)."""

    request: int
    lsid: LogStreamID
    epoch: Epoch
    prev_sequence: Sequence
    """The writer's previous sequence on this log stream, 0 if there was none (rule 18)."""
    horizon: LLSN
    """How far the writer knew this log stream to be committed when it first sent this batch: if the writer's records
    may have expired since, the batch's fate is unknown rather than new (rule 19)."""
    batch: bytes | memoryview


class AppendReply(Message, frozen=True):
    request: int
    lsid: LogStreamID
    code: int
    """0, or the code of the error."""
    epoch: Epoch
    """Of the entry if it is committed, else the replica's."""
    glsn: GLSN = GLSN(0)
    llsn: LLSN = LLSN(0)
    count: int = 0
    replicas: int = 0
    synced: bool = True


class AppendReplies(Message, frozen=True):
    """The acknowledgements that one cut gives to one client: as many `AppendReply` with code 0, in columns."""

    lsid: LogStreamID
    epoch: Epoch
    replicas: int
    synced: bool
    shift: int
    """GLSN - LLSN, which is the same for all that one cut commits of a log stream."""
    requests: tuple[int, ...]
    llsns: tuple[int, ...]
    counts: tuple[int, ...]

    def each(self) -> Iterator[AppendReply]:
        """The acknowledgements one by one."""
        lsid, epoch, replicas, synced, shift = self.lsid, self.epoch, self.replicas, self.synced, self.shift
        for request, llsn, count in zip(self.requests, self.llsns, self.counts, strict=True):
            yield AppendReply(request, lsid, 0, epoch, GLSN(llsn + shift), LLSN(llsn), count, replicas, synced)


class Scan(Message, frozen=True):
    """Read the committed batches of one log stream from a position on."""

    request: int
    lsid: LogStreamID
    glsn_begin: GLSN
    max_bytes: int
    wait: bool
    """Answer only when something beyond `glsn_begin` is known, or when the replica tires of waiting."""


class ScanReply(Message, frozen=True):
    request: int
    lsid: LogStreamID
    code: int
    batches: tuple[StoredLine, ...] = ()
    complete_to: GLSN = GLSN(0)
    """Every entry of the log stream from `glsn_begin` up to and including this position is in `batches`."""
    first: GLSN = GLSN(0)
    """Where the log now begins, with Trimmed."""
    detail: str = ""
    """What an error says beyond its code."""


# Primary and backup


class Replicate(Message, frozen=True):
    """Consecutive batches of the primary, the first of them at `llsn`."""

    lsid: LogStreamID
    epoch: Epoch
    llsn: LLSN
    prev_sequences: tuple[Sequence, ...]
    """Of each batch, as its Append had it (rule 18)."""
    batches: tuple[bytes | memoryview, ...]


class ReplicateAck(Message, frozen=True):
    """How far a backup has the log; `accepted` is False if it is not running in the epoch it was sent a batch of."""

    lsid: LogStreamID
    snid: StorageNodeID
    epoch: Epoch
    """Of the batch this answers."""
    accepted: bool
    received_end: LLSN
    durable_end: LLSN


# Storage node and metadata repository


class Report(Message, frozen=True):
    """How far a node's replicas are. `seq` orders the reports of one boot."""

    snid: StorageNodeID
    boot: int
    seq: int
    version: Version
    """The version up to which the node has been told everything."""
    lines: tuple[ReportLine, ...]
    full: bool
    """All replicas are in it: the answer tells the version, so that a node that missed something finds out."""
    ask: bool
    """The node has missed something, or has just started, and wants the current state."""


class Commit(Message, frozen=True):
    """What happened from `prev_version` (exclusive) to `version`, as far as it concerns the node."""

    term: Term
    prev_version: Version
    version: Version
    time: int
    hwms: tuple[tuple[int, int, int], ...]
    """(tpid, previous hwm, hwm) of topics the version touched."""
    ranges: tuple[Range, ...]
    epochs: tuple[tuple[int, int, int], ...] = ()
    """(lsid, epoch, committed LLSN end) of log streams sealed or unsealed by the version."""
    trims: tuple[tuple[int, int], ...] = ()
    """(tpid, trim point)."""


class StreamEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The metadata repository's snapshot of one log stream (rule 4)."""

    lsid: LogStreamID
    tpid: TopicID
    epoch: Epoch
    status: StreamStatus
    llsn_end: LLSN
    last_glsn: GLSN
    touched: Version


class Snapshot(Message, frozen=True):
    """The current state, for a node that missed versions or has just connected (rule 5)."""

    term: Term
    version: Version
    reported_version: Version
    """The version in the report this answers: metadata that is older has gone back in time."""
    topics: tuple[tuple[int, int, int], ...]
    """(tpid, hwm, trim point)."""
    streams: tuple[StreamEnd, ...]


class FetchCuts(Message, frozen=True):
    """Ask for the cuts of one log stream after a version."""

    snid: StorageNodeID
    lsid: LogStreamID
    after: Version


class Cuts(Message, frozen=True):
    """The cuts that are still known, oldest first. What came before them, if the asker lacks it, can only be copied
    from another replica."""

    lsid: LogStreamID
    cuts: tuple[CommitContext, ...]


# Manager and storage node


class GetInfo(Message, frozen=True):
    request: int


class ReplicaStats(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a replica has done since its node started (M12)."""

    batches: int = 0
    """Stored, as primary or backup."""
    entries: int = 0
    bytes: int = 0
    commits: int = 0
    refused: int = 0
    """Appends answered with an error."""
    scans: int = 0
    """Answered with data."""
    syncs: int = 0


class ReplicaInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    lsid: LogStreamID
    epoch: Epoch
    state: ReplicaState
    committed_end: LLSN
    durable_end: LLSN
    healthy: bool
    tpid: TopicID = TopicID(0)
    fault: int = 0
    """The code of the error that made the replica unhealthy."""
    global_hwm: GLSN = GLSN(0)
    local_hwm: GLSN = GLSN(0)
    trim: GLSN = GLSN(0)
    volume: str = ""
    stats: ReplicaStats = ReplicaStats()


class VolumeInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    path: str
    total_bytes: int
    free_bytes: int


class Info(Message, frozen=True):
    request: int
    snid: StorageNodeID
    boot: int
    replicas: tuple[ReplicaInfo, ...]
    address: str = ""
    """Where the node says it can be reached."""
    volumes: tuple[VolumeInfo, ...] = ()


class AddLogStream(Message, frozen=True):
    """Make an empty replica on one of the node's volumes (M2)."""

    request: int
    tpid: TopicID
    lsid: LogStreamID
    volume: str = ""
    """The path of the volume; empty lets the node choose."""


class RemoveLogStream(Message, frozen=True):
    """Delete a replica and its data. A node that has none agrees."""

    request: int
    lsid: LogStreamID
    new_only: bool = False
    """Only if nothing has happened to it since it was made: what has a past is refused, and left as it is (B6)."""


class Seal(Message, frozen=True):
    request: int
    lsid: LogStreamID
    epoch: Epoch
    llsn_end: LLSN
    trim: GLSN


class Unseal(Message, frozen=True):
    request: int
    lsid: LogStreamID
    epoch: Epoch
    replicas: tuple[StorageNodeID, ...]
    primary: StorageNodeID
    trim: GLSN


class ReplicaReply(Message, frozen=True):
    """The answer to AddLogStream, RemoveLogStream, Seal and Unseal."""

    request: int
    lsid: LogStreamID
    code: int
    snid: StorageNodeID
    epoch: Epoch
    state: ReplicaState
    committed_end: LLSN
    detail: str = ""


# Anyone and the metadata repository


class GetMetadata(Message, frozen=True):
    request: int


class NodeInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    snid: StorageNodeID
    address: str = ""
    volumes: tuple[str, ...] = ()


class TopicInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    tpid: TopicID
    name: str
    hwm: GLSN
    trim: GLSN
    replication_factor: int = 0
    min_replicas: int = 0


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


class Metadata(Message, frozen=True):
    """One consistent state of the cluster: everything in it is of the same version."""

    request: int
    version: Version
    nodes: tuple[NodeInfo, ...]
    topics: tuple[TopicInfo, ...]
    streams: tuple[StreamInfo, ...]
    manager: str = ""
    """The address of the manager that registered last."""


class GetTail(Message, frozen=True):
    request: int
    tpid: TopicID


class Tail(Message, frozen=True):
    request: int
    code: int
    hwm: GLSN = GLSN(0)
    trim: GLSN = GLSN(0)


class RegisterNode(Message, frozen=True):
    """Let a node take part (M1)."""

    request: int
    snid: StorageNodeID
    address: str = ""
    volumes: tuple[str, ...] = ()


class AnnounceNode(Message, frozen=True):
    """A registered node says where it can be reached now, and what volumes it has."""

    request: int
    snid: StorageNodeID
    address: str
    volumes: tuple[str, ...]


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


class RunStream(Message, frozen=True):
    """UNSEALING to RUNNING: from then on cuts count it."""

    request: int
    lsid: LogStreamID
    epoch: Epoch


class TrimTopic(Message, frozen=True):
    request: int
    tpid: TopicID
    glsn: GLSN


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


# Operators and the manager


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


class RemoveTopic(Message, frozen=True):
    """Delete a topic, its log streams and their data."""

    request: int
    name: str


class AddStream(Message, frozen=True):
    """Make one more log stream in a topic."""

    request: int
    topic: str
    nodes: tuple[StorageNodeID, ...] = ()
    """The nodes its replicas go to; empty lets the manager choose."""


class RemoveStream(Message, frozen=True):
    request: int
    lsid: LogStreamID


class Managed(Message, frozen=True):
    """The answer to what an operator asks of the manager."""

    request: int
    code: int
    detail: str = ""
    value: int = 0
    """The id of what was made."""
