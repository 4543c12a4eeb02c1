"""A tail is neither too small nor too great."""

from __future__ import annotations

import pytest

from tests.sim.checkers.story import Story, good_story
from varlog.sim.history import Kind, Outcome


def test_a_tail_below_an_acknowledged_append_is_found() -> None:
    story = good_story()
    story.find(Kind.TAIL, 1).glsn = 2
    assert "is below 3, known before it began: append" in story.complaints("peek_bounds")


@pytest.mark.parametrize("told", ["read", "tail", "delivery"])
def test_a_tail_below_what_was_seen_before_is_found(told: str) -> None:
    story = Story()
    story.add("w", Kind.APPEND, 0.0, payloads=(b"a", b"b"))
    if told == "read":
        story.read("r", 1.0, 2.0, 2, b"b")
    elif told == "tail":
        story.tail("r", 1.0, 2.0, 2)
    else:
        story.deliver(story.add("s", Kind.SUBSCRIBE, 0.5, position=1), 2.0, 1, b"a", b"b")
    story.tail("p", 1.5, 3.0, 1)
    assert story.complaints("peek_bounds") == ""
    story.tail("p", 2.5, 3.0, 1)
    assert "is below 2" in story.complaints("peek_bounds")


def test_a_tail_above_all_that_was_begun_is_found() -> None:
    story = good_story()
    story.find(Kind.TAIL, 1).glsn = 4
    assert "is above 3, the last of those begun before it ended" in story.complaints("peek_bounds")


def test_appends_in_flight_may_count_and_rejected_ones_may_not() -> None:
    story = Story()
    append = story.add("w", Kind.APPEND, 1.0, 5.0, payloads=(b"a", b"b"), outcome=Outcome.UNKNOWN)
    story.tail("p", 2.0, 3.0, 2)
    assert story.complaints("peek_bounds") == ""
    append.outcome = Outcome.REJECTED
    assert "is above 0" in story.complaints("peek_bounds")
