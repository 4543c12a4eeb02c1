"""Readers and transactions: who is held, until when, what is looked for where, and what everybody sees in the end."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from random import Random

import pytest

import varlog
from tests.client.orderings import ORDERINGS
from tests.client.rig import run, until
from tests.client.stage import Stage
from tests.client.test_transactions import committed_silently, play
from tests.core.paperverdicts import abort, commit, mark
from varlog import errors, limits
from varlog.batch import BatchFlag
from varlog.batch.transactions import MARK_TAG, Mark, Verdict, VerdictKind, encode_mark
from varlog.client.log import Log
from varlog.client.verdicts import Holding
from varlog.core.committed import Judgement
from varlog.core.content import Tagged
from varlog.core.merging import Chunk
from varlog.core.messages import Scan, ScanReply
from varlog.types import GLSN, LogStreamID, StorageNodeID, TransactionID
from varlog.wire import Connection

T = TransactionID


async def write(log: Log, marked: Mark, *entries: bytes) -> int:
    """A batch of a transaction that the register has never heard of."""
    tagged = Tagged(list(entries), int(BatchFlag.TRANSACTION), {MARK_TAG: encode_mark(marked)})
    return (await log._append(tagged, sum(map(len, entries)), None)).glsn


async def pronounce(log: Log, verdict: Verdict) -> int:
    return await log._verdicts.pronounce(verdict, None)


async def taken(log: Log, begin: int, end: int, *, uncommitted: bool = False) -> list[tuple[int, bytes]]:
    subscription = log.subscribe(begin, end=end, uncommitted=uncommitted)
    return [(entry.glsn, entry.data) async for entry in subscription]


# Single positions and ranges


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_an_entry_of_a_transaction_is_waited_for(cluster: Path, ordering: str) -> None:
    async def case(log: Log, other: Log) -> None:
        after = await log.tail()
        at = await write(log, mark(1, after), b"one", b"two")
        with pytest.raises(errors.TransactionOpen, match="transaction 1,"):
            await other.read(at, timeout=0.2)
        assert (await other.read(at + 1, uncommitted=True)).data == b"two"
        scan = other.scan(at, at + 2, timeout=0.2)
        with pytest.raises(errors.TransactionOpen):
            await anext(scan)
        waiting = asyncio.ensure_future(other.read(at))
        verdict = await pronounce(log, commit(1, after, at + 1))
        assert (await waiting).data == b"one"
        assert (await anext(scan)).payloads() == [b"one", b"two"]
        assert (await other.read(at + 1)).data == b"two"
        for uncommitted in (False, True):
            with pytest.raises(errors.Filled):
                await other.read(verdict, uncommitted=uncommitted)

    play(cluster, case, ordering)


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_what_did_not_commit_is_passed_over_and_counted(cluster: Path, ordering: str) -> None:
    async def case(log: Log, other: Log) -> None:
        after = await log.tail()
        first = await write(log, mark(2, after), b"one", b"two")
        await log.append(b"plain")
        await pronounce(log, abort(2, after))
        await write(log, mark(2, after), b"late")
        await pronounce(log, commit(2, after, first + 1))
        with pytest.raises(errors.Filled):
            await other.read(first)
        scan = other.scan(first, await log.tail() + 1)
        assert [found.payloads() async for found in scan] == [[b"plain"]]
        assert (scan.filled, scan.position) == (5, first + 6)
        end = first + 6
        assert [data for _, data in await taken(other, first, end, uncommitted=True)] == [
            b"one", b"two", b"plain", b"late",
        ]  # fmt: skip

    play(cluster, case, ordering)


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_a_verdict_is_found_wherever_the_reader_begins_and_ends(cluster: Path, ordering: str) -> None:
    """Before it begins, in what it reads, and beyond its end; also from the middle of a batch on."""

    async def case(log: Log, other: Log) -> None:
        after = await log.tail()
        first = await write(log, mark(3, after), b"a", b"b", b"c")
        await pronounce(log, abort(4, after))
        second = await write(log, mark(4, after), b"of the aborted")
        third = await write(log, mark(3, after), b"d")
        await pronounce(log, commit(3, after, third))
        last = (await log.append(b"last")).glsn
        assert [data for _, data in await taken(other, first, last + 1)] == [b"a", b"b", b"c", b"d", b"last"]
        assert await taken(other, first + 1, first + 2) == [(first + 1, b"b")]
        assert await taken(other, second, second + 1) == []
        assert await taken(other, third, third + 1) == [(third, b"d")]

    play(cluster, case, ordering)


# Being held


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_a_verdict_far_beyond_what_is_read_ahead_is_found(
    cluster: Path, ordering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLIENT_READ_AHEAD_BYTES", 2000)

    async def case(log: Log, other: Log) -> None:
        after = await log.tail()
        found: list[int] = []

        async def follow() -> None:
            async for entry in other.subscribe(after + 1):
                found.append(entry.glsn)
                if entry.data == b"last":
                    return

        following = asyncio.ensure_future(follow())
        at = await write(log, mark(5, after), b"one")
        async with log.appender() as appender:
            for _ in range(100):
                await appender.append(bytes(100))
        assert not found
        await pronounce(log, commit(5, after, at))
        last = (await log.append(b"last")).glsn
        await following
        assert found == [*range(at, at + 101), last]

    play(cluster, case, ordering)


def test_who_is_held_can_be_closed(cluster: Path) -> None:
    async def case(log: Log, other: Log) -> None:
        after = await log.tail()
        at = await write(log, mark(6, after), b"one")
        subscriptions = other.subscribe(at), other.subscribe(at, end=at + 1)
        held = [asyncio.ensure_future(anext(subscription)) for subscription in subscriptions]
        with pytest.raises(errors.TransactionOpen):
            await log.read(at, timeout=0.1)
        for subscription in subscriptions:
            await subscription.aclose()
        for one in held:
            with pytest.raises(errors.Closed):
                await one

    play(cluster, case)


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_an_abandoned_transaction_holds_nobody_longer_than_its_expiry(cluster: Path, ordering: str) -> None:
    async def case(log: Log, other: Log) -> None:
        transaction = await log.begin("abandoned", expires=0.5)
        at = (await transaction.append(b"lost")).glsn
        last = (await log.append(b"last")).glsn
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert await taken(other, at, last + 1) == [(last, b"last")]
        assert 0.4 <= loop.time() - begun < 5
        with pytest.raises(errors.TransactionAborted):
            await transaction.commit()
        fate = await log._fate(transaction.id, transaction._one.after, None, loop.time() + 5)
        assert fate is not None
        assert fate.verdict.kind is VerdictKind.EXPIRE

    play(cluster, case, ordering)


async def is_passed(log: Log, glsn: int, seconds: float) -> bool:
    """Whether a reader passes over a position, and is not held there."""
    with pytest.raises((errors.Filled, errors.TransactionOpen, errors.DeadlineExceeded)) as raised:
        await log.read(glsn, timeout=seconds)
    return isinstance(raised.value, errors.Filled)


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_many_short_reads_are_held_no_longer_than_a_long_one(
    cluster: Path, ordering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is written any more: neither by one client, nor by one after another, each for a little while. If
    they were, this would never end."""
    monkeypatch.setattr("varlog.client.verdicts.ASK_AFTER", 0.02)

    async def case(log: Log, _other: Log) -> None:
        for expires, reads in ((0.5, 1000), (1.0, 1)):
            transaction = await log.begin("abandoned", expires=expires)
            at = (await transaction.append(b"lost")).glsn
            passed = False
            while not passed:
                async with varlog.connect(cluster, topic=ordering) as reader:
                    for _ in range(reads):
                        passed = passed or await is_passed(reader, at, expires / 5)
            await log.stable()  # which tells the register

    play(cluster, case, ordering)


