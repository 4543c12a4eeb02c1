"""Nobody is shown what is not committed."""

from __future__ import annotations

from tests.sim.checkers.story import FENCED, NEXT, transactional_story
from varlog.batch.transactions import VerdictKind
from varlog.sim.history import Kind
from varlog.types import GLSN


def test_the_transactional_story_is_good() -> None:
    assert transactional_story().complaints("no_dirty_read") == ""


def test_an_entry_of_an_open_transaction_is_found() -> None:
    story = transactional_story()
    story.deliver(story.find(Kind.SUBSCRIBE), 6.5, 17, b"c")
    assert "of which the log says: nothing" in story.complaints("no_dirty_read")
    assert "before anybody had begun to commit it" in story.complaints("no_dirty_read")


def test_an_entry_of_an_aborted_transaction_is_found() -> None:
    story = transactional_story()
    scan = story.add("r", Kind.SCAN, 6.0, 6.5, position=15, end=16)
    story.deliver(scan, 6.2, 15, b"b")
    told = story.complaints("no_dirty_read")
    assert "the log says: ABORT at 16" in told
    assert "which was aborted" in told


def test_a_later_commit_counts_for_nothing() -> None:
    story = transactional_story()
    story.verdict(VerdictKind.COMMIT, 18, FENCED, 14, 5.1, 1)
    scan = story.add("r", Kind.SCAN, 6.0, 6.5, position=15, end=16)
    story.deliver(scan, 6.2, 15, b"b")
    assert "the log says: ABORT at 16" in story.complaints("no_dirty_read")


def test_what_is_committed_too_late_is_found() -> None:
    """It will be, but was not when it was shown."""
    story = transactional_story()
    story.deliver(story.find(Kind.SUBSCRIBE), 6.5, 17, b"c")
    story.verdict(VerdictKind.COMMIT, 18, NEXT, 15, 7.0, 1)
    told = story.complaints("no_dirty_read")
    assert "before anybody had begun to commit it" in told
    assert "the log says" not in told


def test_what_lies_behind_the_position_that_was_looked_at_is_found() -> None:
    story = transactional_story()
    story.verdict(VerdictKind.COMMIT, 18, NEXT, 15, 6.4, 1)
    spoken = story.verdicts.pop()
    story.verdicts.append(spoken._replace(verdict=spoken.verdict._replace(checked=GLSN(16))))
    story.deliver(story.find(Kind.SUBSCRIBE), 6.5, 17, b"c")
    assert "the log says: COMMIT at 18" in story.complaints("no_dirty_read")
