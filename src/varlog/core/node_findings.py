"""What can be wrong with a storage node: it is silent, is not who it was, is cut off, has a full disk, is drained."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from varlog import limits
from varlog.core.findings import Look, Severity, finding, listed
from varlog.core.messages import Finding, Info, NodeInfo, VolumeInfo
from varlog.core.world import NodeView, Sight
from varlog.types import LogStreamID, StorageNodeID

NEARLY_FULL: Final = 0.05
"""Of a volume, free."""
FULL_BYTES: Final = 2 * limits.SEGMENT_BYTES
"""The next segments of a few log streams would not fit."""


def findings_of_nodes(look: Look) -> Iterator[Finding]:
    for snid, view in look.world.views.items():
        if view.is_dead:
            yield _silent(look, snid, view)
        elif view.answer is not None:
            yield from _unidentified(look, snid)
            yield from _cut_off(look, snid, view.answer)
            for volume in view.answer.volumes:
                yield from _full(snid, volume)
            yield from _forgotten(look, snid, view.answer)
        yield from _draining(look, look.world.nodes[snid])


def _silent(look: Look, snid: StorageNodeID, view: NodeView) -> Finding:
    where = look.world.nodes[snid].address or "an unknown address"
    how = "it keeps its connection and says nothing" if view.is_connected else "it cannot be reached"
    silent = f"has not answered for {view.silent:.1f} s" if math.isfinite(view.silent) else "does not answer"
    return finding(
        "node-silent",
        Severity.DEGRADED,
        f"node {snid}",
        f"{silent}: {how} at {where}; {_sets(look.sets[snid])}",
        seconds=view.silent if math.isfinite(view.silent) else None,
        doing=look.doing_about(snid),
        person="see that vsn runs there and what its log says, and start it again; if it runs elsewhere, with empty "
        "volumes, say where: varlog node add HOST:PORT; if the machine does not come back: varlog node replace "
        f"{snid} --by ANOTHER",
    )


def _unidentified(look: Look, snid: StorageNodeID) -> Iterator[Finding]:
    if not look.world.is_identified(snid):
        yield finding(
            "node-unidentified",
            Severity.DEGRADED,
            f"node {snid}",
            "cannot prove who it is: its volumes hold no secret. Its disks were lost, or it was started with others",
            seconds=look.since(Sight.UNIDENTIFIED, snid),
            doing=look.doing_about(snid),
            person="if its data still exists, stop it and start it with the right --volumes; if it is gone, nothing",
        )


def _cut_off(look: Look, snid: StorageNodeID, answer: Info) -> Iterator[Finding]:
    seconds = look.since(Sight.CUT_OFF, snid)
    if seconds is not None:
        yield finding(
            "node-cut-off",
            Severity.DEGRADED,
            f"node {snid}",
            f"answers, and has had no answer from the metadata repository for {answer.unanswered:.1f} s",
            seconds=seconds,
            doing=look.doing_about(snid),
            person="check the network between it and the metadata repository, and the address it was started with",
        )


def _full(snid: StorageNodeID, volume: VolumeInfo) -> Iterator[Finding]:
    nearly = volume.total_bytes * NEARLY_FULL
    room = "free space, trim topics (varlog trim), or move replicas to other nodes (varlog stream move)"
    if volume.total_bytes == 0:
        kind, severity, what = "disk-gone", Severity.URGENT, "cannot be read"
        room = "see whether it is mounted, and what the kernel says of its disk"
    elif volume.free_bytes < min(FULL_BYTES, nearly):
        kind, severity, what = "disk-full", Severity.URGENT, f"is full: {volume.free_bytes / 1e6:.0f} MB are free"
    elif volume.free_bytes < nearly:
        free, total = volume.free_bytes / 1e9, volume.total_bytes / 1e9
        kind, severity, what = (
            "disk-filling",
            Severity.DEGRADED,
            f"is nearly full: {free:.1f} of {total:.1f} GB are free",
        )
    else:
        return
    yield finding(kind, severity, f"node {snid}", f"its volume {volume.path} {what}", person=room)


def _forgotten(look: Look, snid: StorageNodeID, answer: Info) -> Iterator[Finding]:
    """Data of log streams that were taken out of the cluster (B6). A number above all known ones is just being made."""
    for replica in answer.replicas:
        if replica.lsid not in look.lsids and replica.lsid < max(look.lsids, default=LogStreamID(0)):
            yield finding(
                "replica-forgotten",
                Severity.NOTE,
                f"node {snid}",
                f"has data of log stream {replica.lsid}, which is not part of the cluster any more",
                person=f"if nobody misses it, stop the node and delete lsid={replica.lsid} in {replica.volume}",
            )


def _draining(look: Look, node: NodeInfo) -> Iterator[Finding]:
    if not node.is_draining:
        return
    sets = look.sets[node.snid]
    if sets:
        doing, person = look.doing_for(sets), f"to let it keep them: varlog node undrain {node.snid}"
    else:
        doing, person = "", f"stop it and take it out (varlog node remove {node.snid}), or let it have replicas again"
        person += f" (varlog node undrain {node.snid})"
    what = f"is being drained; {_sets(sets)}"
    yield finding("node-draining", Severity.NOTE, f"node {node.snid}", what, doing=doing, person=person)


def _sets(lsids: list[LogStreamID]) -> str:
    return f"it is in the set of {listed(lsids)}" if lsids else "it is in no log stream's set"
