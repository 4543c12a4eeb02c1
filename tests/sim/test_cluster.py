"""Whole simulated clusters: every seed takes one course, and a run is the load it claims to be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from varlog.sim import cluster as simulated
from varlog.sim.cluster import Cluster, run_seed
from varlog.sim.history import OF_TRANSACTIONS, Kind
from varlog.sim.shape import Shape
from varlog.sim.world import World

_ELSEWHERE = """
import json, sys
from varlog.sim.cluster import run_seed
report = run_seed(int(sys.argv[1]), trace=True)
print(json.dumps([report.trace_hash, list(report.trace)]))
"""


def shape(seed: int) -> Shape:
    return Shape.draw(World(seed))


JOURNAL_SEED = next(seed for seed in range(1, 100) if shape(seed).repositories == 1)
SHARED_STORE_SEED = next(seed for seed in range(1, 100) if shape(seed).repositories == 2)


@pytest.mark.parametrize("seed", [JOURNAL_SEED, SHARED_STORE_SEED, 11])
def test_a_seed_takes_the_same_course_twice_and_in_another_process(seed: int) -> None:
    """Whether somebody looks or not."""
    once, again = run_seed(seed, trace=True), run_seed(seed)
    assert once.trace_hash == again.trace_hash
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    command = [sys.executable, "-c", _ELSEWHERE, str(seed)]
    output = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=100).stdout
    assert json.loads(output) == [once.trace_hash, list(once.trace)]


def test_another_seed_takes_another_course() -> None:
    courses = []
    for seed in (JOURNAL_SEED, SHARED_STORE_SEED):
        cluster = Cluster(World(seed), shape(seed))
        cluster.set_up()
        courses.append(cluster.world.trace_hash())
    assert courses[0] != courses[1]


@pytest.mark.parametrize("seed", range(20, 26))
def test_a_run_is_a_few_hundred_operations_of_every_kind(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Cluster] = []

    class Noted(Cluster):
        def __init__(self, world: World, of_shape: Shape) -> None:
            super().__init__(world, of_shape)
            made.append(self)

    monkeypatch.setattr(simulated, "Cluster", Noted)
    report = run_seed(seed)
    kinds = Counter(operation.kind for operation in made[0].history.operations)
    assert report.operations >= 300
    assert set(kinds) == set(Kind) - set(OF_TRANSACTIONS)


@pytest.mark.parametrize(("seed", "first"), [(31, 12), (32, 12), (33, 12), (34, 1001), (35, 1 << 40), (36, 2)])
def test_a_log_may_begin_at_a_later_position(seed: int, first: int) -> None:
    """And nothing of what is checked of a log that begins at 1 is otherwise."""
    report = run_seed(seed, shape=replace(shape(seed), first=first))
    assert not report.violations, report.violations
    assert report.operations >= 300
    assert f"from {first} on" in report.description


def test_shapes_are_as_various_as_they_should_be() -> None:
    shapes = [shape(seed) for seed in range(1, 301)]
    assert {s.nodes for s in shapes} == {1, 2, 3, 4, 5}
    assert {s.streams for s in shapes} == {1, 2, 3, 4}
    assert {s.replication_factor for s in shapes} == {1, 2, 3}
    assert {s.repositories for s in shapes} == {1, 2, 3}


def test_a_dead_node_is_judged_by_its_disk_and_not_by_what_it_knew() -> None:
    """It may have died before it wrote down a commit that it knew of: seed 9201 once told this as entries that it
    lacks."""
    cluster = Cluster(World(JOURNAL_SEED), shape(JOURNAL_SEED))
    cluster.set_up()
    cluster.start_clients()

    def knows_more() -> bool:
        return any(
            executor.committed_end > node.reopened(executor.lsid).recovered.committed_llsn_end
            for node in cluster.nodes
            for executor in node.node.executors
        )

    cluster.world.run(cluster.world.now + 2.0)
    cluster.world.run(cluster.world.now + 5.0, stop=knows_more)
    assert knows_more()
    for node in cluster.nodes:
        node.kill()
    dumps = cluster.evidence(None).replicas
    assert any(dump.batches for dump in dumps)
    for dump in dumps:
        ends = [batch.llsn + len(batch.payloads) for batch in dump.batches]
        assert not ends or ends[-1] == dump.committed_end
