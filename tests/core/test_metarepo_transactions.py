"""Transactions at a metadata repository: what is begun is in the store before it is told, and outlives who led."""

from __future__ import annotations

import msgspec
import pytest

from tests.core.repository import ONE, TOPIC, A, B, Repository, line
from tests.metarepo.rigs import SimRig
from varlog import errors, limits
from varlog.core.messages import (
    BeginTransaction,
    Begun,
    Decided,
    EndTransaction,
    ForgetTransactions,
    GetTransactions,
    RegisterManager,
    Transactions,
    TrimTopic,
)
from varlog.core.metarepo import SNAPSHOT_EVERY, SNAPSHOT_KEY
from varlog.core.metastate import Checkpoint
from varlog.types import GLSN, TopicID, TransactionID, Version


@pytest.fixture
def rig() -> SimRig:
    return SimRig()


@pytest.fixture
def repository(rig: SimRig) -> Repository:
    return Repository(rig).set_up()


def begin(repository: Repository, name: str = "n", token: str = "t", number: int = 1) -> Begun:
    repository.receive(BeginTransaction(repository.request(), TOPIC, name, token, GLSN(0), 1000, number))
    repository.rig.settle()
    return repository.messages(Begun)[-1]


def txid(begun: Begun) -> TransactionID:
    assert begun.transaction is not None, begun
    return begun.transaction.txid


def listed(repository: Repository, *, names: bool = False) -> Transactions:
    repository.receive(GetTransactions(repository.request(), TOPIC, names))
    repository.rig.settle()
    return repository.messages(Transactions)[-1]


def test_what_is_begun_is_answered_when_the_store_has_it(repository: Repository) -> None:
    repository.cut(4)
    repository.receive(BeginTransaction(5, TOPIC, "n", "t", GLSN(0), 1000, 1))
    assert repository.messages(Begun) == []
    repository.rig.settle()
    (begun,) = repository.messages(Begun)
    assert (begun.request, begun.code, txid(begun)) == (5, 0, repository.version)
    assert begun.transaction is not None
    assert begun.transaction.after == 3, "all that was committed before"


def test_what_ended_is_told_with_a_decision(repository: Repository) -> None:
    begun = begin(repository)
    repository.cut(9)
    assert repository.ask(EndTransaction(7, TOPIC, txid(begun), True, GLSN(5))).code == 0
    version = repository.version
    assert repository.ask(EndTransaction(8, TOPIC, txid(begun), True, GLSN(5))) == Decided(8, 0, Version(version))
    assert begin(repository, token="other").code == errors.AlreadyCommitted.code
    assert repository.messages(Begun)[-1].glsn == 5
    assert repository.version == version
    assert repository.ask(ForgetTransactions(9, TOPIC, "n")).code == 0
    assert begin(repository, token="other").code == 0


def test_a_trim_is_refused_while_a_transaction_is_open(repository: Repository) -> None:
    begun = begin(repository)
    repository.cut(9)
    refusal = repository.ask(TrimTopic(7, TOPIC, GLSN(5)))
    assert (refusal.code, "'n'" in refusal.detail) == (errors.TransactionOpen.code, True)
    repository.ask(EndTransaction(8, TOPIC, txid(begun), False, GLSN(5)))
    assert repository.ask(TrimTopic(9, TOPIC, GLSN(5))).value == 5


def test_rule1_the_register_outlives_who_led(repository: Repository, rig: SimRig) -> None:
    committed, opened = begin(repository, number=1), begin(repository, "open")
    repository.cut(9)
    repository.ask(EndTransaction(7, TOPIC, txid(committed), True, GLSN(5)))
    successor = Repository(rig, rig.second)
    assert successor.core.state.registers == repository.core.state.registers
    told = listed(successor, names=True)
    assert [one.txid for one in told.open] == [txid(opened)]
    assert [(one.name, one.number, one.glsn) for one in told.names] == [("n", 1, 5)]
    assert begin(successor, token="other").code == errors.AlreadyCommitted.code
    assert txid(begin(successor, "open")) == txid(opened)


def test_rule4_the_register_is_part_of_the_snapshot(repository: Repository, rig: SimRig) -> None:
    begun = begin(repository)
    for number in range(SNAPSHOT_EVERY + 1):
        repository.receive(RegisterManager(repository.request(), f"manager:{number}"))
        rig.settle()
    assert SNAPSHOT_KEY in rig.sim.keyspace.select_prefix("").kvs
    assert txid(begin(Repository(rig, rig.second))) == txid(begun)


def test_metadata_from_before_there_were_transactions_is_read(repository: Repository) -> None:
    saved = Checkpoint(repository.core.state, {}).encode()
    state, held = msgspec.msgpack.decode(saved, strict=False)
    assert state.pop("registers") == {}
    assert Checkpoint.decode(msgspec.msgpack.encode([state, held])).state == repository.core.state


def test_rule1_a_deposed_leader_begins_nothing(repository: Repository, rig: SimRig) -> None:
    Repository(rig, rig.second)
    begun = begin(repository)
    assert (begun.code, begun.transaction) == (errors.NotLeader.code, None)


def test_L1_a_deposed_leader_does_not_say_that_nothing_is_open(repository: Repository, rig: SimRig) -> None:
    successor = Repository(rig, rig.second)
    begin(successor)
    assert listed(repository).code == errors.NotLeader.code


def test_L1_what_the_store_has_is_listed_though_its_leader_has_not_heard_of_it(
    repository: Repository, rig: SimRig
) -> None:
    rig.sim.odds.unanswered = 1.0
    repository.receive(BeginTransaction(5, TOPIC, "n", "t", GLSN(0), 1000, 1))
    rig.sim.odds.unanswered = 0.0
    rig.settle()
    repository.receive(GetTransactions(6, TOPIC))
    rig.settle()
    assert repository.messages(Transactions) == [], "somebody may write by it already"
    rig.advance(2.0)
    (told,) = repository.messages(Transactions)
    assert [one.txid for one in told.open] == [txid(repository.messages(Begun)[0])]


def test_an_unknown_topic_has_no_register(repository: Repository) -> None:
    repository.receive(GetTransactions(5, TopicID(77)))
    repository.rig.settle()
    (told,) = repository.messages(Transactions)
    assert (told.request, told.code) == (5, errors.UnknownTopic.code)


def test_who_asks_too_much_is_told_so_in_the_answer_it_waits_for(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_DECISIONS", 0)
    repository.receive(BeginTransaction(5, TOPIC, "n", "t", GLSN(0), 1000))
    repository.receive(GetTransactions(6, TOPIC))
    assert repository.messages(Begun) == [Begun(5, errors.Busy.code)]
    assert repository.messages(Transactions) == [Transactions(6, errors.Busy.code)]


def test_transactions_do_not_hold_up_the_log(repository: Repository) -> None:
    """Reports that come while one is being begun are cut with the next version."""
    repository.receive(BeginTransaction(5, TOPIC, "n", "t", GLSN(0), 1000))
    for snid in (A, B):
        repository.report(snid, line(ONE, 4))
    repository.rig.settle()
    assert repository.tail == 3
    begun = repository.messages(Begun)[0].transaction
    assert begun is not None
    assert begun.after == 0
