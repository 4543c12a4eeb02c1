"""A storage node and the metadata repository: reports one way, the order the other."""

from __future__ import annotations

import msgspec

from varlog.core.messages.base import Message, Range, ReportLine
from varlog.types import (
    GLSN,
    LLSN,
    CommitContext,
    Epoch,
    LogStreamID,
    StorageNodeID,
    StreamStatus,
    Term,
    TopicID,
    Version,
)


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
    """The version in the report this answers."""
    topics: tuple[tuple[int, int, int], ...]
    """(tpid, hwm, trim point)."""
    streams: tuple[StreamEnd, ...]
    unknown_epochs: tuple[tuple[int, int, int], ...] = ()
    """(lsid, epoch, the last one before it that is known) of log streams that the report this answers has in an epoch
    that the metadata does not know of: it has gone back in time."""
    known_version: Version = Version(0)
    """The last version up to the reported one that is known: an earlier one if metadata has gone back in time; 0 if
    that is not told, and then `version` says it."""


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
    llsn_end: LLSN = LLSN(0)
    """The end of what is committed of the log stream, as far as the answerer knows: one that leads no more may know
    less than the asker lacks, and says nothing of that by what it leaves out."""
