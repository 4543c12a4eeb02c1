"""The words of the field.

Everything that has a name in the design documents has its type here, and nothing else does. The number types are
distinct for the type checker and plain integers at run time, so hot paths pay nothing for them.

Positions are half-open everywhere: an *end* is the first position not included. The first LLSN of a log stream and
the first GLSN of a topic are 1, so 0 is never a position and can stand for "none".
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, NewType

from varlog.errors import InvalidArgument

ClusterID = NewType("ClusterID", int)
StorageNodeID = NewType("StorageNodeID", int)
TopicID = NewType("TopicID", int)
LogStreamID = NewType("LogStreamID", int)

MAX_ID: Final = (1 << 32) - 1
"""Clusters, storage nodes, topics and log streams are numbered from 1 to this."""

GLSN = NewType("GLSN", int)
"""Global log sequence number: the position of an entry in its topic."""

LLSN = NewType("LLSN", int)
"""Local log sequence number: the position of an entry in its log stream."""

Epoch = NewType("Epoch", int)
"""Raised by the metadata repository at every seal and unseal of a log stream: odd is sealed, even is running. A topic
that a sequencer orders has one of its own, that of its projection, which counts up by one (S2)."""

Version = NewType("Version", int)
"""Position in the metadata repository's one sequence of decisions."""

Term = NewType("Term", int)
"""Leadership of the metadata repository; every new leader has a greater one."""

TransactionID = NewType("TransactionID", int)
"""The version of the metadata repository's decision that began a transaction: of two, the later one is greater."""

WriterID = NewType("WriterID", int)
Sequence = NewType("Sequence", int)

FIRST_GLSN = GLSN(1)
FIRST_LLSN = LLSN(1)
FIRST_EPOCH = Epoch(1)


class ReplicaState(IntEnum):
    """The three states of a log stream executor (M13). Poisoned, corrupt and learner are flags beside it."""

    SEALING = 0
    SEALED = 1
    RUNNING = 2


class StreamStatus(IntEnum):
    """What the metadata repository says of a log stream."""

    CREATING = 0
    SEALED = 1
    UNSEALING = 2
    RUNNING = 3
    ABORTED = 4
    CHAINED = 5
    """Of a topic that a sequencer orders: which replicas it has is said by the topic's projection."""


class Ordering(IntEnum):
    """Who says where an entry stands in its topic."""

    COMMIT = 0
    """The metadata repository, by cuts, after the entry is stored (O1)."""
    SEQUENCER = 1
    """A sequencer, before it is (S1)."""

    @property
    def label(self) -> str:
        """As people write it."""
        return self.name.lower()

    @classmethod
    def labelled(cls, label: str) -> Ordering:
        for ordering in cls:
            if ordering.label == label:
                return ordering
        raise InvalidArgument(f"there is no ordering {label!r}; a topic has 'commit' or 'sequencer'")


class CommitContext(NamedTuple):
    """One commit as a replica stores it: the cut that turned an LLSN range into a GLSN range (B9).

    Within one commit context GLSN - LLSN is constant, so the list of them is the GLSN index of a log stream.
    """

    version: Version
    epoch: Epoch
    hwm: GLSN
    prev_hwm: GLSN
    llsn_begin: LLSN
    glsn_begin: GLSN
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses here
    time: int
    """The metadata repository's clock at the cut, in microseconds, monotone over versions."""

    @property
    def llsn_end(self) -> LLSN:
        return LLSN(self.llsn_begin + self.count)

    @property
    def glsn_end(self) -> GLSN:
        return GLSN(self.glsn_begin + self.count)


class Room(NamedTuple):
    """What a replica's log takes together: so many batches, of so many bytes if each counts for `each` more."""

    batches: int
    bytes: int
    each: int


class LogStreamIdentity(NamedTuple):
    """Whose data a log stream directory holds. Every segment header repeats it."""

    cid: ClusterID
    snid: StorageNodeID
    tpid: TopicID
    lsid: LogStreamID
