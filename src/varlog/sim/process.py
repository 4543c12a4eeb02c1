"""A simulated process: something that lives, stops, dies and comes back, with clocks of its own.

Everything a process does happens in events scheduled with it as their owner. When it is killed its incarnation
changes, and what was scheduled for the old one never happens. While it is paused (a long garbage collection, a
suspended virtual machine) its events wait and then happen in their order, late.

A process has two clocks, both wrong in their own way. `clock()` is the wall clock: skewed from the start, drifting,
and it may jump either way. `monotonic()` drifts but never jumps; delays given to `at` are measured by it. Neither is
the world's own time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varlog.sim.world import Event, World


class Process:
    """Made by `World.process`. Alive until killed; `start` brings it back as a new incarnation."""

    __slots__ = (
        "_backlog",
        "_jumped",
        "_rate",
        "_rate_since",
        "alive",
        "incarnation",
        "name",
        "number",
        "paused",
        "world",
    )

    def __init__(self, world: World, name: str, number: int, skew: float) -> None:
        self.world = world
        self.name = name
        self.number = number
        self.incarnation = 0
        self.alive = True
        self.paused = False
        self._backlog: deque[Event] = deque()
        self._jumped = skew
        self._rate = 1.0
        self._rate_since = (world.now, world.now)

    def at(self, delay: float, fn: Callable[..., object], *args: Any) -> Event:
        """Call `fn(*args)` after so many seconds of this process's clock, unless it is dead or dies before."""
        return self.world.at(delay / self._rate, fn, *args, owner=self)

    # Life

    def kill(self) -> None:
        """End it now. What it had scheduled, and what was on its way to it, is gone."""
        if not self.alive:
            return
        self.alive = False
        self.paused = False
        self.incarnation += 1
        self._backlog.clear()
        self.world.trace("killed", self)

    def start(self) -> None:
        """Bring a killed process back; whoever runs in it has to set it up anew."""
        if self.alive:
            raise ValueError(f"{self.name} is alive")
        self.alive = True
        self.world.trace("started", self)

    def pause(self) -> None:
        if self.alive and not self.paused:
            self.paused = True
            self.world.trace("paused", self)

    def resume(self) -> None:
        """Let it go on: what was due meanwhile happens now, in order."""
        if self.paused:
            self.paused = False
            self.world.trace("resumed", self)
            if self._backlog:
                self.world.at(0.0, self._catch_up, owner=self)

    def defer(self, event: Event) -> None:
        """The world's: an event came due while the process was paused."""
        self._backlog.append(event)

    def _catch_up(self) -> None:
        incarnation = self.incarnation
        while self._backlog and not self.paused and self.incarnation == incarnation:
            self.world.fire(self._backlog.popleft())

    # Clocks

    def monotonic(self) -> float:
        """Seconds since some moment; drifts, never jumps."""
        since, value = self._rate_since
        return value + (self.world.now - since) * self._rate

    def clock(self) -> float:
        """Wall clock in seconds; skewed, drifting, and it jumps."""
        return self.monotonic() + self._jumped

    def jump_clock(self, seconds: float) -> None:
        """The wall clock is set, forward or back."""
        self._jumped += seconds
        self.world.trace("clock jumps by", self, seconds)

    def drift_clock(self, rate: float) -> None:
        """From now on both clocks count `rate` seconds per second."""
        self._rate_since = (self.world.now, self.monotonic())
        self._rate = rate
        self.world.trace("clock drifts by", self, rate)
