"""ChainReads: single positions of a topic that a sequencer orders, each read at its chain's tail, in one round trip.

That a position is not written is told only when the metadata repository has confirmed that the tail was the tail: else
it may have been written meanwhile, in an epoch that this client has not heard of.

A read goes on until its deadline: what a tail of another epoch refuses, or does not answer, is asked again of the next
projection's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from varlog import errors, limits
from varlog.core.address import METADATA_REPOSITORY, Address, Send, node_address
from varlog.core.messages import ChainPart, ChainRead, GetTail, StoredLine, Tail
from varlog.core.projection import Projection
from varlog.core.routing import Routing
from varlog.core.trouble import SILENT_SECONDS, Complain, Complaints
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID, TopicID

ASK_AGAIN: Final = 0.05
_NOBODY: Final = StorageNodeID(0)


class Found(NamedTuple):
    """The batch that has the position."""

    lsid: LogStreamID
    line: StoredLine


Done = Callable[[Found | errors.VarlogError], None]
"""Told what is there; or `Unwritten`, `Trimmed`, `DeadlineExceeded`, `Busy`."""


class SingleRead:
    """One that is under way."""

    __slots__ = ("deadline", "done", "epoch", "glsn", "lsid", "node", "not_before", "request", "since")

    def __init__(self, glsn: GLSN, deadline: float, done: Done, now: float) -> None:
        self.glsn = glsn
        self.deadline = deadline
        self.done = done
        self.since = self.not_before = now
        self.request = 0
        """0 while nothing is asked."""
        self.node: StorageNodeID
        """Who is asked; nobody of the storage nodes while the metadata repository is."""
        self.lsid: LogStreamID
        self.epoch: Epoch


class ChainReads:
    """See the module's text."""

    def __init__(
        self, tpid: TopicID, routing: Routing, new_request: Callable[[], int], send: Send, complain: Complain
    ) -> None:
        self._tpid = tpid
        self._routing = routing
        self._new_request = new_request
        self._send = send
        self._complaints = Complaints(complain)
        self._asked: dict[int, SingleRead] = {}
        self._idle: list[SingleRead] = []
        """They wait for another projection, or for a moment to pass."""
        self._projection: Projection | None = None
        self._tails: dict[LogStreamID, tuple[StorageNodeID, Address]] = {}
        """Of the chains."""
        self.wants_metadata = False

    @property
    def outstanding(self) -> int:
        return len(self._asked) + len(self._idle)

    def read(self, glsn: GLSN, deadline: float, done: Done, now: float) -> SingleRead:
        """Begin to read a position."""
        single = SingleRead(glsn, deadline, done, now)
        if len(self._asked) + len(self._idle) < limits.CLIENT_OPERATIONS:
            self._ask(single, now)
        else:
            done(errors.Busy(f"{limits.CLIENT_OPERATIONS} reads are under way in this client already"))
        return single

    def forget(self, single: SingleRead) -> None:
        """Nobody waits for it any more."""
        self._asked.pop(single.request, None)
        if single in self._idle:
            self._idle.remove(single)

    def abandon(self, error: errors.VarlogError) -> None:
        """Nobody is to wait any more."""
        singles = [*self._asked.values(), *self._idle]
        self._asked.clear()
        self._idle.clear()
        for single in singles:
            single.done(error)

    def _ask(self, single: SingleRead, now: float) -> None:
        glsn, projection = single.glsn, self._projection
        if projection is not None and glsn >= projection.stripes[0].begin:
            lsid, epoch, request = projection.stream_of(glsn), projection.epoch, self._new_request()
            node, address = self._tails[lsid]
            self._send(address, ChainRead(request, lsid, epoch, glsn, 1))
            single.request, single.node, single.lsid, single.epoch, single.since = request, node, lsid, epoch, now
            self._asked[request] = single
        else:
            self._wait(single, now)
        if glsn <= (trim := self._routing.trim(self._tpid)):  # the tail may not know yet
            self.forget(single)
            single.done(errors.Trimmed(trim + 1))

    def _wait(self, single: SingleRead, now: float) -> None:
        """Read it again a little later."""
        single.not_before = now + ASK_AGAIN
        single.request = 0
        self._idle.append(single)
        self.wants_metadata = True

    def _confirm(self, single: SingleRead, now: float) -> None:
        """Ask whether the epoch still is the topic's."""
        single.node, single.since = _NOBODY, now
        single.request = self._new_request()
        self._asked[single.request] = single
        self._send(METADATA_REPOSITORY, GetTail(single.request, self._tpid))

    def on_reply(self, reply: ChainPart | Tail, now: float) -> None:
        """What a tail says, or the metadata repository."""
        single = self._asked.pop(reply.request, None)
        if single is None:
            return
        if isinstance(reply, Tail):
            self._on_confirmed(single, reply, now)
        elif reply.code == 0:
            self._complaints.worked(single.node)
            line = reply.batches[0] if reply.batches else None
            if line is not None and line[0] <= single.glsn < line[0] + line[2]:
                single.done(Found(single.lsid, line))
            else:
                self._confirm(single, now)
        elif reply.code == errors.Trimmed.code and reply.first > single.glsn:
            single.done(errors.Trimmed(reply.first))
        else:
            self._complaints.failed(single.node, reply.code, single.epoch, reply.epoch, now)
            self._wait(single, now)

    def _on_confirmed(self, single: SingleRead, tail: Tail, now: float) -> None:
        if tail.code == 0 and tail.trim >= single.glsn:
            single.done(errors.Trimmed(tail.trim + 1))
        elif tail.code == 0 and tail.epoch == single.epoch:
            single.done(errors.Unwritten(f"nothing is written at {single.glsn}"))
        else:
            self._wait(single, now)

    def on_metadata(self, now: float) -> None:
        """The routing has been renewed."""
        self.wants_metadata = False
        self._projection = projection = self._routing.projection(self._tpid)
        if projection is not None:
            self._tails = {chain.lsid: (chain.tail, node_address(chain.tail)) for chain in projection.chains}
            passed = [single for single in self._asked.values() if single.epoch != projection.epoch]
            if passed:
                self._complaints.clear()
            for single in passed:
                del self._asked[single.request]
                self._ask(single, now)
        self._again(now)

    def _again(self, now: float) -> None:
        idle, self._idle = self._idle, []
        for single in idle:
            if now >= single.not_before:
                self._ask(single, now)
            else:
                self._idle.append(single)

    def on_connected(self, snid: StorageNodeID, now: float) -> None:
        """There is a new connection to a node: what it was asked before may be lost."""
        for single in self._asked_of(snid):
            del self._asked[single.request]
            self._ask(single, now)

    def on_disconnected(self, snid: StorageNodeID, now: float) -> None:
        """A node cannot be reached."""
        for single in self._asked_of(snid):
            self._fail(single, errors.Unreachable.code, now)

    def _asked_of(self, snid: StorageNodeID) -> list[SingleRead]:
        return [single for single in self._asked.values() if single.node == snid]

    def _fail(self, single: SingleRead, code: int, now: float) -> None:
        del self._asked[single.request]
        if single.node != _NOBODY:
            self._complaints.failed(single.node, code, single.epoch, Epoch(0), now)
        self._wait(single, now)

    def tick(self, now: float) -> None:
        """Called a few times a second."""
        for single in [single for single in (*self._asked.values(), *self._idle) if now >= single.deadline]:
            self.forget(single)
            single.done(
                errors.DeadlineExceeded(
                    f"no tail answered for position {single.glsn} in time; see `varlog status` for nodes that are down"
                )
            )
        for single in [single for single in self._asked.values() if now - single.since > SILENT_SECONDS]:
            self._fail(single, errors.DeadlineExceeded.code, now)
        self._again(now)
