"""Single reads at the tail: one round trip, and "unwritten" only of the tail that is one."""

from __future__ import annotations

from itertools import count

import pytest

from tests.core.chainsketch import line, metadata, projection
from tests.core.sketch import TOPIC
from varlog import errors, limits
from varlog.core.address import METADATA_REPOSITORY
from varlog.core.chainreads import ASK_AGAIN, ChainReads, Found, SingleRead
from varlog.core.messages import ChainPart, ChainRead, GetTail, Message, StoredLine, Tail
from varlog.core.projection import Projection
from varlog.core.routing import Routing
from varlog.core.trouble import SILENT_SECONDS, Trouble
from varlog.types import GLSN, Epoch, StorageNodeID

TWO = {1: (1, 2, 3), 2: (2, 3, 1)}


class Bench:
    """Reads, and lists of what they sent and found."""

    def __init__(self, projected: Projection | None = None) -> None:
        self.now = 0.0
        self.routing = Routing()
        self.sent: list[tuple[str, Message]] = []
        self.found: list[Found | errors.VarlogError] = []
        self.troubles: list[Trouble] = []
        requests = count(1)
        self.reads = ChainReads(
            TOPIC,
            self.routing,
            lambda: next(requests),
            lambda address, message: self.sent.append((address, message)),
            self.troubles.append,
        )
        self._version = 0
        self.learn(projected or projection(TWO))

    def learn(self, projected: Projection, trim: int = 0) -> None:
        self._version += 1
        assert self.routing.update(metadata(self._version, projected, trim=trim))
        self.reads.on_metadata(self.now)

    def read(self, glsn: int) -> SingleRead:
        return self.reads.read(GLSN(glsn), self.now + 10.0, self.found.append, self.now)

    def answer(self, *lines: StoredLine, code: int = 0, epoch: int = 1, first: int = 0) -> None:
        _, asked = self.sent[-1]
        assert isinstance(asked, ChainRead)
        end = lines[-1][0] + lines[-1][2] if lines else 0
        self.reads.on_reply(
            ChainPart(asked.request, asked.lsid, code, Epoch(epoch), lines, GLSN(end), first=GLSN(first)), self.now
        )

    def confirm(self, epoch: int = 1, trim: int = 0) -> None:
        address, asked = self.sent[-1]
        assert address == METADATA_REPOSITORY
        assert isinstance(asked, GetTail)
        self.reads.on_reply(Tail(asked.request, 0, trim=GLSN(trim), epoch=Epoch(epoch)), self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.reads.tick(self.now)


def test_S4_a_position_is_read_at_its_tail_in_one_round_trip() -> None:
    bench = Bench()
    bench.read(6)
    ((address, asked),) = bench.sent
    assert address == "sn/1"
    assert isinstance(asked, ChainRead)
    assert (asked.lsid, asked.glsn, asked.epoch, asked.wait) == (2, 6, 1, False)
    bench.answer(line(5, 3))
    assert bench.found == [Found(asked.lsid, line(5, 3))]
    assert bench.reads.outstanding == 0


def test_rule20_unwritten_is_told_when_the_epoch_is_confirmed() -> None:
    bench = Bench()
    bench.read(2)
    bench.answer(line(3))
    assert not bench.found
    bench.confirm()
    (error,) = bench.found
    assert isinstance(error, errors.Unwritten)


def test_S8_what_a_tail_of_the_past_does_not_have_is_read_in_the_present() -> None:
    bench = Bench()
    bench.read(2)
    bench.answer()
    bench.confirm(epoch=2)
    assert bench.reads.wants_metadata
    assert not bench.found
    bench.now += ASK_AGAIN
    bench.learn(projection({1: (1, 2), 2: (2, 3, 1)}, epoch=2))
    assert bench.sent[-1][0] == "sn/2"
    bench.answer(line(2))
    assert len(bench.found) == 1


def test_a_tail_that_is_stale_silent_or_gone_is_asked_again_and_complained_of() -> None:
    bench = Bench()
    bench.read(1)
    bench.answer(code=errors.StaleEpoch.code, epoch=2)
    assert not bench.troubles
    bench.pass_time(2 * ASK_AGAIN)
    assert len(bench.sent) == 2
    bench.pass_time(SILENT_SECONDS + 0.1)
    assert bench.troubles == [Trouble(Epoch(1), frozenset({StorageNodeID(3)}))]
    bench.pass_time(2 * ASK_AGAIN)
    bench.reads.on_disconnected(StorageNodeID(3), bench.now)
    assert len(bench.troubles) == 2
    bench.pass_time(2 * ASK_AGAIN)
    bench.reads.on_connected(StorageNodeID(3), bench.now)
    bench.answer(line(1))
    assert len(bench.found) == 1


def test_a_new_projection_is_asked_at_once() -> None:
    bench = Bench()
    bench.read(1)
    bench.learn(projection({1: (1, 2), 2: (2, 3)}, epoch=2))
    assert [address for address, _ in bench.sent] == ["sn/3", "sn/2"]


def test_what_is_trimmed_is_told_so() -> None:
    bench = Bench()
    bench.read(1)
    bench.answer(code=errors.Trimmed.code, first=5)
    bench.read(2)
    bench.answer()
    bench.confirm(trim=4)
    bench.learn(projection(TWO, epoch=2), trim=4)
    bench.read(3)
    assert [error.first for error in bench.found if isinstance(error, errors.Trimmed)] == [5, 5, 5]


def test_a_read_that_nobody_waits_for_is_forgotten() -> None:
    bench = Bench()
    asked = bench.read(1)
    bench.reads.forget(asked)
    bench.answer(line(1))
    waiting = bench.read(1)
    bench.answer(code=errors.LeaseExpired.code)
    bench.reads.forget(waiting)
    bench.pass_time(1.0)
    assert not bench.found
    assert bench.reads.outstanding == 0


def test_only_so_many_reads_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENT_OPERATIONS", 2)
    bench = Bench()
    for glsn in (1, 2, 3):
        bench.read(glsn)
    assert [type(error) for error in bench.found] == [errors.Busy]
    assert len(bench.sent) == 2


def test_a_read_ends_at_its_deadline_or_when_everything_does() -> None:
    bench = Bench()
    bench.read(1)
    bench.pass_time(10.0)
    bench.read(1)
    bench.reads.abandon(errors.Closed("the client was closed"))
    assert [type(error) for error in bench.found] == [errors.DeadlineExceeded, errors.Closed]
    assert bench.reads.outstanding == 0
