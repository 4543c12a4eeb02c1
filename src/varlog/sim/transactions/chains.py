"""Runs with transactions, in topics that a sequencer orders.

Clusters, what befalls them and how they are judged are those of `varlog.sim.chains`; the clients do what those of
`varlog.sim.transactions.cluster` do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from varlog import errors
from varlog.core.appending import Outcome
from varlog.core.chainreading import ChainSubscription
from varlog.core.chainwriting import ChainWriter
from varlog.core.content import Content
from varlog.core.delivering import Delivery
from varlog.core.merging import Chunk
from varlog.core.messages import ChainPart, Digest, Message
from varlog.sim.chains.checking import ChainEvidence
from varlog.sim.chains.clients import ClientHost, Doom, Shared
from varlog.sim.chains.cluster import ChainCluster
from varlog.sim.chains.cluster import run_seed as run_cluster
from varlog.sim.chains.jobs import MeddlerClient, TailClient, WriterClient
from varlog.sim.chains.shape import ChainShape
from varlog.sim.chains.tails import TailSearch
from varlog.sim.coverage import Coverage
from varlog.sim.process import Process
from varlog.sim.runner import SeedReport
from varlog.sim.transactions.clients import MakeJob
from varlog.sim.transactions.cluster import jobs_of, verdicts_in
from varlog.sim.transactions.jobs import Board
from varlog.sim.transactions.ways import TOPIC, Done, Inquiries, Transacted, Ways
from varlog.sim.world import World
from varlog.types import GLSN, Ordering, WriterID


class TransactingChainClient(ClientHost, Ways):
    """A client with a writer and subscriptions, and a job."""

    ordering = Ordering.SEQUENCER

    def __init__(self, process: Process, shared: Shared, make_job: MakeJob, *, fill_after: float) -> None:
        super().__init__(process, shared, fill_after=fill_after)
        self._make_job = make_job
        self._feeds: list[ChainSubscription] = []
        self._searches: list[TailSearch] = []

    def begin(self) -> None:
        self._feeds = []
        self._searches = []
        self.writer = ChainWriter(
            TOPIC,
            self.chains,
            WriterID(self.rng.getrandbits(63) + 1),
            self.request,
            self._timestamp,
            self.send,
            _settle,
            self.proposer.complain,
            self._soon,
        )
        self._inquiries = Inquiries(self)
        self._job = self._make_job(self, self._inquiries)
        self._job.start()

    def _soon(self) -> None:
        self.process.at(0.0, self._flush)

    def _flush(self) -> None:
        assert self.writer is not None, "made when it began"
        self.writer.flush(self.now)

    def kill(self) -> None:
        if self.process.alive:
            self._job.killed()
        super().kill()

    # Ways

    def append(self, content: Content, deadline: float, done: Callable[[Outcome], None]) -> None:
        assert self.writer is not None, "made when it began"
        self.writer.append(done, content, deadline, self.now)

    def subscribe(
        self,
        begin: int,
        end: int | None,
        deliver: Callable[[Chunk], None],
        on_end: Callable[[errors.VarlogError | None], None],
        *,
        verdicts: bool = False,
    ) -> ChainSubscription:
        feed = ChainSubscription(
            TOPIC,
            GLSN(begin),
            None if end is None else GLSN(end),
            self.routing,
            self.request,
            self.ask,
            deliver,
            on_end,
            self.mending.mend,
            self.proposer.complain,
            fill_after=self.fill_after,
            verdicts=verdicts,
        )
        self._feeds.append(feed)
        if self.routing.version >= 0:
            self.process.at(0.0, self._inform, feed)
        return feed

    def _inform(self, feed: ChainSubscription) -> None:
        if feed in self._feeds:
            feed.on_metadata(self.now)

    def leave(self, feed: Delivery) -> None:
        self._feeds = [one for one in self._feeds if one is not feed]

    def tail(self, deadline: float, done: Done) -> None:
        search = TailSearch(self, deadline, done)
        self._searches.append(search)
        search.begin()

    # Messages

    def _machines(self) -> list[Any]:
        return [*super()._machines(), *self._feeds]

    def _on_read(self, message: ChainPart | Digest) -> None:
        super()._on_read(message)
        for feed in self._feeds:
            feed.on_reply(message, self.now)

    def on_message(self, message: Message) -> None:
        self._inquiries.on_answer(message)
        for search in self._searches:
            search.on_message(message)

    def on_tick(self) -> None:
        for search in self._searches:
            search.on_tick()
        self._searches = [search for search in self._searches if not search.is_over]
        self._feeds = [feed for feed in self._feeds if not feed.ended]
        self._job.tick()


def _settle(done: Callable[[Outcome], None], outcome: Outcome) -> None:
    done(outcome)


class TransactionalChainCluster(ChainCluster):
    """See the module's text."""

    def _make_clients(self) -> list[ClientHost]:
        self._board, shape, shared, rng = Board(), self.shape, self.shared, self._rng
        made: list[ClientHost] = []

        def process() -> Process:
            return self._skewed(f"client/{len(made) + 1}")

        for make_job in jobs_of(self._board, (1, rng.choice((1, 10)))):
            made += [TransactingChainClient(process(), shared, make_job, fill_after=shape.fill_after)]
        made += [WriterClient(process(), shared, window=rng.choice((1, 4)), pace=0.3)]
        made += [TailClient(process(), shared, pace=1.0, fill_after=shape.fill_after)]
        made += [MeddlerClient(process(), shared, fill_pace=0.3, seal_pace=shape.seal_pace)]
        return made

    def _may_be_doomed(self, client: ClientHost, doom: Doom) -> bool:
        writes = isinstance(client, TransactingChainClient) and doom is not Doom.AFTER_SEAL
        return writes or super()._may_be_doomed(client, doom)

    def evidence(self, healed: float) -> ChainEvidence:
        known = super().evidence(healed)
        evidence = known.evidence
        assert evidence.liveness is not None, "every run has such a phase"
        liveness = replace(evidence.liveness, must_commit=True)
        verdicts = sorted(verdicts_in(evidence) | self._board.verdicts)
        return replace(known, evidence=replace(evidence, liveness=liveness, verdicts=verdicts))

    def coverage(self) -> Coverage:
        """What is special about these runs; the rest is shown by those without transactions."""
        coverage = Coverage({"transactions": (Transacted,)})
        coverage.add(self.world.faults)
        return coverage


def run_seed(seed: int, *, trace: bool = False, shape: ChainShape | None = None, calm: bool = False) -> SeedReport:
    """One run, from its seed."""
    return run_cluster(seed, trace=trace, shape=shape, calm=calm, make=_make)


def _make(world: World, shape: ChainShape) -> TransactionalChainCluster:
    return TransactionalChainCluster(world, shape)
