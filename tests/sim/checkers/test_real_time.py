"""Positions follow real time."""

from __future__ import annotations

import pytest

from tests.sim.checkers.story import Story
from varlog.sim.evidence import TopicState
from varlog.sim.history import Kind, Outcome


def story_with(kind: Kind) -> Story:
    """Somebody is told that 2 is taken, by an operation of that kind, from 1.0 to 2.0."""
    story = Story()
    if kind is Kind.APPEND:
        story.append("x", 1.0, 2.0, 2, b"two")
    elif kind is Kind.READ:
        story.read("x", 1.0, 2.0, 2, b"two")
    elif kind is Kind.TAIL:
        story.tail("x", 1.0, 2.0, 2)
    else:
        subscription = story.add("x", Kind.SUBSCRIBE, 0.5, position=2)
        story.deliver(subscription, 2.0, 2, b"two")
    return story


KINDS = [Kind.APPEND, Kind.READ, Kind.TAIL, Kind.DELIVERY]


@pytest.mark.parametrize("kind", KINDS)
def test_L1_a_later_append_with_a_smaller_position_is_found(kind: Kind) -> None:
    story = story_with(kind)
    story.append("w", 2.1, 3.0, 1, b"one")
    assert "2 was taken before it began" in story.complaints("real_time")


@pytest.mark.parametrize("kind", KINDS)
def test_concurrent_appends_may_have_any_order(kind: Kind) -> None:
    story = story_with(kind)
    story.append("w", 1.9, 3.0, 1, b"one")
    assert story.complaints("real_time") == ""


def test_L1_holds_for_an_append_whose_writer_was_never_told() -> None:
    story = story_with(Kind.APPEND)
    story.add("w", Kind.APPEND, 2.1, 5.0, payloads=(b"one",), outcome=Outcome.UNKNOWN)
    assert story.complaints("real_time") == ""
    story.replica(10, "x", (1, 1, (b"one", b"two")))
    story.topics[1] = TopicState(hwm=2)
    assert "got GLSN 1" in story.complaints("real_time")


def test_the_greatest_of_all_earlier_positions_counts() -> None:
    story = Story()
    story.append("a", 0.0, 1.0, 9, b"nine")
    story.append("b", 0.0, 2.0, 3, b"three")
    story.append("w", 2.1, 3.0, 5, b"five")
    assert "9 was taken" in story.complaints("real_time")


def test_topics_have_their_own_order() -> None:
    story = story_with(Kind.APPEND)
    story.append("w", 2.1, 3.0, 1, b"one").topic = 2
    assert story.complaints("real_time") == ""
