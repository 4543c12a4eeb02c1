"""Metadata as a whole: taken out of a store, put into one (M4, rule 5).

A backup holds every key of one revision, but for those that say who leads, who runs and whose it is; of the leadership
it keeps the term, and beside the keys the cluster. Putting it back begins by reading it: the snapshot and the entries
since it are replayed, so that a backup that is whole and yet makes no sense is refused. What is put is the state they
lead to, as one snapshot, in one transaction that also raises the term above every one that the backup or the store has
known. So a crash leaves all of it or nothing, and whoever led the store before finds out with its next write.

An older state than the storage nodes have seen is not noticed here: they do, and stop (rule 5). So that they can, what
is restored goes on far above where the backup was: see `core.restoring`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from varlog import errors, limits
from varlog.core.cuthistory import CutHistory
from varlog.core.metastate import Checkpoint, Cut, MetadataState, decode_entry
from varlog.core.store import (
    CLUSTER_KEY,
    ENTRY_PREFIX,
    LEADER_KEY,
    MEMBER_PREFIX,
    SNAPSHOT_KEY,
    Compare,
    LeaderRecord,
    Put,
    ReadResult,
    Txn,
    encode_leader,
    encode_owner,
    entry_key,
)
from varlog.core.tails import VERSION_KEY
from varlog.metarepo.offline import OfflineStore, running_in, term_in
from varlog.types import ClusterID, Term, Version

KIND: Final = "metadata backup"
_OF_METADATA: Final = (VERSION_KEY, SNAPSHOT_KEY)
_VERSION_DIGITS: Final = 20


class Backup(msgspec.Struct, frozen=True):
    """See the module's text."""

    cid: ClusterID | None
    """None of an etcd that no `vmr` has claimed."""
    term: Term
    revision: int
    time: int
    """When it was taken, in seconds since 1970."""
    keys: dict[str, bytes]


class Written(msgspec.Struct, frozen=True):
    """What was put into a store."""

    version: Version
    term: Term
    topics: int
    log_streams: int
    storage_nodes: int


async def take(store: OfflineStore, time: int) -> Backup:
    """All metadata of a store, as of one revision."""
    found = await store.read_all()
    if not _is_there(found):
        raise errors.BadBackup(f"there is no metadata in {store.where}")
    left_out = (LEADER_KEY, CLUSTER_KEY)
    keys = {key: kv.value for key, kv in found.kvs.items() if key not in left_out and not key.startswith(MEMBER_PREFIX)}
    return Backup(store.cid, term_in(found), found.revision, time, keys)


async def check_stopped(store: OfflineStore) -> None:
    """Refuse a store that a metadata repository runs on: what it decides from now on would be left behind."""
    if running := running_in(await store.read_all()):
        raise errors.StoreNotEmpty(
            f"a metadata repository runs on {store.where}, at {', '.join(running)}; stop it first (of one that was "
            "killed this is known some seconds later)"
        )


def checkpoint_of(keys: Mapping[str, bytes]) -> Checkpoint:
    """The state that the keys of a store lead to, with the cuts that are still held."""
    try:
        return _replay(keys)
    except (errors.MalformedMetadata, errors.ConsistencyViolation, LookupError) as e:
        raise errors.BadBackup(f"what it holds is no metadata: {e}") from e


def _replay(keys: Mapping[str, bytes]) -> Checkpoint:
    saved = Checkpoint.decode(keys[SNAPSHOT_KEY]) if SNAPSHOT_KEY in keys else Checkpoint(MetadataState(), {})
    state, history = saved.state, CutHistory(saved.state.streams, saved.held)
    latest = _version_in(keys)
    for number in range(state.version + 1, latest + 1):
        version = Version(number)
        if (value := keys.get(entry_key(version))) is None:
            raise errors.BadBackup(f"version {version} of {latest} is missing")
        entry = decode_entry(value)
        state.apply(version, entry)
        if isinstance(entry, Cut):
            history.add(version, entry)
    if state.version > latest or any(key > entry_key(latest) for key in keys if key.startswith(ENTRY_PREFIX)):
        raise errors.BadBackup(f"it says that version {latest} is the latest, and holds a later one")
    history.fold(lambda _lsid: Version(0))
    return Checkpoint(state, history.held)


def _version_in(keys: Mapping[str, bytes]) -> Version:
    value = keys.get(VERSION_KEY, b"0")
    if len(value) > _VERSION_DIGITS or not value.isdigit():
        raise errors.BadBackup(f"{value[:_VERSION_DIGITS]!r} is no version")
    return Version(int(value))


async def put(store: OfflineStore, checkpoint: Checkpoint, term: Term, *, replace: bool = False) -> Written:
    """Make this the metadata of a store that has none, or, if so wanted, in place of what it has."""
    found = await store.read_all()
    if running := running_in(found):
        raise errors.StoreNotEmpty(
            f"a metadata repository runs on {store.where}, at {', '.join(running)}; stop it first (of one that was "
            "killed this is known some seconds later)"
        )
    if _is_there(found) and not replace:
        raise errors.StoreNotEmpty(f"{store.where} holds metadata already; only --replace puts other in its place")
    value = checkpoint.encode()
    if len(value) > store.max_value_bytes:
        raise errors.LimitExceeded(
            f"{store.where} takes values of {store.max_value_bytes} bytes; this has {len(value)}"
        )
    state = checkpoint.state
    leader = LeaderRecord(Term(max(term, term_in(found)) + 1))
    puts = [
        Put(LEADER_KEY, encode_leader(leader)),
        Put(VERSION_KEY, b"%d" % state.version),
        Put(SNAPSHOT_KEY, value),
    ]
    if store.names_owner and store.cid is not None:
        puts.append(Put(CLUSTER_KEY, encode_owner(store.cid)))
    deletes = tuple(key for key in found.kvs if key.startswith(ENTRY_PREFIX))
    if len(puts) + len(deletes) > limits.METADATA_TXN_OPERATIONS:
        raise errors.LimitExceeded(
            f"{store.where} holds {len(deletes)} entries, more than can be replaced at once; put it into an empty store"
        )
    compares = tuple(_compare(found, key) for key in (LEADER_KEY, VERSION_KEY, SNAPSHOT_KEY, CLUSTER_KEY))
    await store.write(Txn(compares, tuple(puts), deletes))
    return Written(state.version, leader.term, len(state.topics), len(state.streams), len(state.nodes))


def _is_there(found: ReadResult) -> bool:
    return any(key in _OF_METADATA or key.startswith(ENTRY_PREFIX) for key in found.kvs)


def _compare(found: ReadResult, key: str) -> Compare:
    kv = found.kvs.get(key)
    return Compare(key, kv.revision if kv is not None else 0)
