"""Everyone agrees on every position."""

from __future__ import annotations

import pytest

from tests.sim.checkers.story import good_story
from varlog.sim.evidence import CommittedBatch
from varlog.sim.history import Kind, Operation


def _spoil_read(op: Operation) -> None:
    op.payloads = (b"c",)


def _spoil_append(op: Operation) -> None:
    op.glsn = 2


def _spoil_delivery(op: Operation) -> None:
    op.payloads = (b"c", b"b")


@pytest.mark.parametrize(
    ("kind", "number", "spoil"),
    [(Kind.READ, 1, _spoil_read), (Kind.APPEND, 0, _spoil_append), (Kind.DELIVERY, 0, _spoil_delivery)],
    ids=["read", "acknowledgement", "delivery"],
)
def test_L1_a_client_that_was_told_otherwise_is_found(kind: Kind, number: int, spoil: object) -> None:
    story = good_story()
    spoil(story.find(kind, number))  # type: ignore[operator]
    assert "GLSN 2: " in story.complaints("agreement")


def test_L1_a_replica_that_holds_something_else_is_found() -> None:
    story = good_story()
    story.change_replica(2, batches=[CommittedBatch(1, 3, 2, (b"C",))])
    assert "b'c' says append" in story.complaints("agreement")
    assert "b'C' says replica of 11 on z" in story.complaints("agreement")


def test_the_same_position_of_two_topics_are_two() -> None:
    story = good_story()
    other = story.read("r", 8.0, 8.1, 2, b"other")
    other.topic = 2
    assert story.complaints("agreement") == ""
