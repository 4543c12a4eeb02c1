"""Why a topic takes no appends, in a sentence that says what to do.

When a writer hears nothing for a while, the replicas are asked how they are. What they say, whom nobody can reach, and
what the metadata says make up the reason that the append's error gives when its time is up. The gravest reason is the
error's type: a full disk goes before a node that does not answer, and that before a log stream that is merely sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from varlog import errors
from varlog.core.messages import Info, StreamInfo
from varlog.core.routing import Routing, takes_appends
from varlog.types import StorageNodeID, TopicID

Unreached = Callable[[StorageNodeID], str | None]
"""Why a node cannot be reached; None if it can, or if nobody tried."""

_REMEDIES: Mapping[type[errors.VarlogError], str] = {
    errors.DiskFull: "has no space left on {volume}; free space there and restart the node",
    errors.Corrupt: "found damage in its replica on {volume}; it must be repaired from another one",
    errors.Poisoned: "could not write to {volume}; see its log, then restart it",
}


def explain(
    tpid: TopicID, routing: Routing, infos: Mapping[StorageNodeID, Info], unreached: Unreached
) -> errors.VarlogError:
    """The reason why no log stream of the topic takes appends now."""
    streams = routing.streams(tpid)
    if not streams:
        return errors.Sealed("the topic has no log stream; add one with `varlog stream add`")
    reasons = [reason for stream in streams for reason in _reasons(stream, infos, unreached)]
    if not reasons:
        return errors.DeadlineExceeded("its log streams are slow; allow more time, or append less at once")
    gravest = max(reasons, key=_gravity)
    told = dict.fromkeys(str(reason) for reason in sorted(reasons, key=_gravity, reverse=True))
    return errors.VarlogError.of(gravest.code, "; ".join(told))


def _gravity(reason: errors.VarlogError) -> int:
    order = (errors.Sealed, errors.Unreachable, errors.Poisoned, errors.Corrupt, errors.DiskFull)
    return order.index(type(reason)) if type(reason) in order else 0


def _reasons(
    stream: StreamInfo, infos: Mapping[StorageNodeID, Info], unreached: Unreached
) -> Iterator[errors.VarlogError]:
    for snid in stream.replicas:
        reason = unreached(snid)
        if reason is not None:
            yield errors.Unreachable(f"storage node {snid} cannot be reached ({reason}); start it")
            continue
        for replica in infos[snid].replicas if snid in infos else ():
            if replica.lsid == stream.lsid and not replica.healthy:
                fault = errors.VarlogError.registry.get(replica.fault, errors.Poisoned)
                remedy = _REMEDIES.get(fault, _REMEDIES[errors.Poisoned]).format(volume=replica.volume or "its volume")
                kind = fault if fault in _REMEDIES and fault is not errors.Corrupt else errors.Poisoned
                yield kind(f"storage node {snid} {remedy}")
    if not takes_appends(stream):
        yield errors.Sealed(f"log stream {stream.lsid} is sealed; the manager lets it run when its replicas are well")
