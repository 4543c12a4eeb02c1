"""A whole simulated cluster of chains and its clients, and one run of it.

`run_seed` is a run, as `varlog.sim.cluster.run_seed` is one of the commit ordering: a cluster is made, of a size and
under conditions that the seed decides; clients load it while the nemesis breaks things; then everything is healed, the
clients go on for a while, and the checkers judge. The same seed gives the same run, to the last event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from varlog import errors
from varlog.core.address import node_address, sequencer_address
from varlog.core.branches import ChainBranch
from varlog.core.projection import Projection
from varlog.sim.chains.checking import ChainEvidence, Member, as_replica, check_all, held_by, prefix_end
from varlog.sim.chains.clients import TOPIC, ClientHost, Doom, Shared, Work
from varlog.sim.chains.jobs import (
    MeddlerClient,
    ReaderClient,
    SubscriberClient,
    TailClient,
    TrimmerClient,
    WriterClient,
)
from varlog.sim.chains.network import ChainNetwork
from varlog.sim.chains.nodes import ChainNodeHost
from varlog.sim.chains.repairing import Repair, RepairerHost
from varlog.sim.chains.sequencers import SequencerHost
from varlog.sim.chains.shape import ChainShape
from varlog.sim.chains.striking import draw_profile
from varlog.sim.chains.witness import Witness
from varlog.sim.coverage import Coverage
from varlog.sim.disk import DiskFault, SimDisk
from varlog.sim.evidence import Evidence, LivenessPhase, TopicState
from varlog.sim.history import History, Kind
from varlog.sim.metadata import MetadataHost
from varlog.sim.nemesis import Fault, Nemesis
from varlog.sim.network import NetworkFault
from varlog.sim.process import Process
from varlog.sim.processes import Processes
from varlog.sim.runner import SeedReport
from varlog.sim.store import StoreFault
from varlog.sim.world import World
from varlog.storage.options import StorageOptions
from varlog.types import LogStreamID, StorageNodeID

EPOCH_SECONDS: Final = 20_000.0
"""What a right wall clock shows when a run begins."""
SET_UP_SECONDS: Final = 30.0
FAULT_SECONDS: Final = 12.0
AFTER_SECONDS: Final = 9.0
SETTLING_SECONDS: Final = 5.0
GRACE_SECONDS: Final = 8.0
BACK_SECONDS: Final = 0.5
"""After about so long a client that died at a moment of its own is started again."""

NEVER_HAPPENS: Final = (DiskFault.SYNC_LIE, ChainBranch.RULE22_OUTSIDER_REFUSED)
"""With one replica left nobody could make good for a disk that lies; and of a replica that is outside of a chain nobody
asks anything."""
MOMENT: Final = 0.001
HASTE_SECONDS: Final = 0.05
"""How soon a node is back whose replicas are made anew too early."""


class ChainCluster(Processes[ChainNodeHost, ClientHost]):
    """The processes of a run. Its methods are what can befall them."""

    def __init__(self, world: World, shape: ChainShape) -> None:
        super().__init__(world, EPOCH_SECONDS, repositories=shape.repositories, bad_store=shape.bad_store)
        self.shape = shape
        self.witness = Witness()
        self.network = self._make_network()
        self.history = History(lambda: world.now)
        self.shared = Shared(self.network, self.history, self.witness, self._die)
        self.nodes = [self._make_node(StorageNodeID(number + 1)) for number in range(shape.nodes)]
        self.repositories = [
            MetadataHost(self._skewed(f"mr/{number + 1}"), self.network, SimDisk(), self.store, self._observe)
            for number in range(shape.repositories)
        ]
        self.network.repositories = [host.process.name for host in self.repositories]
        self.sequencers = [
            SequencerHost(self._skewed(sequencer_address(str(number + 1))), self.network, str(number + 1))
            for number in range(shape.sequencers)
        ]
        snids = [host.snid for host in self.nodes]
        process = self.world.process("manager")
        self.manager = RepairerHost(process, self.network, snids, self._chains(snids), shape.block)
        self.clients = self._make_clients()
        self._know((*self._disk_owners, *self.sequencers, self.manager, *self.clients))
        self._is_healed = False

    def _make_network(self) -> ChainNetwork:
        return ChainNetwork(self.world, self.witness)

    def _make_node(self, snid: StorageNodeID) -> ChainNodeHost:
        process = self.world.process(node_address(snid))
        options = StorageOptions(segment_bytes=self.shape.segment_bytes)
        host = ChainNodeHost(process, self.network, SimDisk(), snid, self.witness, self._observe, options)
        host.frugal = self.shape.frugal
        return host

    def _chains(self, snids: Sequence[StorageNodeID]) -> list[tuple[StorageNodeID, ...]]:
        """The nodes of each log stream, head first."""
        return [tuple(self._rng.sample(snids, self.shape.replication_factor)) for _ in range(self.shape.streams)]

    def _make_clients(self) -> list[ClientHost]:
        shape, shared, rng = self.shape, self.shared, self._rng
        made: list[ClientHost] = []

        def process() -> Process:
            return self._skewed(f"client/{len(made) + 1}")

        for _ in range(shape.writers):
            made += [WriterClient(process(), shared, window=rng.choice((1, 4, 16)), pace=0.15)]
        for _ in range(shape.readers):
            made += [ReaderClient(process(), shared, pace=0.3, fill_after=shape.fill_after)]
        for _ in range(shape.subscribers):
            made += [SubscriberClient(process(), shared, first=rng.choice((1, 1, 10)), fill_after=shape.fill_after)]
        for _ in range(shape.tails):
            made += [TailClient(process(), shared, pace=0.4, fill_after=shape.fill_after)]
        for _ in range(shape.trimmers):
            made += [TrimmerClient(process(), shared, pace=0.5, trim_pace=4.0)]
        made += [MeddlerClient(process(), shared, fill_pace=0.3, seal_pace=shape.seal_pace)]
        return made

    # Life

    def set_up(self) -> None:
        """Start everything on a good network and wait until there is a projection."""
        for host in self._hosts.values():
            if not isinstance(host, ClientHost):
                host.start()
        self.world.run(self.world.now + SET_UP_SECONDS, stop=lambda: self.manager.is_set_up)
        if not self.manager.is_set_up:
            raise errors.DeadlineExceeded("the simulated cluster was not set up in time")

    def ambush(self) -> None:
        """Doom clients, and let the topic grow, at moments to come."""
        rng = self.world.rng("ambush")
        for _ in range(self.shape.dooms):
            self.world.at(rng.uniform(0.0, FAULT_SECONDS), self._doom, rng)
        if self.shape.grows:
            self.world.at(rng.uniform(0.0, FAULT_SECONDS), self.manager.add_stream)

    def _doom(self, rng: Random) -> None:
        doom = rng.choice(tuple(Doom))
        client = rng.choice([client for client in self.clients if self._may_be_doomed(client, doom)])
        if client.process.alive and client.doom is None:
            client.doom = doom

    def _may_be_doomed(self, client: ClientHost, doom: Doom) -> bool:
        return isinstance(client, MeddlerClient if doom is Doom.AFTER_SEAL else WriterClient)

    def _die(self, name: str) -> None:
        """A doomed client ends."""
        self.kill(name)
        self.world.at(self.world.rng("ambush").expovariate(1.0 / BACK_SECONDS), self.restart, name)

    @property
    def projection(self) -> Projection | None:
        leader = self.leader
        topic = leader.repository.state.topics.get(TOPIC) if leader is not None else None
        return topic.projection if topic is not None else None

    # What the nemesis may do

    def victims(self, fault: Fault) -> Sequence[str]:
        """Whom a fault may strike."""
        nodes = [host.process.name for host in self.nodes]
        repositories = [host.process.name for host in self.repositories]
        match fault:
            case Fault.CLOCK_JUMP:  # whose wall clock anything depends on
                sequencers = [host.process.name for host in self.sequencers]
                return [*repositories, *sequencers, *(client.process.name for client in self.clients)]
            case Fault.POWER_LOSS:  # who has no disk is killed, no more
                return [*nodes, *nodes, *repositories]
            case Fault.BIT_ROT | Fault.LOST_DISK:
                return [host.process.name for host in self.nodes if self._is_expendable(host)]
            case _:
                return super().victims(fault)

    def _is_expendable(self, host: ChainNodeHost) -> bool:
        """Whether every chain that a node is a member of has another sound member, and none is being changed: what is
        only there may not be lost."""
        projection = self.projection
        if projection is None:
            return False
        for chain in projection.chains:
            if host.snid not in chain.nodes:
                continue
            others = [other for other in self.nodes if other.snid in chain.nodes and other is not host]
            if not others or not all(self._is_sound(other, chain.lsid, projection.epoch) for other in (host, *others)):
                return False
        return True

    def _is_sound(self, host: ChainNodeHost, lsid: LogStreamID, epoch: int) -> bool:
        replica = host.replica(lsid) if host.process.alive and not host.process.paused else None
        return replica is not None and replica.healthy and replica.epoch == epoch and not replica.outside

    def power_loss(self, name: str, patience: int = 100) -> None:
        """Where a disk is about to be written to, it goes while something is not synced yet."""
        if self._is_healed:
            return
        host = self._hosts[name]
        if isinstance(host, ChainNodeHost) and host.process.alive and not host.is_writing and patience:
            self.world.at(MOMENT, self.power_loss, name, patience - 1)
        else:
            super().power_loss(name)

    def rot(self, name: str, rng: Random) -> bool:
        """What rots is found soon, as a scrub does."""
        struck = super().rot(name, rng)
        if struck:
            self._node(name).scrub()
        return struck

    def lose_disk(self, name: str) -> None:
        """Mostly somebody makes the replicas anew too early, while their chains still count on them, and then another
        one reconfigures the topic."""
        host = self._node(name)
        lost = list(host.storages)
        super().lose_disk(name)
        if self.world.rng("mistakes").random() < 0.8:
            host.mistaken = lost
            self.world.at(HASTE_SECONDS, self.restart, name)
            for client in self.clients:
                if isinstance(client, MeddlerClient):
                    client.process.at(2 * HASTE_SECONDS, client.reconfigure)

    def heal(self) -> None:
        """Start whatever is down; from now on nothing fails. A node that is to be lost for good is, if what it has is
        elsewhere too."""
        self._is_healed = True
        super().heal()
        if self.shape.lost_node and self._is_expendable(self.nodes[-1]):
            self.kill(self.nodes[-1].process.name)
        for client in self.clients:
            client.doom = None

    # Evidence

    def evidence(self, healed: float) -> ChainEvidence:
        """What the run has come to."""
        leader, projection = self.leader, self.projection
        chains: list[list[Member]] = []
        for chain in projection.chains if projection is not None else ():
            hosts = [host for snid in chain.nodes for host in self.nodes if host.snid == snid and host.process.alive]
            chains.append([self._dump(host, chain.lsid) for host in hosts if chain.lsid in host.storages])
        tails = [chain[-1] for chain in chains if chain]
        topics = {}
        if leader is not None and TOPIC in leader.repository.state.topics:
            trim = leader.repository.state.topics[TOPIC].trim
            topics[int(TOPIC)] = TopicState(prefix_end(tails, trim), trim)
        replicas = [as_replica(TOPIC, tail) for tail in tails]
        writers = [client.process.name for client in self.clients if isinstance(client, WriterClient)]
        phase = LivenessPhase(
            healed, self.world.now, GRACE_SECONDS, writers, healed + SETTLING_SECONDS, self._unsettled()
        )
        return ChainEvidence(Evidence(self.history, topics, replicas, liveness=phase), chains, self.witness)

    def _dump(self, host: ChainNodeHost, lsid: LogStreamID) -> Member:
        storage = host.storages[lsid]
        batches, damage = held_by(storage)
        if damage is not None:
            self.witness.alarm("invariant", f"{host.process.name} is damaged, and a member of a chain: {damage}")
        return Member(lsid, host.process.name, storage.trim, batches)

    def _unsettled(self) -> list[str]:
        """What a healed cluster has not put in order: chains that are short, members that are not well."""
        projection = self.projection
        if projection is None:
            return ["no metadata repository leads, or it knows no projection"]
        alive = sum(host.process.alive for host in self.nodes)
        told = []
        for chain in projection.chains:
            if len(chain.nodes) < min(alive, self.shape.replication_factor):
                told.append(f"the chain of log stream {chain.lsid} has only {chain.nodes} at the end")
            told += [
                f"the replica of log stream {chain.lsid} on {host.process.name} is not in order at the end"
                for host in self.nodes
                if host.snid in chain.nodes and not self._is_sound(host, chain.lsid, projection.epoch)
            ]
        return told

    def coverage(self) -> Coverage:
        """What the run has exercised."""
        return self._coverage(
            {
                "faults": (Fault, Doom, NetworkFault, DiskFault, StoreFault),
                "reconfigurations": (Work, Repair),
                "protocol rules": (ChainBranch,),
            },
            NEVER_HAPPENS,
        )


def run_seed(
    seed: int,
    *,
    trace: bool = False,
    shape: ChainShape | None = None,
    calm: bool = False,
    prepare: Callable[[ChainCluster], None] | None = None,
    make: Callable[[World, ChainShape], ChainCluster] | None = None,
) -> SeedReport:
    """One run, from its seed; of a cluster as it is, or of one that is made otherwise."""
    world = World(seed, tracing=trace)
    cluster = (make or ChainCluster)(world, shape or ChainShape.draw(world))
    nemesis = Nemesis(cluster, draw_profile(world.rng("profile"), calm=calm))
    cluster.set_up()
    if prepare is not None:
        prepare(cluster)
    cluster.start_clients()
    cluster.ambush()
    nemesis.start(world.now + FAULT_SECONDS)
    world.run(world.now + FAULT_SECONDS)
    nemesis.heal_all()
    cluster.heal()
    healed = world.now
    world.run(healed + AFTER_SECONDS)
    cluster.shared.stopping = True
    world.run(world.now + GRACE_SECONDS)
    violations = [*cluster.stops(), *check_all(cluster.evidence(healed))]
    return SeedReport(
        seed,
        violations,
        sum(op.kind is not Kind.DELIVERY for op in cluster.history.operations),
        world.now,
        cluster.coverage(),
        world.trace_hash(),
        world.trace_lines() if trace else (),
        f"{cluster.shape}; {nemesis.profile.name}",
    )
