"""The writer: what it sends when, and that it never says of a batch what it cannot know."""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest

from tests.core.sketch import TOPIC, metadata, stream
from varlog import batch, errors, limits
from varlog.core.appending import (
    ASK_FATES,
    OVERDUE,
    Committed,
    Outcome,
    Rejected,
    Undecided,
    Writer,
    WriterOptions,
)
from varlog.core.messages import Append, AppendReplies, AppendReply, Message, StreamInfo
from varlog.core.routing import Routing
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, StorageNodeID, StreamStatus, WriterID

SEALED, UNSEALING = StreamStatus.SEALED, StreamStatus.UNSEALING
TIMEOUT = WriterOptions().attempt_timeout


class Bench:
    """A writer, the log streams it knows of, and lists of what it sent and said. Time stands still unless told."""

    def __init__(self, *streams: StreamInfo, retry: bool = True, window: int = 16, home: int | None = None) -> None:
        self.now = 0.0
        self.routing = Routing()
        self.sent: list[tuple[str, Append]] = []
        self.reachable = True
        self.cut_off: set[str] = set()
        self.outcomes: dict[int, Outcome] = {}
        ids = (WriterID(100 + number) for number in count())
        options = WriterOptions(retry=retry, window=window, home=None if home is None else LogStreamID(home))
        self.writer = Writer(
            TOPIC,
            self.routing,
            partial(next, ids),
            partial(next, count(1)),
            lambda: 0,
            self._send,
            self._settle,
            options,
        )
        self._version = 0
        if streams:
            self.learn(*streams)

    def _send(self, address: str, message: Message) -> bool:
        assert isinstance(message, Append)
        reachable = self.reachable and address not in self.cut_off
        if reachable:
            self.sent.append((address, message))
        return reachable

    def _settle(self, id_: int, outcome: Outcome) -> None:
        assert id_ not in self.outcomes, "an append is settled once"
        self.outcomes[id_] = outcome

    def learn(self, *streams: StreamInfo) -> None:
        self._version += 1
        assert self.routing.update(metadata(self._version, *streams))
        self.writer.on_metadata(self.now)

    def append(self, *ids: int, deadline: float = 100.0) -> list[Append]:
        """Append one-entry batches; what was sent because of it."""
        before = len(self.sent)
        for id_ in ids:
            self.writer.append(id_, [b"%d" % id_], deadline, self.now)
        return self.messages[before:]

    def pass_time(self, seconds: float = TIMEOUT) -> list[Append]:
        """Let time pass, with one tick at the end of it; what was sent then."""
        before = len(self.sent)
        self.now += seconds
        self.writer.tick(self.now)
        return self.messages[before:]

    def committed(self, append: Append, glsn: int, *, epoch: int | None = None) -> None:
        of = append.epoch if epoch is None else Epoch(epoch)
        reply = AppendReply(append.request, append.lsid, 0, of, GLSN(glsn), LLSN(glsn), 1, 3)
        self.writer.on_reply(reply, self.now)

    def refused(self, append: Append, error: type[errors.VarlogError], epoch: int = 2) -> None:
        self.writer.on_reply(AppendReply(append.request, append.lsid, error.code, Epoch(epoch)), self.now)

    def wants_metadata(self) -> bool:
        return self.writer.wants_metadata

    def avoided(self) -> set[int]:
        """The log streams that are avoided."""
        return {lsid for lsid in range(1, 9) if self.routing.streams_avoided.avoids(LogStreamID(lsid), self.now)}

    @property
    def messages(self) -> list[Append]:
        return [message for _, message in self.sent]

    @property
    def last(self) -> tuple[str, Append]:
        return self.sent[-1]


def sequences(appends: list[Append]) -> list[tuple[int, int]]:
    """(previous sequence, sequence) of each."""
    return [(append.prev_sequence, batch.peek_header(append.batch).sequence) for append in appends]


def writers(appends: list[Append]) -> list[int]:
    return [batch.peek_header(append.batch).writer_id for append in appends]


def payloads(append: Append) -> list[bytes]:
    return batch.decode(append.batch).to_list()


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


# A seal, and another log stream


def test_a_writer_stays_on_its_log_stream_while_that_can_be_used() -> None:
    bench = Bench(stream(1), stream(2))
    (append,) = bench.append(1)
    other = 3 - append.lsid
    bench.committed(append, glsn=1)
    bench.learn(stream(1), stream(2), stream(3))
    assert {append.lsid for append in bench.append(2, 3)} == {append.lsid} != {other}


