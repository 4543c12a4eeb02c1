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
from varlog.batch.transactions import Verdict, VerdictKind, decode_verdict
from varlog.client.log import Log
from varlog.core.messages import Append, BeginTransaction, Begun, Decided, EndTransaction, OpenTransaction
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

    def verdicts(self) -> list[Verdict]:
        """Those that the log has."""
        stored = self.stage.stored[LogStreamID(1)]
        entries = [varlog.batch.decode(line[6]).to_list() for line in stored if is_control(line[6])]
        return [decode_verdict(entry) for (entry,) in entries]

    def kinds(self) -> list[VerdictKind]:
        return [verdict.kind for verdict in self.verdicts()]


def play(path: Path, case: Callable[[Scene, Log], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with await Stage.start(path) as stage, varlog.connect(path) as log:
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
                await scene.node.stop()
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
        await scene.node.stop()
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
