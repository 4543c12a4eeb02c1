"""The sequencer ordering: positions from a sequencer, and replicas that are written at them (S1 to S9).

Every request carries the epoch of the projection that its sender knows (S2). A replica or a sequencer of another epoch
answers StaleEpoch and tells its own: a smaller one, and it has missed something; a greater one, and the sender has.
"""

from __future__ import annotations

from varlog.core.messages.base import Message, StoredLine
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID, TopicID

DigestLine = tuple[int, int, int, int]
"""(position, count, time, checksum) of a batch."""
Refusal = tuple[int, int, int, int, bytes | memoryview]
"""(which of the batches sent, code of the error, position and time of the batch that is there, and that batch)."""


# A client and the sequencer


class Next(Message, frozen=True):
    """Ask for positions for batches of so many entries each (S1)."""

    request: int
    tpid: TopicID
    epoch: Epoch
    counts: tuple[int, ...]


class Granted(Message, frozen=True):
    """A batch's positions are consecutive and lie in one block; what had to be left out for that is to be filled by
    whoever asked (rule 24)."""

    request: int
    code: int
    epoch: Epoch
    """The sequencer's."""
    glsns: tuple[int, ...] = ()
    """The first position of each batch, in the order of the request,"""
    time: int = 0
    """and the time of all of them. Of positions that were given out later it is no earlier."""
    skipped: tuple[tuple[int, int], ...] = ()
    """(position, count) of what was left out."""
    detail: str = ""


class Peek(Message, frozen=True):
    """Ask for the largest position given out; 0: which, is not known in that epoch yet."""

    request: int
    tpid: TopicID
    epoch: Epoch


class Peeked(Message, frozen=True):
    """It holds only if the projection still has that epoch afterwards (rule 20)."""

    request: int
    code: int
    epoch: Epoch
    glsn: GLSN = GLSN(0)
    """The largest position given out; the one before the start if none was."""
    boot: int = 0
    """Which start of the sequencer answers. Asked for epoch 0, which no projection has, it tells nothing else."""
    detail: str = ""


# Clients and replicas


class ChainWrite(Message, frozen=True):
    """Write batches, each at its position, if nothing is written there (S3). Junk is written in the same way (S5)."""

    request: int
    lsid: LogStreamID
    epoch: Epoch
    glsns: tuple[int, ...]
    times: tuple[int, ...]
    """As the sequencer gave them with the positions; 0 of junk that somebody else fills with."""
    batches: tuple[bytes | memoryview, ...]


class ChainWritten(Message, frozen=True):
    """What is not among the refused is durable on this replica."""

    request: int
    lsid: LogStreamID
    code: int
    """Not 0 if nothing of the request was done."""
    epoch: Epoch
    """The replica's."""
    synced: bool = True
    refused: tuple[Refusal, ...] = ()
    """Written, with the batch that is there; or Trimmed, or an error of the batch itself."""
    detail: str = ""


class ChainRead(Message, frozen=True):
    """Read what is written from a position on, in order of positions (S4)."""

    request: int
    lsid: LogStreamID
    epoch: Epoch
    glsn: GLSN
    max_bytes: int
    """At least one batch is told, if there is one."""
    wait: bool = False
    """If nothing covers `glsn`, answer only when something has been written since `seen`, or when the replica tires."""
    seen: int = 0
    verdicts: bool = False
    """As in `Scan`: batches without the flag CONTROL are told by their positions only."""


class ChainPart(Message, frozen=True):
    """The batches that end beyond the position asked for. The first of them may begin before it, or leave it out: then
    nothing is written there (S4). What lies between two of them is not written here, or is another log stream's."""

    request: int
    lsid: LogStreamID
    code: int
    epoch: Epoch
    batches: tuple[StoredLine, ...] = ()
    """LLSN is GLSN, version 0; the time is the sequencer's."""
    end: GLSN = GLSN(0)
    """The replica has nothing written at or beyond this position."""
    seen: int = 0
    """How many writes the replica has taken since it was started."""
    first: GLSN = GLSN(0)
    """With Trimmed: where the log now begins."""
    detail: str = ""


class ChainSeal(Message, frozen=True):
    """Take on a greater epoch (S6)."""

    request: int
    lsid: LogStreamID
    epoch: Epoch
    base: Epoch = Epoch(0)
    """Of the projection that is to be replaced, 0 before the first. A member that never promised that epoch is none,
    whatever the projection says, and refuses. So does one that is to join and has promised a greater one since: it may
    have become a member by then, and what joins is wiped."""
    joins: bool = False
    """It is no member yet: until it has become a copy of the tail it serves nobody (rule 22)."""


class ChainSealed(Message, frozen=True):
    """The epoch is promised durably, and what was in progress is cancelled or counted in `end`; or StaleEpoch."""

    request: int
    lsid: LogStreamID
    code: int
    snid: StorageNodeID
    epoch: Epoch
    """The replica's, now."""
    end: GLSN = GLSN(0)
    """It has nothing written at or beyond this position, and never will in a smaller epoch."""
    time: int = 0
    """The greatest time of what it has."""
    detail: str = ""


# The manager and a replica that is to join a chain; that replica and its source, the chain's tail


class ChainCopy(Message, frozen=True):
    """Become a copy of the chain's tail: find out up to where you are one, wipe what lies beyond, copy the rest (rule
    22). Asked again it tells how far it is."""

    request: int
    lsid: LogStreamID
    epoch: Epoch
    """The source's."""
    source: StorageNodeID
    end: GLSN = GLSN(0)
    """Where the source, sealed, ends: be complete then; only a replica that was sealed as one that joins takes this,
    and once, for a request that comes late must not wipe a member. 0: the source is being written; follow it."""


class ChainCopied(Message, frozen=True):
    request: int
    lsid: LogStreamID
    code: int
    snid: StorageNodeID
    is_complete: bool = False
    """It has all that the source has, up to the `end` that was asked for."""
    verified: GLSN = GLSN(0)
    """Below this it had the same as the source already."""
    copied: GLSN = GLSN(0)
    """Below this it has the same by now."""
    source_end: GLSN = GLSN(0)
    detail: str = ""


class GetDigest(Message, frozen=True):
    """Ask a replica for what it has from a position on, without the bytes."""

    request: int
    lsid: LogStreamID
    epoch: Epoch
    glsn: GLSN
    runs: bool = False
    """Only which positions are written: batches that follow each other are one line, without time and checksum."""


class Digest(Message, frozen=True):
    request: int
    lsid: LogStreamID
    code: int
    epoch: Epoch
    lines: tuple[DigestLine, ...] = ()
    end: GLSN = GLSN(0)
    """All that it has in [the position asked for, `end`) is in the lines."""
    last: GLSN = GLSN(0)
    """It has nothing written at or beyond this position."""
    trim: GLSN = GLSN(0)
    detail: str = ""
