"""What clients asked for, what they were told, and when: the history that checkers judge.

A `History` is written by whatever drives clients, in the simulator or against real processes; it knows nothing about
either and takes its time from a function. Every operation is noted when it begins and again when it ends; one that
never ended stays `PENDING`, which for an append means the same as `UNKNOWN`.

Payloads identify entries: a driver never appends the same bytes in two operations. A retry belongs to the operation it
retries.

What always holds: the stamps of one history are strictly increasing in the order things were noted, also where the
clock stood still in between, so "ended before the other began" is a plain comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Final

import msgspec


class Kind(Enum):
    """What was asked for."""

    APPEND = "append"
    READ = "read"
    SCAN = "scan"
    SUBSCRIBE = "subscribe"
    DELIVERY = "delivery"
    TAIL = "tail"
    TRIM = "trim"
    PASS = "pass"
    BEGIN = "begin"
    COMMIT = "commit"
    ABORT = "abort"
    VERDICT = "verdict"
    STABLE = "stable"


OF_TRANSACTIONS: Final = (Kind.PASS, Kind.BEGIN, Kind.COMMIT, Kind.ABORT, Kind.VERDICT, Kind.STABLE)
"""What happens only where there are transactions."""


class Outcome(Enum):
    """How it ended, as far as the client was told."""

    PENDING = "pending"
    OK = "ok"
    REJECTED = "rejected"
    """An append that never happened and never will."""
    UNKNOWN = "unknown"
    """An append that may have happened, or may still."""
    ERROR = "error"
    """Anything else that gave no result; `error` names it."""


class Operation(msgspec.Struct, omit_defaults=True):
    """One operation. Which fields mean something depends on the kind:

    - append: `payloads`; when ok `glsn` of the first of them, `lsid`, `epoch`
    - read: `position` asked for; when ok `payloads` has the one entry
    - scan: `position` and `end`, half-open; its entries are deliveries
    - subscribe: `position` of the first entry wanted; its entries are deliveries; pending as long as it lives
    - delivery: `parent` is the scan or subscription, `glsn` of the first of `payloads`
    - tail: when ok `glsn` is the last position of the log, 0 if it is empty
    - trim: `position`, the last one to go

    And of transactions, `transaction` being the id:

    - append: `transaction` and `part` of an append within one
    - read, scan, subscribe: `uncommitted` if it is to show what is not committed
    - pass: as a delivery, but of positions from `glsn` to `end` that a reader passed over by rule
    - begin: `name`, `number`; when ok `transaction`, and `glsn` after which all of it lies
    - commit: `transaction`, `parts` that are counted in; when ok `glsn` of the verdict
    - abort: `transaction`
    - verdict: `transaction`, `is_commit`; an entry that ends it was appended, by anybody; when ok at `glsn`
    - stable: when ok everything up to `glsn` is decided
    """

    id: int
    client: str
    kind: Kind
    topic: int
    invoked: float
    completed: float = math.inf
    outcome: Outcome = Outcome.PENDING
    position: int = 0
    end: int = 0
    payloads: tuple[bytes, ...] = ()
    glsn: int = 0
    lsid: int = 0
    epoch: int = 0
    parent: int = 0
    error: str = ""
    """The name of the error's class."""
    first: int = 0
    """Where the log begins, as an error `Trimmed` told it."""
    transaction: int = 0
    name: str = ""
    number: int = -1
    part: int = 0
    parts: tuple[tuple[int, int], ...] = ()
    """(part, how many entries it has)."""
    is_commit: bool = False
    uncommitted: bool = False

    def __str__(self) -> str:
        times = f"{self.invoked:.6f}-{self.completed:.6f}"
        at = f" at {self.position}" if self.position else ""
        result = f" = {self.glsn}" if self.glsn else ""
        of = f" of transaction {self.transaction}" if self.transaction else ""
        return f"{self.kind.value} #{self.id} of {self.client}{of}{at} [{times}] {self.outcome.value}{result}"


class History:
    """The operations of one run, in the order they began."""

    def __init__(self, now: Callable[[], float], operations: Iterable[Operation] = ()) -> None:
        self.operations: list[Operation] = list(operations)
        self._now = now
        self._last_stamp = -math.inf

    def invoke(
        self,
        client: str,
        kind: Kind,
        topic: int,
        *,
        position: int = 0,
        end: int = 0,
        payloads: Sequence[bytes] = (),
        **of_transaction: Any,
    ) -> Operation:
        """An operation begins. Further fields are those that concern transactions."""
        operation = Operation(
            len(self.operations) + 1,
            client,
            kind,
            topic,
            self._stamp(),
            position=position,
            end=end,
            payloads=tuple(payloads),
            **of_transaction,
        )
        self.operations.append(operation)
        return operation

    def ok(
        self, operation: Operation, *, glsn: int = 0, payloads: Sequence[bytes] = (), lsid: int = 0, epoch: int = 0
    ) -> None:
        """It succeeded."""
        operation.glsn = glsn
        operation.lsid = lsid
        operation.epoch = epoch
        if payloads:
            operation.payloads = tuple(payloads)
        self._end(operation, Outcome.OK)

    def rejected(self, operation: Operation, error: str) -> None:
        """It never happened."""
        operation.error = error
        self._end(operation, Outcome.REJECTED)

    def unknown(self, operation: Operation, error: str) -> None:
        """It may have happened."""
        operation.error = error
        self._end(operation, Outcome.UNKNOWN)

    def failed(self, operation: Operation, error: str, *, first: int = 0) -> None:
        """It gave no result; for what changes nothing, or a subscription that ended."""
        operation.error = error
        operation.first = first
        self._end(operation, Outcome.ERROR)

    def deliver(self, parent: Operation, glsn: int, payloads: Sequence[bytes]) -> None:
        """A subscription or scan handed entries to its client."""
        stamp = self._stamp()
        self.operations.append(
            Operation(
                len(self.operations) + 1,
                parent.client,
                Kind.DELIVERY,
                parent.topic,
                stamp,
                stamp,
                Outcome.OK,
                payloads=tuple(payloads),
                glsn=glsn,
                parent=parent.id,
            )
        )

    def pass_over(self, parent: Operation, glsn: int, end: int) -> None:
        """A subscription or scan passed over positions, by rule."""
        stamp = self._stamp()
        self.operations.append(
            Operation(
                len(self.operations) + 1,
                parent.client,
                Kind.PASS,
                parent.topic,
                stamp,
                stamp,
                Outcome.OK,
                glsn=glsn,
                end=end,
                parent=parent.id,
            )
        )

    def of(self, *kinds: Kind) -> list[Operation]:
        """The operations of these kinds, in the order they began."""
        return [operation for operation in self.operations if operation.kind in kinds]

    def to_json_lines(self) -> bytes:
        """One line per operation."""
        return msgspec.json.Encoder().encode_lines(self.operations)

    @classmethod
    def from_json_lines(cls, data: bytes) -> History:
        """A finished history, as `to_json_lines` wrote it."""
        operations = msgspec.json.Decoder(Operation).decode_lines(data)
        return cls(lambda: math.inf, operations)

    def _end(self, operation: Operation, outcome: Outcome) -> None:
        if operation.outcome is not Outcome.PENDING:
            raise ValueError(f"{operation} has ended already")
        operation.outcome = outcome
        operation.completed = self._stamp()

    def _stamp(self) -> float:
        stamp = self._now()
        if stamp <= self._last_stamp:
            stamp = math.nextafter(self._last_stamp, math.inf)
        self._last_stamp = stamp
        return stamp
