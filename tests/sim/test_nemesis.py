"""The nemesis, against a cluster of processes that do nothing but live."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from varlog.sim.disk import SimDisk
from varlog.sim.nemesis import PROFILES, Fault, Nemesis, Profile, draw_profile
from varlog.sim.network import Conditions, Network
from varlog.sim.world import World

NAMES = ("a", "b", "c")
LONG = (Fault.STORE_CUT, Fault.LEADER_PAUSE, Fault.LEADER_DEAF)


class Idle:
    """Three processes with a disk each; the third is never struck, and bits rot only on the first."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.disks = {name: SimDisk() for name in NAMES}
        self.store_available = True
        self.cut_off_from_store: set[str] = set()
        for name in NAMES:
            self.world.process(name)
            self.disks[name].mkdir("/d")
            file = self.disks[name].create("/d/data")
            file.pwritev([bytes(100)], 0)
            file.fdatasync()
            self.disks[name].sync_dir("/d")

    def victims(self, fault: Fault) -> Sequence[str]:
        names = NAMES[:1] if fault is Fault.BIT_ROT else NAMES[:2]
        return [name for name in names if self.world.processes[name].alive]

    def kill(self, name: str) -> None:
        self.world.processes[name].kill()
        self.disks[name].kill()

    def power_loss(self, name: str) -> None:
        self.world.processes[name].kill()
        self.disks[name].power_loss(self.world.rng("power"))

    def lose_disk(self, name: str) -> None:
        self.kill(name)
        self.disks[name] = SimDisk()
        self.disks[name].mkdir("/d")

    def restart(self, name: str) -> None:
        if not self.world.processes[name].alive:
            self.world.processes[name].start()

    def disk(self, name: str) -> SimDisk:
        return self.disks[name]

    def rot(self, name: str, rng: random.Random) -> bool:
        return self.disks[name].rot(rng) is not None

    def listen(self) -> list[str]:
        """Every message that reaches any process."""
        got: list[str] = []
        for process in self.world.processes.values():
            self.network.attach(process.name, process, lambda _, message: got.append(message))
        return got

    def stop(self, name: str) -> None:
        self.kill(name)

    def take_over(self) -> bool:
        return True

    def cut_off(self, name: str) -> Sequence[str]:
        return [other for other in NAMES if other != name]

    def set_store_reachable(self, name: str, reachable: bool) -> None:
        (self.cut_off_from_store.discard if reachable else self.cut_off_from_store.add)(name)

    def set_store_available(self, available: bool) -> None:
        self.store_available = available


def profile_of(fault: Fault) -> Profile:
    return Profile("one", {fault: 1.0}, interval=0.1, duration=0.1)


@pytest.mark.parametrize("fault", list(Fault))
def test_every_fault_strikes_is_counted_and_heals(fault: Fault) -> None:
    cluster = Idle(1)
    nemesis = Nemesis(cluster, profile_of(fault))
    nemesis.start(until=10.0)
    cluster.world.run(10.0)
    assert cluster.world.faults[fault] > (0 if fault in LONG else 10)
    nemesis.heal_all()
    cluster.world.run(20.0)
    struck = cluster.world.faults.copy()
    assert all(process.alive and not process.paused for process in cluster.world.processes.values())
    assert cluster.store_available
    assert cluster.cut_off_from_store == set()
    assert all(disk.slowness == 1.0 for disk in cluster.disks.values())
    for name in NAMES:
        file = cluster.disks[name].create("/d/after")
        file.allocate(1 << 20)
        file.pwritev([b"x"], 0)
        file.fdatasync()
    got = cluster.listen()
    for process in cluster.world.processes.values():
        for name in NAMES:
            cluster.network.send(process, name, "hello")
    cluster.world.run(30.0)
    assert len(got) == 9
    assert cluster.world.faults == struck
    assert cluster.network.conditions == Conditions()


def test_partitions_stop_messages() -> None:
    for fault in (Fault.PARTITION_ONE_WAY, Fault.PARTITION_TWO_WAY, Fault.ISOLATION):
        cluster = Idle(2)
        got = cluster.listen()
        nemesis = Nemesis(cluster, Profile("one", {fault: 1.0}, interval=0.1, duration=1e9))
        nemesis.start(until=5.0)
        cluster.world.run(5.0)
        for source in cluster.world.processes.values():
            for target in NAMES:
                if target != source.name:
                    cluster.network.send(source, target, f"{source.name}{target}")
        cluster.world.run(6.0)
        cut = {"ab", "ba", "ac", "ca", "bc", "cb"} - set(got)
        if fault is Fault.PARTITION_ONE_WAY:
            assert cut in ({"ab"}, {"ba"})
        elif fault is Fault.PARTITION_TWO_WAY:
            assert cut == {"ab", "ba"}
        else:
            assert cut in ({"ab", "ba", "ac", "ca"}, {"ab", "ba", "bc", "cb"})


def test_nobody_is_struck_twice_at_once() -> None:
    cluster = Idle(3)
    nemesis = Nemesis(cluster, Profile("one", {Fault.PAUSE: 1.0, Fault.KILL: 1.0}, 0.01, 1e9, at_once=10))
    nemesis.start(until=10.0)
    cluster.world.run(10.0)
    assert cluster.world.faults.total() == 2
    assert cluster.world.processes["c"].alive


def test_profiles_differ_by_seed_and_cover_every_fault() -> None:
    drawn = Counter(draw_profile(World(seed).rng("profile")).name for seed in range(200))
    assert set(drawn) == {profile.name for _, profile in PROFILES}
    assert set(Fault) == {fault for _, profile in PROFILES for fault in profile.weights}


def test_the_same_seed_strikes_the_same_way() -> None:
    def course(seed: int) -> str:
        cluster = Idle(seed)
        nemesis = Nemesis(cluster, PROFILES[-1][1])
        nemesis.start(until=20.0)
        cluster.world.run(20.0)
        nemesis.heal_all()
        return cluster.world.trace_hash()

    assert course(5) == course(5)
    assert course(5) != course(6)
