"""The writer: what it sends when, and that it never says of a batch what it cannot know."""

from __future__ import annotations

import pytest

from tests.core.sketch import stream
from tests.core.writer import SEALED, TIMEOUT, UNSEALING, Bench, payloads, replies, sequences, writers
from varlog import errors, limits
from varlog.core.appending import Committed, Rejected, Undecided
from varlog.types import GLSN, LLSN, Epoch

# Sending


def test_a_batch_goes_to_the_primary_with_the_epoch_that_is_known() -> None:
    bench = Bench(stream(1, epoch=4, replicas=(1, 2, 3), primary=2, llsn_end=17))
    (append,) = bench.append(7)
    assert bench.sent == [("sn/2", append)]
    assert (append.lsid, append.epoch, append.prev_sequence, append.horizon) == (1, 4, 0, 17)
    assert payloads(append) == [b"7"]
    assert writers([append]) == [100]


def test_rule18_sequences_grow_and_name_their_predecessor() -> None:
    bench = Bench(stream(1))
    assert sequences(bench.append(1, 2, 3)) == [(0, 1), (1, 2), (2, 3)]


def test_the_number_of_waiting_appends_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_QUEUED_APPENDS", 2)
    bench = Bench(stream(1), window=1)
    (first,) = bench.append(1, 2, 3)
    with pytest.raises(errors.Busy):
        bench.append(4)
    assert bench.outcomes == {}, "it was never taken"
    bench.committed(first, 1)
    assert sequences(bench.messages) == [(0, 1), (1, 2)]
    bench.append(5)
    bench.committed(bench.messages[1], 2)
    assert sequences(bench.messages)[2:] == [(2, 3)]


def test_an_append_waits_for_metadata_if_none_is_known() -> None:
    bench = Bench()
    assert bench.append(1) == []
    assert bench.writer.wants_metadata
    bench.learn(stream(1))
    assert [payloads(append) for append in bench.messages] == [[b"1"]]
    assert not bench.writer.wants_metadata


def test_a_log_stream_that_is_being_unsealed_is_waited_for() -> None:
    bench = Bench(stream(1, UNSEALING))
    assert bench.append(1) == []
    assert bench.writer.wants_metadata
    bench.learn(stream(1))
    assert len(bench.messages) == 1


def test_the_window_bounds_what_is_under_way() -> None:
    bench = Bench(stream(1), window=2)
    first, second = bench.append(1, 2, 3, 4)
    assert bench.writer.outstanding == 4
    bench.committed(first, glsn=1)
    assert sequences(bench.messages[2:]) == [(2, 3)]
    bench.committed(second, glsn=2)
    assert sequences(bench.messages[3:]) == [(3, 4)]


@pytest.mark.parametrize("window", [0, limits.DEDUP_SEQUENCES_PER_WRITER + 1])
def test_a_window_beyond_what_stays_decidable_is_refused(window: int) -> None:
    with pytest.raises(errors.InvalidArgument):
        Bench(window=window)


@pytest.mark.parametrize("entries", [[], [b"." * (limits.MAX_ENTRY_BYTES + 1)]], ids=["empty", "too large"])
def test_a_bad_batch_is_refused_when_it_is_handed_in(entries: list[bytes]) -> None:
    bench = Bench()
    with pytest.raises(errors.VarlogError):
        bench.writer.append(1, entries, 100.0, 0.0)
    bench.append(2)
    bench.learn(stream(1))
    assert [payloads(append) for append in bench.messages] == [[b"2"]]


# Outcomes


def test_O1_a_committed_batch_is_told_with_its_position() -> None:
    bench = Bench(stream(1))
    (append,) = bench.append(1)
    bench.committed(append, glsn=42)
    assert bench.outcomes == {1: Committed(GLSN(42), 1, LLSN(42), append.lsid, Epoch(2), 3, True)}
    assert bench.writer.outstanding == 0


def test_a_second_answer_changes_nothing() -> None:
    bench = Bench(stream(1))
    (append,) = bench.append(1)
    (again,) = bench.pass_time()
    bench.committed(append, glsn=42)
    bench.committed(again, glsn=42)
    bench.refused(append, errors.DidNotHappen)
    assert list(bench.outcomes) == [1]


def test_a_batch_that_the_log_can_never_take_is_rejected() -> None:
    bench = Bench(stream(1))
    (append,) = bench.append(1)
    bench.refused(append, errors.BatchTooLarge)
    assert bench.outcomes == {1: Rejected(errors.BatchTooLarge.code)}


def test_the_deadline_of_a_batch_that_was_sent_makes_it_unknown() -> None:
    bench = Bench(stream(1))
    bench.append(1, deadline=1.0)
    bench.pass_time(0.9)
    assert bench.outcomes == {}
    bench.pass_time(0.1)
    assert bench.outcomes == {1: Undecided()}


