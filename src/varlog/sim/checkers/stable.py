"""Up to where the log is told to be stable, everything is decided.

Of every transaction that has an entry there, the verdict that is its fate was on its way into the log before that was
told.
"""

from __future__ import annotations

import math

from varlog.sim.evidence import Evidence
from varlog.sim.history import Kind, Outcome
from varlog.sim.ledger import Transaction


def check(evidence: Evidence) -> list[str]:
    told = [op for op in evidence.history.of(Kind.STABLE) if op.outcome is Outcome.OK]
    violations = []
    for transaction in evidence.ledger.transactions if told else ():
        first = min((entry.glsn for entry in transaction.entries), default=math.inf)
        decided = _decided(transaction)
        violations += [
            f"{op}, but {transaction} has written at {first}, and nothing decided it before {decided:.6f}"
            for op in told
            if first <= op.glsn and op.completed < decided
        ]
    return violations


def _decided(transaction: Transaction) -> float:
    """When somebody began to append its fate; as early as it may have been, where it is not known which one that is."""
    fate = transaction.fate
    exact = [op.invoked for op in transaction.spoken if fate is not None and op.glsn == fate.glsn]
    return min(exact or (op.invoked for op in transaction.spoken), default=math.inf)
