"""GLSNs dense and unique."""

from __future__ import annotations

from tests.sim.checkers.story import Story, good_story
from varlog.sim.evidence import TopicState


def test_O2_a_hole_is_found() -> None:
    story = good_story()
    story.replicas.pop()
    assert "no replica holds 1 GLSNs up to 5: [3]" in story.complaints("dense_unique")


def test_O2_a_hole_at_the_end_is_found() -> None:
    story = good_story()
    story.change_topic(hwm=6)
    assert "[6]" in story.complaints("dense_unique")


def test_O2_a_glsn_given_to_two_entries_is_found() -> None:
    story = Story()
    story.replica(10, "x", (1, 1, (b"a",)))
    story.replica(11, "y", (1, 1, (b"b",)))
    story.topics[1] = TopicState(hwm=1)
    assert "GLSN 1 is (LSID, LLSN) (11, 1) and (10, 1)" in story.complaints("dense_unique")


def test_O2_an_entry_with_two_glsns_is_found() -> None:
    story = Story()
    story.replica(10, "x", (1, 1, (b"a",)))
    story.replica(10, "y", (1, 2, (b"a",)))
    story.topics[1] = TopicState(hwm=2)
    assert "has the GLSNs 1 and 2" in story.complaints("dense_unique")


def test_O2_a_glsn_beyond_metadata_is_found() -> None:
    story = good_story()
    story.change_topic(hwm=4)
    assert "GLSN 5 is committed beyond" in story.complaints("dense_unique")


def test_trimmed_positions_need_not_be_held() -> None:
    story = good_story()
    story.replicas.pop(1)
    assert story.complaints("dense_unique") == ""
