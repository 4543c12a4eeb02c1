"""Simulated clients: the production client logic in simulated processes, and the load they make.

Each client is one process with one job: it appends, reads, subscribes, asks for the tail, or trims. What it asks for
and is told goes into the history. No client looks behind the protocol; the only thing they share is a notion of how
long the log already is, so that readers have something to read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from varlog import batch, errors
from varlog.core.address import METADATA_REPOSITORY
from varlog.core.appending import Committed, Outcome, Rejected, Writer, WriterOptions
from varlog.core.branches import Observe
from varlog.core.merging import Chunk
from varlog.core.messages import (
    AppendReply,
    Decided,
    GetMetadata,
    GetTail,
    Message,
    Metadata,
    ScanReply,
    Tail,
    TrimTopic,
)
from varlog.core.routing import Routing
from varlog.core.subscribing import Subscription
from varlog.sim.history import History, Kind, Operation
from varlog.sim.network import Network
from varlog.sim.process import Process
from varlog.types import GLSN, TopicID, WriterID

TOPIC: Final = TopicID(1)
TICK: Final = 0.05
METADATA_EVERY: Final = 0.1
READ_TIMEOUT: Final = 0.5


@dataclass
class Shared:
    """What all clients of a run have in common."""

    network: Network
    history: History
    observe: Observe
    known_tail: int = 0
    """The greatest position any client was told of."""
    stopping: bool = False
    """No new operations are begun."""

    def learn(self, glsn: int) -> None:
        self.known_tail = max(self.known_tail, glsn)


class ClientHost:
    """What every client does: keep metadata, count requests, tick."""

    def __init__(self, process: Process, shared: Shared) -> None:
        self.process = process
        self.shared = shared
        self.routing = Routing()
        self.rng: Random = process.world.rng(process.name)
        self._requests = 0
        self._asked = -METADATA_EVERY
        shared.network.attach(process.name, process, self._receive)

    def start(self) -> None:
        self.begin()
        self._tick()

    @property
    def now(self) -> float:
        return self.process.monotonic()

    def request(self) -> int:
        self._requests += 1
        return self._requests

    def send(self, address: str, message: Message) -> None:
        self.shared.network.send(self.process, address, message)

    def _receive(self, _source: str, message: Message) -> None:
        if not isinstance(message, Metadata):
            self.on_message(message)
        elif self.routing.update(message) or message.version == self.routing.version:
            self.on_metadata()
        self._refresh()

    def _tick(self) -> None:
        self.on_tick()
        self._refresh()
        self.process.at(TICK, self._tick)

    def _refresh(self) -> None:
        if self.wants_metadata and self.now - self._asked >= METADATA_EVERY:
            self._asked = self.now
            self.send(METADATA_REPOSITORY, GetMetadata(self.request()))

    # The job, to be filled in

    wants_metadata: bool

    def begin(self) -> None: ...

    def on_message(self, message: Message) -> None: ...

    def on_metadata(self) -> None: ...

    def on_tick(self) -> None: ...


class WriterClient(ClientHost):
    """Appends batches of unique payloads, several at a time."""

    def __init__(self, process: Process, shared: Shared, *, retry: bool, window: int, pace: float) -> None:
        super().__init__(process, shared)
        self._options = WriterOptions(retry=retry, window=window)
        self._pace = pace
        self._operations: dict[int, Operation] = {}

    @property
    def wants_metadata(self) -> bool:  # type: ignore[override]
        return self._writer.wants_metadata

    def begin(self) -> None:
        self._writer = Writer(TOPIC, self.routing, self._writer_id, self.send, self._settle, self._options)
        self._next()

    def _writer_id(self) -> WriterID:
        return WriterID(self.rng.getrandbits(63) + 1)

    def _next(self) -> None:
        burst = self.rng.choice((1, 1, self._options.window))
        for _ in range(burst):
            if not self.shared.stopping and self._writer.outstanding < self._options.window:
                self._append()
        self.process.at(self.rng.uniform(0.0, 2.0) * self._pace * burst, self._next)

    def _append(self) -> None:
        id_ = self.request()
        size = self.rng.choice((0, 0, 40, 400))
        payloads = [
            f"{self.process.name}:{id_}:{i}".encode() + b"." * size for i in range(self.rng.choice((1, 1, 2, 5)))
        ]
        operation = self.shared.history.invoke(self.process.name, Kind.APPEND, TOPIC, payloads=payloads)
        self._operations[id_] = operation
        self._writer.append(id_, payloads, self.now + self.rng.choice((1.0, 2.0, 4.0)), self.now)

    def _settle(self, id_: int, outcome: Outcome) -> None:
        operation = self._operations.pop(id_)
        history = self.shared.history
        match outcome:
            case Committed():
                history.ok(operation, glsn=outcome.glsn, lsid=outcome.lsid, epoch=outcome.epoch)
                self.shared.learn(outcome.glsn + outcome.count - 1)
            case Rejected(code):
                history.rejected(operation, errors.VarlogError.registry[code].__name__)
            case _:
                history.unknown(operation, "Unknown")

    def on_message(self, message: Message) -> None:
        if isinstance(message, AppendReply):
            self._writer.on_reply(message, self.now)

    def on_metadata(self) -> None:
        self._writer.on_metadata(self.now)

    def on_tick(self) -> None:
        self._writer.tick(self.now)


class _Reading(ClientHost):
    """A client that reads in order, through subscriptions."""

    _subscription: Subscription | None = None
    _trimmed_to = 0

    @property
    def wants_metadata(self) -> bool:  # type: ignore[override]
        return self._subscription is not None and self._subscription.wants_metadata

    def subscribe(
        self,
        begin: int,
        end: int | None,
        deliver: Callable[[Chunk], None],
        on_end: Callable[[errors.VarlogError | None], None],
    ) -> None:
        self._subscription = Subscription(
            TOPIC,
            GLSN(begin),
            None if end is None else GLSN(end),
            self.routing,
            self.request,
            self.send,
            deliver,
            on_end,
            self.shared.observe,
            affinity=self.rng.randrange(16),
            read_timeout=READ_TIMEOUT,
        )
        if self.routing.version >= 0:
            self._subscription.on_metadata(self.now)

    def on_message(self, message: Message) -> None:
        if self._subscription is not None and isinstance(message, ScanReply):
            self._subscription.on_reply(message, self.now)

    def on_metadata(self) -> None:
        if self._subscription is not None:
            self._subscription.on_metadata(self.now)

    def on_tick(self) -> None:
        if self._subscription is not None:
            self._subscription.tick(self.now)

    @staticmethod
    def payloads(chunk: Chunk) -> list[bytes]:
        return batch.decode(chunk.stored[6]).to_list()[chunk.skip : chunk.skip + chunk.count]


class ReaderClient(_Reading):
    """Reads single positions that are known to exist."""

    def __init__(self, process: Process, shared: Shared, *, pace: float) -> None:
        super().__init__(process, shared)
        self._pace = pace
        self._operation: Operation | None = None
        self._deadline = 0.0

    def begin(self) -> None:
        self._next()

    def _next(self) -> None:
        if self._operation is None and self.shared.known_tail and not self.shared.stopping:
            glsn = self.rng.randint(max(1, self._trimmed_to - 2), self.shared.known_tail)
            self._operation = self.shared.history.invoke(self.process.name, Kind.READ, TOPIC, position=glsn)
            self._deadline = self.now + 5.0
            self.subscribe(glsn, glsn + 1, self._deliver, self._on_end)
        self.process.at(self.rng.expovariate(1.0) * self._pace, self._next)

    def _deliver(self, chunk: Chunk) -> None:
        assert self._operation is not None
        self.shared.history.ok(self._operation, payloads=self.payloads(chunk))
        self._operation = None

    def _on_end(self, error: errors.VarlogError | None) -> None:
        if error is not None and self._operation is not None:
            first = error.first if isinstance(error, errors.Trimmed) else 0
            self._trimmed_to = max(self._trimmed_to, first - 1)
            self.shared.history.failed(self._operation, type(error).__name__, first=first)
            self._operation = None
        self._subscription = None

    def on_tick(self) -> None:
        super().on_tick()
        if self._operation is not None and self.now >= self._deadline:
            self.shared.history.failed(self._operation, errors.DeadlineExceeded.__name__)
            self._operation = self._subscription = None


class SubscriberClient(_Reading):
    """Subscribes from some position; where the log was trimmed meanwhile, begins anew where it now begins."""

    def __init__(self, process: Process, shared: Shared, *, begin: int) -> None:
        super().__init__(process, shared)
        self._begin = begin
        self._operation: Operation | None = None

    def begin(self) -> None:
        self._subscribe(self._begin)

    def _subscribe(self, begin: int) -> None:
        operation = self.shared.history.invoke(self.process.name, Kind.SUBSCRIBE, TOPIC, position=begin)
        deliver = partial(self._deliver, operation)
        self.subscribe(begin, None, deliver, partial(self._on_end, operation))

    def _deliver(self, operation: Operation, chunk: Chunk) -> None:
        self.shared.history.deliver(operation, chunk.glsn, self.payloads(chunk))
        self.shared.learn(chunk.glsn + chunk.count - 1)

    def _on_end(self, operation: Operation, error: errors.VarlogError | None) -> None:
        assert isinstance(error, errors.Trimmed), "a subscription without an end ends only where the log was trimmed"
        self.shared.history.failed(operation, type(error).__name__, first=error.first)
        self.process.at(0.0, self._subscribe, error.first)


class _Asking(ClientHost):
    """A client that asks the metadata repository one thing after another."""

    wants_metadata = False

    def __init__(self, process: Process, shared: Shared, *, pace: float) -> None:
        super().__init__(process, shared)
        self._pace = pace
        self._operation: Operation | None = None
        self._question: Message | None = None
        self._deadline = 0.0

    def begin(self) -> None:
        self._next()

    def _next(self) -> None:
        if self._operation is None and not self.shared.stopping:
            asked = self.ask()
            if asked is not None:
                self._operation, self._question = asked
                self._deadline = self.now + 3.0
                self.send(METADATA_REPOSITORY, self._question)
        self.process.at(self.rng.expovariate(1.0) * self._pace, self._next)

    def ask(self) -> tuple[Operation, Message] | None:
        raise AssertionError("filled in by the client")

    def answered(self, message: Message) -> Operation | None:
        """The operation that a message answers; from then on it is over."""
        question, operation = self._question, self._operation
        if question is None or getattr(message, "request", 0) != question.request:  # type: ignore[attr-defined]
            return None
        self._operation = self._question = None
        return operation

    def on_tick(self) -> None:
        if self._operation is not None and self.now >= self._deadline:
            self.shared.history.failed(self._operation, errors.DeadlineExceeded.__name__)
            self._operation = self._question = None


class PeekerClient(_Asking):
    """Asks for the tail."""

    def ask(self) -> tuple[Operation, Message] | None:
        operation = self.shared.history.invoke(self.process.name, Kind.TAIL, TOPIC)
        return operation, GetTail(self.request(), TOPIC)

    def on_message(self, message: Message) -> None:
        if not isinstance(message, Tail) or message.code == errors.NotLeader.code:
            return
        operation = self.answered(message)
        if operation is None:
            return
        if message.code:
            self.shared.history.failed(operation, errors.VarlogError.registry[message.code].__name__)
        else:
            self.shared.history.ok(operation, glsn=message.hwm)
            self.shared.learn(message.hwm)


class TrimmerClient(_Asking):
    """Trims some of what is there, now and then."""

    def ask(self) -> tuple[Operation, Message] | None:
        if self.shared.known_tail < 20:
            return None
        glsn = self.rng.randint(1, self.shared.known_tail // 2)
        operation = self.shared.history.invoke(self.process.name, Kind.TRIM, TOPIC, position=glsn)
        return operation, TrimTopic(self.request(), TOPIC, GLSN(glsn))

    def on_message(self, message: Message) -> None:
        if not isinstance(message, Decided) or message.code == errors.NotLeader.code:
            return
        operation = self.answered(message)
        if operation is None:
            return
        if message.code:
            self.shared.history.failed(operation, errors.VarlogError.registry[message.code].__name__)
        else:
            self.shared.history.ok(operation)
