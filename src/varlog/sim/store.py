"""A simulated metadata store: one linearizable store, any number of clients, and a network between that may fail.

`SimStore` is the store itself and never loses anything. `SimStoreClient` is one process's connection to it and a
`MetadataStore`. A request takes a while to arrive, takes effect in that moment, and its answer takes a while to come
back; what goes wrong on the way is drawn from the random numbers handed in, by the odds in `StoreFaults`, which may be
changed at any time:

- *refused*: the store did not take the request, and says so;
- *lost*: it never arrived, and nobody can know;
- *unanswered*: it took effect, and the answer was lost;
- *late*: the client gave up first, and it takes effect after that. The client that reads in between sees a store
  without it, and must not conclude that it never happened.

`SimStore.available` and `SimStoreClient.connected` switch everyone, or one client, off: requests on their way then end
refused or unknown, answers on their way are lost, watches and leases wait.

Time is only a `schedule(delay, function)` and a `clock()` handed in. The store's own runs whatever happens to a
client; a client's own should be its process's, so that a dead process is called no more. A process that ends calls
`close`.

What always holds: an outcome is never wrong. `Committed` took effect exactly once, `StoreUnavailable` never will.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from varlog import limits
from varlog.core.keyspace import Change, Keyspace, KeyspaceWatch, Watches
from varlog.core.store import (
    Committed,
    Lease,
    LeaseID,
    LeaseOutcome,
    ReadOutcome,
    Remaining,
    RemainingOutcome,
    Txn,
    TxnOutcome,
    Watch,
    WatchNotice,
    check_ttl,
    check_txn,
)
from varlog.errors import LeaseNotFound, OutcomeUnknown, StoreUnavailable

T = TypeVar("T")

Schedule = Callable[[float, Callable[[], None]], object]


class StoreFault(Enum):
    """What the way to the store and back may do to a request; `SimStore.faults` counts how often it did."""

    REFUSED = "metadata store refused"
    LOST = "metadata write lost, outcome unknown"
    UNANSWERED = "metadata write happened, outcome unknown"
    LATE = "metadata write happened after its outcome was unknown"


@dataclass
class StoreFaults:
    """The odds, per request, and the delays, in seconds."""

    delay: tuple[float, float] = (0.0005, 0.002)
    """One way, between the two."""
    watch_delay: tuple[float, float] = (0.0005, 0.1)
    """Until a watch is told, between the two."""
    patience: float = 1.0
    """After this a client takes an unanswered request's outcome for unknown."""
    refused: float = 0.0
    lost: float = 0.0
    unanswered: float = 0.0
    late: float = 0.0
    lateness: float = 2.0
    """A late request takes effect up to this long after its client gave up."""


