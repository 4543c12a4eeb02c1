"""Transacting, effect by effect: what each procedure does next, and what it makes of every answer."""

from __future__ import annotations

from typing import Any

import pytest

from varlog import errors
from varlog.batch.transactions import Verdict, VerdictKind
from varlog.core import transacting
from varlog.core.fates import Fate
from varlog.core.messages import (
    BeginTransaction,
    Begun,
    Decided,
    EndTransaction,
    GetTransactions,
    OpenTransaction,
    Transactions,
)
from varlog.core.transacting import Ask, Effect, Look, Part, Peek, Procedure, Pronounce
from varlog.types import GLSN, Ordering, TopicID, TransactionID, Version

TOPIC = TopicID(1)
LATE = errors.DeadlineExceeded("late")
UNKNOWN = errors.Unknown("may have happened")
DONE = Decided(0, 0, Version(0))


def opened(txid: int, after: int = 100, number: int = -1, *, age: int = 0, name: str = "job") -> OpenTransaction:
    return OpenTransaction(TransactionID(txid), name, number, GLSN(after), 60_000, age, f"token {txid}")


OWN = opened(7)
PARTS = [Part(22, 3, 130), Part(11, 2, 120), Part(33, 0, 0)]
COMMIT = Verdict(VerdictKind.COMMIT, OWN.txid, OWN.after, ((11, 2), (22, 3)), "", GLSN(130))
NOTHING = Verdict(VerdictKind.COMMIT, OWN.txid, OWN.after, (), "", OWN.after)
ABORT = Verdict(VerdictKind.ABORT, OWN.txid, OWN.after, (), "a reason")
BEFORE = Look(OWN.txid, OWN.after, GLSN(130))


def fate(verdict: Verdict, glsn: int) -> Fate:
    return Fate(GLSN(glsn), verdict)


def look(one: OpenTransaction, upto: int | None = None) -> Look:
    return Look(one.txid, one.after, None if upto is None else GLSN(upto))


def end(one: OpenTransaction, glsn: int, *, is_committed: bool = False) -> Ask:
    return Ask(EndTransaction(0, TOPIC, one.txid, is_committed, GLSN(glsn)))


def run(procedure: Procedure[Any], *script: tuple[Effect, Any]) -> Any:
    """Run it to its end: these effects, in this order, bring these answers."""
    answer = None
    for expected, brought in script:
        assert procedure.send(answer) == expected
        answer = brought
    with pytest.raises(StopIteration) as stop:
        procedure.send(answer)
    return stop.value.value


def begin(number: int = -1, ordering: Ordering = Ordering.COMMIT) -> Procedure[OpenTransaction]:
    return transacting.begin(TOPIC, ordering, "job", "token", number, 60_000)


def asked(number: int = -1, after: int = 0) -> Ask:
    return Ask(BeginTransaction(0, TOPIC, "job", "token", GLSN(after), 60_000, number))


# Beginning


def test_a_first_attempt_begins_with_one_question() -> None:
    assert run(begin(), (asked(), Begun(0, 0, OWN))) is OWN


def test_where_a_sequencer_orders_it_begins_after_a_position_that_is_written() -> None:
    assert run(begin(ordering=Ordering.SEQUENCER), (Peek(), GLSN(99)), (asked(after=99), Begun(0, 0, OWN))) is OWN
    with pytest.raises(errors.DeadlineExceeded):
        run(begin(ordering=Ordering.SEQUENCER), (Peek(), LATE))


def test_every_earlier_attempt_has_its_verdict_before_begin_returns() -> None:
    first, second = opened(3, 50), opened(5, 60)
    took = "a later attempt of 'job', transaction 7, took its place"
    aborted = Verdict(VerdictKind.ABORT, first.txid, first.after, (), took)
    expired = Verdict(VerdictKind.EXPIRE, second.txid, second.after)
    script = (
        (asked(), Begun(0, 0, OWN, (first, second))),
        (look(first), None),
        (Pronounce(aborted), GLSN(140)),
        (look(first, 140), fate(aborted, 140)),
        (end(first, 140), DONE),
        (look(second), fate(expired, 90)),
        (end(second, 90), LATE),  # somebody else will tell it
    )
    assert run(begin(), *script) is OWN


