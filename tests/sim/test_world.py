"""The world: order, processes, clocks, and the same course for the same seed in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from varlog.sim.network import Conditions, Network
from varlog.sim.world import World


def test_events_happen_in_the_order_of_time_then_of_scheduling() -> None:
    world = World(1)
    seen: list[object] = []
    world.at(2.0, seen.append, "c")
    world.at(1.0, seen.append, "a")
    world.at(1.0, seen.append, "b")
    world.at(1.0, lambda: world.at(0.0, seen.append, "b+"))
    world.run(1.5)
    assert seen == ["a", "b", "b+"]
    assert world.now == 1.5
    world.run(10.0)
    assert seen == ["a", "b", "b+", "c"]


def test_an_event_can_be_cancelled_also_too_late() -> None:
    world = World(1)
    seen: list[object] = []
    kept = world.at(1.0, seen.append, "kept")
    world.cancel(world.at(1.0, seen.append, "cancelled"))
    world.run(2.0)
    world.cancel(kept)
    assert seen == ["kept"]


def test_nothing_is_scheduled_in_the_past() -> None:
    with pytest.raises(ValueError, match="past"):
        World(1).at(-0.1, print)


def test_run_stops_when_told() -> None:
    world = World(1)
    seen: list[object] = []
    for i in range(5):
        world.at(float(i), seen.append, i)
    world.run(10.0, stop=lambda: len(seen) == 2)
    assert seen == [0, 1]
    assert world.now == 1.0


def test_random_streams_are_independent() -> None:
    alone = World(7)
    first = [alone.rng("a").random() for _ in range(5)]
    mixed = World(7)
    second = []
    for _ in range(5):
        mixed.rng("b").random()
        second.append(mixed.rng("a").random())
    assert first == second
    assert World(8).rng("a").random() != first[0]


def test_a_killed_process_does_nothing_any_more() -> None:
    world = World(1)
    seen: list[object] = []
    process = world.process("p")
    process.at(1.0, seen.append, "old")
    process.kill()
    process.at(1.0, seen.append, "after its death")
    process.start()
    process.at(2.0, seen.append, "new")
    world.run(5.0)
    assert seen == ["new"]
    with pytest.raises(ValueError, match="alive"):
        process.start()


def test_a_paused_process_does_it_late_in_order() -> None:
    world = World(1)
    seen: list[object] = []
    process = world.process("p")
    process.at(2.0, lambda: seen.append(("second", world.now)))
    process.at(1.0, lambda: seen.append(("first", world.now)))
    process.pause()
    world.at(3.0, process.resume)
    world.run(2.5)
    assert seen == []
    world.run(5.0)
    assert seen == [("first", 3.0), ("second", 3.0)]


def test_a_process_may_be_paused_again_while_it_catches_up() -> None:
    world = World(1)
    seen: list[object] = []
    process = world.process("p")
    process.at(1.0, process.pause)
    process.at(2.0, process.pause)
    process.at(2.0, seen.append, "late")
    world.at(3.0, process.resume)
    world.run(4.0)
    assert seen == []
    process.resume()
    world.run(5.0)
    assert seen == ["late"]


def test_what_waits_for_a_paused_process_dies_with_it() -> None:
    world = World(1)
    seen: list[object] = []
    process = world.process("p")
    process.at(1.0, seen.append, "never")
    process.pause()
    world.run(2.0)
    process.kill()
    process.start()
    process.pause()
    process.resume()
    world.run(3.0)
    assert seen == []


def test_clocks_are_skewed_drift_and_jump() -> None:
    world = World(1)
    process = world.process("p", skew=5.0)
    world.run(10.0)
    assert process.clock() == 15.0
    process.drift_clock(2.0)
    process.jump_clock(-100.0)
    world.run(20.0)
    assert process.monotonic() == 30.0
    assert process.clock() == -65.0
    fired: list[float] = []
    process.at(4.0, lambda: fired.append(world.now))
    world.run(30.0)
    assert fired == [22.0]


def test_trace_is_readable_and_bounded_and_does_not_change_the_hash() -> None:
    worlds = [World(1, tracing=tracing) for tracing in (False, True)]
    for world in worlds:
        process = world.process("p")
        process.at(1.5, world.trace, "took", process, 3, "apples")
        process.at(1.6, world.trace, "ate", process, "x" * 10_000)
        world.run(2.0)
    assert worlds[0].trace_lines() == []
    first, second = worlds[1].trace_lines()
    assert first == "    1.500000 p          took 3 apples"
    assert len(second) < 300
    assert worlds[0].trace_hash() == worlds[1].trace_hash()


def test_hash_tells_different_courses_apart() -> None:
    def course(*moments: float) -> str:
        world = World(1)
        for moment in moments:
            world.at(moment, int)
        world.run(10.0)
        return world.trace_hash()

    assert course(1.0, 2.0) == course(1.0, 2.0)
    assert course(1.0, 2.0) != course(2.0, 1.0)
    assert course(1.0) != course(1.0, 2.0)


def gossip(seed: int) -> str:
    """A chatty run with every network fault and a few kills, as one line: its hash and its last trace line."""
    world = World(seed, tracing=True)
    network = Network(world, Conditions(loss=0.05, duplicate=0.05, reorder=0.5, stall=0.05, stall_seconds=0.1))
    rng = world.rng("gossip")
    processes = [world.process(name) for name in ("ann", "bob", "eve")]
    for process in processes:

        def receive(source: str, message: tuple[str, int], me: object = process) -> None:
            for other in processes:
                if other is not me and rng.random() < 0.52:
                    network.send(other, source, (message[0], message[1] + 1))

        network.attach(process.name, process, receive)
    for i in range(20):
        world.at(i * 0.05, network.send, processes[0], "bob", (f"rumour {i}", 0))
    world.at(0.3, processes[1].kill)
    world.at(0.4, processes[1].start)
    world.run(2.0)
    return f"{world.trace_hash()} {len(world.trace_lines())} {world.trace_lines()[-1]}"


def test_same_seed_same_course_twice() -> None:
    assert gossip(11) == gossip(11)
    assert gossip(11) != gossip(12)


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_same_seed_same_course_in_another_process(hash_seed: str) -> None:
    code = f"import runpy; print(runpy.run_path({__file__!r})['gossip'](11))"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == gossip(11)
