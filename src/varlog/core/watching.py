"""Watching a log stream that runs, or is about to: when is it to be sealed (M6-M8)?

When one of its replicas is dead, has failed, or runs no more, nothing is committed any longer: a commit needs all of
the set. So it is sealed, if enough others are there to go on with; if its primary takes no appends anyway, because then
a seal costs nothing and lets writers know what became of theirs; or if what is wrong can only be mended when it is
sealed: by a copy, or by somebody else in the place of a node that stays away. Otherwise it is left as it is: it can
still be read, and whoever is missing may come back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from varlog.core.address import METADATA_REPOSITORY, node_address
from varlog.core.messages import ReplicaInfo, RunStream, Seal, StreamInfo, Unseal
from varlog.core.repairing import find_learner
from varlog.core.steps import Situation, Step, name, nodes, replicas, seen_later, wait
from varlog.core.world import STORE_PATIENCE, UNSEAL_PATIENCE, Sight
from varlog.types import Epoch, ReplicaState, StorageNodeID

STILL_SECONDS: Final = 1.0
"""A log stream that commits nothing for so long, and whose primary is silent, is taken for one that does not run."""
LATER_SECONDS: Final = 1.0
"""How long the metadata may seem older than a replica: it was asked for a moment earlier."""


def watch(situation: Situation, stream: StreamInfo) -> Iterator[Step]:
    """The steps for a log stream that runs; none if all of its replicas do, as far as they have answered."""
    if stream.is_held:
        yield situation.seal(stream, "because an operator holds it")
        return
    troubles = {snid: trouble for snid in stream.replicas if (trouble := _trouble(situation, stream, snid))}
    if not troubles:
        return
    able = [
        snid
        for snid in stream.replicas
        if situation.world.replica(snid, stream.lsid) is not None and not situation.fault(stream, snid)
    ]
    why = "; ".join(troubles.values())
    least = situation.world.least(stream)
    if (
        len(able) >= least
        or not _runs(situation, stream)
        or _is_to_mend(situation, stream)
        or _is_to_replace(situation, stream)
    ):
        yield situation.seal(stream, f"because {why}")
    else:
        yield wait(name(stream), f"runs on as it is though {why}; it needs {replicas(least)}, {nodes(able)} can go on")


def wait_for_metadata(situation: Situation, stream: StreamInfo) -> Iterator[Step]:
    """A replica has seen an epoch that the metadata does not know of. Whatever was asked for on such metadata might be
    given out a second time, so nothing is (rules 2, 5)."""
    later = situation.world.later(stream)
    latest = max(later.values())
    if situation.memory.has_lasted(LATER_SECONDS, situation.world.now, Sight.AHEAD, stream.lsid, latest):
        yield wait(name(stream), f"{seen_later(later, stream)}; nothing is done until it is rebuilt")


def _is_to_mend(situation: Situation, stream: StreamInfo) -> bool:
    """Whether a node of the set is there and has nothing sound: to wait for it does not help, to copy does."""
    return any(
        situation.fault(stream, snid) and situation.world.answers(snid) and not situation.is_cut_off(snid)
        for snid in stream.replicas
    )


def _is_to_replace(situation: Situation, stream: StreamInfo) -> bool:
    """Whether a node of the set has been away for so long that another one takes its place. Nobody may append, and
    then its primary does not miss it."""
    is_gone = any(
        situation.memory.has_lasted(situation.replace_after, situation.world.now, Sight.SILENT, snid)
        for snid in stream.replicas
    )
    return is_gone and find_learner(situation, stream).snid is not None


def _trouble(situation: Situation, stream: StreamInfo, snid: StorageNodeID) -> str:
    """Why a replica of the set does not run, in a clause; empty if it does, or has not answered yet."""
    if fault := situation.fault(stream, snid):
        return fault
    replica = situation.world.replica(snid, stream.lsid)
    if replica is None:
        return ""
    if _is_in_step(replica, stream):
        idle = situation.memory.seconds(situation.world.now, Sight.STORES_NOTHING, stream.lsid, snid, stream.llsn_end)
        slow = idle is not None and idle >= STORE_PATIENCE
        return f"node {snid} has stored nothing for {idle:.1f} s though others have" if slow else ""
    if replica.suspect:
        return f"node {snid} seals itself, as it missed node {replica.suspect}"
    epoch = f" in epoch {replica.epoch}" if replica.epoch != stream.epoch else ""
    return f"node {snid} is {replica.state.name}{epoch}"


def _is_in_step(replica: ReplicaInfo, stream: StreamInfo) -> bool:
    return replica.state is ReplicaState.RUNNING and replica.epoch == stream.epoch


def _runs(situation: Situation, stream: StreamInfo) -> bool:
    """Whether the primary takes appends, as far as can be told."""
    if situation.world.is_dead(stream.primary):
        still = situation.memory.seconds(situation.world.now, Sight.STILL, stream.lsid, stream.llsn_end)
        return (still or 0.0) < STILL_SECONDS
    replica = situation.world.replica(stream.primary, stream.lsid)
    if replica is None:
        return not situation.world.knows(stream.primary, stream.lsid)
    return replica.healthy and _is_in_step(replica, stream)


def follow_unsealing(situation: Situation, stream: StreamInfo) -> Iterator[Step]:
    """A log stream that is about to run: backups first, primary last (rule 3), and when all of them run the metadata
    repository counts it. One that cannot follow makes it seal again."""
    if why := _why_not(situation, stream):
        yield situation.seal(stream, f"again because {why}")
        return
    sealed = Epoch(stream.epoch - 1)
    trim = situation.world.topics[stream.tpid].trim
    waiting, is_ready = [], True
    for snid in stream.replicas:
        replica = situation.world.recent(snid, stream.lsid)
        if replica is not None and replica.epoch == sealed and replica.state is ReplicaState.SEALED:
            waiting.append(snid)
        elif not situation.world.knows(snid, stream.lsid):
            is_ready = False
        elif replica is not None and replica.epoch != stream.epoch:
            is_ready = False
            why = f"{name(stream)}: node {snid} is to seal at LLSN {stream.llsn_end} before it can run"
            yield Step(node_address(snid), Seal(situation.request(), stream.lsid, sealed, stream.llsn_end, trim), why)
    if is_ready:
        yield from _unseal(situation, stream, waiting)


def _why_not(situation: Situation, stream: StreamInfo) -> str:
    """Why a log stream cannot be unsealed with the set that was chosen, in a clause."""
    if stream.is_held:
        return "an operator holds it"
    for snid in stream.replicas:
        replica = situation.world.replica(snid, stream.lsid)
        if fault := situation.fault(stream, snid):
            return fault
        if replica is not None and replica.epoch == stream.epoch and replica.state is not ReplicaState.RUNNING:
            return f"node {snid} fell out of epoch {stream.epoch}"
    late = situation.world.late(stream)
    waited = situation.memory.seconds(situation.world.now, Sight.UNSEALING, stream.lsid, stream.epoch)
    if late and waited is not None and waited >= UNSEAL_PATIENCE:
        return f"{nodes(late)} did not run in epoch {stream.epoch} within {waited:.1f} s"
    return ""


def _unseal(situation: Situation, stream: StreamInfo, waiting: list[StorageNodeID]) -> Iterator[Step]:
    trim = situation.world.topics[stream.tpid].trim
    backups = [snid for snid in waiting if snid != stream.primary]
    for snid in backups or waiting:
        role = "primary" if snid == stream.primary else "backup"
        why = f"{name(stream)}: node {snid} is to run as {role} in epoch {stream.epoch}"
        unseal = Unseal(situation.request(), stream.lsid, stream.epoch, stream.replicas, stream.primary, trim)
        yield Step(node_address(snid), unseal, why)
    if not waiting:
        run = "runs" if len(stream.replicas) == 1 else "run"
        why = (
            f"{name(stream)}: {nodes(stream.replicas)} {run} in epoch {stream.epoch}, node {stream.primary} as primary"
        )
        yield Step(METADATA_REPOSITORY, RunStream(situation.request(), stream.lsid, stream.epoch), why)
