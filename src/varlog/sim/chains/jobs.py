"""What simulated clients are there for: each has one job, and asks for something over and over."""

from __future__ import annotations

from functools import partial
from typing import Final

from varlog import errors
from varlog.core.address import METADATA_REPOSITORY
from varlog.core.appending import Committed, Outcome, Rejected
from varlog.core.chainreading import ChainSubscription
from varlog.core.chainreads import Found
from varlog.core.chainwriting import ChainWriter
from varlog.core.merging import Chunk
from varlog.core.messages import Decided, Message, TrimTopic
from varlog.core.reconfiguring import Change
from varlog.sim.chains.clients import TOPIC, ClientHost, Shared, payloads_of
from varlog.sim.chains.tails import TailSearch
from varlog.sim.history import Kind, Operation
from varlog.sim.process import Process
from varlog.types import GLSN, WriterID

ANSWER_SECONDS: Final = 6.0
"""How long a reader waits for what it asked for."""


class WriterClient(ClientHost):
    """Appends batches of unique payloads, several at a time."""

    def __init__(self, process: Process, shared: Shared, *, window: int, pace: float) -> None:
        super().__init__(process, shared)
        self._window = window
        self._pace = pace
        self._operations: dict[int, Operation] = {}

    def begin(self) -> None:
        self._operations.clear()
        self.writer = ChainWriter(
            TOPIC,
            self.chains,
            WriterID(self.rng.getrandbits(63) + 1),
            self.request,
            self._timestamp,
            self.send,
            self._settle,
            self.proposer.complain,
            self._soon,
        )
        self._next()

    def _timestamp(self) -> int:
        return max(0, int(self.process.clock() * 1_000_000))

    def _soon(self) -> None:
        self.process.at(0.0, self._flush)

    def _flush(self) -> None:
        assert self.writer is not None
        self.writer.flush(self.now)

    def _next(self) -> None:
        assert self.writer is not None
        burst = self.rng.choice((1, 1, self._window))
        for _ in range(burst):
            if not self.shared.stopping and self.writer.outstanding < self._window:
                self._append(self.writer)
        self.process.at(self.rng.uniform(0.0, 2.0) * self._pace * burst, self._next)

    def _append(self, writer: ChainWriter) -> None:
        id_ = self.request()
        size = self.rng.choice((0, 0, 40, 400, 1200))
        payloads = [
            f"{self.process.name}:{id_}:{i}".encode() + b"." * size for i in range(self.rng.choice((1, 1, 2, 5)))
        ]
        operation = self.shared.history.invoke(self.process.name, Kind.APPEND, TOPIC, payloads=payloads)
        self._operations[id_] = operation
        writer.append(id_, payloads, self.now + self.rng.choice((1.0, 2.0, 4.0)), self.now)

    def _settle(self, id_: int, outcome: Outcome) -> None:
        operation = self._operations.pop(id_)
        history = self.shared.history
        match outcome:
            case Committed():
                history.ok(operation, glsn=outcome.glsn, lsid=outcome.log_stream, epoch=outcome.epoch)
                self.shared.learn(outcome.glsn + outcome.count - 1)
            case Rejected(code):
                history.rejected(operation, errors.VarlogError.registry[code].__name__)
            case _:
                history.unknown(operation, "Unknown")


class SubscribingClient(ClientHost):
    """A client that reads in order, through subscriptions."""

    _trimmed_to = 0

    def subscribe(self, operation: Operation, end: int | None) -> None:
        self.subscription = ChainSubscription(
            TOPIC,
            GLSN(operation.position),
            None if end is None else GLSN(end),
            self.routing,
            self.request,
            self.ask,
            partial(self._deliver, operation),
            partial(self._on_end, operation),
            self.mending.mend,
            self.proposer.complain,
            fill_after=self.fill_after,
        )
        if self.routing.version >= 0:
            self.subscription.on_metadata(self.now)

    def _deliver(self, operation: Operation, chunk: Chunk) -> None:
        self.shared.history.deliver(operation, chunk.glsn, payloads_of(chunk.stored, chunk.skip, chunk.count))
        self.shared.learn(chunk.glsn + chunk.count - 1)

    def _on_end(self, operation: Operation, error: errors.VarlogError | None) -> None:
        self.subscription = None
        if error is None:
            self.shared.history.ok(operation)
        else:
            self._note_failure(operation, error)

    def _note_failure(self, operation: Operation, error: errors.VarlogError) -> None:
        first = error.first if isinstance(error, errors.Trimmed) else 0
        self._trimmed_to = max(self._trimmed_to, first - 1)
        self.shared.history.failed(operation, type(error).__name__, first=first)