class SimStore:
    """The store behind all its clients."""

    def __init__(
        self, schedule: Schedule, clock: Callable[[], float], rng: random.Random, faults: StoreFaults | None = None
    ) -> None:
        self.odds = faults or StoreFaults()
        self.clients: list[SimStoreClient] = []
        self.faults: Counter[StoreFault] = Counter()
        self.keyspace = Keyspace()
        """The truth, for checkers."""
        self._schedule = schedule
        self._clock = clock
        self._rng = rng
        self._available = True
        self._watches = Watches(0)
        self._renewals: Counter[LeaseID] = Counter()
        self._ends: dict[LeaseID, float] = {}

    @property
    def available(self) -> bool:
        return self._available

    @available.setter
    def available(self, available: bool) -> None:
        self._available = available
        for client in self.clients:
            client.resume_watches()

    def delay(self) -> float:
        return self._rng.uniform(*self.odds.delay)

    def watch_delay(self) -> float:
        return self._rng.uniform(*self.odds.watch_delay)

    def after_delay(self, arrive: Callable[[], None]) -> None:
        self._schedule(self.delay(), arrive)

    def after_patience(self, act: Callable[[], None]) -> None:
        """Some time after whoever asked has given up."""
        self._schedule(self.odds.patience + self._rng.uniform(0.0, self.odds.lateness), act)

    def draw_fault(self, *, changes: bool) -> StoreFault | None:
        """What goes wrong with a request. One that changes nothing is refused or answered."""
        odds = self.odds
        draw = self._rng.random()
        for fault, chance in (
            (StoreFault.REFUSED, odds.refused),
            (StoreFault.LOST, odds.lost),
            (StoreFault.UNANSWERED, odds.unanswered),
            (StoreFault.LATE, odds.late),
        ):
            if draw < chance:
                return self.note(fault if changes else StoreFault.REFUSED)
            draw -= chance
        return None

    def draw_absence(self, *, changes: bool) -> StoreFault:
        """How a request ends that found nobody."""
        lost = changes and self._rng.random() < 0.5
        return self.note(StoreFault.LOST if lost else StoreFault.REFUSED)

    def note(self, fault: StoreFault) -> StoreFault:
        self.faults[fault] += 1
        return fault

    # Requests, at the moment they take effect

    def txn(self, txn: Txn) -> TxnOutcome:
        decided = self.keyspace.decide(txn)
        if not isinstance(decided, Change):
            return decided
        self._apply(decided)
        return Committed(self.keyspace.revision)

    def lease_grant(self, ttl: int) -> LeaseOutcome:
        change = self.keyspace.decide_grant(ttl)
        self._apply(change)
        (lease,) = change.granted
        self._await_end(lease)
        return lease

    def lease_keep_alive(self, lease: LeaseID) -> LeaseOutcome:
        found = self.keyspace.lease(lease)
        if isinstance(found, Lease):
            self._await_end(found)
        return found

    def lease_remaining(self, lease: LeaseID) -> RemainingOutcome:
        found = self.keyspace.lease(lease)
        if not isinstance(found, Lease):
            return found
        return Remaining(lease, found.ttl, max(0, int(self._ends[lease] - self._clock())))

    def lease_revoke(self, lease: LeaseID) -> LeaseOutcome:
        found = self.keyspace.lease(lease)
        change = self.keyspace.decide_revoke(lease)
        if isinstance(change, LeaseNotFound):
            return change
        del self._renewals[lease]
        del self._ends[lease]
        self._apply(change)
        return found

    def watch(self, prefix: str, after_revision: int, notify: Callable[[WatchNotice], None]) -> KeyspaceWatch:
        watch = self._watches.add(prefix, after_revision, notify)
        self.after_delay(self._watches.publish)
        return watch

    def _apply(self, change: Change) -> None:
        events = self.keyspace.apply(change)
        if events is not None:
            self._watches.record(events)
            self._watches.publish()

    def _await_end(self, lease: Lease) -> None:
        self._renewals[lease.id] += 1
        renewal = self._renewals[lease.id]
        self._ends[lease.id] = self._clock() + lease.ttl
        self._schedule(lease.ttl, lambda: self._end(lease, renewal))

    def _end(self, lease: Lease, renewal: int) -> None:
        if self._renewals.get(lease.id) != renewal:
            return
        if self.available:
            self.lease_revoke(lease.id)
        else:
            self._await_end(lease)


class _SimWatch:
    """A watch's notices on their way to the client: each takes a while, and none overtakes another."""

    def __init__(self, client: SimStoreClient, notify: Callable[[WatchNotice], None]) -> None:
        self._client = client
        self._notify = notify
        self._on_their_way: deque[WatchNotice] = deque()
        self.source: KeyspaceWatch | None = None

    def send(self, notice: WatchNotice) -> None:
        self._on_their_way.append(notice)
        self._client.after_watch_delay(self._arrive)

    def resume(self) -> None:
        for _ in self._on_their_way:
            self._client.after_watch_delay(self._arrive)

    def _arrive(self) -> None:
        if self._client.reachable and self._on_their_way:
            self._notify(self._on_their_way.popleft())

    def cancel(self) -> None:
        self._on_their_way.clear()
        if self.source is not None:
            self.source.cancel()


