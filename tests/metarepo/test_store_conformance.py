"""What every metadata store must do, whatever is behind it: one suite over all implementations.

A store is reached only through the interface of `varlog.core.store`; its sentences are what is tested here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.metarepo.rigs import EtcdRig, Inbox, JournalRig, Rig, SimRig, commit, grant, look, revision, unheard, watched
from varlog import limits
from varlog.core.store import (
    Committed,
    Compare,
    CompareFailed,
    KeyValue,
    Lease,
    LeaseID,
    LeaseOutcome,
    Put,
    ReadOutcome,
    ReadResult,
    Remaining,
    RemainingOutcome,
    Txn,
    TxnOutcome,
    WatchEvents,
    WatchNotice,
)
from varlog.errors import Compacted, InvalidArgument, LeaseNotFound, LimitExceeded
from varlog.etcdserver import EtcdCluster

Make = Callable[[], Rig]


@pytest.fixture(params=["journal", "simulated", "etcd"], scope="module")
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a store; those of etcd are in one etcd."""
    if request.param == "journal":
        return JournalRig
    if request.param == "simulated":
        return SimRig
    etcd = request.getfixturevalue("etcd")
    return lambda: EtcdRig(etcd)


@pytest.fixture
def rig(make: Make) -> Iterator[Rig]:
    made = make()
    yield made
    made.close()


@pytest.fixture(params=[JournalRig, SimRig], ids=["journal", "simulated"])
def own_rig(request: pytest.FixtureRequest) -> Rig:
    """A store that is all ours; how much an etcd holds is said by those who run it."""
    made: Rig = request.param()
    return made


def put(*pairs: tuple[str, bytes], compares: tuple[Compare, ...] = ()) -> Txn:
    return Txn(compares, tuple(Put(key, value) for key, value in pairs))


def committed(outcome: TxnOutcome) -> int:
    assert isinstance(outcome, Committed)
    return outcome.revision


# Transactions


def test_a_put_carries_the_revision_of_its_transaction(rig: Rig) -> None:
    before = revision(rig)
    at = committed(commit(rig, put(("a", b"1"), ("b", b"2"))))
    assert at == before + 1
    assert look(rig) == {"a": KeyValue("a", b"1", at), "b": KeyValue("b", b"2", at)}
    again = committed(commit(rig, put(("a", b"3"))))
    assert again == at + 1
    assert look(rig) == {"a": KeyValue("a", b"3", again), "b": KeyValue("b", b"2", at)}


def test_compares_hold_or_nothing_happens(rig: Rig) -> None:
    at = committed(commit(rig, put(("leading", b"me"), ("version", b"1"))))
    txn = put(("version", b"2"), ("cut", b"x"), compares=(Compare("leading", at), Compare("version", at)))
    then = committed(commit(rig, txn))
    outcome = commit(rig, txn)
    assert outcome == CompareFailed(
        then, {"leading": KeyValue("leading", b"me", at), "version": KeyValue("version", b"2", then)}
    )
    assert look(rig)["cut"].revision == then
    assert revision(rig) == then


def test_an_absent_key_compares_as_revision_0(rig: Rig) -> None:
    create = put(("a", b"1"), compares=(Compare("a", 0),))
    at = committed(commit(rig, create))
    assert commit(rig, create) == CompareFailed(at, {"a": KeyValue("a", b"1", at)})
    absent = commit(rig, put(("b", b"2"), compares=(Compare("b", at),)))
    assert absent == CompareFailed(at, {})


def test_a_deleted_key_is_absent_and_its_old_revision_compares_no_more(rig: Rig) -> None:
    at = committed(commit(rig, put(("a", b"1"), ("b", b"2"))))
    assert committed(commit(rig, Txn((Compare("a", at),), (), ("a",)))) == at + 1
    assert look(rig).keys() == {"b"}
    assert isinstance(commit(rig, put(("a", b"3"), compares=(Compare("a", at),))), CompareFailed)
    assert committed(commit(rig, put(("a", b"3"), compares=(Compare("a", 0),)))) == at + 2


