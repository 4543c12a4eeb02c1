"""Reconfigurations: which topics the manager reconfigures just now, and when it may try one again.

Of a topic there is one at a time, since two would only overtake each other. Every reconfiguration holds up appends for
a moment, and one that did not bring what was wanted may not bring it the next time either. So each further try at the
same waits twice as long; what was not tried for a while is forgotten.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from varlog.core.steps import Reconfigure
from varlog.types import TopicID

AGAIN_AFTER: Final = 0.5
"""Between the end of a reconfiguration and the next one for the same reason, and twice as long each time more,"""
AGAIN_AFTER_MOST: Final = 15.0
"""but not longer than this."""
FORGET_AFTER: Final = 60.0
AT_ONCE: Final = 64
"""Of all topics."""


class _Tried(NamedTuple):
    times: int
    ended: float
    not_before: float


class Reconfigurations:
    """See the module's text."""

    def __init__(self) -> None:
        self._under_way: set[TopicID] = set()
        self._tried: dict[object, _Tried] = {}

    def begin(self, wanted: Reconfigure, now: float) -> bool:
        """Whether it is to be done now. If so, `end` must be called."""
        if wanted.tpid in self._under_way or len(self._under_way) >= AT_ONCE:
            return False
        tried = self._tried.get(_reason(wanted))
        if tried is not None and now < tried.not_before:
            return False
        self._under_way.add(wanted.tpid)
        return True

    def end(self, wanted: Reconfigure, now: float) -> None:
        """It is over, whatever came of it."""
        self._under_way.discard(wanted.tpid)
        self._tried = {key: tried for key, tried in self._tried.items() if now - tried.ended < FORGET_AFTER}
        times = self._tried.get(_reason(wanted), _Tried(0, now, now)).times
        pause = min(AGAIN_AFTER * 2**times, AGAIN_AFTER_MOST)
        self._tried[_reason(wanted)] = _Tried(times + 1, now, now + pause)


def _reason(wanted: Reconfigure) -> object:
    """What is to come of it, in whatever epoch."""
    change = wanted.change
    return wanted.tpid, change.suspects, change.joiners, change.leavers
