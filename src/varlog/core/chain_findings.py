"""What can be wrong with chains and sequencers, for people.

Of a chain: a member that is gone or broken holds up appends, a reconfiguration was not finished, or positions do not go
there. How many members there are is told as of other log streams. Of a sequencer: it does not answer, or was started
again, and topics have to go on without it. Who appends next sees to that, if there is another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from varlog.core.findings import Look, Severity, finding
from varlog.core.messages import Finding, Metadata, StreamInfo
from varlog.core.steps import failure, name, nodes, replicas
from varlog.core.world import Sight
from varlog.types import StorageNodeID

BROKEN_TOO_LONG: Final = 2.0
"""A chain is to go on within this time after a failure."""


def findings_of_chain(look: Look, stream: StreamInfo) -> Iterator[Finding]:
    if (unprojected := look.since(Sight.UNPROJECTED, stream.lsid)) is not None:
        yield finding(
            "chain-unused",
            _severity(unprojected),
            name(stream),
            "no positions go to it: its topic has not been reconfigured since it was added",
            seconds=unprojected,
            doing=look.doing(name(stream)),
            person="see that a sequencer runs and is registered (varlog status); start one with: vsq start",
        )
    troubles = {snid: trouble for snid in stream.replicas if (trouble := _trouble(look, stream, snid)) is not None}
    if troubles:
        yield _broken(look, stream, troubles)
        return
    ahead = max((replica.epoch for replica in look.world.replicas(stream.lsid).values()), default=stream.epoch)
    sealed = look.since(Sight.AHEAD, stream.lsid, ahead)
    if sealed is not None:
        yield finding(
            "chain-sealed",
            _severity(sealed),
            name(stream),
            f"takes no appends: it was sealed in epoch {ahead}, and the reconfiguration has not been finished",
            seconds=sealed,
            doing=look.doing(name(stream)),
        )


def _severity(seconds: float) -> Severity:
    return Severity.URGENT if seconds >= BROKEN_TOO_LONG else Severity.DEGRADED


def _trouble(look: Look, stream: StreamInfo, snid: StorageNodeID) -> tuple[str, float] | None:
    """What is wrong with a member of a chain, and for how long."""
    if look.world.is_dead(snid):
        return f"node {snid} does not answer", look.since(Sight.SILENT, snid) or 0.0
    if (lost := look.since(Sight.UNIDENTIFIED, snid)) is not None:
        return f"node {snid} has lost its disks", lost
    if (missing := look.since(Sight.MISSING, stream.lsid, snid)) is not None:
        return f"node {snid} has no replica of it", missing
    replica = look.world.replica(snid, stream.lsid)
    if replica is not None and not replica.healthy:
        broken = look.since(Sight.UNHEALTHY, stream.lsid, snid) or 0.0
        return f"the replica on node {snid} {failure(replica)}", broken
    return None


def _broken(look: Look, stream: StreamInfo, troubles: dict[StorageNodeID, tuple[str, float]]) -> Finding:
    why = "; ".join(trouble for trouble, _ in troubles.values())
    seconds = max(lasted for _, lasted in troubles.values())
    able, least = [snid for snid in stream.replicas if snid not in troubles], look.world.least(stream)
    person = ""
    if len(able) < least:
        why += f"; it needs {replicas(least)}, and of its chain {nodes(able)} can be used"
        away = [snid for snid in troubles if look.world.is_dead(snid)]
        broken = nodes(snid for snid in troubles if snid not in away)
        person = f"start {nodes(away)} again, with its data" if away else f"look at the disks of {broken}"
    return finding(
        "chain-broken",
        _severity(seconds),
        name(stream),
        f"takes no appends: {why}",
        seconds=seconds,
        doing=look.doing(name(stream)),
        person=person,
    )


def findings_of_sequencers(metadata: Metadata, boots: Mapping[str, int | str]) -> Iterator[Finding]:
    """`boots` says of every registered sequencer which start of it answers, or why none does."""
    ordered: dict[str, list[str]] = {}
    for topic in metadata.topics:
        if topic.projection is not None:
            ordered.setdefault(topic.projection.sequencer, []).append(repr(topic.name))
    others = [address for address, boot in boots.items() if isinstance(boot, int)]
    for address, topics in ordered.items():
        why = boots.get(address, "it is not registered any more")
        if isinstance(why, int):
            continue
        what = f"does not answer ({why}); it orders topic{'s' if len(topics) > 1 else ''} {', '.join(topics)}"
        if others:
            what += f". Whoever appends next goes on with another one ({', '.join(others)})"
        else:
            what += ", and no other one is there: nothing can be appended, what is written can be read"
        yield finding(
            "sequencer-silent",
            Severity.DEGRADED if others else Severity.URGENT,
            f"sequencer {address}",
            what,
            person="see that vsq runs there and what its log says; or start another one: vsq start",
        )