def test_the_deadline_of_a_batch_that_was_never_sent_rejects_it() -> None:
    bench = Bench()
    bench.append(1, deadline=1.0)
    bench.pass_time(1.0)
    assert bench.outcomes == {1: Rejected(errors.DeadlineExceeded.code)}


def test_rule19_the_deadline_of_a_batch_known_not_to_have_happened_rejects_it() -> None:
    bench = Bench(stream(1))
    (append,) = bench.append(1, deadline=1.0)
    bench.learn(stream(1, SEALED, epoch=3))
    bench.refused(append, errors.DidNotHappen, epoch=3)
    assert bench.outcomes == {}
    bench.pass_time(1.0)
    assert bench.outcomes == {1: Rejected(errors.DeadlineExceeded.code)}


def test_rule18_after_an_unknown_batch_the_writer_goes_on_under_a_new_id() -> None:
    bench = Bench(stream(1))
    (lost,) = bench.append(1, deadline=1.0)
    bench.pass_time(1.0)
    bench.append(2)
    bench.learn(stream(1))
    _, append = bench.last
    assert writers([lost, append]) == [100, 101]
    assert sequences([append]) == [(0, 1)]
    bench.committed(lost, glsn=5)
    assert bench.outcomes == {1: Undecided()}, "an answer that comes after the verdict changes nothing"


def test_rule19_an_expired_fate_is_unknown() -> None:
    bench = Bench(stream(1))
    (append,) = bench.append(1)
    bench.refused(append, errors.FateExpired)
    assert bench.outcomes == {1: Undecided()}
    assert bench.writer.writer_id == 101


# Retries


def test_rule18_a_retry_sends_the_same_bytes() -> None:
    bench = Bench(stream(1))
    first = bench.append(1, 2)
    assert bench.pass_time(TIMEOUT / 2) == []
    again = bench.pass_time(TIMEOUT / 2)
    assert [append.batch for append in again] == [append.batch for append in first]
    assert sequences(again) == [(0, 1), (1, 2)]
    assert [append.request for append in again] == [3, 4]
    assert bench.writer.wants_metadata


def test_what_is_not_answered_is_sent_again_less_and_less_often_until_something_is() -> None:
    bench = Bench(stream(1))
    bench.append(1, 2)
    again = [bool(bench.pass_time()) for _ in range(24)]
    assert [number for number, sent in enumerate(again, 1) if sent] == [1, 3, 7, 15, 23]
    bench.committed(bench.messages[0], 1)
    assert [bool(bench.pass_time()) for _ in range(3)] == [True, False, True]


def test_rule19_the_horizon_stays_that_of_the_first_attempt() -> None:
    bench = Bench(stream(1, llsn_end=5))
    bench.append(1)
    bench.learn(stream(1, llsn_end=9))
    (again,) = bench.pass_time()
    assert again.horizon == 5
    (fresh,) = bench.append(2)
    assert fresh.horizon == 9


def test_rule19_the_horizon_is_fresh_when_a_silent_writer_appends_again() -> None:
    """With an old horizon the log could not tell a new batch from one it has forgotten."""
    bench = Bench(stream(1, llsn_end=5))
    (first,) = bench.append(1)
    bench.committed(first, glsn=8)
    (second,) = bench.append(2)
    assert second.horizon == 9, "what it was told of its own batch counts"
    bench.committed(second, glsn=9)
    bench.pass_time(60.0)
    assert bench.append(3) == []
    assert bench.writer.wants_metadata
    bench.learn(stream(1, llsn_end=700))
    assert bench.last[1].horizon == 700


def test_an_answer_to_one_batch_gives_the_others_more_time() -> None:
    bench = Bench(stream(1))
    first, _ = bench.append(1, 2)
    bench.now = TIMEOUT * 0.9
    bench.committed(first, glsn=1)
    assert bench.pass_time(TIMEOUT / 2) == []
    assert sequences(bench.pass_time(TIMEOUT / 2)) == [(1, 2)]


@pytest.mark.parametrize(
    "error", [errors.Sealed, errors.NotPrimary, errors.Busy, errors.StaleEpoch, errors.UnknownLogStream]
)
def test_a_refusal_for_now_makes_the_writer_look_again(error: type[errors.VarlogError]) -> None:
    bench = Bench(stream(1))
    (append,) = bench.append(1)
    bench.refused(append, error)
    assert bench.outcomes == {}
    assert bench.writer.wants_metadata
    (again,) = bench.pass_time()
    assert again.batch == append.batch


def test_a_new_epoch_is_tried_at_once() -> None:
    bench = Bench(stream(1, epoch=2))
    (append,) = bench.append(1)
    bench.learn(stream(1, epoch=4, primary=3))
    address, again = bench.last
    assert (address, again.epoch, again.batch) == ("sn/3", 4, append.batch)
    bench.learn(stream(1, epoch=4, primary=3))
    assert len(bench.sent) == 2, "nothing new is known"