def test_what_writes_nothing_leaves_the_revision_alone(rig: Rig) -> None:
    at = committed(commit(rig, put(("a", b"1"))))
    assert commit(rig, Txn((Compare("a", at),))) == Committed(at)
    assert commit(rig, Txn(deletes=("nobody",))) == Committed(at)
    assert commit(rig, Txn()) == Committed(at)
    assert commit(rig, put(("a", b"1"))) == Committed(at + 1), "the same value again is a write"


def test_of_two_that_compare_with_the_same_revision_one_wins(rig: Rig) -> None:
    at = committed(commit(rig, put(("version", b"0"))))
    outcomes: Inbox[TxnOutcome] = Inbox()
    for store, value in ((rig.store, b"1"), (rig.second, b"2")):
        store.txn(put(("version", value), compares=(Compare("version", at),)), outcomes)
    rig.settle()
    assert sorted(type(outcome).__name__ for outcome in outcomes.items) == ["Committed", "CompareFailed"]
    assert look(rig)["version"].revision == at + 1


def test_nothing_is_answered_from_inside_the_call(rig: Rig) -> None:
    start = revision(rig)
    answers: Inbox[object] = Inbox()
    rig.store.txn(put(("a", b"1")), answers)
    rig.store.txn(put(("a", b"1"), compares=(Compare("a", 99),)), answers)
    rig.store.read(("a",), answers)
    rig.store.read_prefix("", answers)
    rig.store.watch("", start, answers)
    rig.store.lease_grant(5, answers)
    rig.store.lease_keep_alive(LeaseID(99), answers)
    rig.store.lease_revoke(LeaseID(99), answers)
    assert answers.items == []
    rig.settle()
    assert len(answers.items) == 8


def test_an_answer_may_ask_again(rig: Rig) -> None:
    revisions: list[int] = []

    def next_one(outcome: TxnOutcome) -> None:
        revisions.append(committed(outcome))
        if len(revisions) < 5:
            rig.store.txn(put(("a", b"%d" % len(revisions)), compares=(Compare("a", revisions[-1]),)), next_one)

    rig.store.txn(put(("a", b"0")), next_one)
    rig.settle()
    assert revisions == list(range(revisions[0], revisions[0] + 5))
    assert look(rig)["a"].value == b"4"


@pytest.mark.parametrize(
    "txn",
    [
        put(("a", b"1"), ("a", b"2")),
        Txn(puts=(Put("a", b"1"),), deletes=("a",)),
        Txn(deletes=("a", "a")),
        put(("", b"1")),
        Txn(deletes=("",)),
        put(("a", bytes(limits.METADATA_VALUE_BYTES + 1))),
        put(*((f"k{i}", b"") for i in range(limits.METADATA_TXN_OPERATIONS + 1))),
        Txn(deletes=tuple(f"k{i}" for i in range(limits.METADATA_TXN_OPERATIONS + 1))),
        Txn(compares=tuple(Compare(f"k{i}", 0) for i in range(limits.METADATA_TXN_OPERATIONS + 1))),
    ],
    ids=[
        "two puts",
        "put and delete",
        "two deletes",
        "no key",
        "delete no key",
        "value",
        "puts",
        "deletes",
        "compares",
    ],
)
def test_a_malformed_transaction_is_refused_by_the_call(rig: Rig, txn: Txn) -> None:
    before = revision(rig)
    with pytest.raises(InvalidArgument):
        commit(rig, txn)
    assert revision(rig) == before


