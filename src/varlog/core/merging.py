"""GlsnMerge: many log streams, one order (rule 11).

Each log stream contributes chunks of consecutive GLSNs and the knowledge of how far it is complete. The merge delivers
position n + 1 after n and nothing else. If no log stream has n + 1, it waits while one of them is not known to be
complete that far; if all are, there must be a log stream it has not heard of, and it says so (`gap`). It never skips.

Of a log stream that an operator has declared lost from a position on, nothing beyond that position is waited for or
delivered. If then nobody has the next position, and it lies in what was lost, the merge says what is missing (`lost`).

Only ranges are looked at: a batch of a thousand entries is one step.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from varlog.core.messages import StoredLine
from varlog.types import GLSN, LogStreamID

BEYOND: Final = GLSN((1 << 63) - 1)
"""Beyond every position: who is complete to it has nothing more to tell."""

LINE_BYTES: Final = 256
"""What a line without a batch counts for, that what is held of them is bounded too."""


class Chunk(NamedTuple):
    """Consecutive entries of one batch, from `glsn` on: entries `skip` to `skip + count` of the batch."""

    glsn: GLSN
    lsid: LogStreamID
    skip: int
    count: int  # type: ignore[assignment]
    stored: StoredLine


class _Source:
    __slots__ = ("buffered", "chunks", "complete_to", "lost_begin", "lost_end")

    def __init__(self, complete_to: GLSN) -> None:
        self.chunks: deque[Chunk] = deque()
        self.buffered = 0
        """Bytes of the chunks' batches."""
        self.complete_to = complete_to
        self.lost_begin = self.lost_end = BEYOND

    def raise_to(self, complete_to: GLSN) -> None:
        """It is known to be complete that far."""
        self.complete_to = max(self.complete_to, complete_to)
        if self.complete_to >= self.lost_begin - 1:
            self.complete_to = BEYOND


class GlsnMerge:
    """See the module's text."""

    def __init__(self, begin: GLSN) -> None:
        self.next = begin
        self._sources: dict[LogStreamID, _Source] = {}

    def add(self, lsid: LogStreamID) -> None:
        """Merge one more log stream, nothing of which is known."""
        if lsid not in self._sources:
            self._sources[lsid] = _Source(GLSN(self.next - 1))

    def remove(self, lsid: LogStreamID) -> None:
        """A log stream is no more: nobody can be waiting for what it had. What was read of it before is delivered."""
        self._sources[lsid].raise_to(BEYOND)

    def lose(self, lsid: LogStreamID, begin: GLSN, end: GLSN) -> None:
        """What a log stream had in [begin, end) is lost, and nothing comes after that."""
        source = self._sources[lsid]
        source.lost_begin, source.lost_end = begin, end
        source.raise_to(source.complete_to)

    def complete_to(self, lsid: LogStreamID) -> GLSN:
        return self._sources[lsid].complete_to

    def buffered_bytes(self, lsid: LogStreamID) -> int:
        return self._sources[lsid].buffered

    def offer(self, lsid: LogStreamID, batches: tuple[StoredLine, ...], complete_to: GLSN) -> None:
        """What a log stream holds from its `complete_to` on, up to and including the new one."""
        source = self._sources[lsid]
        for stored in batches:
            glsn, count = stored[0], stored[2]
            begin = max(glsn, source.complete_to + 1)
            end = min(glsn + count, complete_to + 1, source.lost_begin)
            if begin < end:
                source.chunks.append(Chunk(GLSN(begin), lsid, begin - glsn, end - begin, stored))
                source.buffered += len(stored[6]) or LINE_BYTES
        source.raise_to(complete_to)

    def quiet(self, lsid: LogStreamID, last_glsn: GLSN, hwm: GLSN) -> None:
        """Metadata says that the log stream's last entry up to `hwm` is at `last_glsn`."""
        source = self._sources[lsid]
        if source.complete_to >= last_glsn:
            source.raise_to(hwm)

    def poll(self) -> list[Chunk]:
        """Everything that can be delivered now, in order."""
        delivered: list[Chunk] = []
        while True:
            for source in self._sources.values():
                if source.chunks and source.chunks[0].glsn == self.next:
                    chunk = source.chunks.popleft()
                    source.buffered -= len(chunk.stored[6]) or LINE_BYTES
                    delivered.append(chunk)
                    self.next = GLSN(self.next + chunk.count)
                    break
            else:
                return delivered

    @property
    def blocked(self) -> bool:
        """Some log stream is known to be past the next position, and it cannot be delivered."""
        return any(self._passed(source) for source in self._sources.values())

    @property
    def gap(self) -> bool:
        """Every log stream is complete at the next position and none has it."""
        return all(self._passed(source) for source in self._sources.values())

    @property
    def is_lost(self) -> bool:
        """The next position is gone: nobody has it, and it lies in what was lost."""
        return self.gap and any(s.lost_begin <= self.next < s.lost_end for s in self._sources.values())

    @property
    def lost(self) -> tuple[GLSN, GLSN] | None:
        """What is gone from the next position on, up to the next that exists; None if nothing is, or if it is not known
        yet where the log goes on."""
        if not self.is_lost:
            return None
        end = self.next
        for begin, lost_end in sorted((s.lost_begin, s.lost_end) for s in self._sources.values()):
            if begin <= end < lost_end < BEYOND:
                end = lost_end
        end = min([end, *(source.chunks[0].glsn for source in self._sources.values() if source.chunks)])
        known_to = min(source.complete_to for source in self._sources.values())
        return (self.next, end) if known_to >= end - 1 else None

    def _passed(self, source: _Source) -> bool:
        if source.chunks:
            return source.chunks[0].glsn > self.next
        return source.complete_to >= self.next
