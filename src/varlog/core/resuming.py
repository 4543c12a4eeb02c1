"""A sealed log stream: bring its replicas to the seal point, and choose the set it goes on with (M5, M9, M10).

Every replica is told the seal point. One that has all cuts up to it calls itself SEALED (rule 8); one that lacks what
cuts cannot bring copies it from one that is SEALED. Only SEALED replicas are taken into the next set, so nothing that
was acknowledged can be lost by any choice that is made here: the choice is about who is worth waiting for.

The next set is everyone who is ready, and with them whoever has caught up outside of the set. Those who may be ready
soon are waited for, but not long; those who are dead, have failed, were too slow or are to leave are left out. Below
the topic's `min_replicas` there is nothing to do but wait, and to let somebody else copy the log meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from varlog.core.address import METADATA_REPOSITORY, node_address
from varlog.core.messages import Seal, StreamInfo, UnsealStream
from varlog.core.repairing import Learner, bring_up, copy, find_learner, has_caught_up, may_join, reopen
from varlog.core.steps import Situation, Step, is_corrupt, name, nodes, replicas, wait
from varlog.core.world import Sight
from varlog.types import ReplicaState, StorageNodeID

SEAL_PATIENCE: Final = 0.5
"""How long a log stream stays sealed for the sake of a replica that is not ready, if others suffice."""


class Choice(NamedTuple):
    """How a sealed log stream could go on."""

    replicas: list[StorageNodeID]
    """Who is ready and wanted."""
    joining: list[StorageNodeID]
    """Who of them was not in the set."""
    soon: list[StorageNodeID]
    """Who may be ready soon, and would be wanted."""


def complete(situation: Situation, stream: StreamInfo) -> Iterator[Step]:
    """The steps for a sealed log stream."""
    choice = choose(situation, stream)
    newcomers = [snid for snid in choice.soon if snid not in stream.replicas]
    for snid in (*stream.replicas, *newcomers):
        yield from _bring_to_seal_point(situation, stream, snid)
    if stream.is_held:
        return
    least = situation.world.least(stream)
    sealed = situation.memory.seconds(situation.world.now, Sight.SEALED, stream.lsid, stream.epoch) or 0.0
    if choice.soon and sealed < SEAL_PATIENCE:
        return
    if len(choice.replicas) >= least:
        yield _unseal(situation, stream, choice)
        return
    yield _tell_who_lacks(situation, stream, choice, least)
    yield from _reopen_failed(situation, stream)
    if choice.replicas and (not choice.soon or sealed >= situation.replace_after):
        yield from _find_others(situation, stream)


def is_ready(situation: Situation, stream: StreamInfo, snid: StorageNodeID) -> bool:
    """Whether a node has everything up to the seal point."""
    replica = situation.world.replica(snid, stream.lsid)
    if replica is None or situation.fault(stream, snid):
        return False
    return replica.state is ReplicaState.SEALED and replica.epoch == stream.epoch


def choose(situation: Situation, stream: StreamInfo) -> Choice:
    """The set a sealed log stream is to go on with, as things are now."""
    least, factor = situation.world.least(stream), situation.world.factor(stream)
    wanted = [snid for snid in stream.replicas if not situation.is_leaving(stream, snid)]
    ready = {snid for snid in stream.replicas if is_ready(situation, stream, snid)}
    near = _near(situation, stream)
    near_ready = [snid for snid in near if is_ready(situation, stream, snid)]
    suspects = {snid for snid in wanted if situation.is_suspect(stream.lsid, snid)}
    staying = [snid for snid in wanted if snid in ready and snid not in suspects]
    if len(staying) + len(near_ready) < least:
        staying = [snid for snid in wanted if snid in ready]
    joining = near_ready[: max(0, factor - len(staying))]
    soon = [snid for snid in wanted if snid not in ready and snid not in suspects and not situation.fault(stream, snid)]
    late = [*(snid for snid in near if snid not in near_ready), *_unheard(situation, stream)]
    soon += late[: max(0, factor - len(staying) - len(joining) - len(soon))]
    kept = {*staying, *_kept_leaving(situation, stream, ready, len(staying), joining)}
    return Choice([*(snid for snid in stream.replicas if snid in kept), *joining], joining, soon)


def _kept_leaving(
    situation: Situation,
    stream: StreamInfo,
    ready: set[StorageNodeID],
    staying: int,
    joining: list[StorageNodeID],
) -> list[StorageNodeID]:
    """Who is to leave, and stays until somebody has come in its place, or because there are too few without it."""
    leaving = [snid for snid in stream.replicas if snid in ready and situation.is_leaving(stream, snid)]
    if not leaving:
        return []
    in_prospect = find_learner(situation, stream, joining).is_in_prospect
    enough = situation.world.factor(stream) if in_prospect else situation.world.least(stream)
    return leaving[: max(0, enough - staying - len(joining))]


def _near(situation: Situation, stream: StreamInfo) -> list[StorageNodeID]:
    """Who is outside of the set and could be taken in, those first who are wanted most."""
    found = []
    for snid, replica in situation.world.replicas(stream.lsid).items():
        if not may_join(situation, stream, snid) or situation.fault(stream, snid):
            continue
        if stream.joining and snid != stream.joining:
            continue  # its place is spoken for
        if replica.epoch == stream.epoch or has_caught_up(stream, replica):
            found.append((-replica.committed_end, snid))
    return [snid for _, snid in sorted(found)]


def _unheard(situation: Situation, stream: StreamInfo) -> list[StorageNodeID]:
    """Who had a replica outside of the set at the last look, and has not answered at this one yet: perhaps it is about
    to join, and a set without it would have to be changed again."""
    return [
        snid
        for snid, view in situation.world.views.items()
        if snid not in stream.replicas and (not stream.joining or snid == stream.joining)
        if not view.is_dead and not situation.world.knows(snid, stream.lsid)
        if situation.world.recent(snid, stream.lsid) is not None
    ]


def _bring_to_seal_point(situation: Situation, stream: StreamInfo, snid: StorageNodeID) -> Iterator[Step]:
    """Tell a replica the seal point; let it copy what it lacks if cuts cannot bring it."""
    replica = situation.world.recent(snid, stream.lsid)
    if replica is None or situation.fault(stream, snid) or is_ready(situation, stream, snid) or not replica.healthy:
        return
    why = f"{name(stream)}: node {snid} is to seal at LLSN {stream.llsn_end}"
    trim = situation.world.topics[stream.tpid].trim
    yield Step(node_address(snid), Seal(situation.request(), stream.lsid, stream.epoch, stream.llsn_end, trim), why)
    copies = replica.needs_sync or replica.source or snid not in stream.replicas
    is_behind = replica.state is ReplicaState.SEALING and replica.committed_end < stream.llsn_end
    if is_behind and copies and situation.world.knows(snid, stream.lsid):
        step = copy(situation, stream, snid, replica)
        if step.message is not None:
            yield step


def _unseal(situation: Situation, stream: StreamInfo, choice: Choice) -> Step:
    replicas = tuple(choice.replicas)
    trusted = tuple(snid for snid in replicas if not situation.is_suspect(stream.lsid, snid))
    primary = situation.choose_primary(msgspec.structs.replace(stream, replicas=trusted or replicas))
    before = dict(zip(stream.replicas, stream.volumes, strict=False))
    volumes = []
    for snid in replicas:
        replica = situation.world.replica(snid, stream.lsid)
        volumes.append((replica.volume if replica is not None else "") or before.get(snid, ""))
    left_out = [_why_left_out(situation, stream, snid) for snid in stream.replicas if snid not in replicas]
    because = f" because {'; '.join(left_out)}" if left_out else ""
    joins = f"; {nodes(choice.joining)} joined" if choice.joining else ""
    why = f"{name(stream)}: sealed at GLSN {stream.last_glsn}{because}; going on with {nodes(replicas)}{joins}"
    message = UnsealStream(situation.request(), stream.lsid, stream.epoch, replicas, primary, tuple(volumes))
    return Step(METADATA_REPOSITORY, message, why)


def _why_left_out(situation: Situation, stream: StreamInfo, snid: StorageNodeID) -> str:
    """Why a node of the set is not ready, or not wanted, in a clause."""
    if fault := situation.fault(stream, snid):
        return fault
    if situation.is_leaving(stream, snid):
        return f"node {snid} is to leave"
    suspicion = situation.memory.suspicion(stream.lsid, snid)
    if suspicion is not None and situation.is_suspect(stream.lsid, snid):
        return f"node {snid} {suspicion.why}"
    replica = situation.world.replica(snid, stream.lsid)
    if replica is None:
        return f"node {snid} has not answered yet"
    return f"node {snid} is {replica.state.name} at LLSN {replica.committed_end} of {stream.llsn_end}"


def _tell_who_lacks(situation: Situation, stream: StreamInfo, choice: Choice, least: int) -> Step:
    lacking = [_why_left_out(situation, stream, snid) for snid in stream.replicas if snid not in choice.replicas]
    why = f"stays sealed at GLSN {stream.last_glsn}: it needs {replicas(least)} and has {nodes(choice.replicas)}"
    return wait(name(stream), "; ".join([why, *lacking]))


def _reopen_failed(situation: Situation, stream: StreamInfo) -> Iterator[Step]:
    """Too few of the set are there: those who have only failed to write may be well again."""
    for snid in stream.replicas:
        replica = situation.world.replica(snid, stream.lsid)
        if replica is not None and not replica.healthy and not is_corrupt(replica):
            yield reopen(situation, stream, snid, replica)


def _find_others(situation: Situation, stream: StreamInfo) -> Iterator[Step]:
    """Too few of the set are there: one that has lost its replica copies it anew, or somebody else does; if there is
    nobody else, also one that is suspect."""
    world = situation.world
    missing = [
        snid
        for snid in stream.replicas
        if world.is_identified(snid) and world.recent(snid, stream.lsid) is None
        if not situation.is_leaving(stream, snid)
    ]
    trusted = [snid for snid in missing if not situation.is_suspect(stream.lsid, snid)]
    learner = Learner(trusted[0]) if trusted else find_learner(situation, stream)
    if learner.snid is not None:
        yield from bring_up(situation, stream, learner)
    elif missing:
        yield from bring_up(situation, stream, Learner(missing[0]))
    elif not learner.is_in_prospect:
        yield from _mend(situation, stream)


def _mend(situation: Situation, stream: StreamInfo) -> Iterator[Step]:
    """There is nobody else: a replica of the set that is corrupt is made anew. Another one is complete, so nothing goes
    that is not there."""
    for snid in stream.replicas:
        replica = situation.world.replica(snid, stream.lsid)
        if replica is not None and is_corrupt(replica) and situation.world.is_identified(snid):
            yield from bring_up(situation, stream, Learner(snid))
            return
