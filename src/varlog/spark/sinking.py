"""How rows become entries, exactly once: what a task does on an executor, and the driver when all tasks have ended.

All tasks of one write take part in one transaction. The first of them that has a row begins it, the others join it by
its name; each writes its rows in a part of its own, and tells the driver which one that was. The driver commits the
parts of those tasks that Spark counts, so what a failed, repeated or speculative attempt of a task wrote is never seen.

A micro-batch has a transaction named after the query, whose number is that of the micro-batch. Whoever begins it later
under the same number, or a smaller one, is told that it has been committed, and writes nothing: so a micro-batch that
Spark repeats, because the driver died before it had noted its end, is recognised, into whatever partitions its rows
come this time. Its rows are counted all the same, and the COMMIT says how many it had: if these are not as many, or a
later number was committed since, this is another micro-batch of the same number, as an old copy of a checkpoint makes
them. Then the query ends with an error, before it passes over rows that nobody has written. Every run of a query has a
token of its own; a run that begins a micro-batch takes it from an earlier run that may still be at it.

What always holds: rows are visible if, and only if, the COMMIT of the driver is the first verdict on their transaction.
Whoever dies on the way there leaves nothing that anybody sees: the next run of the query ends the transaction, or it
expires.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import varlog
from varlog import errors, limits
from varlog.core.transacting import Part
from varlog.spark.connections import connections
from varlog.spark.settling import settle
from varlog.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from varlog.client.transactions import Transaction
    from varlog.client.writing import Appender
    from varlog.core.messages import OpenTransaction

_log: Final = logging.getLogger(__name__)


class Attempt(NamedTuple):
    """By which the tasks and the driver find the same transaction."""

    name: str
    token: str
    number: int | None = None


class Share(NamedTuple):
    """What a task tells the driver. Nothing, if it had no rows."""

    attempt: Attempt | None = None
    txid: int = 0
    part: Part | None = None
    is_done: bool = False
    """It was told that all this has been committed before."""
    rows: int = 0
    """How many it had."""
    refused: str = ""
    """Why the transaction is none any more. The task then does not fail, because to try it again could not help."""


# A task


def write(options: SinkOptions, attempt: Attempt, batches: Iterator[pa.Array]) -> Share:
    """Write batches of payloads in a part of the transaction, which is begun when there is a first one."""
    settle()
    first = next(batches, None)
    if first is None:
        return Share()
    with connections.log(options.connection) as log:
        try:
            transaction = connections.run(_begun(log, options, attempt))
            part = _part(transaction, options, chain([first], batches))
            return Share(attempt, transaction.id, part, rows=part.entries)
        except errors.AlreadyCommitted as error:
            _log.info("nothing is written again: %s", error)
            return Share(attempt, is_done=True, rows=sum(map(len, chain([first], batches))))
        except errors.TransactionAborted as error:
            return Share(attempt, refused=str(error))


async def _begun(log: varlog.Log, options: SinkOptions, attempt: Attempt) -> Transaction:
    name, token, number = attempt
    return await log.begin(name, number=number, token=token, expires=options.expires, timeout=options.delivery)


def _part(transaction: Transaction, options: SinkOptions, batches: Iterable[pa.Array]) -> Part:
    """Send batches while the next ones are made; returns when all of them are in the log."""

    async def open_appender() -> Appender:
        return transaction.appender(window=limits.SPARK_SINK_WINDOW, timeout=options.delivery)

    async def close(appender: Appender) -> None:
        await appender.__aexit__(errors.Closed, None, None)

    appender = connections.run(open_appender())
    sending: Future[Any] | None = None
    try:
        for batch in batches:
            if sending is not None:
                sending.result()
            sending = connections.submit(appender.append_batch(batch))
        if sending is not None:
            sending.result()
        return connections.run(transaction.finish(timeout=options.delivery))
    finally:
        if sending is not None:
            sending.cancel()
        connections.run(close(appender))


# The driver


def commit(options: SinkOptions, shares: Sequence[Share]) -> None:
    """Make visible what the tasks have written, all of it at once. Nothing is to be done if there is nothing, or if it
    has been done before. What it raises says whether it may have happened; it may be repeated."""
    for share in shares:
        if share.refused:
            raise errors.TransactionAborted(share.refused)
    attempt = next((share.attempt for share in shares if share.attempt is not None), None)
    if attempt is None:
        return
    written = [share for share in shares if share.part is not None]
    is_done = len(written) < sum(share.attempt is not None for share in shares)
    with connections.log(options.connection) as log:
        try:
            if not is_done:
                connections.run(_committed(log, options, attempt, written))
                return
        except errors.AlreadyCommitted as error:
            _log.info("nothing is written again: %s", error)
        connections.run(_check_same(log, options, attempt, sum(share.rows for share in shares)))
    _log.warning("%s had been written and committed before, and is not written again", _named(attempt))
    if is_done and written:  # by tasks that began before this was known
        abort(options, written)


async def _committed(log: varlog.Log, options: SinkOptions, attempt: Attempt, written: Sequence[Share]) -> None:
    transaction = await _begun(log, options, attempt)
    others = {share.txid for share in written} - {transaction.id}
    if others:
        raise errors.TransactionAborted(
            f"tasks of {_named(attempt)} wrote in transaction {', '.join(map(str, sorted(others)))}, and it has become "
            f"{transaction.id} since; nothing of it is visible"
        )
    await transaction.commit([share.part for share in written if share.part is not None], timeout=options.delivery)


async def _check_same(log: varlog.Log, options: SinkOptions, attempt: Attempt, rows: int) -> None:
    """Whether rows that were not written are those that were committed before, as far as can be told."""
    names = await log.transaction_names(timeout=options.delivery)
    known = next((one for one in names if one.name == attempt.name), None)
    if attempt.number is None:
        return
    if known is None or known.number < attempt.number:  # whoever found it in the log could not tell the register
        raise errors.Unknown(f"where {_named(attempt)} was committed is not known yet; start the query again")
    if known.number > attempt.number:
        raise _not_the_same(attempt, f"number {known.number} was committed since, at {known.glsn}")
    try:
        verdict = await log._verdicts.at(known.glsn, log._deadline(options.delivery))
    except (errors.Trimmed, errors.Lost) as error:
        _log.warning("whether %s had the same %d rows cannot be told: %s", _named(attempt), rows, error)
        return
    committed = sum(entries for _, entries in verdict.parts) if verdict is not None else 0
    if rows != committed:
        raise _not_the_same(attempt, f"it was committed at {known.glsn} with {committed} rows, and now has {rows}")


def _not_the_same(attempt: Attempt, why: str) -> errors.ConsistencyViolation:
    return errors.ConsistencyViolation(
        f"{_named(attempt)} is not what was written under that number: {why}. Either the query was started with an old "
        "copy of its checkpoint, or it makes other rows of the same input. Nothing was written now. Start it with its "
        "latest checkpoint, or with a new one from where it has written to"
    )


def abort(
    options: SinkOptions, shares: Iterable[Share], is_ours: Callable[[OpenTransaction], bool] = lambda _: False
) -> None:
    """End what is open of a write, so that readers need not wait until it expires. `is_ours` is asked if no task could
    tell which transaction that is. If this fails nothing is lost but time, so it only warns."""
    known = {(share.attempt.name, share.attempt.token) for share in shares if share.attempt is not None}

    async def end(log: varlog.Log) -> None:
        for transaction in await log.transactions():
            if (transaction.name, transaction.token) in known if known else is_ours(transaction):
                await log.end_transaction(transaction.txid, "Spark could not write all of it, or has done so before")

    try:
        connections.ask(options.connection, end)
    except errors.VarlogError as error:
        _log.warning("a transaction may stay open until it expires, for %g s: %s", options.expires, error)


def _named(attempt: Attempt) -> str:
    return attempt.name if attempt.number is None else f"{attempt.name} number {attempt.number}"
