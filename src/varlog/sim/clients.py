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
    AppendReplies,
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
from varlog.sim.evidence import payloads_of
from varlog.sim.history import History, Kind, Operation
from varlog.sim.network import Network
from varlog.sim.process import Process
from varlog.types import GLSN, TopicID, WriterID

TOPIC: Final = TopicID(1)
TICK: Final = 0.05
METADATA_EVERY: Final = 0.1
READ_TIMEOUT: Final = 0.5
ASK_ANOTHER: Final = 0.2


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
        self.rng: Random = process.world.rng(process.name)
        self._requests = 0
        shared.network.attach(process.name, process, self._receive)

    def start(self) -> None:
        """Begin, or begin anew after a crash: nothing is remembered."""
        self.routing = Routing()
        self._asked = -METADATA_EVERY
        self.begin()
        self._tick()

    def kill(self) -> None:
        """The process ends; what it had asked for was never answered."""
        self.process.kill()

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

    def subscription(
        self,
        begin: int,
        end: int | None,
        deliver: Callable[[Chunk], None],
        on_end: Callable[[errors.VarlogError | None], None],
        *,
        verdicts: bool = False,
    ) -> Subscription:
        """One more, of the production code, that reads from some replica of each log stream."""
        return Subscription(
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
            ask_another=ASK_ANOTHER,
            verdicts=verdicts,
        )

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
        self._operations.clear()
        self._writer = Writer(
            TOPIC,
            self.routing,
            self._writer_id,
            self.request,
            self._timestamp,
            self.send,
            self._settle,
            self._options,
        )
        self._next()

    def _writer_id(self) -> WriterID:
        return WriterID(self.rng.getrandbits(63) + 1)

    def _timestamp(self) -> int:
        return max(0, int(self.process.clock() * 1_000_000))

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
                history.ok(operation, glsn=outcome.glsn, lsid=outcome.log_stream, epoch=outcome.epoch)
                self.shared.learn(outcome.glsn + outcome.count - 1)
            case Rejected(code):
                history.rejected(operation, errors.VarlogError.registry[code].__name__)
            case _:
                history.unknown(operation, "Unknown")

    def on_message(self, message: Message) -> None:
        if isinstance(message, AppendReplies):
            self._writer.on_replies(message, self.now)
        elif isinstance(message, AppendReply):
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
        self._subscription = self.subscription(begin, end, deliver, on_end)
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
        return payloads_of(batch.decode(chunk.stored[6]), chunk.stored[0], chunk.skip, chunk.count)


class ReaderClient(_Reading):
    """Reads single positions and ranges that are known to exist."""

    def __init__(self, process: Process, shared: Shared, *, pace: float) -> None:
        super().__init__(process, shared)
        self._pace = pace
        self._operation: Operation | None = None
        self._deadline = 0.0

    def begin(self) -> None:
        self._operation = self._subscription = None
        self._next()

    def _next(self) -> None:
        if self._operation is None and self.shared.known_tail and not self.shared.stopping:
            begin = self.rng.randint(max(1, self._trimmed_to - 2), self.shared.known_tail)
            end = min(begin + self.rng.choice((1, 1, 10)), self.shared.known_tail + 1)
            kind = Kind.READ if end == begin + 1 else Kind.SCAN
            history, name = self.shared.history, self.process.name
            self._operation = history.invoke(name, kind, TOPIC, position=begin, end=end if kind is Kind.SCAN else 0)
            self._deadline = self.now + 5.0
            self.subscribe(begin, end, self._deliver, self._on_end)
        self.process.at(self.rng.expovariate(1.0) * self._pace, self._next)

    def _deliver(self, chunk: Chunk) -> None:
        assert self._operation is not None
        if self._operation.kind is Kind.READ:
            self.shared.history.ok(self._operation, payloads=self.payloads(chunk))
            self._operation = None
        else:
            self.shared.history.deliver(self._operation, chunk.glsn, self.payloads(chunk))

    def _on_end(self, error: errors.VarlogError | None) -> None:
        operation, self._operation, self._subscription = self._operation, None, None
        if isinstance(error, errors.Trimmed):
            self._trimmed_to = max(self._trimmed_to, error.first - 1)
        if operation is None:
            return  # a read that was delivered
        if error is None:
            self.shared.history.ok(operation)
        else:
            first = error.first if isinstance(error, errors.Trimmed) else 0
            self.shared.history.failed(operation, type(error).__name__, first=first)

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

    def kill(self) -> None:
        super().kill()
        if self._operation is not None:
            self.shared.history.failed(self._operation, "Killed")
            self._operation = None

    def _subscribe(self, begin: int) -> None:
        operation = self.shared.history.invoke(self.process.name, Kind.SUBSCRIBE, TOPIC, position=begin)
        self._operation = operation
        self.subscribe(begin, None, partial(self._deliver, operation), partial(self._on_end, operation))

    def _deliver(self, operation: Operation, chunk: Chunk) -> None:
        self.shared.history.deliver(operation, chunk.glsn, self.payloads(chunk))
        self.shared.learn(chunk.glsn + chunk.count - 1)

    def _on_end(self, operation: Operation, error: errors.VarlogError | None) -> None:
        assert isinstance(error, errors.Trimmed), "a subscription without an end ends only where the log was trimmed"
        self._operation = None
        self.shared.history.failed(operation, type(error).__name__, first=error.first)
        self.process.at(0.0, self._subscribe, error.first)


