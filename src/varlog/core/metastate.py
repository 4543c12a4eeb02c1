"""The metadata repository's state: one sequence of entries, applied one after another (rule 1).

Everything the metadata repository decides is an entry of one version sequence: a cut, a seal, an unseal, a
projection, a registration, a trim. `MetadataState.apply` is the only way the state changes, and it is a function of
the state and the entry alone, so whoever has read the same entries has the same state. Whether an entry may be made is
decided before, by the functions of `decisions`.

A snapshot of it also has the recent cuts, which a replica that missed some asks for (rule 4, `cuthistory`).
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from varlog import errors
from varlog.core import invariants
from varlog.core.gaps import last_known
from varlog.core.invariants import Invariant
from varlog.core.messages import Range
from varlog.core.projection import Projection
from varlog.core.register import Attempt, Register
from varlog.types import (
    FIRST_EPOCH,
    GLSN,
    LLSN,
    CommitContext,
    Epoch,
    LogStreamID,
    Ordering,
    StorageNodeID,
    StreamStatus,
    TopicID,
    TransactionID,
    Version,
)

_T = TypeVar("_T")


class Entry(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One decision."""


class NodeRegistered(Entry, frozen=True):
    snid: StorageNodeID
    address: str = ""
    volumes: tuple[str, ...] = ()
    proof: str = ""
    generation: int = 0


class NodeAnnounced(Entry, frozen=True):
    """A node has said where it is, and proven who it is if it has a secret (B11)."""

    snid: StorageNodeID
    address: str
    volumes: tuple[str, ...]
    boot: int = 0
    proof: str = ""
    next_proof: str = ""


class NodeRenewed(Entry, frozen=True):
    """A node that lost its disks begins anew."""

    snid: StorageNodeID
    generation: int
    proof: str


class NodeDraining(Entry, frozen=True):
    snid: StorageNodeID
    is_draining: bool


class NodeUnregistered(Entry, frozen=True):
    snid: StorageNodeID


class ManagerRegistered(Entry, frozen=True):
    address: str


class SequencerRegistered(Entry, frozen=True):
    """A sequencer was started. There are not to be too many: `forgotten` is one that nobody needs."""

    address: str
    boot: int
    forgotten: str = ""


class TopicCreated(Entry, frozen=True):
    tpid: TopicID
    name: str
    replication_factor: int
    min_replicas: int
    first: GLSN = GLSN(1)
    """Its first position; what comes before counts as trimmed."""
    ordering: Ordering = Ordering.COMMIT
    block: int = 0


class TopicDeleted(Entry, frozen=True):
    tpid: TopicID


class ArchiveAttached(Entry, frozen=True):
    """What was trimmed of a topic is at `uri`; nowhere if that is empty."""

    tpid: TopicID
    uri: str


class Projected(Entry, frozen=True):
    """From now on this is where the positions of a topic lie, and who gives them out (S7)."""

    tpid: TopicID
    projection: Projection


class StreamCreating(Entry, frozen=True):
    lsid: LogStreamID
    tpid: TopicID


class StreamRegistered(Entry, frozen=True):
    lsid: LogStreamID
    replicas: tuple[StorageNodeID, ...]
    volumes: tuple[str, ...] = ()


class StreamUnregistered(Entry, frozen=True):
    lsid: LogStreamID


class StreamAborted(Entry, frozen=True):
    lsid: LogStreamID


class StreamSealed(Entry, frozen=True):
    lsid: LogStreamID
    epoch: Epoch


class StreamUnsealing(Entry, frozen=True):
    lsid: LogStreamID
    epoch: Epoch
    replicas: tuple[StorageNodeID, ...]
    primary: StorageNodeID
    volumes: tuple[str, ...] = ()


class StreamPlanned(Entry, frozen=True):
    lsid: LogStreamID
    joining: StorageNodeID
    leaving: StorageNodeID


class StreamHeld(Entry, frozen=True):
    lsid: LogStreamID
    is_held: bool


