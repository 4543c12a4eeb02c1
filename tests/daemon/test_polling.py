"""A daemon looks for its next message before it sleeps, if the last ones came soon and nobody else wants the core."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from varlog.daemon.polling import LONG, MOST_PAUSE, PAUSE, SOON, Polling

WINDOW = 300
LOOK = 10e-6
"""What one look takes here."""


class Machine:
    """A loop, a clock, and others who want the core now and then."""

    def __init__(self, microseconds: float = WINDOW) -> None:
        self.now = 100.0
        self.ready: deque[Callable[[], Any]] = deque()
        self.others_take = 0.0
        """How long others keep the core when they are let through."""
        self.given_way = 0
        loop: Any = SimpleNamespace(call_soon=self.ready.append)
        self.polling = Polling(loop, microseconds, lambda: self.now, self._let_others_run)

    def _let_others_run(self) -> None:
        self.given_way += 1
        self.now += self.others_take

    def wait(self, seconds: float) -> int:
        """The next message comes after so long; how often the loop has looked for it until then."""
        end, looks = self.now + seconds, 0
        while self.ready and self.now < end:
            self.ready.popleft()()
            self.now += LOOK
            looks += 1
        self.now = max(self.now, end)
        self.polling.wake()
        return looks

    def turns(self, *waits: float, kind: bool = False) -> list[int]:
        """Messages that come after these waits, and how often each was looked for."""
        looks = []
        for seconds in waits:
            self.polling.rest(kind)
            looks.append(self.wait(seconds))
        return looks


def test_a_wait_is_spent_looking_if_the_last_one_was_soon_over() -> None:
    first, second, third = Machine().turns(100e-6, 100e-6, 200e-6)
    assert first == 0
    assert second == pytest.approx(10, abs=1)
    assert third == pytest.approx(20, abs=1)


def test_looking_ends_when_it_takes_longer_than_it_may() -> None:
    machine = Machine()
    machine.turns(100e-6)
    (looks,) = machine.turns(0.9 * SOON)
    assert looks == pytest.approx(WINDOW * 1e-6 / LOOK, abs=2)
    assert not machine.ready, "nothing is left that would keep the loop awake"


def test_the_first_wait_that_takes_long_ends_it() -> None:
    machine = Machine()
    machine.turns(100e-6)
    spent, *later = machine.turns(1.0, 1.0, 1.0, 1.0)
    assert spent > 0
    assert later == [0, 0, 0]


def test_a_daemon_at_rest_never_looks() -> None:
    machine = Machine()
    assert machine.turns(1.0, 0.5, SOON, 1.0) == [0, 0, 0, 0]
    assert machine.given_way == 0


def test_each_kind_of_wait_has_its_own_past() -> None:
    machine = Machine()
    machine.turns(100e-6, kind=True)
    assert machine.turns(1.0, 1.0, kind=False) == [0, 0]
    (looks,) = machine.turns(100e-6, kind=True)
    assert looks > 0


def test_what_comes_while_it_looks_does_not_make_it_look_twice() -> None:
    machine = Machine()
    machine.turns(100e-6, 50e-6, 50e-6, 50e-6)
    assert len(machine.ready) <= 1


def test_others_who_want_the_core_are_let_through_at_every_look() -> None:
    machine = Machine()
    machine.turns(100e-6)
    machine.others_take = 20e-6
    (looks,) = machine.turns(200e-6)
    assert machine.given_way == looks > 0


def test_where_cores_are_wanted_for_other_things_it_sleeps_and_gives_way_to_nobody() -> None:
    machine = Machine()
    machine.turns(100e-6)
    machine.others_take = 2 * LONG
    assert machine.turns(100e-6) == [1]
    machine.others_take = 0.0
    assert not machine.polling.give_way()
    machine.turns(100e-6)
    assert machine.turns(100e-6) == [1], "it finds out, and sleeps"
    assert machine.given_way == 1
    machine.now += PAUSE
    assert machine.polling.give_way()
    machine.turns(100e-6)
    (looks,) = machine.turns(100e-6)
    assert looks > 1


def test_where_cores_are_wanted_for_long_it_hardly_tries() -> None:
    machine = Machine()
    machine.others_take = 3e-3
    begun = machine.now
    while machine.now < begun + 10 * MOST_PAUSE:
        machine.polling.give_way()
        machine.now += 1e-3
    assert machine.given_way < 25
    machine.now += 3 * MOST_PAUSE
    assert machine.polling.give_way(), "they may have been wanted by somebody else now"
    machine.now += 1.1 * PAUSE
    assert machine.polling.give_way()


def test_with_0_it_never_looks_but_gives_way() -> None:
    machine = Machine(0)
    assert machine.turns(100e-6, 100e-6, 100e-6) == [0, 0, 0]
    assert machine.polling.give_way()
    assert machine.given_way == 1
