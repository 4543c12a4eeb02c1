"""(LSID, epoch, LLSN) names one content."""

from __future__ import annotations

from tests.sim.checkers.story import EPOCH, good_story


def test_rule7_two_contents_of_one_name_are_found() -> None:
    story = good_story()
    story.frames.saw(10, EPOCH, 2, 1, b"other", "y")
    assert "LSID 10, epoch 2, LLSN 2 has two contents, stored by x and y" in story.complaints("one_content")


def test_rule7_batches_that_overlap_are_found() -> None:
    story = good_story()
    story.frames.saw(10, EPOCH, 4, 1, b"late", "y")
    assert "LLSN 4 has two contents" in story.complaints("one_content")


def test_rule7_an_overlap_behind_a_smaller_batch_is_found() -> None:
    story = good_story()
    story.frames.saw(12, EPOCH, 1, 9, b"great", "x")
    story.frames.saw(12, EPOCH, 10, 1, b"fine", "x")
    assert story.complaints("one_content") == ""
    story.frames.saw(12, EPOCH, 5, 1, b"small", "y")
    assert "LLSN 5 has two contents" in story.complaints("one_content")


def test_rule7_another_epoch_is_another_name() -> None:
    story = good_story()
    story.frames.saw(10, EPOCH + 2, 2, 1, b"other", "y")
    assert story.complaints("one_content") == ""
