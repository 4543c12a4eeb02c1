"""The simulated metadata store: what may go wrong on the way, and that an outcome is never wrong.

What it has in common with every other store is in `tests/metarepo/test_store_conformance.py`.
"""

from __future__ import annotations

import pytest

from tests.metarepo.rigs import Inbox, SimRig, commit, grant, look, unheard, watched
from varlog.core.store import (
    Committed,
    Compare,
    CompareFailed,
    Put,
    ReadOutcome,
    ReadResult,
    Txn,
    TxnOutcome,
    WatchEvents,
)
from varlog.errors import OutcomeUnknown, StoreUnavailable
from varlog.sim.store import SimStoreClient, StoreFault, StoreFaults


def put(key: str, value: bytes = b"", *compares: Compare) -> Txn:
    return Txn(compares, (Put(key, value),))


def sent(rig: SimRig, txn: Txn) -> Inbox[TxnOutcome]:
    outcome: Inbox[TxnOutcome] = Inbox()
    rig.store.txn(txn, outcome)
    return outcome


def test_a_refused_request_never_happens() -> None:
    rig = SimRig(StoreFaults(refused=1.0))
    outcome = sent(rig, put("a"))
    found: Inbox[ReadOutcome] = Inbox()
    rig.store.read(("a",), found)
    rig.advance(10)
    assert isinstance(outcome.one, StoreUnavailable)
    assert isinstance(found.one, StoreUnavailable)
    assert rig.sim.keyspace.revision == 0
    assert rig.sim.faults == {StoreFault.REFUSED: 2}


@pytest.mark.parametrize(
    ("faults", "fault", "happens"),
    [
        (StoreFaults(lost=1.0), StoreFault.LOST, False),
        (StoreFaults(unanswered=1.0), StoreFault.UNANSWERED, True),
        (StoreFaults(late=1.0), StoreFault.LATE, True),
    ],
    ids=["lost", "unanswered", "late"],
)
def test_an_unknown_outcome_may_have_happened_or_not(faults: StoreFaults, fault: StoreFault, happens: bool) -> None:
    rig = SimRig(faults)
    outcome = sent(rig, put("a"))
    rig.advance(10)
    assert isinstance(outcome.one, OutcomeUnknown)
    assert rig.sim.keyspace.revision == happens
    assert rig.sim.faults == {fault: 1}


def test_a_late_write_is_not_there_when_its_outcome_becomes_unknown_and_a_compare_shuts_it_out() -> None:
    """Rule 1: the read alone does not settle it; a write to a key it compares with does."""
    rig = SimRig(StoreFaults(late=1.0, lateness=5.0))
    outcome = sent(rig, put("version", b"late", Compare("version", 0)))
    rig.sim.odds = StoreFaults()
    while not outcome.items:
        rig.advance(0.001)
    assert isinstance(outcome.one, OutcomeUnknown)
    assert look(rig) == {}
    assert commit(rig, put("version", b"mine", Compare("version", 0))) == Committed(1)
    rig.advance(10)
    assert look(rig)["version"].value == b"mine"


def test_a_store_that_is_away_answers_nothing_and_comes_back_as_it_was() -> None:
    rig = SimRig()
    lease = grant(rig, 5)
    commit(rig, Txn(puts=(Put("a", b"1", lease),)))
    rig.sim.available = False
    outcomes = [sent(rig, put("b")) for _ in range(20)]
    found: Inbox[ReadOutcome] = Inbox()
    rig.store.read_prefix("", found)
    rig.advance(60)
    kinds = {type(outcome.one) for outcome in outcomes}
    assert kinds == {StoreUnavailable, OutcomeUnknown}
    assert isinstance(found.one, StoreUnavailable)
    rig.sim.available = True
    assert look(rig).keys() == {"a"}, "a store that was away lets leases live on"
    rig.advance(10)
    assert look(rig) == {}


def test_an_answer_to_a_client_cut_off_meanwhile_is_unknown() -> None:
    rig = SimRig()
    outcome = sent(rig, put("a"))
    while rig.sim.keyspace.revision == 0:
        rig.advance(0.0001)
    rig.store.connected = False
    rig.advance(10)
    assert isinstance(outcome.one, OutcomeUnknown)
    found: Inbox[ReadOutcome] = Inbox()
    rig.second.read(("a",), found)
    rig.settle()
    assert isinstance(found.one, ReadResult)
    assert found.one.kvs.keys() == {"a"}


@pytest.mark.parametrize("away", ["client", "store"])
def test_a_watch_goes_on_after_an_absence_without_loss_or_repetition(away: str) -> None:
    rig = SimRig()
    notices = watched(rig, "", 0)
    for i in range(30):
        rig.store.txn(put("a", b"%d" % i), unheard)
        rig.advance(0.0007)
        if away == "client":
            rig.second.connected = i % 3 == 0
        elif i == 15:
            rig.advance(0.01)
            rig.sim.available = False
            rig.advance(5)
            rig.sim.available = True
    rig.second.connected = True
    rig.advance(10)
    revisions = [notice.revision for notice in notices.items if isinstance(notice, WatchEvents)]
    assert revisions == list(range(1, 31))


def test_a_closed_client_hears_nothing_more() -> None:
    rig = SimRig()
    heard: Inbox[object] = Inbox()
    rig.store.watch("", 0, heard)
    rig.store.txn(put("a"), heard)
    rig.store.read(("a",), heard)
    rig.store.close()
    rig.advance(10)
    assert heard.items == []
    assert rig.sim.keyspace.get("a") is None, "it was cut off before the request arrived"
    again = SimStoreClient(rig.sim, rig.timeline.schedule)
    again.txn(put("a"), heard)
    rig.advance(1)
    assert len(heard.items) == 1


def run(seed: int) -> list[tuple[str, str, bool]]:
    """Two clients that race for versions through every fault; each attempt, its outcome, and whether it happened."""
    rig = SimRig(StoreFaults(refused=0.1, lost=0.1, unanswered=0.1, late=0.1), seed)
    attempts: list[tuple[str, Inbox[TxnOutcome]]] = []
    for i in range(200):
        for name, store in (("one", rig.store), ("two", rig.second)):
            version = rig.sim.keyspace.get("version")
            compare = Compare("version", 0 if version is None else version.revision)
            outcome: Inbox[TxnOutcome] = Inbox()
            store.txn(Txn((compare,), (Put("version", b""), Put(f"{name}/{i}", b""))), outcome)
            attempts.append((f"{name}/{i}", outcome))
        rig.advance(0.1)
        rig.store.connected = i % 7 != 0
        rig.sim.available = i % 11 != 0
    rig.store.connected = rig.sim.available = True
    rig.advance(20)
    assert set(rig.sim.faults) == set(StoreFault)
    return [(key, type(outcome.one).__name__, rig.sim.keyspace.get(key) is not None) for key, outcome in attempts]


@pytest.mark.parametrize("seed", range(5))
def test_no_outcome_is_ever_wrong_and_a_seed_tells_the_same_story_twice(seed: int) -> None:
    story = run(seed)
    assert {kind: happened for _, kind, happened in story if kind != "OutcomeUnknown"} == {
        Committed.__name__: True,
        CompareFailed.__name__: False,
        StoreUnavailable.__name__: False,
    }
    for _, kind, happened in story:
        assert kind == "OutcomeUnknown" or happened == (kind == "Committed")
    assert {happened for _, kind, happened in story if kind == "OutcomeUnknown"} == {True, False}
    assert run(seed) == story
