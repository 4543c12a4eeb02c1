"""The sequencer: what it gives out, in which epochs, and what it does not."""

from __future__ import annotations

from itertools import count
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog import errors, limits
from varlog.core.address import METADATA_REPOSITORY, Address
from varlog.core.messages import (
    Decided,
    GetMetadata,
    GetTail,
    Granted,
    Message,
    Metadata,
    Next,
    Peek,
    Peeked,
    RegisterSequencer,
    TopicInfo,
)
from varlog.core.projection import Chain, Projection, Stripe
from varlog.core.sequencer import ASK_AGAIN, REGISTER_AGAIN, WAIT_SECONDS, Sequencer
from varlog.types import GLSN, Epoch, LogStreamID, Ordering, StorageNodeID, TopicID, Version

TOPIC = TopicID(1)
LOGS = (LogStreamID(1), LogStreamID(2))
HERE, ELSEWHERE = "here:9094", "elsewhere:9094"
BOOT = 77
CLIENT = "guest/1"
A = TypeVar("A", Granted, Peeked)


def projection(
    epoch: int, start: int = 1, *, block: int = 10, sequencer: str = HERE, boot: int = BOOT, time: int = 0
) -> Projection:
    chains = tuple(Chain(lsid, (StorageNodeID(1),)) for lsid in LOGS)
    return Projection(Epoch(epoch), sequencer, boot, GLSN(start), time, (Stripe(GLSN(1), block, LOGS),), chains)


def topic(of: Projection | None, tpid: TopicID = TOPIC, ordering: Ordering = Ordering.SEQUENCER) -> TopicInfo:
    return TopicInfo(tpid, f"topic {tpid}", GLSN(0), GLSN(0), ordering=ordering, projection=of)


class Place:
    """A sequencer, a clock, and metadata that it can ask for."""

    def __init__(self, *topics: TopicInfo) -> None:
        self.topics = topics
        self.version = 1
        self.time = 1000
        self.answers: list[Message] = []
        self.questions: list[Message] = []
        self.sequencer = Sequencer(HERE, BOOT, lambda: self.time, count(1).__next__, self._send)
        self._numbers = count(1)

    def _send(self, address: Address, message: Message) -> None:
        (self.questions if address == METADATA_REPOSITORY else self.answers).append(message)

    def tell(self, now: float = 0.0) -> None:
        """The metadata repository answers all it was asked."""
        questions, self.questions = self.questions, []
        for question in questions:
            assert isinstance(question, GetMetadata)
            told = Metadata(question.request, Version(self.version), (), self.topics, ())
            self.sequencer.on_message(METADATA_REPOSITORY, told, now)

    def next(self, epoch: int, *counts: int, tpid: TopicID = TOPIC) -> Granted:
        asked = Next(next(self._numbers), tpid, Epoch(epoch), counts)
        return self._ask(asked, Granted)

    def peek(self, epoch: int, tpid: TopicID = TOPIC) -> Peeked:
        return self._ask(Peek(next(self._numbers), tpid, Epoch(epoch)), Peeked)

    def _ask(self, asked: Next | Peek, kind: type[A]) -> A:
        self.sequencer.on_message(CLIENT, asked, 0.0)
        self.tell()
        answer = self.answers.pop()
        assert isinstance(answer, kind)
        assert not self.answers
        assert answer.request == asked.request
        return answer


def test_S1_positions_are_consecutive_from_the_start_on() -> None:
    place = Place(topic(projection(3, start=21, time=5)))
    assert place.peek(3).glsn == 20, "none was given out"
    assert place.next(3, 1).glsns == (21,)
    assert place.next(3, 2, 3).glsns == (22, 24)
    assert place.peek(3) == Peeked(4, 0, Epoch(3), GLSN(26), BOOT)
    assert (place.sequencer.requests, place.sequencer.positions, place.sequencer.topics) == (2, 6, 1)


