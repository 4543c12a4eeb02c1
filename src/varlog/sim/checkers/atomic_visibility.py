"""A transaction is visible as a whole, to everybody, or not at all.

Of the readers that show only what is committed:

- what one of them was shown nobody passed over, and the other way round;
- if any entry of a transaction was shown, then none of the parts that were counted in was passed over, and nothing was
  shown of the others;
- who asked for a commit of certain parts and was told that it happened sees just these.

It does not matter here what the log says of it.
"""

from __future__ import annotations

from varlog.sim.evidence import Evidence
from varlog.sim.history import Operation, Outcome
from varlog.sim.ledger import Ledger, Transaction


def check(evidence: Evidence) -> list[str]:
    ledger = evidence.ledger
    violations = [
        f"GLSN {glsn} was shown by {ledger.shown[glsn]}, and passed over by {ledger.hidden[glsn]}"
        for glsn in sorted(ledger.shown.keys() & ledger.hidden.keys())
    ]
    for transaction in ledger.transactions:
        violations.extend(_check(ledger, transaction))
    return violations


def _check(ledger: Ledger, transaction: Transaction) -> list[str]:
    shown: dict[int, Operation] = {}
    hidden: dict[int, Operation] = {}
    for entry in transaction.entries:
        if entry.glsn in ledger.shown:
            shown.setdefault(entry.part, ledger.shown[entry.glsn])
        if entry.glsn in ledger.hidden:
            hidden.setdefault(entry.part, ledger.hidden[entry.glsn])
    violations = [
        f"{transaction}: part {part} was shown by {shown[part]}, and passed over by {hidden[part]}"
        for part in sorted(shown.keys() & hidden.keys())
    ]
    counted = _counted(transaction)
    if counted is None or not shown:
        return violations
    violations += [
        f"{transaction}: part {part}, which was not counted in, was shown by {shown[part]}"
        for part in sorted(shown.keys() - counted)
    ]
    violations += [
        f"{transaction}: part {part} was passed over by {hidden[part]}, and others were shown: {sorted(shown)}"
        for part in sorted((hidden.keys() & counted) - shown.keys())
    ]
    return violations


def _counted(transaction: Transaction) -> set[int] | None:
    """The parts that its commit names; None if nobody knows."""
    for commit in transaction.commits:
        if commit.outcome is Outcome.OK:
            return {part for part, _ in commit.parts}
    if transaction.fate is not None and transaction.is_committed and transaction.is_known:
        return {part for part, _ in transaction.fate.verdict.parts}
    return None