class ReaderClient(SubscribingClient):
    """Reads single positions, of which the last may not be written yet, and ranges that are known to exist."""

    def __init__(self, process: Process, shared: Shared, *, pace: float, fill_after: float) -> None:
        super().__init__(process, shared, fill_after=fill_after)
        self._pace = pace
        self._operation: Operation | None = None
        self._deadline = 0.0

    def begin(self) -> None:
        self._operation = None
        self._next()

    def _next(self) -> None:
        if self._operation is None and self.shared.known_tail and not self.shared.stopping:
            self._begin_one()
        self.process.at(self.rng.expovariate(1.0) * self._pace, self._next)

    def _begin_one(self) -> None:
        history, name, tail = self.shared.history, self.process.name, self.shared.known_tail
        begin = self.rng.randint(max(1, self._trimmed_to - 2), tail + 3)
        if begin > tail or self.rng.random() < 0.6:
            self._operation = operation = history.invoke(name, Kind.READ, TOPIC, position=begin)
            self.reads.read(GLSN(begin), self.now + ANSWER_SECONDS, partial(self._on_read_done, operation), self.now)
            return
        end = min(begin + self.rng.choice((1, 10)), tail + 1)
        self._operation = operation = history.invoke(name, Kind.SCAN, TOPIC, position=begin, end=end)
        self._deadline = self.now + ANSWER_SECONDS
        self.subscribe(operation, end)

    def _on_read_done(self, operation: Operation, outcome: Found | errors.VarlogError) -> None:
        self._operation = None
        if isinstance(outcome, Found):
            skip = operation.position - outcome.line[0]
            self.shared.history.ok(operation, payloads=payloads_of(outcome.line, skip, 1))
            self.shared.learn(operation.position)
        else:
            self._note_failure(operation, outcome)

    def _on_end(self, operation: Operation, error: errors.VarlogError | None) -> None:
        self._operation = None
        super()._on_end(operation, error)

    def on_tick(self) -> None:
        operation = self._operation
        if operation is not None and operation.kind is Kind.SCAN and self.now >= self._deadline:
            self._on_end(operation, errors.DeadlineExceeded(""))


class SubscriberClient(SubscribingClient):
    """Subscribes from some position; where the log was trimmed meanwhile, begins anew where it now begins."""

    def __init__(self, process: Process, shared: Shared, *, first: int, fill_after: float) -> None:
        super().__init__(process, shared, fill_after=fill_after)
        self._first = first
        self._operation: Operation | None = None

    def begin(self) -> None:
        self._subscribe(self._first)

    def kill(self) -> None:
        super().kill()
        if self._operation is not None:
            self.shared.history.failed(self._operation, "Killed")
            self._operation = None

    def _subscribe(self, begin: int) -> None:
        self._operation = self.shared.history.invoke(self.process.name, Kind.SUBSCRIBE, TOPIC, position=begin)
        self.subscribe(self._operation, None)

    def _on_end(self, operation: Operation, error: errors.VarlogError | None) -> None:
        assert isinstance(error, errors.Trimmed), "a subscription without an end ends only where the log was trimmed"
        self._operation = None
        super()._on_end(operation, error)
        self.process.at(0.0, self._subscribe, error.first)