def test_rule24_a_grant_never_crosses_a_block() -> None:
    place = Place(topic(projection(1)))
    assert place.next(1, 8).glsns == (1,)
    granted = place.next(1, 2, 9, 10, 1)
    assert granted.glsns == (9, 11, 21, 31)
    assert granted.skipped == ((20, 1),)
    assert place.next(1, 10) == Granted(3, 0, Epoch(1), (41,), 1000, ((32, 9),))
    assert place.sequencer.skipped == 10


@given(
    st.integers(1, 60),
    st.integers(1, 12),
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=5), max_size=20),
)
def test_rule24_every_position_is_granted_or_skipped_once(start: int, block: int, asked: list[list[int]]) -> None:
    """And each batch lies in one block; what was refused took none."""
    made = projection(1, start, block=block)
    place = Place(topic(made))
    taken: list[int] = []
    for counts in asked:
        granted = place.next(1, *counts)
        if max(counts) > block:
            assert granted.code == errors.BatchTooLarge.code
            continue
        for glsn, entries in zip(granted.glsns, counts, strict=True):
            assert made.block_end(GLSN(glsn)) >= glsn + entries
            taken += range(glsn, glsn + entries)
        for glsn, left_out in granted.skipped:
            assert made.block_end(GLSN(glsn)) == glsn + left_out
            taken += range(glsn, glsn + left_out)
    assert sorted(taken) == list(range(start, start + len(taken)))
    assert place.peek(1).glsn == start + len(taken) - 1


def test_times_never_decrease() -> None:
    place = Place(topic(projection(1, time=5000)))
    assert place.next(1, 1).time == 5000, "the clock is behind what an earlier epoch gave out"
    place.time = 9000
    assert place.next(1, 1).time == 9000
    place.time = 8000
    assert place.next(1, 1).time == 9000


@pytest.mark.parametrize(
    ("counts", "error"),
    [
        ((0,), errors.InvalidArgument),
        ((1, 0), errors.InvalidArgument),
        ((), errors.InvalidArgument),
        ((11,), errors.BatchTooLarge),
        ((1, 11), errors.BatchTooLarge),
    ],
)
def test_what_cannot_be_granted_takes_no_position(counts: tuple[int, ...], error: type[errors.VarlogError]) -> None:
    place = Place(topic(projection(1)))
    refused = place.next(1, *counts)
    assert (refused.code, refused.glsns) == (error.code, ())
    assert place.next(1, 1).glsns == (1,)
    assert place.sequencer.refused == 1


def test_rule20_a_new_epoch_begins_at_its_own_start() -> None:
    place = Place(topic(projection(1)))
    place.next(1, 5)
    place.topics = (topic(projection(4, start=3)),)
    assert place.next(4, 1).glsns == (3,), "what the earlier epoch gave out from there on never happened"
    stale = place.next(1, 1)
    assert (stale.code, stale.epoch, stale.glsns) == (errors.StaleEpoch.code, 4, ())
    assert place.peek(1).code == errors.StaleEpoch.code
    assert place.peek(4).glsn == 3


def test_rule20_an_old_answer_brings_no_epoch_back() -> None:
    """From a metadata repository that was replaced and does not know it; the counter must not begin anew."""
    place = Place(topic(projection(2)))
    place.version = 9
    place.next(2, 5)
    for version, told in ((8, (topic(projection(1)),)), (7, ()), (9, (topic(projection(2)),))):
        place.version, place.topics = version, told
        assert place.next(3, 1).code, "asked in an epoch that is not known it looks at the metadata"
        assert place.peek(2).glsn == 5
    assert place.next(2, 1).glsns == (6,)


def test_one_that_is_not_named_gives_out_nothing() -> None:
    for made in (projection(2, sequencer=ELSEWHERE), projection(2, boot=BOOT + 1)):
        place = Place(topic(made))
        for answer in (place.next(2, 1), place.peek(2)):
            assert (answer.code, answer.epoch) == (errors.NotSequencer.code, 2)
            assert HERE in answer.detail
        assert place.sequencer.topics == 0


