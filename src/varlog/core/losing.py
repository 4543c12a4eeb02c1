"""What is left of a log stream when replicas are gone for good.

A range may be declared lost only if no node that there is can still have it: none that answers is complete, or could
become so by itself or by being restarted. What is left is what the best of them has; everything after that, up to the
seal, is lost. The judgement needs what *every* node says, see `operating.Operator.declare_lost`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from varlog import errors
from varlog.core.messages import Info, ReplicaInfo, StreamInfo
from varlog.types import GLSN, StorageNodeID

_MENDED_BY_RESTART = frozenset({errors.Poisoned.code, errors.DiskFull.code, errors.NotWritable.code})


class Judgement(NamedTuple):
    begin: GLSN
    """The first position that is lost."""
    survivors: tuple[StorageNodeID, ...]
    """Who has all that is left; nobody if nothing is."""


def judge(stream: StreamInfo, trim: GLSN, infos: Mapping[StorageNodeID, Info]) -> Judgement:
    """What of a sealed log stream is lost; refused if nothing is, or if that cannot be known yet."""
    left = {snid: replica.local_hwm for snid, replica in _sound(stream, infos)}
    best = max(left.values(), default=GLSN(0))
    if max(best, trim) >= stream.last_glsn:
        raise errors.Conflict(
            f"log stream {stream.lsid} holds no entry that a reader could ask for, so nothing of it can be lost; "
            "remove it if it cannot run again"
        )
    survivors = tuple(sorted(snid for snid, hwm in left.items() if hwm == best > trim))
    return Judgement(GLSN(max(best, trim) + 1), survivors)


def _sound(stream: StreamInfo, infos: Mapping[StorageNodeID, Info]) -> Iterator[tuple[StorageNodeID, ReplicaInfo]]:
    """The replicas that lack something and are sound as far as they go."""
    for snid, info in infos.items():
        for replica in info.replicas:
            if replica.lsid == stream.lsid and _is_sound(stream, snid, replica):
                yield snid, replica


def _is_sound(stream: StreamInfo, snid: StorageNodeID, replica: ReplicaInfo) -> bool:
    what = f"the replica of log stream {stream.lsid} on storage node {snid}"
    if not replica.healthy:
        if replica.fault in _MENDED_BY_RESTART:
            fault = errors.VarlogError.registry[replica.fault].__name__
            raise errors.Conflict(f"{what} may have everything, and has stopped ({fault}); restart its node first")
        return False
    if replica.committed_end >= stream.llsn_end:
        raise errors.Conflict(f"nothing is lost: {what} has everything")
    if replica.durable_end >= stream.llsn_end and not replica.needs_sync:
        raise errors.Conflict(f"{what} has everything on disk and is about to find out; wait a moment")
    return True
