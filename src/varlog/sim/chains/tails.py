"""How a simulated client finds the tail of a topic that a sequencer orders: what was given out, confirmed, and is
written or junk (rules 20, 24).
"""

from __future__ import annotations

from collections.abc import Callable

from varlog import errors
from varlog.core.address import METADATA_REPOSITORY, sequencer_address
from varlog.core.chainprefix import Reach
from varlog.core.messages import GetTail, Message, Peek, Peeked, Tail
from varlog.core.trouble import SILENT_SECONDS, Trouble
from varlog.sim.chains.clients import TOPIC, ClientHost
from varlog.types import GLSN


class TailSearch:
    """One search; `done` is told the tail, or that the deadline has passed."""

    def __init__(self, host: ClientHost, deadline: float, done: Callable[[GLSN | errors.VarlogError], None]) -> None:
        self._host = host
        self._deadline = deadline
        self._done = done
        self.is_over = False
        self._request = 0
        self._peeked: Peeked | None = None
        self._reach: Reach | None = None
        self._peeking_at = 0.0

    def begin(self) -> None:
        self._peek()

    def _peek(self) -> None:
        host = self._host
        projection = host.routing.projection(TOPIC)
        self._peeked = None
        self._request = 0
        if projection is None:
            host.refresh()
            self._peeking_at = host.now
            return
        self._request = host.request()
        self._peeking_at = host.now
        host.send(sequencer_address(projection.sequencer), Peek(self._request, TOPIC, projection.epoch))

    def on_message(self, message: Message) -> None:
        """Anything that came; most of it is for others."""
        host = self._host
        if self.is_over or getattr(message, "request", 0) != self._request:
            return
        if isinstance(message, Peeked) and self._peeked is None:
            if message.code == errors.NotSequencer.code:
                self._complain()
            if message.code:
                host.refresh()
                self._request = 0
                return
            self._peeked = message
            self._request = host.request()
            host.send(METADATA_REPOSITORY, GetTail(self._request, TOPIC))
        elif isinstance(message, Tail) and self._peeked is not None and message.code != errors.NotLeader.code:
            if message.code == 0 and message.epoch == self._peeked.epoch:
                self._request = 0
                reach = host.prefix.reach(self._peeked.glsn, self._on_reached, host.now)
                if reach.glsn > host.prefix.verified:  # else it is done already
                    self._reach = reach
            else:
                host.refresh()
                self._request = 0
                self._peeked = None

    def _complain(self) -> None:
        projection = self._host.routing.projection(TOPIC)
        if projection is not None:
            self._host.proposer.complain(Trouble(projection.epoch, sequencers=frozenset({projection.sequencer})))

    def _on_reached(self, error: errors.VarlogError | None) -> None:
        assert self._peeked is not None, "it was asked for first"
        assert error is None, "a prefix gives up only with its client"
        self._end(self._peeked.glsn)

    def _end(self, came: GLSN | errors.VarlogError) -> None:
        self.is_over = True
        self._reach = None
        self._done(came)

    def on_tick(self) -> None:
        host = self._host
        if self.is_over:
            return
        if host.now >= self._deadline:
            if self._reach is not None:
                host.prefix.forget(self._reach)
            self._end(errors.DeadlineExceeded(""))
        elif self._reach is not None:
            if self._never_happened():
                host.prefix.forget(self._reach)
                self._reach = None
                self._peek()
        elif self._request == 0 or host.now - self._peeking_at >= SILENT_SECONDS:
            if self._request and self._peeked is None:
                self._complain()
            host.refresh()
            self._peek()

    def _never_happened(self) -> bool:
        """Whether a later epoch begins before the position that is waited for."""
        projection, peeked = self._host.routing.projection(TOPIC), self._peeked
        return (
            projection is not None
            and peeked is not None
            and projection.epoch > peeked.epoch
            and projection.start <= peeked.glsn
        )
