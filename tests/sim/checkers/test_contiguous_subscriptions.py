"""Subscriptions and scans deliver without gap or repeat."""

from __future__ import annotations

from tests.sim.checkers.story import Story, good_story
from varlog.sim.history import Kind


def test_L6_a_skipped_entry_is_found() -> None:
    story = good_story()
    story.find(Kind.DELIVERY, 0).payloads = (b"b",)
    assert "skipped: 3 was next, 4 was delivered" in story.complaints("contiguous_subscriptions")


def test_L6_a_repeated_entry_is_found() -> None:
    story = good_story()
    delivery = story.find(Kind.DELIVERY, 1)
    delivery.glsn, delivery.payloads = 3, (b"c", b"d", b"e")
    assert "repeated: 4 was next, 3 was delivered" in story.complaints("contiguous_subscriptions")


def test_L6_a_wrong_beginning_is_found() -> None:
    story = good_story()
    story.find(Kind.SUBSCRIBE).position = 1
    assert "skipped: 1 was next, 2 was delivered" in story.complaints("contiguous_subscriptions")


def test_a_scan_that_ended_early_is_found() -> None:
    story = good_story()
    story.find(Kind.SCAN).end = 6
    assert "ended at 4, not at 6" in story.complaints("contiguous_subscriptions")


def test_an_empty_scan_is_fine() -> None:
    story = Story()
    story.add("r", Kind.SCAN, 1.0, 2.0, position=5, end=3)
    assert story.complaints("contiguous_subscriptions") == ""


def test_a_delivery_to_nobody_is_found() -> None:
    story = good_story()
    story.find(Kind.DELIVERY, 0).parent = 99
    assert "belongs to no subscription" in story.complaints("contiguous_subscriptions")


def test_what_is_passed_over_counts_as_delivered() -> None:
    story = good_story()
    story.find(Kind.DELIVERY, 0).payloads = (b"b",)
    delivered = story.operations.index(story.find(Kind.DELIVERY, 0))
    story.pass_over(story.find(Kind.SUBSCRIBE), 3.3, 3, 4)
    story.operations.insert(delivered + 1, story.operations.pop())
    assert story.complaints("contiguous_subscriptions") == ""
