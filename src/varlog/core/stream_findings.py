"""What can be wrong with a log stream: it takes no appends, commits none, has too few replicas, or bad ones.

Why the high watermark of a topic does not move is told here too (`_stalled`): it is a log stream that has stored
something and cannot have it committed, because a commit needs all replicas of its set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from varlog import errors
from varlog.core.chain_findings import findings_of_chain
from varlog.core.findings import Look, Severity, finding
from varlog.core.messages import Finding, ReplicaInfo, StreamInfo
from varlog.core.steps import failure, name, nodes, seen_later
from varlog.core.watching import LATER_SECONDS
from varlog.core.world import Sight
from varlog.types import ReplicaState, StorageNodeID, StreamStatus

SEALED_TOO_LONG: Final = 2.0
"""A log stream is to go on within this time after a failure."""
STILL_TOO_LONG: Final = 1.0
"""What is stored is to be committed within this time."""
CREATING_TOO_LONG: Final = 10.0
STUCK_TOO_LONG: Final = 30.0
"""A copy is to get on within this time."""


def findings_of_streams(look: Look) -> Iterator[Finding]:
    for stream in look.world.metadata.streams:
        if stream.status is StreamStatus.CREATING:
            yield from _creating(look, stream)
        elif stream.status is StreamStatus.ABORTED:
            seconds, what = look.since(Sight.ABORTED, stream.lsid), "its making was given up"
            yield _note(look, stream, "stream-given-up", what, seconds)
        else:
            is_chain = stream.status is StreamStatus.CHAINED
            yield from () if is_chain else _later(look, stream)
            yield from findings_of_chain(look, stream) if is_chain else _status(look, stream)
            yield from _short(look, stream)
            yield from _replicas(look, stream)


def _note(look: Look, stream: StreamInfo, kind: str, what: str, seconds: float | None) -> Finding:
    return finding(kind, Severity.NOTE, name(stream), what, seconds=seconds, doing=look.doing(name(stream)))


def _creating(look: Look, stream: StreamInfo) -> Iterator[Finding]:
    seconds = look.since(Sight.CREATING, stream.lsid) or 0.0
    if seconds >= CREATING_TOO_LONG and stream.lsid not in look.world.making:
        yield _note(look, stream, "stream-creating", "its making was not finished", seconds)


def _topic(look: Look, stream: StreamInfo) -> str:
    topic = look.world.topics.get(stream.tpid)
    return topic.name if topic is not None else str(stream.tpid)


def _is_lost(stream: StreamInfo) -> bool:
    return stream.lost_end > stream.lost_begin


# Appends


def _status(look: Look, stream: StreamInfo) -> Iterator[Finding]:
    """Why a log stream takes no appends, or commits none."""
    if _is_lost(stream):
        yield _lost(look, stream)
    elif stream.is_held:
        others = stream.tpid in look.open_topics
        what = "takes no appends, because an operator has sealed it"
        yield finding(
            "stream-held",
            Severity.NOTE if others else Severity.URGENT,
            name(stream),
            what if others else f"{what}; topic {_topic(look, stream)!r} has no other one that does",
            seconds=look.since(Sight.SEALED, stream.lsid, stream.epoch),
            person=f"to let it run again: varlog stream unseal {stream.lsid}",
        )
    elif stream.status is StreamStatus.RUNNING:
        yield from _stalled(look, stream)
    else:
        yield _sealed(look, stream)


def _later(look: Look, stream: StreamInfo) -> Iterator[Finding]:
    """That a replica has seen what the metadata does not know of, so that nobody does anything (rule 5)."""
    later = look.world.later(stream)
    seconds = look.since(Sight.AHEAD, stream.lsid, max(later.values(), default=0)) or 0.0
    if seconds >= LATER_SECONDS:
        yield finding(
            "metadata-old",
            Severity.URGENT,
            name(stream),
            seen_later(later, stream),
            seconds=seconds,
            doing=look.doing(name(stream)),
            person="stop everything and rebuild the metadata, see varlog metadata rebuild --help",
        )


def _lost(look: Look, stream: StreamInfo) -> Finding:
    last, topic = stream.lost_end - 1, _topic(look, stream)
    what = f"what it had from GLSN {stream.lost_begin} to {last} was declared lost, and it stays sealed"
    person = f"once nobody needs what is left: varlog trim {last} --topic {topic}"
    severity = Severity.NOTE
    if stream.tpid not in look.open_topics:
        severity = Severity.URGENT
        what += f"; topic {topic!r} has no other one that takes appends"
        person = f"to append again: varlog stream add --topic {topic}; {person}"
    return finding("stream-lost", severity, name(stream), what, person=person)


def _sealed(look: Look, stream: StreamInfo) -> Finding:
    sight = Sight.SEALED if stream.status is StreamStatus.SEALED else Sight.UNSEALING
    seconds = look.since(sight, stream.lsid, stream.epoch) or 0.0
    what = f"is {stream.status.name} at GLSN {stream.last_glsn} and takes no appends"
    away = [snid for snid in stream.replicas if look.world.is_dead(snid)]
    known = look.world.replicas(stream.lsid)
    broken = [snid for snid in stream.replicas if snid in known and not known[snid].healthy]
    able, least = [snid for snid in stream.replicas if snid not in (*away, *broken)], look.world.least(stream)
    person = ""
    if len(able) < least:
        what += f"; it needs {least} replicas, and of its set {nodes(sorted(able))} can be used"
        person = f"start {nodes(sorted(away))} again" if away else f"look at the disks of {nodes(sorted(broken))}"
        whole = [snid for snid, replica in known.items() if replica.healthy and _is_complete(stream, snid, replica)]
        if not whole:
            person += f"; if the data there is gone for good: varlog stream declare-lost {stream.lsid}"
        else:
            what += f"; nothing is lost, {nodes(sorted(whole))} {'has' if len(whole) == 1 else 'have'} everything"
            if len(look.able) < least:
                person += ", or start another node and add it: varlog node add HOST:PORT"
    return finding(
        "stream-sealed",
        Severity.URGENT if seconds >= SEALED_TOO_LONG else Severity.DEGRADED,
        name(stream),
        what,
        seconds=seconds,
        doing=look.doing(name(stream)),
        person=person,
    )


def _stalled(look: Look, stream: StreamInfo) -> Iterator[Finding]:
    """Why the high watermark does not move, if there is something stored that it should move for."""
    known = look.world.replicas(stream.lsid)
    stored = max((known[snid].durable_end for snid in stream.replicas if snid in known), default=stream.llsn_end)
    seconds = look.since(Sight.STILL, stream.lsid, stream.llsn_end) or 0.0
    if stored <= stream.llsn_end or seconds < STILL_TOO_LONG:
        return
    holding = [why for snid in stream.replicas if (why := _holds_up(look, stream, snid, stored))]
    why = "; ".join(holding) or "all its replicas have stored them, and the metadata repository does not decide"
    yield finding(
        "stream-stalled",
        Severity.URGENT,
        name(stream),
        f"the high watermark of topic {_topic(look, stream)!r} does not move for {stored - stream.llsn_end} entries "
        f"that are stored here: {why}",
        seconds=seconds,
        doing=look.doing(name(stream)),
        person="look at the logs of these nodes" if holding else "look at the log of vmr, and at its disk",
    )


def _holds_up(look: Look, stream: StreamInfo, snid: StorageNodeID, stored: int) -> str:
    """Why a replica keeps what others have stored from being committed, in a clause; empty if it does not."""
    if look.world.is_dead(snid):
        return f"reports are missing from node {snid}, which does not answer"
    replica = look.world.replica(snid, stream.lsid)
    if replica is None:
        return f"node {snid} has no replica" if look.world.answers(snid) else f"nothing is known of node {snid} yet"
    if look.since(Sight.CUT_OFF, snid) is not None:
        return f"reports are missing from node {snid}, which does not reach the metadata repository"
    if not replica.healthy:
        return f"the replica on node {snid} {failure(replica)}"
    if replica.state is not ReplicaState.RUNNING or replica.epoch != stream.epoch:
        return f"the replica on node {snid} is {replica.state.name} in epoch {replica.epoch}"
    lacking = stored - replica.durable_end
    return f"node {snid} has not stored {lacking} of them" if lacking > 0 else ""


# Replicas


def _short(look: Look, stream: StreamInfo) -> Iterator[Finding]:
    """Fewer replicas than the topic wants."""
    have, wanted = len(stream.replicas), look.world.factor(stream)
    if have >= wanted or _is_lost(stream):
        return
    what = f"has {have} of {wanted} replicas, on {nodes(sorted(stream.replicas))}"
    if have == 1:
        what += ": there is no other copy of what is appended now"
    able = look.able
    person = ""
    if len(able) < wanted:
        what += f"; only {nodes(able)} could have one" if able else "; no node could have one"
        person = "bring back the nodes that are away, or start another one and add it: varlog node add HOST:PORT"
    yield finding(
        "stream-short",
        Severity.URGENT if have == 1 else Severity.DEGRADED,
        name(stream),
        what,
        seconds=look.since(Sight.SHORT, stream.lsid),
        doing=look.doing(name(stream)),
        person=person,
    )


def _replicas(look: Look, stream: StreamInfo) -> Iterator[Finding]:
    for snid, replica in look.world.replicas(stream.lsid).items():
        if not replica.healthy:
            yield _broken(look, stream, snid, replica)
        elif replica.source:
            yield _copying(look, stream, snid, replica)
        elif replica.needs_sync:
            what = f"node {snid} lacks what only a copy of another replica can bring"
            yield _note(look, stream, "replica-behind", what, None)
    for snid in stream.replicas:
        missing = look.since(Sight.MISSING, stream.lsid, snid)
        if missing is not None:
            what, doing = f"node {snid} of its set has no replica of it", look.doing(name(stream))
            yield finding("replica-missing", Severity.DEGRADED, name(stream), what, seconds=missing, doing=doing)
    for snid in dict.fromkeys((*stream.replicas, *look.world.replicas(stream.lsid), *look.world.nodes)):
        yield from _suspect(look, stream, snid)


def _broken(look: Look, stream: StreamInfo, snid: StorageNodeID, replica: ReplicaInfo) -> Finding:
    """A replica that promises nothing any more (M8, rule 15)."""
    kind, person = "replica-failed", f"look at the disk of {replica.volume} on node {snid}"
    if replica.fault == errors.Corrupt.code:
        kind, person = "replica-corrupt", ""
    elif replica.fault == errors.DiskFull.code:
        person = f"free space in {replica.volume}, and restart node {snid}"
    others = [
        other
        for other, found in look.world.replicas(stream.lsid).items()
        if other != snid and found.healthy and _is_complete(stream, other, found)
    ]
    what = f"the replica on node {snid} {failure(replica)}"
    if not others:
        what += ", and no other complete one answers"
        person = f"do not delete it; {person}" if person else "do not delete it; bring back the nodes that are away"
    return finding(
        kind,
        Severity.DEGRADED if others else Severity.URGENT,
        name(stream),
        what,
        seconds=look.since(Sight.UNHEALTHY, stream.lsid, snid),
        doing=look.doing(name(stream)),
        person=person,
    )


def _is_complete(stream: StreamInfo, snid: StorageNodeID, replica: ReplicaInfo) -> bool:
    if stream.status is StreamStatus.CHAINED:
        return snid in stream.replicas
    return replica.committed_end >= stream.llsn_end


def _copying(look: Look, stream: StreamInfo, snid: StorageNodeID, replica: ReplicaInfo) -> Finding:
    reached = look.world.reached(snid, stream.lsid)
    have, end = reached - 1, max(replica.source_end, stream.llsn_end) - 1
    unit = "positions" if stream.status is StreamStatus.CHAINED else "entries"
    done = f"{have} of {end} {unit} ({100 * have // max(1, end)} %)"
    what = f"node {snid} copies the log from node {replica.source}: {done}"
    stuck = look.since(Sight.BEHIND, stream.lsid, snid, reached) or 0.0
    if stuck < STUCK_TOO_LONG:
        return _note(look, stream, "replica-copying", what, None)
    return finding(
        "replica-stuck",
        Severity.DEGRADED,
        name(stream),
        f"{what}, and does not get on",
        seconds=stuck,
        doing=look.doing(name(stream)),
        person=f"look at the logs of nodes {snid} and {replica.source}",
    )


def _suspect(look: Look, stream: StreamInfo, snid: StorageNodeID) -> Iterator[Finding]:
    suspicion = look.memory.suspicion(stream.lsid, snid)
    if suspicion is not None and look.world.now < suspicion.until:
        left = suspicion.until - look.world.now
        times = "" if suspicion.times == 1 else f", {suspicion.times} times of late"
        yield finding(
            "replica-suspect",
            Severity.DEGRADED,
            name(stream),
            f"node {snid} {suspicion.why}{times}; it is left out for {left:.0f} s if others suffice",
            person=f"if it goes on, look at the disk, the load and the network of node {snid}",
        )
