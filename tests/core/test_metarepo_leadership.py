"""What the store answers late: it counts for the leadership that asked, and says nothing of a later one."""

from __future__ import annotations

import pytest

from tests.core.repository import ONE, TOPIC, A, Answers, Repository, line
from tests.metarepo.rigs import SimRig
from varlog import errors
from varlog.core.messages import GetTail, RegisterManager, SealStream, Snapshot, Tail
from varlog.core.metarepo import MetadataRepository, Role
from varlog.core.store import LEADER_KEY, Txn
from varlog.types import GLSN, Epoch


@pytest.fixture
def answers() -> Answers:
    return Answers(SimRig())


@pytest.fixture
def repository(answers: Answers) -> Repository:
    return Repository(answers.rig, answers.client).set_up()


def lead_again(repository: Repository, answers: Answers) -> None:
    """Another leads for a while and seals log stream 1; this one learns of it, and leads after it."""
    term = repository.core.term
    answers.resume()
    successor = Repository(answers.rig, answers.rig.second)
    successor.ask(SealStream(successor.request(), ONE, Epoch(2)))
    repository.ask(SealStream(repository.request(), ONE, Epoch(2)))
    assert repository.core.role is Role.FOLLOWING
    repository.core.campaign(repository.now)
    answers.rig.settle()
    assert (repository.core.role, repository.core.term) == (Role.LEADING, term + 2)
    repository.sent.clear()


def test_rule1_a_tail_read_under_a_passed_leadership_says_nothing_of_the_present_one(
    repository: Repository, answers: Answers
) -> None:
    answers.hold()
    repository.receive(GetTail(5, TOPIC))
    answers.rig.settle()
    lead_again(repository, answers)
    repository.receive(GetTail(6, TOPIC))
    answers.arrive()
    assert repository.core.role is Role.LEADING, "it was another that this one stepped down for"
    assert repository.messages(Tail) == [Tail(5, errors.NotLeader.code), Tail(6, 0, GLSN(0), GLSN(0))]


def test_L1_a_tail_read_under_a_passed_leadership_answers_no_later_question(
    repository: Repository, answers: Answers
) -> None:
    """The answer that is under way is older than the question."""
    answers.hold()
    repository.receive(GetTail(5, TOPIC))
    answers.rig.settle()
    lead_again(repository, answers)
    answers.hold()
    repository.receive(GetTail(6, TOPIC))
    answers.rig.settle()
    answers.arrive()
    assert repository.messages(Tail) == [Tail(5, errors.NotLeader.code)]
    answers.arrive()
    assert [(tail.request, tail.code) for tail in repository.messages(Tail)][1:] == [(6, 0)]


def test_a_tail_is_read_under_a_new_leadership_though_the_old_one_was_never_answered(
    repository: Repository, answers: Answers
) -> None:
    answers.hold()
    repository.receive(GetTail(5, TOPIC))
    answers.rig.settle()
    lead_again(repository, answers)
    for request in (6, 7):
        repository.receive(GetTail(request, TOPIC))
    answers.rig.settle()
    assert [(tail.request, tail.code) for tail in repository.messages(Tail)] == [(6, 0), (7, 0)]


def test_rule5_who_was_ahead_of_a_passed_leadership_is_not_accused_by_the_present_one(
    repository: Repository, answers: Answers
) -> None:
    answers.hold()
    repository.report(A, line(ONE, 1), version=repository.version + 10)
    answers.rig.settle()
    lead_again(repository, answers)
    repository.report(A, line(ONE, 1, epoch=3), full=True, ask=True)
    answers.rig.settle()
    repository.sent.clear()
    answers.arrive()
    assert repository.core.role is Role.LEADING
    assert repository.messages(Snapshot) == []


@pytest.mark.parametrize("step", [0, 1, 2], ids=["the leader is read", "the term is raised", "everything is read"])
def test_rule1_a_late_answer_to_an_earlier_campaign_does_not_decide_the_present_one(
    answers: Answers, step: int
) -> None:
    """Both campaigns are as far as `step` when the answer to the earlier one arrives."""
    core = MetadataRepository(answers.client, lambda *_: None, lambda _: None)
    answers.hold()
    for earlier in (0, 1):
        core.campaign(0.0)
        answers.rig.settle()
        for _ in range(step):
            answers.arrive(earlier)
    assert len(answers) == 2
    before = core.role
    answers.arrive()
    assert (core.role, len(answers)) == (before, 1), "it makes no difference"
    while len(answers):
        answers.arrive()
    assert core.role is Role.LEADING
    answers.resume()
    core.on_message("manager", RegisterManager(1, "m:1"), 0.0)
    answers.rig.settle()
    assert core.state.version == 1


def test_rule1_a_leader_whose_store_was_emptied_leads_no_more(repository: Repository, answers: Answers) -> None:
    answers.rig.second.txn(Txn(deletes=(LEADER_KEY, "version")), lambda _: None)
    answers.rig.settle()
    repository.receive(GetTail(5, TOPIC))
    answers.rig.settle()
    assert repository.core.role is Role.FOLLOWING
    assert repository.messages(Tail) == [Tail(5, errors.NotLeader.code)]
