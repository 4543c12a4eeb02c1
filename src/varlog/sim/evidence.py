"""All that is known about a run once it is over, for the checkers to judge.

The history is what clients saw. The rest is what lay behind it: what every replica holds as committed at the end, every
frame any replica ever stored, and what the metadata repository says. `Evidence` also offers the few ways of looking at
them that several checkers share; each is worked out once.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from varlog import batch
from varlog.sim.history import History, Kind, Operation, Outcome
from varlog.sim.ledger import Ledger, Spoken

_JUNK = b"junk at "
_VERDICT = b"verdict at "


def junk(glsn: int) -> bytes:
    """What stands for junk at a position, which is no entry: everybody has to agree on it as on any other."""
    return _JUNK + b"%d" % glsn


def is_junk(payload: bytes) -> bool:
    return payload.startswith(_JUNK)


def is_entry(payload: bytes) -> bool:
    """Whether it is something that somebody appended, and not what stands for junk or a verdict."""
    return not payload.startswith((_JUNK, _VERDICT))


def verdict_in(payload: bytes) -> bytes | None:
    """The verdict that a payload stands for, if it does."""
    return payload.partition(b": ")[2] if payload.startswith(_VERDICT) else None


def payloads_of(record: batch.RecordBatch, glsn: int, skip: int = 0, count: int | None = None) -> list[bytes]:
    """The entries of a batch, or what stands for them if it has none: two verdicts may be the same bytes, and that is
    in order."""
    end = skip + count if count is not None else record.count
    if record.flags & batch.BatchFlag.JUNK:
        return [junk(glsn + i) for i in range(skip, end)]
    if record.flags & batch.BatchFlag.CONTROL:
        return [_VERDICT + b"%d: " % (glsn + skip + i) + entry for i, entry in enumerate(record.to_list()[skip:end])]
    return record.to_list()[skip:end]


class CommittedBatch(NamedTuple):
    """A committed batch as a replica holds it; positions are those of its first entry."""

    llsn: int
    glsn: int
    epoch: int
    payloads: tuple[bytes, ...]


@dataclass(frozen=True)
class ReplicaDump:
    """What one replica holds as committed at the end, in log order."""

    topic: int
    lsid: int
    node: str
    batches: Sequence[CommittedBatch]
    committed_end: int
    """The first LLSN that is not committed here."""
    trim: int = 0
    """The last GLSN this replica refuses as trimmed."""
    damaged: bool = False
    """Its storage is corrupt and says so; what is dumped is what it could still read from its beginning on."""

    def entries(self) -> Iterator[tuple[int, int, int, bytes]]:
        """(llsn, glsn, epoch, payload) of each entry."""
        for llsn, glsn, epoch, payloads in self.batches:
            for i, payload in enumerate(payloads):
                yield llsn + i, glsn + i, epoch, payload


@dataclass(frozen=True)
class TopicState:
    """What the metadata repository says of a topic at the end."""

    hwm: int
    trim: int = 0
    """The last trimmed GLSN."""
    ends: Mapping[int, int] = field(default_factory=dict)
    """Per log stream the first LLSN that no cut committed."""
    first: int = 1
    """The first GLSN that it gave out."""


class Frame(NamedTuple):
    """A batch that some replica stored, committed or not."""

    lsid: int
    epoch: int
    llsn: int
    entries: int
    content: bytes
    """The batch, or a digest of it."""


class Frames:
    """Every distinct frame ever stored anywhere, with who was first seen to have it."""

    def __init__(self) -> None:
        self.seen: dict[Frame, str] = {}

    def saw(self, lsid: int, epoch: int, llsn: int, entries: int, content: bytes, where: str) -> None:
        self.seen.setdefault(Frame(lsid, epoch, llsn, entries, content), where)


class Durability:
    """How far each replica has synced each epoch's batches, and which cuts were told before all had."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int, str], int] = {}
        self._told: set[tuple[int, ...]] = set()
        self.early: list[str] = []

    def synced(self, lsid: int, epoch: int, llsn_end: int, node: str) -> None:
        """A node has synced a log stream's batches of an epoch up to there."""
        key = (lsid, epoch, node)
        self._ends[key] = max(self._ends.get(key, 0), llsn_end)

    def told(self, cut: tuple[int, int, int, int, int], nodes: Sequence[str]) -> None:
        """Somebody was told that (lsid, epoch, llsn_begin, glsn_begin, count) is committed; these nodes are the set."""
        if cut in self._told:
            return
        self._told.add(cut)
        lsid, epoch, llsn_begin, _, count = cut
        for node in nodes:
            end = self._ends.get((lsid, epoch, node), 0)
            if end < llsn_begin + count:
                what = f"log stream {lsid}, epoch {epoch}, LLSN {llsn_begin} to {llsn_begin + count}"
                self.early.append(f"{what} was committed when {node} had synced it to {end}")

    @property
    def cuts(self) -> list[tuple[int, ...]]:
        """Every cut that was ever told, in order of log stream, epoch and LLSN."""
        return sorted(self._told)


@dataclass(frozen=True)
class LivenessPhase:
    """The last part of a run, when nothing was broken any more."""

    healed: float
    """When the last fault had ended."""
    ended: float
    grace: float
    """How long a healed cluster may take until everything works again."""
    writers: Sequence[str]
    """Clients that went on appending until the end."""
    settled: float = math.inf
    """From then on nothing that is asked for may take until its deadline."""
    unsettled: Sequence[str] = ()
    """What was not in order at the end, in words."""
    must_commit: bool = False
    """Whether clients went on with transactions until the end; they get in each other's way, but not all of them."""


