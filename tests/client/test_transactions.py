"""Transactions through the client: what becomes visible and when, who may still commit, what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import varlog
from tests.client.orderings import ORDERINGS
from tests.client.rig import run, turns, until
from tests.client.stepping import cancelled_at_every_await
from varlog import Part, errors, limits
from varlog.batch.transactions import VerdictKind
from varlog.client.log import Log
from varlog.core import transacting

Case = Callable[[Log, Log], Coroutine[Any, Any, None]]


def play(path: Path, case: Case, ordering: str = "commit") -> None:
    """With a log that is empty, and two clients."""

    async def main() -> None:
        async with varlog.connect(path, topic=ordering) as log, varlog.connect(path, topic=ordering) as other:
            await case(log, other)
            await no_longer_open(log)
            await log.trim(await log.tail())

    run(main())


async def seen(log: Log) -> list[bytes]:
    return [entry.data async for batch in log.scan(await log.first()) for entry in batch]


async def committed_silently(log: Log, transaction: varlog.Transaction) -> int:
    """Commit it as one who dies before telling anybody."""
    parts = [await transaction.finish()]
    fate = await log._transactions.run(transacting.commit(transaction._one, parts), log._deadline(None))
    return fate.glsn


async def is_over(transaction: varlog.Transaction) -> None:
    await until(lambda: transaction._time() >= transaction._expires_at)


async def no_longer_open(log: Log) -> None:
    """Wait until the register has been told of all that ended."""
    while await log.transactions():
        await turns(1)


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_what_is_committed_is_seen_at_its_own_positions_and_not_before(cluster: Path, ordering: str) -> None:
    async def case(log: Log, other: Log) -> None:
        before = await log.append(b"before")
        transaction = await log.begin("job")
        first = await transaction.append(b"one")
        plain = await other.append(b"between")
        second = await transaction.append_batch([b"two", b"three"])
        taken: list[tuple[int, bytes]] = []

        async def follow() -> None:
            async for entry in other.subscribe(before.glsn):
                taken.append((entry.glsn, entry.data))
                if entry.data == b"last":
                    return

        following = asyncio.ensure_future(follow())
        await until(lambda: len(taken) == 1)
        assert await seen(other) == [b"before"], "a scan ends before the first one that is open"
        uncommitted = [entry.data async for entry in other.subscribe(before.glsn, end=second.end, uncommitted=True)]
        assert sorted(uncommitted) == [b"before", b"between", b"one", b"three", b"two"]
        assert taken == [(before.glsn, b"before")]
        result = await transaction.commit()
        assert result.entries == 3
        assert result.glsn >= second.end
        last = await other.append(b"last")
        await following
        assert taken == [
            (before.glsn, b"before"),
            *sorted(
                [
                    (first.glsn, b"one"),
                    (plain.glsn, b"between"),
                    (second.glsn, b"two"),
                    (second.glsn + 1, b"three"),
                ]
            ),
            (last.glsn, b"last"),
        ]
        with pytest.raises(errors.Filled):
            await other.read(result.glsn)

    play(cluster, case, ordering)


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_a_later_attempt_fences_an_earlier_one(cluster: Path, ordering: str) -> None:
    async def case(log: Log, other: Log) -> None:
        older = await log.begin("job")
        await older.append(b"of the older")
        younger = await other.begin("job")
        assert younger.id > older.id
        await older.append(b"written too late")
        await younger.append(b"of the younger")
        with pytest.raises(errors.TransactionAborted, match="a later attempt"):
            await older.commit()
        with pytest.raises(errors.TransactionAborted):
            await older.commit()
        await younger.commit()
        assert await seen(log) == [b"of the younger"]

    play(cluster, case, ordering)


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_a_number_is_committed_once(cluster: Path, ordering: str) -> None:
    async def case(log: Log, other: Log) -> None:
        glsn = 0
        for number, is_told in ((3, True), (4, False)):
            transaction = await log.begin("job", number=number)
            await transaction.append(b"%d" % number)
            glsn = (await transaction.commit()).glsn if is_told else await committed_silently(log, transaction)
            for client in (log, other):
                with pytest.raises(errors.AlreadyCommitted) as again:
                    await client.begin("job", number=number)
                assert again.value.glsn == glsn
        await no_longer_open(log)
        with pytest.raises(errors.AlreadyCommitted, match="4"):
            await other.begin("job", number=1)
        assert await seen(other) == [b"3", b"4"]
        assert [(one.name, one.number, one.glsn) for one in await log.transaction_names()] == [("job", 4, glsn)]
        verdict = await other._verdicts.at(glsn, other._deadline(None))
        assert verdict is not None
        assert [entries for _, entries in verdict.parts] == [1]
        assert await other._verdicts.at(glsn - 1, other._deadline(None)) is None
        await log.forget_transactions("job")
        assert await log.transaction_names() == []

    play(cluster, case, ordering)


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_parts_that_nobody_counts_in_are_never_seen(cluster: Path, ordering: str) -> None:
    async def case(log: Log, other: Log) -> None:
        driver = await log.begin("job", number=0, token="run")
        tasks = [await client.begin("job", number=0, token="run") for client in (log, other, other)]
        assert {task.id for task in tasks} == {driver.id}
        for number, task in enumerate(tasks):
            async with task.appender(codec=varlog.Codec.ZSTD) as appender:
                for each in range(5):
                    await appender.append_batch([b"%d-%d" % (number, each)] * 2)
        parts = [await task.finish() for task in tasks]
        assert [part.entries for part in parts] == [10, 10, 10]
        nothing = await (await log.begin("job", number=0, token="run")).finish()
        assert (nothing.entries, nothing.last) == (0, 0)
        result = await driver.commit([parts[2], parts[0], nothing, parts[0]])
        assert result.entries == 20
        found = await seen(log)
        assert sorted(found) == sorted([b"%d-%d" % (number, each) for number in (0, 2) for each in range(5)] * 2)
        with pytest.raises(errors.AlreadyCommitted, match="other parts"):
            await tasks[1].commit()
        with pytest.raises(errors.TransactionEnded, match="finished"):
            await tasks[0].append(b"more")

    play(cluster, case, ordering)


async def failing(log: Log, error: Exception) -> None:
    async with log.transaction("block", number=7) as transaction:
        assert transaction.number == 7
        await transaction.append(b"aborted")
        raise error


def test_a_block_commits_or_aborts(cluster: Path) -> None:
    async def case(log: Log, other: Log) -> None:
        async with log.transaction("block") as transaction:
            assert (transaction.name, transaction.number) == ("block", None)
            await transaction.append(b"committed")
        with pytest.raises(RuntimeError, match="no good"):
            await failing(log, RuntimeError("no good"))
        async with log.transaction("block") as transaction:
            await transaction.append(b"committed by hand")
            result = await transaction.commit()
            assert await transaction.commit() == result
        async with log.transaction("block") as transaction:
            await transaction.append(b"aborted by hand")
            await transaction.abort("for a reason")
            await transaction.abort()
        await no_longer_open(other)
        assert await seen(other) == [b"committed", b"committed by hand"]

    play(cluster, case)


class Unspeakable(RuntimeError):
    def __str__(self) -> str:
        raise LookupError("it has no words")


@pytest.mark.parametrize("own", [ValueError("cannot parse caf\udce9.csv"), Unspeakable()])
def test_a_block_raises_its_own_error_whatever_it_says(cluster: Path, own: Exception) -> None:
    async def case(log: Log, other: Log) -> None:
        with pytest.raises(type(own)) as caught:
            await failing(log, own)
        assert caught.value is own
        await other.append(b"others go on")
        assert await seen(other) == [b"others go on"]

    play(cluster, case)


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_a_block_that_is_cancelled_anywhere_does_not_stay_open(cluster: Path, ordering: str) -> None:
    async def case(log: Log, other: Log) -> None:
        async def block() -> None:
            async with log.transaction("block") as transaction:
                await transaction.append(b"row")

        cancelled = []
        async for was_cancelled in cancelled_at_every_await(block):
            cancelled.append(was_cancelled)
            await no_longer_open(other)
        assert {*cancelled} == {False, True}

    play(cluster, case, ordering)


def test_what_has_ended_takes_nothing_more(cluster: Path) -> None:
    async def case(log: Log, _other: Log) -> None:
        committed = await log.begin("job")
        assert (await committed.commit()).entries == 0
        aborted = await log.begin("job")
        await aborted.abort()
        for ended in (committed, aborted):
            with pytest.raises(errors.TransactionEnded):
                await ended.append(b"more")
            with pytest.raises(errors.TransactionEnded):
                await ended.append_batch([b"more"])
            with pytest.raises(errors.TransactionEnded):
                async with ended.appender() as appender:
                    await appender.append(b"more")
        with pytest.raises(errors.TransactionEnded, match="committed at"):
            await committed.abort()
        with pytest.raises(errors.TransactionEnded):
            await aborted.commit()
        assert await seen(log) == []

    play(cluster, case)


def test_what_is_no_transaction_is_refused(cluster: Path) -> None:
    async def case(log: Log, _other: Log) -> None:
        beginnings: list[dict[str, Any]] = [
            {"name": ""},
            {"name": "x" * 201},
            {"name": "a\nb"},
            {"name": 5},
            {"name": "job", "number": -1},
            {"name": "job", "number": "1"},
            {"name": "job", "number": True},
            {"name": "job", "number": 1 << 63},
            {"name": "job", "token": ""},
            {"name": "job", "expires": 0},
            {"name": "job", "expires": limits.MAX_TRANSACTION_SECONDS + 1},
            {"name": "job", "expires": "soon"},
            {"name": "job", "expires": True},
            {"name": "job", "timeout": 0},
        ]
        for wrong in beginnings:
            with pytest.raises(errors.InvalidArgument):
                await log.begin(**wrong)
        transaction = await log.begin("job")
        parts: list[Any] = [(1, 2), (1, -2, 3), ("a", 1, 1), (1, 1, 0), (1, 2, 1 << 70), (True, 1, 1), 5, None]
        lists: list[Any] = [*([part] for part in parts), 5, b"xyz", "abc"]
        for wrong_parts in lists:
            with pytest.raises(errors.InvalidArgument, match="part"):
                await transaction.commit(wrong_parts)
        with pytest.raises(errors.InvalidArgument, match="twice"):
            await transaction.commit([Part(1, 1, 10**9), Part(1, 2, 10**9)])
        with pytest.raises(errors.TransactionTooLarge, match="parts"):
            await transaction.commit(Part(part, 1, 10**9) for part in range(limits.MAX_TRANSACTION_PARTS))
        with pytest.raises(errors.EntryTooLarge):
            await transaction.append(bytes(limits.MAX_ENTRY_BYTES + 1))
        with pytest.raises(errors.InvalidArgument):
            await transaction.append("text")  # type: ignore[arg-type]
        async with transaction.appender() as appender:
            with pytest.raises(errors.InvalidArgument, match="entries only"):
                await appender.append_fill(1)
        reasons: list[Any] = [None, 5, b"x"]
        for reason in reasons:
            with pytest.raises(errors.InvalidArgument, match="reason"):
                await transaction.abort(reason)
            with pytest.raises(errors.InvalidArgument, match="reason"):
                await log.end_transaction(transaction.id, reason)
        txids: list[Any] = ["5", None, True, 1.0]
        for txid in txids:
            with pytest.raises(errors.InvalidArgument, match="txid"):
                await log.end_transaction(txid)
        await transaction.append(b"and it goes on")
        await transaction.commit()
        assert await seen(log) == [b"and it goes on"]
        with pytest.raises(errors.TransactionEnded, match="no transaction 12345"):
            await log.end_transaction(12345)

    play(cluster, case)


def test_one_that_is_too_large_can_still_be_committed(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_TRANSACTION_BYTES", 10)

    async def case(log: Log, _other: Log) -> None:
        transaction = await log.begin("job")
        await transaction.append(b"12345678")
        with pytest.raises(errors.TransactionTooLarge, match="8 bytes"):
            await transaction.append(b"123")
        await transaction.append(b"90")
        await transaction.commit()
        assert sorted(await seen(log)) == [b"12345678", b"90"]

    play(cluster, case)


def test_one_whose_time_is_over_is_ended_by_its_owner(cluster: Path) -> None:
    async def case(log: Log, other: Log) -> None:
        for late in ("append", "commit"):
            transaction = await log.begin(late, expires=0.05)
            await transaction.append(b"in time")
            await is_over(transaction)
            with pytest.raises(errors.TransactionAborted, match=r"expired: it may take 0\.05 s"):
                await (transaction.append(b"late") if late == "append" else transaction.commit())
            with pytest.raises(errors.TransactionAborted):
                await transaction.append(b"late")
            with pytest.raises(errors.TransactionAborted):
                await transaction.commit()
            await no_longer_open(log)
        await other.append(b"others go on")
        assert await seen(other) == [b"others go on"]

    play(cluster, case)


def test_an_append_that_was_cancelled_is_not_committed(cluster: Path) -> None:
    async def case(log: Log, _other: Log) -> None:
        for pipelined in (False, True):
            transaction = await log.begin("job")
            await transaction.append(b"one")
            if pipelined:
                async with transaction.appender() as appender:
                    (await appender.append(b"two")).cancel()
            else:
                appending = asyncio.ensure_future(transaction.append(b"two"))
                await turns(1)
                appending.cancel()
            with pytest.raises(errors.Unknown, match="cancelled"):
                await transaction.finish()
            with pytest.raises(errors.TransactionAborted, match="cancelled"):
                await transaction.commit()
        assert await seen(log) == []

    play(cluster, case)


def test_an_operator_ends_one(cluster: Path) -> None:
    async def case(log: Log, other: Log) -> None:
        transaction = await log.begin("job", number=5, token="mine", expires=30)
        await transaction.append(b"never seen")
        (found,) = await other.transactions()
        assert (found.txid, found.name, found.number, found.token) == (transaction.id, "job", 5, "mine")
        assert (found.expiry, found.age < 10_000) == (30_000, True)
        fate = await other.end_transaction(transaction.id, "it is in the way")
        assert fate is not None
        assert (fate.verdict.kind, fate.verdict.reason) == (VerdictKind.ABORT, "it is in the way")
        with pytest.raises(errors.TransactionAborted, match="it is in the way"):
            await transaction.commit()
        assert await seen(log) == []

    play(cluster, case)


@pytest.mark.parametrize("entries", [0, 1])
@pytest.mark.parametrize("ordering", ORDERINGS)
def test_an_old_attempt_shows_nothing_after_its_verdict_was_trimmed(cluster: Path, ordering: str, entries: int) -> None:
    async def case(log: Log, other: Log) -> None:
        older = await log.begin("job")
        async with other.transaction("job") as younger:
            await younger.append(b"of the younger")
        await no_longer_open(log)
        await log.trim(await log.tail())
        for _ in range(entries):
            await older.append(b"of the older")
        with pytest.raises(errors.TransactionEnded, match="trimmed") as ended:
            await older.commit()
        assert ended.value.happened is None
        await log.append(b"plain")
        assert await seen(other) == [b"plain"]

    play(cluster, case, ordering)


def test_a_trim_does_not_pass_an_open_one(cluster: Path) -> None:
    async def case(log: Log, other: Log) -> None:
        before = await log.append(b"before")
        transaction = await log.begin("job")
        result = await transaction.append(b"in it")
        await other.trim(before.glsn)
        with pytest.raises(errors.TransactionOpen, match="job"):
            await other.trim(result.glsn)
        await transaction.commit()
        assert await other.trim(result.glsn) == result.glsn

    play(cluster, case)


def test_how_one_ended_that_is_trimmed_since_is_not_guessed(cluster: Path) -> None:
    async def case(log: Log, other: Log) -> None:
        aborted, committed = [await log.begin("job", token="shared") for _ in range(2)]
        await committed_silently(other, committed)
        assert await other.end_transaction(committed.id) is not None
        await other.trim(await other.tail())
        await log.append(b"plain")
        for call in (aborted.abort, committed.commit, aborted.commit):
            with pytest.raises(errors.TransactionEnded, match="trimmed") as ended:
                await call()
            assert ended.value.happened is None
        await until(lambda: not log._transactions._tasks)
        tail = await log.tail()
        for call in (committed.commit, aborted.commit):
            with pytest.raises(errors.TransactionEnded):
                await call()
        assert await log.tail() == tail, "and nothing more is written"

    play(cluster, case)
