"""The manager and a storage node: the replicas it has, and what becomes of them (M12)."""

from __future__ import annotations

import msgspec

from varlog.core.messages.base import Message
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, Ordering, ReplicaState, StorageNodeID, TopicID, Version


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
    needs_sync: bool = False
    """It lacks what only a copy from another replica can bring (rule 7)."""
    source: StorageNodeID = StorageNodeID(0)
    """The node it copies from at present."""
    source_end: LLSN = LLSN(0)
    """How far the source was a moment before it last answered."""
    suspect: StorageNodeID = StorageNodeID(0)
    """The backup that made it seal itself (M7)."""


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
    is_identified: bool = True
    """False of a node whose volumes hold no secret: it was never registered, or has lost its disks (B11)."""
    unanswered: float = 0.0
    """For how many seconds the metadata repository has owed it the answer to a full report."""


class AdoptIdentity(Message, frozen=True):
    """A node is given its secret, at registration or after it lost its disks (B11)."""

    request: int
    snid: StorageNodeID
    """The node it is meant for."""
    secret: str
    generation: int

    def __repr__(self) -> str:
        return f"AdoptIdentity({self.request}, {self.snid}, ..., {self.generation})"


class IdentityAdopted(Message, frozen=True):
    request: int
    code: int
    detail: str = ""


class AddLogStream(Message, frozen=True):
    """Make an empty replica on one of the node's volumes (M2)."""

    request: int
    tpid: TopicID
    lsid: LogStreamID
    volume: str = ""
    """The path of the volume; empty lets the node choose."""
    ordering: Ordering = Ordering.COMMIT


class RemoveLogStream(Message, frozen=True):
    """Delete a replica and its data. A node that has none agrees."""

    request: int
    lsid: LogStreamID
    new_only: bool = False
    """Only if nothing has happened to it since it was made: what has a past is refused, and left as it is (B6)."""
    failed_only: bool = False
    """Only if it has failed or is corrupt. A request that comes late finds it repaired, and must not delete that."""
    until: Epoch = Epoch(0)
    """Only if it knows of no later epoch than this, in which the log stream runs without it; 0: of whichever. A request
    that comes late may find it in the set again."""


class ReopenLogStream(Message, frozen=True):
    """Open a replica that has failed to write once more, from its files, as a restart would: what it holds may be all
    that is left. One that is sound stays as it is, one that is corrupt is refused."""

    request: int
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


class Sync(Message, frozen=True):
    """Copy from another replica what is missing here, in the background (M9). Asked again it tells how far it is."""

    request: int
    lsid: LogStreamID
    epoch: Epoch
    """The log stream's, as the metadata repository lists it."""
    source: StorageNodeID
    learner: bool
    """The target is outside the set: it follows a source that runs until it is sealed (rule 12)."""


class SyncReply(Message, frozen=True):
    request: int
    lsid: LogStreamID
    code: int
    """0, or AlreadySync if it copies from another source."""
    snid: StorageNodeID
    is_complete: bool
    """SYNC_COMPLETE: nothing that the source had committed is missing here. Else SYNC_INPROGRESS."""
    source: StorageNodeID = StorageNodeID(0)
    copied_end: LLSN = LLSN(0)
    source_end: LLSN = LLSN(0)
    detail: str = ""


class Scrub(Message, frozen=True):
    """Ask a storage node how far it is with reading its replicas through, which finds damage."""

    request: int
    begin: bool = False
    """Begin a pass now; if one is under way, let it hurry."""


class ScrubState(Message, frozen=True):
    """How far it is, and what it has found."""

    request: int
    snid: StorageNodeID
    passes: int
    """How many passes have ended since the node started."""
    is_under_way: bool
    left: int
    """How many replicas this pass has yet to read to the end."""
    bytes: int
    """How much was read since the node started, by all passes."""
    damaged: tuple[LogStreamID, ...] = ()
    """The log streams whose replicas this pass, or the last one, has found to be corrupt."""


class GetFingerprint(Message, frozen=True):
    """Ask a replica what it holds of [glsn_begin, glsn_end), to be compared with another's (`core.fingerprints`)."""

    request: int
    lsid: LogStreamID
    glsn_begin: GLSN
    glsn_end: GLSN


class Fingerprint(Message, frozen=True):
    """Equal of replicas that hold the same, and of no others. It covers whole batches, as many as one answer may."""

    request: int
    lsid: LogStreamID
    code: int
    snid: StorageNodeID
    trim: GLSN = GLSN(0)
    """Up to where its log is trimmed: only what lies above is covered."""
    next_glsn: GLSN = GLSN(0)
    """Where to go on asking; 0 if all of the range is covered."""
    llsn_begin: LLSN = LLSN(0)
    """What it has of the range are the entries in [llsn_begin, llsn_end); 0 if it has none."""
    llsn_end: LLSN = LLSN(0)
    batches: int = 0
    commits: int = 0
    content: bytes = b""
    """Of the batches with their LLSNs, GLSNs and epochs."""
    chain: bytes = b""
    """Of the commit contexts."""
    first_version: Version = Version(0)
    """Of the first commit context,"""
    prev_hwm: GLSN = GLSN(0)
    """and the high watermark before it;"""
    last_version: Version = Version(0)
    """of the last one,"""
    hwm: GLSN = GLSN(0)
    """and the high watermark after it."""
    spans: tuple[tuple[int, int], ...] = ()
    """The positions it has, as [begin, end), ascending; what is adjacent is joined."""
    detail: str = ""


class ReplicaReply(Message, frozen=True):
    """The answer to AddLogStream, RemoveLogStream, ReopenLogStream, Seal and Unseal."""

    request: int
    lsid: LogStreamID
    code: int
    snid: StorageNodeID
    epoch: Epoch
    state: ReplicaState
    committed_end: LLSN
    detail: str = ""
