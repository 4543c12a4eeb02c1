"""Polling: looking for the next message again and again for a moment, before the process goes to sleep.

Waking a process costs more than an append that comes alone has to spare: its core may have to be woken first, which
takes some ten microseconds, in a virtual machine more, at every step of the way. Who has done one of these steps is
asked for another in a fraction of a millisecond, and may as well stay up for it.

That is done only where it has lately paid: if the last wait of the same kind, which the owner names, was over *soon*.
So a cluster at rest sleeps, appends that come now and then cost what they did before, and the first wait that takes
longer ends it. Between two looks everybody else who wants the core is let through.

Processes that share few cores also *give way* to those who have to do the next step (`give_way`). Where somebody keeps
the core for long then, cores are wanted for other things, or this process has used up what it is allowed of them: who
would stand in that line again and again is better off asleep, because a process that is woken goes first. So for a
while nothing of all this is done, and if it is found again right afterwards, for twice as long.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import perf_counter
from typing import Final

SOON: Final = 0.001
"""Waits that are over within this time are worth looking, though it may take less than that."""
LONG: Final = 0.001
"""Nobody who takes part in an append keeps a core for this time."""
PAUSE: Final = 0.1
MOST_PAUSE: Final = 60.0
"""From the one to the other, after somebody did."""


class Polling:
    """See the module's text. Up to so many microseconds of a wait are spent looking; with 0 none is."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        microseconds: float,
        clock: Callable[[], float] = perf_counter,
        let_others_run: Callable[[], None] = os.sched_yield,
    ) -> None:
        self._call_soon = loop.call_soon
        self._seconds = microseconds * 1e-6
        self._clock = clock
        self._let_others_run = let_others_run
        self._was_soon_over = [False, False]
        """The last wait of either kind."""
        self._kind = False
        self._since: float | None = None
        """When this wait began, if it has."""
        self._until = 0.0
        self._is_looking = False
        self._crowded_until = 0.0
        self._pause = PAUSE

    def rest(self, kind: bool) -> None:
        """All that has come is done, and a wait of that kind begins."""
        if not self._seconds:
            return
        self._since = now = self._clock()
        self._kind = kind
        if self._was_soon_over[kind]:
            self._until = now + self._seconds
            if not self._is_looking:
                self._is_looking = True
                self._call_soon(self._look)

    def wake(self) -> None:
        """Something has come."""
        if self._since is not None:
            self._was_soon_over[self._kind] = self._clock() - self._since < SOON
            self._since = None
            self._until = 0.0

    def give_way(self) -> bool:
        """Let others have the core first; whether that makes sense at present."""
        before = self._clock()
        if before < self._crowded_until:
            return False
        self._let_others_run()
        if (now := self._clock()) - before > LONG:
            is_again = before < self._crowded_until + self._pause
            self._pause = min(2 * self._pause, MOST_PAUSE) if is_again else PAUSE
            self._crowded_until = now + self._pause
        return True

    def _look(self) -> None:
        """The loop looks at its sockets between this and the next time."""
        if self.give_way() and self._clock() < self._until:
            self._call_soon(self._look)
        else:
            self._is_looking = False
