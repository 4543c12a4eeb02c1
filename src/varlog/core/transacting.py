"""Transacting: how a transaction is begun, committed, aborted and settled, step by step, without I/O.

A procedure is a generator. It yields one *effect* after another, is sent what came of it, or an error in its place, and
returns its result or raises. Whoever runs it does the effects: a client with its connections, the simulator with its
messages. The effects:

- `Ask`: a question to the metadata repository; answered with its answer, whatever its code.
- `Pronounce`: append a verdict to any log stream; answered with its GLSN when it is acknowledged.
- `Look`: the fate of a transaction, which is the first verdict on it after `after` and up to `upto`, or up to a tail
  asked for now; answered with it, or with None if there is none. `Trimmed` if not all of that can be read any more.
- `Peek`: a position that is written, and so will never be given out again; what was acknowledged before is not behind
  it. Asked only of topics that a sequencer orders: a position that was merely given out may be given out once more, in
  the next epoch, and all of a transaction has to lie behind the one it begins after.

The log decides. What is said here of a transaction was seen there first:

- **begin** is not over before every earlier attempt of the name has its verdict: this is what fences them. One that is
  found committed under the same number, or a greater one, makes this one needless.
- **commit** looks twice. Before, up to the last batch that it counts in: a transaction that has a verdict already gets
  no COMMIT, so that none is ever in the log whose batches lie behind an earlier verdict that a trim could take away.
  Afterwards, up to the COMMIT itself: only the first verdict counts, and an acknowledgement says nothing of that. An
  earlier COMMIT that is unknown may be in the log, or may yet come: from then on only what was read there is certain.
- **settle** finds out what became of a transaction, by ending it if it has not ended.

Nothing here is lost with the process that runs it: a procedure that ends in the middle leaves a transaction that is
open, and that the next one finds in the register, or one that expires.

What must always hold: nobody is told that a transaction was committed, or that it was not, before its first verdict was
read from the log; a COMMIT is pronounced only after everything it counts in was acknowledged.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Sequence as Seq
from typing import Any, Final, NamedTuple, TypeVar

from varlog import errors
from varlog.batch.transactions import Verdict, VerdictKind
from varlog.core.conversing import succeeded
from varlog.core.fates import Fate
from varlog.core.messages import (
    BeginTransaction,
    Begun,
    EndTransaction,
    GetTransactions,
    Message,
    OpenTransaction,
    Transactions,
)
from varlog.types import GLSN, Ordering, TopicID, TransactionID

_T = TypeVar("_T")

_ATTEMPTS: Final = 4
"""How often the register is asked to begin one, if what it says of earlier attempts is outdated each time."""
_RELIEVED: Final = 32
"""So many that have expired are settled when the register is full: others who begin will settle others."""


class Ask(NamedTuple):
    """Ask the metadata repository; the request number is given by whoever carries the message."""

    message: Message


class Pronounce(NamedTuple):
    """Append a verdict."""

    verdict: Verdict


class Look(NamedTuple):
    """Look for the first verdict on a transaction."""

    txid: TransactionID
    after: GLSN
    upto: GLSN | None
    """None: the tail, asked for now."""


class Peek(NamedTuple):
    """Ask for a position that is written, as late a one as can be had."""


Effect = Ask | Pronounce | Look | Peek
Procedure = Generator[Effect, Any, _T]


class Part(NamedTuple):
    """One writer's share of a transaction, when all of it is acknowledged."""

    part: int
    entries: int
    last: int
    """The position of its last batch; 0 if it has none."""


def is_commit(fate: Fate) -> bool:
    return fate.verdict.kind == VerdictKind.COMMIT


# Beginning


def begin(
    tpid: TopicID, ordering: Ordering, name: str, token: str, number: int, expiry: int
) -> Procedure[OpenTransaction]:
    """Begin an attempt of a name, or join it, and end all that came before it. Raises `AlreadyCommitted` if there is
    nothing left to do under that number, `TransactionAborted` if a later attempt has taken its place."""
    after = GLSN(0)
    if ordering is Ordering.SEQUENCER:
        after = _good((yield Peek()))
    asked = BeginTransaction(0, tpid, name, token, after, expiry, number)
    relieved = False
    for _ in range(_ATTEMPTS):
        answer = yield Ask(asked)
        if not relieved and getattr(answer, "code", 0) == errors.LimitExceeded.code:
            relieved = True
            yield from relieve(tpid)
            answer = yield Ask(asked)
        begun = _begun(answer)
        if (yield from _fence(tpid, begun)):
            assert begun.transaction is not None, "checked when it came"
            return begun.transaction
    raise errors.Busy(f"attempts of {name!r} end faster than they can be looked at; try again")


