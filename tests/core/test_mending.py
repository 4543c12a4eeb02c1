"""Holes are filled up to what the sequencer has given out, as long as it is the sequencer, and never beyond."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from tests.core.chainsketch import SEQUENCER, metadata, projection
from tests.core.sketch import TOPIC
from varlog import errors
from varlog.core.address import METADATA_REPOSITORY, sequencer_address
from varlog.core.mending import Mending
from varlog.core.messages import GetTail, Message, Peek, Peeked, Tail
from varlog.core.routing import Routing
from varlog.core.trouble import SILENT_SECONDS, Trouble
from varlog.types import GLSN, Epoch


class Bench:
    """Mending, and lists of what it sent, filled and complained of."""

    def __init__(self) -> None:
        self.now = 0.0
        self.routing = Routing()
        self.sent: list[tuple[str, Message]] = []
        self.fills: list[tuple[int, int, int]] = []
        self.done: list[Callable[[Any], None]] = []
        self.troubles: list[Trouble] = []
        self.alarms: list[errors.VarlogError] = []
        requests = count(1)
        self.mending = Mending(
            TOPIC,
            self.routing,
            lambda: next(requests),
            lambda address, message: self.sent.append((address, message)),
            self._fill,
            self.troubles.append,
            self.alarms.append,
        )
        self.learn(1)

    def learn(self, epoch: int) -> None:
        assert self.routing.update(metadata(epoch, projection({1: (1, 2)}, epoch=epoch)))
        self.mending.on_metadata(self.now)

    def _fill(
        self, glsn: GLSN, number: int, epoch: Epoch, deadline: float, done: Callable[[Any], None], now: float
    ) -> None:
        assert deadline > now
        self.fills.append((glsn, number, epoch))
        self.done.append(done)

    def mend(self, glsn: int, number: int = 1) -> None:
        self.mending.mend(GLSN(glsn), number, self.now)

    def peeked(self, glsn: int, *, code: int = 0, epoch: int = 1) -> None:
        address, peek = self.sent[-1]
        assert address == sequencer_address(SEQUENCER)
        assert isinstance(peek, Peek)
        self.mending.on_reply(Peeked(peek.request, code, Epoch(epoch), GLSN(glsn)), self.now)

    def confirmed(self, epoch: int = 1) -> None:
        address, asked = self.sent[-1]
        assert address == METADATA_REPOSITORY
        assert isinstance(asked, GetTail)
        self.mending.on_reply(Tail(asked.request, 0, epoch=Epoch(epoch)), self.now)


def test_rule20_a_hole_is_filled_when_the_peek_is_confirmed_and_not_above_it() -> None:
    bench = Bench()
    bench.mend(3, 2)
    bench.mend(9, 4)
    bench.mend(20)
    bench.peeked(10)
    assert not bench.fills
    bench.confirmed()
    assert bench.fills == [(3, 2, 1), (9, 2, 1)]
    assert bench.mending.outstanding == 0


def test_a_peek_that_is_not_confirmed_fills_nothing() -> None:
    bench = Bench()
    bench.mend(3)
    bench.peeked(10)
    bench.confirmed(epoch=2)
    assert not bench.fills
    assert bench.mending.wants_metadata
    bench.learn(2)
    bench.mend(3)
    bench.peeked(10, epoch=2)
    bench.confirmed(epoch=2)
    assert bench.fills == [(3, 1, 2)]


def test_a_projection_that_comes_in_between_voids_what_was_asked() -> None:
    bench = Bench()
    bench.mend(3)
    bench.peeked(10)
    bench.learn(2)
    bench.confirmed()
    assert not bench.fills


def test_what_is_being_filled_is_not_filled_twice() -> None:
    bench = Bench()
    bench.mend(3)
    bench.peeked(10)
    bench.confirmed()
    bench.sent.clear()
    bench.mend(3)
    assert not bench.sent
    bench.done.pop()(errors.DeadlineExceeded("too slow"))
    bench.mend(3)
    assert len(bench.sent) == 1
    assert not bench.alarms


def test_a_sequencer_that_is_none_or_is_silent_is_complained_of() -> None:
    refused, silent = Bench(), Bench()
    refused.mend(3)
    refused.peeked(0, code=errors.NotSequencer.code)
    silent.mend(3)
    silent.now = SILENT_SECONDS + 0.1
    silent.mending.tick(silent.now)
    for bench in (refused, silent):
        assert bench.troubles == [Trouble(Epoch(1), sequencers=frozenset({SEQUENCER}))]
        assert bench.mending.wants_metadata
        assert not bench.mending.outstanding


def test_rule22_two_values_at_one_position_raise_an_alarm() -> None:
    bench = Bench()
    bench.mend(3)
    bench.peeked(10)
    bench.confirmed()
    bench.done.pop()(errors.ConsistencyViolation("two values"))
    assert len(bench.alarms) == 1