# Where all is decided


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_the_log_is_stable_up_to_the_first_transaction_that_is_open(cluster: Path, ordering: str) -> None:
    async def case(log: Log, other: Log) -> None:
        before = (await log.append(b"before")).glsn
        assert await other.stable() == before
        first = await log.begin("first")
        await log.append(b"between")
        second = await log.begin("second")
        await second.append(b"two")
        await first.append(b"one")
        assert await other.stable() == before
        await committed_silently(log, first)
        assert await other.stable() == before + 1, "though nobody told the register"
        assert [found.payloads() async for found in other.scan(before)] == [[b"before"], [b"between"]]
        await committed_silently(log, second)
        assert await other.stable() == await log.tail()
        third = await log.begin("third", expires=0.2)
        lost = (await third.append(b"lost")).glsn
        while (stable := await other.stable()) < lost:  # until it has expired
            pass
        assert stable == lost, "the verdict came after that"
        assert await other.stable() == await log.tail()
        assert [data for _, data in await taken(other, before + 2, stable + 1)] == [b"two", b"one"]

    play(cluster, case, ordering)


# Looking


def test_a_look_goes_on_where_the_last_one_ended(cluster: Path) -> None:
    async def case(log: Log, other: Log) -> None:
        after = (await log.append_batch([b"1", b"2", b"3"])).end - 1
        deadline = asyncio.get_running_loop().time() + 10
        at = await write(log, mark(7, after), b"one")
        assert await log._fate(T(7), GLSN(after), at, deadline) is None
        assert await log._fate(T(7), GLSN(after), None, deadline) is None
        verdict = await pronounce(other, abort(7, after))
        for upto in (verdict, None):
            fate = await log._fate(T(7), GLSN(after), upto, deadline)
            assert fate is not None
            assert (fate.glsn, fate.verdict.kind) == (verdict, VerdictKind.ABORT)
        assert len(log._verdicts._stretches) == 1
        looks = [log._fate(T(9), GLSN(begin), None, deadline) for begin in range(after - 3, after)]
        assert await asyncio.gather(*looks) == [None] * 3
        with pytest.raises(errors.DeadlineExceeded, match="transaction 9 "):
            await log._fate(T(9), GLSN(after), verdict + 1, asyncio.get_running_loop().time() + 0.1)
        await log.trim(at)
        with pytest.raises(errors.Trimmed):
            await other._fate(T(7), GLSN(after), None, deadline)

    play(cluster, case)


