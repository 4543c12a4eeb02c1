"""Subscription: the client's half of reading a topic in order, without I/O.

It keeps one read under way on every log stream that the merge could be waiting for, on one replica or another, and
delivers what the merge lets through. It survives anything a replica can answer: a slow, restarted or corrupt one is
left for the next, "not yet" is asked again, a gap makes it refresh metadata. It ends only at its end position, or with
`Trimmed` if the log no longer has the next one.

Whoever cannot take more pauses it: nothing is delivered and nothing more is read until it is resumed, so what is held
is at most what was under way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from varlog import errors, limits
from varlog.core.address import Send, node_address
from varlog.core.branches import Branch, Observe
from varlog.core.merging import Chunk, GlsnMerge
from varlog.core.messages import Scan, ScanReply, StreamInfo
from varlog.core.routing import Routing
from varlog.types import GLSN, LogStreamID, StorageNodeID, TopicID

READ_TIMEOUT: Final = 6.0
ASK_AGAIN: Final = 0.05
"""After an answer that was of no use, no replica of the log stream is asked again for so long."""
REFRESH_EVERY: Final = 0.5


class _Fetch:
    __slots__ = ("node", "not_before", "replica", "request", "since")

    def __init__(self, replica: int) -> None:
        self.replica = replica
        self.request = 0
        """The read under way, 0 if there is none."""
        self.node = StorageNodeID(0)
        """Who was asked."""
        self.since = 0.0
        self.not_before = 0.0


class Subscription:
    """See the module's text. `deliver(chunk)` gets every chunk in order; `on_end(error)` is called once, with None at
    the end position."""

    def __init__(
        self,
        tpid: TopicID,
        begin: GLSN,
        end: GLSN | None,
        routing: Routing,
        new_request: Callable[[], int],
        send: Send,
        deliver: Callable[[Chunk], None],
        on_end: Callable[[errors.VarlogError | None], None],
        observe: Observe,
        *,
        affinity: int = 0,
        read_timeout: float = READ_TIMEOUT,
        reply_bytes: int = limits.SCAN_REPLY_BYTES,
    ) -> None:
        self._tpid = tpid
        self._end = end
        self._routing = routing
        self._new_request = new_request
        self._send = send
        self._deliver = deliver
        self._on_end = on_end
        self._observe = observe
        self._affinity = affinity
        self._read_timeout = read_timeout
        self._reply_bytes = reply_bytes
        """How much one read brings, and how much is held of a log stream that is ahead of the others."""
        self._merge = GlsnMerge(begin)
        self._fetches: dict[LogStreamID, _Fetch] = {}
        self._refreshed = 0.0
        self._fruitless = False
        """A replica had nothing to tell: there may be others, or other log streams, by now."""
        self._paused = False
        self.ended = False
        self.wants_metadata = True

    @property
    def next(self) -> GLSN:
        return self._merge.next

    @property
    def outstanding(self) -> int:
        """How many reads are under way."""
        return sum(fetch.request > 0 for fetch in self._fetches.values())

    def pause(self) -> None:
        """Deliver and read nothing until `resume`; what was handed over by one reply may still come."""
        self._paused = True

    def resume(self, now: float) -> None:
        """Go on after `pause`."""
        if self._paused:
            self._paused = False
            if not self.ended:
                self._advance(now)

    def on_metadata(self, now: float) -> None:
        """The routing has been renewed."""
        self.wants_metadata = False
        self._fruitless = False
        self._refreshed = now
        topic = self._routing.topic(self._tpid)
        if topic is None or self.ended:
            return
        for stream in self._routing.streams(self._tpid):
            if stream.lsid not in self._fetches:
                self._fetches[stream.lsid] = _Fetch(self._affinity)
                self._merge.add(stream.lsid)
            self._merge.quiet(stream.lsid, stream.last_glsn, topic.hwm)
        self._advance(now)

    def tick(self, now: float) -> None:
        """Called a few times a second."""
        if self.ended:
            return
        for fetch in self._fetches.values():
            if fetch.request and now - fetch.since > self._read_timeout:
                self._leave(fetch, now)
        self._advance(now)
        unsure = self._merge.blocked or self._fruitless or not self._fetches
        if unsure and now - self._refreshed > REFRESH_EVERY:
            self.wants_metadata = True

    def on_connected(self, snid: StorageNodeID, now: float) -> None:
        """There is a new connection to a node: what it was asked before may be lost."""
        asked = self._asked(snid)
        for fetch in asked:
            fetch.request = 0
        if asked and not self.ended:
            self._advance(now)

    def on_disconnected(self, snid: StorageNodeID, now: float) -> None:
        """A node cannot be reached: what it was asked is asked of others."""
        asked = self._asked(snid)
        for fetch in asked:
            self._leave(fetch, now)
        if asked and not self.ended:
            self._advance(now)

    def _asked(self, snid: StorageNodeID) -> list[_Fetch]:
        return [fetch for fetch in self._fetches.values() if fetch.request and fetch.node == snid]

    def _leave(self, fetch: _Fetch, not_before: float) -> None:
        """Ask the next replica of the log stream, from some time on."""
        fetch.request = 0
        fetch.replica += 1
        fetch.not_before = not_before
        self._fruitless = True

    def on_reply(self, reply: ScanReply, now: float) -> None:
        """What a replica says."""
        fetch = self._fetches.get(reply.lsid)
        if self.ended or fetch is None or fetch.request != reply.request:
            return
        fetch.request = 0
        if reply.code == 0:
            self._merge.offer(reply.lsid, reply.batches, reply.complete_to)
        elif reply.code == errors.Trimmed.code and reply.first > self._merge.next:
            self._finish(errors.Trimmed(reply.first))
            return
        else:
            self._leave(fetch, now + ASK_AGAIN)
        self._advance(now)

    def _advance(self, now: float) -> None:
        if self._end is not None and self._merge.next >= self._end:
            self._finish(None)
            return
        trim = self._routing.trim(self._tpid)
        if self._merge.next <= trim:  # replicas may not know yet
            self._finish(errors.Trimmed(trim + 1))
            return
        if self._paused:
            return
        for chunk in self._merge.poll():
            if not self._hand_over(chunk):
                return
        if self._fetches and self._merge.gap:
            self._observe(Branch.RULE11_GAP_REFRESHED)
            self.wants_metadata = True
        elif self._merge.blocked:
            self._observe(Branch.RULE11_MERGE_WAITED)
        self._read_on(now)

    def _read_on(self, now: float) -> None:
        if self._paused:
            return
        for lsid, fetch in self._fetches.items():
            asks = not fetch.request and now >= fetch.not_before
            if asks and self._merge.buffered_bytes(lsid) < self._reply_bytes:
                self._fetch(lsid, fetch, now)

    def _hand_over(self, chunk: Chunk) -> bool:
        if self._end is not None and chunk.glsn + chunk.count > self._end:
            chunk = chunk._replace(count=self._end - chunk.glsn)
        if chunk.count > 0:
            self._deliver(chunk)
        if self._end is not None and chunk.glsn + chunk.count >= self._end:
            self._finish(None)
        return not self.ended

    def _fetch(self, lsid: LogStreamID, fetch: _Fetch, now: float) -> None:
        stream: StreamInfo | None = self._routing.stream(lsid)
        if stream is None or not stream.replicas:
            return
        fetch.request = self._new_request()
        fetch.since = now
        begin = GLSN(max(self._merge.next, self._merge.complete_to(lsid) + 1))
        fetch.node = stream.replicas[fetch.replica % len(stream.replicas)]
        self._send(node_address(fetch.node), Scan(fetch.request, lsid, begin, self._reply_bytes, wait=True))

    def _finish(self, error: errors.VarlogError | None) -> None:
        self.ended = True
        self._on_end(error)