class StreamLost(Entry, frozen=True):
    """What a log stream had from `glsn_begin` on is gone; `replicas` have what is left."""

    lsid: LogStreamID
    glsn_begin: GLSN
    replicas: tuple[StorageNodeID, ...]


class StreamRunning(Entry, frozen=True):
    lsid: LogStreamID
    epoch: Epoch


class Trimmed(Entry, frozen=True):
    tpid: TopicID
    glsn: GLSN


class TransactionBegun(Entry, frozen=True):
    """Its id is the version of this."""

    tpid: TopicID
    name: str
    token: str
    number: int
    after: GLSN
    expiry: int
    time: int
    """In milliseconds."""


class TransactionEnded(Entry, frozen=True):
    """Somebody has seen in the log, at `glsn`, what became of it."""

    tpid: TopicID
    txid: TransactionID
    is_committed: bool
    glsn: GLSN


class TransactionsForgotten(Entry, frozen=True):
    """Nothing counts as committed under a name any more."""

    tpid: TopicID
    name: str


class Cut(Entry, frozen=True):
    """LLSN ranges turned into GLSN ranges."""

    time: int
    hwms: tuple[tuple[int, int, int], ...]
    """(tpid, previous hwm, hwm) of each topic the cut touches."""
    ranges: tuple[Range, ...]


AnyEntry = (
    NodeRegistered
    | NodeAnnounced
    | NodeRenewed
    | NodeDraining
    | NodeUnregistered
    | ManagerRegistered
    | SequencerRegistered
    | TopicCreated
    | TopicDeleted
    | ArchiveAttached
    | Projected
    | StreamCreating
    | StreamRegistered
    | StreamUnregistered
    | StreamAborted
    | StreamSealed
    | StreamUnsealing
    | StreamRunning
    | StreamPlanned
    | StreamHeld
    | StreamLost
    | Trimmed
    | TransactionBegun
    | TransactionEnded
    | TransactionsForgotten
    | Cut
)


def encode_entry(entry: AnyEntry) -> bytes:
    return msgspec.msgpack.encode(entry)


def decode_entry(data: bytes) -> AnyEntry:
    return _decode(_ENTRY, data, "an entry")


class Node(msgspec.Struct, array_like=True):
    address: str
    volumes: tuple[str, ...]
    is_draining: bool = False
    generation: int = 0
    proof: str = ""
    """Of its secret (`core.identity`); empty of a node that was registered without one."""
    next_proof: str = ""
    boot: int = 0
    """Of the start that was admitted last."""


class Topic(msgspec.Struct, array_like=True):
    tpid: TopicID
    name: str
    replication_factor: int
    min_replicas: int
    hwm: GLSN = GLSN(0)
    """Its tail. Of a topic that a sequencer orders, the last position that lies behind its last reconfiguration, or is
    trimmed: the tail is there or beyond."""
    trim: GLSN = GLSN(0)
    archive: str = ""
    ordering: Ordering = Ordering.COMMIT
    block: int = 0
    projection: Projection | None = None

    @property
    def epoch(self) -> Epoch:
        """Of its projection; 0 if it has none."""
        return self.projection.epoch if self.projection is not None else Epoch(0)


class Stream(msgspec.Struct, array_like=True):
    """The snapshot of one log stream (rule 4)."""

    lsid: LogStreamID
    tpid: TopicID
    status: StreamStatus = StreamStatus.CREATING
    epoch: Epoch = Epoch(0)
    replicas: tuple[StorageNodeID, ...] = ()
    primary: StorageNodeID = StorageNodeID(0)
    llsn_end: LLSN = LLSN(1)
    last_glsn: GLSN = GLSN(0)
    touched: Version = Version(0)
    volumes: dict[StorageNodeID, str] = {}
    is_held: bool = False
    joining: StorageNodeID = StorageNodeID(0)
    leaving: StorageNodeID = StorageNodeID(0)
    lost_begin: GLSN = GLSN(0)
    """What it had from here to `last_glsn` is lost; 0 if nothing is. It is held for good then."""
    skipped: tuple[tuple[Epoch, Epoch], ...] = ()
    """The epochs that it came from and went to when a backup was restored: see `restoring`."""

    def known_epoch(self, epoch: int) -> Epoch:
        """The last epoch up to this one that it was ever in: this one itself, unless somebody else gave it out."""
        return Epoch(last_known(epoch, self.epoch, self.skipped))

    def follow_set(self, replicas: tuple[StorageNodeID, ...], volumes: tuple[str, ...]) -> None:
        """Take on another set, with the volumes that are known."""
        told = dict(zip(replicas, volumes, strict=False))
        self.volumes = {snid: told.get(snid) or self.volumes.get(snid, "") for snid in replicas}
        self.replicas = replicas


