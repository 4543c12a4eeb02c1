"""A later attempt of a name ends the earlier ones, and a number is committed once.

- When somebody has been told that an attempt of a name is begun, the fate of every earlier one is in the log: a COMMIT
  of an earlier one lies before everything of the later one, and nobody began to append it after that was told.
- Among the transactions of a name that are committed each number comes once, and numbers grow along the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

from varlog.sim.evidence import Evidence
from varlog.sim.ledger import Transaction


def check(evidence: Evidence) -> list[str]:
    violations = []
    for attempts in evidence.ledger.by_name.values():
        for earlier, later in combinations(attempts, 2):
            violations.extend(_check_fenced(earlier, later))
        violations.extend(_check_numbers(attempts))
    return violations


def _check_fenced(earlier: Transaction, later: Transaction) -> list[str]:
    fate = earlier.fate
    if fate is None or not earlier.is_committed or not earlier.is_known:
        return []
    violations = []
    first = min((entry.glsn for entry in later.entries), default=fate.glsn)
    if first < fate.glsn:
        violations.append(f"{earlier} committed at {fate.glsn}, after {later} had written at {first}")
    begun = min(begin.completed for begin in later.begins)
    said = next((op for op in earlier.spoken if op.glsn == fate.glsn), None)
    if said is not None and said.invoked > begun:
        violations.append(f"{earlier} was committed by {said}, after {later} was begun at {begun:.6f}")
    return violations


def _check_numbers(attempts: Sequence[Transaction]) -> list[str]:
    committed = [(one.fate.glsn, one) for one in attempts if one.fate is not None and one.is_committed]
    numbered = sorted((glsn, one) for glsn, one in committed if one.number >= 0 and one.is_known)
    return [
        f"{before} committed at {low}, and then {after} at {high}"
        for (low, before), (high, after) in pairwise(numbered)
        if after.number <= before.number
    ]
