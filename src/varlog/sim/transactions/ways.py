"""What a simulated client does for whoever transacts or reads in it, whichever way its topic is ordered; and how the
procedures of `varlog.core.transacting` are run on that.

A procedure asks for one effect after another. Each is done by sending, appending or reading, with all that may befall
it; one that has not come to an end when the procedure's time is up ends with `DeadlineExceeded`, as does every further
one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from functools import partial
from random import Random
from typing import Any, Final

import msgspec

from varlog import batch, errors
from varlog.batch.transactions import Verdict, VerdictKind, encode_verdict
from varlog.core import transacting
from varlog.core.address import METADATA_REPOSITORY
from varlog.core.appending import Committed, Outcome, Rejected
from varlog.core.content import Content, Tagged
from varlog.core.delivering import Delivery
from varlog.core.fates import Fates
from varlog.core.merging import Chunk
from varlog.core.messages import Message
from varlog.sim.history import History, Kind
from varlog.sim.process import Process
from varlog.types import GLSN, Ordering, TopicID

TOPIC: Final = TopicID(1)
ASK_AGAIN: Final = 0.4
"""After so long without an answer the metadata repository is asked again."""

Done = Callable[[Any], None]
"""Told what came of it, or an error."""


class Transacted(Enum):
    """What happened to transactions, so that a run can show that it did."""

    BEGUN = "transaction begun"
    JOINED = "transaction joined by a second writer"
    REPLAY_KNOWN = "replay of a number refused by the register"
    REPLAY_FOUND = "replay of a number refused because the log has its commit"
    REPLACED = "attempt refused because a later one has taken its place"
    FENCED_OPEN = "earlier attempt ended by a later one"
    FENCED_COMMITTED = "earlier attempt found committed by a later one"
    COMMITTED = "commit succeeded"
    COMMIT_EMPTY = "commit of nothing succeeded"
    COMMIT_ABORTED = "commit found an ABORT before it"
    COMMIT_EXPIRED = "commit found an EXPIRE before it"
    COMMIT_LATE = "commit found that another verdict came first when its own was in the log"
    COMMIT_UNKNOWN = "commit could not be known"
    COMMIT_AGAIN = "commit was asked for again and told"
    ABORTED = "abort succeeded"
    ABORT_TOO_LATE = "abort found the transaction committed"
    ABANDONED = "transaction abandoned"
    UNCOUNTED = "part was not counted in"
    SETTLED = "expired transaction settled by an operator"
    TRIM_REFUSED = "trim refused because of an open transaction"
    STABLE = "position up to which everything is decided"
    ENDED_AND_TRIMMED = "end of a transaction was trimmed when it was looked for"
    HELD = "reader waited for a transaction to be decided"
    LOOKED_BACK = "reader looked for a verdict before where it began"
    READER_EXPIRED = "reader ended a transaction that had held it for its expiry"
    EXPIRE_OUTRUN = "reader's EXPIRE came after another verdict"
    HELD_TRIMMED = "reader's held position was trimmed"
    PASSED_OVER = "reader passed over an entry"
    SHOWN = "reader showed an entry of a transaction"


class Ways(ABC):
    """A client that can transact and read."""

    process: Process
    rng: Random
    ordering: Ordering
    shared: Any
    """What all clients of a run have in common; each ordering has its own kind."""

    @property
    @abstractmethod
    def now(self) -> float: ...

    @property
    def history(self) -> History:
        history: History = self.shared.history
        return history

    @property
    def stopping(self) -> bool:
        """Nothing new is begun."""
        return bool(self.shared.stopping)

    @property
    def known_tail(self) -> int:
        """The greatest position that any client was told of."""
        return int(self.shared.known_tail)

    def learn(self, glsn: int) -> None:
        self.shared.learn(glsn)

    @abstractmethod
    def request(self) -> int: ...

    @abstractmethod
    def send(self, address: str, message: Message) -> Any: ...

    def inquire(self, message: Message) -> None:
        """Send it to the metadata repository; the answer goes to `Inquiries`."""
        self.send(METADATA_REPOSITORY, message)

    def _timestamp(self) -> int:
        """The wall clock, in microseconds."""
        return max(0, int(self.process.clock() * 1_000_000))

    @abstractmethod
    def append(self, content: Content, deadline: float, done: Callable[[Outcome], None]) -> None:
        """Append a batch, somewhere."""

    @abstractmethod
    def subscribe(
        self,
        begin: int,
        end: int | None,
        deliver: Callable[[Chunk], None],
        on_end: Callable[[errors.VarlogError | None], None],
        *,
        verdicts: bool = False,
    ) -> Delivery:
        """Read in order; nothing is delivered before this returns."""

    @abstractmethod
    def leave(self, feed: Delivery) -> None:
        """Read it no further."""

    @abstractmethod
    def tail(self, deadline: float, done: Done) -> None:
        """A position that is written, with everything before it; at least what was acknowledged before."""

    def count(self, what: Transacted) -> None:
        self.process.world.count(what, self.process)


class Inquiries:
    """Questions to the metadata repository, each asked until it is answered."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self._waiting: dict[int, _Inquiry] = {}

    def ask(self, message: Message, deadline: float, done: Done) -> None:
        self._send(_Inquiry(message, deadline, done))

    def _send(self, inquiry: _Inquiry) -> None:
        if inquiry.is_over:
            return
        ways = self._ways
        if ways.now >= inquiry.deadline:
            self._end(inquiry, errors.DeadlineExceeded("the metadata repository did not answer"))
            return
        number = ways.request()
        inquiry.numbers.append(number)
        self._waiting[number] = inquiry
        ways.inquire(msgspec.structs.replace(inquiry.message, request=number))
        ways.process.at(ASK_AGAIN, self._send, inquiry)

    def on_answer(self, message: Message) -> None:
        """Anything that has a request's number. Who does not lead is not listened to."""
        inquiry = self._waiting.get(getattr(message, "request", 0))
        if inquiry is not None and getattr(message, "code", 0) != errors.NotLeader.code:
            self._end(inquiry, message)

    def _end(self, inquiry: _Inquiry, answer: Any) -> None:
        inquiry.is_over = True
        for number in inquiry.numbers:
            del self._waiting[number]
        inquiry.done(answer)


