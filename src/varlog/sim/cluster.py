"""A whole simulated cluster and its clients, and one run of it.

`run_seed` is a run: a cluster is made, of a size and under conditions that the seed decides; it is set up; clients load
it while the nemesis breaks things; then everything is healed, the clients go on for a while, and the checkers judge the
evidence. The same seed gives the same run, to the last event.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from operator import attrgetter
from random import Random
from typing import Final

from varlog import batch, errors
from varlog.core.address import METADATA_REPOSITORY, node_address
from varlog.core.branches import Branch
from varlog.core.dedup import DedupTable
from varlog.core.executor import LogStreamExecutor
from varlog.core.messages import Commit, Range
from varlog.core.metastate import Stream
from varlog.core.states import Transition
from varlog.sim.checkers import check_all
from varlog.sim.clients import (
    TOPIC,
    ClientHost,
    PeekerClient,
    ReaderClient,
    Shared,
    SubscriberClient,
    TrimmerClient,
    WriterClient,
)
from varlog.sim.coverage import Coverage
from varlog.sim.disk import DiskFault, SimDisk
from varlog.sim.evidence import (
    CommittedBatch,
    Durability,
    Evidence,
    Frame,
    Frames,
    LivenessPhase,
    ReplicaDump,
    Sighting,
    TopicState,
    payloads_of,
)
from varlog.sim.history import History, Kind
from varlog.sim.managing import Collection, ManagerHost, Operation
from varlog.sim.medium import Image
from varlog.sim.metadata import MetadataHost
from varlog.sim.nemesis import Fault, Nemesis, draw_profile
from varlog.sim.network import Network, NetworkFault
from varlog.sim.nodes import StorageNodeHost
from varlog.sim.operators import Operators
from varlog.sim.process import Process
from varlog.sim.processes import Processes
from varlog.sim.runner import SeedReport, Violation
from varlog.sim.shape import Shape
from varlog.sim.store import StoreFault
from varlog.sim.world import World
from varlog.storage.log import LogStreamStorage, StorageOptions
from varlog.types import GLSN, LogStreamID, StorageNodeID, StreamStatus, Term

EPOCH_SECONDS: Final = 1_000.0
"""What a right wall clock shows when a run begins."""
SET_UP_SECONDS: Final = 30.0
FAULT_SECONDS: Final = 15.0
AFTER_SECONDS: Final = 10.0
SETTLING_SECONDS: Final = 5.0
LED_SECONDS: Final = 8.0
GRACE_SECONDS: Final = 9.0
RESTORE_SECONDS: Final = 4.0


class ClockFault(Enum):
    """What is wrong with a clock from the beginning."""

    SKEW = "clock was off from the start"


class ClusterNetwork(Network):
    """A network on which the metadata repository's address reaches every process that may lead, and on which it is
    noted what cuts were told to anybody."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.repositories: Sequence[str] = ()
        self.told: Callable[[Range], None]

    def send(self, source: Process, address: str, message: object) -> None:
        if isinstance(message, Commit):
            for cut in message.ranges:
                self.told(cut)
        if address == METADATA_REPOSITORY:
            for repository in self.repositories:
                super().send(source, repository, message)
        else:
            super().send(source, address, message)