def test_rule19_the_replicas_of_a_sealed_log_stream_are_asked_in_turn_with_the_old_epoch() -> None:
    bench = Bench(stream(1, epoch=2))
    (append,) = bench.append(1)
    bench.learn(stream(1, SEALED, epoch=3), stream(2))
    asked = [bench.pass_time() for _ in range(3)]
    assert [[(a.lsid, a.epoch, a.batch) for a in appends] for appends in asked] == [[(1, 2, append.batch)]] * 3
    assert sorted(address for address, _ in bench.sent[-3:]) == ["sn/1", "sn/2", "sn/3"]


def test_rule18_the_log_stream_is_changed_only_when_nothing_sent_there_is_undecided() -> None:
    bench = Bench(stream(1, epoch=2))
    first, second = bench.append(1, 2)
    bench.learn(stream(1, SEALED, epoch=3), stream(2, epoch=6))
    assert bench.append(3) == [], "also what is new waits: it comes after the others"
    bench.refused(second, errors.DidNotHappen, epoch=3)
    assert {append.lsid for append in bench.messages} == {1}
    asked = len(bench.sent)
    bench.committed(first, glsn=1)
    moved = bench.messages[asked:]
    assert [(a.lsid, a.epoch) for a in moved] == [(2, 6), (2, 6)]
    assert moved[0].batch == second.batch, "a retry elsewhere sends the same bytes"
    assert sequences(moved) == [(0, 2), (2, 3)], "nothing of ours was on that log stream before"


def test_rule17_did_not_happen_says_nothing_of_a_later_epoch() -> None:
    bench = Bench(stream(1, epoch=2))
    (old,) = bench.append(1)
    bench.learn(stream(1, epoch=4))
    bench.learn(stream(1, SEALED, epoch=5), stream(2))
    bench.refused(old, errors.DidNotHappen, epoch=5)
    assert {append.lsid for append in bench.messages} == {1}
    (asked,) = bench.pass_time()
    assert asked.epoch == 4, "the attempt of epoch 4 is still undecided"
    bench.refused(asked, errors.DidNotHappen, epoch=5)
    assert bench.last[1].lsid == 2


def test_rule18_a_batch_found_committed_at_the_seal_is_not_sent_elsewhere() -> None:
    bench = Bench(stream(1, epoch=2))
    bench.append(1)
    bench.learn(stream(1, SEALED, epoch=3), stream(2))
    (asked,) = bench.pass_time()
    bench.committed(asked, glsn=8, epoch=2)
    assert isinstance(bench.outcomes[1], Committed)
    (fresh,) = bench.append(2)
    assert (fresh.lsid, sequences([fresh])) == (2, [(0, 2)])


def test_rule18_back_on_a_log_stream_the_last_batch_there_is_the_predecessor() -> None:
    bench = Bench(stream(1, epoch=2))
    (first,) = bench.append(1)
    bench.committed(first, glsn=1)
    bench.learn(stream(1, SEALED, epoch=3), stream(2))
    (second,) = bench.append(2)
    bench.committed(second, glsn=2)
    bench.learn(stream(1, epoch=4), stream(2, SEALED, epoch=3))
    (third,) = bench.append(3)
    assert (third.lsid, sequences([third])) == (1, [(1, 3)])


def test_a_sealed_log_stream_without_an_alternative_is_waited_for() -> None:
    bench = Bench(stream(1, epoch=2))
    (append,) = bench.append(1)
    bench.learn(stream(1, SEALED, epoch=3))
    bench.refused(append, errors.DidNotHappen, epoch=3)
    assert bench.pass_time() == []
    bench.learn(stream(1, epoch=4))
    _, again = bench.last
    assert (again.epoch, again.batch) == (4, append.batch)


def test_rule19_a_late_answer_of_another_log_stream_decides_nothing_here() -> None:
    bench = Bench(stream(1, epoch=4))
    bench.append(1, deadline=20.0)
    bench.learn(stream(1, SEALED, epoch=5), stream(2, epoch=2))
    (one,), (other,) = bench.pass_time(), bench.pass_time()
    bench.refused(one, errors.DidNotHappen, epoch=5)
    assert bench.last[1].lsid == 2
    bench.refused(other, errors.DidNotHappen, epoch=5)
    bench.learn(stream(1, epoch=6), stream(2, SEALED, epoch=3))
    assert bench.last[1].lsid == 2, "whether it is on log stream 2 is not known"
    bench.pass_time(20.0)
    assert bench.outcomes == {1: Undecided()}


