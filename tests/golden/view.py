"""What of a storage node is worth a line when it changes: its replicas, as a script tells of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tests.golden import words
from varlog.core.executor import LogStreamExecutor
from varlog.core.storagenode import StorageNode
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, ReplicaState, StorageNodeID


class View(NamedTuple):
    """What of a replica is worth a line when it changes."""

    state: ReplicaState
    epoch: Epoch
    end: LLSN
    durable_end: LLSN
    committed_end: LLSN
    local_hwm: GLSN
    global_hwm: GLSN
    healthy: bool
    needs_sync: bool
    source: StorageNodeID
    suspect: StorageNodeID
    executor: LogStreamExecutor
    node: StorageNode
    """Which make a replica the same one as before."""

    @classmethod
    def of(cls, executor: LogStreamExecutor, node: StorageNode) -> View:
        return cls(
            executor.state,
            executor.epoch,
            executor.end,
            executor.durable_end,
            executor.committed_end,
            executor.local_hwm,
            executor.global_hwm,
            executor.healthy,
            executor.needs_sync,
            executor.source,
            executor.suspect,
            executor,
            node,
        )

    def changes(self, after: View) -> Iterator[str]:
        if after.end > self.end:
            yield f"stores LLSN {words.span(self.end, after.end)}"
        if after.durable_end > self.durable_end:
            yield f"LLSN {words.span(self.durable_end, after.durable_end)} is durable"
        if after.committed_end > self.committed_end:
            count = after.committed_end - self.committed_end
            glsns = words.span(after.local_hwm + 1 - count, after.local_hwm + 1)
            llsns = words.span(self.committed_end, after.committed_end)
            yield f"commits LLSN {llsns} as GLSN {glsns}, complete to GLSN {after.global_hwm}"
        elif after.global_hwm > self.global_hwm:
            yield f"complete to GLSN {after.global_hwm}"
        if after.end < self.end:
            yield f"drops LLSN {words.span(after.end, self.end)}"
        if (after.state, after.epoch) != (self.state, self.epoch):
            yield f"{self.state.name} in epoch {self.epoch} -> {after.state.name} in epoch {after.epoch}"
        if not after.healthy and self.healthy:
            yield f"needs repair: {words.error_name(after.executor.fault)}"
        if after.suspect and after.suspect != self.suspect:
            yield f"has missed sn/{after.suspect}"
        if after.needs_sync and not self.needs_sync:
            yield "no cut can complete it; it needs a copy"
        if after.source and after.source != self.source:
            yield f"copies from sn/{after.source}"


def changes(before: Mapping[LogStreamID, View], after: Mapping[LogStreamID, View]) -> Iterator[str]:
    """What has become of the replicas of a node."""
    for lsid, view in after.items():
        known = before.get(lsid)
        if known is None:
            yield f"ls {lsid}: a replica, {view.state.name}, with nothing in it"
        elif known.executor is not view.executor and known.node is view.node:
            yield f"ls {lsid}: begins anew, committed to LLSN {view.committed_end - 1}"
        else:
            yield from (f"ls {lsid}: {line}" for line in known.changes(view))
    for lsid in before.keys() - after.keys():
        yield f"ls {lsid}: the replica is gone"
