"""Runs of the simulator with transactions, in either ordering: one course, and what is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from varlog.cli import main
from varlog.sim.checkers import CHECKERS
from varlog.sim.history import Kind, Outcome
from varlog.sim.shape import Shape
from varlog.sim.transactions import cluster
from varlog.sim.transactions.cluster import TransactionalCluster
from varlog.sim.transactions.ways import Transacted
from varlog.sim.world import World

SEED = 38
SMALL = Shape(nodes=2, streams=2, replication_factor=1)


def test_readers_of_what_is_committed_see_what_is_and_nothing_else() -> None:
    """By what everybody was told, without any checker."""
    simulated = TransactionalCluster(World(3), SMALL)
    simulated.set_up()
    simulated.start_clients()
    simulated.world.run(simulated.world.now + 6.0)
    simulated.stop_clients()
    simulated.world.run(simulated.world.now + 9.0)
    history = simulated.history
    committed = {op.transaction: {part for part, _ in op.parts} for op in history.of(Kind.COMMIT) if op.glsn}
    aborted = {op.transaction for op in history.of(Kind.ABORT) if op.outcome is Outcome.OK}
    subscription = history.of(Kind.SUBSCRIBE)[0]
    shown = {p for op in history.of(Kind.DELIVERY) if op.parent == subscription.id for p in op.payloads}
    for append in history.of(Kind.APPEND):
        is_counted = append.part in committed.get(append.transaction, ())
        if append.outcome is Outcome.OK and (is_counted or not append.transaction):
            assert shown.issuperset(append.payloads), f"{append} is committed, and not seen"
        elif append.transaction in aborted:
            assert shown.isdisjoint(append.payloads), f"{append} is aborted, and seen"
    assert len(committed) > 10
    assert aborted


def test_what_is_counted_is_explained() -> None:
    told = " ".join((Path(__file__).parents[2] / "docs" / "simulator.md").read_text().split())
    assert not [member.value for member in Transacted if member.value not in told]
    assert not [name for name in CHECKERS if f"| `{name}` |" not in told]


def _replayed(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["sim", "--transactions", *options, "--seed", str(SEED), "--json"]) == 0
    return msgspec.json.decode(capsys.readouterr().out, type=dict[str, Any])


def _times(told: dict[str, Any], what: Transacted) -> int:
    return sum(what.value in line for line in told["trace"])


def test_a_seed_takes_the_same_course_twice(capsys: pytest.CaptureFixture[str]) -> None:
    told = _replayed(capsys)
    assert told["violations"] == []
    assert _times(told, Transacted.COMMITTED) > 5
    assert cluster.run_seed(SEED).trace_hash == told["trace_hash"]


def test_the_command_simulates_transactions_in_the_other_ordering(capsys: pytest.CaptureFixture[str]) -> None:
    told = _replayed(capsys, "--ordering", "sequencer")
    assert "sequencers" in told["description"]
    assert _times(told, Transacted.COMMITTED) > 5