def test_rule18_answers_that_overtake_each_other_leave_the_predecessor_right() -> None:
    bench = Bench(stream(1))
    first, second = bench.append(1, 2)
    bench.committed(second, glsn=2)
    assert sequences(bench.append(3)) == [(2, 3)], "the log has 2, whatever we were told of 1"
    assert sequences(bench.pass_time()) == [(2, 1), (2, 3)]
    bench.committed(first, glsn=1)
    assert sequences(bench.append(4)) == [(3, 4)]


@pytest.mark.parametrize("entries", [[], [b"." * (limits.MAX_ENTRY_BYTES + 1)]], ids=["empty", "too large"])
def test_a_bad_batch_is_refused_when_it_is_handed_in(entries: list[bytes]) -> None:
    bench = Bench()
    with pytest.raises(errors.VarlogError):
        bench.writer.append(1, entries, 100.0, 0.0)
    bench.append(2)
    bench.learn(stream(1))
    assert [payloads(append) for append in bench.messages] == [[b"2"]]


# Connections


def test_a_new_connection_brings_everything_under_way_again_at_once() -> None:
    bench = Bench(stream(1, primary=2))
    first, second = bench.append(1, 2)
    bench.writer.on_connected(StorageNodeID(4), bench.now)
    assert len(bench.sent) == 2, "a node that has nothing to do with it"
    bench.writer.on_connected(StorageNodeID(2), bench.now)
    again = bench.messages[2:]
    assert [append.batch for append in again] == [first.batch, second.batch]
    assert bench.pass_time(TIMEOUT - 0.1) == [], "the attempt has its full time"
    for glsn, append in enumerate(again, 1):
        bench.committed(append, glsn)
    bench.writer.on_connected(StorageNodeID(2), bench.now)
    assert len(bench.sent) == 4, "nothing is under way"


def test_a_batch_that_could_not_be_sent_did_not_happen() -> None:
    bench = Bench(stream(1))
    bench.reachable = False
    assert bench.append(1, 2, deadline=1.0) == []
    bench.pass_time(2.0)
    assert bench.outcomes == dict.fromkeys((1, 2), Rejected(errors.DeadlineExceeded.code))


def test_a_batch_that_could_not_be_sent_is_sent_when_it_can_be() -> None:
    bench = Bench(stream(1))
    bench.reachable = False
    bench.append(1, 2)
    bench.reachable = True
    bench.writer.on_connected(StorageNodeID(1), bench.now)
    assert sequences(bench.messages) == [(0, 1), (1, 2)]


def test_a_batch_that_could_not_be_sent_goes_elsewhere_if_its_log_stream_is_sealed() -> None:
    bench = Bench(stream(1))
    bench.reachable = False
    bench.append(1)
    bench.reachable = True
    bench.learn(stream(1, SEALED, epoch=3), stream(2))
    assert [append.lsid for append in bench.messages] == [2]


def test_a_lost_connection_makes_the_writer_look_who_is_there() -> None:
    bench = Bench(stream(1))
    bench.writer.on_disconnected(StorageNodeID(1), bench.now)
    assert not bench.writer.wants_metadata, "nothing is under way"
    bench.append(1)
    bench.writer.on_disconnected(StorageNodeID(9), bench.now)
    assert not bench.writer.wants_metadata, "a node that has nothing to do with it"
    bench.writer.on_disconnected(StorageNodeID(1), bench.now)
    assert bench.writer.wants_metadata


def test_silence_is_counted_from_the_last_that_was_heard() -> None:
    bench = Bench(stream(1))
    assert bench.writer.silence(5.0) == 0.0
    first, second = bench.append(1, 2)
    assert bench.writer.silence(0.3) == 0.3
    bench.now = 0.4
    bench.committed(first, 1)
    assert bench.writer.silence(0.6) == pytest.approx(0.2)
    bench.committed(second, 2)
    assert bench.writer.silence(9.0) == 0.0


# A preferred log stream


def test_a_writer_goes_to_the_log_stream_it_prefers() -> None:
    for lsid in (1, 2, 3):
        bench = Bench(stream(1), stream(2), stream(3), home=lsid)
        bench.append(1)
        assert bench.writer.log_stream == lsid


