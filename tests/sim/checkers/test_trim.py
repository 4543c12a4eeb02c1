"""Trim takes what it was asked to take, and nothing else."""

from __future__ import annotations

import pytest

from tests.sim.checkers.story import good_story
from varlog.sim.evidence import CommittedBatch
from varlog.sim.history import Kind, Outcome


def test_L5_a_refusal_above_every_requested_trim_is_found() -> None:
    story = good_story()
    story.add("r", Kind.READ, 7.0, 7.1, position=2, outcome=Outcome.ERROR, error="Trimmed", first=3)
    assert "refused as trimmed at 2, but nobody had asked to trim beyond 1" in story.complaints("trim")


def test_L5_a_refusal_before_the_trim_was_requested_is_found() -> None:
    story = good_story()
    story.add("r", Kind.READ, 3.0, 3.5, position=1, outcome=Outcome.ERROR, error="Trimmed", first=2)
    assert "nobody had asked to trim beyond 0" in story.complaints("trim")


@pytest.mark.parametrize("first", [0, 1, 3])
def test_L5_a_wrong_beginning_is_found(first: int) -> None:
    story = good_story()
    story.find(Kind.READ, 0).first = first
    assert f"told that the log begins at {first}" in story.complaints("trim")


def test_a_subscription_is_refused_where_it_stands() -> None:
    story = good_story()
    subscription = story.find(Kind.SUBSCRIBE)
    subscription.outcome, subscription.completed = Outcome.ERROR, 9.0
    subscription.error, subscription.first = "Trimmed", 7
    assert "refused as trimmed at 6" in story.complaints("trim")


def test_L5_reading_one_s_own_trimmed_entries_is_found() -> None:
    story = good_story()
    story.read("t", 4.2, 4.3, 1, b"a")
    assert "returned 1 after trim" in story.complaints("trim")


def test_L5_scanning_one_s_own_trimmed_entries_is_found() -> None:
    story = good_story()
    story.deliver(story.add("t", Kind.SCAN, 4.2, 4.4, position=1, end=3), 4.3, 1, b"a", b"b")
    assert "returned 1 after trim" in story.complaints("trim")


def test_others_may_read_a_while_longer_and_old_subscriptions_go_on() -> None:
    story = good_story()
    story.read("r", 4.2, 4.3, 1, b"a")
    story.deliver(story.add("t", Kind.SUBSCRIBE, 3.9, position=1), 4.3, 1, b"a")
    assert story.complaints("trim") == ""


def test_an_acknowledged_trim_that_was_forgotten_is_found() -> None:
    story = good_story()
    story.change_topic(trim=0)
    assert "topic 1 is trimmed to 0; acknowledged was 1" in story.complaints("trim")


def test_a_trim_nobody_requested_is_found() -> None:
    story = good_story()
    story.change_topic(trim=3)
    assert "topic 1 is trimmed to 3" in story.complaints("trim")


def test_a_replica_that_trimmed_too_much_is_found() -> None:
    story = good_story()
    story.change_replica(0, trim=2)
    assert "LSID 10 on x is trimmed to 2, its topic to 1" in story.complaints("trim")


def test_a_replica_that_lost_entries_above_its_trim_point_is_found() -> None:
    story = good_story()
    story.change_replica(0, batches=[CommittedBatch(3, 4, 2, (b"d", b"e"))])
    assert "LSID 10 on x is trimmed to 1, but lacks GLSN 2" in story.complaints("trim")
    story.change_replica(0, damaged=True)
    assert story.complaints("trim") == ""


def test_a_trim_of_unknown_fate_may_have_happened_or_not() -> None:
    story = good_story()
    story.add("t", Kind.TRIM, 7.0, 8.0, position=2, outcome=Outcome.UNKNOWN)
    assert story.complaints("trim") == ""
    story.change_topic(trim=2)
    assert story.complaints("trim") == ""
