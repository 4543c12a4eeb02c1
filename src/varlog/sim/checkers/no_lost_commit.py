"""What was told to be committed is, and stays so; what was told to be aborted never is.

- A commit that succeeded was told the position of its COMMIT: the first verdict on the transaction in the log is that
  one, with the parts that were asked for, and as many entries of each as it says.
- No reader passed over an entry of such a transaction, or of any other whose first verdict is a COMMIT that counts it
  in.
- Where a commit or an abort was told that the transaction was aborted, the first verdict is no COMMIT.
- Who was told that a number had been committed already was told the truth: there is a COMMIT of that name with that
  number, or a greater one, at the position that was named.
"""

from __future__ import annotations

from collections import Counter

from varlog.errors import AlreadyCommitted
from varlog.sim.checkers.no_dirty_read import told_aborted
from varlog.sim.evidence import Evidence
from varlog.sim.history import Kind, Operation, Outcome
from varlog.sim.ledger import Ledger, Placed, Transaction


def check(evidence: Evidence) -> list[str]:
    ledger = evidence.ledger
    violations = []
    for transaction in ledger.transactions:
        violations.extend(_check_passed_over(ledger, transaction))
        if transaction.is_known:
            violations.extend(_check_told(transaction))
    refused = [op for op in evidence.history.of(Kind.BEGIN) if op.error == AlreadyCommitted.__name__]
    return violations + [
        f"{begin} was told that {begin.name!r} number {begin.number} had been committed at {begin.glsn}"
        for begin in refused
        if not _is_committed(evidence, begin)
    ]


def _check_told(transaction: Transaction) -> list[str]:
    violations = []
    fate = transaction.fate
    for commit in transaction.commits:
        if commit.outcome is not Outcome.OK:
            continue
        if fate is None or not transaction.is_committed or fate.glsn != commit.glsn:
            says = "nothing" if fate is None else f"{fate.verdict.kind.name} at {fate.glsn}"
            violations.append(f"{commit} was told that {transaction} is committed; the log says {says}")
        elif fate.verdict.parts != tuple(sorted(part for part in commit.parts if part[1])):
            violations.append(f"{commit} counted {commit.parts}; the log has {fate.verdict.parts}")
    if transaction.is_committed and (told := told_aborted(transaction)) is not None:
        violations.append(f"{told} was told that {transaction} is aborted; the log says COMMIT")
    if fate is not None and transaction.is_committed:
        held = Counter(entry.part for entry in transaction.entries if transaction.shows(entry))
        for part, entries in fate.verdict.parts:
            if held[part] != entries:
                violations.append(f"{transaction}: part {part} has {held[part]} entries, its COMMIT says {entries}")
    return violations


def _check_passed_over(ledger: Ledger, transaction: Transaction) -> list[str]:
    told = next((op for op in transaction.commits if op.outcome is Outcome.OK), None)
    counted = set() if told is None else {part for part, _ in told.parts}
    return [
        f"{ledger.hidden[entry.glsn]} passed over {entry.payload[:40]!r} at {entry.glsn} of {transaction}: {told}"
        for entry in transaction.entries
        if entry.glsn in ledger.hidden
        and (entry.part in counted or (transaction.is_known and transaction.shows(entry)))
    ]


def _is_shown(transaction: Transaction, entry: Placed) -> bool:
    return transaction.is_known and transaction.shows(entry)


def _is_committed(evidence: Evidence, begin: Operation) -> bool:
    """Whether what a replay was told is so, as far as anybody has seen."""
    return begin.glsn not in evidence.ledger.seen or any(
        other.is_committed and other.number >= begin.number and other.fate is not None and other.fate.glsn == begin.glsn
        for other in evidence.ledger.by_name.get(begin.name, ())
    )