def test_a_writer_goes_back_to_the_log_stream_it_prefers_when_nothing_is_under_way() -> None:
    bench = Bench(stream(1), stream(2, SEALED, epoch=3), home=2)
    (first,) = bench.append(1)
    assert first.lsid == 1
    bench.learn(stream(1), stream(2, epoch=4))
    (second,) = bench.append(2)
    assert second.lsid == 1, "the first is still under way there"
    bench.committed(first, 1)
    bench.committed(second, 2)
    bench.learn(stream(1), stream(2, epoch=4))
    (third,) = bench.append(3)
    assert third.lsid == 2


def test_M6_a_preferred_log_stream_that_is_avoided_is_returned_to_when_it_is_well() -> None:
    bench = Bench(stream(1), stream(2), home=2)
    bench.routing.streams_avoided.unusable(LogStreamID(2), bench.now)
    (first,) = bench.append(1)
    assert first.lsid == 1
    bench.committed(first, 1)
    bench.routing.streams_avoided.worked(LogStreamID(2))
    (second,) = bench.append(2)
    assert second.lsid == 2


# The first signs that something is wrong


def test_M11_a_writer_that_hears_nothing_looks_whether_its_log_stream_still_runs() -> None:
    bench = Bench(stream(1), stream(2))
    (first,) = bench.append(1)
    bench.pass_time(OVERDUE - 0.1)
    assert not bench.wants_metadata()
    assert not bench.writer.is_stuck(bench.now)
    bench.pass_time(0.1)
    assert bench.wants_metadata()
    assert bench.writer.is_stuck(bench.now)
    bench.learn(stream(1), stream(2))
    bench.pass_time(0.1)
    assert bench.wants_metadata(), "and looks again and again: a seal is heard of soon"
    bench.committed(first, 1)
    assert not bench.writer.is_stuck(bench.now)


def test_M11_a_log_stream_that_stays_silent_is_avoided_until_it_answers() -> None:
    bench = Bench(stream(1), stream(2))
    (first,) = bench.append(1)
    bench.pass_time(OVERDUE)
    assert bench.avoided() == set(), "it may be slow for once"
    bench.pass_time(TIMEOUT - OVERDUE)
    assert bench.avoided() == {first.lsid}
    bench.append(2)
    assert {append.lsid for append in bench.messages} == {first.lsid}, "what was sent there is not decided"
    bench.committed(first, 1)
    assert bench.avoided() == set()


@pytest.mark.parametrize("error", [errors.Sealed, errors.NotPrimary, errors.UnknownLogStream, errors.Poisoned])
def test_M11_a_log_stream_that_refuses_is_avoided_at_once(error: type[errors.VarlogError]) -> None:
    bench = Bench(stream(1), stream(2))
    (first,) = bench.append(1)
    bench.refused(first, error)
    assert bench.avoided() == {first.lsid}
    assert bench.writer.is_stuck(bench.now)
    other = 3 - first.lsid
    bench.learn(stream(first.lsid, epoch=4), stream(other))
    assert bench.avoided() == set(), "a new epoch is a new beginning"
    assert not bench.writer.is_stuck(bench.now)
    assert bench.last[1].epoch == 4


@pytest.mark.parametrize("error", [errors.Busy, errors.SequenceGap])
def test_a_log_stream_that_asks_for_patience_is_not_avoided(error: type[errors.VarlogError]) -> None:
    bench = Bench(stream(1))
    _, second = bench.append(1, 2)
    bench.refused(second, error)
    assert bench.avoided() == set()


def test_a_refusal_in_a_passed_epoch_says_nothing_of_the_present_one() -> None:
    bench = Bench(stream(1))
    (first,) = bench.append(1)
    bench.learn(stream(1, epoch=4, replicas=(2, 3)))
    bench.refused(first, errors.Sealed)
    assert bench.avoided() == set()


def test_M6_who_has_nothing_undecided_leaves_a_log_stream_that_is_avoided() -> None:
    bench = Bench(stream(1), stream(2))
    (first,) = bench.append(1)
    bench.committed(first, 1)
    bench.routing.streams_avoided.unusable(first.lsid, bench.now)
    (second,) = bench.append(2)
    assert second.lsid == 3 - first.lsid
    bench.committed(second, 2)
    bench.routing.streams_avoided.unusable(second.lsid, bench.now)
    assert len(bench.append(3)) == 1, "avoided is not excluded"


