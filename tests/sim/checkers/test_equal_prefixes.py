"""Committed prefixes are equal."""

from __future__ import annotations

import pytest

from tests.sim.checkers.story import good_story
from varlog.sim.evidence import CommittedBatch


@pytest.mark.parametrize(
    "held",
    [CommittedBatch(2, 3, 2, (b"b",)), CommittedBatch(2, 2, 4, (b"b",)), CommittedBatch(2, 2, 2, (b"B",))],
    ids=["glsn", "epoch", "content"],
)
def test_a_difference_is_found(held: CommittedBatch) -> None:
    story = good_story()
    story.change_replica(1, batches=[CommittedBatch(1, 1, 2, (b"a",)), held])
    assert "LSID 10, LLSN 2: " in story.complaints("equal_prefixes")


def test_batches_may_be_cut_differently() -> None:
    story = good_story()
    story.replica(10, "v", (3, 4, (b"d",)), (4, 5, (b"e",)), trim=3)
    assert story.complaints("equal_prefixes") == ""


def test_a_hole_in_a_replica_is_found() -> None:
    story = good_story()
    story.change_replica(0, batches=[CommittedBatch(1, 1, 2, (b"a",)), CommittedBatch(3, 4, 2, (b"d", b"e"))])
    assert "LLSN 3 follows, 2 was expected" in story.complaints("equal_prefixes")


def test_entries_missing_at_the_end_are_found() -> None:
    story = good_story()
    story.change_replica(1, committed_end=5)
    assert "holds entries up to 3, but its committed end is 5" in story.complaints("equal_prefixes")
    story.change_replica(1, damaged=True)
    assert story.complaints("equal_prefixes") == ""


def test_a_commit_that_was_never_decided_is_found() -> None:
    story = good_story()
    story.change_topic(ends={10: 4, 11: 2})
    assert "LSID 10 on x: committed up to 5, but the metadata says 4" in story.complaints("equal_prefixes")
