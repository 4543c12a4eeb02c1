"""A later attempt of a name ends the earlier ones, and a number is committed once."""

from __future__ import annotations

from tests.sim.checkers.story import FENCED, NEXT, transactional_story
from varlog.batch.transactions import VerdictKind
from varlog.sim.history import Kind


def test_the_transactional_story_is_good() -> None:
    assert transactional_story().complaints("fencing") == ""


def test_an_earlier_attempt_that_commits_later_is_found() -> None:
    story = transactional_story()
    story.verdicts.pop()
    story.verdict(VerdictKind.COMMIT, 18, FENCED, 14, 6.0, 1)
    told = story.complaints("fencing")
    assert "committed at 18, after transaction 43" in told
    assert "had written at 17" in told
    assert "was begun at 5.1" in told


def test_an_earlier_commit_that_was_asked_for_in_time_is_fine() -> None:
    story = transactional_story()
    story.verdicts.pop()
    story.verdict(VerdictKind.COMMIT, 16, FENCED, 14, 5.0, 1)
    assert story.complaints("fencing") == ""


def test_a_number_that_is_committed_twice_is_found() -> None:
    story = transactional_story()
    story.verdicts.pop()
    story.verdict(VerdictKind.COMMIT, 16, FENCED, 14, 5.0, 1)
    story.verdict(VerdictKind.COMMIT, 18, NEXT, 15, 6.5, 1)
    assert "committed at 16, and then transaction 43" in story.complaints("fencing")


def test_names_have_nothing_to_do_with_each_other() -> None:
    story = transactional_story()
    next(op for op in story.operations if op.kind is Kind.BEGIN and op.transaction == NEXT).name = "m"
    story.verdicts.pop()
    story.verdict(VerdictKind.COMMIT, 18, FENCED, 14, 6.0, 1)
    assert story.complaints("fencing") == ""
