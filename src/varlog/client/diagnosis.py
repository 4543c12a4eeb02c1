"""Why a topic takes no appends, in a sentence that says what to do.

When a writer hears nothing for a while, the replicas are asked how they are. What they say, whom nobody can reach, and
what the metadata says make up the reason that the append's error gives when its time is up. The gravest reason is the
error's type: a full disk goes before a node that does not answer, and that before a log stream that is merely sealed.
What it comes to is said first: that a log stream has too few replicas left, and can only be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from varlog import errors
from varlog.core.messages import Info, StreamInfo
from varlog.core.routing import Routing, takes_appends
from varlog.types import LogStreamID, StorageNodeID, TopicID

Unreached = Callable[[StorageNodeID], str | None]
"""Why a node cannot be reached; None if it can, or if nobody tried."""

MOST_REASONS: Final = 8
"""So many are told; in a large topic the others will be much the same."""

_REMEDIES: Mapping[type[errors.VarlogError], str] = {
    errors.DiskFull: "has no space left on {volume}; free space there and restart the node",
    errors.Corrupt: "found damage in its replica on {volume}; it must be repaired from another one",
    errors.Poisoned: "could not write to {volume}; see its log, then restart it",
}


def explain(
    tpid: TopicID,
    routing: Routing,
    infos: Mapping[StorageNodeID, Info],
    unreached: Unreached,
    manager: str | None = None,
) -> errors.VarlogError:
    """The reason why no log stream of the topic takes appends now. `manager` is why none can be reached."""
    streams = routing.streams(tpid)
    if not streams:
        return errors.Sealed("the topic has no log stream; add one with `varlog stream add`")
    topic = routing.topic(tpid)
    least = topic.min_replicas if topic is not None else 0
    reasons: list[errors.VarlogError] = []
    told: list[str] = []
    for stream in streams:
        found = list(_reasons(stream, infos, unreached))
        faults = [reason for reason in found if not isinstance(reason, errors.Sealed)]
        left = len(stream.replicas) - len(faults)
        if faults and left < least:
            told.append(f"reads only: log stream {stream.lsid} has {left} of at least {least} replicas")
        reasons += found
    if not reasons:
        return errors.DeadlineExceeded("its log streams are slow; allow more time, or append less at once")
    if manager is not None:
        reasons.append(errors.Unreachable(f"no manager repairs it: {manager}; start one with `vms start`"))
    reasons.sort(key=_gravity, reverse=True)
    told += map(str, reasons)
    return errors.VarlogError.of(reasons[0].code, "; ".join(list(dict.fromkeys(told))[:MOST_REASONS]))


def _gravity(reason: errors.VarlogError) -> int:
    order = (errors.Sealed, errors.Unreachable, errors.Poisoned, errors.Corrupt, errors.DiskFull)
    return order.index(type(reason)) if type(reason) in order else 0


def _reasons(
    stream: StreamInfo, infos: Mapping[StorageNodeID, Info], unreached: Unreached
) -> Iterator[errors.VarlogError]:
    """What is wrong with a log stream: one reason at most for each replica, and one if it does not run."""
    if stream.lost_end:
        yield errors.Sealed(f"log stream {stream.lsid} was declared lost; add another one with `varlog stream add`")
        return
    if stream.is_held:
        yield errors.Sealed(
            f"log stream {stream.lsid} was sealed by an operator; `varlog stream unseal {stream.lsid}` lets it run"
        )
        return
    for snid in stream.replicas:
        reason = unreached(snid)
        if reason is not None:
            yield errors.Unreachable(f"storage node {snid} cannot be reached ({reason}); start it")
        elif (fault := _fault(stream.lsid, infos.get(snid))) is not None:
            yield fault
    if not takes_appends(stream):
        yield errors.Sealed(f"log stream {stream.lsid} is sealed; the manager lets it run when its replicas are well")


def _fault(lsid: LogStreamID, info: Info | None) -> errors.VarlogError | None:
    for replica in info.replicas if info is not None else ():
        if info is not None and replica.lsid == lsid and not replica.healthy:
            fault = errors.VarlogError.registry.get(replica.fault, errors.Poisoned)
            remedy = _REMEDIES.get(fault, _REMEDIES[errors.Poisoned]).format(volume=replica.volume or "its volume")
            kind = fault if fault in _REMEDIES and fault is not errors.Corrupt else errors.Poisoned
            return kind(f"storage node {info.snid} {remedy}")
    return None
