"""Mending: what readers found missing for too long is filled, and never what may not have been given out (S5, S9).

The sequencer is asked how far it has given positions out, and then the metadata repository whether it still is the
sequencer: only then does the answer hold (rule 20). What lies up to there is filled, in that epoch. Where the head of
the chain has something already, that is written on down the chain instead: so what a client left half-written when it
died is completed by the next reader.

Nobody is answered. Readers see at the tail what became of it, and ask again as long as something is missing; so what
fails here, an epoch that has passed for example, is simply given up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from varlog import errors
from varlog.core.address import METADATA_REPOSITORY, Send, sequencer_address
from varlog.core.messages import GetTail, Peek, Peeked, Tail
from varlog.core.routing import Routing
from varlog.core.trouble import SILENT_SECONDS, Complain, Trouble
from varlog.types import GLSN, Epoch, StorageNodeID, TopicID

FILL_SECONDS: Final = 5.0
"""So long a fill may take before it is given up."""
MOST: Final = 4096
"""Gaps that wait to be filled; what is beyond is asked for again."""


class Fill(Protocol):
    """`Chains.fill`."""

    def __call__(
        self, glsn: GLSN, count: int, epoch: Epoch, deadline: float, done: Callable[[Any], None], now: float, /
    ) -> object: ...


class _Round(NamedTuple):
    """A question to the sequencer, and the one after it."""

    request: int
    epoch: Epoch
    sequencer: str
    since: float
    peeked: GLSN | None = None


class Mending:
    """See the module's text. `alarm` is called with what must never be: two values at one position (rule 22)."""

    def __init__(
        self,
        tpid: TopicID,
        routing: Routing,
        new_request: Callable[[], int],
        send: Send,
        fill: Fill,
        complain: Complain,
        alarm: Callable[[errors.VarlogError], None],
    ) -> None:
        self._tpid = tpid
        self._routing = routing
        self._new_request = new_request
        self._send = send
        self._fill = fill
        self._complain = complain
        self._alarm = alarm
        self._wanted: dict[GLSN, int] = {}
        self._filling: set[GLSN] = set()
        self._round: _Round | None = None
        self.wants_metadata = False

    @property
    def outstanding(self) -> int:
        return self._round is not None

    def mend(self, glsn: GLSN, count: int, now: float) -> None:
        """See that [glsn, glsn + count) gets written."""
        if glsn not in self._filling and len(self._wanted) < MOST:
            self._wanted[glsn] = count
            if self._round is None:
                self._peek(now)

    def _peek(self, now: float) -> None:
        projection = self._routing.projection(self._tpid)
        if projection is None:
            self._give_up()
            return
        self._round = _Round(self._new_request(), projection.epoch, projection.sequencer, now)
        peek = Peek(self._round.request, self._tpid, projection.epoch)
        self._send(sequencer_address(projection.sequencer), peek)

    def _give_up(self) -> None:
        """What is still missing will be asked for again; by then there may be another projection."""
        self._wanted.clear()
        self._round = None
        self.wants_metadata = True

    def abandon(self, _error: errors.VarlogError) -> None:
        """Nobody is to wait any more."""
        self._wanted.clear()
        self._filling.clear()
        self._round = None

    def on_reply(self, reply: Peeked | Tail, now: float) -> None:
        """What the sequencer says, or the metadata repository."""
        asked = self._round
        if asked is None or reply.request != asked.request:
            return
        if isinstance(reply, Peeked):
            if reply.code == errors.NotSequencer.code:
                self._complain(Trouble(asked.epoch, sequencers=frozenset({asked.sequencer})))
            if reply.code or reply.epoch != asked.epoch:
                self._give_up()
                return
            self._round = asked._replace(request=self._new_request(), peeked=reply.glsn, since=now)
            self._send(METADATA_REPOSITORY, GetTail(self._round.request, self._tpid))
        elif reply.code == 0 and reply.epoch == asked.epoch and asked.peeked is not None:
            self._round = None
            wanted, self._wanted = self._wanted, {}
            for glsn, count in wanted.items():
                self._begin(glsn, min(count, asked.peeked + 1 - glsn), asked.epoch, now)
        else:
            self._give_up()

    def _begin(self, glsn: GLSN, count: int, epoch: Epoch, now: float) -> None:
        def done(outcome: object) -> None:
            self._filling.discard(glsn)
            if isinstance(outcome, errors.ConsistencyViolation):
                self._alarm(outcome)

        if count > 0:
            self._filling.add(glsn)
            self._fill(glsn, count, epoch, now + FILL_SECONDS, done, now)

    def tick(self, now: float) -> None:
        """Called a few times a second."""
        asked = self._round
        if asked is not None and now - asked.since > SILENT_SECONDS:
            if asked.peeked is None:
                self._complain(Trouble(asked.epoch, sequencers=frozenset({asked.sequencer})))
            self._give_up()

    def on_metadata(self, _now: float) -> None:
        """The routing has been renewed."""
        self.wants_metadata = False
        projection = self._routing.projection(self._tpid)
        if self._round is not None and (projection is None or projection.epoch != self._round.epoch):
            self._give_up()
            self.wants_metadata = False

    def on_connected(self, snid: StorageNodeID, now: float) -> None:
        """It asks no storage node."""

    def on_disconnected(self, snid: StorageNodeID, now: float) -> None:
        """It asks no storage node."""