def test_an_earlier_attempt_that_commits_before_it_is_fenced_is_committed() -> None:
    first = opened(3, 50, number=4)
    aborted = Verdict(
        VerdictKind.ABORT, first.txid, first.after, (), "a later attempt of 'job', transaction 7, took its place"
    )
    committed = Verdict(VerdictKind.COMMIT, first.txid, first.after, ((1, 1),), "", GLSN(60))
    own = opened(7, number=5)
    script = (
        (asked(5), Begun(0, 0, own, (first,))),
        (look(first), None),
        (Pronounce(aborted), GLSN(140)),
        (look(first, 140), fate(committed, 139)),
        (end(first, 139, is_committed=True), DONE),
    )
    assert run(begin(5), *script) is own


@pytest.mark.parametrize("given_up", [DONE, LATE])
def test_an_earlier_attempt_that_was_committed_under_the_number_leaves_nothing_to_do(given_up: Any) -> None:
    first, own = opened(3, 50, number=5), opened(7, number=5)
    committed = Verdict(VerdictKind.COMMIT, first.txid, first.after, ((1, 1),), "", GLSN(60))
    needless = Verdict(VerdictKind.ABORT, own.txid, own.after, (), "it was committed before")
    script: list[tuple[Effect, Any]] = [
        (asked(5), Begun(0, 0, own, (first,))),
        (look(first), fate(committed, 90)),
        (end(first, 90, is_committed=True), DONE),
        (Pronounce(needless), GLSN(140) if given_up is DONE else LATE),
    ]
    if given_up is DONE:
        script += [(look(own, 140), fate(needless, 140)), (end(own, 140), DONE)]
    with pytest.raises(errors.AlreadyCommitted, match="number 5") as caught:
        run(begin(5), *script)
    assert caught.value.glsn == 90


def test_what_the_register_knows_to_be_done_is_not_begun() -> None:
    answer = Begun(0, errors.AlreadyCommitted.code, glsn=GLSN(90), detail="it was done")
    with pytest.raises(errors.AlreadyCommitted, match="it was done") as caught:
        run(begin(5), (asked(5), answer))
    assert caught.value.glsn == 90
    with pytest.raises(errors.TransactionAborted, match="replaced"):
        run(begin(), (asked(), Begun(0, errors.TransactionAborted.code, detail="replaced")))


def test_the_register_is_asked_again_if_an_earlier_attempt_has_ended_and_is_trimmed() -> None:
    first = opened(3, 50)
    script = (
        (asked(), Begun(0, 0, OWN, (first,))),
        (look(first), errors.Trimmed(70)),
        (asked(), Begun(0, 0, OWN)),
    )
    assert run(begin(), *script) is OWN


def test_begin_does_not_go_on_while_an_earlier_attempt_may_be_open() -> None:
    first = opened(3, 50)
    with pytest.raises(errors.DeadlineExceeded):
        run(begin(), (asked(), Begun(0, 0, OWN, (first,))), (look(first), LATE))
    pronounced = Pronounce(
        Verdict(
            VerdictKind.ABORT, first.txid, first.after, (), "a later attempt of 'job', transaction 7, took its place"
        )
    )
    script = ((asked(), Begun(0, 0, OWN, (first,))), (look(first), None), (pronounced, UNKNOWN), (look(first), None))
    with pytest.raises(errors.Unknown):
        run(begin(), *script)


def test_a_full_register_is_relieved_of_what_has_expired() -> None:
    full = Begun(0, errors.LimitExceeded.code, detail="full")
    old = opened(3, 50, age=60_000, name="other")
    expired = Verdict(VerdictKind.EXPIRE, old.txid, old.after, (), "it expired")
    script: tuple[tuple[Effect, Any], ...] = (
        (asked(), full),
        (Ask(GetTransactions(0, TOPIC)), Transactions(0, 0, (old, opened(4, 50, age=59_999)))),
        (look(old), None),
        (Pronounce(expired), GLSN(140)),
        (look(old, 140), fate(expired, 140)),
        (end(old, 140), DONE),
    )
    assert run(begin(), *script, (asked(), Begun(0, 0, OWN))) is OWN
    with pytest.raises(errors.LimitExceeded, match="full"):
        run(begin(), *script, (asked(), full))


