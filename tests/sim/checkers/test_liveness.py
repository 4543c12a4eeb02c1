"""A healed cluster works again."""

from __future__ import annotations

from tests.sim.checkers.story import good_story
from varlog.sim.evidence import LivenessPhase
from varlog.sim.history import Kind, Outcome


def test_a_writer_that_got_nothing_acknowledged_is_found() -> None:
    story = good_story()
    story.liveness = LivenessPhase(healed=4.5, ended=10.0, grace=1.0, writers=["w1", "w2"])
    assert story.complaints("liveness") == "w2 got none of 0 appends acknowledged after 4.500"
    story.add("w2", Kind.APPEND, 7.0, 8.0, payloads=(b"h",), outcome=Outcome.UNKNOWN)
    assert "w2 got none of 1 appends" in story.complaints("liveness")


def test_an_operation_that_was_never_answered_is_found() -> None:
    story = good_story()
    story.add("p", Kind.TAIL, 9.5)
    assert story.complaints("liveness") == ""
    story.add("p", Kind.TAIL, 8.5)
    assert "tail #19 of p [8.500000-inf] pending was never answered" in story.complaints("liveness")


def test_a_subscription_that_stands_still_is_found() -> None:
    story = good_story()
    story.operations.remove(story.find(Kind.DELIVERY, 1))
    assert "stands at 3, the log ends at 5" in story.complaints("liveness")
    story.find(Kind.SUBSCRIBE).outcome = Outcome.ERROR
    assert story.complaints("liveness") == ""


def test_what_took_until_its_deadline_in_a_settled_cluster_is_found() -> None:
    story = good_story()
    story.liveness = LivenessPhase(healed=4.5, ended=10.0, grace=1.0, writers=["w1"], settled=7.0)
    story.add("p", Kind.TAIL, 6.9, 9.9, outcome=Outcome.ERROR, error="DeadlineExceeded")
    assert story.complaints("liveness") == ""
    story.add("p", Kind.TAIL, 7.1, 9.9, outcome=Outcome.ERROR, error="DeadlineExceeded")
    assert "error took until its deadline" in story.complaints("liveness")


def test_what_is_not_in_order_at_the_end_is_told() -> None:
    story = good_story()
    unsettled = ["log stream 10 is SEALED at the end"]
    story.liveness = LivenessPhase(healed=4.5, ended=10.0, grace=1.0, writers=["w1"], unsettled=unsettled)
    assert story.complaints("liveness") == "log stream 10 is SEALED at the end"


def test_a_run_without_a_healed_phase_owes_nothing() -> None:
    story = good_story()
    story.operations.remove(story.find(Kind.DELIVERY, 1))
    story.liveness = None
    assert story.complaints("liveness") == ""