def test_M6_what_could_not_be_sent_goes_elsewhere_when_its_node_is_lost() -> None:
    bench = Bench(stream(1, replicas=(1, 2)), stream(2, replicas=(3, 4)))
    bench.append(0)
    here, other = (("sn/1", 2), ("sn/3", 1))[bench.last[1].lsid - 1]
    bench.committed(bench.last[1], 1)
    bench.cut_off = {here}
    assert bench.append(1) == []
    snid = StorageNodeID(int(here[3:]))
    bench.routing.nodes_avoided.unusable(snid, bench.now)
    bench.writer.on_disconnected(snid, bench.now)
    assert bench.last[1].lsid == other
    assert sequences([bench.last[1]]) == [(0, 2)]


# What became of it


def test_rule19_the_replicas_of_a_sealed_log_stream_are_asked_one_soon_after_the_other() -> None:
    """The primary last: it was the one that did not answer."""
    bench = Bench(stream(1, replicas=(1, 2, 3)))
    bench.append(1)
    bench.learn(stream(1, SEALED, epoch=3))
    assert bench.last[0] == "sn/2", "at once"
    for _ in range(6):
        bench.pass_time(ASK_FATES)
    assert [address for address, _ in bench.sent[1:]] == ["sn/2", "sn/3", "sn/1"] * 2 + ["sn/2"]
    assert bench.pass_time(TIMEOUT - 0.1) == [], "each of them was asked twice"
    assert len(bench.pass_time(0.1)) == 1


def test_rule19_a_replica_that_cannot_be_reached_or_is_avoided_costs_no_time() -> None:
    bench = Bench(stream(1, replicas=(1, 2, 3, 4)))
    bench.append(1)
    bench.cut_off = {"sn/2"}
    bench.routing.nodes_avoided.unusable(StorageNodeID(3), bench.now)
    bench.learn(stream(1, SEALED, epoch=3, replicas=(1, 2, 3, 4)))
    assert [address for address, _ in bench.sent[1:]] == ["sn/4"]


def test_rule19_the_replicas_of_the_present_set_are_asked() -> None:
    bench = Bench(stream(1, replicas=(1, 2, 3)))
    (append,) = bench.append(1)
    bench.learn(stream(1, UNSEALING, epoch=4, replicas=(4, 5)))
    (address, asked) = bench.last
    assert (address, asked.epoch, asked.batch) == ("sn/5", 2, append.batch)
    bench.committed(asked, 9, epoch=2)
    assert isinstance(bench.outcomes[1], Committed)


def test_rule19_what_a_seal_does_not_decide_the_next_may() -> None:
    bench = Bench(stream(1))
    bench.append(1)
    bench.learn(stream(1, SEALED, epoch=3))
    asked = len(bench.sent)
    bench.learn(stream(1, SEALED, epoch=3))
    assert len(bench.sent) == asked, "nothing new is known"
    bench.learn(stream(1, UNSEALING, epoch=4))
    assert len(bench.sent) == asked + 1
    bench.learn(stream(1, epoch=4, primary=2))
    address, again = bench.last
    assert (address, again.epoch) == ("sn/2", 4)


def test_a_new_connection_to_a_backup_brings_nothing_again_while_the_log_stream_runs() -> None:
    bench = Bench(stream(1, primary=1))
    bench.append(1)
    bench.writer.on_connected(StorageNodeID(2), bench.now)
    assert len(bench.sent) == 1
    bench.learn(stream(1, SEALED, epoch=3))
    asked = len(bench.sent)
    bench.writer.on_connected(StorageNodeID(2), bench.now)
    assert len(bench.sent) == asked + 1


# Acknowledgements of a whole cut


def replies(appends: list[Append], first: int, *, shift: int = 0) -> AppendReplies:
    """One cut has committed these, in this order, from an LLSN on."""
    llsns = tuple(range(first, first + len(appends)))
    requests = tuple(append.request for append in appends)
    lsid, epoch = appends[0].lsid, appends[0].epoch
    return AppendReplies(lsid, epoch, 3, True, shift, requests, llsns, (1,) * len(appends))


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
    sent = bench.append(1, 2, 3, deadline=1.0)
    bench.committed(sent[0], 1)
    assert bench.writer.abandon() == [2, 3]
    assert bench.writer.abandon() == []
    assert bench.writer.outstanding == 0
    bench.writer.on_replies(replies(sent, 1), bench.now)
    bench.pass_time(5.0)
    assert list(bench.outcomes) == [1]
