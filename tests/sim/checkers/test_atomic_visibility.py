"""A transaction is visible as a whole, to everybody, or not at all."""

from __future__ import annotations

from tests.sim.checkers.story import transactional_story
from varlog.sim.history import Kind


def test_the_transactional_story_is_good() -> None:
    assert transactional_story().complaints("atomic_visibility") == ""


def test_an_entry_that_one_reader_sees_and_another_does_not_is_found() -> None:
    story = transactional_story()
    scan = story.add("r", Kind.SCAN, 4.0, 4.5, position=11, end=12)
    story.pass_over(scan, 4.1, 11, 12)
    assert "GLSN 11 was shown by" in story.complaints("atomic_visibility")


def test_one_half_of_a_part_is_found() -> None:
    story = transactional_story()
    for append in story.operations:
        append.part = 1 if append.part == 3 else append.part
    assert "part 1 was shown by" in story.complaints("atomic_visibility")


def test_one_of_two_parts_is_found() -> None:
    story = transactional_story()
    story.find(Kind.DELIVERY).payloads = (b"a 1",)
    story.find(Kind.PASS).glsn = 12
    assert "part 2 was passed over" in story.complaints("atomic_visibility")


def test_a_part_that_was_not_counted_in_is_found() -> None:
    story = transactional_story()
    story.find(Kind.DELIVERY).payloads = (b"a 1", b"a 2", b"a late")
    story.find(Kind.PASS).glsn = 14
    assert "part 3, which was not counted in" in story.complaints("atomic_visibility")


def test_who_asked_for_the_uncommitted_may_see_it() -> None:
    story = transactional_story()
    scan = story.add("r", Kind.SCAN, 4.0, 4.5, position=13, end=14, uncommitted=True)
    story.deliver(scan, 4.2, 13, b"a late")
    assert story.complaints("atomic_visibility") == ""
    assert story.complaints("no_dirty_read") == ""
