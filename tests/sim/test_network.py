"""The simulated network: what becomes of messages."""

from __future__ import annotations

from varlog.sim.network import Conditions, Network, NetworkFault
from varlog.sim.process import Process
from varlog.sim.world import World


class Pair:
    """Two processes that note what reaches them."""

    def __init__(self, conditions: Conditions, seed: int = 1) -> None:
        self.world = World(seed)
        self.network = Network(self.world, conditions)
        self.a, self.b = self.world.process("a"), self.world.process("b")
        self.got: list[tuple[str, int]] = []
        for process in (self.a, self.b):
            self.network.attach(process.name, process, lambda source, message: self.got.append((source, message)))

    def send(self, count: int, source: Process | None = None) -> None:
        source = source or self.a
        for i in range(count):
            self.network.send(source, "b" if source is self.a else "a", i)

    def received(self) -> list[int]:
        self.world.run(self.world.now + 100.0)
        got, self.got = self.got, []
        return [message for _, message in got]


def test_calm_network_delivers_all_in_order_after_a_delay() -> None:
    pair = Pair(Conditions(min_delay=0.01, mean_delay=0.5))
    pair.send(100)
    pair.world.run(0.009)
    assert pair.got == []
    assert pair.received() == list(range(100))
    assert not pair.world.faults


def test_loss() -> None:
    pair = Pair(Conditions(loss=0.3))
    pair.send(1000)
    got = pair.received()
    assert got == sorted(got)
    assert 600 < len(got) < 800
    assert pair.world.faults == {NetworkFault.LOST: 1000 - len(got)}


def test_duplicates() -> None:
    pair = Pair(Conditions(duplicate=0.3))
    pair.send(1000)
    got = pair.received()
    assert set(got) == set(range(1000))
    assert pair.world.faults == {NetworkFault.DUPLICATED: len(got) - 1000}


def test_reorder_and_stall() -> None:
    pair = Pair(Conditions(reorder=1.0, stall=0.1, stall_seconds=1.0))
    pair.send(1000)
    got = pair.received()
    assert sorted(got) == list(range(1000))
    assert got != sorted(got)
    assert pair.world.faults[NetworkFault.OVERTAKEN] > 0
    assert pair.world.faults[NetworkFault.STALLED] > 0


def test_two_way_partition_and_heal() -> None:
    pair = Pair(Conditions())
    pair.network.partition([pair.a], [pair.b])
    pair.send(3)
    pair.send(3, pair.b)
    assert pair.received() == []
    assert pair.world.faults == {NetworkFault.STOPPED_TWO_WAY: 6}
    pair.network.heal()
    pair.send(3)
    assert pair.received() == [0, 1, 2]


def test_one_way_partition() -> None:
    pair = Pair(Conditions())
    pair.network.partition([pair.a], [pair.b], one_way=True)
    pair.send(2)
    pair.send(2, pair.b)
    assert pair.received() == [0, 1]
    assert pair.world.faults == {NetworkFault.STOPPED_ONE_WAY: 2}


def test_a_partition_also_stops_what_is_on_its_way_and_never_lets_it_through_later() -> None:
    pair = Pair(Conditions(min_delay=1.0))
    pair.send(1)
    pair.network.isolate(pair.a)
    pair.send(1)
    assert pair.received() == []
    pair.network.heal()
    assert pair.received() == []


def test_messages_to_the_dead_and_to_earlier_lives_are_gone() -> None:
    pair = Pair(Conditions(min_delay=1.0))
    pair.send(1)
    pair.b.kill()
    pair.send(1)
    pair.b.start()
    assert pair.received() == []
    pair.send(1)
    assert pair.received() == [0]


def test_messages_of_the_dead_still_arrive() -> None:
    pair = Pair(Conditions(min_delay=1.0))
    pair.send(1)
    pair.a.kill()
    pair.send(2)
    assert pair.received() == [0]


def test_an_address_goes_to_whoever_is_attached() -> None:
    pair = Pair(Conditions())
    seen: list[object] = []
    pair.network.attach("leader", pair.a, lambda _, message: seen.append(message))
    pair.network.attach("leader", pair.b, lambda source, message: seen.append((source, message)))
    pair.network.send(pair.a, "leader", "hello")
    pair.network.send(pair.b, "nobody", "hello")
    pair.world.run(1.0)
    assert seen == [("a", "hello")]
    assert pair.got == []
