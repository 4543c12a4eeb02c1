"""Prefix: up to where a topic that a sequencer orders is written without a hole (rule 24).

The end of every scan is such a prefix, never what the sequencer has given out: that may be about to be written. Whoever
wants to know the tail asks the sequencer, and then waits here until everything up to that position is written or junk.
What was given out and is missing is waited for as any reader does, and mended after the interval (`frontiers`).

Only positions are asked for, in runs, and what was verified once stays so. A long log is verified in a few messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from varlog import errors, limits
from varlog.core.address import Send
from varlog.core.frontiers import Frontier, Frontiers, Mend
from varlog.core.messages import ChainPart
from varlog.core.routing import Routing
from varlog.core.trouble import Complain
from varlog.types import GLSN, TopicID

_LITTLE: Final = 1

Done = Callable[[errors.VarlogError | None], None]
"""Told None, or why it ends before."""


class Reach(NamedTuple):
    """Somebody waits for a position."""

    glsn: GLSN
    done: Done


class Prefix(Frontiers):
    """See the module's text."""

    def __init__(
        self,
        tpid: TopicID,
        routing: Routing,
        new_request: Callable[[], int],
        send: Send,
        mend: Mend,
        complain: Complain,
        *,
        fill_after: float = limits.FILL_AFTER_SECONDS,
        wake_at: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__(tpid, routing, new_request, send, mend, complain, fill_after, wake_at)
        self.verified = GLSN(0)
        """Everything up to here is written, junk, or trimmed."""
        self._reaches: list[Reach] = []

    @property
    def outstanding(self) -> int:
        return len(self._reaches)

    def reach(self, glsn: GLSN, done: Done, now: float) -> Reach:
        """Wait until everything is written up to a position, which has been given out for sure (rule 20)."""
        reach = Reach(glsn, done)
        self._reaches.append(reach)
        self._saw_written(GLSN(glsn + 1), now)
        self._advance(now)
        return reach

    def forget(self, reach: Reach) -> None:
        """Nobody waits for it any more."""
        if reach in self._reaches:
            self._reaches.remove(reach)
            self._rest()

    def abandon(self, error: errors.VarlogError) -> None:
        """Nobody is to wait any more."""
        reaches, self._reaches = self._reaches, []
        self._rest()
        for reach in reaches:
            reach.done(error)

    def _rest(self) -> None:
        """Ask nothing while nobody waits."""
        if not self._reaches:
            for frontier in self._frontiers.values():
                frontier.forget()
                frontier.gaps.clear()

    def _begin(self) -> GLSN:
        return GLSN(max(self.verified, self._routing.trim(self._tpid)) + 1)

    def _until(self) -> GLSN:
        return GLSN(max((reach.glsn for reach in self._reaches), default=0) + 1)

    def _advance(self, now: float) -> None:
        if self._projection is None:
            return
        least = min(frontier.position for frontier in self._frontiers.values())
        self.verified = GLSN(max(self.verified, least - 1))
        reached = [reach for reach in self._reaches if reach.glsn <= self.verified]
        self._reaches = [reach for reach in self._reaches if reach.glsn > self.verified]
        self._rest()
        until = self._until()
        for frontier in self._frontiers.values():
            if frontier.question is None and now >= frontier.not_before and frontier.position < until:
                if frontier.is_unwritten:
                    self._read(frontier, _LITTLE, now)
                else:
                    frontier.question = self._digest(frontier, now)
        for reach in reached:
            reach.done(None)

    def _on_trimmed(self, first: GLSN, _now: float) -> None:
        assert self._projection is not None
        for frontier in self._frontiers.values():
            if frontier.position < first:
                frontier.position = self._projection.own_from(frontier.lsid, first)
                frontier.is_unwritten = False

    def _on_part(self, frontier: Frontier, part: ChainPart, _now: float) -> None:
        if part.batches and part.batches[0][0] <= frontier.position:
            frontier.is_unwritten = False  # what else is, will be asked now

    def _on_looked(self, frontier: Frontier, upto: GLSN) -> None:
        assert self._projection is not None
        is_missing = bool(frontier.gaps) and frontier.gaps[0].begin < upto
        at = frontier.gaps[0].begin if is_missing else upto
        if at > frontier.position:
            frontier.position = self._projection.own_from(frontier.lsid, at)
        frontier.is_unwritten = is_missing
