"""Repairing: a log stream that has too few replicas gets one more, and one that is to leave is replaced (rule 12).

The newcomer is a *learner*: a replica outside of the set that copies what is committed while appends go on. When it
lacks little, a short seal lets it join. Who becomes one, in this order: whom an operator names; a node that has an old
replica, which lacks least; a spare, if nobody who is away could still come back with an old one. A node that was asked
and made no replica is asked again after a while; others go before it until then (`world.Suspicion`). A replica that is
corrupt is no use to anybody: outside of the set it is removed and made again, empty. One that has only failed to write
still holds what it held, and those who are well may turn out to be damaged: it is opened anew.

One change of a log stream at a time; a few copies at a time to and from a node. What was begun shows in the replicas
themselves, so another manager goes on with the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from varlog import limits
from varlog.core.address import node_address
from varlog.core.messages import AddLogStream, Info, RemoveLogStream, ReopenLogStream, ReplicaInfo, StreamInfo, Sync
from varlog.core.placing import place
from varlog.core.steps import Situation, Step, failure, is_corrupt, name, nodes, replicas, wait
from varlog.core.world import Sight
from varlog.types import ReplicaState, StorageNodeID, StreamStatus

OTHER_SOURCE_AFTER: Final = 5.0
"""A learner that does not get on for so long is given another source."""
SMALL_LAG: Final = 1_000
"""Entries that a learner may lack of what its source had a moment ago when it joins, and not more than one in a
thousand: they are copied while the log stream is sealed. One that follows lacks nothing of that, however fast the log
grows, so there is no need for more."""


class Learner(NamedTuple):
    """Who is to be taken into a set."""

    snid: StorageNodeID | None
    volume: str = ""
    """Where a new replica goes there."""
    why: str = ""
    """Why there is nobody."""
    is_in_prospect: bool = True
    """There is somebody, or may soon be."""


def has_caught_up(stream: StreamInfo, replica: ReplicaInfo) -> bool:
    """Whether a replica outside of the set lacks so little that a seal for it to join is short."""
    if replica.committed_end >= stream.llsn_end:
        return True
    if not replica.source or not replica.source_end:
        return False
    return replica.source_end - replica.committed_end <= min(SMALL_LAG, replica.source_end // 1000)


def may_join(situation: Situation, stream: StreamInfo, snid: StorageNodeID) -> bool:
    """Whether a node outside of the set may have a part in it."""
    if snid in stream.replicas or situation.is_leaving(stream, snid) or not situation.world.is_identified(snid):
        return False
    if snid == stream.joining:
        return True
    return not situation.is_suspect(stream.lsid, snid) and not situation.is_cut_off(snid)


def repair(situation: Situation, stream: StreamInfo) -> Iterator[Step]:
    """The next step towards the set that a log stream should have, while it runs on all of the one it has."""
    leaving = [snid for snid in stream.replicas if situation.is_leaving(stream, snid)]
    wanted = situation.world.factor(stream)
    if not leaving and not stream.joining and len(stream.replicas) >= wanted:
        return
    if not all(situation.world.knows(snid, stream.lsid) for snid in stream.replicas):
        return  # it may not run on all of them any more
    learner = find_learner(situation, stream)
    if learner.snid is not None:
        yield from _teach(situation, stream, learner)
    elif not leaving:
        yield wait(name(stream), f"has {len(stream.replicas)} of {wanted} replicas; {learner.why}")
    elif learner.is_in_prospect:
        yield wait(name(stream), f"{nodes(leaving)} cannot leave yet; {learner.why}")
    elif len(stream.replicas) - len(leaving) >= situation.world.least(stream):
        yield situation.seal(stream, f"so that {nodes(leaving)} can leave; {learner.why}")
    else:
        least = situation.world.least(stream)
        yield wait(name(stream), f"{nodes(leaving)} cannot leave: it needs {replicas(least)}, and {learner.why}")


def _teach(situation: Situation, stream: StreamInfo, learner: Learner) -> Iterator[Step]:
    steps = list(bring_up(situation, stream, learner))
    yield from steps
    replica = situation.world.replica(learner.snid or StorageNodeID(0), stream.lsid)
    if replica is not None and not steps:
        lacks = max(0, stream.llsn_end - replica.committed_end)
        yield situation.seal(
            stream, f"so that node {learner.snid} can join; it lacks {lacks} of {stream.llsn_end - 1} entries"
        )


def bring_up(situation: Situation, stream: StreamInfo, learner: Learner) -> Iterator[Step]:
    """What is to be done for a node to have a sound replica that lacks little; nothing if it has. It is outside of the
    set, or has nothing sound."""
    snid = learner.snid
    assert snid is not None
    replica = situation.world.replica(snid, stream.lsid)
    if replica is None:
        made = AddLogStream(situation.request(), stream.tpid, stream.lsid, learner.volume)
        yield Step(node_address(snid), made, why_made(situation, stream, snid))
    elif is_corrupt(replica):
        why = f"{name(stream)}: the replica on node {snid} {failure(replica)}; it is removed, to be copied anew"
        yield Step(node_address(snid), RemoveLogStream(situation.request(), stream.lsid, failed_only=True), why)
    elif not replica.healthy:
        yield reopen(situation, stream, snid, replica)
    elif not has_caught_up(stream, replica):
        yield copy(situation, stream, snid, replica)


def why_made(situation: Situation, stream: StreamInfo, snid: StorageNodeID) -> str:
    """What is said when a node is to make a replica; if something is held against it, that too."""
    suspicion = situation.memory.suspicion(stream.lsid, snid)
    is_suspect = suspicion is not None and situation.is_suspect(stream.lsid, snid)
    though = f", though it {suspicion.why}" if suspicion is not None and is_suspect else ""
    return f"{name(stream)}: node {snid} is to have a replica, and copies it{though}"


def reopen(situation: Situation, stream: StreamInfo, snid: StorageNodeID, replica: ReplicaInfo) -> Step:
    """Let a replica that has failed to write begin again with what is on its disk."""
    why = f"{name(stream)}: the replica on node {snid} {failure(replica)}; it is opened anew"
    return Step(node_address(snid), ReopenLogStream(situation.request(), stream.lsid), why)


def copy(situation: Situation, stream: StreamInfo, snid: StorageNodeID, replica: ReplicaInfo) -> Step:
    """Let a replica copy what it lacks. Asked again while it does, which keeps it going."""
    is_learner = snid not in stream.replicas
    sources = _sources(situation, stream)
    if replica.source in sources:
        source = replica.source
    else:
        if is_learner:
            if not situation.takes_copies(snid):
                return wait(name(stream), f"node {snid} is to copy it when other copies are done")
            sources = [source for source in sources if situation.gives_copies(source)]
        if not sources:
            return wait(name(stream), f"there is nobody whom node {snid} could copy from at present")
        stuck = situation.memory.seconds(situation.world.now, Sight.BEHIND, stream.lsid, snid, replica.committed_end)
        source = sources[int((stuck or 0.0) // OTHER_SOURCE_AFTER) % len(sources)]
        situation.begin_copy(snid, source)
    end = max(replica.source_end, stream.llsn_end)
    why = f"{name(stream)}: node {snid} copies from node {source}, so far to LLSN {replica.committed_end} of {end}"
    sync = Sync(situation.request(), stream.lsid, stream.epoch, source, is_learner)
    return Step(node_address(snid), sync, why)


def _sources(situation: Situation, stream: StreamInfo) -> list[StorageNodeID]:
    """Whom a replica may copy from, who gives fewest copies first and the primary of a running log stream last."""
    runs = stream.status is StreamStatus.RUNNING
    state = ReplicaState.RUNNING if runs else ReplicaState.SEALED
    sound = [
        snid
        for snid, replica in situation.world.replicas(stream.lsid).items()
        if (replica.state, replica.epoch) == (state, stream.epoch)
        and (not runs or snid in stream.replicas)
        and not situation.fault(stream, snid)
    ]
    return sorted(situation.by_copies(sound), key=lambda snid: runs and snid == stream.primary)


def find_learner(situation: Situation, stream: StreamInfo, without: Collection[StorageNodeID] = ()) -> Learner:
    """Who is to be the next replica of a log stream, beside those of its set and some others."""
    world = situation.world
    if (joining := stream.joining) and joining not in (*stream.replicas, *without):
        if world.is_identified(joining) and world.knows(joining, stream.lsid):
            return Learner(joining)
        view = world.views.get(joining)
        what = f"has not answered for {view.silent:.1f} s" if view is not None and view.is_dead else "is not ready"
        return Learner(None, why=f"node {joining}, which is to join, {what}")
    old = [
        (not replica.healthy, -replica.committed_end, snid)
        for snid, replica in world.replicas(stream.lsid).items()
        if may_join(situation, stream, snid) and snid not in without
    ]
    if old:
        return Learner(min(old)[2])
    willing = {snid: info for snid, info in _willing(situation, stream).items() if snid not in without}
    for snid in situation.memory.hosted_lately(stream.lsid):
        if snid in willing:  # what it had was removed, or is being made anew
            return Learner(snid)
    return _find_spare(situation, stream, willing)


def _find_spare(situation: Situation, stream: StreamInfo, willing: Mapping[StorageNodeID, Info]) -> Learner:
    world, memory = situation.world, situation.memory
    unheard = [snid for snid in world.nodes if not world.is_dead(snid) and not world.knows(snid, stream.lsid)]
    if unheard:
        return Learner(None, why=f"{nodes(unheard)} may have one, and will soon say so")
    staying = [snid for snid in world.nodes if not situation.is_leaving(stream, snid)]
    away = [snid for snid in staying if not world.answers(snid)]
    left_out = [snid for snid in staying if snid not in (*away, *stream.replicas)]
    left_out = [snid for snid in left_out if situation.is_suspect(stream.lsid, snid)]
    if away or left_out:
        lasted = max(
            memory.seconds(world.now, Sight.SHORT, stream.lsid) or 0.0,
            memory.seconds(world.now, Sight.SEALED, stream.lsid, stream.epoch) or 0.0,
            memory.seconds(world.now, Sight.LEAVING, stream.lsid) or 0.0,
            *(memory.seconds(world.now, Sight.SILENT, snid) or 0.0 for snid in stream.replicas),
        )
        left = situation.replace_after - lasted
        if left > 0:
            back = [f"{nodes(away)} may come back"] if away else []
            again = [f"{nodes(left_out)} may be taken in again"] if left_out else []
            return Learner(None, why=f"{', '.join(back + again)}; otherwise a spare is taken in {left:.0f} s")
    free = {snid: info for snid, info in willing.items() if situation.takes_copies(snid)}
    if free:
        ((snid, volume),) = place(world.metadata, free, 1)
        return Learner(snid, volume)
    if willing:
        return Learner(None, why=f"{nodes(willing)} will copy it when other copies are done")
    for snid in sorted(world.nodes.keys() - {*stream.replicas}):
        suspicion = memory.suspicion(stream.lsid, snid)
        if suspicion is not None and world.now < suspicion.until:
            return Learner(
                None, why=f"node {snid} {suspicion.why}, and is tried again in {suspicion.until - world.now:.0f} s"
            )
    return Learner(None, why="there is no other node that could take one", is_in_prospect=False)


def _willing(situation: Situation, stream: StreamInfo) -> Mapping[StorageNodeID, Info]:
    """The nodes that a replica could be made on."""
    found = {}
    for snid, view in situation.world.views.items():
        if (info := view.answer) is None or len(info.replicas) >= limits.MAX_LOG_STREAMS_PER_NODE:
            continue
        if (
            info.is_identified
            and may_join(situation, stream, snid)
            and situation.world.replica(snid, stream.lsid) is None
        ):
            found[snid] = info
    return found
