"""The tail of a topic that a sequencer orders: everything up to it is written or junk, waited for or mended."""

from __future__ import annotations

from itertools import count

from tests.core.chainsketch import Tail, metadata, projection
from tests.core.sketch import TOPIC
from varlog import errors
from varlog.core.chainprefix import Prefix, Reach
from varlog.core.frontiers import READ_TIMEOUT
from varlog.core.messages import ChainRead, GetDigest, Message
from varlog.core.projection import Projection
from varlog.core.routing import Routing
from varlog.core.trouble import SILENT_SECONDS, Trouble
from varlog.types import GLSN

FILL_AFTER = 1.0
TWO = {1: (1, 2, 3), 2: (2, 3, 1)}


class Bench:
    """A prefix, and tails that answer when told."""

    def __init__(self, projected: Projection) -> None:
        self.now = 0.0
        self.routing = Routing()
        self.sent: list[ChainRead | GetDigest] = []
        self.mended: list[tuple[int, int]] = []
        self.troubles: list[Trouble] = []
        self.reached: list[int] = []
        self.given_up: list[int] = []
        self.tails = {1: Tail(), 2: Tail(), 3: Tail()}
        requests = count(1)
        self.prefix = Prefix(
            TOPIC,
            self.routing,
            lambda: next(requests),
            self._send,
            lambda glsn, number, _now: self.mended.append((glsn, number)),
            self.troubles.append,
            fill_after=FILL_AFTER,
        )
        self._version = 0
        self.learn(projected)

    def _send(self, _address: str, message: Message) -> None:
        assert isinstance(message, ChainRead | GetDigest)
        self.sent.append(message)

    def learn(self, projected: Projection, trim: int = 0) -> None:
        self._version += 1
        assert self.routing.update(metadata(self._version, projected, trim=trim))
        self.prefix.on_metadata(self.now)

    def reach(self, glsn: int) -> Reach:
        return self.prefix.reach(GLSN(glsn), lambda error: self._on_reached(glsn, error), self.now)

    def _on_reached(self, glsn: int, error: errors.VarlogError | None) -> None:
        (self.reached if error is None else self.given_up).append(glsn)

    def serve(self) -> int:
        """The tails answer as long as they have something to say; returns how often."""
        answers = 0
        while asked := next((q for q in self.sent if isinstance(q, GetDigest) or self.tails[q.lsid].answers(q)), None):
            self.sent.remove(asked)
            tail = self.tails[asked.lsid]
            reply = tail.digest(asked) if isinstance(asked, GetDigest) else tail.part(asked)
            self.prefix.on_reply(reply, self.now)
            answers += 1
        return answers

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.prefix.tick(self.now)


def test_what_is_written_up_to_a_position_is_verified_by_one_question_to_each_log_stream() -> None:
    bench = Bench(projection(TWO))
    for begin in (1, 9, 17):
        bench.tails[1].write(begin, 4)
        bench.tails[2].write(begin + 4, 4)
    assert not bench.sent
    bench.reach(24)
    assert bench.serve() == 2
    assert bench.reached == [24]
    assert bench.prefix.verified == 24
    bench.reach(20)
    assert bench.reached == [24, 20]
    assert not bench.sent


def test_what_is_being_written_is_waited_for() -> None:
    bench = Bench(projection(TWO))
    bench.tails[1].write(1, 3)
    bench.tails[2].write(5)
    bench.reach(6)
    bench.serve()
    assert bench.prefix.verified == 3
    bench.tails[2].write(6)
    bench.serve()
    assert not bench.reached
    bench.tails[1].write(4)
    bench.serve()
    assert bench.reached == [6]
    assert not bench.mended
    assert bench.prefix.outstanding == 0


def test_rule24_what_stays_missing_is_mended_after_the_interval_and_nothing_beyond() -> None:
    bench = Bench(projection(TWO))
    bench.tails[1].write(1)
    bench.reach(6)
    bench.serve()
    bench.pass_time(FILL_AFTER / 2)
    bench.serve()
    assert not bench.mended
    bench.pass_time(FILL_AFTER / 2)
    bench.serve()
    assert sorted(bench.mended) == [(2, 3), (5, 2)]
    bench.tails[1].write(2, 3)
    bench.tails[2].write(5, 2)
    bench.serve()
    assert bench.reached == [6]


def test_nothing_is_asked_while_nobody_waits() -> None:
    bench = Bench(projection(TWO))
    reach = bench.reach(6)
    bench.serve()
    bench.prefix.forget(reach)
    bench.sent.clear()
    for _ in range(100):
        bench.pass_time(0.1)
    assert not bench.sent
    assert not bench.mended
    bench.tails[1].write(1, 4)
    bench.tails[2].write(5, 2)
    bench.pass_time(READ_TIMEOUT)
    bench.reach(6)
    bench.serve()
    assert bench.reached == [6]
    assert not bench.troubles


def test_what_is_trimmed_need_not_be_there() -> None:
    bench = Bench(projection(TWO))
    for tail in bench.tails.values():
        tail.trim = 9
    bench.tails[1].write(10)
    bench.reach(10)
    bench.serve()
    assert bench.reached == [10]


def test_a_new_projection_is_gone_on_with() -> None:
    bench = Bench(projection(TWO))
    bench.tails[1].write(1, 4)
    bench.reach(8)
    bench.serve()
    chains = {**TWO, 3: (1,)}
    bench.learn(projection(chains, epoch=2, start=6, stripes=((1, (1, 2)), (6, (3, 1, 2)))))
    bench.tails[2].write(5)
    bench.tails[3].write(6, 3)
    bench.serve()
    assert bench.reached == [8]


def test_a_tail_that_does_not_answer_is_complained_of() -> None:
    bench = Bench(projection(TWO))
    bench.reach(1)
    assert len(bench.sent) == 1, "the other log stream has nothing up to there"
    bench.pass_time(SILENT_SECONDS + 0.1)
    assert [trouble.nodes for trouble in bench.troubles] == [{3}]


def test_when_everything_ends_nobody_waits_any_more() -> None:
    bench = Bench(projection(TWO))
    bench.reach(3)
    bench.prefix.abandon(errors.Closed("the client was closed"))
    assert bench.given_up == [3]
    assert bench.prefix.outstanding == 0
