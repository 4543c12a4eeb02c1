"""The metadata store: what the metadata repository asks of the thing that remembers for it.

Consensus is not ours. All that the metadata repository decides lives in a linearizable key-value store, and this
module is the whole of what it may ask of one: a compare-and-swap transaction, a linearizable read, a watch, a lease.
There are three implementations: an embedded journal (`varlog.metarepo.journal`), a simulated store with faults
(`varlog.sim.store`), and etcd, whose semantics are the ones written down here. One conformance suite runs over all.

Calls return at once; the answer comes later through the callback handed in, once, and never from inside the call.

What must always hold, of every implementation:

- **Revision.** The store counts its changes. A transaction that writes something raises the revision by one, and every
  key it puts carries that revision. A transaction that writes nothing leaves it alone.
- **Transaction.** All of it or none of it: every compare is made against one state, and if all hold, the puts and
  deletes are made on that same state. A key that is absent compares as revision 0.
- **Linearizable.** Transactions and reads take effect between call and answer, in one order for all clients. Nothing
  is answered, nor told to a watch, that could still be lost.
- **Unknown is unknown.** `StoreUnavailable` means that nothing happened and nothing will. `OutcomeUnknown` means that
  it happened, did not, or *still may*: a request can outlive the patience of the one who sent it. What settles it is a
  linearizable read followed by a compare on a key which that request would have changed (rule 1).
- **Watch.** Every change after the revision asked for, each once, in revision order, the changes of one transaction
  together. A store forgets old changes; a watch from too far back is told `Compacted`, ends, and its owner reads anew.
- **Lease.** It lives for at least its time to live after the last grant or keep-alive that was answered; when it ends
  the keys put under it are deleted in one transaction. Putting a key again under another lease, or none, detaches it.
  How much of it remains is told in whole seconds, rounded down, and asking changes nothing. Leases are for liveness
  and courtesy; safety rests on compares (rule 23).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, NamedTuple, NewType, Protocol

import msgspec

from varlog import limits
from varlog.errors import (
    Compacted,
    InvalidArgument,
    LeaseNotFound,
    LimitExceeded,
    MalformedMetadata,
    OutcomeUnknown,
    StoreUnavailable,
)
from varlog.types import ClusterID, Term, Version

LeaseID = NewType("LeaseID", int)

NO_LEASE = LeaseID(0)

LEADER_KEY = "leader"
"""Holds the `LeaderRecord` of the metadata repository that leads. A leader proves itself by comparing this key's
revision. The key is under no lease: the term is not forgotten with its leader."""

MEMBER_PREFIX = "member/"
"""Each metadata repository has one key here, under its lease: `leading.MemberRecord`."""

CLUSTER_KEY = "cluster"
"""The id of the cluster whose metadata it is, in digits, where the store itself does not know."""

SNAPSHOT_KEY: Final = "snapshot"
"""The state as of some version;"""
ENTRY_PREFIX: Final = "entry/"
"""and every entry since, by its version."""

_DIGITS: Final = 20


class LeaderRecord(msgspec.Struct, frozen=True):
    """Who leads."""

    term: Annotated[Term, msgspec.Meta(ge=0)]
    lease: Annotated[LeaseID, msgspec.Meta(ge=0)] = NO_LEASE
    """The leader keeps it alive: how long that was ago says how long the leader has been silent."""
    address: Annotated[str, msgspec.Meta(max_length=limits.MAX_ADDRESS)] = ""
    """Where it is reached; empty where there is only one."""


_LEADER: Final = msgspec.json.Decoder(LeaderRecord)


class Compare(NamedTuple):
    """The revision a key must have been written at; 0 if it must not exist."""

    key: str
    revision: int


class Put(NamedTuple):
    key: str
    value: bytes
    lease: LeaseID = NO_LEASE


class Txn(NamedTuple):
    """A transaction. No key is written twice in one; deleting an absent key is no change."""

    compares: tuple[Compare, ...] = ()
    puts: tuple[Put, ...] = ()
    deletes: tuple[str, ...] = ()


class KeyValue(NamedTuple):
    key: str
    value: bytes
    revision: int
    """The revision of the transaction that put this value."""
    lease: LeaseID = NO_LEASE


class Committed(NamedTuple):
    """The transaction happened; `revision` is the store's after it, and that of every key it put."""

    revision: int


class CompareFailed(NamedTuple):
    """A compare did not hold and nothing happened. `current` holds every compared key that exists."""

    revision: int
    current: Mapping[str, KeyValue]


class ReadResult(NamedTuple):
    """The keys asked for that exist, in key order, as of one revision."""

    revision: int
    kvs: Mapping[str, KeyValue]


