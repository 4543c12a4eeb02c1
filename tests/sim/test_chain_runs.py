"""Runs of the simulator in the sequencer ordering: a calm one, the same twice, and what earlier seeds have found."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import pytest

from varlog.cli import main
from varlog.core.address import node_address
from varlog.core.projection import Projection
from varlog.sim.chains.checking import OF_CHAINS, check_all
from varlog.sim.chains.clients import ClientHost, Doom, Work
from varlog.sim.chains.cluster import GRACE_SECONDS, ChainCluster, run_seed
from varlog.sim.chains.jobs import SubscriberClient, WriterClient
from varlog.sim.chains.repairing import Repair
from varlog.sim.chains.shape import ChainShape
from varlog.sim.history import Kind, Outcome
from varlog.sim.world import World

PLAIN = ChainShape(nodes=3, streams=2, replication_factor=3)


def _projection(cluster: ChainCluster) -> Projection:
    assert cluster.projection is not None
    return cluster.projection


def _running(shape: ChainShape, seed: int = 1) -> ChainCluster:
    cluster = ChainCluster(World(seed), shape)
    cluster.set_up()
    cluster.start_clients()
    cluster.world.run(cluster.world.now + 2.0)
    return cluster


def _ended(cluster: ChainCluster) -> None:
    """Let it come to rest; then everything must be right."""
    healed = cluster.world.now
    cluster.world.run(healed + 3.0)
    cluster.shared.stopping = True
    cluster.world.run(cluster.world.now + GRACE_SECONDS)
    assert check_all(cluster.evidence(healed)) == []


def test_a_calm_run_is_without_violation_and_takes_the_same_course_twice() -> None:
    report = run_seed(1, shape=PLAIN, calm=True)
    assert report.violations == []
    assert report.operations > 100
    assert run_seed(1, shape=PLAIN, calm=True, trace=True).trace_hash == report.trace_hash


def test_rule22_a_member_that_comes_back_joins_at_the_tail() -> None:
    cluster = _running(PLAIN)
    chain = _projection(cluster).chains[0]
    head = node_address(chain.head)
    cluster.kill(head)
    cluster.world.run(cluster.world.now + 2.0)
    assert chain.head not in _projection(cluster).chains[0].nodes
    cluster.restart(head)
    cluster.world.run(cluster.world.now + 6.0)
    assert _projection(cluster).chains[0].tail == chain.head
    assert cluster.world.faults[Repair.JOINED] > 0
    _ended(cluster)


def test_S7_service_goes_on_with_two_of_three_replicas_gone() -> None:
    cluster = _running(ChainShape(nodes=3, streams=1, replication_factor=3))
    cluster.kill("sn/1")
    cluster.kill("sn/2")
    cluster.world.run(cluster.world.now + 3.0)
    since = cluster.world.now
    cluster.world.run(since + 1.0)
    appends = cluster.history.of(Kind.APPEND)
    assert any(op.outcome is Outcome.OK and op.invoked > since for op in appends)
    assert _projection(cluster).chains[0].nodes == (3,)
    cluster.restart("sn/1")
    cluster.restart("sn/2")
    cluster.world.run(cluster.world.now + 5.0)
    _ended(cluster)


def test_a_subscriber_does_not_wait_at_a_tail_that_was_left_out_and_does_not_know_it() -> None:
    """The tail still reaches the metadata repository and the subscriber, so it keeps its lease, and has nothing new."""
    shape = ChainShape(nodes=4, streams=1, replication_factor=3, subscribers=1, readers=0, tails=0, trimmers=0)
    cluster = _running(shape)
    processes = cluster.world.processes
    tail = node_address(_projection(cluster).chains[0].tail)
    reaching = {tail, "mr/1", *(c.process.name for c in cluster.clients if isinstance(c, SubscriberClient))}
    others = [process for name, process in processes.items() if name not in reaching]
    cluster.network.partition([processes[tail]], others)
    cluster.world.run(cluster.world.now + 8.0)
    (subscription,) = cluster.history.of(Kind.SUBSCRIBE)
    delivered = [op for op in cluster.history.of(Kind.DELIVERY) if op.parent == subscription.id]
    appended = [op for op in cluster.history.of(Kind.APPEND) if op.outcome is Outcome.OK]
    assert delivered[-1].glsn > max(op.glsn for op in appended if op.completed < cluster.world.now - 4.0)
    cluster.network.heal()
    cluster.world.run(cluster.world.now + 5.0)
    _ended(cluster)


def test_every_client_can_reconfigure_alone() -> None:
    """Without a manager (S7)."""
    cluster = _running(ChainShape(nodes=3, streams=1, replication_factor=3))
    cluster.kill("manager")
    epoch = _projection(cluster).epoch
    cluster.kill("sn/1")
    writers: list[ClientHost] = [c for c in cluster.clients if isinstance(c, WriterClient)]
    for client in cluster.clients:
        if client is not writers[0]:
            cluster.kill(client.process.name)
    cluster.world.run(cluster.world.now + 3.0)
    assert _projection(cluster).epoch > epoch
    assert 1 not in _projection(cluster).chains[0].nodes


@pytest.mark.parametrize("counted", [Doom, Work, Repair])
def test_what_is_counted_is_explained(counted: type[Enum]) -> None:
    told = " ".join((Path(__file__).parents[2] / "docs" / "simulator.md").read_text().split())
    assert not [member.value for member in counted if member.value not in told]
    assert not [name for name in OF_CHAINS if f"| `{name}` |" not in told]


def test_the_command_runs_the_ordering_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--ordering", "sequencer", "--seed", "1"]) == 0
    assert "sequencers" in capsys.readouterr().out