class Sighting(NamedTuple):
    """Somebody says which entry is at a position."""

    topic: int
    glsn: int
    payload: bytes
    where: object
    """Who says so: an operation, or words."""


class Position(NamedTuple):
    """Where an entry lies at the end."""

    lsid: int
    llsn: int
    epoch: int
    payload: bytes


@dataclass(frozen=True)
class Evidence:
    history: History
    topics: Mapping[int, TopicState]
    replicas: Sequence[ReplicaDump]
    frames: Frames = field(default_factory=Frames)
    durability: Durability = field(default_factory=Durability)
    decided: Sequence[Sighting] = ()
    """What cuts have committed, also where it was trimmed since or its replicas are down."""
    liveness: LivenessPhase | None = None
    verdicts: Sequence[Spoken] = ()
    """Those on transactions that anybody has seen, in the only topic there is where they are simulated."""

    def trim(self, topic: int) -> int:
        """The last trimmed GLSN of a topic."""
        state = self.topics.get(topic)
        return 0 if state is None else state.trim

    def hwm(self, topic: int) -> int:
        """The last committed GLSN of a topic."""
        state = self.topics.get(topic)
        return 0 if state is None else state.hwm

    @cached_property
    def stored(self) -> Mapping[tuple[int, int], Position]:
        """(topic, glsn) -> where and what, over all replicas; the first replica's word where they differ."""
        found: dict[tuple[int, int], Position] = {}
        for replica in self.replicas:
            for llsn, glsn, epoch, payload in replica.entries():
                found.setdefault((replica.topic, glsn), Position(replica.lsid, llsn, epoch, payload))
        return found

    @cached_property
    def sightings(self) -> Sequence[Sighting]:
        """Every word on which entry is where: acknowledgements, reads, deliveries, cuts, replicas."""
        found = list(self.decided)
        for op in self.history.operations:
            if op.outcome is Outcome.OK and op.kind in (Kind.APPEND, Kind.READ, Kind.DELIVERY):
                first = op.position if op.kind is Kind.READ else op.glsn
                for i, payload in enumerate(op.payloads):
                    found.append(Sighting(op.topic, first + i, payload, op))
        for replica in self.replicas:
            where = f"replica of {replica.lsid} on {replica.node}"
            for _, glsn, _, payload in replica.entries():
                found.append(Sighting(replica.topic, glsn, payload, where))
        return found

    @cached_property
    def places(self) -> Mapping[bytes, Mapping[tuple[int, int], object]]:
        """Payload -> every (topic, glsn) it was seen at, with who saw it first."""
        found: defaultdict[bytes, dict[tuple[int, int], object]] = defaultdict(dict)
        for topic, glsn, payload, where in self.sightings:
            found[payload].setdefault((topic, glsn), where)
        return found

    @cached_property
    def reached(self) -> Mapping[int, int]:
        """By the id of a scan or subscription, the first position that it has neither delivered nor passed over."""
        found = {op.id: op.position for op in self.history.of(Kind.SCAN, Kind.SUBSCRIBE)}
        for op in self.history.of(Kind.DELIVERY, Kind.PASS):
            found[op.parent] = op.end if op.kind is Kind.PASS else op.glsn + len(op.payloads)
        return found

    @cached_property
    def ledger(self) -> Ledger:
        """The transactions of the run."""
        seen = {glsn for _, glsn, _, _ in self.sightings}
        for op in self.history.of(Kind.PASS):
            seen.update(range(op.glsn, op.end))
        return Ledger(self.history, self.append_position, self.verdicts, seen)

    def append_position(self, append: Operation) -> int | None:
        """The GLSN of an append's first entry, also where the client was not told; None if it was never seen."""
        if append.outcome is Outcome.OK:
            return append.glsn
        for i, payload in enumerate(append.payloads):
            for topic, glsn in self.places.get(payload, ()):
                if topic == append.topic:
                    return glsn - i
        return None


class KnownBefore:
    """The greatest position of a topic that any client had been told of before a moment.

    Told of by an acknowledgement, a read, a delivery, what a reader passed over, or a tail: from then on the log is at
    least that long for all.
    """

    def __init__(self, history: History, topic: int) -> None:
        self._times: list[float] = []
        self._greatest: list[tuple[int, Operation]] = []
        told = [(op.completed, last, op) for op in history.operations if op.topic == topic and (last := _tells(op))]
        told.sort(key=lambda one: one[0])
        for time, last, op in told:
            if not self._greatest or last > self._greatest[-1][0]:
                self._times.append(time)
                self._greatest.append((last, op))

    def at(self, moment: float) -> tuple[int, Operation] | None:
        """The position and who was told it; None if nothing was known yet."""
        i = bisect_left(self._times, moment)
        return self._greatest[i - 1] if i else None


def _tells(op: Operation) -> int:
    """The position a client knows to be taken once this operation has ended."""
    if op.outcome is not Outcome.OK:
        return 0
    if op.kind in (Kind.APPEND, Kind.DELIVERY):
        return op.glsn + len(op.payloads) - 1
    if op.kind is Kind.READ:
        return op.position
    if op.kind is Kind.PASS:
        return op.end - 1
    return op.glsn if op.kind in (Kind.TAIL, Kind.VERDICT) else 0
