"""Which of several managers leads, as the metadata repository sees it."""

from __future__ import annotations

import pytest

from tests.core.repository import ONE, TOPIC
from tests.metarepo.rigs import SimRig
from varlog import errors
from varlog.core.branches import ignore
from varlog.core.managership import SILENT_SECONDS
from varlog.core.messages import CreateStream, CreateTopic, Decided, GetMetadata, Message, RegisterManager, SealStream
from varlog.core.metarepo import MetadataRepository, Role
from varlog.core.store import LeaseID, MetadataStore
from varlog.types import Epoch

FIRST, SECOND = "manager/1", "manager/2"
"""Connections; and where those behind them are reached:"""
HERE, THERE = "here:1", "there:1"


class Office:
    """A metadata repository that leads, and what it answered to each."""

    def __init__(self, rig: SimRig, store: MetadataStore | None = None, lease: int = 7, now: float = 100.0) -> None:
        self.now = now
        self._rig = rig
        self._answers: list[tuple[str, Message]] = []
        self.core = MetadataRepository(store or rig.store, lambda *letter: self._answers.append(letter), ignore)
        self.core.campaign(self.now, LeaseID(lease))
        rig.settle()
        assert self.core.role is Role.LEADING

    def ask(self, source: str, message: Message) -> str:
        """Ask; the name of the refusal, if it is one."""
        self.core.on_message(source, message, self.now)
        self._rig.settle()
        _, answer = self._answers[-1]
        assert isinstance(answer, Decided)
        self.detail = answer.detail
        return errors.VarlogError.registry[answer.code].__name__ if answer.code else ""

    def register(self, source: str, address: str) -> str:
        return self.ask(source, RegisterManager(1, address))

    def create(self, source: str) -> str:
        return self.ask(source, CreateTopic(2, f"topic {self.core.state.version}", 1, 1))


@pytest.fixture
def rig() -> SimRig:
    return SimRig()


@pytest.fixture
def office(rig: SimRig) -> Office:
    made = Office(rig)
    assert made.register(FIRST, HERE) == ""
    return made


def test_M4_the_first_manager_need_not_wait_for_anybody(office: Office) -> None:
    assert office.core.state.manager == HERE
    assert office.create(FIRST) == ""


def test_M4_who_has_not_registered_changes_nothing(office: Office) -> None:
    version = office.core.state.version
    for message in (CreateTopic(3, "log", 1, 1), CreateStream(3, TOPIC), SealStream(3, ONE, Epoch(2))):
        assert office.ask(SECOND, message) == "StandBy"
        assert HERE in office.detail, "it is told who leads"
    assert office.core.state.version == version


def test_M4_a_second_manager_stands_by_while_the_first_is_heard_and_nothing_is_written(
    office: Office, rig: SimRig
) -> None:
    revision = rig.sim.keyspace.revision
    for _ in range(10):
        office.now += SILENT_SECONDS * 0.7
        office.core.on_message(FIRST, GetMetadata(9), office.now)
        office.now += SILENT_SECONDS * 0.2
        assert office.register(SECOND, THERE) == "StandBy"
        assert HERE in office.detail
    assert rig.sim.keyspace.revision == revision
    assert office.core.state.manager == HERE


def test_M4_a_silent_manager_is_replaced_and_changes_nothing_when_it_comes_back(office: Office) -> None:
    office.now += SILENT_SECONDS
    assert office.register(SECOND, THERE) == ""
    assert office.core.state.manager == THERE
    assert office.create(FIRST) == "StandBy"
    assert THERE in office.detail
    assert office.register(FIRST, HERE) == "StandBy"
    assert office.create(SECOND) == ""


def test_M4_a_manager_whose_connection_has_ended_is_not_waited_for(office: Office) -> None:
    office.core.on_closed(FIRST)
    assert office.register(SECOND, THERE) == ""
    office.core.on_closed(FIRST)
    assert office.create(SECOND) == "", "an old connection that ends is nobody's any more"


def test_M4_a_clock_that_is_set_back_keeps_nobody_waiting(office: Office) -> None:
    office.now -= 1000.0
    assert office.register(SECOND, THERE) == ""


def test_M4_after_a_change_of_leader_the_manager_on_record_is_first(office: Office, rig: SimRig) -> None:
    after = Office(rig, rig.second, lease=8, now=office.now)
    assert after.create(FIRST) == "StandBy", "nobody is registered at this one"
    after.now += SILENT_SECONDS / 2
    assert after.register(SECOND, THERE) == "StandBy"
    assert after.register(FIRST, HERE) == ""
    assert after.create(FIRST) == ""


def test_M4_after_a_change_of_leader_another_manager_waits_a_second(office: Office, rig: SimRig) -> None:
    after = Office(rig, rig.second, lease=8, now=office.now)
    after.now += SILENT_SECONDS
    assert after.register(SECOND, THERE) == ""
    assert after.create(SECOND) == ""


def test_M4_where_only_one_can_lead_nobody_waits_for_the_manager_on_record(office: Office, rig: SimRig) -> None:
    after = Office(rig, rig.second, lease=0, now=office.now)
    assert after.register(SECOND, THERE) == ""


def test_M4_a_manager_deposed_between_two_requests_of_one_conversation_is_refused_the_second(office: Office) -> None:
    assert office.create(FIRST) == ""
    office.now += SILENT_SECONDS
    assert office.register(SECOND, THERE) == ""
    assert office.ask(FIRST, CreateStream(3, TOPIC)) == "StandBy"
    assert office.ask(SECOND, CreateStream(3, TOPIC)) == ""


def test_M4_requests_that_wait_for_a_registration_are_decided_after_it(rig: SimRig) -> None:
    """As on a connection that has just begun: nothing is awaited in between."""
    office = Office(rig)
    office.core.on_message(FIRST, RegisterManager(1, HERE), office.now)
    assert office.create(FIRST) == ""
