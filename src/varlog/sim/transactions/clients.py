"""Simulated clients that transact, in topics that cuts order: the production machines in simulated processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from varlog import errors
from varlog.core.appending import Outcome, Writer, WriterOptions
from varlog.core.content import Content
from varlog.core.delivering import Delivery
from varlog.core.merging import Chunk
from varlog.core.messages import AppendReplies, AppendReply, GetTail, Message, ScanReply, Tail
from varlog.core.subscribing import Subscription
from varlog.sim.clients import ClientHost, Shared
from varlog.sim.process import Process
from varlog.sim.transactions.jobs import Job
from varlog.sim.transactions.ways import TOPIC, Done, Inquiries, Ways
from varlog.types import Ordering, WriterID

WRITERS: Final = 2
"""So that what one client writes goes to several log streams."""

MakeJob = Callable[[Ways, Inquiries], Job]


class TransactingClient(ClientHost, Ways):
    """A client with writers and subscriptions, and a job."""

    ordering = Ordering.COMMIT

    def __init__(self, process: Process, shared: Shared, make_job: MakeJob) -> None:
        super().__init__(process, shared)
        self._make_job = make_job

    def begin(self) -> None:
        self._subscriptions: list[Subscription] = []
        self._inquiries = Inquiries(self)
        self._writers = [self._make_writer() for _ in range(WRITERS)]
        self._job = self._make_job(self, self._inquiries)
        self._job.start()

    def _make_writer(self) -> Writer:
        return Writer(
            TOPIC, self.routing, self._writer_id, self.request, self._timestamp, self.send, _settle, WriterOptions()
        )

    def _writer_id(self) -> WriterID:
        return WriterID(self.rng.getrandbits(63) + 1)

    def kill(self) -> None:
        if self.process.alive:
            self._job.killed()
        super().kill()

    # Ways

    def append(self, content: Content, deadline: float, done: Callable[[Outcome], None]) -> None:
        self.rng.choice(self._writers).append(done, content, deadline, self.now)

    def subscribe(
        self,
        begin: int,
        end: int | None,
        deliver: Callable[[Chunk], None],
        on_end: Callable[[errors.VarlogError | None], None],
        *,
        verdicts: bool = False,
    ) -> Subscription:
        subscription = self.subscription(begin, end, deliver, on_end, verdicts=verdicts)
        self._subscriptions.append(subscription)
        if self.routing.version >= 0:
            self.process.at(0.0, self._tell, subscription)
        return subscription

    def _tell(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            subscription.on_metadata(self.now)

    def leave(self, feed: Delivery) -> None:
        self._subscriptions = [one for one in self._subscriptions if one is not feed]

    def tail(self, deadline: float, done: Done) -> None:
        self._inquiries.ask(GetTail(0, TOPIC), deadline, partial(_on_tail, done))

    # Messages

    def _machines(self) -> list[Writer | Subscription]:
        return [*self._writers, *self._subscriptions]

    @property
    def wants_metadata(self) -> bool:  # type: ignore[override]
        return any(machine.wants_metadata for machine in self._machines())

    def on_message(self, message: Message) -> None:
        match message:
            case ScanReply():
                for subscription in self._subscriptions:
                    subscription.on_reply(message, self.now)
            case AppendReplies():
                for writer in self._writers:
                    writer.on_replies(message, self.now)
            case AppendReply():
                for writer in self._writers:
                    writer.on_reply(message, self.now)
            case _:
                self._inquiries.on_answer(message)

    def on_metadata(self) -> None:
        for machine in self._machines():
            machine.on_metadata(self.now)

    def on_tick(self) -> None:
        for machine in self._machines():
            machine.tick(self.now)
        self._subscriptions = [one for one in self._subscriptions if not one.ended]
        self._job.tick()


def _settle(done: Callable[[Outcome], None], outcome: Outcome) -> None:
    done(outcome)


def _on_tail(done: Done, came: Any) -> None:
    if isinstance(came, Tail):
        done(errors.VarlogError.of(came.code, "no tail") if came.code else came.hwm)
    else:
        done(came)
