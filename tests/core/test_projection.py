"""Projections: which position lies where, compared with counting; what is none; and which may follow which."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from varlog import errors, limits
from varlog.core.projection import MAX_EPOCH, NEVER, Chain, Projection, Stripe, check, check_follows
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID

ONE, TWO, THREE = LogStreamID(1), LogStreamID(2), LogStreamID(3)
STREAMS = (ONE, TWO, THREE)
HORIZON = 60
"""Positions are counted up to here."""


def stripe(begin: int, block: int, *lsids: int) -> Stripe:
    return Stripe(GLSN(begin), block, tuple(map(LogStreamID, lsids)))


def chain(lsid: int, *snids: int) -> Chain:
    return Chain(LogStreamID(lsid), tuple(map(StorageNodeID, snids)))


def projection(stripes: Sequence[Stripe], *, epoch: int = 1, start: int = HORIZON, time: int = 0) -> Projection:
    """With a chain for every log stream that is named."""
    lsids = sorted({lsid for stripe in stripes for lsid in stripe.lsids})
    chains = tuple(chain(lsid, 1, 2, 3) for lsid in lsids)
    return Projection(Epoch(epoch), "host:1", 7, GLSN(start), time, tuple(stripes), chains)


@st.composite
def stripings(draw: st.DrawFn) -> tuple[Stripe, ...]:
    begins = sorted(draw(st.sets(st.integers(1, HORIZON // 2), min_size=1, max_size=4)))
    lsids = st.permutations(STREAMS).flatmap(lambda order: st.integers(1, 3).map(lambda n: order[:n]))
    return tuple(stripe(begin, draw(st.integers(1, 7)), *draw(lsids)) for begin in begins)


def counted(stripes: Sequence[Stripe]) -> dict[int, tuple[LogStreamID, int]]:
    """The log stream of every position up to the horizon, and where its block ends: dealt out one by one."""
    dealt: dict[int, tuple[LogStreamID, int]] = {}
    for number, stripe in enumerate(stripes):
        end = stripes[number + 1].begin if number + 1 < len(stripes) else HORIZON
        at, turn = int(stripe.begin), 0
        while at < end:
            last = number + 1 == len(stripes)
            block_end = at + stripe.block if last else min(end, at + stripe.block)
            for position in range(at, min(end, block_end)):
                dealt[position] = (stripe.lsids[turn % len(stripe.lsids)], block_end)
            at, turn = block_end, turn + 1
    return dealt


# Which position lies where


def test_S2_positions_are_dealt_to_the_log_streams_in_blocks() -> None:
    found = projection([stripe(1, 3, 1, 2), stripe(8, 2, 2, 1, 3)])
    assert [found.stream_of(GLSN(p)) for p in range(1, 17)] == [1, 1, 1, 2, 2, 2, 1, 2, 2, 1, 1, 3, 3, 2, 2, 1]
    assert [found.block_end(GLSN(p)) for p in (1, 3, 4, 7, 8, 9, 13)] == [4, 4, 7, 8, 10, 10, 14]
    assert [found.own_from(THREE, GLSN(p)) for p in (1, 12, 13, 14)] == [12, 12, 13, 18]
    assert found.own_from(LogStreamID(9), GLSN(1)) == NEVER


@given(stripings())
def test_S2_every_position_lies_in_the_log_stream_that_counting_finds(stripes: tuple[Stripe, ...]) -> None:
    found = projection(stripes)
    for position, (lsid, block_end) in counted(stripes).items():
        assert found.stream_of(GLSN(position)) == lsid
        assert found.block_end(GLSN(position)) == block_end


@given(stripings())
def test_rule24_a_block_is_of_one_log_stream(stripes: tuple[Stripe, ...]) -> None:
    """So what is granted within one is written to one replica chain, as one batch."""
    found = projection(stripes)
    at = stripes[0].begin
    while at < HORIZON:
        end = found.block_end(at)
        assert end > at
        assert {found.stream_of(GLSN(position)) for position in range(at, end)} == {found.stream_of(at)}
        at = end


@given(stripings(), st.sampled_from(STREAMS))
def test_S2_the_next_position_of_a_log_stream_is_the_one_that_counting_finds(
    stripes: tuple[Stripe, ...], lsid: LogStreamID
) -> None:
    found, dealt = projection(stripes), counted(stripes)
    for position in range(HORIZON // 2):
        own = found.own_from(lsid, GLSN(position))
        later = [p for p, (owner, _) in dealt.items() if owner == lsid and p >= position]
        if later:
            assert own == later[0]
        else:
            assert own >= HORIZON
            assert (own == NEVER) == (lsid not in stripes[-1].lsids)


@given(stripings(), st.sampled_from(STREAMS), st.integers(0, 1 << 62))
def test_S2_what_is_said_of_positions_far_away_fits_together(
    stripes: tuple[Stripe, ...], lsid: LogStreamID, position: int
) -> None:
    found = projection(stripes)
    own = found.own_from(lsid, GLSN(position))
    if own != NEVER:
        assert own >= position
        assert found.stream_of(own) == lsid
        assert found.own_from(lsid, own) == own
        if position >= stripes[0].begin:
            assert own == position or found.stream_of(GLSN(own - 1)) != lsid or own == found.block_end(GLSN(own - 1))


@pytest.mark.parametrize("position", [-1, 0, 4])
def test_what_lies_before_the_first_stripe_is_nowhere(position: int) -> None:
    found = projection([stripe(5, 3, 1)])
    with pytest.raises(errors.InvalidArgument):
        found.stream_of(GLSN(position))
    with pytest.raises(errors.InvalidArgument):
        found.block_end(GLSN(position))
    assert found.own_from(ONE, GLSN(position)) == 5


def test_a_log_stream_without_a_chain_is_not_there() -> None:
    found = projection([stripe(1, 3, 1)])
    assert (found.chain(ONE).head, found.chain(ONE).tail) == (1, 3)
    with pytest.raises(errors.UnknownLogStream):
        found.chain(TWO)


# What is one


@given(stripings(), st.integers(HORIZON, NEVER - 1), st.integers(1, MAX_EPOCH), st.integers(0, NEVER - 1))
def test_whatever_is_in_order_is_a_projection(stripes: tuple[Stripe, ...], start: int, epoch: int, time: int) -> None:
    check(projection(stripes, epoch=epoch, start=start, time=time))


GOOD = projection([stripe(1, 3, 1, 2), stripe(8, 2, 2, 1, 3)])
BAD = {
    "epoch 0": replace(GOOD, epoch=Epoch(0)),
    "an epoch that leaves no room": replace(GOOD, epoch=Epoch(MAX_EPOCH + 1)),
    "position 0": replace(GOOD, start=GLSN(0)),
    "a start beyond every position": replace(GOOD, start=NEVER),
    "a start before the last stripe": replace(GOOD, start=GLSN(7)),
    "a time before all time": replace(GOOD, time=-1),
    "no sequencer": replace(GOOD, sequencer=""),
    "a sequencer too far away": replace(GOOD, sequencer="h" * (limits.MAX_ADDRESS + 1)),
    "a start of a sequencer that never was": replace(GOOD, boot=-1),
    "no stripes": replace(GOOD, stripes=()),
    "no chains": replace(GOOD, chains=()),
    "a stripe at position 0": projection([stripe(0, 3, 1)]),
    "stripes in disorder": projection([stripe(8, 3, 1), stripe(1, 3, 1)]),
    "two stripes at one position": projection([stripe(8, 3, 1), stripe(8, 3, 2)]),
    "a block of nothing": projection([stripe(1, 0, 1)]),
    "a block too large": projection([stripe(1, limits.MAX_STRIPE_BLOCK + 1, 1)]),
    "a stripe of no log stream": replace(GOOD, stripes=(*GOOD.stripes, stripe(9, 3))),
    "a stripe with a log stream twice": projection([stripe(1, 3, 1, 2, 1)]),
    "a stripe of a log stream without chain": replace(GOOD, chains=GOOD.chains[:2]),
    "a chain that no stripe names": replace(GOOD, chains=(*GOOD.chains, chain(4, 1))),
    "two chains of one log stream": replace(GOOD, chains=(*GOOD.chains, chain(1, 1))),
    "a chain of nobody": replace(GOOD, chains=(*GOOD.chains[:2], chain(3))),
    "a chain with one node twice": replace(GOOD, chains=(*GOOD.chains[:2], chain(3, 1, 2, 1))),
    "a chain too long": replace(GOOD, chains=(*GOOD.chains[:2], chain(3, *range(1, limits.MAX_REPLICAS + 2)))),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_in_order_is_no_projection(case: str) -> None:
    check(GOOD)
    with pytest.raises(errors.InvalidArgument):
        check(BAD[case])


def test_the_number_of_stripes_is_limited() -> None:
    stripes = [stripe(begin, 1, 1) for begin in range(1, limits.MAX_STRIPES + 2)]
    check(projection(stripes[:-1], start=1000))
    with pytest.raises(errors.LimitExceeded, match="trim"):
        check(projection(stripes, start=1000))


# Which may follow which


def mixtures(before: Sequence[Stripe], others: Sequence[Stripe]) -> Iterator[Sequence[Stripe]]:
    """Stripes of both, in order: without the first ones of `before`, and with the last one of the others, or all."""
    for dropped in range(len(before)):
        for added in (others[:0], others[-1:], others):
            yield sorted({*before[dropped:], *added}, key=lambda stripe: stripe.begin)
    yield others


@given(stripings(), stripings(), st.integers(0, HORIZON), st.integers(0, HORIZON), st.integers(0, HORIZON))
def test_S7_what_was_written_stays_where_it_is(
    before: tuple[Stripe, ...], others: tuple[Stripe, ...], start: int, more: int, trim: int
) -> None:
    """Any stripes, of which some are those that were: none that is accepted says anything else of what is there."""
    old = projection(before, start=max(start, before[-1].begin))
    for stripes in mixtures(before, others):
        new = projection(stripes, epoch=2, start=max(old.start + more, stripes[-1].begin))
        try:
            check(new)
            check_follows(new, old, GLSN(trim))
        except (errors.InvalidArgument, errors.Conflict):
            continue
        for position in range(max(trim + 1, before[0].begin), new.start):
            assert new.stream_of(GLSN(position)) == old.stream_of(GLSN(position))
            assert min(new.block_end(GLSN(position)), new.start) == min(old.block_end(GLSN(position)), new.start)


@given(stripings(), st.integers(0, HORIZON), st.integers(0, HORIZON))
def test_S7_the_log_streams_may_change_from_the_start_on(before: tuple[Stripe, ...], start: int, more: int) -> None:
    old = projection(before, start=max(start, before[-1].begin))
    begin = GLSN(old.start + more)
    kept = [stripe for stripe in before if stripe.begin < begin]
    for trim in range(begin):
        gone = sum(stripe.begin <= trim + 1 for stripe in [*kept, stripe(begin, 4, 3)][1:])
        for dropped in range(gone + 1):
            new = projection([*kept[dropped:], stripe(begin, 4, 3)], epoch=2, start=begin)
            check(new)
            check_follows(new, old, GLSN(trim))
        new = projection([*kept[gone + 1 :], stripe(begin, 4, 3)], epoch=2, start=begin)
        if gone < len(kept):
            with pytest.raises(errors.InvalidArgument, match="not trimmed"):
                check_follows(new, old, GLSN(trim))


@pytest.mark.parametrize(
    ("new", "error"),
    [
        (replace(GOOD, epoch=Epoch(4)), errors.InvalidArgument),
        (replace(GOOD, epoch=Epoch(3)), errors.InvalidArgument),
        (replace(GOOD, epoch=Epoch(5), start=GLSN(HORIZON - 1)), errors.InvalidArgument),
        (replace(GOOD, epoch=Epoch(5), time=8), errors.InvalidArgument),
        (replace(GOOD, epoch=Epoch(5), stripes=GOOD.stripes[:1]), errors.InvalidArgument),
        (replace(GOOD, epoch=Epoch(5), stripes=(stripe(1, 4, 1, 2), GOOD.stripes[1])), errors.InvalidArgument),
        (replace(GOOD, epoch=Epoch(5), stripes=(*GOOD.stripes, stripe(9, 2, 1))), errors.InvalidArgument),
    ],
    ids=["the same epoch", "an earlier epoch", "positions again", "time", "a stripe less", "another block", "between"],
)
def test_rule20_nothing_goes_back(new: Projection, error: type[errors.VarlogError]) -> None:
    before = replace(GOOD, epoch=Epoch(4), time=9)
    later = replace(new, time=new.time or 9)
    with pytest.raises(error):
        check_follows(later, before, GLSN(0))


def test_S8_the_first_projection_reaches_from_the_first_position_on() -> None:
    check_follows(projection([stripe(41, 3, 1)]), None, GLSN(40))
    with pytest.raises(errors.InvalidArgument, match="begins at 41"):
        check_follows(projection([stripe(42, 3, 1)]), None, GLSN(40))
    with pytest.raises(errors.Conflict, match="trimmed"):
        check_follows(projection([stripe(41, 3, 1)], start=41), None, GLSN(41))
