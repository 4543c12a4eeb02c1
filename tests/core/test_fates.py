"""The fate of a transaction: the first verdict in the order of the log, however much of it is remembered."""

from __future__ import annotations

import pytest

from tests.core.paperverdicts import LSID, Batch, abort, commit, mark
from varlog import batch, errors
from varlog.batch import BatchFlag
from varlog.core.fates import Fate, Fates, shows
from varlog.core.merging import Chunk
from varlog.types import GLSN, TransactionID

T = TransactionID


def fates_of(*batches: Batch, begin: int = 1, most: int = 100) -> Fates:
    fates = Fates(begin, most)
    for each in batches:
        fates.on_chunk(each.chunk)
    return fates


def test_the_first_verdict_is_the_fate_and_later_ones_mean_nothing() -> None:
    fates = fates_of(Batch(1), Batch(2, verdict=abort(7, 0)), Batch(3, verdict=commit(7, 0, 1)))
    assert fates.fate(T(7), GLSN(0)) == Fate(GLSN(2), abort(7, 0))
    assert fates.fate(T(8), GLSN(0)) is None
    assert (fates.begin, fates.position) == (1, 4)


def test_an_id_with_another_beginning_is_another_transaction() -> None:
    fates = fates_of(Batch(1), Batch(2, verdict=abort(7, 0)))
    assert fates.fate(T(7), GLSN(1)) is None


def test_a_verdict_that_lies_before_its_transaction_means_nothing() -> None:
    fates = fates_of(Batch(1, verdict=abort(7, 5)), Batch(2), Batch(3), Batch(4), Batch(5), Batch(6))
    assert fates.fate(T(7), GLSN(5)) is None


@pytest.mark.parametrize("flags", [BatchFlag.CONTROL, BatchFlag.CONTROL | BatchFlag.JUNK])
def test_what_is_no_verdict_says_nothing(flags: int) -> None:
    fates = fates_of(Batch(1, 3, flags=flags), Batch(4, flags=flags))
    assert (len(fates), fates.position) == (0, 5)


def test_a_damaged_verdict_is_not_taken() -> None:
    line = Batch(1, verdict=abort(7, 0)).line
    damaged = bytearray(line[6])
    damaged[-1] ^= 1
    fates = Fates(1)
    with pytest.raises(errors.ChecksumMismatch):
        fates.on_chunk(Chunk(GLSN(1), LSID, 0, 1, (*line[:6], bytes(damaged))))
    assert fates.position == 1, "it has to be brought again"


def test_what_was_given_before_is_not_taken_twice_and_nothing_is_left_out() -> None:
    fates = fates_of(Batch(1, 4), Batch(2, verdict=abort(7, 0)))
    assert (len(fates), fates.position) == (0, 5)
    with pytest.raises(errors.ConsistencyViolation):
        fates.on_chunk(Batch(6).chunk)


def test_forgetting_makes_the_stretch_begin_later() -> None:
    verdicts = [Batch(glsn, verdict=abort(glsn, glsn - 1)) for glsn in range(1, 6)]
    fates = fates_of(*verdicts, most=2)
    assert (fates.begin, fates.position, len(fates)) == (4, 6, 2)
    assert not fates.covers(T(3), GLSN(2))
    assert fates.covers(T(4), GLSN(3))
    assert fates.fate(T(5), GLSN(4)) is not None


def test_parts_count_for_what_is_remembered() -> None:
    commits = [Batch(glsn, verdict=commit(glsn, glsn - 1, 0, *range(1, 4))) for glsn in range(1, 6)]
    fates = fates_of(*commits, most=8)
    assert (fates.begin, len(fates)) == (4, 2)
    assert len(fates_of(*commits, most=1)) == 1, "one is always known"


def test_one_that_is_watched_is_not_forgotten() -> None:
    fates = Fates(1, 2)
    fates.watch(T(1), GLSN(0))
    for glsn in range(1, 6):
        fates.on_chunk(Batch(glsn, verdict=abort(glsn, 0)).chunk)
    assert fates.covers(T(1), GLSN(0))
    assert fates.fate(T(1), GLSN(0)) == Fate(GLSN(1), abort(1, 0))
    fates.forget(T(1), GLSN(0))
    assert not fates.covers(T(1), GLSN(0))


def test_an_earlier_stretch_is_joined_and_its_verdicts_come_first() -> None:
    fates = fates_of(Batch(5, verdict=commit(7, 1, 4)), begin=5)
    assert not fates.covers(T(7), GLSN(1))
    earlier = fates_of(Batch(2), Batch(3, verdict=abort(7, 1)), Batch(4), begin=2)
    fates.join(earlier)
    assert fates.covers(T(7), GLSN(1))
    assert fates.fate(T(7), GLSN(1)) == Fate(GLSN(3), abort(7, 1))
    assert (fates.begin, fates.position) == (2, 6)
    with pytest.raises(errors.ConsistencyViolation):
        fates.join(fates_of(begin=1))


def test_the_greatest_time_is_known() -> None:
    assert fates_of(Batch(1, time=9), Batch(2, time=4)).time == 9


@pytest.mark.parametrize(
    ("glsn", "part", "fate", "is_shown"),
    [
        (5, 2, Fate(GLSN(9), commit(7, 3, 6, 1, 2)), True),
        (6, 2, Fate(GLSN(9), commit(7, 3, 6, 1, 2)), True),
        (7, 2, Fate(GLSN(9), commit(7, 3, 6, 1, 2)), False),
        (3, 2, Fate(GLSN(9), commit(7, 3, 6, 1, 2)), False),
        (10, 2, Fate(GLSN(9), commit(7, 3, 60, 1, 2)), False),
        (5, 4, Fate(GLSN(9), commit(7, 3, 6, 1, 2)), False),
        (5, 2, Fate(GLSN(9), abort(7, 3)), False),
    ],
)
def test_what_is_shown(glsn: int, part: int, fate: Fate, is_shown: bool) -> None:
    assert shows(mark(7, 3, part), glsn, fate) is is_shown


def test_the_flags_are_where_they_are_looked_for() -> None:
    flags = int(BatchFlag.CONTROL | BatchFlag.TRANSACTION)
    assert batch.encode([b"x"], flags=flags)[14] == flags
