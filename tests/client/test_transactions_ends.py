"""How transactions end while nobody answers: nothing is said to be certain that is not, and nothing is left open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import varlog
from tests.client.rig import run, until
from tests.client.stage import Stage
from varlog import Part, errors
from varlog.batch.transactions import VerdictKind, decode_verdict
from varlog.client.log import Log
from varlog.core.messages import (
    Append,
    BeginTransaction,
    Begun,
    Decided,
    EndTransaction,
    GetTransactions,
    OpenTransaction,
    Transactions,
)
from varlog.core.sifting import is_control
from varlog.types import GLSN, LogStreamID, StorageNodeID, TransactionID, Version
from varlog.wire import Connection

HASTY = 0.3
"""Seconds that are too few for what nobody answers."""


class Scene:
    """A cluster of one node that does as it is told, with a register."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.node = stage.nodes[StorageNodeID(1)]
        self.repository = stage.repositories[0]
        self.repository.answers |= {BeginTransaction: self.begin, EndTransaction: self._end}
        self.begun: dict[str, OpenTransaction] = {}
        self.open: dict[TransactionID, OpenTransaction] = {}
        self.late: list[Append] = []

    def begin(self, connection: Connection, message: BeginTransaction) -> None:
        """The same token is the same transaction."""
        if message.token not in self.begun:
            one = OpenTransaction(
                TransactionID(len(self.begun) + 1),
                message.name,
                message.number,
                GLSN(self.stage.hwm),
                message.expiry,
                0,
                message.token,
            )
            self.begun[message.token] = self.open[one.txid] = one
        connection.send(Begun(message.request, 0, self.begun[message.token]))

    def _end(self, connection: Connection, message: EndTransaction) -> None:
        self.open.pop(message.txid, None)
        connection.send(Decided(message.request, 0, Version(self.stage.version)))

    def delay_appends(self) -> None:
        """From now on what is appended does not get into the log before `come_late`."""
        self.node.answers[Append] = lambda _, message: self.late.append(message)

    def come_late(self) -> None:
        """What was delayed gets into the log, and appends do so at once again."""
        for message in self.late:
            self.stage.take(message)
        self.node.answers[Append] = self.stage._on_append

    async def stop_node(self, log: Log) -> None:
        """Take the node away, and let the client know."""
        await self.node.stop()
        await until(lambda: not log._session._connections)

    def kinds(self) -> list[VerdictKind]:
        """Of the verdicts that the log has."""
        stored = self.stage.stored[LogStreamID(1)]
        entries = [varlog.batch.decode(line[6]).to_list() for line in stored if is_control(line[6])]
        return [decode_verdict(entry).kind for (entry,) in entries]


def play(path: Path, case: Callable[[Scene, Log], Coroutine[Any, Any, None]], timeout: float = 10.0) -> None:
    async def main() -> None:
        async with await Stage.start(path) as stage, varlog.connect(path, timeout=timeout) as log:
            await case(Scene(stage), log)

    run(main())


async def refusal(call: Coroutine[Any, Any, Any]) -> errors.VarlogError:
    with pytest.raises(errors.VarlogError) as caught:
        await call
    return caught.value


def test_once_a_commit_is_unknown_only_the_log_makes_it_certain(tmp_path: Path) -> None:
    async def case(scene: Scene, log: Log) -> None:
        transaction = await log.begin("job")
        await transaction.append(b"row")
        scene.delay_appends()
        for is_down in (False, True, True):
            if is_down:
                await scene.stop_node(log)
            error = await refusal(transaction.commit(timeout=HASTY))
            assert (type(error), error.happened) == (errors.Unknown, None)
        error = await refusal(transaction.commit([Part(1, 1, 0)]))
        assert (type(error), error.happened) == (errors.InvalidArgument, None)
        scene.come_late()
        await scene.node.restart()
        assert (await transaction.commit()).glsn == 2
        assert set(scene.kinds()) == {VerdictKind.COMMIT}

    play(tmp_path, case)


def test_a_commit_that_surely_was_not_sent_leaves_no_doubt(tmp_path: Path) -> None:
    async def case(scene: Scene, log: Log) -> None:
        transaction = await log.begin("job")
        await transaction.append(b"row")
        await scene.stop_node(log)
        for _ in range(2):
            assert (await refusal(transaction.commit(timeout=HASTY))).happened is False
        await scene.node.restart()
        await transaction.commit()
        assert scene.kinds() == [VerdictKind.COMMIT]

    play(tmp_path, case)


def test_who_comes_while_another_commits_is_not_told_that_nothing_happens(tmp_path: Path) -> None:
    async def case(scene: Scene, log: Log) -> None:
        transaction = await log.begin("job")
        await transaction.append(b"row")
        scene.delay_appends()
        committing = asyncio.ensure_future(transaction.commit())
        await until(lambda: bool(scene.late))
        for call in (transaction.commit(timeout=0.01), transaction.abort(timeout=0.01)):
            error = await refusal(call)
            assert (type(error), error.happened) == (errors.Unknown, None)
        scene.come_late()
        assert await transaction.commit() == await committing

    play(tmp_path, case)