class SimStoreClient:
    """One process's connection to a `SimStore`."""

    def __init__(self, store: SimStore, schedule: Schedule) -> None:
        self._store = store
        self._schedule = schedule
        self._connected = True
        self._closed = False
        self.misjudges = False
        """The next lease it asks after seems to have been let be for long: a keep-alive was late."""
        self._watches: list[_SimWatch] = []
        store.clients.append(self)

    @property
    def connected(self) -> bool:
        return self._connected

    @connected.setter
    def connected(self, connected: bool) -> None:
        self._connected = connected
        self.resume_watches()

    @property
    def reachable(self) -> bool:
        """Whether anything passes between this client and the store now."""
        return self._connected and self._store.available and not self._closed

    def resume_watches(self) -> None:
        """Send again what waited while the store could not be reached; in vain if it still cannot."""
        for watch in self._watches:
            watch.resume()

    def after_delay(self, act: Callable[[], None]) -> None:
        self._schedule(self._store.delay(), act)

    def after_watch_delay(self, act: Callable[[], None]) -> None:
        self._schedule(self._store.watch_delay(), act)

    def close(self) -> None:
        """The process has ended: nothing is answered or told any more. Requests on their way may still take effect."""
        self._closed = True
        self._store.clients.remove(self)
        for watch in self._watches:
            watch.cancel()
        self._watches.clear()

    # MetadataStore

    @property
    def max_value_bytes(self) -> int:
        return limits.METADATA_VALUE_BYTES

    def txn(self, txn: Txn, done: Callable[[TxnOutcome], None]) -> None:
        check_txn(txn, self.max_value_bytes)
        self._change(lambda: self._store.txn(txn), done)

    def read(self, keys: Sequence[str], done: Callable[[ReadOutcome], None]) -> None:
        self._ask(lambda: self._store.keyspace.select(keys), done)

    def read_prefix(self, prefix: str, done: Callable[[ReadOutcome], None]) -> None:
        self._ask(lambda: self._store.keyspace.select_prefix(prefix), done)

    def watch(self, prefix: str, after_revision: int, notify: Callable[[WatchNotice], None]) -> Watch:
        watch = _SimWatch(self, notify)
        watch.source = self._store.watch(prefix, after_revision, watch.send)
        self._watches = [other for other in self._watches if not (other.source and other.source.cancelled)]
        self._watches.append(watch)
        return watch

    def lease_grant(self, ttl: int, done: Callable[[LeaseOutcome], None]) -> None:
        check_ttl(ttl)
        self._change(lambda: self._store.lease_grant(ttl), done)

    def lease_keep_alive(self, lease: LeaseID, done: Callable[[LeaseOutcome], None]) -> None:
        self._change(lambda: self._store.lease_keep_alive(lease), done)

    def lease_remaining(self, lease: LeaseID, done: Callable[[RemainingOutcome], None]) -> None:
        def look() -> RemainingOutcome:
            found = self._store.lease_remaining(lease)
            if self.misjudges and isinstance(found, Remaining):
                self.misjudges = False
                return found._replace(remaining=0)
            return found

        self._ask(look, done)

    def lease_revoke(self, lease: LeaseID, done: Callable[[LeaseOutcome], None]) -> None:
        self._change(lambda: self._store.lease_revoke(lease), done)

    # There and back

    def _change(self, act: Callable[[], T], done: Callable[[T | StoreUnavailable | OutcomeUnknown], None]) -> None:
        """Send a request that changes something."""
        store = self._store
        fault = store.draw_fault(changes=True)

        def arrive() -> None:
            ending = fault if self.reachable else store.draw_absence(changes=True)
            if ending is None:
                self._answer(done, act())
            elif ending is StoreFault.REFUSED:
                self._refuse(done)
            else:
                if ending is StoreFault.UNANSWERED:
                    act()
                elif ending is StoreFault.LATE:
                    store.after_patience(act_late)
                self._give_up(done)

        def act_late() -> None:
            if store.available:
                act()

        store.after_delay(arrive)

    def _ask(self, look: Callable[[], T], done: Callable[[T | StoreUnavailable], None]) -> None:
        """Send a request that changes nothing."""
        store = self._store
        fault = store.draw_fault(changes=False)

        def arrive() -> None:
            ending = fault if self.reachable else store.draw_absence(changes=False)
            if ending is not None:
                self._refuse(done)
                return
            found = look()
            self.after_delay(lambda: done(found) if self.reachable else self._refuse(done))

        store.after_delay(arrive)

    def _answer(self, done: Callable[[T | OutcomeUnknown], None], outcome: T) -> None:
        def arrive() -> None:
            if self.reachable:
                done(outcome)
            else:
                self._store.note(StoreFault.UNANSWERED)
                self._give_up(done)

        self.after_delay(arrive)

    def _refuse(self, done: Callable[[StoreUnavailable], None]) -> None:
        refused = StoreUnavailable("the metadata store cannot be reached")
        self.after_delay(lambda: None if self._closed else done(refused))

    def _give_up(self, done: Callable[[OutcomeUnknown], None]) -> None:
        unknown = OutcomeUnknown("the metadata store did not answer in time")
        self._schedule(self._store.odds.patience, lambda: None if self._closed else done(unknown))
