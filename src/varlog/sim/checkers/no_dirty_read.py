"""Nobody is shown what is not committed.

To a reader that shows only what is committed, an entry of a transaction is delivered only if

- the first verdict on the transaction in the order of the log is a COMMIT behind the entry that counts its part in;
- somebody had begun to append a COMMIT of it before the delivery;
- nobody was told that the transaction was aborted.
"""

from __future__ import annotations

import math

from varlog.errors import TransactionAborted
from varlog.sim.evidence import Evidence
from varlog.sim.history import Operation, Outcome
from varlog.sim.ledger import Ledger, Placed, Transaction


def check(evidence: Evidence) -> list[str]:
    ledger = evidence.ledger
    return [
        words
        for transaction in ledger.transactions
        for entry in transaction.entries
        for words in _check(ledger, transaction, entry)
    ]


def _check(ledger: Ledger, transaction: Transaction, entry: Placed) -> list[str]:
    delivery = ledger.shown.get(entry.glsn)
    if delivery is None:
        return []
    what = f"{delivery} showed {entry.payload[:40]!r} at {entry.glsn} of {transaction}"
    violations = []
    if transaction.is_known and not transaction.shows(entry):
        fate = transaction.fate
        says = "nothing" if fate is None else f"{fate.verdict.kind.name} at {fate.glsn}, parts {fate.verdict.parts}"
        violations.append(f"{what}, part {entry.part}, of which the log says: {says}")
    asked = min((op.invoked for op in transaction.spoken if op.is_commit), default=math.inf)
    if asked > delivery.completed:
        violations.append(f"{what}, before anybody had begun to commit it")
    if (told := told_aborted(transaction)) is not None:
        violations.append(f"{what}, which was aborted: {told}")
    return violations


def told_aborted(transaction: Transaction) -> Operation | None:
    """Who was told that it was."""
    for op in (*transaction.commits, *transaction.aborts):
        wanted = op in transaction.aborts and op.outcome is Outcome.OK
        if wanted or op.error == TransactionAborted.__name__:
            return op
    return None