class WatchEvents(NamedTuple):
    """What one transaction changed, as far as the watch asked for it."""

    revision: int
    puts: tuple[KeyValue, ...]
    deletes: tuple[str, ...]


class Lease(NamedTuple):
    """A lease as the store keeps it. The time to live, in seconds, may be longer than asked for."""

    id: LeaseID
    ttl: int


class Remaining(NamedTuple):
    """How long a lease was granted for, and how long it lives if it is not kept alive, in whole seconds."""

    id: LeaseID
    granted: int
    remaining: int


TxnOutcome = Committed | CompareFailed | StoreUnavailable | OutcomeUnknown | LeaseNotFound | LimitExceeded
ReadOutcome = ReadResult | StoreUnavailable
LeaseOutcome = Lease | StoreUnavailable | OutcomeUnknown | LeaseNotFound
RemainingOutcome = Remaining | StoreUnavailable | LeaseNotFound
WatchNotice = WatchEvents | Compacted


class Watch(Protocol):
    def cancel(self) -> None:
        """End the watch; its callback is not called again."""


class MetadataStore(Protocol):
    """The interface. `InvalidArgument` and `Busy` are raised by the call itself; all else is an outcome."""

    @property
    def max_value_bytes(self) -> int:
        """The largest value that `txn` takes."""

    def txn(self, txn: Txn, done: Callable[[TxnOutcome], None]) -> None: ...

    def read(self, keys: Sequence[str], done: Callable[[ReadOutcome], None]) -> None: ...

    def read_prefix(self, prefix: str, done: Callable[[ReadOutcome], None]) -> None: ...

    def watch(self, prefix: str, after_revision: int, notify: Callable[[WatchNotice], None]) -> Watch:
        """Tell every change of a key under `prefix` made after `after_revision`.

        A watch outlives the store's absences by itself: it is late then, never wrong.
        """

    def lease_grant(self, ttl: int, done: Callable[[LeaseOutcome], None]) -> None: ...

    def lease_keep_alive(self, lease: LeaseID, done: Callable[[LeaseOutcome], None]) -> None: ...

    def lease_remaining(self, lease: LeaseID, done: Callable[[RemainingOutcome], None]) -> None: ...

    def lease_revoke(self, lease: LeaseID, done: Callable[[LeaseOutcome], None]) -> None:
        """End a lease now; the outcome is the lease as it was."""


def check_txn(txn: Txn, max_value_bytes: int) -> None:
    """Refuse a transaction that some implementation could not take, or with a value that this one does not."""
    puts, deletes = txn.puts, txn.deletes
    if len(puts) + len(deletes) > limits.METADATA_TXN_OPERATIONS or len(txn.compares) > limits.METADATA_TXN_OPERATIONS:
        raise InvalidArgument(
            f"a transaction has at most {limits.METADATA_TXN_OPERATIONS} compares, and as many writes"
        )
    written = set(deletes)
    for key, value, _ in puts:
        written.add(key)
        if len(value) > max_value_bytes:
            raise InvalidArgument(f"the value of {key} exceeds {max_value_bytes} bytes")
    if len(written) != len(puts) + len(deletes):
        raise InvalidArgument("a transaction writes a key at most once")
    if "" in written:
        raise InvalidArgument("a key is not empty")


def check_ttl(ttl: int) -> None:
    if not 1 <= ttl <= limits.MAX_LEASE_SECONDS:
        raise InvalidArgument(f"a lease lives from 1 to {limits.MAX_LEASE_SECONDS} seconds, not {ttl}")


def entry_key(version: int) -> str:
    return f"{ENTRY_PREFIX}{version:016x}"


def version_of(key: str) -> Version:
    """Of the entry at a key."""
    try:
        return Version(int(key.removeprefix(ENTRY_PREFIX), 16))
    except ValueError:
        raise MalformedMetadata(f"{key!r} is not the key of an entry") from None


def encode_owner(cid: ClusterID) -> bytes:
    """The value of `CLUSTER_KEY`."""
    return b"%d" % cid


def decode_owner(value: bytes) -> ClusterID:
    if not value.isdigit() or len(value) > _DIGITS:
        raise MalformedMetadata(f"{value[:_DIGITS]!r} is no cluster's id")
    return ClusterID(int(value))


def encode_leader(leader: LeaderRecord) -> bytes:
    """The value of `LEADER_KEY`."""
    return msgspec.json.encode(leader)


def decode_leader(value: bytes) -> LeaderRecord:
    """A term alone, in digits, is what was written when there could be only one metadata repository."""
    if value.isdigit() and len(value) <= _DIGITS:
        return LeaderRecord(Term(int(value)))
    try:
        return _LEADER.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise MalformedMetadata(f"{value[:_DIGITS]!r} names no leader: {e}") from None