def test_the_store_is_bounded(own_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_STORE_BYTES", 1000)
    at = committed(commit(own_rig, put(("a", bytes(900)))))
    assert isinstance(commit(own_rig, put(("b", bytes(200)))), LimitExceeded)
    assert look(own_rig).keys() == {"a"}
    assert committed(commit(own_rig, put(("a", bytes(800))))) == at + 1, "what shrinks may go on"
    assert committed(commit(own_rig, put(("b", bytes(100))))) == at + 2


# Reads


def test_a_read_answers_the_keys_that_exist_in_key_order(rig: Rig) -> None:
    at = committed(commit(rig, put(("cut/2", b"2"), ("cut/1", b"1"), ("cuts", b"x"), ("other", b"y"))))
    some: Inbox[ReadOutcome] = Inbox()
    rig.store.read(("other", "cut/1", "nobody"), some)
    prefixed: Inbox[ReadOutcome] = Inbox()
    rig.store.read_prefix("cut/", prefixed)
    rig.settle()
    for found, keys in ((some, ["cut/1", "other"]), (prefixed, ["cut/1", "cut/2"])):
        assert isinstance(found.one, ReadResult)
        assert found.one.revision == at
        assert list(found.one.kvs) == keys
        assert all(kv.key == key and kv.revision == at for key, kv in found.one.kvs.items())


def test_a_read_sees_what_was_committed_before_it(rig: Rig) -> None:
    for i in range(20):
        at = committed(commit(rig, put(("a", b"%d" % i))))
        found: Inbox[ReadOutcome] = Inbox()
        rig.second.read(("a",), found)
        rig.settle()
        assert found.one == ReadResult(at, {"a": KeyValue("a", b"%d" % i, at)})


# Watches


def test_a_watch_is_told_every_change_once_in_order(rig: Rig) -> None:
    start = revision(rig)
    earlier = watched(rig, "", start)
    for i in range(10):
        commit(rig, put(("a", b"%d" % i), (f"b{i}", b"")))
    commit(rig, Txn(deletes=("b1", "nobody", "b2")))
    later = watched(rig, "", start)
    assert earlier.items == later.items
    assert [notice.revision for notice in events(earlier)] == list(range(start + 1, start + 12))
    assert events(earlier)[3] == WatchEvents(
        start + 4, (KeyValue("a", b"3", start + 4), KeyValue("b3", b"", start + 4)), ()
    )
    assert events(earlier)[-1] == WatchEvents(start + 11, (), ("b1", "b2"))


def events(inbox: Inbox[WatchNotice]) -> list[WatchEvents]:
    assert all(isinstance(notice, WatchEvents) for notice in inbox.items)
    return [notice for notice in inbox.items if isinstance(notice, WatchEvents)]


def test_a_watch_is_told_of_its_prefix_only(rig: Rig) -> None:
    start = revision(rig)
    commit(rig, put(("x/1", b"1"), ("y/1", b"1")))
    commit(rig, put(("y/2", b"2")))
    commit(rig, Txn(puts=(Put("x/2", b"2"),), deletes=("x/1", "y/1")))
    assert watched(rig, "x/", start).items == [
        WatchEvents(start + 1, (KeyValue("x/1", b"1", start + 1),), ()),
        WatchEvents(start + 3, (KeyValue("x/2", b"2", start + 3),), ("x/1",)),
    ]


def test_a_watch_begins_after_the_revision_asked_for(rig: Rig) -> None:
    start = revision(rig)
    for i in range(4):
        commit(rig, put(("a", b"%d" % i)))
    middle = watched(rig, "a", start + 2)
    future = watched(rig, "a", start + 5)
    assert [notice.revision for notice in events(middle)] == [start + 3, start + 4]
    for i in range(3):
        commit(rig, put(("a", b"%d" % i)))
    assert [notice.revision for notice in events(middle)] == list(range(start + 3, start + 8))
    assert [notice.revision for notice in events(future)] == [start + 6, start + 7]


def test_a_cancelled_watch_is_silent_also_if_cancelled_by_its_own_callback(rig: Rig) -> None:
    start = revision(rig)
    outside: Inbox[WatchNotice] = Inbox()
    rig.store.watch("", start, outside).cancel()
    inside: Inbox[WatchNotice] = Inbox()

    def once(notice: WatchNotice) -> None:
        inside(notice)
        watch.cancel()

    watch = rig.store.watch("", start, once)
    for store in (rig.store, rig.second):
        store.txn(put(("a", b"1")), unheard)
        store.txn(put(("a", b"2")), unheard)
    rig.settle()
    assert outside.items == []
    assert len(inside.items) == 1


def test_a_watch_from_too_far_back_is_told_so_and_ends(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WATCH_HISTORY_REVISIONS", 5)
    start = revision(rig)
    for i in range(7):
        commit(rig, put(("a", b"%d" % i)))
    too_far = watched(rig, "", start + 1)
    just_there = watched(rig, "", start + 2)
    assert [type(notice) for notice in too_far.items] == [Compacted]
    commit(rig, put(("a", b"last")))
    assert len(too_far.items) == 1
    assert [notice.revision for notice in events(just_there)] == list(range(start + 3, start + 9))


def test_what_is_kept_for_watches_is_bounded_in_bytes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WATCH_HISTORY_BYTES", 1000)
    start = revision(rig)
    for _ in range(5):
        commit(rig, put(("a", bytes(400))))
    assert [type(notice) for notice in watched(rig, "", start).items] == [Compacted]
    assert len(events(watched(rig, "", start + 3))) == 2


# Leases


def test_keys_end_with_their_lease_in_one_transaction_and_nothing_is_put_under_it_then(rig: Rig) -> None:
    lease, without_keys = grant(rig, 2), grant(rig, 1)
    at = committed(commit(rig, Txn(puts=(Put("a", b"1", lease), Put("b", b"2", lease), Put("c", b"3")))))
    assert look(rig)["a"] == KeyValue("a", b"1", at, lease)
    notices = watched(rig, "", at)
    rig.advance(1)
    assert look(rig).keys() == {"a", "b", "c"}
    rig.advance(2.5)
    assert look(rig).keys() == {"c"}
    assert notices.items == [WatchEvents(at + 1, (), ("a", "b"))]
    for ended in (lease, without_keys):
        assert isinstance(commit(rig, Txn(puts=(Put("d", b"1"), Put("e", b"2", ended)))), LeaseNotFound)
    assert look(rig).keys() == {"c"}
    assert revision(rig) == at + 1, "a lease without keys ends without a revision"
    assert grant(rig, 5) not in (lease, without_keys), "an id is given once"


def test_a_lease_lives_on_by_keep_alives(rig: Rig) -> None:
    lease = grant(rig, 2)
    commit(rig, Txn(puts=(Put("a", b"1", lease),)))
    for _ in range(3):
        rig.advance(1)
        alive: Inbox[LeaseOutcome] = Inbox()
        rig.store.lease_keep_alive(lease, alive)
        rig.settle()
        assert alive.one == Lease(lease, 2)
    assert look(rig).keys() == {"a"}
    revoke(rig, lease)
    late: Inbox[LeaseOutcome] = Inbox()
    rig.store.lease_keep_alive(lease, late)
    rig.settle()
    assert isinstance(late.one, LeaseNotFound)


def test_a_revoked_lease_takes_its_keys_with_it(rig: Rig) -> None:
    lease, other = grant(rig, 5), grant(rig, 5)
    assert lease != other
    at = committed(commit(rig, Txn(puts=(Put("a", b"1", lease), Put("b", b"2", other)))))
    assert revoke(rig, lease) == Lease(lease, 5)
    assert isinstance(revoke(rig, lease), LeaseNotFound)
    assert look(rig).keys() == {"b"}
    assert revision(rig) == at + 1


def remaining(rig: Rig, lease: LeaseID) -> RemainingOutcome:
    outcome: Inbox[RemainingOutcome] = Inbox()
    rig.second.lease_remaining(lease, outcome)
    assert outcome.items == []
    rig.settle()
    return outcome.one


def revoke(rig: Rig, lease: LeaseID) -> LeaseOutcome:
    outcome: Inbox[LeaseOutcome] = Inbox()
    rig.store.lease_revoke(lease, outcome)
    rig.settle()
    return outcome.one


def test_what_remains_of_a_lease_is_told_to_anybody_and_changes_nothing(rig: Rig) -> None:
    lease = grant(rig, 9)
    before = revision(rig)
    rig.advance(1.5)
    left = remaining(rig, lease)
    assert isinstance(left, Remaining)
    assert left == Remaining(lease, 9, left.remaining)
    assert left.remaining in (6, 7), "in whole seconds, rounded down"
    rig.store.lease_keep_alive(lease, unheard)
    rig.settle()
    renewed = remaining(rig, lease)
    assert isinstance(renewed, Remaining)
    assert renewed.remaining >= 8
    assert revoke(rig, lease) == Lease(lease, 9)
    assert isinstance(remaining(rig, lease), LeaseNotFound)
    assert revision(rig) == before


def test_putting_a_key_anew_detaches_it_from_its_lease(rig: Rig) -> None:
    lease, other = grant(rig, 2), grant(rig, 20)
    commit(rig, Txn(puts=(Put("a", b"1", lease), Put("b", b"2", lease), Put("c", b"3", lease))))
    commit(rig, Txn(puts=(Put("a", b"4"), Put("b", b"5", other))))
    rig.advance(3.5)
    assert look(rig).keys() == {"a", "b"}
    assert revoke(rig, other) == Lease(other, 20)
    assert look(rig).keys() == {"a"}


@pytest.mark.parametrize("ttl", [0, -1, limits.MAX_LEASE_SECONDS + 1])
def test_a_lease_of_no_or_endless_time_is_refused(rig: Rig, ttl: int) -> None:
    with pytest.raises(InvalidArgument):
        rig.store.lease_grant(ttl, unheard)


# Everything at once, against the obvious

KEYS = st.sampled_from(["a", "b", "c"])
STEP = st.tuples(
    st.dictionaries(KEYS, st.sampled_from(["right", "stale", "absent"]), max_size=2),
    st.dictionaries(KEYS, st.binary(max_size=3), max_size=3),
    st.sets(KEYS, max_size=2),
)


Steps = list[tuple[dict[str, str], dict[str, bytes], set[str]]]


@pytest.mark.parametrize("own", [JournalRig, SimRig], ids=["journal", "simulated"])
@given(steps=st.lists(STEP, max_size=30), settle_each=st.booleans())
def test_any_transactions_do_what_a_dictionary_would(own: Make, steps: Steps, settle_each: bool) -> None:
    check_against_a_dictionary(own(), steps, settle_each)


@settings(max_examples=15)
@given(steps=st.lists(STEP, max_size=30))
def test_any_transactions_in_etcd_do_what_a_dictionary_would(etcd: EtcdCluster, steps: Steps) -> None:
    rig = EtcdRig(etcd)
    try:
        check_against_a_dictionary(rig, steps, settle_each=True)
    finally:
        rig.close()


def check_against_a_dictionary(rig: Rig, steps: Steps, settle_each: bool) -> None:
    start = at = revision(rig)
    model: dict[str, KeyValue] = {}
    states = {at: model}
    for compares, puts, drops in steps:
        expected = {key: model[key].revision if key in model else 0 for key in compares}
        told = {key: {"right": expected[key], "stale": at + 7, "absent": 0}[how] for key, how in compares.items()}
        deletes = drops - puts.keys()
        holds = told == expected
        outcome = commit(
            rig,
            Txn(
                tuple(Compare(key, value) for key, value in told.items()),
                tuple(Put(key, value) for key, value in puts.items()),
                tuple(sorted(deletes)),
            ),
        )
        if holds and (puts or deletes & model.keys()):
            at += 1
            model = {key: kv for key, kv in model.items() if key not in deletes}
            model |= {key: KeyValue(key, value, at) for key, value in puts.items()}
            states[at] = model
        assert outcome == (
            Committed(at) if holds else CompareFailed(at, {key: model[key] for key in compares if key in model})
        )
        if settle_each:
            assert look(rig) == model
    assert look(rig) == model
    replayed: dict[str, KeyValue] = {}
    for event in events(watched(rig, "", start)):
        replayed = {key: kv for key, kv in replayed.items() if key not in event.deletes}
        replayed |= {kv.key: kv for kv in event.puts}
        assert replayed == states[event.revision]
    assert replayed == model
