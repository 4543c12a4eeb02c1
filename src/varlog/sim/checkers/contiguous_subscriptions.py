"""Subscriptions and scans deliver without gap or repeat (L6, rule 11).

The deliveries of each, in the order they were made, begin with the position asked for, and each continues where the one
before ended. What is passed over by rule counts as delivered. A scan that succeeded delivered exactly up to its end.
"""

from __future__ import annotations

from varlog.sim.evidence import Evidence
from varlog.sim.history import Kind, Outcome


def check(evidence: Evidence) -> list[str]:
    violations = []
    streams = evidence.history.of(Kind.SUBSCRIBE, Kind.SCAN)
    expected = {stream.id: stream.position for stream in streams}
    names = {stream.id: stream for stream in streams}
    for delivery in evidence.history.of(Kind.DELIVERY, Kind.PASS):
        stream = names.get(delivery.parent)
        if stream is None:
            violations.append(f"{delivery} belongs to no subscription")
            continue
        if delivery.glsn != expected[stream.id]:
            what = "skipped" if delivery.glsn > expected[stream.id] else "repeated"
            violations.append(f"{stream} {what}: {expected[stream.id]} was next, {delivery.glsn} was delivered")
        is_pass = delivery.kind is Kind.PASS
        expected[stream.id] = delivery.end if is_pass else delivery.glsn + len(delivery.payloads)
    for stream in streams:
        done = stream.kind is Kind.SCAN and stream.outcome is Outcome.OK
        if done and expected[stream.id] != max(stream.end, stream.position):
            violations.append(f"{stream} ended at {expected[stream.id]}, not at {stream.end}")
    return violations
