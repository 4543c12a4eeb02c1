"""Delivery: what every subscription does with what the merge lets through, wherever that was read.

Chunks are handed over in order, each once, up to the end position if there is one. A trim ends it with `Trimmed` when
it overtakes the next position. While it is paused nothing is handed over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from varlog import errors
from varlog.core.merging import Chunk, GlsnMerge
from varlog.core.routing import Routing
from varlog.types import GLSN, TopicID

Deliver = Callable[[Chunk], None]
OnEnd = Callable[[errors.VarlogError | None], None]


class Delivery(ABC):
    """See the module's text. `deliver(chunk)` gets every chunk in order; `on_end(error)` is called once, with None at
    the end position."""

    def __init__(
        self, tpid: TopicID, begin: GLSN, end: GLSN | None, routing: Routing, deliver: Deliver, on_end: OnEnd
    ) -> None:
        self._tpid = tpid
        self._end = end
        self._routing = routing
        self._deliver = deliver
        self._on_end = on_end
        self._merge = GlsnMerge(begin)
        self._paused = False
        self.ended = False
        self.wants_metadata = True

    @property
    def next(self) -> GLSN:
        return self._merge.next

    def pause(self) -> None:
        """Deliver and read nothing until `resume`; what was handed over by one reply may still come."""
        self._paused = True

    def resume(self, now: float) -> None:
        """Go on after `pause`."""
        if self._paused:
            self._paused = False
            if not self.ended:
                self._advance(now)

    @abstractmethod
    def _go_on(self, now: float) -> None:
        """Everything there is was handed over: see to it that there will be more."""

    def _advance(self, now: float) -> None:
        if self._end is not None and self._merge.next >= self._end:
            self._finish(None, now)
            return
        trim = self._routing.trim(self._tpid)
        if self._merge.next <= trim:  # replicas may not know yet
            self._finish(errors.Trimmed(trim + 1), now)
            return
        if self._paused:
            return
        for chunk in self._merge.poll():
            if not self._hand_over(chunk, now):
                return
        self._go_on(now)

    def _hand_over(self, chunk: Chunk, now: float) -> bool:
        if self._end is not None and chunk.glsn + chunk.count > self._end:
            chunk = chunk._replace(count=self._end - chunk.glsn)
        if chunk.count > 0:
            self._deliver(chunk)
        if self._end is not None and chunk.glsn + chunk.count >= self._end:
            self._finish(None, now)
        return not self.ended

    def _finish(self, error: errors.VarlogError | None, _now: float) -> None:
        self.ended = True
        self._on_end(error)
