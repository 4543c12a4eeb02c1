"""Keeping: how a metadata repository's store is kept going while it is served.

`JournalKeeper` drives the embedded journal. A group is written and synced in the event loop itself: nothing can be
decided before the decision before it is on disk, so there is nothing the loop could do meanwhile but collect the
reports that make up the next cut, and those wait in the sockets just as well. The journal is locked, so its metadata
repository leads from the start on. A journal that fails ends the daemon (rule 16): whether its last write is on disk is
unknown, and only opening it anew can tell.

`EtcdKeeper` shares an etcd with other metadata repositories; which of them leads is for `varlog.core.leading` to find
out. The store answers by itself, from the event loop. Nothing of an etcd that does not answer ends the daemon: the log
stops and goes on when it is back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from varlog import errors
from varlog.core.branches import Observe
from varlog.core.leading import Candidate
from varlog.core.messages import Leading, NotLeading, StoreInfo
from varlog.core.metarepo import MetadataRepository, Role
from varlog.core.store import MetadataStore
from varlog.daemon.config import MetadataRepositoryConfig
from varlog.metarepo.etcd.address import EtcdOptions
from varlog.metarepo.journal import Journal
from varlog.metarepo.stores import open_etcd
from varlog.storage.files import FileSystem
from varlog.types import ClusterID, Term

if TYPE_CHECKING:
    from varlog.metarepo.etcd.store import EtcdStore

TICK: Final = 0.2
IDLE_TICK: Final = 1.0
CANDIDATE_TICK: Final = 0.1
RESIGN_SECONDS: Final = 1.0
"""What has not been given back by then ends by itself."""

Fail = Callable[[errors.VarlogError], None]


class Keeper(Protocol):
    """What a server needs of its store beyond the core's interface. `begin` is called once, before all others."""

    @property
    def store(self) -> MetadataStore: ...

    def begin(self, repository: MetadataRepository, observe: Observe, fail: Fail) -> None: ...

    def listen(self, address: str) -> None:
        """The server listens there."""

    def hears(self, nodes: int) -> None:
        """So many storage nodes are connected."""

    def hold(self) -> None:
        """Messages arrive; `drive` will be called after the last of them."""

    def drive(self) -> None:
        """Carry out what was asked of the store, if that is for its keeper to do."""

    def tick(self) -> None:
        """Called as often as `pause` says, in seconds."""

    def pause(self) -> float: ...

    def standing(self) -> Leading | NotLeading:
        """What the metadata repository says of itself."""

    def members(self) -> tuple[tuple[str, int], ...]:
        """Who shares the store, and how many storage nodes each hears."""

    def silence(self) -> float:
        """For how many seconds the leader has not been heard of in the store."""

    def health(self) -> StoreInfo: ...

    async def resign(self) -> None:
        """Lead no more, so that another may at once."""

    async def close(self) -> None: ...


