"""Committed prefixes are equal on every replica.

For every log stream:

- what a replica holds as committed is contiguous in LLSN and ends at its committed end, or before it if the replica is
  damaged and says so;
- no replica has committed beyond what the metadata repository decided;
- where two replicas hold the same LLSN, they hold it with the same GLSN, epoch and content.

A replica may be behind (a shorter prefix) and may have trimmed more or less than another.
"""

from __future__ import annotations

from varlog.sim.evidence import Evidence, ReplicaDump


def check(evidence: Evidence) -> list[str]:
    violations = []
    known: dict[tuple[int, int], tuple[tuple[int, int, bytes], str]] = {}
    for replica in evidence.replicas:
        violations.extend(_check_alone(evidence, replica))
        for llsn, glsn, epoch, payload in replica.entries():
            held = (glsn, epoch, payload)
            other, node = known.setdefault((replica.lsid, llsn), (held, replica.node))
            if other != held:
                violations.append(
                    f"LSID {replica.lsid}, LLSN {llsn}: {_say(other)} on {node}, {_say(held)} on {replica.node}"
                )
    return violations


def _check_alone(evidence: Evidence, replica: ReplicaDump) -> list[str]:
    violations = []
    who = f"LSID {replica.lsid} on {replica.node}"
    expected = None
    for llsn, _, _, payloads in replica.batches:
        if expected is not None and llsn != expected:
            violations.append(f"{who}: LLSN {llsn} follows, {expected} was expected")
        expected = llsn + len(payloads)
    if expected is not None and expected != replica.committed_end and not replica.damaged:
        violations.append(f"{who}: holds entries up to {expected}, but its committed end is {replica.committed_end}")
    topic = evidence.topics.get(replica.topic)
    decided = None if topic is None else topic.ends.get(replica.lsid)
    if decided is None or replica.committed_end > decided:
        violations.append(f"{who}: committed up to {replica.committed_end}, but the metadata says {decided}")
    return violations


def _say(held: tuple[int, int, bytes]) -> str:
    return f"GLSN {held[0]} epoch {held[1]} {held[2][:40]!r}"