def _begun(answer: Any) -> Begun:
    if isinstance(answer, Begun) and answer.code == errors.AlreadyCommitted.code:
        raise _already_committed(answer.detail, answer.glsn)
    begun = succeeded(answer, Begun)
    if begun.transaction is None:
        raise errors.ProtocolError("the metadata repository began a transaction and does not say which")
    return begun


def _fence(tpid: TopicID, begun: Begun) -> Procedure[bool]:
    """End the earlier attempts. False: one of them has ended and is trimmed, so the register knows more by now."""
    own = begun.transaction
    assert own is not None, "checked when it came"
    for earlier in begun.earlier:
        reason = f"a later attempt of {own.name!r}, transaction {own.txid}, took its place"
        fate = yield from settle(tpid, earlier, reason)
        if fate is None:
            return False
        if own.number >= 0 and earlier.number >= own.number and is_commit(fate):
            yield from _give_up(tpid, own)
            raise _already_committed(
                f"{own.name!r} number {earlier.number} was committed at {fate.glsn} by transaction {earlier.txid}; "
                f"number {own.number} is not to be written again",
                fate.glsn,
            )
    return True


def _give_up(tpid: TopicID, own: OpenTransaction) -> Procedure[None]:
    """End one that nothing was written in. If that does not succeed it expires."""
    try:
        yield from abort(tpid, own, "it was committed before")
    except errors.VarlogError:
        return


def relieve(tpid: TopicID) -> Procedure[None]:
    """End some of those that have expired and that nobody has ended: the register is full of them."""
    register = succeeded((yield Ask(GetTransactions(0, tpid))), Transactions)
    expired = [one for one in register.open if one.age >= one.expiry]
    for one in expired[:_RELIEVED]:
        yield from settle(tpid, one, "it expired", VerdictKind.EXPIRE)


# Ending


def commit(one: OpenTransaction, parts: Seq[Part], *, again: bool = False) -> Procedure[Fate]:
    """Commit what the parts hold; returns the COMMIT as it stands in the log. Raises `TransactionAborted` if another
    verdict came first, `AlreadyCommitted` if that is a COMMIT of other parts, `TransactionEnded` if nobody can read any
    more which one came first; `Unknown` if it could not be found out: then this may be called `again`, and says what
    became of it. What keeps that one from finding out says nothing of the COMMIT that may be in the log already, so it
    is `Unknown`, too."""
    try:
        return (yield from _committed(one, parts))
    except (errors.TransactionAborted, errors.AlreadyCommitted, errors.TransactionEnded):
        raise
    except errors.VarlogError as error:
        if again and error.happened is False:
            raise _unknown(one, error) from error
        raise


def _committed(one: OpenTransaction, parts: Seq[Part]) -> Procedure[Fate]:
    written = sorted((part.part, part.entries) for part in parts if part.entries)
    checked = GLSN(max([one.after, *(part.last for part in parts)]))
    if written:
        fate = yield Look(one.txid, one.after, checked)
        if isinstance(fate, errors.Trimmed):
            raise trimmed_since(one)
        if _good(fate) is not None:
            return _judged(one, fate, written)
    verdict = Verdict(VerdictKind.COMMIT, one.txid, one.after, tuple(written), "", checked)
    try:
        first = yield from _pronounced(one, verdict)
    except errors.Trimmed:
        raise trimmed_since(one) from None
    return _judged(one, first, written)


def abort(tpid: TopicID, one: OpenTransaction, reason: str) -> Procedure[Fate | None]:
    """Abort it; the register is told. Raises `AlreadyCommitted` if it was committed before. Returns as `settle`."""
    verdict = Verdict(VerdictKind.ABORT, one.txid, one.after, (), reason)
    try:
        fate = yield from _pronounced(one, verdict)
    except errors.Trimmed:
        return None
    yield from tell(tpid, one.txid, fate)
    if is_commit(fate):
        raise _already_committed(f"transaction {one.txid} of {one.name!r} was committed at {fate.glsn}", fate.glsn)
    return fate


