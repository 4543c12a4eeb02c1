"""The writer when something fails: it finds out what became of what it sent, and only then goes on elsewhere."""

from __future__ import annotations

import pytest

from tests.core.sketch import stream
from tests.core.writer import SEALED, TIMEOUT, UNSEALING, Bench, sequences
from varlog import errors
from varlog.core.appending import ASK_FATES, OVERDUE, Committed, Rejected, Undecided
from varlog.types import LogStreamID, StorageNodeID

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
    assert len(bench.pass_time(0.2)) == 1


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