# Committing


def test_a_commit_counts_what_was_written_and_looks_before_and_afterwards() -> None:
    script = (
        (BEFORE, None),
        (Pronounce(COMMIT), GLSN(150)),
        (look(OWN, 150), fate(COMMIT, 150)),
    )
    assert run(transacting.commit(OWN, PARTS), *script) == fate(COMMIT, 150)


def test_one_without_entries_needs_no_look_before() -> None:
    script = ((Pronounce(NOTHING), GLSN(150)), (look(OWN, 150), fate(NOTHING, 150)))
    assert run(transacting.commit(OWN, [Part(33, 0, 0)]), *script) == fate(NOTHING, 150)


def test_one_that_has_a_verdict_already_gets_no_commit() -> None:
    with pytest.raises(errors.TransactionAborted, match="aborted at 125: a reason"):
        run(transacting.commit(OWN, PARTS), (BEFORE, fate(ABORT, 125)))
    with pytest.raises(errors.DeadlineExceeded):
        run(transacting.commit(OWN, PARTS), (BEFORE, LATE))


@pytest.mark.parametrize("kind", [VerdictKind.ABORT, VerdictKind.EXPIRE])
def test_an_acknowledged_commit_is_none_if_another_verdict_came_first(kind: VerdictKind) -> None:
    first = Verdict(kind, OWN.txid, OWN.after)
    script = ((BEFORE, None), (Pronounce(COMMIT), GLSN(150)), (look(OWN, 150), fate(first, 149)))
    with pytest.raises(errors.TransactionAborted, match=r"(aborted|expired) at 149; nothing"):
        run(transacting.commit(OWN, PARTS), *script)


def test_a_commit_of_other_parts_that_came_first_is_told() -> None:
    other = Verdict(VerdictKind.COMMIT, OWN.txid, OWN.after, ((11, 2),), "", GLSN(120))
    script = ((BEFORE, None), (Pronounce(COMMIT), GLSN(150)), (look(OWN, 150), fate(other, 149)))
    with pytest.raises(errors.AlreadyCommitted, match="other parts") as caught:
        run(transacting.commit(OWN, PARTS), *script)
    assert caught.value.glsn == 149


def test_the_same_commit_by_another_hand_is_as_good() -> None:
    assert run(transacting.commit(OWN, PARTS), (BEFORE, fate(COMMIT, 125))) == fate(COMMIT, 125)


def test_an_unknown_commit_is_looked_for() -> None:
    lost = ((BEFORE, None), (Pronounce(COMMIT), UNKNOWN))
    assert run(transacting.commit(OWN, PARTS), *lost, (look(OWN), fate(COMMIT, 150))) == fate(COMMIT, 150)
    with pytest.raises(errors.TransactionAborted):
        run(transacting.commit(OWN, PARTS), *lost, (look(OWN), fate(ABORT, 149)))
    for found in (None, LATE, errors.Trimmed(120)):
        with pytest.raises(errors.Unknown, match="ask again"):
            run(transacting.commit(OWN, PARTS), *lost, (look(OWN), found))


def test_a_commit_that_was_not_appended_is_told_as_it_is() -> None:
    with pytest.raises(errors.DeadlineExceeded):
        run(transacting.commit(OWN, PARTS), (BEFORE, None), (Pronounce(COMMIT), LATE))


