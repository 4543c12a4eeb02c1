"""A tail is neither too small nor too great.

- It is at least every position any client had been told of before it began: acknowledged, read, delivered, or told as a
  tail (so tails are monotone in real time).
- It is at most the number of entries, and of verdicts on transactions, whose append had begun before it ended, leaving
  out those that never happened, and counted from the log's first position on: positions are dense, so a greater one
  would be taken by nobody.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from varlog.sim.evidence import Evidence, KnownBefore
from varlog.sim.history import Kind, Outcome


def check(evidence: Evidence) -> list[str]:
    violations = []
    for topic in sorted({op.topic for op in evidence.history.of(Kind.TAIL)}):
        known = KnownBefore(evidence.history, topic)
        appends = [
            op
            for op in evidence.history.of(Kind.APPEND, Kind.VERDICT)
            if op.topic == topic and op.outcome is not Outcome.REJECTED
        ]
        appends.sort(key=lambda op: op.invoked)
        begun = [op.invoked for op in appends]
        state = evidence.topics.get(topic)
        before_first = 0 if state is None else state.first - 1
        entries = [*accumulate((len(op.payloads) or 1 for op in appends), initial=before_first)]
        for tail in evidence.history.of(Kind.TAIL):
            if tail.topic != topic or tail.outcome is not Outcome.OK:
                continue
            before = known.at(tail.invoked)
            if before is not None and tail.glsn < before[0]:
                violations.append(f"{tail} is below {before[0]}, known before it began: {before[1]}")
            possible = entries[bisect_left(begun, tail.completed)]
            if tail.glsn > possible:
                violations.append(f"{tail} is above {possible}, the last of those begun before it ended")
    return violations