class JournalKeeper:
    """See the module's text."""

    def __init__(self, journal: Journal, path: str) -> None:
        self.store = journal
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._repository: MetadataRepository
        self._fail: Fail
        self._has_failed = False
        self._is_held = False
        self.groups = 0
        """How often the journal was synced."""
        self._seen_groups = 0

    @classmethod
    def open(cls, config: MetadataRepositoryConfig, fs: FileSystem) -> JournalKeeper:
        assert config.path is not None
        if not fs.is_writable_directory(config.path):  # rather than to begin anew where a disk is not mounted
            raise errors.NotWritable(f"{config.path} is not an existing directory that can be written")
        return cls(Journal.open(fs, config.path, ClusterID(config.cluster)), config.path)

    def begin(self, repository: MetadataRepository, _observe: Observe, fail: Fail) -> None:
        """Take the lead."""
        self._repository = repository
        self._fail = fail
        self.store.wake = self._wake
        repository.campaign(time.time())
        while repository.role in (Role.CAMPAIGNING, Role.LOADING) and not self._has_failed:
            self.drive()
        if repository.role is not Role.LEADING:
            raise errors.JournalFailed(f"the metadata journal in {self._path} cannot be led: {self.store.failed}")

    def listen(self, address: str) -> None: ...

    def hears(self, nodes: int) -> None: ...

    def _wake(self) -> None:
        if not self._is_held:
            self._loop.call_soon(self.drive)

    def hold(self) -> None:
        self._is_held = True

    def drive(self) -> None:
        self._is_held = False
        journal = self.store
        while not self._has_failed and (group := journal.take()) is not None:
            journal.write(group)
            journal.sync(group, mark=False)
            self.groups += group.needs_sync
            try:
                journal.finish(group)
            except errors.VarlogError as error:
                self._stop(error)
                return
            if journal.failed is not None:
                self._stop(errors.JournalFailed(f"the metadata journal cannot be written: {journal.failed}"))
                return

    def _stop(self, error: errors.VarlogError) -> None:
        self._has_failed = True
        self._fail(error)

    def tick(self) -> None:
        self.store.mark()  # nobody waits for it
        self.store.tick(self._loop.time())

    def pause(self) -> float:
        written, self._seen_groups = self.groups > self._seen_groups, self.groups
        return TICK if written else IDLE_TICK

    def standing(self) -> Leading:
        return Leading(self._repository.term)

    def members(self) -> tuple[tuple[str, int], ...]:
        return ()

    def silence(self) -> float:
        return 0.0

    def health(self) -> StoreInfo:
        return StoreInfo(f"journal in {self._path}")

    async def resign(self) -> None: ...

    async def close(self) -> None:
        self.drive()
        self.store.close()


class EtcdKeeper:
    """See the module's text. Made by `open`."""

    def __init__(self, store: EtcdStore) -> None:
        self.store = store
        self._loop = asyncio.get_running_loop()
        self._repository: MetadataRepository
        self._observe: Observe
        self._candidate: Candidate | None = None
        self._hears = 0

    @classmethod
    async def open(cls, config: MetadataRepositoryConfig) -> EtcdKeeper:
        assert config.store is not None
        options = EtcdOptions(
            config.etcd_user or "",
            config.etcd_password_file or "",
            config.etcd_ca or "",
            config.etcd_cert or "",
            config.etcd_key or "",
        )
        store = await open_etcd(config.store, options, any_version=config.etcd_any_version)
        try:
            await store.claim(ClusterID(config.cluster))
        except BaseException:
            await store.close()
            raise
        return cls(store)

    def begin(self, repository: MetadataRepository, observe: Observe, _fail: Fail) -> None:
        self._repository = repository
        self._observe = observe

    def listen(self, address: str) -> None:
        self._candidate = Candidate(self.store, self._repository, address, self._observe)
        self._candidate.hears(self._hears)

    def hears(self, nodes: int) -> None:
        self._hears = nodes
        if self._candidate is not None:
            self._candidate.hears(nodes)

    def hold(self) -> None: ...

    def drive(self) -> None: ...

    def tick(self) -> None:
        if self._candidate is not None:
            self._candidate.tick(self._loop.time(), time.time())

    def pause(self) -> float:
        return CANDIDATE_TICK  # who leads is looked after at all times

    def standing(self) -> Leading | NotLeading:
        if self._repository.role is Role.LEADING:
            return Leading(self._repository.term)
        known = self._candidate.leader if self._candidate is not None else None
        return NotLeading(known.term, known.address) if known is not None else NotLeading(Term(0))

    def members(self) -> tuple[tuple[str, int], ...]:
        members = self._candidate.members.values() if self._candidate is not None else ()
        return tuple((member.address, member.hears) for member in members)

    def silence(self) -> float:
        return self._candidate.silence if self._candidate is not None else 0.0

    def health(self) -> StoreInfo:
        health = self.store.health()
        return StoreInfo(
            str(self.store.address),
            health.endpoint,
            health.version,
            health.round_trip,
            health.database_bytes,
            health.used_bytes,
            health.error,
        )

    async def resign(self) -> None:
        candidate, self._candidate = self._candidate, None
        if candidate is None:
            return
        resigned = asyncio.Event()
        with suppress(TimeoutError, errors.Busy):  # a store that takes no more ends the lease when it is not renewed
            candidate.resign(resigned.set)
            await asyncio.wait_for(resigned.wait(), RESIGN_SECONDS)

    async def close(self) -> None:
        await self.store.close()
