"""What a reader shows that shows only what is committed: decided by the log, in order, and the same for everybody."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.core.paperverdicts import SECOND, Batch, Reader, abort, commit, mark, visible
from varlog import batch, limits
from varlog.batch import BatchFlag
from varlog.batch.transactions import VerdictKind
from varlog.core.committed import PRONOUNCE_AGAIN, Judgement, Look
from varlog.types import GLSN, TransactionID


def test_entries_of_a_transaction_are_shown_once_its_commit_is_in_the_log() -> None:
    log = [Batch(1), Batch(2, 3, mark(7, 1)), Batch(5), Batch(6, verdict=commit(7, 1, 4))]
    reader = Reader(log[:3], 1, 7)
    assert not reader.read()
    assert reader.shown == [1], "nothing behind what is not decided is shown"
    reader.log = log
    assert reader.read()
    assert (reader.shown, reader.passed) == ([1, 2, 5], [])


def test_the_commit_may_lie_beyond_what_is_read() -> None:
    log = [Batch(1, 1, mark(7, 0)), Batch(2), Batch(3), Batch(4, verdict=commit(7, 0, 1))]
    reader = Reader(log, 1, 3)
    assert reader.read()
    assert reader.shown == [1, 2]
    assert reader.looks == [(1, None)]


def test_what_was_aborted_and_verdicts_are_passed_over() -> None:
    log = [Batch(1, 1, mark(7, 0)), Batch(2, verdict=abort(7, 0)), Batch(3, 1, mark(7, 0)), Batch(4)]
    reader = Reader(log, 1, 5)
    assert reader.read()
    assert (reader.shown, reader.passed) == ([4], [1, 2, 3])


def test_a_part_that_nobody_counted_in_is_passed_over() -> None:
    log = [Batch(1, 1, mark(7, 0, 1)), Batch(2, 1, mark(7, 0, 2)), Batch(3, verdict=commit(7, 0, 2, 2))]
    reader = Reader(log, 1, 4)
    assert reader.read()
    assert reader.shown == [2]


def test_a_verdict_before_where_the_reader_began_counts() -> None:
    log = [Batch(1), Batch(2, verdict=abort(7, 1)), Batch(3, 1, mark(7, 1)), Batch(4, verdict=commit(7, 1, 3))]
    reader = Reader(log, 3, 5)
    assert reader.read()
    assert reader.shown == []
    assert reader.looks == [(2, 3)]


def test_what_was_looked_through_is_not_looked_through_again() -> None:
    log = [
        Batch(1),
        *[Batch(glsn, 1, mark(glsn, 1)) for glsn in (2, 3, 4)],
        *[Batch(glsn + 3, verdict=commit(glsn, 1, 4)) for glsn in (2, 3, 4)],
    ]
    reader = Reader(log, 4, 5)
    assert reader.read()
    assert reader.shown == [4]
    assert reader.looks == [(2, 4), (4, None)]
    reader = Reader(log, 2, 5)
    assert reader.read()
    assert reader.shown == [2, 3, 4]
    assert reader.looks == [(2, None), (6, None), (7, None)]


def test_of_what_is_trimmed_the_rest_says_enough() -> None:
    """A COMMIT that came too late has the true fate behind all that it speaks of."""
    log = [
        Batch(1, 1, mark(7, 0)),
        Batch(2, verdict=abort(7, 0)),
        Batch(3, 1, mark(7, 0)),
        Batch(4, verdict=commit(7, 0, 1)),
        Batch(5, 1, mark(8, 0)),
        Batch(6, verdict=commit(8, 0, 5)),
    ]
    reader = Reader(log, 3, 7, first=3)
    assert reader.read()
    assert reader.shown == [5]
    assert visible(log) == [5]


def test_a_reader_that_is_overtaken_by_a_trim_is_told() -> None:
    log = [Batch(1, 1, mark(7, 0)), Batch(2), Batch(3)]
    reader = Reader(log, 1, 4)
    assert not reader.read()
    reader.committed.on_trimmed(3)
    assert reader.committed.trimmed == 3


def test_what_is_lost_holds_no_verdict() -> None:
    reader = Reader([Batch(1, 1, mark(7, 0))], 1, 9)
    assert not reader.read()
    reader.committed.on_lost(5)
    assert reader.committed.look == Look(GLSN(5), None)


def test_a_mark_that_cannot_be_read_is_never_shown() -> None:
    log = [Batch(1, flags=BatchFlag.TRANSACTION), Batch(2, flags=BatchFlag.TRANSACTION, extension=b"short"), Batch(3)]
    reader = Reader(log, 1, 4)
    assert reader.read()
    assert reader.shown == [3]


def test_what_is_read_ahead_serves_to_look() -> None:
    log = [Batch(1, 1, mark(7, 0)), Batch(2), Batch(3, verdict=commit(7, 0, 1))]
    reader = Reader(log[:1], 1, 4)
    assert not reader.read()
    committed = reader.committed
    for each in log:
        committed.on_chunk(each.chunk)
    assert committed.is_decided
    assert committed.look is None
    assert committed.judge(log[0].chunk, batch.decode(log[0].line[6]), 0.0) is Judgement.SHOW


# Expiry


def test_an_abandoned_transaction_is_expired_by_an_entry_in_the_log() -> None:
    log = [Batch(1, 1, mark(7, 0, expiry=3000)), Batch(2)]
    reader = Reader(log, 1, 3)
    assert not reader.read()
    committed, key = reader.committed, (TransactionID(7), GLSN(0))
    assert committed.due_at() == 3.0
    assert not committed.wants_tail(2.9)
    assert committed.wants_tail(3.0)
    committed.on_tail(key, 2)
    assert not committed.wants_tail(3.0)
    verdict = committed.wants_verdict(3.0)
    assert verdict is not None
    assert (verdict.kind, verdict.txid, verdict.after) == (VerdictKind.EXPIRE, 7, 0)
    committed.on_pronounced(3.0)
    assert committed.wants_verdict(3.1) is None
    assert committed.wants_verdict(3.0 + PRONOUNCE_AGAIN) is not None, "what came of the first is not known"
    reader.log.append(Batch(3, verdict=verdict))
    assert reader.read()
    assert (reader.shown, reader.passed) == ([2], [1])


def test_an_expiry_that_comes_after_the_commit_changes_nothing() -> None:
    log = [Batch(1, 1, mark(7, 0))]
    reader = Reader(log, 1, 2)
    assert not reader.read()
    assert reader.committed.wants_tail(1.0)
    late = [Batch(2, verdict=commit(7, 0, 1)), Batch(3, verdict=abort(7, 0, VerdictKind.EXPIRE))]
    reader.log += late
    assert reader.read()
    assert reader.shown == [1]
    assert not reader.committed.wants_tail(9.0)


def test_nothing_is_pronounced_before_all_up_to_the_tail_was_looked_through() -> None:
    reader = Reader([Batch(1, 1, mark(7, 0)), Batch(2)], 1, 3)
    assert not reader.read()
    committed = reader.committed
    committed.on_tail((TransactionID(7), GLSN(0)), 9)
    assert committed.wants_verdict(1.0) is None
    committed.on_lost(10)
    assert committed.wants_verdict(1.0) is not None


def test_what_is_later_in_the_log_shows_that_it_is_over() -> None:
    reader = Reader([Batch(1, 1, mark(7, 0, expiry=5000)), Batch(2, time=7 * SECOND)], 1, 3)
    assert not reader.read()
    assert reader.committed.wants_tail(0.0)


def test_one_whose_beginning_is_trimmed_is_not_waited_for() -> None:
    reader = Reader([Batch(4), Batch(5, 1, mark(7, 1, expiry=60_000))], 4, 6, first=4)
    assert not reader.read()
    assert reader.committed.wants_tail(0.0)
    reader.committed.on_tail((TransactionID(7), GLSN(1)), 5)
    assert reader.committed.wants_verdict(0.0) is not None


def test_no_writer_can_hold_readers_for_longer_than_a_transaction_may_take() -> None:
    reader = Reader([Batch(1, 1, mark(7, 0, expiry=(1 << 32) - 1))], 1, 3)
    assert not reader.read()
    assert reader.committed.due_at() == limits.MAX_TRANSACTION_SECONDS
    assert reader.committed.wants_tail(limits.MAX_TRANSACTION_SECONDS)


def test_a_tail_of_another_transaction_is_not_taken() -> None:
    reader = Reader([Batch(1, 1, mark(7, 0))], 1, 3)
    assert not reader.read()
    reader.committed.on_tail((TransactionID(8), GLSN(0)), 1)
    assert reader.committed.wants_tail(1.0)


# All of it together

TXIDS = st.integers(1, 3)


@st.composite
def logs(draw: st.DrawFn) -> list[Batch]:
    """Batches and verdicts of a few transactions in any order, as writers may leave them that look before they commit:
    a COMMIT was checked up to a position before any other verdict, or is meaningless behind one."""
    log: list[Batch] = []
    at = 1
    begun: dict[int, int] = {}
    for _ in range(draw(st.integers(1, 14))):
        txid = draw(TXIDS)
        after = begun.setdefault(txid, at - 1)
        what = draw(st.sampled_from(("plain", "data", "data", "commit", "abort", "junk")))
        if what == "plain":
            log.append(Batch(at, draw(st.integers(1, 3))))
        elif what == "junk":
            log.append(Batch(at, 2, flags=BatchFlag.JUNK))
        elif what == "data":
            log.append(Batch(at, draw(st.integers(1, 3)), mark(txid, after, draw(st.integers(1, 2)))))
        elif what == "abort":
            log.append(Batch(at, verdict=abort(txid, after)))
        else:
            fates = [each.glsn for each in log if each.verdict and each.verdict.txid == txid]
            checked = draw(st.integers(after, (min(fates) if fates else at) - 1))
            log.append(Batch(at, verdict=commit(txid, after, checked, draw(st.integers(1, 2)))))
        at = log[-1].end
    ended = {each.verdict.txid for each in log if each.verdict is not None}
    for txid, after in begun.items():
        if txid not in ended:
            log.append(Batch(at, verdict=abort(txid, after)))
            at += 1
    return log


@given(logs(), st.data())
def test_every_reader_shows_what_the_rule_says(log: list[Batch], data: st.DataObject) -> None:
    """Wherever it begins and ends, however little it remembers, and whatever was trimmed before it."""
    begins = [each.glsn for each in log]
    first = data.draw(st.sampled_from(begins))
    begin = data.draw(st.sampled_from([glsn for glsn in begins if glsn >= first]))
    end = data.draw(st.integers(begin, log[-1].end))
    reader = Reader(log, begin, end, most=data.draw(st.integers(1, 4)), first=first)
    while not reader.read():  # its verdict is trimmed: it expires
        held = reader.committed.held
        assert held is not None
        reader.log.append(Batch(reader.log[-1].end, verdict=abort(*held.key, VerdictKind.EXPIRE)))
    assert reader.shown == [glsn for glsn in visible(log) if begin <= glsn < end]
    assert sorted(reader.shown + reader.passed) == [glsn for glsn in begins if begin <= glsn < end]


@given(logs(), st.integers(1, 4))
def test_a_reader_that_follows_the_log_never_takes_anything_back(log: list[Batch], most: int) -> None:
    reader = Reader([], 1, 1 << 40, most=most)
    for each in log:
        reader.log.append(each)
        reader._pending.append(each)
        before = list(reader.shown)
        reader.read()
        assert reader.shown[: len(before)] == before
        assert set(reader.shown) <= set(visible(log))
    assert reader.shown == visible(log)
