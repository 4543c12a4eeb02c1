"""Appends happen once, or not at all, as their clients were told; batches happen whole.

- No entry was ever seen that nobody appended. (Junk, in topics that a sequencer orders, is no entry,
  nor is a verdict on a transaction.)
- An entry was seen at one position at most, over acknowledgements, reads, deliveries and replicas. With the next two
  this is: acknowledged exactly once, unknown at most once.
- An append that was ever seen, by its acknowledgement or otherwise, is stored at the end, unless its position has been
  trimmed. (What one reader saw is not lost for the next, whatever the writer was told.)
- A rejected append was never seen.
- The entries of one append have consecutive GLSNs, in order, in one log stream, all or none.
"""

from __future__ import annotations

from varlog.sim.evidence import Evidence, is_entry
from varlog.sim.history import Kind, Operation, Outcome


def check(evidence: Evidence) -> list[str]:
    appended: dict[bytes, Operation] = {}
    violations = [
        f"the history is unusable: {payload[:40]!r} was appended by two operations"
        for append in evidence.history.of(Kind.APPEND)
        for payload in append.payloads
        if appended.setdefault(payload, append) is not append
    ]
    for payload, places in evidence.places.items():
        if payload not in appended and is_entry(payload):
            where = next(iter(places.values()))
            violations.append(f"{payload[:40]!r} was never appended, but seen by {where}")
        if len(places) > 1:
            seen = ", ".join(f"GLSN {glsn} of topic {topic} by {where}" for (topic, glsn), where in places.items())
            violations.append(f"{payload[:40]!r} is in the log more than once: {seen}")
    for append in evidence.history.of(Kind.APPEND):
        violations.extend(_check_append(evidence, append))
    return violations


def _check_append(evidence: Evidence, append: Operation) -> list[str]:
    first = evidence.append_position(append)
    if first is None:
        return []
    if append.outcome is Outcome.REJECTED:
        return [f"{append} was rejected, but is at GLSN {first}"]
    violations = []
    trim = evidence.trim(append.topic)
    lsids = {append.lsid} if append.lsid else set()
    for i, payload in enumerate(append.payloads):
        glsn = first + i
        seen = evidence.places.get(payload, {})
        wrong = [place for place in seen if place != (append.topic, glsn)]
        if wrong:
            violations.append(f"{append} is not in one piece: entry {i} belongs at {glsn} but was seen at {wrong}")
        stored = evidence.stored.get((append.topic, glsn))
        if stored is not None and stored.payload == payload:
            lsids.add(stored.lsid)
        elif glsn > trim or glsn < 1:
            there = "nothing" if stored is None else repr(stored.payload[:40])
            violations.append(f"{append}: entry {i} is lost: GLSN {glsn} holds {there}")
    if len(lsids) > 1:
        violations.append(f"{append} is spread over the log streams {sorted(lsids)}")
    return violations
