"""A healed cluster works again.

After the last fault ended, and a grace time:

- every writer that went on had a new append acknowledged, and where there are transactions one was committed;
- every operation begun after the faults ended, and a grace time before the run did, was answered;
- once it has settled, nothing that was asked for took until its deadline (an append may: what the log has forgotten of
  its writer is unknown, and told so);
- every subscription that has not ended has delivered the log up to the high watermark;
- at the end everything is in order: log streams run, on all their replicas, and these know all that was committed.
"""

from __future__ import annotations

from varlog.errors import DeadlineExceeded
from varlog.sim.evidence import Evidence
from varlog.sim.history import Kind, Outcome


def check(evidence: Evidence) -> list[str]:
    phase = evidence.liveness
    if phase is None:
        return []
    violations = []
    after = [op for op in evidence.history.operations if op.invoked >= phase.healed]
    commits = [op for op in after if op.kind is Kind.COMMIT]
    if phase.must_commit and not any(op.outcome is Outcome.OK for op in commits):
        violations.append(f"nobody committed any of {len(commits)} transactions after {phase.healed:.3f}")
    for writer in phase.writers:
        mine = [op for op in after if op.client == writer and op.kind is Kind.APPEND]
        if not any(op.outcome is Outcome.OK for op in mine):
            violations.append(f"{writer} got none of {len(mine)} appends acknowledged after {phase.healed:.3f}")
    asked = [op for op in after if op.kind is not Kind.SUBSCRIBE and op.invoked < phase.ended - phase.grace]
    violations.extend(f"{op} was never answered" for op in asked if op.outcome is Outcome.PENDING)
    late = [op for op in after if op.invoked >= phase.settled and op.error == DeadlineExceeded.__name__]
    is_append = (Kind.APPEND, Kind.VERDICT)
    violations.extend(f"{op} took until its deadline" for op in late if op.kind not in is_append)
    violations.extend(phase.unsettled)
    for subscription in evidence.history.of(Kind.SUBSCRIBE):
        last = evidence.reached[subscription.id] - 1
        tail = evidence.hwm(subscription.topic)
        if subscription.outcome is Outcome.PENDING and last < tail:
            violations.append(f"{subscription} stands at {last}, the log ends at {tail}")
    return violations
