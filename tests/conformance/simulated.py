"""Simulated logs for the conformance suite: production machines in simulated processes, on a good network.

Each log is a cluster of its own. A call begins an operation in a client's process and lets the world run until it has
ended; nothing here takes real time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from tests.conformance.rigs import BLOCK, STREAMS, Found, Place
from tests.conformance.simulated_transactions import MakeClient, SimulatedTransaction, Transacting
from varlog import batch, errors
from varlog.core.address import METADATA_REPOSITORY, sequencer_address
from varlog.core.appending import Committed, Outcome, Writer, WriterOptions
from varlog.core.chainreading import ChainSubscription
from varlog.core.chainwriting import ChainWriter
from varlog.core.content import Fill
from varlog.core.merging import Chunk
from varlog.core.messages import (
    AppendReplies,
    AppendReply,
    Decided,
    GetTail,
    Message,
    Peek,
    Peeked,
    ScanReply,
    Tail,
    TrimTopic,
)
from varlog.core.subscribing import Subscription
from varlog.sim import clients as commit
from varlog.sim.chains import clients as chains
from varlog.sim.chains.cluster import ChainCluster
from varlog.sim.chains.shape import ChainShape
from varlog.sim.cluster import Cluster
from varlog.sim.shape import Shape
from varlog.sim.transactions.chains import TransactingChainClient
from varlog.sim.transactions.clients import TransactingClient
from varlog.sim.world import World
from varlog.types import GLSN, WriterID

SECONDS = 30.0
FILL_AFTER = 1.0
TOPIC = commit.TOPIC
T = TypeVar("T")
Entries = list[bytes] | Fill
OnEnd = Callable[[errors.VarlogError | None], None]


def found_in(chunk: Chunk) -> list[Found]:
    """The entries of a chunk; none if it is junk."""
    record = batch.decode(chunk.stored[6])
    if record.flags & batch.BatchFlag.JUNK:
        return []
    payloads = record.to_list()[chunk.skip : chunk.skip + chunk.count]
    return list(enumerate(payloads, chunk.glsn))


class _Settling:
    """Appends by their numbers, and what came of them."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._settled: dict[int, Outcome] = {}

    def new(self) -> int:
        return next(self._numbers)

    def settle(self, number: int, outcome: Outcome) -> None:
        self._settled[number] = outcome

    def position(self, number: int) -> int | None:
        """None as long as it is not known."""
        outcome = self._settled.get(number)
        assert outcome is None or isinstance(outcome, Committed), f"an append failed on a good network: {outcome}"
        return None if outcome is None else outcome.glsn


class CommitCaller(commit.ClientHost):
    """A client of a topic that commits order."""

    _subscription: Subscription | None = None

    def begin(self) -> None:
        self._settling = _Settling()
        self._answers: dict[int, Message] = {}
        self._writer = Writer(
            TOPIC,
            self.routing,
            lambda: WriterID(self.rng.getrandbits(63) + 1),
            self.request,
            lambda: max(0, int(self.process.clock() * 1_000_000)),
            self.send,
            self._settling.settle,
            WriterOptions(),
        )

    wants_metadata = True

    def append(self, entries: Entries) -> Callable[[], int | None]:
        number = self._settling.new()
        self._writer.append(number, entries, self.now + SECONDS, self.now)
        return partial(self._settling.position, number)

    def subscribe(self, begin: int, end: int | None, deliver: Callable[[Chunk], None], on_end: OnEnd) -> None:
        self._subscription = self.subscription(begin, end, deliver, on_end)
        self._subscription.on_metadata(self.now)

    def ask(self, question: Callable[[int], Message]) -> Callable[[], Message | None]:
        """The answer of the metadata repository."""
        request = self.request()
        self.send(METADATA_REPOSITORY, question(request))
        return lambda: self._answers.get(request)

    def tail(self) -> Callable[[], int | None]:
        answer = self.ask(lambda request: GetTail(request, TOPIC))

        def hwm() -> int | None:
            told = answer()
            assert told is None or isinstance(told, Tail)
            return None if told is None else told.hwm

        return hwm

    def on_message(self, message: Message) -> None:
        match message:
            case AppendReplies():
                self._writer.on_replies(message, self.now)
            case AppendReply():
                self._writer.on_reply(message, self.now)
            case ScanReply() if self._subscription is not None:
                self._subscription.on_reply(message, self.now)
            case Tail(request) | Decided(request):
                self._answers[request] = message
            case _:
                pass

    def on_metadata(self) -> None:
        self._writer.on_metadata(self.now)
        if self._subscription is not None:
            self._subscription.on_metadata(self.now)

    def on_tick(self) -> None:
        self._writer.tick(self.now)
        if self._subscription is not None:
            self._subscription.tick(self.now)


