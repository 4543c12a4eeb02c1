"""What was told to be committed is; what was told to be aborted is not."""

from __future__ import annotations

from tests.sim.checkers.story import COMMITTED, NEXT, transactional_story
from varlog.batch.transactions import VerdictKind
from varlog.sim.history import Kind, Outcome


def test_the_transactional_story_is_good() -> None:
    assert transactional_story().complaints("no_lost_commit") == ""


def test_a_commit_behind_an_abort_is_found() -> None:
    story = transactional_story()
    story.verdict(VerdictKind.EXPIRE, 13, COMMITTED, 10, 2.5)
    assert "the log says EXPIRE at 13" in story.complaints("no_lost_commit")


def test_a_commit_that_is_not_in_the_log_is_found() -> None:
    story = transactional_story()
    story.add("w", Kind.COMMIT, 7.0, 7.5, transaction=NEXT, parts=((1, 1),), glsn=18)
    assert "the log says nothing" in story.complaints("no_lost_commit")


def test_an_abort_that_was_none_is_found() -> None:
    story = transactional_story()
    commit = story.find(Kind.COMMIT)
    commit.outcome, commit.error = Outcome.ERROR, "TransactionAborted"
    assert "is aborted; the log says COMMIT" in story.complaints("no_lost_commit")


def test_an_unknown_commit_may_be_either() -> None:
    story = transactional_story()
    commit = story.find(Kind.COMMIT)
    commit.outcome, commit.error, commit.glsn = Outcome.UNKNOWN, "Unknown", 0
    assert story.complaints("no_lost_commit") == ""


def test_a_committed_entry_that_is_passed_over_is_found() -> None:
    story = transactional_story()
    scan = story.add("r", Kind.SCAN, 4.0, 4.5, position=12, end=13)
    story.pass_over(scan, 4.1, 12, 13)
    assert "passed over b'a 2' at 12" in story.complaints("no_lost_commit")


def test_other_parts_than_were_asked_for_are_found() -> None:
    story = transactional_story()
    story.find(Kind.COMMIT).parts = ((1, 1),)
    assert "counted ((1, 1),); the log has ((1, 1), (2, 1))" in story.complaints("no_lost_commit")


def test_a_part_that_lacks_an_entry_is_found() -> None:
    story = transactional_story()
    append = next(op for op in story.operations if op.kind is Kind.APPEND and op.part == 2)
    append.outcome, append.payloads = Outcome.UNKNOWN, (b"gone",)
    assert "part 2 has 0 entries, its COMMIT says 1" in story.complaints("no_lost_commit")


def test_a_replay_that_was_told_a_lie_is_found() -> None:
    story = transactional_story()
    replay = next(op for op in story.operations if op.error == "AlreadyCommitted")
    replay.number = 2
    assert "number 2 had been committed at 14" in story.complaints("no_lost_commit")
