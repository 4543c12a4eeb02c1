"""Rules of transactions broken on purpose, as `tests.sim.mutations` breaks those of the log."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import msgspec
import pytest

from tests.sim.mutations import Mutation
from varlog.batch.transactions import Mark, Verdict, VerdictKind
from varlog.core import committed, registering, transacting
from varlog.core.committed import Committed, Judgement
from varlog.core.executor import LogStreamExecutor
from varlog.core.fates import Fate, Fates, verdict_of
from varlog.core.messages import Begun, OpenTransaction, StoredLine, Transactions
from varlog.core.register import Register
from varlog.core.storagenode import ReadPlan, StorageNode
from varlog.core.transacting import Part, Procedure, Pronounce
from varlog.types import GLSN, TopicID, TransactionID


def _commit_decided_by_receipt(patch: pytest.MonkeyPatch) -> None:
    """The COMMIT was acknowledged, so the transaction is taken for committed, whatever came before it."""
    genuine = transacting._pronounced

    def pronounced(one: OpenTransaction, verdict: Verdict) -> Procedure[Fate]:
        if verdict.kind is not VerdictKind.COMMIT:
            return (yield from genuine(one, verdict))
        glsn = yield Pronounce(verdict)
        if isinstance(glsn, int):
            return Fate(GLSN(glsn), verdict)
        return (yield from transacting._found_anyway(one, glsn))

    patch.setattr(transacting, "_pronounced", pronounced)


def _expiry_by_clock(patch: pytest.MonkeyPatch) -> None:
    """A reader that a transaction has held for its expiry goes on without it, and leaves nothing in the log."""

    def wants_tail(self: Committed, now: float) -> bool:
        if self.held is not None and self.is_due(now):
            txid, after = self.held.key
            self._known[self.held.key] = Fate(self.held.glsn, Verdict(VerdictKind.EXPIRE, txid, after))
        return False

    patch.setattr(Committed, "wants_tail", wants_tail)


def _abort_forgotten_at_restart(patch: pytest.MonkeyPatch) -> None:
    """A replica that was opened anew tells nobody of the ABORTs that it had before."""
    recover, finish_scan = LogStreamExecutor.recover, StorageNode.finish_scan
    forgetful: dict[int, GLSN] = {}

    def recovered(self: LogStreamExecutor, context: Any, damage: Any) -> None:
        recover(self, context, damage)
        forgetful[id(self)] = self.global_hwm

    def finished(self: StorageNode, plan: ReadPlan, result: Any) -> None:
        if isinstance(result, list) and plan.scan.verdicts:
            upto = forgetful.get(id(plan.executor), GLSN(0))
            result = [_without_abort(line) if line[0] <= upto else line for line in result]
        finish_scan(self, plan, result)

    patch.setattr(LogStreamExecutor, "recover", recovered)
    patch.setattr(StorageNode, "finish_scan", finished)


def _without_abort(line: StoredLine) -> StoredLine:
    verdict = verdict_of(line[6])
    return (*line[:6], b"") if verdict is not None and verdict.kind is VerdictKind.ABORT else line


def _older_attempt_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """A later attempt begins, and leaves the earlier ones as they are."""

    genuine = transacting._fence

    def fence(tpid: TopicID, begun: Begun) -> Procedure[bool]:
        return (yield from genuine(tpid, msgspec.structs.replace(begun, earlier=())))

    patch.setattr(transacting, "_fence", fence)


def _commit_without_a_look_before(patch: pytest.MonkeyPatch) -> None:
    """A COMMIT is appended though a verdict lies before what it counts in; a trim then takes that one away."""

    def commits(one: OpenTransaction, parts: Seq[Part]) -> Procedure[Fate]:
        written = sorted((part.part, part.entries) for part in parts if part.entries)
        checked = GLSN(max([one.after, *(part.last for part in parts)]))
        verdict = Verdict(VerdictKind.COMMIT, one.txid, one.after, tuple(written), "", checked)
        return transacting._judged(one, (yield from transacting._pronounced(one, verdict)), written)

    patch.setattr(transacting, "_committed", commits)


def _last_verdict_counts(patch: pytest.MonkeyPatch) -> None:
    """Not the first verdict on a transaction is its fate, but the last one that was read."""

    def note(self: Fates, glsn: GLSN, verdict: Verdict) -> None:
        key, fate = (verdict.txid, verdict.after), Fate(glsn, verdict)
        if key in self._watched:
            self._watched[key] = fate
        self._first[key] = fate
        self._shed()

    patch.setattr(Fates, "_note", note)


def _any_part_is_shown(patch: pytest.MonkeyPatch) -> None:
    """A committed transaction is shown with the parts that were not counted in."""

    def shows(mark: Mark, glsn: int, fate: Fate) -> bool:
        return fate.verdict.kind is VerdictKind.COMMIT and mark.after < glsn < fate.glsn

    patch.setattr(committed, "shows", shows)


def _nothing_is_held(patch: pytest.MonkeyPatch) -> None:
    """A reader shows what is not decided yet."""
    genuine = Committed.judge

    def judge(self: Committed, *args: Any) -> Judgement:
        judgement = genuine(self, *args)
        if judgement is Judgement.HOLD:
            self.held = None
        return Judgement.SHOW if judgement is Judgement.HOLD else judgement

    patch.setattr(Committed, "judge", judge)


def _verdicts_before_the_reader_are_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    """A reader that begins within a transaction knows only the verdicts behind where it began."""
    patch.setattr(Fates, "covers", lambda *_: True)
    patch.setattr(Committed, "_watch", lambda self: self.fates.watch(*self.held.key))


def _number_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The register does not keep which number was committed."""
    genuine = Register.end

    def end(self: Register, txid: TransactionID, _is_committed: bool, glsn: GLSN) -> None:
        genuine(self, txid, False, glsn)

    patch.setattr(Register, "end", end)


def _expired_ones_are_not_listed(patch: pytest.MonkeyPatch) -> None:
    """The register takes a transaction for ended when its clock says that it has expired."""
    genuine = registering.transactions

    def listed(*args: Any) -> Transactions:
        told = genuine(*args)
        return msgspec.structs.replace(told, open=tuple(one for one in told.open if one.age < one.expiry))

    patch.setattr(registering, "transactions", listed)


MUTATIONS = [
    Mutation("commit_decided_by_receipt", "no_lost_commit", _commit_decided_by_receipt, 38),
    Mutation("expiry_by_clock", "atomic_visibility", _expiry_by_clock, 28),
    Mutation("abort_forgotten_at_restart", "no_dirty_read", _abort_forgotten_at_restart, 12),
    Mutation("older_attempt_not_fenced", "fencing", _older_attempt_not_fenced, 38),
    Mutation("commit_without_a_look_before", "no_dirty_read", _commit_without_a_look_before, 19),
    Mutation("last_verdict_counts", "no_dirty_read", _last_verdict_counts, 28),
    Mutation("any_part_is_shown", "atomic_visibility", _any_part_is_shown, 38),
    Mutation("nothing_is_held", "no_dirty_read", _nothing_is_held, 38),
    Mutation("verdicts_before_the_reader", "no_dirty_read", _verdicts_before_the_reader_are_not_looked_for, 28),
    Mutation("expired_ones_are_not_listed", "stable", _expired_ones_are_not_listed, 28),
    Mutation("number_is_forgotten", "fencing", _number_is_forgotten, 38),
]
