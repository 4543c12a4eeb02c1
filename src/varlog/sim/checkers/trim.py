"""Trim takes what it was asked to take, and nothing else (L5, rule 14).

- `Trimmed` is answered only to one who asked for a position at or below a trim point that somebody had requested before
  the answer, and it names a beginning above the position and not above that trim point + 1.
- After a client's trim was acknowledged, no read, scan or subscription which that client began later returns anything
  at or below it.
- The trim point at the end is at least the greatest one acknowledged and at most the greatest one requested, and no
  replica's is beyond it.
- What a replica lacks below its committed end, while another replica has it, lies at or below its own trim point. (A
  damaged replica owes nothing.)
"""

from __future__ import annotations

from varlog.sim.evidence import Evidence
from varlog.sim.history import Kind, Operation, Outcome


def check(evidence: Evidence) -> list[str]:
    trims = evidence.history.of(Kind.TRIM)
    violations = []
    for op in evidence.history.operations:
        if op.error == "Trimmed":
            violations.extend(_check_refusal(op, trims, evidence))
    violations.extend(_check_own_reads(evidence, trims))
    violations.extend(_check_end(evidence, trims))
    return violations


def _check_refusal(op: Operation, trims: list[Operation], evidence: Evidence) -> list[str]:
    wanted = evidence.reached.get(op.id, op.position)
    requested = max((t.position for t in trims if t.topic == op.topic and t.invoked < op.completed), default=0)
    if wanted > requested:
        return [f"{op} was refused as trimmed at {wanted}, but nobody had asked to trim beyond {requested}"]
    if not wanted < op.first <= requested + 1:
        return [f"{op} was told that the log begins at {op.first}, asking for {wanted} with a trim to {requested}"]
    return []


def _check_own_reads(evidence: Evidence, trims: list[Operation]) -> list[str]:
    violations = []
    acknowledged = [trim for trim in trims if trim.outcome is Outcome.OK]
    begun = {op.id: op.invoked for op in evidence.history.operations}
    for read in evidence.history.of(Kind.READ, Kind.DELIVERY) if acknowledged else ():
        if read.outcome is not Outcome.OK:
            continue
        lowest = read.position if read.kind is Kind.READ else read.glsn
        invoked = begun.get(read.parent, read.invoked)
        for trim in acknowledged:
            same = trim.client == read.client and trim.topic == read.topic
            if same and trim.completed < invoked and lowest <= trim.position:
                violations.append(f"{read} returned {lowest} after {trim}")
    return violations


def _check_end(evidence: Evidence, trims: list[Operation]) -> list[str]:
    violations = []
    for topic, state in evidence.topics.items():
        mine = [trim for trim in trims if trim.topic == topic]
        requested = max((trim.position for trim in mine if trim.outcome is not Outcome.REJECTED), default=0)
        acknowledged = max((trim.position for trim in mine if trim.outcome is Outcome.OK), default=0)
        if not acknowledged <= state.trim <= requested:
            violations.append(
                f"topic {topic} is trimmed to {state.trim}; acknowledged was {acknowledged}, requested {requested}"
            )
    for replica in evidence.replicas:
        who = f"LSID {replica.lsid} on {replica.node}"
        if replica.trim > evidence.trim(replica.topic):
            violations.append(f"{who} is trimmed to {replica.trim}, its topic to {evidence.trim(replica.topic)}")
        if replica.damaged:
            continue
        held = {glsn for _, glsn, _, _ in replica.entries()}
        for (topic, glsn), position in evidence.stored.items():
            mine_too = topic == replica.topic and position.lsid == replica.lsid and glsn > replica.trim
            if mine_too and position.llsn < replica.committed_end and glsn not in held:
                violations.append(f"{who} is trimmed to {replica.trim}, but lacks GLSN {glsn}")
    return violations
