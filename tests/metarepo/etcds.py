"""Stores on etcd for tests of what goes wrong: ask and wait for the outcome, or count up through whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final

from tests.cluster.waiting import pause
from varlog.core.store import (
    Committed,
    Compare,
    CompareFailed,
    KeyValue,
    MetadataStore,
    Put,
    ReadResult,
    Txn,
    WatchEvents,
    WatchNotice,
)
from varlog.errors import OutcomeUnknown, StoreUnavailable
from varlog.etcdserver import EtcdCluster, EtcdMember
from varlog.metarepo.etcd.address import EtcdAddress, EtcdOptions
from varlog.metarepo.etcd.store import EtcdStore

SECONDS: Final = 30.0
"""How long anything may take that a test waits for."""
_numbers = count(1)


def own_prefix() -> str:
    """One that no other test of this process has."""
    return f"test/{next(_numbers)}"


async def ask(call: Callable[..., None], *args: Any) -> Any:
    """The outcome of a call of a store."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    call(*args, answer.set_result)
    return await asyncio.wait_for(answer, SECONDS)


@asynccontextmanager
async def opened(
    etcd: EtcdCluster, *endpoints: str, prefix: str = "", options: EtcdOptions | None = None, tls: bool = False
) -> AsyncIterator[EtcdStore]:
    """A store on these endpoints, or on all of the etcd."""
    names = endpoints or tuple(member.endpoint for member in etcd.members)
    address = EtcdAddress(names, prefix or own_prefix(), tls)
    store = await EtcdStore.open(address, options, any_version=not etcd.program.is_sound)
    try:
        yield store
    finally:
        await store.close()


async def leader_of(etcd: EtcdCluster) -> EtcdMember:
    """The member that leads; there is one."""
    async with opened(etcd) as store, asyncio.timeout(SECONDS):
        while not (health := store.health()).leads:
            await ask(store.read, ())
    return next(member for member in etcd.members if member.endpoint == health.endpoint)


async def commit(store: MetadataStore, key: str, value: bytes, revision: int | None = None) -> Any:
    compares = () if revision is None else (Compare(key, revision),)
    return await ask(store.txn, Txn(compares, (Put(key, value),)))


async def value_of(store: MetadataStore, key: str) -> KeyValue | None:
    """Asks until it is answered."""
    async with asyncio.timeout(SECONDS):
        while True:
            outcome = await ask(store.read, (key,))
            if isinstance(outcome, ReadResult):
                return outcome.kvs.get(key)
            assert isinstance(outcome, StoreUnavailable)


async def revision_of(store: MetadataStore) -> int:
    outcome = await ask(store.read, ())
    assert isinstance(outcome, ReadResult)
    return outcome.revision


class Counter:
    """Counts a key up by compare-and-swap as the metadata repository does its versions: what is unknown is read again,
    and what was refused is sent again. A watch has to be told every number once, in order."""

    KEY: Final = "count"

    def __init__(self, store: EtcdStore, begin: int) -> None:
        """Use `at`."""
        self.store = store
        self.value = 0
        self.unknown = 0
        self.told: list[int] = []
        self._revision = 0
        self._changed = asyncio.Event()
        self._watch = store.watch(self.KEY, begin, self._on_change)

    @classmethod
    async def at(cls, store: EtcdStore) -> Counter:
        return cls(store, await revision_of(store))

    def _on_change(self, notice: WatchNotice) -> None:
        assert isinstance(notice, WatchEvents)
        self.told += [int(kv.value) for kv in notice.puts]
        self._changed.set()

    async def up(self) -> None:
        """One more, however often that has to be tried."""
        async with asyncio.timeout(SECONDS):
            while not await self._try():
                pass

    async def _try(self) -> bool:
        outcome = await commit(self.store, self.KEY, b"%d" % (self.value + 1), self._revision)
        if isinstance(outcome, Committed):
            self.value, self._revision = self.value + 1, outcome.revision
            return True
        if isinstance(outcome, OutcomeUnknown | CompareFailed):
            self.unknown += 1
            found = await value_of(self.store, self.KEY)
            if found is not None and int(found.value) == self.value + 1:
                self.value, self._revision = self.value + 1, found.revision
                return True
            return False
        assert isinstance(outcome, StoreUnavailable)
        await pause(0.05)
        return False

    async def check(self) -> None:
        """The count is what was counted, and the watch was told all of it."""
        found = await value_of(self.store, self.KEY)
        assert found is not None
        assert int(found.value) == self.value
        async with asyncio.timeout(SECONDS):
            while len(self.told) < self.value:
                self._changed.clear()
                await self._changed.wait()
        assert self.told == list(range(1, self.value + 1))