def test_rule18_an_old_gap_in_the_middle_of_the_window_decides_nothing() -> None:
    """The batch before was lost on the way; it is sent again, and then this one fits."""
    bench = Bench(stream(1))
    first, second = bench.append(1, 2)
    bench.refused(second, errors.SequenceGap)
    assert bench.writer.writer_id == 100
    again = bench.pass_time()
    assert [append.batch for append in again] == [first.batch, second.batch]


def test_rule18_a_gap_told_of_an_earlier_attempt_is_no_proof() -> None:
    """The refusal of the second batch is slow; meanwhile both were sent again and taken."""
    bench = Bench(stream(1))
    _, refused = bench.append(1, 2)
    first, second = bench.pass_time()
    bench.committed(first, glsn=1)
    bench.refused(refused, errors.SequenceGap)
    assert {writers([append])[0] for append in bench.messages} == {100}, "sent under another id it would be there twice"
    bench.committed(second, glsn=2)
    assert isinstance(bench.outcomes[2], Committed)


def test_rule18_a_writer_the_log_has_forgotten_goes_on_under_a_new_id() -> None:
    """The predecessor is committed, the batch was sent after that was known, and the log does not know it any more:
    the batch is not there and never will be."""
    bench = Bench(stream(1))
    (first,) = bench.append(1)
    bench.committed(first, glsn=1)
    (second,) = bench.append(2)
    bench.refused(second, errors.SequenceGap)
    bench.learn(stream(1))
    _, again = bench.last
    assert payloads(again) == [b"2"]
    assert writers([second, again]) == [100, 101]
    assert sequences([again]) == [(0, 1)]
    bench.committed(again, glsn=9)
    assert isinstance(bench.outcomes[2], Committed)


# Without retries


def test_one_attempt_without_retries() -> None:
    bench = Bench(stream(1), retry=False)
    bench.append(1, deadline=3.0)
    assert bench.pass_time() == []
    assert bench.pass_time() == []
    bench.pass_time(3.0)
    assert bench.outcomes == {1: Undecided()}


def test_rule19_without_retries_a_batch_known_not_to_have_happened_is_rejected() -> None:
    bench = Bench(stream(1), retry=False)
    (append,) = bench.append(1)
    bench.refused(append, errors.DidNotHappen, epoch=3)
    assert bench.outcomes == {1: Rejected(errors.DidNotHappen.code)}


def test_without_retries_a_refusal_is_no_proof() -> None:
    """A copy of the message may still be on its way, and be taken."""
    bench = Bench(stream(1), retry=False)
    (append,) = bench.append(1)
    bench.refused(append, errors.Sealed)
    assert bench.outcomes == {1: Undecided()}


# Acknowledgements of a whole cut


def test_one_cut_settles_all_it_has_committed_and_lets_others_go() -> None:
    bench = Bench(stream(1), window=3)
    first = bench.append(1, 2, 3, 4, 5)
    assert len(first) == 3
    bench.writer.on_replies(replies(first, 7, shift=10), bench.now)
    assert bench.outcomes == {
        number: Committed(GLSN(16 + number), 1, LLSN(6 + number), first[0].lsid, Epoch(2), 3, True)
        for number in (1, 2, 3)
    }
    assert bench.outcomes[1].end == 18  # type: ignore[union-attr]
    behind = bench.messages[3:]
    assert sequences(behind) == [(3, 4), (4, 5)]
    assert [append.horizon for append in behind] == [10, 10], "how far it knows the log stream to be committed"


def test_a_cut_that_is_told_twice_or_late_settles_nothing_twice() -> None:
    bench = Bench(stream(1))
    first = bench.append(1, 2)
    again = bench.pass_time()
    bench.writer.on_replies(replies(again, 1), bench.now)
    bench.writer.on_replies(replies(first, 1), bench.now)
    bench.writer.on_replies(replies(again, 1), bench.now)
    assert [outcome.glsn for outcome in bench.outcomes.values() if isinstance(outcome, Committed)] == [1, 2]
    assert bench.writer.outstanding == 0
    assert sequences(bench.append(3)) == [(2, 3)]


def test_a_cut_may_be_told_of_later_batches_first() -> None:
    bench = Bench(stream(1))
    first, second, third = bench.append(1, 2, 3)
    bench.writer.on_replies(replies([second, third], 2), bench.now)
    assert sequences(bench.append(4)) == [(3, 4)]
    bench.writer.on_replies(replies([first], 1), bench.now)
    assert sequences(bench.append(5)) == [(4, 5)]
    assert list(bench.outcomes) == [2, 3, 1]


# Giving up


def test_what_is_abandoned_is_handed_back_once_and_never_settled() -> None:
    bench = Bench(stream(1), window=2)
    sent = bench.append(1, 2, 3, 4, deadline=1.0)
    bench.committed(sent[0], 1)
    assert bench.writer.abandon() == [(2, True), (3, True), (4, False)]
    assert bench.writer.abandon() == []
    assert bench.writer.outstanding == 0
    bench.writer.on_replies(replies(sent, 1), bench.now)
    bench.pass_time(5.0)
    assert list(bench.outcomes) == [1]
