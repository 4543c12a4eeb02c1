"""Tallies: what the storage nodes have reported, and the cut that follows from it (O1).

A log stream's cut is the smallest durable end over *all* replicas of its current set, each reported in its current
epoch by the node's current boot. What was reported in another epoch, by another boot, or by a node outside the set does
not count. GLSNs are dealt in LSID order.

This is the hottest code of the metadata repository: `count` runs once for every log stream of every report.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final

from varlog.core import invariants
from varlog.core.invariants import Invariant
from varlog.core.messages import Range, ReportLine
from varlog.core.metastate import Cut, MetadataState, Stream
from varlog.types import LogStreamID, StorageNodeID, StreamStatus, TopicID, Version

NO_MORE: Final = Version(1 << 64)
FAILED: Final = -1
"""The end of a replica whose durable end shrank: it counts for nothing until it restarts, or its epoch ends."""


class Tally:
    """What is known of one log stream's replicas in one epoch. An end of 0 has not been reported.

    `behind` counts the replicas that hold the next cut up: those whose end is not beyond the last one. Only when none
    is left is the log stream looked at again.
    """

    __slots__ = ("behind", "cut_end", "durable_versions", "ends", "epoch")

    def __init__(self, stream: Stream) -> None:
        self.epoch = stream.epoch
        self.ends: dict[int, int] = dict.fromkeys(stream.replicas, 0)
        self.durable_versions: dict[int, int] = dict.fromkeys(stream.replicas, 0)
        self.cut_end: int = stream.llsn_end
        self.behind = len(self.ends)

    def forget(self, snid: int, end: int) -> None:
        """What a replica reported counts no more."""
        if self.ends[snid] > self.cut_end:
            self.behind += 1
        self.ends[snid] = end

    def cut_at(self, end: int) -> None:
        self.cut_end = end
        self.behind = sum(map(end.__ge__, self.ends.values()))


class Tallies:
    """See the module's text."""

    def __init__(self) -> None:
        self._tallies: dict[int, Tally] = {}
        self._advanced: set[int] = set()

    def follow(self, stream: Stream) -> None:
        """A log stream's epoch or set has changed: nothing reported before counts for the new one."""
        before = self._tallies.get(stream.lsid)
        tally = self._tallies[stream.lsid] = Tally(stream)
        if before is not None:  # how far commit contexts are durable does not depend on the epoch
            for snid in tally.durable_versions:
                tally.durable_versions[snid] = before.durable_versions.get(snid, 0)
        self._advanced.discard(stream.lsid)

    def lsids(self) -> Set[int]:
        return self._tallies.keys()

    def members(self, lsid: int) -> Set[int]:
        """The nodes whose reports of a log stream count."""
        tally = self._tallies.get(lsid)
        return tally.ends.keys() if tally is not None else frozenset()

    def drop(self, lsid: int) -> None:
        """A log stream is no more."""
        self._tallies.pop(lsid, None)
        self._advanced.discard(lsid)

    def void(self, snid: StorageNodeID) -> None:
        """A node has restarted: what it reported before is void (rule 5)."""
        for tally in self._tallies.values():
            if snid in tally.ends:
                tally.forget(snid, 0)
                tally.durable_versions[snid] = 0

    def count(self, snid: StorageNodeID, lines: Iterable[ReportLine]) -> None:
        """Take in a report."""
        tallies, advanced = self._tallies, self._advanced
        for lsid, epoch, durable_version, _, durable_end, healthy in lines:
            tally = tallies.get(lsid)
            if tally is None or snid not in tally.ends:
                continue
            before = tally.ends[snid]
            if epoch == tally.epoch and durable_end < before:
                tally.forget(snid, FAILED)
                tally.durable_versions[snid] = durable_version
            elif healthy and before != FAILED:
                tally.durable_versions[snid] = durable_version
                if epoch == tally.epoch and durable_end > before:
                    tally.ends[snid] = durable_end
                    if before <= tally.cut_end < durable_end:
                        tally.behind -= 1
                        if not tally.behind:
                            advanced.add(lsid)

    @property
    def has_advanced(self) -> bool:
        """Whether there may be something to cut."""
        return bool(self._advanced)

    def cut(self, state: MetadataState, time: int, full: Set[int]) -> Cut | None:
        """The cut that the reports allow now, or None if nothing has advanced. Log streams that are full wait."""
        tails: dict[TopicID, int] = {}
        ranges: list[Range] = []
        streams, tallies, topics = state.streams, self._tallies, state.topics
        for lsid in sorted(self._advanced - full):
            stream = streams[LogStreamID(lsid)]
            tally = tallies[lsid]
            begin = stream.llsn_end
            end = min(tally.ends.values())
            if stream.status is not StreamStatus.RUNNING or end <= begin:
                continue
            tpid = stream.tpid
            glsn = tails.get(tpid, topics[tpid].hwm) + 1
            ranges.append((lsid, tally.epoch, begin, glsn, end - begin))
            tails[tpid] = glsn + end - begin - 1
            tally.cut_at(end)
        self._advanced &= full
        if not ranges:
            return None
        hwms = tuple((int(tpid), int(topics[tpid].hwm), hwm) for tpid, hwm in tails.items())
        return Cut(time, hwms, tuple(ranges))

    def resume(self, lsid: LogStreamID) -> None:
        """A log stream now runs: what was reported in its epoch so far may be cut."""
        self._advanced.add(lsid)

    def require_durable(self, cut: Cut) -> None:
        """Assert that every replica has what a cut commits."""
        for lsid, epoch, begin, _, count in cut.ranges:
            tally = self._tallies[lsid]
            if tally.epoch != epoch or min(tally.ends.values()) < begin + count:
                detail = f"log stream {lsid}: {begin}+{count} of epoch {epoch} is not durable on {tally.ends}"
                invariants.require(Invariant.COMMITTED_IS_DURABLE, False, detail)

    def durable_version(self, lsid: int) -> Version:
        """The newest version up to which every replica of the set has the commit contexts on disk (rule 4). The set is
        the one the log stream had last: who was in it stays until an unseal decides without it. Of a log stream that is
        no more, or that has no replica left, nobody will ask for one."""
        tally = self._tallies.get(lsid)
        return Version(min(tally.durable_versions.values(), default=NO_MORE)) if tally is not None else NO_MORE
