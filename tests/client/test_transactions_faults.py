"""Transactions while processes are killed: what is committed is seen as a whole, and what is not known is found out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

import varlog
from tests.client.rig import run, until
from varlog import errors
from varlog.client.log import Log
from varlog.client.transactions import TransactionResult
from varlog.processes import LocalCluster

SECONDS = 25.0
EIGHT = sorted([b"%d" % each for each in range(4)] * 2)


async def seen(log: Log) -> list[bytes]:
    return [entry.data async for batch in log.scan() for entry in batch]


async def written(log: Log, name: str) -> varlog.Transaction:
    transaction = await log.begin(name, number=1)
    for each in range(4):
        await transaction.append_batch([b"%d" % each] * 2)
    return transaction


async def commit_hastily(transaction: varlog.Transaction, started: asyncio.Event) -> TransactionResult:
    """Give up before anybody can have told, and ask again when there is somebody."""
    with suppress(errors.Unknown, errors.Unreachable, errors.DeadlineExceeded):
        await transaction.commit(timeout=0.3)
    await started.wait()
    return await transaction.commit(timeout=SECONDS)


async def commit_while_the_repository_is_dead(cluster: LocalCluster, logs: Sequence[Log]) -> None:
    names = ("patient", "hasty")
    transactions = [[await written(log, name) for name in names] for log in logs]
    await cluster.vmr.kill()
    started = asyncio.Event()
    committing = [
        asyncio.gather(patient.commit(timeout=SECONDS), commit_hastily(hasty, started))
        for patient, hasty in transactions
    ]
    await cluster.vmr.start()
    started.set()
    for log, results in zip(logs, committing, strict=True):
        for name, result in zip(names, await results, strict=True):
            assert result.entries == 8
            with pytest.raises(errors.AlreadyCommitted) as again:
                await log.begin(name, number=1, timeout=SECONDS)
            assert again.value.glsn == result.glsn
        assert sorted(await seen(log)) == sorted(2 * EIGHT)


async def write_while_a_node_dies(cluster: LocalCluster, log: Log, dying: asyncio.Event) -> None:
    transaction = await log.begin("node")
    async with transaction.appender(timeout=SECONDS) as appender:
        for each in range(40):
            await appender.append(b"%d" % each)
            if each == 10:
                dying.set()
            if each > 10:
                await until(lambda: not cluster.nodes[0].alive)
    assert (await transaction.commit(timeout=SECONDS)).entries == 40


def test_what_is_killed_during_transactions_leaves_nothing_half_seen(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(LocalCluster(tmp_path, topic="commit", streams=2))
            async with varlog.admin(cluster.path) as operator:
                await operator.add_topic("sequencer", streams=2, ordering="sequencer")
            logs = [
                await stack.enter_async_context(varlog.connect(cluster.path, topic=topic, timeout=SECONDS))
                for topic in ("commit", "sequencer")
            ]
            await commit_while_the_repository_is_dead(cluster, logs)
            dying = [asyncio.Event() for _ in logs]
            writing = [
                asyncio.ensure_future(write_while_a_node_dies(cluster, log, event))
                for log, event in zip(logs, dying, strict=True)
            ]
            await asyncio.gather(*(event.wait() for event in dying))
            await cluster.nodes[0].kill()
            await asyncio.gather(*writing)
            for log in logs:
                assert sorted((await seen(log))[16:], key=int) == [b"%d" % each for each in range(40)]

    run(main(), seconds=60)
