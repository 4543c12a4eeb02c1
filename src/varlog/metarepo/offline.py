"""A metadata store for tools: opened while no metadata repository uses it, asked a few things, closed.

A directory is an embedded journal, and its lock says that no `vmr` has it. Everything it is asked is written, synced
and answered at once. An address `etcd://...` is a prefix of an etcd; there the keys of the metadata repositories, which
go when they stop, say whether one runs, and one of them says whose metadata it is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from varlog import errors
from varlog.core.store import (
    LEADER_KEY,
    MEMBER_PREFIX,
    Committed,
    CompareFailed,
    MetadataStore,
    ReadOutcome,
    ReadResult,
    Txn,
    TxnOutcome,
    decode_leader,
)
from varlog.metarepo.etcd.address import EtcdOptions
from varlog.metarepo.journal import Journal
from varlog.metarepo.journalfile import cluster_of
from varlog.metarepo.stores import is_etcd, open_etcd
from varlog.storage.directory import typed_errors
from varlog.storage.files import FileSystem
from varlog.types import ClusterID, Term

PATIENCE: Final = 10.0
"""For one answer, in seconds."""
_HEADER_BYTES: Final = 4096

_T = TypeVar("_T")


class OfflineStore:
    """See the module's text. Made by `opened`."""

    def __init__(
        self,
        where: str,
        store: MetadataStore,
        drive: Callable[[], None],
        cid: ClusterID | None,
        *,
        names_owner: bool = False,
    ) -> None:
        self.where = where
        self.cid = cid
        """Whose it is, if the store knows."""
        self.names_owner = names_owner
        """Whether that stands in a key."""
        self._store = store
        self._drive = drive

    @property
    def max_value_bytes(self) -> int:
        return self._store.max_value_bytes

    async def read_all(self) -> ReadResult:
        """Every key, as of one revision."""
        answer: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()
        self._store.read_prefix("", lambda outcome: _settle(answer, outcome))
        outcome = await self._wait(answer)
        if not isinstance(outcome, ReadResult):
            raise outcome
        return outcome

    async def write(self, txn: Txn) -> None:
        """Make a transaction that puts the leader key; raises unless it has happened."""
        answer: asyncio.Future[TxnOutcome] = asyncio.get_running_loop().create_future()
        self._store.txn(txn, lambda outcome: _settle(answer, outcome))
        outcome = await self._wait(answer)
        if isinstance(outcome, errors.OutcomeUnknown) and await self._has_happened(txn):
            return
        if isinstance(outcome, CompareFailed):
            raise errors.StoreNotEmpty(f"{self.where} was changed meanwhile; nothing was written: try again")
        if not isinstance(outcome, Committed):
            raise outcome

    async def _has_happened(self, txn: Txn) -> bool:
        """What is unknown is settled by reading (rule 1)."""
        wanted = next(put.value for put in txn.puts if put.key == LEADER_KEY)
        leader = (await self.read_all()).kvs.get(LEADER_KEY)
        return leader is not None and leader.value == wanted

    async def _wait(self, answer: asyncio.Future[_T]) -> _T | errors.OutcomeUnknown:
        self._drive()
        try:
            return await asyncio.wait_for(answer, PATIENCE)
        except TimeoutError:
            return errors.OutcomeUnknown(f"{self.where} did not answer within {PATIENCE:g} seconds")


def _nothing() -> None:
    pass


def _settle(answer: asyncio.Future[_T], outcome: _T) -> None:
    if not answer.done():
        answer.set_result(outcome)


def term_in(found: ReadResult) -> Term:
    """The leadership that a store has seen last."""
    leader = found.kvs.get(LEADER_KEY)
    return Term(0) if leader is None else decode_leader(leader.value).term


def running_in(found: ReadResult) -> list[str]:
    """The metadata repositories that run on a store."""
    return [key.removeprefix(MEMBER_PREFIX) for key in found.kvs if key.startswith(MEMBER_PREFIX)]


@asynccontextmanager
async def opened(
    where: str,
    fs: FileSystem,
    cid: ClusterID | None = None,
    *,
    makes: bool = False,
    etcd: EtcdOptions | None = None,
    any_version: bool = False,
) -> AsyncIterator[OfflineStore]:
    """Open what is there, or, if that is wanted, make an empty journal of cluster `cid` where there is none."""
    if is_etcd(where):
        store = await open_etcd(where, etcd, any_version=any_version)
        try:
            owner = await store.owner()
            if None not in (owner, cid) and owner != cid:
                raise errors.WrongIdentity(f"{where} is of cluster {owner}, not {cid}")
            yield OfflineStore(where, store, _nothing, owner or cid, names_owner=True)
        finally:
            await store.close()
        return
    journal, owner = _open_journal(where, fs, cid, makes=makes)
    try:
        yield OfflineStore(where, journal, lambda: _drive(journal), owner)
    finally:
        journal.close()


def _open_journal(where: str, fs: FileSystem, cid: ClusterID | None, *, makes: bool) -> tuple[Journal, ClusterID]:
    path = os.path.abspath(where)
    owner = _cluster_in(fs, path, where, cid, makes=makes)
    return Journal.open(fs, path, owner), owner


def _cluster_in(fs: FileSystem, path: str, where: str, cid: ClusterID | None, *, makes: bool) -> ClusterID:
    name = f"{path}/journal"
    if fs.exists(name):
        with typed_errors(name):
            file = fs.open(name)
            try:
                found = cluster_of(file.pread(_HEADER_BYTES, 0), name)
            finally:
                file.close()
        return found if cid is None else cid
    if not makes or cid is None:
        raise errors.NotWritable(f"there is no metadata in {where}: it holds no journal")
    return cid


def _drive(journal: Journal) -> None:
    while (group := journal.take()) is not None:
        journal.write(group)
        journal.sync(group)
        journal.finish(group)