@pytest.mark.parametrize("why", ["failed", "expired"])
def test_what_cannot_be_committed_is_not_aborted_before_the_log_says_so(tmp_path: Path, why: str) -> None:
    async def case(scene: Scene, log: Log) -> None:
        transaction = await log.begin("job", expires=0.01 if why == "expired" else 60)
        await until(lambda: why == "failed" or transaction._time() >= transaction._expires_at)
        scene.delay_appends()
        error = await refusal(transaction.append(b"row", timeout=0.01))
        assert isinstance(error, errors.Unknown if why == "failed" else errors.TransactionAborted)
        for _ in range(2):
            error = await refusal(transaction.commit(timeout=HASTY))
            assert (type(error), error.happened) == (errors.Unknown, None)
            assert why in str(error)
        scene.come_late()
        for _ in range(2):
            assert isinstance(await refusal(transaction.commit()), errors.TransactionAborted)
        assert scene.kinds()[0] == VerdictKind.ABORT
        assert not scene.open

    play(tmp_path, case)


def test_what_cannot_be_committed_may_be_committed_by_others(tmp_path: Path) -> None:
    async def case(scene: Scene, log: Log) -> None:
        late, other = [await log.begin("job", token="run") for _ in range(2)]
        await other.append(b"row")
        late._expires_at = late._time()
        scene.delay_appends()
        assert (await refusal(late.commit(timeout=HASTY))).happened is None
        scene.late.clear()
        scene.come_late()
        committed = await other.commit()
        for _ in range(2):
            error = await refusal(late.commit())
            assert isinstance(error, errors.AlreadyCommitted)
            assert error.glsn == committed.glsn

    play(tmp_path, case)


# What nobody ends


@pytest.mark.parametrize("own", [None, RuntimeError("no good")])
def test_a_block_that_cannot_be_ended_is_aborted_as_soon_as_it_can(tmp_path: Path, own: Exception | None) -> None:
    async def block(scene: Scene, log: Log) -> None:
        async with log.transaction("job") as transaction:
            await transaction.append(b"row")
            await scene.stop_node(log)
            if own is not None:
                raise own

    async def case(scene: Scene, log: Log) -> None:
        with pytest.raises(errors.DeadlineExceeded if own is None else RuntimeError):
            await block(scene, log)
        await scene.node.restart()
        await until(lambda: not scene.open)
        assert set(scene.kinds()) == {VerdictKind.ABORT}

    play(tmp_path, case, timeout=HASTY)


def test_a_block_whose_commit_is_unknown_is_left_to_who_asks_again(tmp_path: Path) -> None:
    transactions: list[varlog.Transaction] = []

    async def block(scene: Scene, log: Log) -> None:
        async with log.transaction("job") as transaction:
            transactions.append(transaction)
            await transaction.append(b"row")
            scene.delay_appends()

    async def case(scene: Scene, log: Log) -> None:
        assert isinstance(await refusal(block(scene, log)), errors.Unknown)
        assert len(scene.late) == 1
        scene.come_late()
        assert (await transactions[0].commit()).entries == 1
        assert set(scene.kinds()) == {VerdictKind.COMMIT}

    play(tmp_path, case, timeout=HASTY)


@pytest.mark.parametrize("why", ["cancelled", "late"])
@pytest.mark.parametrize("token", [None, "shared"])
def test_what_was_begun_and_nobody_takes_is_ended_unless_it_is_shared(
    tmp_path: Path, why: str, token: str | None
) -> None:
    async def case(scene: Scene, log: Log) -> None:
        unanswered: list[tuple[Connection, BeginTransaction]] = []
        scene.repository.answers[BeginTransaction] = lambda *asked: unanswered.append(asked)
        beginning = asyncio.ensure_future(log.begin("job", token=token, timeout=HASTY))
        await until(lambda: bool(unanswered))
        if why == "cancelled":
            beginning.cancel()
        with pytest.raises(asyncio.CancelledError if why == "cancelled" else errors.Unknown):
            await beginning
        scene.repository.answers[BeginTransaction] = scene.begin
        for asked in unanswered:
            scene.begin(*asked)
        assert len(scene.open) == 1
        if token is None:
            await until(lambda: not scene.open)
        assert scene.kinds() == [VerdictKind.ABORT] * (token is None)
        assert len(scene.begun) == 1

    play(tmp_path, case)


def test_a_begin_that_was_refused_or_not_sent_leaves_nothing_to_end(tmp_path: Path) -> None:
    def is_full(connection: Connection, asked: BeginTransaction) -> None:
        connection.send(Begun(asked.request, errors.LimitExceeded.code))

    def nothing_is_open(connection: Connection, asked: GetTransactions) -> None:
        connection.send(Transactions(asked.request, 0))

    async def case(scene: Scene, log: Log) -> None:
        scene.repository.answers |= {BeginTransaction: is_full, GetTransactions: nothing_is_open}
        assert isinstance(await refusal(log.begin("job")), errors.LimitExceeded)
        await scene.repository.stop()
        await until(lambda: log._session.asking.leader is None)
        assert isinstance(await refusal(log.begin("job", timeout=HASTY)), errors.Unreachable)
        assert not log._transactions._tasks

    play(tmp_path, case)
