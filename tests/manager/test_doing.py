"""What the manager sends, and says: each step at once when it is new, again after a while, and told once."""

from __future__ import annotations

from varlog.core.manager import Step
from varlog.core.messages import Message, Seal, Sync
from varlog.manager.doing import Doing
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, StorageNodeID


def seal(request: int) -> Step:
    return Step("sn/1", Seal(request, LogStreamID(1), Epoch(3), LLSN(9), GLSN(0)), f"log stream 1: sealing ({request})")


def copying(request: int) -> Step:
    return Step("sn/2", Sync(request, LogStreamID(1), Epoch(2), StorageNodeID(1), True), "log stream 1: copies")


WAITING = Step("", None, "log stream 2: waits")


def taken(doing: Doing, now: float, *steps: Step) -> list[tuple[Message | None, bool]]:
    return [(step.message, is_new) for step, is_new in doing.take(steps, now)]


def test_a_step_is_sent_at_once_and_again_after_a_while() -> None:
    doing = Doing()
    assert taken(doing, 0.0, seal(1), copying(2)) == [(seal(1).message, True), (copying(2).message, True)]
    assert taken(doing, 0.4, seal(3), copying(4)) == []
    assert taken(doing, 0.5, seal(5), copying(6)) == [(seal(5).message, False), (copying(6).message, False)]
    for tenth in range(6, 101):
        taken(doing, tenth / 10, seal(7))
    later = [tenth / 10 for tenth in range(101, 200) if taken(doing, tenth / 10, seal(8))]
    assert len(later) == 5, "less often when it goes on for long"
    assert doing.sent["Sync"] == 2


def test_a_step_that_was_refused_is_made_again_soon() -> None:
    doing = Doing()
    taken(doing, 0.0, seal(1))
    doing.refused(1, 0.1)
    assert taken(doing, 0.11, seal(2)) == []
    assert taken(doing, 0.14, seal(3)) == [(seal(3).message, False)]
    doing.refused(99, 0.15)
    assert taken(doing, 0.3, seal(4)) == []


def test_what_was_asked_under_a_number_is_known_while_it_follows() -> None:
    doing = Doing()
    taken(doing, 0.0, seal(1), WAITING)
    assert doing.asked(1) == seal(1).message
    assert doing.asked(2) is None
    taken(doing, 0.5, seal(2))
    assert (doing.asked(1), doing.asked(2)) == (None, seal(2).message)


def test_what_is_being_done_is_told_with_its_latest_words_and_since_when() -> None:
    doing = Doing()
    taken(doing, 1.0, seal(1), WAITING)
    taken(doing, 1.2, seal(2), WAITING)
    assert doing.sentences == [("log stream 1: sealing (2)", 1.0), ("log stream 2: waits", 1.0)]
    taken(doing, 1.4, WAITING)
    assert taken(doing, 2.4, seal(3), WAITING) == [(seal(3).message, False)], "what comes and goes is told once"
    taken(doing, 4.0, WAITING)
    assert doing.sentences == [("log stream 2: waits", 1.0)]
    assert taken(doing, 4.1, seal(4)) == [(seal(4).message, True)]
    assert doing.sent.total() == 3, "to wait is no request"