class Cluster(Processes[StorageNodeHost, ClientHost]):
    """The processes of a run. Its methods are what can befall them."""

    def __init__(self, world: World, shape: Shape) -> None:
        super().__init__(world, EPOCH_SECONDS, repositories=shape.repositories, bad_store=shape.bad_store)
        self.shape = shape
        self.network = ClusterNetwork(world)
        self.network.told = self._told
        self.durability = Durability()
        self.frames = Frames()
        self.history = History(lambda: world.now)
        if shape.first > 1:  # what comes before counts as trimmed
            self.history.ok(self.history.invoke("operator", Kind.TRIM, TOPIC, position=shape.first - 1))
        self.shared = Shared(self.network, self.history, self._observe)
        self.nodes = [self._make_node(StorageNodeID(number + 1)) for number in range(shape.nodes)]
        self.repositories = [self._make_repository(number + 1) for number in range(shape.repositories)]
        self.network.repositories = [host.process.name for host in self.repositories]
        self.manager = self._make_manager()
        self._managers = [self.manager, *(self._make_second_manager() for _ in range(shape.managers - 1))]
        self.operators = Operators(world, self._managers, [host.snid for host in self.nodes])
        self.clients = self._make_clients()
        self._know((*self._disk_owners, *self._managers, *self.clients))
        self._operating_until = 0.0
        self._led = Term(0)
        """In which term somebody led when all had been in order for a while."""
        self._damaged = self.nodes[0].process.name if shape.lying_disk else ""
        """The node whose disk lies, rotted or was lost; all others keep theirs, so that no entry loses every copy.
        Where one node is gone at the end, and two copies are all there are, it is that one."""

    def _told(self, cut: Range) -> None:
        """Of several that believe they lead, one that does not any more may not know the set of this epoch."""
        for repository in self.repositories:
            stream = repository.repository.state.streams.get(LogStreamID(cut[0])) if repository.leads else None
            if stream is not None and stream.epoch == cut[1]:
                self.durability.told(cut, [node_address(snid) for snid in stream.replicas])
                return

    def _make_node(self, snid: StorageNodeID) -> StorageNodeHost:
        process = self.world.process(node_address(snid))
        disk = SimDisk()
        if self.shape.lying_disk and snid == 1:
            disk.lies = self._lies
        options = StorageOptions(segment_bytes=self.shape.segment_bytes)
        host = StorageNodeHost(
            process, self.network, disk, snid, self.frames, self.durability, self._observe, options, self._dedup_table
        )
        host.frugal = self.shape.frugal
        return host

    def _dedup_table(self) -> DedupTable:
        return DedupTable(per_writer=16, total=self.shape.dedup_sequences)

    def _make_repository(self, number: int) -> MetadataHost:
        process = self._skewed(f"mr/{number}")
        disk = SimDisk()
        if self.shape.lying_disk:
            disk.slowness = 10.0  # cuts then span several syncs of the nodes, some real and some not
        return MetadataHost(process, self.network, disk, self.store, self._observe)

    def _skewed(self, name: str) -> Process:
        process = super()._skewed(name)
        self.world.count(ClockFault.SKEW, process)
        return process

    def _make_manager(self) -> ManagerHost:
        shape = self.shape
        snids = [host.snid for host in self.nodes]
        streams = [tuple(self._rng.sample(snids, shape.replication_factor)) for _ in range(shape.streams)]
        process = self.world.process("manager")
        self._outsider = self._rng.choice(snids) if shape.outsider else None
        return ManagerHost(process, self.network, snids, streams, shape.replication_factor, self._outsider, shape.first)

    def _make_second_manager(self) -> ManagerHost:
        process = self.world.process("manager/2")
        return ManagerHost(process, self.network, (), (), self.shape.replication_factor, self._outsider)

    def _make_clients(self) -> list[ClientHost]:
        shape, shared, rng = self.shape, self.shared, self._rng
        made: list[ClientHost] = []

        def process() -> Process:
            return self._skewed(f"client/{len(made) + 1}")

        for number in range(shape.writers + shape.retrying_writers):
            retry = number >= shape.writers
            made += [WriterClient(process(), shared, retry=retry, window=rng.choice((1, 4, 16)), pace=0.15)]
        for _ in range(shape.readers):
            made += [ReaderClient(process(), shared, pace=0.3)]
        for _ in range(shape.subscribers):
            made += [SubscriberClient(process(), shared, begin=rng.choice((1, 1, 10)))]
        for _ in range(shape.peekers):
            made += [PeekerClient(process(), shared, pace=0.4)]
        for _ in range(shape.trimmers):
            made += [TrimmerClient(process(), shared, pace=0.5, trim_pace=4.0)]
        return made

    # Life

    def set_up(self) -> None:
        """Start everything on a good network and wait until every log stream runs."""
        for node in self.nodes:
            node.start()
        for repository in self.repositories:
            repository.start()
        self.manager.start()
        self.world.run(self.world.now + SET_UP_SECONDS, stop=lambda: self.is_running)
        if not self.is_running:
            raise errors.DeadlineExceeded("the simulated cluster was not set up in time")
        for standby in self._managers[1:]:
            standby.start()

    def operate(self) -> None:
        """What operators do while the cluster runs: they add a log stream, seal one for no reason, and more."""
        self.operators.work(self.shape.operations, FAULT_SECONDS)
        rng = self.world.rng("operator")
        self.world.at(rng.uniform(0.0, FAULT_SECONDS), self._add_stream, rng)
        for _ in range(self.shape.operator_seals):
            self.world.at(rng.uniform(0.0, FAULT_SECONDS), self._seal_some, rng)
        self._operating_until = self.world.now + FAULT_SECONDS

    def _lies(self, path: str) -> bool:
        """The lying disk's answer to a sync. Lies show only when the power goes, so now and then it goes soon after.
        It lies of log streams only: a node that has lost its identity to one takes a person to mend."""
        rng = self.world.rng("lies")
        if "lsid=" not in path or rng.random() < 0.7:
            return False
        if rng.random() < 0.05 and self.world.now < self._operating_until:
            name = self.nodes[0].process.name
            moment = rng.uniform(0.0, 0.1)
            self.world.at(moment, self.power_loss, name)
            self.world.at(moment + 0.2, self.restart, name)
        return True

    def _add_stream(self, rng: Random) -> None:
        manager = self._leading_manager()
        if manager.process.alive:
            snids = [host.snid for host in self.nodes]
            manager.add_stream(tuple(rng.sample(snids, self.shape.replication_factor)))

    def _seal_some(self, rng: Random) -> None:
        manager = self._leading_manager()
        if manager.process.alive:
            manager.seal(LogStreamID(rng.randint(1, self.shape.streams)))

    def _leading_manager(self) -> ManagerHost:
        """The one that believes it leads, or some."""
        return next((manager for manager in self._managers if manager.leads), self.manager)

    @property
    def is_running(self) -> bool:
        """Every log stream runs, on every replica."""
        leader = self.leader
        if leader is None or not self.manager.is_set_up:
            return False
        streams = leader.repository.state.streams.values()
        return len(streams) >= self.shape.streams and all(s.status.name == "RUNNING" for s in streams)

    # What the nemesis may do

    def victims(self, fault: Fault) -> Sequence[str]:
        """Whom a fault may strike."""
        nodes = [host.process.name for host in self.nodes]
        repositories = [host.process.name for host in self.repositories]
        match fault:
            case Fault.CLOCK_JUMP:  # whose wall clock anything depends on
                return [*repositories, *(client.process.name for client in self.clients)]
            case Fault.BIT_ROT | Fault.LOST_DISK:
                spare = nodes if self.shape.replication_factor > 2 or not self.shape.lost_node else nodes[-1:]
                many = self.shape.replication_factor > 1
                return [name for name in spare if many and self._damaged in ("", name)]
            case _:
                return super().victims(fault)

    def rot(self, name: str, rng: Random) -> bool:
        struck = super().rot(name, rng)
        if struck:
            self._damaged = name
        return struck

    def lose_disk(self, name: str) -> None:
        super().lose_disk(name)
        self._damaged = name

    def heal(self) -> None:
        """Start whatever is down, and take back what operators wanted; from now on nothing fails."""
        super().heal()
        if self.shape.lost_node:
            self.kill(self.nodes[-1].process.name)
        self._tidy_up()
        self.world.at(LED_SECONDS, self._note_leader)

    def _note_leader(self) -> None:
        self._led = self.leader.repository.term if self.leader is not None else Term(0)

    def _tidy_up(self) -> None:
        """Once the managers know how things are, and again for what was under way meanwhile."""
        for seconds in (1.0, 2.0, 3.0):
            self.world.at(seconds, self.operators.tidy_up)

    # Evidence

    def evidence(self, liveness: LivenessPhase | None) -> Evidence:
        """What the run has come to. Every replica that can be opened is read."""
        leader = self.leader
        topics = {}
        if leader is not None:
            state = leader.repository.state
            ends = {int(s.lsid): int(s.llsn_end) for s in state.streams.values()}
            first = self.shape.first
            topics = {int(t.tpid): TopicState(t.hwm, t.trim, ends, first) for t in state.topics.values()}
        replicas = [dump for node in self.nodes for dump in self._dump(node)]
        return Evidence(self.history, topics, replicas, self.frames, self.durability, self._decided(), liveness)

    def committed(self) -> Iterator[tuple[int, Frame]]:
        """The GLSN and frame of everything that was committed: every cut that was told, joined with every batch that
        was stored."""
        frames: defaultdict[tuple[int, int], list[Frame]] = defaultdict(list)
        for frame in sorted(self.frames.seen):
            frames[frame.lsid, frame.epoch].append(frame)
        for lsid, epoch, llsn_begin, glsn_begin, count in self.durability.cuts:
            stored = frames[lsid, epoch]
            at = bisect_left(stored, llsn_begin, key=attrgetter("llsn"))
            while at < len(stored) and stored[at].llsn < llsn_begin + count:
                yield stored[at].llsn - llsn_begin + glsn_begin, stored[at]
                at += 1

    def _decided(self) -> list[Sighting]:
        return [
            Sighting(TOPIC, glsn + i, payload, f"a cut of log stream {frame.lsid} in epoch {frame.epoch}")
            for glsn, frame in self.committed()
            for i, payload in enumerate(payloads_of(batch.decode(frame.content), glsn))
        ]

    def _dump(self, node: StorageNodeHost) -> list[ReplicaDump]:
        dumps = []
        excused = node.process.name == self._damaged
        for executor in node.node.executors:
            if self._is_zombie(executor):
                continue
            if node.process.alive:
                storage = node.storages[executor.lsid]
                trim, hwm, end = executor.trim_glsn, executor.global_hwm, executor.committed_end
            else:  # a commit that it knew of and had not written is gone with its memory; the entries are there
                storage = node.reopened(executor.lsid)
                known = storage.recovered
                trim, hwm, end = known.trim_glsn, known.global_hwm, known.committed_llsn_end
            batches, damaged = committed_batches(storage, trim, hwm)
            damaged = (damaged or not executor.healthy) and (excused or self._is_outsider(node, executor.lsid))
            dumps.append(ReplicaDump(TOPIC, executor.lsid, node.process.name, batches, end, trim, damaged))
        return dumps

    def _is_outsider(self, node: StorageNodeHost, lsid: LogStreamID) -> bool:
        return self.leader is not None and node.snid not in self.leader.repository.state.streams[lsid].replicas

    def _is_zombie(self, executor: LogStreamExecutor) -> bool:
        """Made for a log stream that was given up before it was registered; it holds nothing."""
        known = self.leader is None or executor.lsid in self.leader.repository.state.streams
        return not known and executor.epoch == 0

    def unsettled(self) -> list[str]:
        """What a healed cluster has not put in order: log streams that do not run, replicas that are behind."""
        if self.leader is None:
            return ["no metadata repository leads"]
        state = self.leader.repository.state
        told = []
        if self._led != self.leader.repository.term:
            told.append("another leads at the end than when all was in order again")
        for stream in state.streams.values():
            if stream.status in (StreamStatus.CREATING, StreamStatus.ABORTED):
                if not self.shape.lost_node:  # which may have something of it
                    told.append(f"log stream {stream.lsid} is {stream.status.name} at the end")
                continue
            if stream.status is not StreamStatus.RUNNING:
                told.append(f"log stream {stream.lsid} is {stream.status.name} at the end")
            hwm = state.topics[stream.tpid].hwm
            told += [
                f"the replica of log stream {stream.lsid} on {node.process.name} is not in order at the end"
                for node in self.nodes
                if node.snid in stream.replicas and not self._is_in_order(node, stream, hwm)
            ]
        return told + [
            f"{node.process.name} has something of log stream {executor.lsid} at the end, which is no more"
            for node in self.nodes
            for executor in node.node.executors
            if node.process.alive and self._is_zombie(executor)
        ]

    @staticmethod
    def _is_in_order(node: StorageNodeHost, stream: Stream, hwm: GLSN) -> bool:
        if not node.process.alive:
            return False
        replica = next((e for e in node.node.executors if e.lsid == stream.lsid), None)
        return (
            replica is not None
            and replica.healthy
            and (replica.epoch, replica.committed_end, replica.global_hwm) == (stream.epoch, stream.llsn_end, hwm)
        )

    def stop_clients(self) -> None:
        """Let what is under way end; nothing new is begun."""
        self.shared.stopping = True

    def coverage(self) -> Coverage:
        """What the run has exercised."""
        return self._coverage(
            {
                "faults": (Fault, ClockFault, NetworkFault, DiskFault, StoreFault),
                "operators": (Operation,),
                "collections": (Collection,),
                "state transitions": (Transition,),
                "protocol rules": (Branch,),
            }
        )


