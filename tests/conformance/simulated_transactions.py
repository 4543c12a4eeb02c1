"""Simulated logs with transactions for the conformance suite: the client's procedures in a simulated process.

A call begins an operation in that process and lets the world run until it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeVar

from tests.conformance.rigs import Found
from varlog import batch, errors
from varlog.batch.transactions import MARK_TAG, Mark, encode_mark
from varlog.core import transacting
from varlog.core.appending import Committed
from varlog.core.content import Tagged
from varlog.core.fates import Fate
from varlog.core.messages import OpenTransaction
from varlog.core.transacting import Part
from varlog.sim.history import Kind
from varlog.sim.transactions.chains import TransactingChainClient
from varlog.sim.transactions.clients import TransactingClient
from varlog.sim.transactions.reading import CommittedReading
from varlog.sim.transactions.ways import TOPIC, Inquiries, Procedures, Ways

SECONDS = 30.0
EXPIRY = 60_000
ALL = 1000
T = TypeVar("T")
Until = Callable[[Callable[[], Any]], Any]
"""Lets the world run until there is something."""
MakeClient = Callable[[Callable[[Ways, Inquiries], "Caller"]], TransactingClient | TransactingChainClient]


class Caller:
    """A client that does what the suite asks for."""

    reading: CommittedReading | None = None

    def __init__(self, ways: Ways, inquiries: Inquiries) -> None:
        self.ways = ways
        self.procedures = Procedures(ways, inquiries)

    def start(self) -> None:
        """Nothing is done by itself."""

    def tick(self) -> None:
        if self.reading is not None:
            self.reading.tick()

    def killed(self) -> None:
        """Nobody kills it."""


class Transacting:
    """Transactions and reads of one log, through one client."""

    def __init__(self, make: MakeClient, until: Until) -> None:
        callers: list[Caller] = []

        def make_caller(ways: Ways, inquiries: Inquiries) -> Caller:
            callers.append(Caller(ways, inquiries))
            return callers[-1]

        client = make(make_caller)
        client.start()
        until(lambda: True if client.routing.version >= 0 else None)
        self._until = until
        self._caller = callers[-1]

    def run(self, procedure: Generator[Any, Any, T]) -> T:
        came: list[Any] = []
        self._caller.procedures.run(procedure, SECONDS, came.append)
        self._until(lambda: came or None)
        if isinstance(came[0], errors.VarlogError):
            raise came[0]
        result: T = came[0]
        return result

    def append(self, content: Tagged) -> Committed:
        came: list[Any] = []
        self._caller.ways.append(content, self._caller.ways.now + SECONDS, came.append)
        self._until(lambda: came or None)
        assert isinstance(came[0], Committed), f"an append failed on a good network: {came[0]}"
        return came[0]

    def begin(self, name: str, number: int | None) -> SimulatedTransaction:
        ways = self._caller.ways
        token = f"{ways.rng.getrandbits(64):x}"
        procedure = transacting.begin(TOPIC, ways.ordering, name, token, -1 if number is None else number, EXPIRY)
        return SimulatedTransaction(self, self.run(procedure), ways.rng.getrandbits(63) + 1)

    def committed(self, begin: int, end: int) -> list[Found]:
        caller, history = self._caller, self._caller.ways.history
        operation = history.invoke(caller.ways.process.name, Kind.SCAN, TOPIC, position=begin, end=end)
        ended: list[Any] = []
        on_end = partial(ended.append)
        caller.reading = CommittedReading(
            caller.ways, caller.procedures, operation, end, ALL, on_end, lambda _spoken: None
        )
        self._until(lambda: ended or None)
        caller.reading = None
        assert ended == [None]
        shown = [one for one in history.operations if one.kind is Kind.DELIVERY and one.parent == operation.id]
        return [found for one in shown for found in enumerate(one.payloads, one.glsn)]


class SimulatedTransaction:
    """One writer's share of a transaction."""

    def __init__(self, transacting_: Transacting, one: OpenTransaction, part: int) -> None:
        self._transacting = transacting_
        self._one = one
        self._part = Part(part, 0, 0)

    def append(self, *entries: bytes) -> int:
        mark = Mark(self._one.txid, self._one.after, self._part.part, self._one.expiry)
        content = Tagged(list(entries), int(batch.BatchFlag.TRANSACTION), {MARK_TAG: encode_mark(mark)})
        appended = self._transacting.append(content)
        self._part = Part(self._part.part, self._part.entries + appended.count, appended.glsn + appended.count - 1)
        return appended.glsn

    def commit(self) -> int:
        fate: Fate = self._transacting.run(transacting.commit(self._one, [self._part]))
        return fate.glsn

    def abort(self) -> None:
        self._transacting.run(transacting.abort(TOPIC, self._one, ""))
