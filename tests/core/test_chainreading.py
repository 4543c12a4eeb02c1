"""Reading a topic that a sequencer orders: every position once and in order, whatever the tails answer; holes waited
for, then mended, and nothing that might not have been given out."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.chainsketch import Tail, line, metadata, projection
from tests.core.sketch import TOPIC
from varlog import errors
from varlog.core.chainreading import ChainSubscription
from varlog.core.frontiers import ASK_AGAIN, LOOK_EVERY, READ_TIMEOUT, Frontier, missing
from varlog.core.merging import Chunk
from varlog.core.messages import ChainPart, ChainRead, Digest, GetDigest, Message
from varlog.core.projection import NEVER, Projection
from varlog.core.routing import Routing
from varlog.core.trouble import AHEAD_SECONDS, GONE_SECONDS, SILENT_SECONDS, Trouble
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID

FILL_AFTER = 1.0


class Bench:
    """A subscription, lists of what it sent, delivered, mended and complained of, and tails that answer when told."""

    def __init__(self, projected: Projection | None, *, begin: int = 1, end: int | None = None) -> None:
        self.now = 0.0
        self.routing = Routing()
        self.sent: list[tuple[str, ChainRead | GetDigest]] = []
        self.delivered: list[tuple[int, int]] = []
        self.ends: list[errors.VarlogError | None] = []
        self.mended: list[tuple[int, int]] = []
        self.troubles: list[Trouble] = []
        self.wakes: list[float] = []
        self.tails: dict[int, Tail] = {}
        requests = count(1)
        self.subscription = ChainSubscription(
            TOPIC,
            GLSN(begin),
            None if end is None else GLSN(end),
            self.routing,
            lambda: next(requests),
            self._send,
            self._deliver,
            self.ends.append,
            lambda glsn, number, _now: self.mended.append((glsn, number)),
            self.troubles.append,
            fill_after=FILL_AFTER,
            wake_at=self.wakes.append,
            reply_bytes=100,
        )
        self._version = 0
        self.learn(projected)

    def _send(self, address: str, message: Message) -> None:
        assert isinstance(message, ChainRead | GetDigest)
        self.sent.append((address, message))

    def _deliver(self, chunk: Chunk) -> None:
        self.delivered.append((chunk.glsn, chunk.count))

    def learn(self, projected: Projection | None, trim: int = 0) -> None:
        self._version += 1
        assert self.routing.update(metadata(self._version, projected, trim=trim))
        for chain in projected.chains if projected is not None else ():
            self.tails.setdefault(chain.lsid, Tail())
        self.subscription.on_metadata(self.now)

    def asked(self, lsid: int) -> tuple[str, ChainRead]:
        """The last read of a log stream, and whom it was sent to."""
        return [(to, asked) for to, asked in self.sent if asked.lsid == lsid and isinstance(asked, ChainRead)][-1]

    def looks(self) -> list[GetDigest]:
        return [asked for _, asked in self.sent if isinstance(asked, GetDigest)]

    def serve(self) -> None:
        """The tails answer what they were asked, as long as they have something to say."""
        waiting = self.sent
        while waiting:
            self.sent = []
            held = []
            for to, asked in waiting:
                tail = self.tails[asked.lsid]
                if isinstance(asked, GetDigest):
                    self.subscription.on_reply(tail.digest(asked), self.now)
                elif tail.answers(asked):
                    self.subscription.on_reply(tail.part(asked), self.now)
                else:
                    held.append((to, asked))
            waiting = self.sent
            self.sent = held + waiting
            if waiting:
                waiting = self.sent

    def refuse(self, lsid: int, error: type[errors.VarlogError], *, epoch: int = 1, first: int = 0) -> None:
        _, asked = self.asked(lsid)
        self.subscription.on_reply(
            ChainPart(asked.request, asked.lsid, error.code, Epoch(epoch), first=GLSN(first)), self.now
        )

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.subscription.tick(self.now)


ONE = {1: (1, 2, 3)}
TWO = {1: (1, 2, 3), 2: (2, 3, 1)}


def test_S4_each_log_stream_is_read_at_its_tail_from_its_first_position_on() -> None:
    bench = Bench(projection(TWO), begin=2)
    assert [
        (to, read.lsid, read.glsn, read.epoch, read.wait) for to, read in bench.sent if isinstance(read, ChainRead)
    ] == [
        ("sn/3", 1, 2, 1, True),
        ("sn/1", 2, 5, 1, True),
    ]
    bench.pass_time(0.1)
    assert len(bench.sent) == 2


def test_blocks_of_log_streams_are_delivered_in_order_of_their_positions() -> None:
    bench = Bench(projection(TWO))
    bench.tails[2].write(5, 4)
    bench.serve()
    assert bench.delivered == []
    bench.tails[1].write(1, 3)
    bench.tails[1].write(4)
    bench.tails[1].write(9)
    bench.serve()
    assert bench.delivered == [(1, 3), (4, 1), (5, 4), (9, 1)]
    assert not bench.mended


def test_a_part_of_a_batch_is_delivered_where_one_begins_or_ends_within_it() -> None:
    bench = Bench(projection(ONE), begin=2, end=4)
    bench.tails[1].write(1, 4)
    bench.serve()
    assert bench.delivered == [(2, 2)]
    assert bench.ends == [None]


def test_what_was_written_out_of_order_is_delivered_in_order_and_not_told_twice() -> None:
    bench = Bench(projection(ONE))
    bench.tails[1].write(2, data=b"x" * 60)
    bench.tails[1].write(3, data=b"x" * 60)
    bench.serve()
    assert bench.delivered == []
    assert bench.asked(1)[1].max_bytes == 1
    bench.tails[1].write(1)
    bench.serve()
    assert bench.delivered == [(1, 1), (2, 1), (3, 1)]
    assert bench.asked(1)[1].max_bytes == 100


def test_S5_a_hole_below_others_is_mended_after_the_interval_and_not_before() -> None:
    bench = Bench(projection(ONE))
    bench.tails[1].write(3)
    bench.serve()
    bench.pass_time(FILL_AFTER * 0.9)
    bench.serve()
    assert not bench.mended
    bench.pass_time(FILL_AFTER * 0.2)
    assert bench.mended == [(1, 2)]
    bench.tails[1].write(1, 2, data=b"")
    bench.serve()
    assert bench.delivered == [(1, 2), (3, 1)]


def test_a_hole_that_its_writer_closes_in_time_is_not_mended() -> None:
    bench = Bench(projection(ONE))
    bench.tails[1].write(2)
    bench.serve()
    bench.pass_time(FILL_AFTER * 0.9)
    bench.tails[1].write(1)
    bench.serve()
    bench.pass_time(FILL_AFTER)
    assert not bench.mended
    assert bench.delivered == [(1, 1), (2, 1)]


def test_several_holes_are_mended_after_one_interval() -> None:
    bench = Bench(projection(ONE, block=100))
    for position in (2, 4, 6):
        bench.tails[1].write(position)
    bench.serve()
    bench.tails[1].write(5)
    bench.pass_time(FILL_AFTER)
    assert bench.mended == [(1, 1)]
    bench.serve()
    assert bench.mended == [(1, 1), (3, 1)], "the tail is asked what else is missing"


def test_it_is_woken_when_the_next_hole_is_due() -> None:
    bench = Bench(projection(ONE, block=100))
    bench.tails[1].write(2)
    bench.serve()
    assert bench.wakes == [FILL_AFTER]
    bench.tails[1].write(4)
    bench.pass_time(FILL_AFTER * 0.5)
    bench.serve()
    assert bench.wakes == [FILL_AFTER], "once for the first of them"
    bench.pass_time(FILL_AFTER * 0.5)
    assert bench.wakes == [FILL_AFTER, FILL_AFTER * 1.5]
    assert bench.mended == [(1, 1)]
    bench.pass_time(FILL_AFTER * 0.5)
    bench.serve()
    assert (3, 1) in bench.mended


def test_a_hole_that_appears_later_has_an_interval_of_its_own() -> None:
    bench = Bench(projection(ONE, block=100))
    bench.tails[1].write(2)
    bench.serve()
    bench.pass_time(FILL_AFTER * 0.6)
    bench.tails[1].write(5)
    bench.serve()
    bench.pass_time(FILL_AFTER * 0.5)
    bench.serve()
    assert bench.mended == [(1, 1)]


def test_a_hole_is_a_hole_because_of_what_another_log_stream_has() -> None:
    bench = Bench(projection(TWO))
    bench.tails[1].write(1, 3)
    bench.serve()
    bench.tails[2].write(5)
    bench.serve()
    bench.pass_time(FILL_AFTER)
    bench.serve()
    assert bench.mended == [(4, 1)], "what is its log stream's own, and below what is written"


def test_what_is_missing_is_asked_for_again_as_long_as_it_is() -> None:
    bench = Bench(projection(ONE))
    bench.tails[1].write(2)
    bench.serve()
    for _ in range(20):
        bench.pass_time(FILL_AFTER / 10)
        bench.serve()
    assert bench.mended[:2] == [(1, 1), (1, 1)]
    assert len(bench.mended) <= 4


def test_rule24_nothing_is_mended_at_the_end_of_the_log_nor_beyond_the_end_of_a_scan() -> None:
    idle = Bench(projection(TWO))
    idle.tails[1].write(1, 2)
    idle.serve()
    scan = Bench(projection(ONE), end=3)
    scan.tails[1].write(5)
    scan.serve()
    for bench in (idle, scan):
        for _ in range(50):
            bench.pass_time(0.1)
            bench.serve()
    assert not idle.mended
    assert scan.mended[0] == (1, 2)


def test_S8_a_tail_of_another_epoch_makes_it_renew_the_projection() -> None:
    bench = Bench(projection(ONE))
    bench.refuse(1, errors.StaleEpoch, epoch=2)
    assert bench.subscription.wants_metadata
    assert not bench.troubles, "the projection may be on its way"
    bench.learn(projection({1: (1, 2)}, epoch=2, start=1))
    assert bench.asked(1)[0] == "sn/2"
    assert bench.asked(1)[1].epoch == 2


def test_rule22_an_epoch_that_no_projection_follows_is_complained_of() -> None:
    bench = Bench(projection(ONE))
    bench.refuse(1, errors.StaleEpoch, epoch=5)
    bench.pass_time(AHEAD_SECONDS + ASK_AGAIN)
    bench.refuse(1, errors.StaleEpoch, epoch=5)
    assert bench.troubles == [Trouble(Epoch(1), seen=Epoch(5))]


@pytest.mark.parametrize("error", [errors.LeaseExpired, errors.NoSource, errors.Poisoned])
def test_a_tail_that_does_not_serve_is_complained_of_and_asked_again(error: type[errors.VarlogError]) -> None:
    bench = Bench(projection(ONE))
    bench.refuse(1, error)
    assert bench.troubles == [Trouble(Epoch(1), frozenset({StorageNodeID(3)}))]
    assert len(bench.sent) == 1
    bench.pass_time(2 * ASK_AGAIN)
    assert len(bench.sent) == 2


def test_a_tail_that_is_gone_is_complained_of_when_it_does_not_come_back() -> None:
    bench = Bench(projection(ONE))
    bench.subscription.on_disconnected(StorageNodeID(2), bench.now)
    bench.subscription.on_disconnected(StorageNodeID(3), bench.now)
    assert not bench.troubles
    bench.pass_time(GONE_SECONDS + ASK_AGAIN)
    bench.subscription.on_disconnected(StorageNodeID(3), bench.now)
    assert bench.troubles == [Trouble(Epoch(1), frozenset({StorageNodeID(3)}))]
    bench.subscription.on_connected(StorageNodeID(3), bench.now)
    bench.tails[1].write(1)
    bench.sent = bench.sent[-1:]
    bench.serve()
    assert bench.delivered == [(1, 1)]


def test_a_tail_that_hangs_is_looked_at_and_complained_of() -> None:
    bench = Bench(projection(ONE))
    bench.pass_time(LOOK_EVERY)
    assert len(bench.looks()) == 1
    bench.pass_time(SILENT_SECONDS + 0.1)
    assert bench.troubles == [Trouble(Epoch(1), frozenset({StorageNodeID(3)}))]


def test_S8_a_tail_that_was_left_out_and_does_not_know_is_found_out() -> None:
    """It was cut off from who made the projection, and is waited at by somebody who can reach it."""
    bench = Bench(projection(ONE))
    bench.serve()
    before = bench.subscription.wants_metadata
    bench.pass_time(LOOK_EVERY)
    bench.serve()
    assert (before, bench.subscription.wants_metadata) == (False, True)
    bench.learn(projection({1: (1, 2)}, epoch=2))
    assert bench.asked(1)[0] == "sn/2"


def test_a_tail_that_has_nothing_to_tell_is_left_alone() -> None:
    bench = Bench(projection(ONE))
    bench.serve()
    for _ in range(100):
        bench.pass_time(0.1)
        bench.serve()
        if bench.now - round(bench.now / 5) * 5 < 0.05:  # it tires
            _, asked = bench.asked(1)
            bench.sent.clear()
            bench.subscription.on_reply(bench.tails[1].part(asked), bench.now)
    assert READ_TIMEOUT > 5
    assert not bench.troubles
    assert not bench.mended


def test_a_trim_ends_it() -> None:
    told = Bench(projection(ONE))
    told.refuse(1, errors.Trimmed, first=4)
    known = Bench(projection(ONE))
    known.learn(projection(ONE, epoch=2), trim=3)
    for bench in (told, known):
        (error,) = bench.ends
        assert isinstance(error, errors.Trimmed)
        assert error.first == 4


def test_S2_when_the_stripes_change_everything_is_where_the_new_ones_say() -> None:
    bench = Bench(projection(TWO))
    bench.tails[1].write(1, 4)
    bench.tails[2].write(5)
    bench.serve()
    assert bench.delivered == [(1, 4), (5, 1)]
    chains = {**TWO, 3: (1,)}
    bench.learn(projection(chains, epoch=2, start=6, stripes=((1, (1, 2)), (6, (3, 1, 2)))))
    assert {lsid: bench.asked(lsid)[1].glsn for lsid in chains} == {1: 10, 2: 14, 3: 6}
    bench.tails[3].write(6, 4)
    bench.tails[1].write(10)
    bench.serve()
    assert bench.delivered == [(1, 4), (5, 1), (6, 4), (10, 1)]


def test_a_log_stream_that_gets_no_more_positions_is_not_read() -> None:
    chains = {1: (1,), 2: (2,)}
    bench = Bench(projection(chains, start=5, stripes=((1, (1,)), (5, (2,)))), begin=5)
    assert [read.lsid for _, read in bench.sent] == [2]


def test_while_it_is_paused_nothing_is_delivered_or_read() -> None:
    bench = Bench(projection(ONE))
    bench.subscription.pause()
    bench.tails[1].write(1)
    bench.serve()
    assert bench.delivered == []
    bench.subscription.resume(bench.now)
    bench.serve()
    assert bench.delivered == [(1, 1)]


def test_before_its_first_projection_a_topic_is_waited_for() -> None:
    bench = Bench(None)
    assert bench.sent == []
    bench.pass_time(1.0)
    assert bench.subscription.wants_metadata
    bench.learn(projection(ONE))
    assert len(bench.sent) == 1


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    bench = Bench(projection(ONE))
    bench.subscription.on_reply(ChainPart(99, LogStreamID(1), 0, Epoch(1), (line(1),), GLSN(2)), bench.now)
    bench.subscription.on_reply(Digest(1, LogStreamID(9), 0, Epoch(1)), bench.now)
    assert bench.delivered == []


def test_gaps_are_known_since_they_were_first_seen() -> None:
    frontier = Frontier(LogStreamID(1), GLSN(1))
    frontier.note([(GLSN(1), GLSN(4))], GLSN(10), 1.0)
    frontier.note([(GLSN(2), GLSN(6)), (GLSN(8), GLSN(9))], GLSN(10), 2.0)
    assert [gap[:3] for gap in frontier.gaps] == [(2, 4, 1.0), (4, 6, 2.0), (8, 9, 2.0)]
    frontier.note([], GLSN(6), 3.0)
    assert [gap[:3] for gap in frontier.gaps] == [(8, 9, 2.0)]


@given(
    widths=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3),
    block=st.integers(1, 5),
    data=st.data(),
)
def test_what_is_missing_is_every_own_position_that_is_not_written(
    widths: list[tuple[int, int]], block: int, data: st.DataObject
) -> None:
    stripes: list[tuple[int, tuple[int, ...]]] = [(1, (1, 2, 3))]
    begin = 1 + block
    for width, blocks in widths:
        stripes.append((begin, tuple(range(1, width + 1))))
        begin += block * blocks + data.draw(st.integers(0, block))
    made = projection(dict.fromkeys((1, 2, 3), (1,)), block=block, start=100, stripes=tuple(stripes))
    own = {lsid: {n for n in range(1, 60) if made.stream_of(GLSN(n)) == lsid} for lsid in (1, 2, 3)}
    lsid = data.draw(st.sampled_from((1, 2, 3)))
    held = sorted(data.draw(st.sets(st.sampled_from(sorted(own[lsid]))) if own[lsid] else st.just(set())))
    first, last = sorted((data.draw(st.integers(1, 59)), data.draw(st.integers(1, 59))))
    found = missing(made, LogStreamID(lsid), GLSN(first), GLSN(last), [(n, n + 1) for n in held if n >= first])
    assert [n for a, b in found for n in range(a, b)] == sorted(
        n for n in own[lsid] if first <= n < last and n not in held
    )
    assert all(made.block_end(a) >= b for a, b in found)
    assert made.own_from(LogStreamID(lsid), GLSN(60)) >= 60
    assert NEVER > 60


@given(data=st.data())
def test_rule24_whatever_the_order_of_writes_and_answers_every_position_comes_once(data: st.DataObject) -> None:
    """Grants are written in any order, some at the very end; epochs and stripes change; answers come or are lost."""
    block, chains = data.draw(st.integers(2, 6)), {1: (1, 2), 2: (2, 1)}
    current = projection(chains, block=block)
    bench = Bench(current)
    granted: list[tuple[int, int]] = []
    at = 1
    for _ in range(data.draw(st.integers(1, 25))):
        event = data.draw(st.sampled_from(("grant", "grant", "write", "serve", "lose", "seal", "time")))
        if event == "grant":
            number = min(data.draw(st.integers(1, block)), current.block_end(GLSN(at)) - at)
            granted.append((at, number))
            at += number
        elif event == "write" and granted:
            glsn, number = granted.pop(data.draw(st.integers(0, len(granted) - 1)))
            bench.tails[current.stream_of(GLSN(glsn))].write(glsn, number)
        elif event == "serve":
            bench.serve()
        elif event == "lose":
            node = StorageNodeID(data.draw(st.integers(1, 2)))
            bench.sent = [(to, asked) for to, asked in bench.sent if to != f"sn/{node}"]
            bench.subscription.on_connected(node, bench.now)
        elif event == "seal":
            lsids = data.draw(st.sampled_from(((1,), (2,), (1, 2), (2, 1))))
            stripes: tuple[tuple[int, tuple[int, ...]], ...] = tuple(
                (stripe.begin, stripe.lsids) for stripe in current.stripes if stripe.begin < at
            )
            if {1, 2} <= {lsid for _, old in (*stripes, (at, lsids)) for lsid in old}:
                stripes = (*stripes, (at, lsids))
                current = projection(chains, epoch=current.epoch + 1, block=block, start=at, stripes=stripes)
                bench.learn(current)
        else:
            bench.pass_time(data.draw(st.sampled_from((0.05, 0.3, 1.0))))
    bench.serve()
    for glsn, number in granted:  # as `mend` would have it in the end
        bench.tails[current.stream_of(GLSN(glsn))].write(glsn, number)
    bench.pass_time(2 * ASK_AGAIN)
    bench.serve()
    assert [n for glsn, number in bench.delivered for n in range(glsn, glsn + number)] == list(range(1, at))
    assert all(glsn + number <= at for glsn, number in bench.mended), "nothing that was not given out"