def committed_batches(storage: LogStreamStorage, trim: GLSN, hwm: GLSN) -> tuple[list[CommittedBatch], bool]:
    """What a replica holds, and whether damage hides some of it."""
    found: list[CommittedBatch] = []
    begin = GLSN(trim + 1)
    while begin <= hwm:
        try:
            stored = storage.read(begin, GLSN(hwm + 1), 1 << 20)
        except errors.Corrupt:
            return found, True
        if not stored:
            break
        for b in stored:
            payloads = payloads_of(batch.decode(b.batch), b.glsn)
            found.append(CommittedBatch(b.llsn, b.glsn, b.epoch, tuple(payloads)))
        begin = GLSN(stored[-1].glsn + stored[-1].count)
    return found, False


def run_seed(
    seed: int, *, trace: bool = False, shape: Shape | None = None, make: Callable[[World, Shape], Cluster] | None = None
) -> SeedReport:
    """One run, from its seed; of a cluster as it is, or of one that is made otherwise."""
    world = World(seed, tracing=trace)
    cluster = (make or Cluster)(world, shape or Shape.draw(world))
    nemesis = Nemesis(cluster, draw_profile(world.rng("profile")))
    cluster.set_up()
    backup = cluster.repositories[0].disk.image()
    cluster.start_clients()
    cluster.operate()
    nemesis.start(world.now + FAULT_SECONDS)
    world.run(world.now + FAULT_SECONDS)
    nemesis.heal_all()
    cluster.heal()
    healed = world.now
    world.run(healed + AFTER_SECONDS)
    cluster.stop_clients()
    world.run(world.now + GRACE_SECONDS)
    violations = check_all(cluster.evidence(_liveness(cluster, healed)))
    violations += cluster.stops()
    if cluster.shape.old_backup and cluster.store is None and not violations:
        violations += _restore(cluster, backup)
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


def _liveness(cluster: Cluster, healed: float) -> LivenessPhase | None:
    """What a healed cluster owes: everything; where a node is gone for good, as much as the others can do."""
    writers = [client.process.name for client in cluster.clients if isinstance(client, WriterClient)]
    unsettled = cluster.unsettled()
    if cluster.shape.lost_node and not cluster.shape.can_lose_a_node:
        writers, unsettled = [], []
    return LivenessPhase(healed, cluster.world.now, GRACE_SECONDS, writers, healed + SETTLING_SECONDS, unsettled)


def _restore(cluster: Cluster, backup: Image) -> list[Violation]:
    """Put old metadata in place: every node that has seen more must stop (rule 5)."""
    ahead = [node for node in cluster.nodes if node.process.alive and node.node.executors]
    (repository,) = cluster.repositories
    repository.kill()
    repository.disk = SimDisk.from_image(backup)
    repository.process.start()
    repository.start()
    cluster.world.run(cluster.world.now + RESTORE_SECONDS)
    return [
        ("restored_metadata", f"{node.process.name} goes on with metadata older than what it has seen")
        for node in ahead
        if node.process.alive and node.node.seen_version > repository.repository.state.version
    ]
