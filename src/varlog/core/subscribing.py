"""Subscription: the client's half of reading a topic in order, without I/O.

It keeps one read under way on every log stream that the merge could be waiting for, on one replica or another, and
delivers what the merge lets through. It survives anything a replica can answer: a restarted or corrupt one, or one that
left the set, is left for the next, "not yet" is asked again, a gap makes it refresh metadata. It ends only at its end
position, with `Trimmed` if the log no longer has the next one, or with `Lost` if nobody has it any more.

A replica need not answer before there is something to tell, so one that hangs looks like one that waits. Where no
answer has come for a while another replica is asked as well, for a little, and whoever answers first is asked from then
on. Who should have answered then and did not has failed, and is avoided for a while by everybody (M11).

Whoever cannot take more pauses it: nothing is delivered and nothing more is read until it is resumed, so what is held
is at most what was under way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from varlog import errors, limits
from varlog.core.address import Send, node_address
from varlog.core.branches import Branch, Observe
from varlog.core.delivering import Deliver, Delivery, OnEnd
from varlog.core.merging import BEYOND
from varlog.core.messages import Scan, ScanReply, StreamInfo
from varlog.core.routing import Routing
from varlog.types import GLSN, LogStreamID, StorageNodeID, TopicID

READ_TIMEOUT: Final = 6.0
"""Longer than a replica waits for something to tell."""
ASK_ANOTHER: Final = 0.5
"""After so long without an answer one more replica is asked; and so much later than it others may still answer."""
ASK_AGAIN: Final = 0.05
"""After an answer that was of no use, no replica of the log stream is asked again for so long."""
REFRESH_EVERY: Final = 0.25


class _Read(NamedTuple):
    """A question to a replica."""

    request: int
    node: StorageNodeID
    since: float


class _Fetch:
    """What is asked of the replicas of one log stream."""

    __slots__ = ("late", "lsid", "not_before", "reads", "turn")

    def __init__(self, lsid: LogStreamID, turn: int) -> None:
        self.lsid = lsid
        self.turn = turn
        """Whose turn it is, among the replicas."""
        self.reads: list[_Read] = []
        """Under way, in the order they were asked."""
        self.late: list[_Read] = []
        """Outrun by another replica, at `since`."""
        self.not_before = 0.0


class Subscription(Delivery):
    """See the module's text."""

    def __init__(
        self,
        tpid: TopicID,
        begin: GLSN,
        end: GLSN | None,
        routing: Routing,
        new_request: Callable[[], int],
        send: Send,
        deliver: Deliver,
        on_end: OnEnd,
        observe: Observe,
        *,
        affinity: int = 0,
        read_timeout: float = READ_TIMEOUT,
        ask_another: float = ASK_ANOTHER,
        reply_bytes: int = limits.SCAN_REPLY_BYTES,
        verdicts: bool = False,
    ) -> None:
        super().__init__(tpid, begin, end, routing, deliver, on_end)
        self._new_request = new_request
        self._send = send
        self._observe = observe
        self._affinity = affinity
        self._read_timeout = read_timeout
        self._ask_another = ask_another
        self._reply_bytes = reply_bytes
        """How much one read brings, and how much is held of a log stream that is ahead of the others."""
        self._verdicts = verdicts
        """Nothing else is wanted; of everything else only the positions are told."""
        self._fetches: dict[LogStreamID, _Fetch] = {}
        self._refreshed = 0.0
        self._fruitless = False
        """A replica had nothing to tell: there may be others, or other log streams, by now."""

    @property
    def outstanding(self) -> int:
        """How many reads are under way."""
        return sum(len(fetch.reads) for fetch in self._fetches.values())

    # What is known of the cluster

    def on_metadata(self, now: float) -> None:
        """The routing has been renewed."""
        self.wants_metadata = False
        self._fruitless = False
        self._refreshed = now
        topic = self._routing.topic(self._tpid)
        if topic is None or self.ended:
            return
        streams = self._routing.streams(self._tpid)
        for stream in streams:
            fetch = self._fetches.get(stream.lsid)
            if fetch is None:
                fetch = self._fetches[stream.lsid] = _Fetch(stream.lsid, self._affinity)
                self._merge.add(stream.lsid)
            fetch.reads = [read for read in fetch.reads if read.node in stream.replicas]
            if stream.lost_end:  # where nobody is left, nobody has what came before it either
                self._merge.lose(stream.lsid, stream.lost_begin if stream.replicas else GLSN(1), stream.lost_end)
            self._merge.quiet(stream.lsid, stream.last_glsn, topic.hwm)
        for lsid in self._fetches.keys() - {stream.lsid for stream in streams}:
            del self._fetches[lsid]
            self._merge.remove(lsid)
        self._advance(now)

    def on_connected(self, snid: StorageNodeID, now: float) -> None:
        """There is a new connection to a node: what it was asked before may be lost."""
        asked = self._asked(snid)
        for fetch in asked:
            fetch.reads = [read for read in fetch.reads if read.node != snid]
            fetch.late = [read for read in fetch.late if read.node != snid]
        if asked and not self.ended:
            self._advance(now)

    def on_disconnected(self, snid: StorageNodeID, now: float) -> None:
        """A node cannot be reached: what it was asked is asked of others."""
        asked = self._asked(snid)
        for fetch in asked:
            if any(read.node == snid for read in fetch.reads):
                self._leave(fetch, snid, now)
            fetch.late = [read for read in fetch.late if read.node != snid]
        if asked and not self.ended:
            self._advance(now)

    def _asked(self, snid: StorageNodeID) -> list[_Fetch]:
        return [f for f in self._fetches.values() if any(read.node == snid for read in (*f.reads, *f.late))]

    def _leave(self, fetch: _Fetch, snid: StorageNodeID, not_before: float) -> None:
        """Ask other replicas of the log stream than this one, from some time on."""
        fetch.reads = [read for read in fetch.reads if read.node != snid]
        fetch.turn = self._place(fetch, snid) + 1
        fetch.not_before = not_before
        self._fruitless = True

    def tick(self, now: float) -> None:
        """Called a few times a second."""
        if self.ended:
            return
        for fetch in self._fetches.values():
            for read in fetch.reads:
                if now - read.since > self._read_timeout:
                    self._routing.nodes_avoided.failed(read.node, now)
                    self._leave(fetch, read.node, now)
            self._blame(fetch, now, self._ask_another)
        self._advance(now)
        unsure = self._merge.blocked or self._fruitless or not self._fetches
        if unsure and now - self._refreshed > REFRESH_EVERY:
            self.wants_metadata = True

    def _blame(self, fetch: _Fetch, now: float, grace: float) -> None:
        """Who has not answered for so long after another replica did has failed, or is no replica of it any more."""
        failed = [read for read in fetch.late if now - read.since >= grace]
        for read in failed:
            fetch.late.remove(read)
            self._routing.nodes_avoided.failed(read.node, now)
            self._fruitless = True

    # Answers

    def on_reply(self, reply: ScanReply, now: float) -> None:
        """What a replica says."""
        fetch = self._fetches.get(reply.lsid)
        if self.ended or fetch is None:
            return
        read = next((read for read in (*fetch.reads, *fetch.late) if read.request == reply.request), None)
        if read is None:
            return
        is_late = read in fetch.late
        if is_late:
            fetch.late.remove(read)
        if reply.code == 0:
            if not is_late:
                self._prefer(fetch, read, now)
            self._merge.offer(reply.lsid, reply.batches, reply.complete_to)  # which takes what is new of it
        elif reply.code == errors.Trimmed.code and reply.first > self._merge.next:
            self._finish(errors.Trimmed(reply.first), now)
            return
        elif not is_late:
            self._leave(fetch, read.node, now + ASK_AGAIN)
        self._advance(now)

    def _prefer(self, fetch: _Fetch, read: _Read, now: float) -> None:
        """Go on with who answered first; the others have a little more time to show that they are well."""
        fetch.late += [other._replace(since=now) for other in fetch.reads if other is not read]
        fetch.reads.clear()
        fetch.turn = self._place(fetch, read.node)
        if self._routing.nodes_avoided:
            self._routing.nodes_avoided.worked(read.node)

    def _place(self, fetch: _Fetch, snid: StorageNodeID) -> int:
        """The turn of a replica."""
        stream = self._routing.stream(fetch.lsid)
        return stream.replicas.index(snid) if stream is not None and snid in stream.replicas else fetch.turn

    def _go_on(self, now: float) -> None:
        if self._fetches and self._merge.gap:
            if (lost := self._merge.lost) is not None:
                self._finish(errors.Lost(*lost), now)
                return
            self._observe(Branch.RULE11_GAP_REFRESHED)
            self.wants_metadata = True
        elif self._merge.blocked:
            self._observe(Branch.RULE11_MERGE_WAITED)
        self._read_on(now)

    def _finish(self, error: errors.VarlogError | None, now: float) -> None:
        for fetch in self._fetches.values():
            self._blame(fetch, now, 0.0)  # nobody will wait for them any more
        super()._finish(error, now)

    # Questions

    def _read_on(self, now: float) -> None:
        if self._paused:
            return
        for lsid, fetch in self._fetches.items():
            if now < fetch.not_before or (fetch.reads and now - fetch.reads[-1].since < self._ask_another):
                continue
            if self._merge.buffered_bytes(lsid) < self._reply_bytes:
                self._fetch(fetch, now)

    def _fetch(self, fetch: _Fetch, now: float) -> None:
        """Ask a replica, if there is anything to ask for; beside others only one that is well, and for a little."""
        stream: StreamInfo | None = self._routing.stream(fetch.lsid)
        complete_to = self._merge.complete_to(fetch.lsid)
        begin = GLSN(max(self._merge.next, complete_to + 1))
        is_enough = self._end is not None and begin >= self._end and not self._merge.is_lost
        if stream is None or complete_to == BEYOND or is_enough:
            return
        asked = [read.node for read in fetch.reads]
        snid = next(self._routing.in_turn(stream.replicas, fetch.turn, now, asked), None)
        if snid is None or (asked and self._routing.nodes_avoided.avoids(snid, now)):
            return
        read = _Read(self._new_request(), snid, now)
        fetch.reads.append(read)
        most = 1 if asked else self._reply_bytes
        scan = Scan(read.request, fetch.lsid, begin, most, wait=True, verdicts=self._verdicts)
        self._send(node_address(snid), scan)
