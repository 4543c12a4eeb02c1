"""`Processes`: those of a run, whichever way its topic is ordered, and what can befall them.

It is what the nemesis can reach of a cluster (`varlog.sim.nemesis.Cluster`). A cluster of an ordering makes the
processes, and says where it takes part in their fate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from varlog import errors
from varlog.sim.coverage import Coverage
from varlog.sim.disk import SimDisk
from varlog.sim.hosts import NodeHost
from varlog.sim.metadata import MetadataHost
from varlog.sim.nemesis import Fault
from varlog.sim.process import Process
from varlog.sim.store import SimStore, StoreFaults
from varlog.sim.world import World


class Host(Protocol):
    """Any process of a run."""

    process: Process

    def start(self) -> None: ...

    def kill(self) -> None: ...


N = TypeVar("N", bound=NodeHost[Any])
C = TypeVar("C", bound=Host)


class Processes(Generic[N, C]):
    """See the module's text. Storage nodes are `N`, clients `C`."""

    nodes: list[N]
    repositories: list[MetadataHost]
    clients: list[C]

    def __init__(self, world: World, epoch_seconds: float, *, repositories: int, bad_store: bool) -> None:
        self.world = world
        self.branches: Counter[Enum] = Counter()
        self.store = None if repositories == 1 else self._make_store()
        self._bad_store = bad_store
        self._epoch_seconds = epoch_seconds
        self._rng = world.rng("cluster")
        self._hosts: dict[str, Host] = {}

    def _make_store(self) -> SimStore:
        """One for several metadata repositories; where there is only one it has its own."""
        return SimStore(self.world.at, lambda: self.world.now, self.world.rng("store"), StoreFaults())

    def _know(self, hosts: Iterable[Host]) -> None:
        """All that there are, in the order in which they are started again."""
        self._hosts = {host.process.name: host for host in hosts}

    def _observe(self, branch: Enum) -> None:
        self.branches[branch] += 1

    def _skewed(self, name: str) -> Process:
        """A process whose wall clock somebody relies on, and that is wrong."""
        return self.world.process(name, skew=self._epoch_seconds + self._rng.uniform(-5.0, 5.0))

    def start_clients(self) -> None:
        for client in self.clients:
            client.start()
        if self.store is not None and self._bad_store:
            self.store.odds = StoreFaults(refused=0.02, lost=0.02, unanswered=0.02, late=0.02)

    @property
    def leader(self) -> MetadataHost | None:
        return next((host for host in self.repositories if host.leads), None)

    @property
    def _disk_owners(self) -> list[N | MetadataHost]:
        return [*self.nodes, *self.repositories]

    # What the nemesis may do

    def victims(self, fault: Fault) -> Sequence[str]:
        """Whom a fault may strike."""
        nodes = [host.process.name for host in self.nodes]
        repositories = [host.process.name for host in self.repositories]
        match fault:
            case Fault.DISK_FULL | Fault.WRITE_ERROR | Fault.SYNC_ERROR | Fault.SLOW_DISK:
                return nodes if self.store is not None else [*nodes, *repositories]
            case Fault.STORE_OUTAGE | Fault.STORE_CUT | Fault.TAKEOVER:
                return repositories if self.store is not None else []
            case Fault.LEADER_KILL | Fault.LEADER_STOP | Fault.LEADER_PAUSE | Fault.LEADER_DEAF:
                leads = self.leader if self.store is not None else None
                return [] if leads is None else [leads.process.name]
            case _:
                return list(self.world.processes)

    def kill(self, name: str) -> None:
        self._hosts[name].kill()

    def stop(self, name: str) -> None:
        host = self._hosts[name]
        assert isinstance(host, MetadataHost), "nobody else ends in an orderly way"
        host.stop()

    def power_loss(self, name: str) -> None:
        self.kill(name)
        host = self._hosts[name]
        if isinstance(host, NodeHost | MetadataHost):
            host.disk.power_loss(self.world.rng("power loss"))

    def restart(self, name: str) -> None:
        host = self._hosts[name]
        if isinstance(host, MetadataHost) and host.is_stopping:
            host.kill()
        if not host.process.alive:
            host.process.start()
            host.start()

    def disk(self, name: str) -> SimDisk:
        host = self._hosts[name]
        assert isinstance(host, NodeHost | MetadataHost), "nobody else has a disk"
        return host.disk

    def rot(self, name: str, rng: Random) -> bool:
        return self.disk(name).rot(rng, suffix=".seg") is not None

    def lose_disk(self, name: str) -> None:
        self._node(name).lose_disk()

    def _node(self, name: str) -> N:
        return next(host for host in self.nodes if host.process.name == name)

    def take_over(self) -> bool:
        standby = [host for host in self.repositories if host.process.alive and not host.leads]
        for host in standby:
            host.doubt_leader()
        return bool(standby)

    def cut_off(self, _name: str) -> Sequence[str]:
        return [host.process.name for host in self.nodes]

    def set_store_reachable(self, name: str, reachable: bool) -> None:
        host = self._hosts[name]
        assert isinstance(host, MetadataHost), "nobody else has to do with the store"
        host.set_store_reachable(reachable)

    def set_store_available(self, available: bool) -> None:
        if self.store is not None:
            self.store.available = available

    def heal(self) -> None:
        """Start whatever is down; from now on nothing fails."""
        if self.store is not None:
            self.store.odds = StoreFaults()
        for owner in self._disk_owners:
            owner.disk.heal()
        for name in self._hosts:
            self.restart(name)

    # Evidence

    def stops(self) -> list[tuple[str, str]]:
        """Processes that ended themselves because the rules were violated, or for any other reason and stayed so."""
        return [
            ("invariant", f"{host.process.name} stopped: {host.stopped}")
            for host in self._disk_owners
            if isinstance(host.stopped, errors.ConsistencyViolation)
            or (host.stopped is not None and not host.process.alive)
        ]

    def _coverage(self, wanted: Mapping[str, tuple[type[Enum], ...]], without: Sequence[Enum] = ()) -> Coverage:
        """What the run has exercised of what is wanted."""
        coverage = Coverage(wanted, without=without)
        coverage.add(self.world.faults)
        coverage.add(self.branches)
        for host in self._disk_owners:
            coverage.add(host.disk.faults)
        if self.store is not None:
            coverage.add(self.store.faults)
        return coverage
