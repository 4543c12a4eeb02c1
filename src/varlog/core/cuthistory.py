"""The cuts that are still held, for replicas that missed some (rule 4)."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Set
from operator import itemgetter
from typing import Final

from varlog import limits
from varlog.core.metastate import Cut, Stream
from varlog.types import CommitContext, LogStreamID, Version

_UNKNOWN: Final = Version(-1)


class CutHistory:
    """The cuts a replica may still have to ask for (rule 4).

    Recent cuts are kept whole. When they are folded, what some replica of a log stream's set does not have on disk yet
    stays, by log stream, and the rest goes: so a replica that is away keeps only its own log streams' cuts alive. A log
    stream that lacks a replica gets no new cuts, so this is little; `MAX_CUTS_HELD` bounds it where a replica stores
    batches and never learns of commits.
    """

    def __init__(self, streams: Mapping[LogStreamID, Stream], held: dict[LogStreamID, list[CommitContext]]) -> None:
        self._streams = streams
        self._cuts: deque[tuple[Version, Cut]] = deque()
        self.held = held

    def add(self, version: Version, cut: Cut) -> None:
        self._cuts.append((version, cut))

    def fold(self, durable_version: Callable[[int], Version]) -> int:
        """Keep of the cuts so far only what `durable_version(lsid)` says is not on every disk; how many went whole."""
        floors: dict[int, Version] = {}
        self.prune(durable_version)
        kept = self.held
        dropped = 0
        for version, cut in self._cuts:
            held = False
            for lsid, epoch, llsn_begin, glsn_begin, count in cut.ranges:
                floor = floors.get(lsid, _UNKNOWN)
                if floor is _UNKNOWN:
                    floors[lsid] = floor = durable_version(lsid)
                if floor < version:
                    held = True
                    context = self._context(version, cut, lsid, epoch, llsn_begin, glsn_begin, count)
                    kept.setdefault(LogStreamID(lsid), []).append(context)
            dropped += not held
        self._cuts.clear()
        return dropped

    def prune(self, durable_version: Callable[[int], Version]) -> None:
        """Let go of what is held and is on every disk by now."""
        kept: dict[LogStreamID, list[CommitContext]] = {}
        for lsid, contexts in self.held.items():
            floor = durable_version(lsid)
            if rest := [cc for cc in contexts if cc.version > floor]:
                kept[lsid] = rest
        self.held = kept

    def full(self) -> Set[int]:
        """The log streams of which so many cuts are held that they should get no more."""
        if not self.held:
            return frozenset()
        most = limits.MAX_CUTS_HELD
        if sum(map(len, self.held.values())) >= limits.MAX_CUTS_HELD_IN_ALL:
            most = 1
        return {lsid for lsid, contexts in self.held.items() if len(contexts) >= most}

    def of_stream(self, lsid: LogStreamID, after: Version, most: int) -> list[CommitContext]:
        """The commits of one log stream in versions after `after`, oldest first."""
        if lsid not in self._streams:
            return []
        found = [cc for cc in self.held.get(lsid, ()) if cc.version > after][:most]
        for version, cut in self._cuts:
            if version <= after:
                continue
            if len(found) == most:
                break
            at = bisect_left(cut.ranges, lsid, key=itemgetter(0))
            if at < len(cut.ranges) and cut.ranges[at][0] == lsid:
                found.append(self._context(version, cut, *cut.ranges[at]))
        return found

    def _context(
        self, version: Version, cut: Cut, lsid: int, epoch: int, llsn_begin: int, glsn_begin: int, count: int
    ) -> CommitContext:
        tpid = self._streams[LogStreamID(lsid)].tpid
        prev_hwm, hwm = next((prev_hwm, hwm) for topic, prev_hwm, hwm in cut.hwms if topic == tpid)
        return CommitContext._make((version, epoch, hwm, prev_hwm, llsn_begin, glsn_begin, count, cut.time))
