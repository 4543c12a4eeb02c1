"""Runs with transactions, in topics that cuts order.

Clusters, what befalls them and how they are judged are those of `varlog.sim.cluster`. Of the clients some append and
ask for the tail as ever. The others transact, and read what is committed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from varlog import batch
from varlog.batch.transactions import decode_verdict
from varlog.sim.clients import ClientHost, PeekerClient, WriterClient
from varlog.sim.cluster import Cluster
from varlog.sim.cluster import run_seed as run_cluster
from varlog.sim.coverage import Coverage
from varlog.sim.evidence import Evidence, LivenessPhase, verdict_in
from varlog.sim.ledger import Spoken, spoken_in
from varlog.sim.process import Process
from varlog.sim.runner import SeedReport
from varlog.sim.shape import Shape
from varlog.sim.transactions.clients import MakeJob, TransactingClient
from varlog.sim.transactions.jobs import Board, Janitor, Joiner, Transactor
from varlog.sim.transactions.reading import RangeReader, Subscriber
from varlog.sim.transactions.ways import Transacted
from varlog.sim.world import World

TRANSACTORS: Final = 3
JOINERS: Final = 2


def jobs_of(board: Board, begins: tuple[int, ...]) -> list[MakeJob]:
    """What the clients of a run are there for."""
    return [
        *[partial(Transactor, board=board, pace=0.3) for _ in range(TRANSACTORS)],
        *[partial(Joiner, board=board, pace=0.2) for _ in range(JOINERS)],
        partial(Janitor, board=board, pace=1.0),
        partial(RangeReader, board=board, pace=0.4),
        partial(RangeReader, board=board, pace=0.4),
        *[partial(Subscriber, board=board, begin=begin) for begin in begins],
        partial(Subscriber, board=board, begin=1, uncommitted=True),
    ]


def verdicts_in(evidence: Evidence) -> set[Spoken]:
    """What the replicas hold of them at the end."""
    return {
        Spoken(glsn, decode_verdict(entry))
        for replica in evidence.replicas
        for _, glsn, _, payload in replica.entries()
        if (entry := verdict_in(payload)) is not None
    }


class TransactionalCluster(Cluster):
    """See the module's text."""

    def _make_clients(self) -> list[ClientHost]:
        self._board, rng = Board(), self._rng
        made: list[ClientHost] = []

        def process() -> Process:
            return self._skewed(f"client/{len(made) + 1}")

        for make_job in jobs_of(self._board, (1, rng.choice((1, 10)))):
            made += [TransactingClient(process(), self.shared, make_job)]
        made += [WriterClient(process(), self.shared, retry=True, window=rng.choice((1, 4)), pace=0.3)]
        made += [PeekerClient(process(), self.shared, pace=1.0)]
        return made

    def evidence(self, liveness: LivenessPhase | None) -> Evidence:
        if liveness is not None:  # where nothing can be appended, what is not decided stays so, and readers wait for it
            liveness = replace(liveness, must_commit=True) if liveness.writers else None
        evidence = super().evidence(liveness)
        decided = {
            spoken for glsn, frame in self.committed() for spoken in spoken_in(batch.decode(frame.content), glsn)
        }
        return replace(evidence, verdicts=sorted(decided | verdicts_in(evidence) | self._board.verdicts))

    def coverage(self) -> Coverage:
        """What is special about these runs; the rest is shown by those without transactions."""
        coverage = Coverage({"transactions": (Transacted,)})
        coverage.add(self.world.faults)
        return coverage


def run_seed(seed: int, *, trace: bool = False, shape: Shape | None = None) -> SeedReport:
    """One run, from its seed."""
    return run_cluster(seed, trace=trace, shape=shape, make=_make)


def _make(world: World, shape: Shape) -> TransactionalCluster:
    return TransactionalCluster(world, shape)