def test_S1_one_that_was_replaced_gives_out_nothing_once_it_knows() -> None:
    place = Place(topic(projection(1)))
    place.next(1, 1)
    place.topics = (topic(projection(2, start=2, sequencer=ELSEWHERE)),)
    assert place.next(2, 1).code == errors.NotSequencer.code
    assert place.next(1, 1).code == errors.StaleEpoch.code


def test_who_asks_in_an_epoch_of_the_future_is_told_the_present_one() -> None:
    place = Place(topic(projection(2)))
    stale = place.next(5, 1)
    assert (stale.code, stale.epoch) == (errors.StaleEpoch.code, 2)


def test_topics_that_have_no_sequencer() -> None:
    commits = topic(None, TopicID(2), Ordering.COMMIT)
    place = Place(topic(None), commits)
    assert place.next(1, 1).code == errors.StaleEpoch.code, "before its first reconfiguration"
    refused = place.next(1, 1, tpid=TopicID(2))
    assert refused.code == errors.WrongOrdering.code
    assert refused.detail == "topic 'topic 2' is ordered by commits: it has no sequencer"
    assert place.peek(1, TopicID(3)).code == errors.UnknownTopic.code


def test_a_topic_that_is_removed_is_forgotten() -> None:
    place = Place(topic(projection(1)))
    place.next(1, 1)
    place.topics, place.version = (), 2
    place.next(2, 1)
    assert place.sequencer.topics == 0
    assert place.next(1, 1).code == errors.UnknownTopic.code


def test_asked_for_no_epoch_it_tells_which_start_it_is() -> None:
    place = Place()
    assert place.peek(0) == Peeked(1, 0, Epoch(0), boot=BOOT)
    assert place.next(0, 1).code == errors.NotSequencer.code


def asks(place: Place, epoch: int, request: int, now: float, tpid: TopicID = TOPIC) -> None:
    place.sequencer.on_message(CLIENT, Next(request, tpid, Epoch(epoch), (1,)), now)


def test_all_who_wait_are_answered_by_the_look_that_began_after_them() -> None:
    place = Place(topic(projection(1)))
    for request in (1, 2, 3):
        asks(place, 1, request, 0.0)
    assert len(place.questions) == 1
    assert place.sequencer.waiting == 3
    place.tell()
    assert [answer.request for answer in place.answers if isinstance(answer, Granted)] == [1], (
        "those who came later are answered by a look that began later"
    )
    place.tell()
    assert [answer.glsns for answer in place.answers if isinstance(answer, Granted)] == [(1,), (2,), (3,)]
    assert not place.questions
    assert not place.sequencer.waiting


def test_an_answer_from_before_is_not_enough() -> None:
    """The metadata were asked for before the epoch began: whoever came since must not be told that it has not."""
    place = Place(topic(projection(1)))
    asks(place, 1, 1, 0.0)
    (question,) = place.questions
    assert isinstance(question, GetMetadata)
    asks(place, 2, 2, 0.0)
    place.sequencer.on_message(METADATA_REPOSITORY, Metadata(question.request, Version(1), (), place.topics, ()), 0.0)
    assert [type(answer) for answer in place.answers] == [Granted]
    place.questions = place.questions[1:]
    place.topics = (topic(projection(2, start=7)),)
    place.tell()
    assert place.answers[-1] == Granted(2, 0, Epoch(2), (7,), 1000)


def test_a_question_that_was_lost_is_asked_again_and_an_answer_to_it_is_nothing() -> None:
    place = Place(topic(projection(1)))
    asks(place, 1, 1, 0.0)
    (lost,) = place.questions
    assert isinstance(lost, GetMetadata)
    place.sequencer.tick(ASK_AGAIN / 2)
    assert len(place.questions) == 1
    place.sequencer.tick(ASK_AGAIN)
    assert len(place.questions) == 2
    place.sequencer.on_message(METADATA_REPOSITORY, Metadata(lost.request, Version(1), (), (), ()), 0.3)
    assert not place.answers
    place.questions = place.questions[1:]
    place.tell(0.3)
    assert place.answers == [Granted(1, 0, Epoch(1), (1,), 1000)]


