"""The properties a run must have, each a file with `check(evidence)`, which returns what is violated in words.

A checker knows nothing about how the log works inside: it sees what clients were told, what replicas hold at the end,
and what metadata says. `check_all` runs every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from varlog.sim.checkers import (
    agreement,
    atomic_visibility,
    contiguous_subscriptions,
    dense_unique,
    durable_on_all,
    equal_prefixes,
    exactly_once,
    fencing,
    liveness,
    no_dirty_read,
    no_lost_commit,
    one_content,
    peek_bounds,
    real_time,
    stable,
    trim,
)
from varlog.sim.evidence import Evidence

OF_TRANSACTIONS: Final = (atomic_visibility, no_dirty_read, no_lost_commit, fencing, stable)

CHECKERS: Final[Mapping[str, Callable[[Evidence], list[str]]]] = {
    module.__name__.rpartition(".")[2]: module.check
    for module in (
        dense_unique,
        agreement,
        real_time,
        exactly_once,
        one_content,
        durable_on_all,
        equal_prefixes,
        contiguous_subscriptions,
        peek_bounds,
        trim,
        liveness,
        *OF_TRANSACTIONS,
    )
}


def check_all(evidence: Evidence) -> list[tuple[str, str]]:
    """Every violation, with the name of the checker that found it."""
    return [(name, message) for name, check in CHECKERS.items() for message in check(evidence)]