class ChainCaller(chains.ClientHost):
    """A client of a topic that a sequencer orders."""

    def begin(self) -> None:
        self._settling = _Settling()
        self._answers: dict[int, Message] = {}
        self.writer = ChainWriter(
            TOPIC,
            self.chains,
            WriterID(self.rng.getrandbits(63) + 1),
            self.request,
            lambda: max(0, int(self.process.clock() * 1_000_000)),
            self.send,
            self._settling.settle,
            self.proposer.complain,
            self._soon,
        )
        self.refresh()

    def _soon(self) -> None:
        self.process.at(0.0, self._flush)

    def _flush(self) -> None:
        assert self.writer is not None
        self.writer.flush(self.now)

    def append(self, entries: Entries) -> Callable[[], int | None]:
        assert self.writer is not None
        number = self._settling.new()
        self.writer.append(number, entries, self.now + SECONDS, self.now)
        return partial(self._settling.position, number)

    def subscribe(self, begin: int, end: int | None, deliver: Callable[[Chunk], None], on_end: OnEnd) -> None:
        self.subscription = ChainSubscription(
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
        )
        self.subscription.on_metadata(self.now)

    def asked(self, address: str, question: Callable[[int], Message]) -> Callable[[], Message | None]:
        request = self.request()
        self.send(address, question(request))
        return lambda: self._answers.get(request)

    def tail(self) -> Callable[[], int | None]:
        """A peek that is confirmed, and reached by all before it (rules 20, 24)."""
        projection = self.routing.projection(TOPIC)
        assert projection is not None
        epoch, reached = projection.epoch, False
        peeked = self.asked(sequencer_address(projection.sequencer), lambda request: Peek(request, TOPIC, epoch))
        confirmed: Callable[[], Message | None] | None = None
        waits = False

        def done(error: errors.VarlogError | None) -> None:
            nonlocal reached
            assert error is None
            reached = True

        def position() -> int | None:
            nonlocal confirmed, waits
            peek = peeked()
            if peek is None:
                return None
            assert isinstance(peek, Peeked)
            if confirmed is None:
                confirmed = self.asked(METADATA_REPOSITORY, lambda request: GetTail(request, TOPIC))
            tail = confirmed()
            if tail is None:
                return None
            assert isinstance(tail, Tail)
            assert tail.epoch == peek.epoch
            if not waits:
                waits = True
                self.prefix.reach(peek.glsn, done, self.now)
            return peek.glsn if reached else None

        return position

    def on_message(self, message: Message) -> None:
        if isinstance(message, Peeked | Tail | Decided):
            self._answers[message.request] = message


Caller = CommitCaller | ChainCaller


