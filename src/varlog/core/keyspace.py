"""The state behind a metadata store that we keep ourselves: keys, revisions, leases, and what watches are told.

`Keyspace` first *decides* a request against its state, which changes nothing, and yields either the answer or a
`Change`. *Applying* the change is deterministic: the same changes in the same order give the same state, so a list of
changes is a journal. `Watches` keeps the latest changes and hands them to those who asked.

The embedded journal and the simulated store are both made of these two, and differ in what they put between deciding
and answering: an fsync, or a simulated network.

What must always hold: a change applies to the state it was decided on, or to one that has since had nothing but other
decided changes applied in the order of their decisions; a deleted key was there; a lease's keys are exactly the keys
that name it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from varlog import limits
from varlog.core.store import (
    CompareFailed,
    KeyValue,
    Lease,
    LeaseID,
    Put,
    ReadResult,
    Txn,
    WatchEvents,
    WatchNotice,
)
from varlog.errors import Compacted, LeaseNotFound, LimitExceeded
from varlog.tuples import new_tuple


class Change(NamedTuple):
    """A decided change. Its deletes name only keys that exist."""

    puts: tuple[Put, ...] = ()
    deletes: tuple[str, ...] = ()
    granted: tuple[Lease, ...] = ()
    revoked: tuple[LeaseID, ...] = ()


class Contents(NamedTuple):
    """The whole of a keyspace, for a snapshot."""

    revision: int
    kvs: list[KeyValue]
    leases: list[Lease]
    last_lease: LeaseID


class Keyspace:
    """Keys and leases at one revision."""

    def __init__(self, contents: Contents | None = None) -> None:
        self.revision = 0
        self.last_lease = LeaseID(0)
        self.bytes = 0
        """Bytes of all keys and values."""
        self._kvs: dict[str, KeyValue] = {}
        self._leases: dict[LeaseID, Lease] = {}
        self._lease_keys: dict[LeaseID, set[str]] = {}
        if contents is not None:
            self._restore(contents)

    def _restore(self, contents: Contents) -> None:
        self.revision = contents.revision
        self.last_lease = contents.last_lease
        for lease in contents.leases:
            self._leases[lease.id] = lease
            self._lease_keys[lease.id] = set()
        for kv in contents.kvs:
            self._kvs[kv.key] = kv
            self.bytes += len(kv.key) + len(kv.value)
            if kv.lease:
                self._lease_keys[kv.lease].add(kv.key)

    def contents(self) -> Contents:
        return Contents(self.revision, list(self._kvs.values()), list(self._leases.values()), self.last_lease)

    # Reading

    def get(self, key: str) -> KeyValue | None:
        return self._kvs.get(key)

    def select(self, keys: Iterable[str]) -> ReadResult:
        kvs = self._kvs
        return ReadResult(self.revision, {key: kvs[key] for key in sorted(set(keys)) if key in kvs})

    def select_prefix(self, prefix: str) -> ReadResult:
        kvs = self._kvs
        keys = sorted([key for key in kvs if key.startswith(prefix)])
        return ReadResult(self.revision, {key: kvs[key] for key in keys})

    def lease(self, lease: LeaseID) -> Lease | LeaseNotFound:
        return self._leases.get(lease) or LeaseNotFound(f"there is no lease {lease}")

    def leases(self) -> Sequence[Lease]:
        return tuple(self._leases.values())

    # Deciding

    def decide(self, txn: Txn) -> Change | CompareFailed | LeaseNotFound | LimitExceeded:
        """What a transaction comes to. Compares come first: a failed one hides any other reason to refuse."""
        kvs = self._kvs
        for key, revision in txn.compares:
            kv = kvs.get(key)
            if (0 if kv is None else kv.revision) != revision:
                current = {other: kvs[other] for other, _ in txn.compares if other in kvs}
                return CompareFailed(self.revision, current)
        growth = 0
        for key, value, lease in txn.puts:
            if lease and lease not in self._leases:
                return LeaseNotFound(f"there is no lease {lease} to put {key} under")
            growth += len(key) + len(value)
            if (kv := kvs.get(key)) is not None:
                growth -= len(key) + len(kv.value)
        if growth > 0 and self.bytes + growth > limits.METADATA_STORE_BYTES:
            return LimitExceeded(f"the metadata store holds at most {limits.METADATA_STORE_BYTES} bytes")
        deletes = tuple([key for key in txn.deletes if key in kvs]) if txn.deletes else ()
        return new_tuple(Change, (txn.puts, deletes, (), ()))

    def decide_grant(self, ttl: int) -> Change:
        return Change(granted=(Lease(LeaseID(self.last_lease + 1), ttl),))

    def decide_revoke(self, lease: LeaseID) -> Change | LeaseNotFound:
        if lease not in self._leases:
            return LeaseNotFound(f"there is no lease {lease}")
        return Change(deletes=tuple(sorted(self._lease_keys[lease])), revoked=(lease,))

    # Applying

    def apply(self, change: Change) -> WatchEvents | None:
        """Make a decided change; what watches are to be told of it, if it changed any key."""
        for lease in change.granted:
            self._leases[lease.id] = lease
            self._lease_keys[lease.id] = set()
            self.last_lease = lease.id
        events = self._write(change.puts, change.deletes) if change.puts or change.deletes else None
        for revoked in change.revoked:
            del self._leases[revoked]
            del self._lease_keys[revoked]
        return events

    def _write(self, puts: tuple[Put, ...], deletes: tuple[str, ...]) -> WatchEvents:
        kvs = self._kvs
        self.revision = revision = self.revision + 1
        written = []
        for key, value, lease in puts:
            old = kvs.get(key)
            if old is not None:
                self._forget(old)
            kvs[key] = kv = new_tuple(KeyValue, (key, value, revision, lease))
            written.append(kv)
            self.bytes += len(key) + len(value)
            if lease:
                self._lease_keys[lease].add(key)
        for key in deletes:
            self._forget(kvs.pop(key))
        return new_tuple(WatchEvents, (revision, tuple(written), deletes))

    def _forget(self, kv: KeyValue) -> None:
        self.bytes -= len(kv.key) + len(kv.value)
        if kv.lease:
            self._lease_keys[kv.lease].discard(kv.key)


class KeyspaceWatch:
    """One watch: a prefix, and how far its owner has been told."""

    __slots__ = ("cancelled", "notify", "prefix", "told")

    def __init__(self, prefix: str, told: int, notify: Callable[[WatchNotice], None]) -> None:
        self.prefix = prefix
        self.told = told
        self.notify = notify
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def relevant(self, events: WatchEvents) -> WatchEvents | None:
        if not self.prefix:
            return events
        puts = tuple([kv for kv in events.puts if kv.key.startswith(self.prefix)])
        deletes = tuple([key for key in events.deletes if key.startswith(self.prefix)])
        return WatchEvents(events.revision, puts, deletes) if puts or deletes else None


class Watches:
    """The latest changes, bounded, and those who want to be told of them."""

    def __init__(self, revision: int) -> None:
        self._compacted = revision
        self._recorded = revision
        self._history: deque[tuple[WatchEvents, int]] = deque()
        self._bytes = 0
        self._watches: list[KeyspaceWatch] = []

    def add(self, prefix: str, after_revision: int, notify: Callable[[WatchNotice], None]) -> KeyspaceWatch:
        """A new watch. It is told nothing before the next `publish`."""
        watch = KeyspaceWatch(prefix, after_revision, notify)
        self._watches.append(watch)
        return watch

    def record(self, events: WatchEvents) -> None:
        """Remember a change, revision after revision."""
        size = sum([len(kv.key) + len(kv.value) for kv in events.puts]) + sum(map(len, events.deletes))
        self._history.append((events, size))
        self._recorded = events.revision
        self._bytes += size
        while len(self._history) > limits.WATCH_HISTORY_REVISIONS or self._bytes > limits.WATCH_HISTORY_BYTES:
            dropped, size = self._history.popleft()
            self._bytes -= size
            self._compacted = dropped.revision

    def publish(self) -> None:
        """Tell every watch what it has not been told. What a callback does to the list of watches is seen next time."""
        if not self._watches:
            return
        for watch in self._watches.copy():
            if not watch.cancelled and watch.told < self._recorded:
                self._tell(watch)
        self._watches = [watch for watch in self._watches if not watch.cancelled]

    def _tell(self, watch: KeyspaceWatch) -> None:
        if watch.told < self._compacted:
            watch.cancel()
            watch.notify(Compacted(f"changes up to revision {self._compacted} are forgotten; read anew"))
            return
        missed = []
        for events, _ in reversed(self._history):
            if events.revision <= watch.told:
                break
            missed.append(events)
        watch.told = self._recorded
        for events in reversed(missed):
            if not watch.cancelled and (relevant := watch.relevant(events)) is not None:
                watch.notify(relevant)
