"""Committed means synced everywhere."""

from __future__ import annotations

from tests.sim.checkers.story import good_story

CUT = (10, 2, 5, 6, 2)


def test_O1_a_cut_of_what_every_replica_has_synced_is_fine() -> None:
    story = good_story()
    story.durability.synced(10, 2, 7, "x")
    story.durability.synced(10, 2, 9, "y")
    story.durability.told(CUT, ["x", "y"])
    assert story.complaints("durable_on_all") == ""


def test_O1_a_cut_told_before_the_slowest_replica_had_synced_is_found() -> None:
    story = good_story()
    story.durability.synced(10, 2, 7, "x")
    story.durability.synced(10, 2, 6, "y")
    story.durability.told(CUT, ["x", "y"])
    story.durability.synced(10, 2, 7, "y")
    story.durability.told(CUT, ["x", "y"])
    told = "log stream 10, epoch 2, LLSN 5 to 7 was committed when y had synced it to 6"
    assert story.complaints("durable_on_all") == told


def test_O1_what_was_synced_in_another_epoch_does_not_count() -> None:
    story = good_story()
    story.durability.synced(10, 4, 7, "x")
    story.durability.told(CUT, ["x"])
    assert "had synced it to 0" in story.complaints("durable_on_all")