def settle(
    tpid: TopicID, one: OpenTransaction, reason: str, kind: VerdictKind = VerdictKind.ABORT
) -> Procedure[Fate | None]:
    """Find out what became of a transaction, if need be by ending it; the register is told. None: it has ended, and its
    verdict was trimmed since."""
    fate = yield Look(one.txid, one.after, None)
    if fate is None:
        try:
            fate = yield from _pronounced(one, Verdict(kind, one.txid, one.after, (), reason))
        except errors.Trimmed:
            return None
    if isinstance(fate, errors.Trimmed):
        return None
    fate = _as_fate(_good(fate))
    yield from tell(tpid, one.txid, fate)
    return fate


def tell(tpid: TopicID, txid: TransactionID, fate: Fate) -> Procedure[None]:
    """Tell the register what became of one. If that stays out, whoever meets it next does so."""
    yield Ask(EndTransaction(0, tpid, txid, is_commit(fate), fate.glsn))


def _pronounced(one: OpenTransaction, verdict: Verdict) -> Procedure[Fate]:
    """Pronounce a verdict; returns the one that came first, which need not be it. Raises `Trimmed` if the transaction
    has ended and that one cannot be read any more: nothing of an open one is trimmed."""
    glsn = yield Pronounce(verdict)
    if isinstance(glsn, errors.VarlogError):
        return (yield from _found_anyway(one, glsn))
    fate = yield Look(one.txid, one.after, glsn)
    if isinstance(fate, errors.Trimmed):
        raise fate
    if isinstance(fate, errors.VarlogError):
        raise _unknown(one, fate)
    if fate is None:
        violation = errors.ConsistencyViolation(
            f"a verdict on transaction {one.txid} was appended at {glsn}, and is not there"
        )
        violation.happened = None
        raise violation
    return _as_fate(fate)


def _found_anyway(one: OpenTransaction, error: errors.VarlogError) -> Procedure[Fate]:
    """A verdict may have got into the log, or may not: what is there by now decides, if anything is."""
    if error.happened is False:
        raise error
    fate = yield Look(one.txid, one.after, None)
    if fate is None or isinstance(fate, errors.VarlogError):
        raise _unknown(one, error)
    return _as_fate(fate)


def _judged(one: OpenTransaction, fate: Fate, written: list[tuple[int, int]]) -> Fate:
    """The first verdict, if it is the COMMIT that was wanted, whoever pronounced it."""
    verdict = fate.verdict
    if not is_commit(fate):
        what = "expired" if verdict.kind == VerdictKind.EXPIRE else "was aborted"
        why = f": {verdict.reason}" if verdict.reason else ""
        raise errors.TransactionAborted(
            f"transaction {one.txid} of {one.name!r} {what} at {fate.glsn}{why}; nothing of it is visible"
        )
    if list(verdict.parts) != written:
        raise _already_committed(
            f"transaction {one.txid} of {one.name!r} was committed at {fate.glsn} by somebody else, with other parts",
            fate.glsn,
        )
    return fate


def _unknown(one: OpenTransaction, why: errors.VarlogError) -> errors.Unknown:
    unknown = errors.Unknown(
        f"what became of transaction {one.txid} of {one.name!r} could not be read from the log: {why}; ask again"
    )
    unknown.__cause__ = why
    return unknown


def trimmed_since(one: OpenTransaction) -> errors.TransactionEnded:
    """What can be said of one whose first verdict is gone: it may have been a COMMIT."""
    ended = errors.TransactionEnded(
        f"transaction {one.txid} of {one.name!r} has ended, and is trimmed since: whether it was committed cannot be "
        "read any more"
    )
    ended.happened = None
    return ended


def _already_committed(detail: str, glsn: int) -> errors.AlreadyCommitted:
    error = errors.AlreadyCommitted(detail)
    error.glsn = glsn
    return error


def _good(answer: Any) -> Any:
    """What an effect brought, unless that is an error."""
    if isinstance(answer, errors.VarlogError):
        raise answer
    return answer


def _as_fate(found: Any) -> Fate:
    assert isinstance(found, Fate), "what else a look may bring was looked at before"
    return found
