"""GLSNs are dense and unique (O2).

For every topic, over the committed content of all its replicas at the end:

- every GLSN above the trim point up to the high watermark is held by some replica;
- no replica holds a GLSN above the high watermark, nor below the topic's first;
- a GLSN belongs to one entry, that is one (LSID, LLSN), and an entry has one GLSN.
"""

from __future__ import annotations

from varlog.sim.evidence import Evidence


def check(evidence: Evidence) -> list[str]:
    violations = []
    entry_of: dict[tuple[int, int], tuple[int, int]] = {}
    glsn_of: dict[tuple[int, int], int] = {}
    for replica in evidence.replicas:
        for llsn, glsn, _, _ in replica.entries():
            entry = (replica.lsid, llsn)
            where = f"topic {replica.topic}, on {replica.node}"
            if (other := entry_of.setdefault((replica.topic, glsn), entry)) != entry:
                violations.append(f"{where}: GLSN {glsn} is (LSID, LLSN) {entry} and {other}")
            if (known := glsn_of.setdefault(entry, glsn)) != glsn:
                violations.append(f"{where}: (LSID, LLSN) {entry} has the GLSNs {known} and {glsn}")
    for topic, state in evidence.topics.items():
        missing = [glsn for glsn in range(state.trim + 1, state.hwm + 1) if (topic, glsn) not in entry_of]
        if missing:
            violations.append(f"topic {topic}: no replica holds {len(missing)} GLSNs up to {state.hwm}: {missing[:10]}")
    for topic, glsn in sorted(entry_of):
        known_topic = evidence.topics.get(topic)
        if known_topic is None or not known_topic.first <= glsn <= known_topic.hwm:
            violations.append(f"topic {topic}: GLSN {glsn} is committed beyond what metadata knows")
    return violations
