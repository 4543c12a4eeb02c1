"""What became of every transaction of a run: by what its clients were told, what readers saw, and what the log says.

A ledger is made of the evidence for the checkers that judge transactions. It works out the fate of each by the rule
alone, in the plainest way there is: the first verdict in the order of the log, and if that is a COMMIT, what it counts
in up to the position that its writer had looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from varlog import batch
from varlog.batch.transactions import Verdict, VerdictKind, decode_verdict
from varlog.sim.history import History, Kind, Operation, Outcome


class Spoken(NamedTuple):
    """A verdict on a transaction, as the log has it."""

    glsn: int
    verdict: Verdict


def spoken_in(record: batch.RecordBatch, glsn: int) -> list[Spoken]:
    """The verdict that a batch holds, if it holds one."""
    if not record.flags & batch.BatchFlag.CONTROL:
        return []
    return [Spoken(glsn, decode_verdict(record[0]))]


class Placed(NamedTuple):
    """An entry of a transaction that is in the log."""

    glsn: int
    part: int
    payload: bytes
    append: Operation


@dataclass
class Transaction:
    """One that somebody was told to have begun."""

    txid: int
    name: str
    number: int
    after: int
    begins: list[Operation] = field(default_factory=list)
    """That were answered with it: by who began it first, and by those who joined."""
    commits: list[Operation] = field(default_factory=list)
    aborts: list[Operation] = field(default_factory=list)
    spoken: list[Operation] = field(default_factory=list)
    """Verdicts that were appended."""
    entries: list[Placed] = field(default_factory=list)
    fate: Spoken | None = None
    is_known: bool = True
    """Whether somebody has seen everything up to the fate, so that there is no earlier one that was trimmed unseen."""

    def __str__(self) -> str:
        number = f" number {self.number}" if self.number >= 0 else ""
        return f"transaction {self.txid} ({self.name!r}{number}, after {self.after})"

    @property
    def is_committed(self) -> bool:
        return self.fate is not None and self.fate.verdict.kind is VerdictKind.COMMIT

    def shows(self, entry: Placed) -> bool:
        """Whether a read-committed reader has to show it."""
        fate = self.fate
        return (
            fate is not None
            and self.is_committed
            and entry.glsn <= fate.verdict.checked
            and any(part == entry.part for part, _ in fate.verdict.parts)
        )


class Ledger:
    """See the module's text."""

    def __init__(
        self,
        history: History,
        append_position: Callable[[Operation], int | None],
        verdicts: Sequence[Spoken],
        seen: Set[int],
    ) -> None:
        self._history = history
        self._append_position = append_position
        self._verdicts = verdicts
        self.seen = seen
        """Positions of which somebody has seen what they hold."""

    @cached_property
    def transactions(self) -> Sequence[Transaction]:
        """In the order in which they were begun."""
        found: dict[int, Transaction] = {}
        for op in self._history.of(Kind.BEGIN):
            if op.outcome is Outcome.OK:
                made = Transaction(op.transaction, op.name, op.number, op.glsn)
                found.setdefault(op.transaction, made).begins.append(op)
        for op in self._history.of(Kind.COMMIT, Kind.ABORT, Kind.VERDICT, Kind.APPEND):
            known = found.get(op.transaction)
            if known is None:
                continue
            if op.kind is Kind.APPEND:
                known.entries += self._placed(op)
            else:
                {Kind.COMMIT: known.commits, Kind.ABORT: known.aborts, Kind.VERDICT: known.spoken}[op.kind].append(op)
        for known in found.values():
            known.fate = self._fates.get((known.txid, known.after))
            end = max(self.seen, default=0) + 1 if known.fate is None else known.fate.glsn
            known.is_known = all(glsn in self.seen for glsn in range(known.after + 1, end))
        return [found[txid] for txid in sorted(found)]

    @cached_property
    def _fates(self) -> Mapping[tuple[int, int], Spoken]:
        """By (txid, after), the first verdict."""
        found: dict[tuple[int, int], Spoken] = {}
        for spoken in sorted(self._verdicts, key=lambda one: one.glsn):
            if spoken.glsn > spoken.verdict.after:
                found.setdefault((spoken.verdict.txid, spoken.verdict.after), spoken)
        return found

    def _placed(self, append: Operation) -> list[Placed]:
        first = self._append_position(append)
        if first is None:
            return []
        return [Placed(first + i, append.part, payload, append) for i, payload in enumerate(append.payloads)]

    @cached_property
    def _readers(self) -> Mapping[int, Operation]:
        """Those that are to show only what is committed."""
        streams = self._history.of(Kind.SCAN, Kind.SUBSCRIBE)
        return {op.id: op for op in streams if not op.uncommitted}

    @cached_property
    def shown(self) -> Mapping[int, Operation]:
        """By position, the delivery that first showed it to a read-committed reader."""
        found: dict[int, Operation] = {}
        for op in self._history.of(Kind.DELIVERY):
            if op.parent in self._readers:
                for i in range(len(op.payloads)):
                    found.setdefault(op.glsn + i, op)
        return found

    @cached_property
    def hidden(self) -> Mapping[int, Operation]:
        """By position, who first passed over it."""
        found: dict[int, Operation] = {}
        for op in self._history.of(Kind.PASS):
            if op.parent in self._readers:
                for glsn in range(op.glsn, op.end):
                    found.setdefault(glsn, op)
        return found

    @cached_property
    def by_name(self) -> Mapping[str, Sequence[Transaction]]:
        """In the order in which they were begun."""
        found: defaultdict[str, list[Transaction]] = defaultdict(list)
        for transaction in self.transactions:
            found[transaction.name].append(transaction)
        return found