class Questions:
    """One question after another to the metadata repository, each with a deadline."""

    def __init__(self, host: ClientHost, pace: float, ask: Callable[[], tuple[Operation, Message] | None]) -> None:
        self._host = host
        self._pace = pace
        self._ask = ask
        self._operation: Operation | None = None
        self._request = 0
        self._deadline = 0.0

    def begin(self) -> None:
        self._operation = None
        self._next()

    def _next(self) -> None:
        host = self._host
        if self._operation is None and not host.shared.stopping and (asked := self._ask()) is not None:
            self._operation, question = asked
            self._request = question.request  # type: ignore[attr-defined]
            self._deadline = host.now + 3.0
            host.send(METADATA_REPOSITORY, question)
        host.process.at(host.rng.expovariate(1.0) * self._pace, self._next)

    def answered(self, message: Tail | Decided) -> Operation | None:
        """The operation that a message says succeeded; one that failed is noted. One that no longer leads is not
        listened to."""
        operation = self._operation
        if operation is None or message.request != self._request or message.code == errors.NotLeader.code:
            return None
        self._operation = None
        if message.code:
            self._host.shared.history.failed(operation, errors.VarlogError.registry[message.code].__name__)
            return None
        return operation

    def tick(self) -> None:
        if self._operation is not None and self._host.now >= self._deadline:
            self._host.shared.history.failed(self._operation, errors.DeadlineExceeded.__name__)
            self._operation = None


class PeekerClient(ClientHost):
    """Asks for the tail."""

    wants_metadata = False

    def __init__(self, process: Process, shared: Shared, *, pace: float) -> None:
        super().__init__(process, shared)
        self._questions = Questions(self, pace, self._ask)

    def begin(self) -> None:
        self._questions.begin()

    def _ask(self) -> tuple[Operation, Message] | None:
        operation = self.shared.history.invoke(self.process.name, Kind.TAIL, TOPIC)
        return operation, GetTail(self.request(), TOPIC)

    def on_message(self, message: Message) -> None:
        if isinstance(message, Tail) and (operation := self._questions.answered(message)) is not None:
            self.shared.history.ok(operation, glsn=message.hwm)
            self.shared.learn(message.hwm)

    def on_tick(self) -> None:
        self._questions.tick()


class TrimmerClient(ReaderClient):
    """Trims some of what is there, now and then, and reads around it."""

    def __init__(self, process: Process, shared: Shared, *, pace: float, trim_pace: float) -> None:
        super().__init__(process, shared, pace=pace)
        self._questions = Questions(self, trim_pace, self._ask)

    def begin(self) -> None:
        self._trimmed_to = 0
        super().begin()
        self._questions.begin()

    def _ask(self) -> tuple[Operation, Message] | None:
        if self.shared.known_tail < 20:
            return None
        glsn = self.rng.randint(1, self.shared.known_tail // 2)
        operation = self.shared.history.invoke(self.process.name, Kind.TRIM, TOPIC, position=glsn)
        return operation, TrimTopic(self.request(), TOPIC, GLSN(glsn))

    def on_message(self, message: Message) -> None:
        super().on_message(message)
        if isinstance(message, Decided) and (operation := self._questions.answered(message)) is not None:
            self.routing.note_trim(TOPIC, GLSN(message.value))
            self._trimmed_to = max(self._trimmed_to, message.value)
            self.shared.history.ok(operation)

    def on_tick(self) -> None:
        super().on_tick()
        self._questions.tick()
