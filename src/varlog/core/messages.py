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
StoredLine = tuple[int, int, int, int, int, int, bytes]


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
    batch: bytes


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


# Primary and backup


class Replicate(Message, frozen=True):
    lsid: LogStreamID
    epoch: Epoch
    llsn: LLSN
    prev_sequence: Sequence
    batch: bytes


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


class ReplicaInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    lsid: LogStreamID
    epoch: Epoch
    state: ReplicaState
    committed_end: LLSN
    durable_end: LLSN
    healthy: bool


class Info(Message, frozen=True):
    request: int
    snid: StorageNodeID
    boot: int
    replicas: tuple[ReplicaInfo, ...]


class AddLogStream(Message, frozen=True):
    request: int
    tpid: TopicID
    lsid: LogStreamID


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
    """The answer to AddLogStream, Seal and Unseal."""

    request: int
    lsid: LogStreamID
    code: int
    snid: StorageNodeID
    epoch: Epoch
    state: ReplicaState
    committed_end: LLSN


# Anyone and the metadata repository


class GetMetadata(Message, frozen=True):
    request: int


class TopicInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    tpid: TopicID
    name: str
    hwm: GLSN
    trim: GLSN


class StreamInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    lsid: LogStreamID
    tpid: TopicID
    epoch: Epoch
    status: StreamStatus
    replicas: tuple[StorageNodeID, ...]
    primary: StorageNodeID
    llsn_end: LLSN
    last_glsn: GLSN


class Metadata(Message, frozen=True):
    """One consistent state of the cluster: everything in it is of the same version."""

    request: int
    version: Version
    nodes: tuple[StorageNodeID, ...]
    topics: tuple[TopicInfo, ...]
    streams: tuple[StreamInfo, ...]


class GetTail(Message, frozen=True):
    request: int
    tpid: TopicID


class Tail(Message, frozen=True):
    request: int
    code: int
    hwm: GLSN = GLSN(0)
    trim: GLSN = GLSN(0)


class RegisterNode(Message, frozen=True):
    request: int
    snid: StorageNodeID


class CreateTopic(Message, frozen=True):
    request: int
    name: str
    replication_factor: int
    min_replicas: int


class CreateStream(Message, frozen=True):
    """Give out an LSID in CREATING (rule 13)."""

    request: int
    tpid: TopicID


class RegisterStream(Message, frozen=True):
    """CREATING to SEALED at the first epoch, with its replicas."""

    request: int
    lsid: LogStreamID
    replicas: tuple[StorageNodeID, ...]


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