def test_who_waits_too_long_is_told() -> None:
    place = Place(topic(projection(1)))
    asks(place, 1, 1, 0.0)
    asks(place, 1, 2, 0.5)
    place.sequencer.tick(WAIT_SECONDS)
    (answer,) = place.answers
    assert isinstance(answer, Granted)
    assert (answer.request, answer.code) == (1, errors.Unreachable.code)
    assert errors.Unreachable.retriable
    assert place.sequencer.waiting == 1
    place.sequencer.on_leader(1.0)
    place.questions = place.questions[-1:]
    place.tell(1.0)
    assert place.answers[1:] == [Granted(2, 0, Epoch(1), (1,), 1000)]


def test_only_so_many_wait() -> None:
    place = Place(topic(projection(1, block=limits.STRIPE_BLOCK)))
    most = tuple([1] * limits.MAX_GRANTS)
    for request in range(limits.MAX_WAITING_GRANTS // limits.MAX_GRANTS):
        place.sequencer.on_message(CLIENT, Next(request, TOPIC, Epoch(1), most), 0.0)
    place.sequencer.on_message(CLIENT, Peek(99, TOPIC, Epoch(1)), 0.0)
    (busy,) = place.answers
    assert isinstance(busy, Peeked)
    assert busy.code == errors.Busy.code
    place.tell()
    place.tell()
    asks(place, 2, 100, 0.0)
    assert place.sequencer.waiting == 1, "there is room again"


def test_S1_it_registers_until_it_is() -> None:
    place = Place()
    sequencer = place.sequencer
    sequencer.on_leader(0.0)
    assert place.questions == [RegisterSequencer(1, HERE, BOOT)]
    sequencer.on_message(METADATA_REPOSITORY, Decided(1, errors.LimitExceeded.code, Version(1), detail="full"), 0.1)
    assert (sequencer.is_registered, sequencer.complaint) == (False, "full")
    sequencer.tick(REGISTER_AGAIN / 2)
    assert len(place.questions) == 1
    sequencer.tick(REGISTER_AGAIN)
    assert place.questions[1:] == [RegisterSequencer(2, HERE, BOOT)]
    sequencer.on_message(METADATA_REPOSITORY, Decided(1, 0, Version(1)), 1.0)
    assert not sequencer.is_registered, "an answer to what was given up"
    sequencer.on_message(METADATA_REPOSITORY, Decided(2, 0, Version(1)), 1.0)
    assert (sequencer.is_registered, sequencer.complaint) == (True, "")
    sequencer.tick(9.0)
    assert len(place.questions) == 2
    sequencer.on_leader(9.0)
    assert not sequencer.is_registered, "another one leads, and may not know"
    assert len(place.questions) == 3


def test_time_matters_only_while_an_answer_is_due() -> None:
    place = Place(topic(projection(1)))
    sequencer = place.sequencer
    seen = {"before anybody knows of it": sequencer.awaits}
    sequencer.on_leader(0.0)
    sequencer.on_message(METADATA_REPOSITORY, Decided(1, 0, Version(1)), 0.1)
    place.questions.clear()
    seen["registered"] = sequencer.awaits
    asks(place, 1, 1, 0.2)
    seen["asked in an epoch that it does not know"] = sequencer.awaits
    place.tell(0.3)
    seen["told who sequences it"] = sequencer.awaits
    sequencer.on_leader(0.4)
    seen["another leads"] = sequencer.awaits
    assert list(seen.values()) == [True, False, True, False, True], seen


def test_it_takes_nothing_else() -> None:
    with pytest.raises(errors.InvalidArgument, match="does not take GetTail"):
        Place().sequencer.on_message(CLIENT, GetTail(1, TOPIC), 0.0)
