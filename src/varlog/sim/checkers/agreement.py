"""Everyone agrees on every position (L1).

For every topic and GLSN, every acknowledgement, read, delivery of a subscription or scan, and replica that says which
entry is there names the same payload.
"""

from __future__ import annotations

from varlog.sim.evidence import Evidence


def check(evidence: Evidence) -> list[str]:
    violations = []
    first: dict[tuple[int, int], tuple[bytes, object]] = {}
    for topic, glsn, payload, where in evidence.sightings:
        known, known_where = first.setdefault((topic, glsn), (payload, where))
        if known != payload:
            violations.append(
                f"topic {topic}, GLSN {glsn}: {known[:40]!r} says {known_where}, {payload[:40]!r} says {where}"
            )
    return violations