def test_an_acknowledged_commit_that_could_not_be_looked_for_is_unknown() -> None:
    script = ((BEFORE, None), (Pronounce(COMMIT), GLSN(150)), (look(OWN, 150), LATE))
    with pytest.raises(errors.Unknown):
        run(transacting.commit(OWN, PARTS), *script)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    ("parts", "script"),
    [
        (PARTS, ((BEFORE, errors.Trimmed(110)),)),
        (PARTS, ((BEFORE, None), (Pronounce(COMMIT), GLSN(150)), (look(OWN, 150), errors.Trimmed(120)))),
        ([], ((Pronounce(NOTHING), GLSN(150)), (look(OWN, 150), errors.Trimmed(120)))),
    ],
)
def test_of_one_that_is_trimmed_nobody_says_any_more_whether_it_was_committed(
    parts: list[Part], script: tuple[tuple[Effect, Any], ...], again: bool
) -> None:
    with pytest.raises(errors.TransactionEnded, match="trimmed") as caught:
        run(transacting.commit(OWN, parts, again=again), *script)
    assert caught.value.happened is None


@pytest.mark.parametrize(
    "failing",
    [
        ((BEFORE, LATE),),
        ((BEFORE, None), (Pronounce(COMMIT), LATE)),
        ((BEFORE, None), (Pronounce(COMMIT), UNKNOWN), (look(OWN), None)),
    ],
)
def test_what_fails_after_an_unknown_commit_says_nothing_of_that_one(failing: tuple[tuple[Effect, Any], ...]) -> None:
    with pytest.raises(errors.Unknown, match="ask again") as caught:
        run(transacting.commit(OWN, PARTS, again=True), *failing)
    assert caught.value.happened is None


def test_what_the_log_says_after_an_unknown_commit_is_certain() -> None:
    assert run(transacting.commit(OWN, PARTS, again=True), (BEFORE, fate(COMMIT, 125))) == fate(COMMIT, 125)
    with pytest.raises(errors.TransactionAborted) as aborted:
        run(transacting.commit(OWN, PARTS, again=True), (BEFORE, fate(ABORT, 125)))
    assert aborted.value.happened is False


def test_a_commit_that_was_acknowledged_and_is_not_there_may_have_happened() -> None:
    script = ((BEFORE, None), (Pronounce(COMMIT), GLSN(150)), (look(OWN, 150), None))
    with pytest.raises(errors.ConsistencyViolation, match="not there") as caught:
        run(transacting.commit(OWN, PARTS), *script)
    assert caught.value.happened is None


# Aborting and settling


def test_an_abort_is_pronounced_looked_for_and_told() -> None:
    script = ((Pronounce(ABORT), GLSN(150)), (look(OWN, 150), fate(ABORT, 150)), (end(OWN, 150), DONE))
    assert run(transacting.abort(TOPIC, OWN, "a reason"), *script) == fate(ABORT, 150)


def test_an_abort_that_came_too_late_says_so() -> None:
    script = (
        (Pronounce(ABORT), GLSN(150)),
        (look(OWN, 150), fate(COMMIT, 149)),
        (end(OWN, 149, is_committed=True), DONE),
    )
    with pytest.raises(errors.AlreadyCommitted, match="at 149"):
        run(transacting.abort(TOPIC, OWN, "a reason"), *script)


def test_an_unknown_abort_is_looked_for() -> None:
    lost = (Pronounce(ABORT), UNKNOWN)
    assert run(
        transacting.abort(TOPIC, OWN, "a reason"), lost, (look(OWN), fate(ABORT, 150)), (end(OWN, 150), DONE)
    ) == fate(ABORT, 150)
    with pytest.raises(errors.Unknown):
        run(transacting.abort(TOPIC, OWN, "a reason"), lost, (look(OWN), None))


def test_one_that_has_ended_and_is_trimmed_is_settled() -> None:
    trimmed = errors.Trimmed(200)
    assert (
        run(transacting.abort(TOPIC, OWN, "a reason"), (Pronounce(ABORT), GLSN(150)), (look(OWN, 150), trimmed)) is None
    )
    assert run(transacting.settle(TOPIC, OWN, "a reason"), (look(OWN), trimmed)) is None
    assert (
        run(
            transacting.settle(TOPIC, OWN, "a reason"),
            (look(OWN), None),
            (Pronounce(ABORT), GLSN(150)),
            (look(OWN, 150), trimmed),
        )
        is None
    )
