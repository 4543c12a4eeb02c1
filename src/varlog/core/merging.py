"""GlsnMerge: many log streams, one order (rule 11).

Each log stream contributes chunks of consecutive GLSNs and the knowledge of how far it is complete. The merge delivers
position n + 1 after n and nothing else. If no log stream has n + 1, it waits while one of them is not known to be
complete that far; if all are, there must be a log stream it has not heard of, and it says so (`gap`). It never skips.

Only ranges are looked at: a batch of a thousand entries is one step.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from varlog.core.messages import StoredLine
from varlog.types import GLSN, LogStreamID


class Chunk(NamedTuple):
    """Consecutive entries of one batch, from `glsn` on: entries `skip` to `skip + count` of the batch."""

    glsn: GLSN
    lsid: LogStreamID
    skip: int
    count: int  # type: ignore[assignment]
    stored: StoredLine


class _Source:
    __slots__ = ("buffered", "chunks", "complete_to")

    def __init__(self, complete_to: GLSN) -> None:
        self.chunks: deque[Chunk] = deque()
        self.buffered = 0
        """Bytes of the chunks' batches."""
        self.complete_to = complete_to


class GlsnMerge:
    """See the module's text."""

    def __init__(self, begin: GLSN) -> None:
        self.next = begin
        self._sources: dict[LogStreamID, _Source] = {}

    def add(self, lsid: LogStreamID) -> None:
        """Merge one more log stream, nothing of which is known."""
        if lsid not in self._sources:
            self._sources[lsid] = _Source(GLSN(self.next - 1))

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
            end = min(glsn + count, complete_to + 1)
            if begin < end:
                source.chunks.append(Chunk(GLSN(begin), lsid, begin - glsn, end - begin, stored))
                source.buffered += len(stored[6])
        source.complete_to = max(source.complete_to, complete_to)

    def quiet(self, lsid: LogStreamID, last_glsn: GLSN, hwm: GLSN) -> None:
        """Metadata says that the log stream's last entry up to `hwm` is at `last_glsn`."""
        source = self._sources[lsid]
        if source.complete_to >= last_glsn:
            source.complete_to = max(source.complete_to, hwm)

    def poll(self) -> list[Chunk]:
        """Everything that can be delivered now, in order."""
        delivered: list[Chunk] = []
        while True:
            for source in self._sources.values():
                if source.chunks and source.chunks[0].glsn == self.next:
                    chunk = source.chunks.popleft()
                    source.buffered -= len(chunk.stored[6])
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

    def _passed(self, source: _Source) -> bool:
        if source.chunks:
            return source.chunks[0].glsn > self.next
        return source.complete_to >= self.next