class _Inquiry:
    def __init__(self, message: Message, deadline: float, done: Done) -> None:
        self.message = message
        self.deadline = deadline
        self.done = done
        self.numbers: list[int] = []
        self.is_over = False


class Procedures:
    """Runs procedures in a client."""

    def __init__(self, ways: Ways, inquiries: Inquiries) -> None:
        self._ways = ways
        self._inquiries = inquiries

    def run(self, procedure: transacting.Procedure[Any], seconds: float, done: Done) -> None:
        """Run one; `done` is told what it returned, or raised."""
        self._go_on(procedure, self._ways.now + seconds, done, None)

    def _go_on(self, procedure: transacting.Procedure[Any], deadline: float, done: Done, came: Any) -> None:
        try:
            effect = procedure.send(came)
        except StopIteration as end:
            done(end.value)
            return
        except errors.VarlogError as error:
            done(error)
            return
        go_on = _Once(self._ways, partial(self._go_on, procedure, deadline, done))
        if self._ways.now >= deadline:
            go_on(errors.DeadlineExceeded("the time for it is over"))
            return
        match effect:
            case transacting.Ask(message):
                self._inquiries.ask(message, deadline, go_on)
            case transacting.Pronounce(verdict):
                self.pronounce(verdict, deadline, go_on)
            case transacting.Look():
                Looking(self._ways, effect, deadline, go_on).begin()
            case transacting.Peek():
                self._ways.tail(deadline, go_on)

    def pronounce(self, verdict: Verdict, deadline: float, done: Done) -> None:
        """Append a verdict; `done` is told where it is."""
        ways = self._ways
        operation = ways.history.invoke(
            ways.process.name,
            Kind.VERDICT,
            TOPIC,
            transaction=verdict.txid,
            is_commit=verdict.kind is VerdictKind.COMMIT,
        )

        def settled(outcome: Outcome) -> None:
            match outcome:
                case Committed(glsn):
                    ways.history.ok(operation, glsn=glsn)
                    ways.learn(glsn)
                    done(glsn)
                case Rejected(code):
                    ways.history.rejected(operation, errors.VarlogError.registry[code].__name__)
                    done(errors.VarlogError.of(code, "the verdict was not appended"))
                case _:
                    ways.history.unknown(operation, "Unknown")
                    done(errors.Unknown("whether the verdict was appended is not known"))

        ways.append(Tagged([encode_verdict(verdict)], int(batch.BatchFlag.CONTROL)), deadline, settled)


class _Once:
    """Hands over what came of an effect, the first time it is called; in an event of its own, so that nothing goes on
    in the middle of whatever brought it."""

    def __init__(self, ways: Ways, go_on: Done) -> None:
        self._ways = ways
        self._go_on: Done | None = go_on

    def __call__(self, came: Any) -> None:
        go_on, self._go_on = self._go_on, None
        if go_on is not None:
            self._ways.process.at(0.0, go_on, came)


class Looking:
    """A look for the first verdict on a transaction."""

    def __init__(self, ways: Ways, look: transacting.Look, deadline: float, done: Done) -> None:
        self._ways = ways
        self._look = look
        self._deadline = deadline
        self._done = done
        self._fates = Fates(look.after + 1)
        self._feed: Delivery | None = None
        self._is_over = False

    def begin(self) -> None:
        if self._look.upto is None:
            self._ways.tail(self._deadline, self._read_to)
        else:
            self._read_to(self._look.upto)

    def _read_to(self, upto: GLSN | errors.VarlogError) -> None:
        if isinstance(upto, errors.VarlogError):
            self._end(upto)
        elif upto <= self._look.after:
            self._end(None)
        else:
            self._ways.process.at(max(0.0, self._deadline - self._ways.now), self._expire)
            self._feed = self._ways.subscribe(
                self._look.after + 1, upto + 1, self._deliver, self._on_end, verdicts=True
            )

    def _deliver(self, chunk: Chunk) -> None:
        self._fates.on_chunk(chunk)
        if (fate := self._fates.fate(self._look.txid, self._look.after)) is not None:
            self._end(fate)

    def _on_end(self, error: errors.VarlogError | None) -> None:
        if isinstance(error, errors.Trimmed):
            self._ways.count(Transacted.ENDED_AND_TRIMMED)
        self._end(error)

    def _expire(self) -> None:
        self._end(errors.DeadlineExceeded("the log could not be looked through in time"))

    def _end(self, came: Any) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._feed is not None:
            self._ways.leave(self._feed)
        self._done(came)
