"""Clients, primaries and backups: appends, reads, replication, and copies of a replica."""

from __future__ import annotations

from collections.abc import Iterator

from varlog.core.messages.base import Message, StoredLine
from varlog.types import GLSN, LLSN, CommitContext, Epoch, LogStreamID, Sequence, StorageNodeID, Version


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
    verdicts: bool = False
    """Of the batches only those are wanted that have the flag CONTROL. In place of others that follow each other there
    is one line without a batch that says which positions they have."""


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


# A replica and the one it copies from


class FetchLog(Message, frozen=True):
    """Ask another replica for what is committed, from a position on."""

    request: int
    lsid: LogStreamID
    snid: StorageNodeID
    """Who asks."""
    epoch: Epoch
    """That it has promised: a replica that was sealed in an earlier one may lack something itself."""
    llsn_begin: LLSN
    """Where its copy ends."""
    after: Version
    """The newest commit context it has."""
    max_bytes: int
    learner: bool
    """Who asks is outside the set: a running replica may answer too, not only a sealed one (rule 12)."""


class LogPart(Message, frozen=True):
    """Consecutive committed batches, the first of them at the position asked for, and the commit contexts that end
    within them or at their end."""

    request: int
    lsid: LogStreamID
    code: int
    """0, or why the replica is no source; Trimmed if `base` says where to begin instead (rule 14)."""
    committed_end: LLSN
    """Of the source."""
    llsn: LLSN = LLSN(0)
    epochs: tuple[Epoch, ...] = ()
    """In which each batch was written,"""
    prev_sequences: tuple[Sequence, ...] = ()
    """its writer's sequence before it (rule 18),"""
    batches: tuple[bytes | memoryview, ...] = ()
    """and the batch itself."""
    commits: tuple[CommitContext, ...] = ()
    base: bytes = b""
    """With Trimmed: where the source's log begins, and what it knows of what came before."""
    detail: str = ""
