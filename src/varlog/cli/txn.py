"""`varlog txn`: transactions of a topic that are open, and the names that they are committed under."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from varlog.batch.transactions import VerdictKind
from varlog.cli.options import USUAL_TOPIC, Flag, Position, Text, Topic, Yes
from varlog.cli.output import Column, confirmed

if TYPE_CHECKING:
    from varlog import Log

_COLUMNS: Final = (
    Column("id", right=True),
    Column("name"),
    Column("number", right=True),
    Column("after", right=True),
    Column("age", right=True),
    Column("expires after", right=True),
)
_NAMES: Final = (Column("name"), Column("last committed", right=True), Column("at", right=True))
_ENDED: Final = {VerdictKind.COMMIT: "committed", VerdictKind.ABORT: "aborted", VerdictKind.EXPIRE: "expired"}


async def list_txn(*, names: Flag = False, at: Topic = USUAL_TOPIC) -> None:
    """List open transactions.

    Parameters
    ----------
    names
        List the names with numbers instead, and the last one that was committed under each.
    """
    async with at.log() as log:
        if names:
            await _list_names(log, at)
            return
        stable = await log.stable(timeout=at.patience)
        rows = []
        for one in await log.transactions(timeout=at.patience):
            number = one.number if one.number >= 0 else None
            age, expires = one.age / 1000, one.expiry / 1000
            at.output.record(
                {
                    "topic": log.name,
                    "id": one.txid,
                    "name": one.name,
                    "number": number,
                    "after": one.after,
                    "age": age,
                    "expires": expires,
                }
            )
            shown = "" if number is None else number
            rows.append((one.txid, one.name, shown, one.after, f"{age:.1f} s", f"{expires:g} s"))
        if rows:
            at.output.table(_COLUMNS, rows)
        told = f"transactions open: {len(rows)}; readers get up to GLSN {stable}" if rows else "no transaction is open"
        at.output.line(f"topic {log.name!r}: {told}")


async def _list_names(log: Log, at: Topic) -> None:
    found = await log.transaction_names(timeout=at.patience)
    for one in found:
        at.output.record({"topic": log.name, "name": one.name, "committed": one.number, "glsn": one.glsn})
    at.output.table(_NAMES, [(one.name, one.number, f"GLSN {one.glsn}") for one in found])


async def abort_txn(
    txid: Annotated[Position, Parameter(metavar="ID")],
    /,
    *,
    reason: Annotated[Text, Parameter(metavar="TEXT")] = "an operator aborted it",
    yes: Yes = False,
    at: Topic = USUAL_TOPIC,
) -> int:
    """Abort a transaction.

    Parameters
    ----------
    txid
        Which one, as `varlog txn list` tells.
    reason
        Told to its owner.
    """
    async with at.log() as log:
        if not yes and not await confirmed(
            f"Abort transaction {txid} of topic {log.name!r}, so that nothing of it is seen?"
        ):
            return 1
        fate = await log.end_transaction(txid, reason, timeout=at.patience)
        ended = "trimmed" if fate is None else _ENDED[fate.verdict.kind]
        at.output.record({"topic": log.name, "id": txid, "ended": ended, "glsn": fate and fate.glsn})
        if fate is None:
            at.output.line(f"transaction {txid} had ended before, and is trimmed since")
        elif ended == "aborted":
            at.output.line(f"transaction {txid} was aborted at GLSN {fate.glsn}: nothing of it is ever seen")
        else:
            at.output.line(f"transaction {txid} had ended before: it {_was(ended)} at GLSN {fate.glsn}")
    return 1 if ended == "committed" else 0


def _was(ended: str) -> str:
    return ended if ended == "expired" else f"was {ended}"


async def forget_txn(
    name: Annotated[Text, Parameter(metavar="NAME")], /, *, yes: Yes = False, at: Topic = USUAL_TOPIC
) -> int:
    """Forget a name.

    Parameters
    ----------
    name
        Which one, as `varlog txn list --names` tells.
    """
    async with at.log() as log:
        question = f"Forget what was committed as {name!r} in topic {log.name!r}? What is replayed is written again."
        if not yes and not await confirmed(question):
            return 1
        known = any(one.name == name for one in await log.transaction_names(timeout=at.patience))
        await log.forget_transactions(name, timeout=at.patience)
        at.output.record({"topic": log.name, "name": name, "forgotten": known})
        told = "counts as committed under {!r} any more" if known else "was committed under {!r}; nothing has changed"
        at.output.line(f"topic {log.name!r}: nothing {told.format(name)}")
    return 0
