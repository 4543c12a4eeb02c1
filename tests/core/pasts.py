"""A past for `rebuilding`: cuts that were made, and what each storage node's disk has of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from varlog.core.surveys import NodeSurvey, ReplicaSurvey, Stored
from varlog.types import (
    GLSN,
    LLSN,
    ClusterID,
    CommitContext,
    Epoch,
    LogStreamID,
    StorageNodeID,
    TopicID,
    Version,
)

TOPIC = TopicID(1)
NODES = (1, 2, 3)
BYTES = 100


class Past:
    """The cuts of one topic; every log stream ran in epoch 2 on all nodes."""

    def __init__(self, *lsids: int) -> None:
        self.commits: dict[int, list[CommitContext]] = {lsid: [] for lsid in lsids}
        self.hwm = 0
        self.version = 10

    def cut(self, counts: Mapping[int, int]) -> None:
        """Give the next positions to so many entries of each log stream."""
        self.version += 1
        prev, hwm = self.hwm, self.hwm + sum(counts.values())
        at = prev + 1
        for lsid, count in sorted(counts.items()):
            llsn = self.commits[lsid][-1].llsn_end if self.commits[lsid] else LLSN(1)
            fields = (self.version, 2, hwm, prev, llsn, at, count, 1000 * self.version)
            self.commits[lsid].append(CommitContext._make(fields))
            at += count
        self.hwm = hwm

    def replica(
        self,
        lsid: int,
        *,
        until: int | None = None,
        told: int = 1000,
        trim: int = 0,
        epoch: int = 2,
        on: Sequence[int] = NODES,
        extra: int = 0,
        damage: str = "",
    ) -> ReplicaSurvey:
        """What a node has that has synced commit contexts up to version `until`, all batches, and `extra` entries that
        were never committed; it tells the last `told` commit contexts."""
        all_of_it = self.commits[lsid]
        synced = [cc for cc in all_of_it if until is None or cc.version <= until]
        rest = all_of_it[len(synced) :]
        kept = [cc for cc in synced if cc.glsn_end > trim + 1]
        trim_llsn = synced[-1].llsn_end if synced else LLSN(1)
        if kept:
            trim_llsn = LLSN(kept[0].llsn_begin + max(0, trim + 1 - kept[0].glsn_begin))
        end = all_of_it[-1].llsn_end if all_of_it else LLSN(1)
        stored = [Stored(cc.llsn_begin, cc.count, cc.epoch, BYTES * cc.count) for cc in rest]
        stored += [Stored(LLSN(end + number), 1, Epoch(2), BYTES) for number in range(extra)]
        last = synced[-1] if synced else None
        return ReplicaSurvey(
            LogStreamID(lsid),
            TOPIC,
            "/volume",
            Epoch(epoch),
            tuple(map(StorageNodeID, on)),
            StorageNodeID(on[0]),
            last.version if last else Version(0),
            last.llsn_end if last else LLSN(1),
            last.hwm if last else GLSN(0),
            GLSN(last.glsn_end - 1) if last else GLSN(0),
            GLSN(trim),
            trim_llsn,
            tuple(kept[-told:]),
            tuple(stored),
            damage,
        )

    def surveys(self, **options: object) -> list[NodeSurvey]:
        """All nodes alike."""
        return [node(snid, *(self.replica(lsid, **options) for lsid in self.commits)) for snid in NODES]  # type: ignore[arg-type]


def node(snid: int, *replicas: ReplicaSurvey, cid: int = 7) -> NodeSurvey:
    proof = f"{snid:064x}"
    return NodeSurvey(ClusterID(cid), StorageNodeID(snid), 0, ("/volume",), 1, proof, "", (1 << 32) + 5, replicas)