class MetadataState(msgspec.Struct):
    """See the module's text."""

    version: Version = Version(0)
    time: int = 0
    nodes: dict[StorageNodeID, Node] = {}
    topics: dict[TopicID, Topic] = {}
    streams: dict[LogStreamID, Stream] = {}
    next_tpid: TopicID = TopicID(1)
    next_lsid: LogStreamID = LogStreamID(1)
    manager: str = ""
    sequencers: dict[str, int] = {}
    """Which start of the sequencer that listens there registered last; who did so last is last."""
    registers: dict[TopicID, Register] = {}
    """Of topics that have had transactions."""
    skipped: tuple[tuple[Version, Version], ...] = ()
    """The versions that it came from and went to when a backup was restored: see `restoring`."""

    def known_version(self, version: Version) -> Version:
        """The last version up to this one that it was ever at: this one itself, unless somebody else gave it out."""
        return Version(last_known(version, self.version, self.skipped))

    def apply(self, version: Version, entry: AnyEntry) -> None:
        """Take one step."""
        if version != self.version + 1:
            invariants.require(Invariant.VERSIONS_CONTIGUOUS, False, f"version {version} after {self.version}")
        self.version = version
        match entry:
            case Cut():
                self._apply_cut(version, entry)
            case StreamSealed(lsid, epoch):
                self._enter_epoch(version, lsid, epoch, StreamStatus.SEALED)
            case StreamUnsealing(lsid, epoch, replicas, primary, volumes):
                stream = self._enter_epoch(version, lsid, epoch, StreamStatus.UNSEALING)
                stream.follow_set(replicas, volumes)
                stream.primary = primary
                self._follow_plan(stream)
            case StreamRunning(lsid, epoch):
                stream = self.streams[lsid]
                invariants.require(Invariant.EPOCH_MONOTONE, stream.epoch == epoch, f"{entry} in epoch {stream.epoch}")
                stream.status, stream.touched = StreamStatus.RUNNING, version
            case Trimmed(tpid, glsn):
                topic = self.topics[tpid]
                topic.trim = max(topic.trim, glsn)
                topic.hwm = max(topic.hwm, topic.trim)
            case Projected(tpid, projection):
                self._apply_projection(version, self.topics[tpid], projection)
            case StreamCreating() | StreamRegistered() | StreamAborted() | StreamUnregistered():
                self._apply_stream(version, entry)
            case StreamPlanned() | StreamHeld() | StreamLost():
                self._apply_wish(version, entry)
            case TransactionBegun() | TransactionEnded() | TransactionsForgotten():
                self._apply_transaction(version, entry)
            case _:
                self._apply_registration(entry)

    def _enter_epoch(self, version: Version, lsid: LogStreamID, epoch: Epoch, status: StreamStatus) -> Stream:
        stream = self.streams[lsid]
        sealed = status is StreamStatus.SEALED
        invariants.require(
            Invariant.EPOCH_MONOTONE,
            epoch == stream.epoch + 1 and (epoch % 2 == 1) == sealed,
            f"log stream {lsid}: epoch {epoch} ({status.name}) after {stream.epoch}",
        )
        stream.epoch, stream.status, stream.touched = epoch, status, version
        return stream

    def _apply_projection(self, version: Version, topic: Topic, projection: Projection) -> None:
        """The log streams are what their chains say."""
        invariants.require(
            Invariant.EPOCH_MONOTONE,
            projection.epoch > topic.epoch,
            f"topic {topic.tpid}: a projection of epoch {projection.epoch} after {topic.epoch}",
        )
        topic.projection = projection
        topic.hwm = max(topic.hwm, GLSN(projection.start - 1))
        for chain in projection.chains:
            stream = self.streams[chain.lsid]
            stream.epoch, stream.primary, stream.touched = projection.epoch, chain.head, version
            stream.follow_set(chain.nodes, ())
            self._follow_plan(stream)

    def _follow_plan(self, stream: Stream) -> None:
        """What an operator wants and the set has is done. Where no replica is wanted there shall be none until the set
        is whole without it: else it would be the first to be asked back."""
        if stream.joining in stream.replicas:
            stream.joining = StorageNodeID(0)
        is_whole = len(stream.replicas) >= self.topics[stream.tpid].replication_factor
        if stream.leaving not in stream.replicas and is_whole:
            stream.leaving = StorageNodeID(0)

    def _apply_cut(self, version: Version, cut: Cut) -> None:
        self.time = cut.time
        ends = {}
        for tpid, prev_hwm, hwm in cut.hwms:
            topic = self.topics[TopicID(tpid)]
            if topic.hwm != prev_hwm:
                detail = f"topic {tpid}: a cut from {prev_hwm} at {topic.hwm}"
                invariants.require(Invariant.GLSN_DENSE, False, detail)
            ends[tpid] = prev_hwm
            topic.hwm = GLSN(hwm)
        streams = self.streams
        for lsid, epoch, llsn_begin, glsn_begin, count in cut.ranges:
            stream = streams[LogStreamID(lsid)]
            if stream.epoch != epoch or stream.llsn_end != llsn_begin or ends[stream.tpid] != glsn_begin - 1:
                self._refuse_range(stream, epoch, llsn_begin, glsn_begin)
            ends[stream.tpid] = last = glsn_begin + count - 1
            stream.llsn_end = LLSN(llsn_begin + count)
            stream.last_glsn = GLSN(last)
            stream.touched = version
        for tpid, _, hwm in cut.hwms:
            if ends[tpid] != hwm:
                invariants.require(Invariant.GLSN_DENSE, False, f"topic {tpid}: dealt to {ends[tpid]} of {hwm}")

    def _refuse_range(self, stream: Stream, epoch: int, llsn_begin: int, glsn_begin: int) -> None:
        where = f"log stream {stream.lsid} at {stream.llsn_end} in epoch {stream.epoch}"
        invariants.require(Invariant.NOTHING_AFTER_SEAL, stream.epoch == epoch, f"{where}: a range of epoch {epoch}")
        invariants.require(Invariant.EQUAL_PREFIXES, stream.llsn_end == llsn_begin, f"{where}: a range at {llsn_begin}")
        invariants.require(Invariant.GLSN_DENSE, False, f"{where}: GLSNs are dealt out of order at {glsn_begin}")

    def _apply_stream(self, version: Version, entry: AnyEntry) -> None:
        match entry:
            case StreamCreating(lsid, tpid):
                self.streams[lsid] = Stream(lsid, tpid, touched=version)
                self.next_lsid = LogStreamID(lsid + 1)
            case StreamRegistered(lsid, replicas, volumes):
                stream = self.streams[lsid]
                stream.follow_set(replicas, volumes)
                stream.primary = replicas[0]
                stream.status, stream.epoch, stream.touched = StreamStatus.SEALED, FIRST_EPOCH, version
                if self.topics[stream.tpid].ordering is Ordering.SEQUENCER:
                    stream.status, stream.epoch = StreamStatus.CHAINED, Epoch(0)
            case StreamAborted(lsid):
                self.streams[lsid].status = StreamStatus.ABORTED
            case StreamUnregistered(lsid):
                del self.streams[lsid]
            case _:
                raise errors.InvalidArgument(f"no such entry: {entry}")

    def _apply_wish(self, version: Version, entry: AnyEntry) -> None:
        match entry:
            case StreamPlanned(lsid, joining, leaving):
                self.streams[lsid].joining, self.streams[lsid].leaving = joining, leaving
            case StreamHeld(lsid, is_held):
                self.streams[lsid].is_held = is_held
            case StreamLost(lsid, glsn_begin, replicas):
                stream = self.streams[lsid]
                stream.follow_set(replicas, ())
                stream.primary = replicas[0] if replicas else StorageNodeID(0)
                stream.lost_begin, stream.is_held, stream.touched = glsn_begin, True, version
                stream.joining = stream.leaving = StorageNodeID(0)
            case _:
                raise errors.InvalidArgument(f"no such entry: {entry}")

    def _apply_transaction(
        self, version: Version, entry: TransactionBegun | TransactionEnded | TransactionsForgotten
    ) -> None:
        register = self.registers.setdefault(entry.tpid, Register())
        match entry:
            case TransactionBegun(_, name, token, number, after, expiry, time):
                register.begin(Attempt(TransactionID(version), name, token, number, after, expiry, time))
            case TransactionEnded(_, txid, is_committed, glsn):
                register.end(txid, is_committed, glsn)
            case TransactionsForgotten(_, name):
                register.forget(name)

    def _apply_registration(self, entry: AnyEntry) -> None:
        match entry:
            case NodeRegistered(snid, address, volumes, proof, generation):
                self.nodes[snid] = Node(address, volumes, generation=generation, proof=proof)
            case NodeAnnounced(snid, address, volumes, boot, proof, next_proof):
                node = self.nodes[snid]
                node.address, node.volumes = address, volumes
                node.boot, node.proof, node.next_proof = boot, proof, next_proof
            case NodeRenewed(snid, generation, proof):
                node = self.nodes[snid]
                node.generation, node.proof, node.next_proof = generation, proof, ""
            case NodeDraining(snid, is_draining):
                self.nodes[snid].is_draining = is_draining
            case NodeUnregistered(snid):
                del self.nodes[snid]
                for stream in self.streams.values():
                    if stream.leaving == snid:
                        stream.leaving = StorageNodeID(0)
            case ManagerRegistered(address):
                self.manager = address
            case SequencerRegistered(address, boot, forgotten):
                self.sequencers.pop(address, None)
                self.sequencers.pop(forgotten, None)
                self.sequencers[address] = boot
            case TopicCreated(tpid, name, replication_factor, min_replicas, first, ordering, block):
                before = GLSN(first - 1)
                self.topics[tpid] = Topic(
                    tpid, name, replication_factor, min_replicas, before, before, ordering=ordering, block=block
                )
                self.next_tpid = TopicID(tpid + 1)
            case ArchiveAttached(tpid, uri):
                self.topics[tpid].archive = uri
            case TopicDeleted(tpid):
                del self.topics[tpid]
                self.registers.pop(tpid, None)
                for lsid in [stream.lsid for stream in self.streams.values() if stream.tpid == tpid]:
                    del self.streams[lsid]
            case _:
                raise errors.InvalidArgument(f"no such entry: {entry}")


class Checkpoint(msgspec.Struct, array_like=True):
    """The state and the cuts still held, as of one version: what need not be replayed."""

    state: MetadataState
    held: dict[LogStreamID, list[CommitContext]]

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        return _decode(_CHECKPOINT, data, "a checkpoint")


_ENTRY: Final[msgspec.msgpack.Decoder[AnyEntry]] = msgspec.msgpack.Decoder(AnyEntry)
_CHECKPOINT: Final = msgspec.msgpack.Decoder(Checkpoint)


def _decode(decoder: msgspec.msgpack.Decoder[_T], data: bytes, what: str) -> _T:
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError) as e:  # also for text that is not UTF-8, and for arrays nested without end
        raise errors.MalformedMetadata(f"{len(data)} bytes are not {what}: {e}") from None
