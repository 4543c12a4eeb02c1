"""One reconfiguration of a topic at a time, and growing pauses between those that bring nothing."""

from __future__ import annotations

from itertools import pairwise

from varlog.core.reconfiguring import Change
from varlog.core.steps import Reconfigure
from varlog.manager.reconfiguring import AGAIN_AFTER, AGAIN_AFTER_MOST, AT_ONCE, FORGET_AFTER, Reconfigurations
from varlog.types import Epoch, LogStreamID, StorageNodeID, TopicID


def wanted(tpid: int = 1, epoch: int = 1, joiner: int = 3) -> Reconfigure:
    return Reconfigure(TopicID(tpid), Change(Epoch(epoch), joiners=((LogStreamID(1), StorageNodeID(joiner)),)))


def test_of_a_topic_there_is_one_at_a_time() -> None:
    some = Reconfigurations()
    assert some.begin(wanted(), 0.0)
    assert not some.begin(wanted(joiner=4), 0.1)
    assert some.begin(wanted(2), 0.1)
    some.end(wanted(), 0.2)
    assert some.begin(wanted(joiner=4), 0.2), "for another reason it need not wait"


def test_the_same_is_tried_again_at_growing_intervals_in_whatever_epoch() -> None:
    some, now = Reconfigurations(), 0.0
    begun: list[float] = []
    while now < 100:
        if some.begin(wanted(epoch=1 + len(begun)), now):
            begun.append(now)
            some.end(wanted(epoch=len(begun)), now)
        now = round(now + 0.1, 1)
    pauses = [later - earlier for earlier, later in pairwise(begun)]
    assert [round(pause, 1) for pause in pauses[:5]] == [AGAIN_AFTER * 2**n for n in range(5)]
    assert max(pauses) <= AGAIN_AFTER_MOST + 0.1


def test_what_was_not_tried_for_long_begins_anew() -> None:
    some = Reconfigurations()
    for now in (0.0, 10.0, 20.0):
        assert some.begin(wanted(), now)
        some.end(wanted(), now)
    later = 20.0 + FORGET_AFTER
    assert some.begin(wanted(2), later)
    some.end(wanted(2), later)
    assert some.begin(wanted(), later)
    some.end(wanted(), later)
    assert some.begin(wanted(), later + AGAIN_AFTER)


def test_so_many_at_once_and_no_more() -> None:
    some = Reconfigurations()
    assert [some.begin(wanted(tpid), 0.0) for tpid in range(1, AT_ONCE + 2)] == [True] * AT_ONCE + [False]
