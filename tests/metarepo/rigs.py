"""Metadata stores ready to be driven by a test: requests go in, `settle` lets everything happen that can happen."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Generic, Protocol, TypeVar

from varlog.core.store import (
    LEADER_KEY,
    KeyValue,
    Lease,
    LeaseID,
    LeaseOutcome,
    MetadataStore,
    ReadResult,
    Txn,
    TxnOutcome,
    WatchNotice,
)
from varlog.metarepo.journal import Journal, JournalOptions
from varlog.sim.disk import SimDisk
from varlog.sim.store import SimStore, SimStoreClient, StoreFaults
from varlog.types import ClusterID

T = TypeVar("T")

CID = ClusterID(7)
DIRECTORY = "/meta"


class Inbox(Generic[T]):
    """A callback that keeps what it is called with."""

    def __init__(self) -> None:
        self.items: list[T] = []

    def __call__(self, item: T) -> None:
        self.items.append(item)

    @property
    def one(self) -> T:
        (item,) = self.items
        return item


def unheard(_: object) -> None:
    """A callback for what a test does not care for."""


class Rig(Protocol):
    """A store under test. `second` is the same store seen by somebody else, where there can be somebody else."""

    @property
    def store(self) -> MetadataStore: ...

    @property
    def second(self) -> MetadataStore: ...

    def settle(self) -> None:
        """Let every request sent so far be answered, without letting leases end."""

    def advance(self, seconds: float) -> None: ...


def pump(journal: Journal) -> None:
    """What a host does, all at once."""
    while (group := journal.take()) is not None:
        journal.write(group)
        journal.sync(group)
        journal.finish(group)


def open_journal(disk: SimDisk, *, compact_bytes: int = 4096, cid: ClusterID = CID) -> Journal:
    """A journal whose nonces can be told again: each file's follows from how much the disk has done before."""
    nonces = count(1 + disk.operations * 1000)
    return Journal.open(disk, DIRECTORY, cid, JournalOptions(compact_bytes, lambda: next(nonces)))


class JournalRig:
    """A journal on a disk that may have had another life before."""

    TICK = 0.125

    def __init__(self, disk: SimDisk | None = None) -> None:
        self.disk = disk or SimDisk()
        self.journal = open_journal(self.disk)
        self._now = 100.0

    @property
    def store(self) -> Journal:
        return self.journal

    @property
    def second(self) -> Journal:
        return self.journal

    def restart(self) -> None:
        """The process is killed and started again."""
        self.disk.kill()
        self.journal = open_journal(self.disk)

    def settle(self) -> None:
        pump(self.journal)

    def advance(self, seconds: float) -> None:
        end = self._now + seconds
        while self._now < end:
            self._now += self.TICK
            self.journal.tick(self._now)
        pump(self.journal)


class Timeline:
    """The least a simulated store needs of a world: time that passes when told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def schedule(self, delay: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), act))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.now = end


class SimRig:
    def __init__(self, faults: StoreFaults | None = None, seed: int = 1) -> None:
        self.timeline = Timeline()
        self.sim = SimStore(self.timeline.schedule, lambda: self.timeline.now, random.Random(seed), faults)
        self.store = SimStoreClient(self.sim, self.timeline.schedule)
        self.second = SimStoreClient(self.sim, self.timeline.schedule)

    def settle(self) -> None:
        self.timeline.run(0.1)

    def advance(self, seconds: float) -> None:
        self.timeline.run(seconds)


def commit(rig: Rig, txn: Txn) -> TxnOutcome:
    outcome: Inbox[TxnOutcome] = Inbox()
    rig.store.txn(txn, outcome)
    rig.settle()
    return outcome.one


def look(rig: Rig, prefix: str = "") -> dict[str, KeyValue]:
    """Everything under a prefix, but for the leadership, which only some stores have."""
    found: Inbox[object] = Inbox()
    rig.store.read_prefix(prefix, found)
    rig.settle()
    result = found.one
    assert isinstance(result, ReadResult)
    return {key: kv for key, kv in result.kvs.items() if key != LEADER_KEY}


def leader_revision(journal: Journal) -> int:
    """What a leader compares with."""
    found: Inbox[object] = Inbox()
    journal.read((LEADER_KEY,), found)
    pump(journal)
    result = found.one
    assert isinstance(result, ReadResult)
    return result.kvs[LEADER_KEY].revision


def revision(rig: Rig) -> int:
    found: Inbox[object] = Inbox()
    rig.store.read((), found)
    rig.settle()
    result = found.one
    assert isinstance(result, ReadResult)
    return result.revision


def grant(rig: Rig, ttl: int) -> LeaseID:
    outcome: Inbox[LeaseOutcome] = Inbox()
    rig.store.lease_grant(ttl, outcome)
    rig.settle()
    assert isinstance(outcome.one, Lease)
    return outcome.one.id


def watched(rig: Rig, prefix: str, after_revision: int) -> Inbox[WatchNotice]:
    notices: Inbox[WatchNotice] = Inbox()
    rig.second.watch(prefix, after_revision, notices)
    rig.settle()
    return notices