def test_a_reader_that_stops_reading_on_has_one_feed_of_verdicts(cluster: Path) -> None:
    """It looks back for where the transaction began; just when that has ended its own chunks stop coming."""

    async def case(log: Log, other: Log) -> None:
        after = await log.tail()
        await log.append(b"before")
        at = await write(log, mark(10, after), b"one")

        class Reader:
            reads_on = True

            def ahead(self, _position: int) -> list[Chunk]:
                if self.reads_on:
                    loop.call_soon(self.stop)
                return []

            def stop(self) -> None:
                self.reads_on = False
                holding.go_on()

        loop, session, news = asyncio.get_running_loop(), other._session, list[object]()
        before = len(session._participants)
        line = (await anext(other.scan(at, at + 1, uncommitted=True)))._batch
        chunk = Chunk(GLSN(at), LogStreamID(1), 0, 1, (at, at, 1, 2, 1, 1, b""))
        holding = Holding(other._verdicts, at, Reader(), news.append)
        assert holding.committed.judge(chunk, line, loop.time()) is Judgement.HOLD
        holding.begin()
        await pronounce(log, commit(10, after, at))
        await until(lambda: bool(news))
        assert holding.committed.is_decided
        holding.close()
        assert len(session._participants) == before

    play(cluster, case)


def test_a_damaged_verdict_is_read_from_another_replica(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=3) as stage, varlog.connect(tmp_path) as log:
            first = await write(log, mark(1, 0), b"one")
            last = (await log.append(b"last")).glsn

            def lie(connection: Connection, scan: Scan) -> None:
                reply = stage.scanned(scan)
                if not scan.verdicts:
                    connection.send(reply)
                    return
                spoilt = [(*line[:6], bytes(line[6])[:-1] + b"?") for line in reply.batches]
                connection.send(ScanReply(scan.request, scan.lsid, 0, tuple(spoilt), reply.complete_to))

            await pronounce(log, commit(1, 0, first))
            for snid in (1, 2):
                stage.nodes[StorageNodeID(snid)].answers[Scan] = lie
            for _ in range(4):
                assert (await log.read(first)).data == b"one"
                assert await taken(log, first, last + 1) == [(first, b"one"), (last, b"last")]
            stage.nodes[StorageNodeID(3)].answers[Scan] = lie
            with pytest.raises(errors.ChecksumMismatch):
                await log.read(first)

    run(main())


def test_a_client_that_is_closed_ends_those_that_are_held(cluster: Path) -> None:
    async def main() -> None:
        async with varlog.connect(cluster, topic="commit") as log:
            other = await varlog.connect(cluster, topic="commit")
            after = await log.tail()
            at = await write(log, mark(8, after), b"one")
            reading = asyncio.ensure_future(other.read(at))
            looking = asyncio.ensure_future(
                other._fate(T(8), GLSN(after), 1 << 40, asyncio.get_running_loop().time() + 9)
            )
            await until(lambda: bool(other._verdicts._stretches) and not looking.done())
            await other.close()
            for task in (reading, looking):
                with pytest.raises(errors.Closed):
                    await task
            await pronounce(log, abort(8, after))

    run(main())


# Many at once


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_everybody_sees_the_same_and_only_whole_transactions(cluster: Path, ordering: str) -> None:
    async def case(log: Log, other: Log) -> None:
        random = Random(8)
        begin = await log.tail() + 1
        committed: set[str] = set()

        async def transact(writer: int) -> None:
            for number in range(4):
                name = f"{writer}/{number}"
                transaction = await log.begin(name)
                for part in range(3):
                    await transaction.append_batch([f"{name} {part}.{i}".encode() for i in range(2)])
                    await log.append(b"plain")
                if random.random() < 0.3:
                    await transaction.abort()
                else:
                    committed.add(name)
                    await transaction.commit()

        seen: list[tuple[int, bytes]] = []

        async def follow() -> None:
            async for entry in other.subscribe(begin):
                if entry.data == b"last":
                    return
                seen.append((entry.glsn, entry.data))

        following = asyncio.ensure_future(follow())
        await asyncio.gather(*[transact(writer) for writer in range(5)])
        last = (await log.append(b"last")).glsn
        await following
        whole: dict[str, list[str]] = defaultdict(list)
        for _, data in seen:
            if data != b"plain":
                name, rest = data.decode().split()
                whole[name].append(rest)
        parts = [f"{part}.{i}" for part in range(3) for i in range(2)]
        assert dict(whole) == dict.fromkeys(committed, parts)
        for _ in range(10):
            low = random.randrange(begin, last)
            high = random.randrange(low, last)
            assert await taken(log, low, high + 1) == [one for one in seen if low <= one[0] <= high]

    play(cluster, case, ordering)
