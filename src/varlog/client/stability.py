"""Up to where everything in a log is decided: nothing there is of a transaction that may yet commit.

The tail is asked for first, then the register of transactions. One that begins later writes behind that tail. Of those
that the register calls open, some have a verdict already, and others have expired: the log is looked through for them,
the register is told, and only what is truly open counts.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from varlog import errors
from varlog.batch.transactions import VerdictKind
from varlog.core.fates import Fate
from varlog.core.messages import OpenTransaction
from varlog.core.messages import Transactions as Register
from varlog.types import GLSN, TransactionID


class Look(Protocol):
    def __call__(self, txid: TransactionID, after: GLSN, upto: int | None, deadline: float) -> Awaitable[Fate | None]:
        """As `Verdicts.fate`."""


class Registered(Protocol):
    """What has to do with the register."""

    async def register(self, deadline: float) -> Register: ...

    async def settle(self, one: OpenTransaction, reason: str, kind: VerdictKind, deadline: float) -> Fate | None: ...

    def tell_later(self, one: OpenTransaction, fate: Fate) -> None: ...


async def settled_to(tail: int, registered: Registered, look: Look, deadline: float) -> int:
    """The position up to which all is decided, if `tail` was the tail before this was called."""
    stable = tail
    # From the one on that began first: what is looked through for it serves for the others.
    for one in sorted((await registered.register(deadline)).open, key=_after):
        if one.after < stable and not await _has_ended(one, tail, registered, look, deadline):
            stable = min(stable, one.after)
    return stable


async def _has_ended(one: OpenTransaction, tail: int, registered: Registered, look: Look, deadline: float) -> bool:
    try:
        fate = await look(one.txid, one.after, tail, deadline)
    except errors.Trimmed:
        return True  # it had, or that could not be
    if fate is not None:
        registered.tell_later(one, fate)
        return True
    if one.age < one.expiry:
        return False
    try:
        reason = f"it was not decided within {one.expiry / 1e3:g} s"
        await registered.settle(one, reason, VerdictKind.EXPIRE, deadline)
    except errors.VarlogError:
        return False  # nothing can be appended at the moment: it counts as open
    return True


def _after(one: OpenTransaction) -> int:
    return one.after
