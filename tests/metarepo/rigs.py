"""Metadata stores ready to be driven by a test: requests go in, `settle` lets everything happen that can happen."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Any, Final, Generic, Protocol, TypeVar

from tests.cluster.waiting import pause
from varlog.core.store import (
    LEADER_KEY,
    KeyValue,
    Lease,
    LeaseID,
    LeaseOutcome,
    MetadataStore,
    ReadOutcome,
    ReadResult,
    Txn,
    TxnOutcome,
    WatchEvents,
    WatchNotice,
)
from varlog.etcdserver import EtcdCluster
from varlog.metarepo.etcd.address import EtcdAddress
from varlog.metarepo.etcd.store import EtcdStore
from varlog.metarepo.etcd.watching import EtcdWatch
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

    def close(self) -> None: ...


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

    def close(self) -> None:
        """Its disk is forgotten with it."""


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
        self.timeline.run(0.2)

    def advance(self, seconds: float) -> None:
        self.timeline.run(seconds)

    def close(self) -> None:
        """Its world is forgotten with it."""


class ObservedStore(EtcdStore):
    """Keeps its watches and leases in sight."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.watches: list[EtcdWatch] = []
        self.leases: list[LeaseID] = []

    def watch(self, prefix: str, after_revision: int, notify: Callable[[WatchNotice], None]) -> EtcdWatch:
        watch = super().watch(prefix, after_revision, notify)
        self.watches.append(watch)
        return watch

    def lease_grant(self, ttl: int, done: Callable[[LeaseOutcome], None]) -> None:
        def on_granted(outcome: LeaseOutcome) -> None:
            if isinstance(outcome, Lease):
                self.leases.append(outcome.id)
            done(outcome)

        super().lease_grant(ttl, on_granted)


class EtcdRig:
    """A prefix of its own in a real etcd, where nobody else writes meanwhile: a revision is the rig's, or nobody's.

    So a watch of everything under the prefix has every revision, and says which of them a narrower watch still waits
    for.
    """

    SECONDS: Final = 10.0
    LOOK_AGAIN: Final = 0.001
    _numbers = count(1)

    def __init__(self, etcd: EtcdCluster) -> None:
        self._loop = asyncio.new_event_loop()
        address = EtcdAddress.parse(etcd.url(f"conformance/{next(self._numbers)}"))
        any_version = not etcd.program.is_sound
        self.store, self.second = [
            self._loop.run_until_complete(ObservedStore.open(address, any_version=any_version)) for _ in range(2)
        ]
        self._history: list[WatchEvents] = []
        self._all = EtcdStore.watch(self.second, "", self._revision(), self._on_change)

    def _on_change(self, notice: WatchNotice) -> None:
        assert isinstance(notice, WatchEvents)
        self._history.append(notice)

    def _revision(self) -> int:
        return self._loop.run_until_complete(self._read_revision())

    async def _read_revision(self) -> int:
        answer: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()
        self.second.read((), answer.set_result)
        outcome = await answer
        assert isinstance(outcome, ReadResult)
        return outcome.revision

    def settle(self) -> None:
        self._loop.run_until_complete(asyncio.wait_for(self._settled(), self.SECONDS))

    async def _settled(self) -> None:
        await self._until(lambda: not self.store.pending and not self.second.pending)
        revision = await self._read_revision()
        await self._until(lambda: self._all.told >= revision)
        await self._until(lambda: all(map(self._has_been_told, self.store.watches + self.second.watches)))
        await self._until(lambda: not self.store.pending and not self.second.pending)

    def _has_been_told(self, watch: EtcdWatch) -> bool:
        behind = [events for events in self._history if events.revision > watch.told]
        keys = [key for events in behind for key in (*events.deletes, *(kv.key for kv in events.puts))]
        return watch.ended or not any(key.startswith(watch.prefix) for key in keys)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await pause(self.LOOK_AGAIN)

    def advance(self, seconds: float) -> None:
        """etcd has a clock of its own."""
        self._loop.run_until_complete(pause(seconds))
        self.settle()

    def close(self) -> None:
        """Nothing is left that would change the revision while the next one looks at it."""
        for lease in self.store.leases + self.second.leases:
            self.store.lease_revoke(lease, unheard)
        self.settle()
        for store in (self.store, self.second):
            self._loop.run_until_complete(store.close())
        self._loop.close()


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
