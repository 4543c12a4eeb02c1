"""Positions follow real time (L1).

If anything told a client that a position is taken (an acknowledged append, a read, a delivery, a tail) before an
append began, the append's GLSN is greater. This holds for every append that has a position, also where its own client
was never told so.
"""

from __future__ import annotations

from varlog.sim.evidence import Evidence, KnownBefore
from varlog.sim.history import Kind


def check(evidence: Evidence) -> list[str]:
    violations = []
    known: dict[int, KnownBefore] = {}
    for append in evidence.history.of(Kind.APPEND):
        glsn = evidence.append_position(append)
        if glsn is None:
            continue
        if append.topic not in known:
            known[append.topic] = KnownBefore(evidence.history, append.topic)
        before = known[append.topic].at(append.invoked)
        if before is not None and before[0] >= glsn:
            violations.append(f"{append} got GLSN {glsn}, but {before[0]} was taken before it began: {before[1]}")
    return violations
