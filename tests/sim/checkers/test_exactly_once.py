"""Appends happen once or not at all, as told."""

from __future__ import annotations

from tests.sim.checkers.story import Story, good_story
from varlog.sim.evidence import CommittedBatch, Sighting, TopicState
from varlog.sim.history import Kind, Outcome


def test_an_acknowledged_entry_that_is_gone_is_found() -> None:
    story = good_story()
    story.replicas.pop()
    assert "entry 0 is lost: GLSN 3 holds nothing" in story.complaints("exactly_once")


def test_an_acknowledged_entry_that_was_replaced_is_found() -> None:
    story = good_story()
    story.change_replica(2, batches=[CommittedBatch(1, 3, 2, (b"g",))])
    assert "GLSN 3 holds b'g'" in story.complaints("exactly_once")


def test_an_acknowledged_entry_may_be_trimmed() -> None:
    story = good_story()
    story.replicas.pop(1)
    assert story.complaints("exactly_once") == ""


def test_an_entry_twice_in_the_log_is_found() -> None:
    story = good_story()
    story.change_replica(2, batches=[CommittedBatch(1, 3, 2, (b"c",)), CommittedBatch(2, 6, 2, (b"b",))])
    assert "b'b' is in the log more than once: GLSN 2" in story.complaints("exactly_once")


def test_a_rejected_append_that_happened_is_found() -> None:
    story = good_story()
    story.change_replica(2, batches=[CommittedBatch(1, 3, 2, (b"c",)), CommittedBatch(2, 6, 2, (b"f",))])
    assert "was rejected, but is at GLSN 6" in story.complaints("exactly_once")


def test_a_rejected_append_that_was_committed_and_trimmed_is_found() -> None:
    story = good_story()
    story.decided.append(Sighting(1, 1, b"f", "a cut"))
    assert "was rejected, but is at GLSN 1" in story.complaints("exactly_once")


def test_a_first_copy_that_was_trimmed_is_found() -> None:
    story = good_story()
    story.decided.append(Sighting(1, 1, b"b", "a cut"))
    assert "b'b' is in the log more than once: GLSN 1 of topic 1 by a cut" in story.complaints("exactly_once")


def test_a_rejected_append_that_only_a_reader_ever_saw_is_found() -> None:
    story = good_story()
    story.read("r", 4.0, 4.1, 1, b"f")
    assert "was rejected, but is at GLSN 1" in story.complaints("exactly_once")


def test_an_unknown_append_may_have_happened_once() -> None:
    story = good_story()
    story.change_replica(2, batches=[CommittedBatch(1, 3, 2, (b"c",)), CommittedBatch(2, 6, 2, (b"g",))])
    assert story.complaints("exactly_once") == ""
    story.replica(12, "v", (1, 7, (b"g",)))
    assert "b'g' is in the log more than once" in story.complaints("exactly_once")


def test_what_a_reader_saw_is_not_lost_even_if_its_writer_was_not_told() -> None:
    story = Story()
    story.add("w", Kind.APPEND, 1.0, 2.0, payloads=(b"g",), outcome=Outcome.UNKNOWN)
    story.read("r", 3.0, 4.0, 1, b"g")
    story.topics[1] = TopicState(hwm=1)
    assert "entry 0 is lost" in story.complaints("exactly_once")


def test_an_invented_entry_is_found() -> None:
    story = good_story()
    story.read("r", 8.0, 9.0, 6, b"never")
    assert "b'never' was never appended" in story.complaints("exactly_once")


def test_half_a_batch_is_found() -> None:
    story = good_story()
    story.change_replica(0, batches=[CommittedBatch(2, 2, 2, (b"b",)), CommittedBatch(3, 4, 2, (b"d",))])
    assert "entry 1 is lost: GLSN 5" in story.complaints("exactly_once")


def test_half_a_batch_of_unknown_fate_is_found() -> None:
    story = Story()
    story.add("w", Kind.APPEND, 1.0, payloads=(b"1", b"2"))
    story.replica(10, "x", (1, 1, (b"2",)))
    story.topics[1] = TopicState(hwm=1)
    assert "entry 0 is lost: GLSN 0" in story.complaints("exactly_once")
    story.replicas.clear()
    story.replica(10, "x", (1, 1, (b"1",)))
    assert "entry 1 is lost: GLSN 2" in story.complaints("exactly_once")


def test_a_batch_in_pieces_is_found() -> None:
    story = good_story()
    story.change_replica(
        0,
        batches=[CommittedBatch(2, 2, 2, (b"b",)), CommittedBatch(3, 4, 2, (b"d",)), CommittedBatch(4, 6, 2, (b"e",))],
    )
    assert "not in one piece" in story.complaints("exactly_once")


def test_a_batch_over_two_log_streams_is_found() -> None:
    story = good_story()
    story.change_replica(0, batches=[CommittedBatch(2, 2, 2, (b"b",)), CommittedBatch(3, 4, 2, (b"d",))])
    story.change_replica(2, batches=[CommittedBatch(1, 3, 2, (b"c",)), CommittedBatch(2, 5, 2, (b"e",))])
    assert "spread over the log streams [10, 11]" in story.complaints("exactly_once")


def test_a_driver_that_reuses_payloads_is_found() -> None:
    story = good_story()
    story.append("w1", 8.0, 9.0, 6, b"a")
    assert "unusable" in story.complaints("exactly_once")