class SimulatedLog:
    """A log through a simulated client."""

    def __init__(self, world: World, make: Callable[[], Caller], make_transacting: MakeClient) -> None:
        self._world = world
        self._make = make
        self._make_transacting = make_transacting
        self._transacting: Transacting | None = None
        self._caller = make()
        self._caller.start()
        self._until(lambda: True if self._caller.routing.version >= 0 else None)

    def _until(self, poll: Callable[[], T | None]) -> T:
        """Let the world run until there is something."""
        deadline = self._world.now + SECONDS
        while (found := poll()) is None:
            assert self._world.now < deadline, "nothing came of it"
            self._world.run(self._world.now + 0.005)
        return found

    def append(self, *entries: bytes) -> int:
        return self._until(self._caller.append(list(entries)))

    def append_all(self, entries: list[bytes]) -> list[int]:
        return [self._until(poll) for poll in [self._caller.append([entry]) for entry in entries]]

    def append_fill(self, count: int) -> int:
        return self._until(self._caller.append(Fill(count)))

    def _read(self, begin: int, end: int | None, enough: Callable[[list[Found]], bool]) -> list[Found]:
        found: list[Found] = []
        ended: list[errors.VarlogError | None] = []
        self._caller.subscribe(begin, end, lambda chunk: found.extend(found_in(chunk)), ended.append)
        self._until(lambda: True if ended or enough(found) else None)
        if ended and ended[0] is not None:
            raise ended[0]
        return found

    def read(self, glsn: int) -> bytes:
        found = self._read(glsn, glsn + 1, lambda _: False)
        if not found:
            raise errors.Filled("junk")
        return found[0][1]

    def scan(self, begin: int, end: int | None = None) -> list[Found]:
        return self._read(begin, self.tail() + 1 if end is None else end, lambda _: False)

    def follow(self, begin: int, count: int) -> list[Found]:
        return self._read(begin, None, lambda found: len(found) >= count)[:count]

    def tail(self) -> int:
        return self._until(self._caller.tail())

    def first(self) -> int:
        self._until(lambda: True if self._caller.routing.topic(TOPIC) is not None else None)
        return self._caller.routing.trim(TOPIC) + 1

    def trim(self, glsn: int) -> int:
        caller = self._caller
        if isinstance(caller, ChainCaller):
            answer = caller.asked(METADATA_REPOSITORY, lambda request: TrimTopic(request, TOPIC, GLSN(glsn)))
        else:
            answer = caller.ask(lambda request: TrimTopic(request, TOPIC, GLSN(glsn)))
        decided = self._until(answer)
        assert isinstance(decided, Decided)
        caller.routing.note_trim(TOPIC, GLSN(decided.value))
        return decided.value

    def _transacts(self) -> Transacting:
        """Made when it is first wanted: most logs have no transactions."""
        if self._transacting is None:
            self._transacting = Transacting(self._make_transacting, self._until)
        return self._transacting

    def begin(self, name: str, number: int | None = None) -> SimulatedTransaction:
        return self._transacts().begin(name, number)

    def committed(self, begin: int, end: int) -> list[Found]:
        return self._transacts().committed(begin, end)

    def another(self) -> SimulatedLog:
        return SimulatedLog(self._world, self._make, self._make_transacting)


class SimulatedPlace:
    """A cluster for each log."""

    def __init__(self, ordering: str) -> None:
        self._ordering = ordering
        self._seeds = itertools.count(1)

    def new_log(self) -> SimulatedLog:
        world = World(next(self._seeds))
        numbers = itertools.count(100)
        cluster: Cluster | ChainCluster
        make: Callable[[], Caller]
        transacting: MakeClient
        if self._ordering == "sequencer":
            cluster = chained = ChainCluster(world, ChainShape(3, STREAMS, 3, block=BLOCK))
            make = lambda: ChainCaller(world.process(f"client/{next(numbers)}"), chained.shared)  # noqa: E731
            transacting = lambda job: TransactingChainClient(  # noqa: E731
                world.process(f"client/{next(numbers)}"), chained.shared, job, fill_after=FILL_AFTER
            )
        else:
            cluster = committing = Cluster(world, Shape(3, STREAMS, 3))
            shared = commit.Shared(committing.network, committing.history, lambda _: None)
            make = lambda: CommitCaller(world.process(f"client/{next(numbers)}"), shared)  # noqa: E731
            transacting = lambda job: TransactingClient(  # noqa: E731
                world.process(f"client/{next(numbers)}"), shared, job
            )
        cluster.set_up()
        return SimulatedLog(world, make, transacting)

    def remove_logs(self) -> None:
        """Their disks are in memory."""


@contextmanager
def simulated(_path: Path, ordering: str) -> Iterator[Place]:
    """No processes, no disks, no time."""
    yield SimulatedPlace(ordering)
