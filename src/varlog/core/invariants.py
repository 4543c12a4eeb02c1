"""What must always hold, numbered, and asserted in production.

`require` is called through this module (`invariants.require(...)`), so that the simulator's tests can switch the inline
assertions off and show that its checkers alone would have found a broken rule.
"""

from __future__ import annotations

from enum import IntEnum

from varlog.errors import ConsistencyViolation


class Invariant(IntEnum):
    """The invariants of the commit ordering."""

    GLSN_DENSE = 1
    """A topic's GLSNs have no holes and no duplicates: a cut begins where the cut before it ended."""
    COMMITTED_IS_DURABLE = 2
    """A cut commits only what every replica of the epoch's set has reported durable."""
    ONE_CONTENT = 3
    """(LSID, epoch, LLSN) names one content."""
    EQUAL_PREFIXES = 4
    """Committed prefixes are equal on every replica: commits are applied in LLSN order, without gaps."""
    HWM_MONOTONE = 5
    """A high watermark never goes back."""
    NOTHING_AFTER_SEAL = 6
    """No cut contains an epoch after its seal; nothing is committed beyond the seal point."""
    NEVER_LOST = 7
    """A committed entry is never dropped by a seal."""
    VERSIONS_CONTIGUOUS = 8
    """Metadata versions are applied one after another."""
    BATCH_BOUNDARY = 9
    """Reports, cuts, seals and truncations fall on batch boundaries."""
    EPOCH_MONOTONE = 10
    """A log stream's epoch only grows, and its parity says whether it is sealed or running."""
    STATE_TABLE = 11
    """A replica changes state only along the table of `states`."""


def require(invariant: Invariant, holds: bool, detail: str) -> None:
    """Stop with a ConsistencyViolation naming the invariant if it does not hold."""
    if not holds:
        raise ConsistencyViolation(f"invariant {invariant.value} ({invariant.name}) is violated: {detail}")