class TailClient(ClientHost):
    """Asks for the tail."""

    def __init__(self, process: Process, shared: Shared, *, pace: float, fill_after: float) -> None:
        super().__init__(process, shared, fill_after=fill_after)
        self._pace = pace

    def begin(self) -> None:
        self._search: TailSearch | None = None
        self._next()

    def _next(self) -> None:
        if self._search is None and not self.shared.stopping:
            operation = self.shared.history.invoke(self.process.name, Kind.TAIL, TOPIC)
            self._search = TailSearch(self, self.now + ANSWER_SECONDS, partial(self._done, operation))
            self._search.begin()
        self.process.at(self.rng.expovariate(1.0) * self._pace, self._next)

    def _done(self, operation: Operation, came: GLSN | errors.VarlogError) -> None:
        self._search = None
        if isinstance(came, errors.VarlogError):
            self.shared.history.failed(operation, type(came).__name__)
        else:
            self.shared.history.ok(operation, glsn=came)
            self.shared.learn(came)

    def on_message(self, message: Message) -> None:
        if self._search is not None:
            self._search.on_message(message)

    def on_tick(self) -> None:
        if self._search is not None:
            self._search.on_tick()


class TrimmerClient(ReaderClient):
    """Trims some of what is there, now and then, and reads around it."""

    def __init__(self, process: Process, shared: Shared, *, pace: float, trim_pace: float) -> None:
        super().__init__(process, shared, pace=pace, fill_after=1.0)
        self._trim_pace = trim_pace

    def begin(self) -> None:
        self._trimmed_to = 0
        self._trim: Operation | None = None
        self._trim_request = 0
        super().begin()
        self._next_trim()

    def _next_trim(self) -> None:
        tail = self.shared.known_tail
        if self._trim is None and tail >= 20 and not self.shared.stopping:
            # Most of what is there, or up to where writes are under way: then into the middle of a batch, perhaps.
            glsn = tail - self.rng.randint(0, 6) if self.rng.random() < 0.3 else self.rng.randint(1, tail // 2)
            self._trim = self.shared.history.invoke(self.process.name, Kind.TRIM, TOPIC, position=glsn)
            self._trim_request = self.request()
            self._trim_deadline = self.now + ANSWER_SECONDS
            self.send(METADATA_REPOSITORY, TrimTopic(self._trim_request, TOPIC, GLSN(glsn)))
        self.process.at(self.rng.expovariate(1.0) * self._trim_pace, self._next_trim)

    def on_message(self, message: Message) -> None:
        if not isinstance(message, Decided) or self._trim is None or message.request != self._trim_request:
            return
        if message.code == errors.NotLeader.code:
            return
        trim, self._trim = self._trim, None
        if message.code:
            self.shared.history.failed(trim, errors.VarlogError.registry[message.code].__name__)
            return
        self.routing.note_trim(TOPIC, GLSN(message.value))
        self._trimmed_to = max(self._trimmed_to, message.value)
        self.shared.history.ok(trim)

    def on_tick(self) -> None:
        super().on_tick()
        if self._trim is not None and self.now >= self._trim_deadline:
            self.shared.history.failed(self._trim, errors.DeadlineExceeded.__name__)
            self._trim = None


class MeddlerClient(ClientHost):
    """Fills what it has no reason to fill, and makes new projections that nobody needs (S5, S7)."""

    def __init__(self, process: Process, shared: Shared, *, fill_pace: float, seal_pace: float) -> None:
        super().__init__(process, shared)
        self._fill_pace = fill_pace
        self._seal_pace = seal_pace

    def begin(self) -> None:
        self.refresh()
        self.process.at(self.rng.expovariate(1.0) * self._fill_pace, self._fill)
        if self._seal_pace:
            self.process.at(self.rng.expovariate(1.0) * self._seal_pace, self._seal)

    def _fill(self) -> None:
        """Around the tail, where appends are under way; what lies beyond it is left alone by `mending`."""
        if not self.shared.stopping:
            glsn = max(self.routing.trim(TOPIC) + 1, self.shared.known_tail + self.rng.randint(-6, 6))
            self.mending.mend(GLSN(glsn), self.rng.choice((1, 1, 3)), self.now)
        self.process.at(self.rng.expovariate(1.0) * self._fill_pace, self._fill)

    def reconfigure(self) -> None:
        """Make another projection, if this client is not at that already."""
        if not self.shared.stopping and not self.talks:
            self.proposer.propose(Change())

    def _seal(self) -> None:
        self.reconfigure()
        self.process.at(self.rng.expovariate(1.0) * self._seal_pace, self._seal)
