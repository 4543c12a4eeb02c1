"""A cluster with several metadata repositories and managers on an etcd of three members: all real processes.

Every connection goes through a proxy, as with any `Cluster` that is `proxied`: those of each daemon to each metadata
repository, and of each metadata repository to each member of etcd. So each of them can be cut off from any other. What
passes there, and what the store keeps, is chronicled (`tests.cluster.chronicle`) and checked at the end.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from tests.cluster.chronicle import Chronicle, Tellings, Writes
from tests.cluster.cluster import Cluster, names_of
from tests.cluster.processes import Daemon
from tests.cluster.proxy import BreakingProxy
from tests.cluster.waiting import until
from tests.metarepo.etcds import opened, own_prefix
from varlog.core.metarepo import MetadataRepository, Role
from varlog.core.metastate import MetadataState
from varlog.etcdserver import EtcdCluster

QUICK: Final = ("--heartbeat-interval=50", "--election-timeout=500")
"""How soon the members of an etcd notice that their leader is gone: on one machine they are near each other."""


class ClusterOnEtcd(Cluster):
    """See the module's text."""

    def __init__(
        self,
        directory: Path,
        etcd: EtcdCluster,
        *,
        repositories: int = 2,
        managers: int = 2,
        replace_after: float = 30.0,
    ) -> None:
        self.etcd = etcd
        self.prefix = own_prefix()
        self.tellings = Tellings()
        self.writes: dict[str, Writes] = {}
        """By metadata repository."""
        self.chronicle: Chronicle
        self._number = repositories
        self._stack = AsyncExitStack()
        super().__init__(directory, managers=managers, proxied=True, replace_after=replace_after)

    def _repositories(self) -> list[Daemon]:
        options = {} if self.etcd.program.is_sound else {"etcd_any_version": "true"}
        return [self._daemon(name, **options) for name in names_of("vmr", self._number)]

    async def _start_repositories(self) -> None:
        store = await self._stack.enter_async_context(opened(self.etcd, prefix=self.prefix))
        self.chronicle = await Chronicle.open(store)
        for repository in self.repositories:
            writes = self.writes[repository.name] = Writes()
            ways = []
            for member in self.etcd.members:
                proxy = self.proxies[f"{repository.name} to {member.name}"] = await BreakingProxy.start(member.endpoint)
                proxy.inspect = writes.inspector
                ways.append(proxy.address)
            repository.options["store"] = f"etcd://{','.join(ways)}/{self.prefix}"
        await super()._start_repositories()

    async def _lay_way(self, name: str, repository: Daemon) -> BreakingProxy:
        way = await super()._lay_way(name, repository)
        if name.startswith("vsn"):
            way.inspect = self.tellings.inspector(repository.name)
        return way

    async def _end(self, *, failed: bool) -> None:
        await super()._end(failed=failed)
        await self._stack.aclose()

    # Who is who

    async def leader(self) -> Daemon:
        """The metadata repository that leads, as the store says."""
        found: list[Daemon] = []

        async def is_one() -> bool:
            leaders = self.chronicle.leaders
            address = leaders[-1].address if leaders else ""
            found[:] = [daemon for daemon in self.repositories if daemon.address == address]
            return bool(found)

        await until(is_one)
        return found[0]

    def manager(self) -> Daemon:
        """The manager that leads."""
        address = self.chronicle.manager
        return next(daemon for daemon in self.managers if daemon.address == address)

    def ways_to_etcd(self, repository: Daemon) -> list[BreakingProxy]:
        return [self.proxies[f"{repository.name} to {member.name}"] for member in self.etcd.members]

    def ways_of_nodes(self, repository: Daemon) -> list[BreakingProxy]:
        """From the nodes to a metadata repository."""
        return [self.proxies[f"{node.name} to {repository.name}"] for node in self.nodes]

    # Evidence

    async def _metadata(self, _scratch: Path) -> MetadataState:
        """Read by one more metadata repository, which leads when all others have ended."""
        await self.chronicle.is_complete()
        self.chronicle.check(self.tellings)
        async with opened(self.etcd, prefix=self.prefix) as store, asyncio.timeout(10):
            leads = asyncio.Event()
            repository = MetadataRepository(store, lambda *_: None, lambda _: None)
            repository.on_turn_of_role = leads.set
            repository.campaign(0.0)
            await leads.wait()
            assert repository.role is Role.LEADING
            return repository.state
