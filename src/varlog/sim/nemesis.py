"""The nemesis: breaks a simulated cluster on a schedule drawn from its seed, and mends it again.

A run has a `Profile`, drawn from the seed: some are calm, some break one kind of thing, some break everything at once.
During the fault phase (`start(until)`) faults strike at random moments; most end by themselves after a while (a killed
process is restarted, a partition heals). Then `heal_all` ends the rest, and from there on the cluster owes progress.

The nemesis knows the cluster through the small `Cluster` interface. What it may do to whom without making the run's
promises impossible (wiping all copies of an entry, say) is not for it to judge: it asks `victims`.

Every strike is counted by `Fault` in the world's counters, so that a kind that never struck shows as a zero.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, Protocol

from varlog.sim.disk import SimDisk
from varlog.sim.network import Conditions, Network
from varlog.sim.world import World


class Fault(Enum):
    """What the nemesis does."""

    KILL = "process killed"
    KILL_ALL = "all processes killed at once"
    POWER_LOSS = "machine lost power"
    POWER_LOSS_ALL = "all machines lost power at once"
    PAUSE = "process paused"
    PARTITION_ONE_WAY = "one-way partition"
    PARTITION_TWO_WAY = "two-way partition"
    ISOLATION = "process isolated"
    BAD_NETWORK = "network turned bad"
    DISK_FULL = "disk became full"
    WRITE_ERROR = "disk write was to fail"
    SYNC_ERROR = "disk sync was to fail"
    BIT_ROT = "disk bit flipped"
    LOST_DISK = "disk was lost and replaced by an empty one"
    SLOW_DISK = "disk became slow"
    CLOCK_JUMP = "clock jumped"
    CLOCK_DRIFT = "clock drifted"
    STORE_OUTAGE = "metadata store was away"
    STORE_CUT = "metadata repository was cut off from the metadata store"
    TAKEOVER = "standby took a healthy leader for silent"
    LEADER_KILL = "leading metadata repository killed"
    LEADER_STOP = "leading metadata repository stopped in an orderly way"
    LEADER_PAUSE = "leading metadata repository paused for long"
    LEADER_DEAF = "leading metadata repository cut off from the storage nodes"


class Cluster(Protocol):
    """What the nemesis can reach of a cluster. Processes are named as in the world."""

    @property
    def world(self) -> World: ...

    @property
    def network(self) -> Network: ...

    def victims(self, fault: Fault) -> Sequence[str]:
        """Whom this fault may strike now, in a fixed order; none if it may strike nobody.

        For partitions: everyone who can be on one side or the other. For faults that strike everyone, or the store:
        whoever takes part, if only by name.
        """

    def kill(self, name: str) -> None:
        """End the process; its disk keeps the page cache."""

    def power_loss(self, name: str) -> None:
        """End the process and all of its disk that was not synced."""

    def restart(self, name: str) -> None:
        """Start it again, if it is not alive."""

    def disk(self, name: str) -> SimDisk: ...

    def rot(self, name: str, rng: random.Random) -> bool:
        """Flip a bit on its disk, somewhere it can be survived; False if there is no such place."""

    def lose_disk(self, name: str) -> None:
        """End the process and its disk; an empty one takes its place."""

    def stop(self, name: str) -> None:
        """Let the process end in an orderly way."""

    def take_over(self) -> bool:
        """Let a standby metadata repository try to lead, though nothing is wrong; False if there is none."""

    def cut_off(self, name: str) -> Sequence[str]:
        """From whom a metadata repository is cut off when it hears nothing of the log."""

    def set_store_reachable(self, name: str, reachable: bool) -> None:
        """Cut one process off from the metadata store, or end that."""

    def set_store_available(self, available: bool) -> None:
        """Take the metadata store away from everyone, or give it back."""


@dataclass(frozen=True)
class Profile:
    """How a run is troubled."""

    name: str
    weights: Mapping[Fault, float] = field(default_factory=dict)
    """Which faults strike, relative to each other."""
    interval: float = 1.0
    """Mean seconds between strikes."""
    duration: float = 1.0
    """Mean seconds until a fault ends."""
    at_once: int = 1
    """As many faults may last at the same time."""
    conditions: Conditions = field(default_factory=Conditions)
    """Of the network, all through the fault phase."""


_LOSSY: Final = Conditions(mean_delay=0.002, loss=0.02, duplicate=0.06, reorder=0.5, stall=0.01, stall_seconds=2.0)
_CRASHES: Final = {
    Fault.KILL: 4.0,
    Fault.POWER_LOSS: 4.0,
    Fault.PAUSE: 2.0,
    Fault.KILL_ALL: 1.0,
    Fault.POWER_LOSS_ALL: 1.0,
}
_NETWORK: Final = {
    Fault.PARTITION_ONE_WAY: 3.0,
    Fault.PARTITION_TWO_WAY: 3.0,
    Fault.ISOLATION: 3.0,
    Fault.BAD_NETWORK: 2.0,
    Fault.TAKEOVER: 3.0,
}
_SPLITS: Final = {
    Fault.PARTITION_TWO_WAY: 4.0,
    Fault.PARTITION_ONE_WAY: 1.0,
    Fault.PAUSE: 1.0,
    Fault.KILL: 1.0,
}
"""They last: long enough that those on one side go on without those on the other, who still have something stored."""
_DISKS: Final = {
    Fault.DISK_FULL: 2.0,
    Fault.WRITE_ERROR: 2.0,
    Fault.SYNC_ERROR: 3.0,
    Fault.BIT_ROT: 1.0,
    Fault.LOST_DISK: 1.0,
    Fault.SLOW_DISK: 2.0,
    Fault.POWER_LOSS: 2.0,
}
_CLOCKS: Final = {
    Fault.CLOCK_JUMP: 3.0,
    Fault.CLOCK_DRIFT: 2.0,
    Fault.PAUSE: 3.0,
    Fault.STORE_OUTAGE: 2.0,
    Fault.TAKEOVER: 3.0,
    Fault.KILL: 1.0,
}

_LEADERS: Final = {
    Fault.LEADER_KILL: 3.0,
    Fault.LEADER_STOP: 2.0,
    Fault.LEADER_PAUSE: 2.0,
    Fault.LEADER_DEAF: 2.0,
    Fault.STORE_CUT: 3.0,
    Fault.STORE_OUTAGE: 1.0,
    Fault.TAKEOVER: 2.0,
    Fault.CLOCK_JUMP: 1.0,
    Fault.KILL: 1.0,
}
_LONG_PAUSE: Final = (1.0, 15.0)
_LONG_CUT: Final = (2.0, 8.0)

_GRIND: Final = {
    Fault.SLOW_DISK: 4.0,
    Fault.POWER_LOSS: 3.0,
    Fault.POWER_LOSS_ALL: 3.0,
}

PROFILES: Final[Sequence[tuple[float, Profile]]] = (
    (1.0, Profile("calm")),
    (3.0, Profile("network", _NETWORK, conditions=_LOSSY)),
    (3.0, Profile("splits", _SPLITS, interval=1.5, duration=2.5)),
    (3.0, Profile("crashes", _CRASHES, interval=1.5)),
    (2.0, Profile("disks", _DISKS, interval=1.5, at_once=2)),
    (2.0, Profile("clocks", _CLOCKS)),
    (2.0, Profile("grind", _GRIND, interval=0.7, at_once=3)),
    (3.0, Profile("leaders", _LEADERS, interval=1.5, duration=1.5, at_once=2)),
    (4.0, Profile("storm", {**_LEADERS, **_CRASHES, **_NETWORK, **_DISKS, **_CLOCKS}, 0.7, 1.5, 3, _LOSSY)),
)
"""With how often each is drawn, relative to each other."""


def draw_profile(rng: random.Random) -> Profile:
    """A profile for a seed; rates and paces vary from seed to seed."""
    (profile,) = rng.choices([profile for _, profile in PROFILES], [weight for weight, _ in PROFILES])
    pace = rng.uniform(0.5, 2.0)
    badness = rng.uniform(0.0, 2.0)
    base = profile.conditions
    conditions = replace(base, loss=base.loss * badness, duplicate=base.duplicate * badness, stall=base.stall * badness)
    return replace(profile, interval=profile.interval * pace, conditions=conditions)


class Nemesis:
    """Strikes a cluster by a profile."""

    def __init__(self, cluster: Cluster, profile: Profile) -> None:
        self.profile = profile
        self._cluster = cluster
        self._world = cluster.world
        self._rng = cluster.world.rng("nemesis")
        self._until = 0.0
        self._struck: set[str] = set()
        self._lasting: dict[int, Callable[[], None]] = {}
        self._next_lasting = 0
        self._is_partitioned = False

    def start(self, until: float) -> None:
        """Strike from now on, until that moment."""
        self._until = until
        self._cluster.network.conditions = self.profile.conditions
        self._schedule()

    def heal_all(self) -> None:
        """End every fault that lasts; strike no more."""
        self._until = 0.0
        self._cluster.network.conditions = Conditions()
        for number in sorted(self._lasting):
            self._end(number)
        self._world.trace("nemesis: all is healed")

    # When

    def _schedule(self) -> None:
        if self.profile.weights:
            self._world.at(self._rng.expovariate(1.0 / self.profile.interval), self._strike)

    def _strike(self) -> None:
        if self._world.now >= self._until:
            return
        if len(self._lasting) < self.profile.at_once:
            weights = self.profile.weights
            (fault,) = self._rng.choices(list(weights), list(weights.values()))
            if self._do(fault):
                self._world.count(fault)
        self._schedule()

    def _last(self, names: Sequence[str], undo: Callable[[], None], seconds: float = 0.0) -> None:
        """A fault on these begins now and ends later, after about as long as the profile says if nothing is given."""
        number = self._next_lasting
        self._next_lasting += 1
        self._struck.update(names)

        def end() -> None:
            self._struck.difference_update(names)
            undo()

        self._lasting[number] = end
        self._world.at(seconds or self._rng.expovariate(1.0 / self.profile.duration), self._end, number)

    def _end(self, number: int) -> None:
        end = self._lasting.pop(number, None)
        if end is not None:
            end()

    # What

    def _do(self, fault: Fault) -> bool:
        """Let it happen, if there is anyone it may strike."""
        names = [name for name in self._cluster.victims(fault) if name not in self._struck]
        if not names:
            return False
        match fault:
            case Fault.KILL | Fault.POWER_LOSS | Fault.LOST_DISK | Fault.LEADER_KILL | Fault.LEADER_STOP:
                self._fell(fault, self._rng.choice(names))
            case Fault.KILL_ALL | Fault.POWER_LOSS_ALL:
                for name in names:
                    self._fell(fault, name)
            case Fault.PARTITION_ONE_WAY | Fault.PARTITION_TWO_WAY | Fault.ISOLATION:
                return self._cut(fault, names)
            case Fault.BAD_NETWORK:
                self._worsen()
            case Fault.PAUSE | Fault.LEADER_PAUSE | Fault.CLOCK_JUMP | Fault.CLOCK_DRIFT:
                self._disturb(fault, self._rng.choice(names))
            case Fault.STORE_OUTAGE:
                self._cluster.set_store_available(False)
                self._last((), lambda: self._cluster.set_store_available(True))
            case Fault.STORE_CUT:
                self._cut_from_store(self._rng.choice(names))
            case Fault.LEADER_DEAF:
                return self._deafen(self._rng.choice(names))
            case Fault.TAKEOVER:
                return self._cluster.take_over()
            case Fault.BIT_ROT:
                return self._cluster.rot(self._rng.choice(names), self._rng)
            case Fault.DISK_FULL | Fault.WRITE_ERROR | Fault.SYNC_ERROR | Fault.SLOW_DISK:
                self._damage(fault, self._rng.choice(names))
        return True

    def _fell(self, fault: Fault, name: str) -> None:
        if fault in (Fault.KILL, Fault.KILL_ALL, Fault.LEADER_KILL):
            self._cluster.kill(name)
        elif fault is Fault.LEADER_STOP:
            self._cluster.stop(name)
        elif fault is Fault.LOST_DISK:
            self._cluster.lose_disk(name)
        else:
            self._cluster.power_loss(name)
        self._last([name], lambda: self._cluster.restart(name))

    def _cut(self, fault: Fault, names: Sequence[str]) -> bool:
        if self._is_partitioned or len(names) < 2:
            return False
        processes = [self._world.processes[name] for name in names]
        network = self._cluster.network
        if fault is Fault.ISOLATION:
            network.isolate(self._rng.choice(processes))
        else:
            self._rng.shuffle(processes)
            middle = self._rng.randint(1, len(processes) - 1)
            network.partition(processes[:middle], processes[middle:], one_way=fault is Fault.PARTITION_ONE_WAY)
        self._is_partitioned = True
        self._last((), self._join)
        return True

    def _deafen(self, name: str) -> bool:
        if self._is_partitioned:
            return False
        processes = self._world.processes
        self._cluster.network.partition([processes[name]], [processes[n] for n in self._cluster.cut_off(name)])
        self._is_partitioned = True
        self._last((), self._join, self._rng.uniform(*_LONG_CUT))
        return True

    def _cut_from_store(self, name: str) -> None:
        self._cluster.set_store_reachable(name, False)
        self._last([name], lambda: self._cluster.set_store_reachable(name, True), self._rng.uniform(*_LONG_CUT))

    def _join(self) -> None:
        self._cluster.network.heal()
        self._is_partitioned = False

    def _worsen(self) -> None:
        before = self.profile.conditions
        self._cluster.network.conditions = replace(
            before,
            mean_delay=before.mean_delay * 10,
            loss=0.2,
            duplicate=0.1,
            reorder=1.0,
            stall=0.1,
            stall_seconds=2.0,
        )
        self._last((), self._better)

    def _better(self) -> None:
        if self._until > 0.0:
            self._cluster.network.conditions = self.profile.conditions

    def _disturb(self, fault: Fault, name: str) -> None:
        process = self._world.processes[name]
        if fault in (Fault.PAUSE, Fault.LEADER_PAUSE):
            process.pause()
            long = self._rng.uniform(*_LONG_PAUSE) if fault is Fault.LEADER_PAUSE else 0.0
            self._last([name], process.resume, long)
        elif fault is Fault.CLOCK_JUMP:
            process.jump_clock(self._rng.choice((-1, 1)) * 10 ** self._rng.uniform(-1, 4))
        else:
            process.drift_clock(self._rng.uniform(0.9, 1.1))
            self._last([name], lambda: process.drift_clock(1.0))

    def _damage(self, fault: Fault, name: str) -> None:
        disk = self._cluster.disk(name)
        if fault is Fault.SLOW_DISK:
            disk.slowness = 10 ** self._rng.uniform(0.5, 2.5)
            self._last([name], disk.heal)
            return
        if fault is Fault.DISK_FULL:
            disk.set_free_bytes(self._rng.randint(0, 4096))
        elif fault is Fault.WRITE_ERROR:
            disk.fail_writes(rng=self._rng)
        else:
            disk.fail_syncs(rng=self._rng)
        self._last([name], lambda: self._repair(name))

    def _repair(self, name: str) -> None:
        """As an operator does: mend the disk, then restart the node, which does not trust it before."""
        disk = self._cluster.disk(name)
        disk.heal()
        self._cluster.kill(name)
        if self._rng.random() < 0.5:
            disk.evict()
        self._cluster.restart(name)
