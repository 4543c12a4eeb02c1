"""Chains: what the manager does for topics that a sequencer orders (S6, S8, S11, rule 22).

A chain with a member that is gone, or has nothing sound, takes no appends. Clients who append see that, and go on
without the member; where none does, the manager reconfigures the topic. A chain that has too few members gets one at
its tail. As in the other ordering the newcomer is a *learner* (`repairing.find_learner` says who): a replica outside of
the chain, which follows the tail while appends go on and joins, in a reconfiguration, when it lacks little. One that is
to leave does so when another has come, or nobody will.

A reconfiguration is of a whole topic, and nobody appends to it meanwhile. So what its log streams need is gathered, and
it is not begun if one of them has nobody to go on with: sealed for nothing, the others could not even be read.

Nothing is remembered: projection and replicas show what was begun, and any client may be doing the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from typing import Final

from varlog import limits
from varlog.core.address import node_address
from varlog.core.collecting import collect_left_over
from varlog.core.messages import AddLogStream, ChainCopy, RemoveLogStream, ReplicaInfo, StreamInfo, TopicInfo
from varlog.core.reconfiguring import Change, Place
from varlog.core.repairing import SMALL_LAG, Learner, find_learner, reopen, why_made
from varlog.core.steps import Reconfigure, Situation, Step, failure, is_corrupt, name, nodes, replicas, wait
from varlog.core.world import DEAD_AFTER, Sight
from varlog.types import Epoch, Ordering, StorageNodeID, StreamStatus, TopicID

PROJECT_AFTER: Final = 2.0
"""How long a log stream may be without positions: whoever makes it sees to that, unless it dies."""
AHEAD_PATIENCE: Final = 1.0
"""How long a reconfiguration may take from its seals to its projection, before somebody else goes above it."""

TOGETHER: Final = 5.0
"""How long after it began to follow a learner that is ready waits for others of its topic, to join together with them,
unless nothing else protects its log stream."""

Faults = Mapping[StorageNodeID, str]
"""Why members of a chain cannot stay, in clauses."""


def repair_chains(situation: Situation) -> Iterator[Step]:
    """The next steps for all topics that a sequencer orders."""
    chained: dict[TopicID, list[StreamInfo]] = {}
    for stream in situation.world.metadata.streams:
        if stream.status is StreamStatus.CHAINED:
            chained.setdefault(stream.tpid, []).append(stream)
    for tpid, streams in chained.items():
        yield from _repair(situation, situation.world.topics[tpid], streams)


def _repair(situation: Situation, topic: TopicInfo, streams: Seq[StreamInfo]) -> Iterator[Step]:
    faults = {stream.lsid: _faults(situation, stream) for stream in streams}
    stuck = [stream for stream in streams if _is_stuck(situation, stream, faults[stream.lsid])]
    if stuck:
        for stream in stuck:
            yield from _mend_last(situation, stream, faults[stream.lsid])
        return
    failed = [stream for stream in streams if faults[stream.lsid]]
    yield from (
        _leave_out(situation, topic, [(stream, faults[stream.lsid]) for stream in failed])
        if failed
        else _settle(situation, topic, streams)
    )


def _step(stream: StreamInfo, why: str, topic: TopicInfo, change: Change) -> Step:
    return Step("", None, f"{name(stream)}: {why}", Reconfigure(topic.tpid, change))


def _epoch(topic: TopicInfo) -> Epoch:
    return topic.projection.epoch if topic.projection is not None else Epoch(0)


# Members that fail


def _faults(situation: Situation, stream: StreamInfo) -> Faults:
    found = {snid: _fault(situation, stream, snid) for snid in stream.replicas}
    return {snid: fault for snid, fault in found.items() if fault}


def _fault(situation: Situation, stream: StreamInfo, snid: StorageNodeID) -> str:
    view = situation.world.views.get(snid)
    if view is not None and view.is_dead and view.silent < DEAD_AFTER:
        return ""  # it may be about to start again
    if fault := situation.fault(stream, snid):
        return fault
    replica = situation.world.replica(snid, stream.lsid)
    if replica is not None and replica.epoch < stream.epoch:
        return f"the replica on node {snid} is in epoch {replica.epoch}, and never was a member in epoch {stream.epoch}"
    return ""


def _left(stream: StreamInfo, faults: Faults) -> list[StorageNodeID]:
    return [snid for snid in stream.replicas if snid not in faults]


def _is_stuck(situation: Situation, stream: StreamInfo, faults: Faults) -> bool:
    """Whether too few members are left for a chain to go on."""
    return bool(faults) and len(_left(stream, faults)) < situation.world.least(stream)


def _mend_last(situation: Situation, stream: StreamInfo, faults: Faults) -> Iterator[Step]:
    """Nobody else has all that these have: one that only failed to write is opened anew, the others are waited for."""
    for snid in faults:
        replica = situation.world.replica(snid, stream.lsid)
        if replica is not None and not replica.healthy and not is_corrupt(replica):
            yield reopen(situation, stream, snid, replica)
    left, least = _left(stream, faults), situation.world.least(stream)
    why = "; ".join(faults.values())
    if left:
        yield wait(name(stream), f"cannot go on with {nodes(left)}, as it needs {replicas(least)}: {why}")
    else:
        yield wait(name(stream), f"has no replica that could go on: {why}; start one of its nodes, with its data")


def _leave_out(situation: Situation, topic: TopicInfo, failed: Seq[tuple[StreamInfo, Faults]]) -> Iterator[Step]:
    """All that fails leaves at once, whatever else there is to be done."""
    gone = [(stream.lsid, snid) for stream, faults in failed for snid in faults]
    dead = frozenset(snid for _, snid in gone if situation.world.is_dead(snid))
    leavers = frozenset(place for place in gone if place[1] not in dead)
    epoch = _epoch(topic)
    change = Change(epoch, _ahead(situation, [stream for stream, _ in failed]), dead, leavers=leavers)
    for stream, faults in failed:
        left = _left(stream, faults)
        alone = ", the only replica then" if len(left) == 1 else ""
        why = "; ".join(faults.values())
        yield _step(stream, f"{why}; going on with {nodes(left)} in epoch {epoch + 1}{alone}", topic, change)


# Nothing fails


def _settle(situation: Situation, topic: TopicInfo, streams: Seq[StreamInfo]) -> Iterator[Step]:
    """Positions for all log streams, and an end to what others began; then as many members as there should be."""
    if steps := [*_project(situation, topic, streams), *_overtake(situation, topic, streams)]:
        yield from steps
        return
    if _ahead(situation, streams) > _epoch(topic):
        return  # somebody is at it
    joiners: list[tuple[StreamInfo, StorageNodeID]] = []
    leavers: list[tuple[StreamInfo, list[StorageNodeID]]] = []
    is_bringing_up = False
    for stream in streams:
        for step in _resize(situation, stream, joiners, leavers):
            is_bringing_up |= step.message is not None
            yield step
    if joiners and not (is_bringing_up and all(_can_wait(situation, *joiner) for joiner in joiners)):
        yield from _join(topic, joiners)
    elif leavers and not joiners:
        gone: frozenset[Place] = frozenset((stream.lsid, snid) for stream, snids in leavers for snid in snids)
        for stream, snids in leavers:
            staying = nodes(snid for snid in stream.replicas if snid not in snids)
            why = f"{nodes(snids)} can leave; going on with {staying} in epoch {_epoch(topic) + 1}"
            yield _step(stream, why, topic, Change(_epoch(topic), leavers=gone))


def _ahead(situation: Situation, streams: Iterable[StreamInfo]) -> Epoch:
    """The greatest epoch that a sound replica has promised."""
    known = (replica for stream in streams for replica in situation.world.replicas(stream.lsid).values())
    return max((replica.epoch for replica in known if replica.healthy), default=Epoch(0))


def _project(situation: Situation, topic: TopicInfo, streams: Seq[StreamInfo]) -> Iterator[Step]:
    for stream in streams:
        waited = situation.memory.seconds(situation.world.now, Sight.UNPROJECTED, stream.lsid)
        if waited is not None and waited >= PROJECT_AFTER:
            why = f"has no positions yet, after {waited:.0f} s; it gets some in epoch {_epoch(topic) + 1}"
            yield _step(stream, why, topic, Change(_epoch(topic), _ahead(situation, streams)))


def _overtake(situation: Situation, topic: TopicInfo, streams: Seq[StreamInfo]) -> Iterator[Step]:
    """A proposer seems to have died after it sealed (rule 22)."""
    seen = _ahead(situation, streams)
    for stream in streams:
        if situation.memory.has_lasted(AHEAD_PATIENCE, situation.world.now, Sight.AHEAD, stream.lsid, seen):
            why = f"was sealed in epoch {seen}, and nobody went on from there; going on in epoch {seen + 1}"
            yield _step(stream, why, topic, Change(_epoch(topic), seen))


def _resize(
    situation: Situation,
    stream: StreamInfo,
    joiners: list[tuple[StreamInfo, StorageNodeID]],
    leavers: list[tuple[StreamInfo, list[StorageNodeID]]],
) -> Iterator[Step]:
    """The next step towards the chain that a log stream should have; who is ready to join or to leave is noted."""
    leaving = [snid for snid in stream.replicas if situation.is_leaving(stream, snid)]
    staying, wanted = len(stream.replicas) - len(leaving), situation.world.factor(stream)
    if not all(situation.world.knows(snid, stream.lsid) for snid in stream.replicas):
        return  # it may not be whole any more
    if staying >= wanted and not stream.joining:
        if leaving or staying > wanted:  # somebody joined in the place of one that stays after all
            leavers.append((stream, leaving or [*stream.replicas[wanted:]]))
        else:
            yield from collect_left_over(situation, stream)
        return
    has = f"has {len(stream.replicas)} of {wanted} replicas"
    if len(stream.replicas) == 1:
        has = f"one replica is left ({nodes(stream.replicas)}); nothing protects it until another is added"
    learner = find_learner(situation, stream)
    if learner.snid is not None:
        steps = list(_bring_up(situation, stream, learner, learner.snid))
        if not steps:
            joiners.append((stream, learner.snid))
        elif len(stream.replicas) == 1 < wanted and steps[0].message is not None:
            yield wait(name(stream), has)
        yield from steps
    elif not leaving:
        yield wait(name(stream), f"{has}; {learner.why}")
    elif not learner.is_in_prospect and staying >= situation.world.least(stream):
        leavers.append((stream, leaving))
    else:
        yield wait(name(stream), f"{nodes(leaving)} cannot leave yet; {learner.why}")


def _can_wait(situation: Situation, stream: StreamInfo, snid: StorageNodeID) -> bool:
    """Every reconfiguration holds up appends to the whole topic."""
    began = situation.memory.seconds(situation.world.now, Sight.FOLLOWS, stream.lsid, snid)
    return began is not None and began < TOGETHER and len(stream.replicas) > 1


def _join(topic: TopicInfo, joiners: Seq[tuple[StreamInfo, StorageNodeID]]) -> Iterator[Step]:
    """At the tails. Who is to leave does so afterwards, unless there is no room for both."""
    places = tuple((stream.lsid, snid) for stream, snid in joiners)
    full = [stream for stream, _ in joiners if len(stream.replicas) >= limits.MAX_REPLICAS]
    leavers = frozenset((stream.lsid, stream.leaving) for stream in full if stream.leaving)
    for stream, snid in joiners:
        why = f"node {snid} has caught up; it joins {nodes(stream.replicas)} at the tail in epoch {_epoch(topic) + 1}"
        yield _step(stream, why, topic, Change(_epoch(topic), joiners=places, leavers=leavers))


# Learners


def _bring_up(situation: Situation, stream: StreamInfo, learner: Learner, snid: StorageNodeID) -> Iterator[Step]:
    """What is to be done for a node to have a replica that lacks little; nothing if it has."""
    replica, to, what = situation.world.replica(snid, stream.lsid), node_address(snid), name(stream)
    if replica is None:
        made = AddLogStream(situation.request(), stream.tpid, stream.lsid, learner.volume, Ordering.SEQUENCER)
        yield Step(to, made, why_made(situation, stream, snid))
    elif is_corrupt(replica):
        why = f"{what}: the replica on node {snid} {failure(replica)}; it is removed, to be copied anew"
        yield Step(to, RemoveLogStream(situation.request(), stream.lsid, failed_only=True), why)
    elif not replica.healthy:
        yield reopen(situation, stream, snid, replica)
    elif not has_caught_up(situation, stream, snid):
        yield _copy(situation, stream, snid, replica)


def has_caught_up(situation: Situation, stream: StreamInfo, snid: StorageNodeID) -> bool:
    """Whether a replica outside of a chain follows its tail, and lacks so little that it can join."""
    replica, copied = situation.world.replica(snid, stream.lsid), situation.world.copied(snid, stream.lsid)
    if replica is None or copied is None or replica.source != stream.replicas[-1]:
        return False
    topic = situation.world.topics[stream.tpid]
    striped = len(topic.projection.stripes[-1].lsids) if topic.projection is not None else 1
    return copied.is_complete or 0 < copied.source_end <= copied.copied + SMALL_LAG * striped


def _copy(situation: Situation, stream: StreamInfo, snid: StorageNodeID, replica: ReplicaInfo) -> Step:
    """Let a replica follow the tail, which has what all members have. Asked again while it does, to hear how far it
    is."""
    tail = stream.replicas[-1]
    if replica.source != tail:
        if not situation.takes_copies(snid) or not situation.gives_copies(tail):
            return wait(name(stream), f"node {snid} is to copy it from node {tail} when other copies are done")
        situation.begin_copy(snid, tail)
    copied = situation.world.copied(snid, stream.lsid)
    so_far = f", so far to {copied.copied} of {copied.source_end}" if copied is not None and copied.source_end else ""
    message = ChainCopy(situation.request(), stream.lsid, stream.epoch, tail)
    return Step(node_address(snid), message, f"{name(stream)}: node {snid} follows node {tail}, the tail{so_far}")
