"""Reading one chosen replica: all that it holds of a range, and nobody else is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import varlog
from tests.client.rig import run, turns
from varlog import batch, errors, limits
from varlog.client.connecting import open_session
from varlog.client.replicas import scan_replica
from varlog.client.session import Session
from varlog.core.messages import StoredLine
from varlog.oneprocess import EmbeddedCluster


@asynccontextmanager
async def stage(path: Path) -> AsyncIterator[tuple[EmbeddedCluster, varlog.Log, Session]]:
    cluster = await EmbeddedCluster.start(path)
    try:
        async with varlog.connect(path) as log:
            session = await open_session(path, None, None, 10)
            try:
                yield cluster, log, session
            finally:
                await session.close()
    finally:
        await cluster.stop()


async def lines(session: Session, snid: int, begin: int, end: int, patience: float = 10) -> list[StoredLine]:
    return [
        line async for found in scan_replica(session, snid, 1, begin, end, timeout=patience) for line in found
    ]  # fmt: skip


def test_every_replica_gives_the_same_batches(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path) as (_, log, session):
            for number in range(30):
                await log.append_batch([b"%d/%d" % (number, entry) for entry in range(3)])
            first, second, third = [await lines(session, snid, 1, 91) for snid in (1, 2, 3)]
            assert first == second == third
            assert [line[0] for line in first] == list(range(1, 91, 3))
            assert batch.decode(first[4][6]).to_list() == [b"4/0", b"4/1", b"4/2"]

    run(main())


def test_batches_that_a_range_cuts_into_come_whole(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path) as (_, log, session):
            for _ in range(4):
                await log.append_batch([b"x"] * 10)
            assert [line[:3] for line in await lines(session, 2, 15, 25)] == [(11, 11, 10), (21, 21, 10)]
            assert [line[0] for line in await lines(session, 2, 11, 21)] == [11]
            assert await lines(session, 2, 11, 11) == []

    run(main())


def test_much_more_than_one_answer_holds(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path) as (_, log, session):
            async with log.appender() as appender:
                for number in range(40):
                    await appender.append(bytes([number]) * (limits.CLIENT_SCAN_BYTES // 8))
            found = await lines(session, 3, 1, 41)
            assert [line[0] for line in found] == list(range(1, 41))
            assert [batch.decode(line[6])[0][0] for line in found] == list(range(40))

    run(main())


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path) as (_, log, session):
            for number in range(10):
                await log.append(b"%d" % number)
            await log.trim(4)
            with pytest.raises(errors.Trimmed) as trimmed:
                await lines(session, 1, 3, 8)
            assert trimmed.value.first == 5
            with pytest.raises(errors.NotYet, match="only up to position 10"):
                await lines(session, 1, 8, 12)
            with pytest.raises(errors.UnknownLogStream):
                [found async for found in scan_replica(session, 1, 99, 1, 5, timeout=5)]
            with pytest.raises(errors.UnknownNode):
                await lines(session, 17, 5, 8, patience=0.2)
            with pytest.raises(errors.InvalidArgument):
                await lines(session, 1, 0, 8)

    run(main())


def test_a_node_that_is_gone_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path) as (cluster, log, session):
            await log.append(b"x")
            await cluster.nodes[1].stop()
            with pytest.raises(errors.Unreachable, match="storage node 2"):
                await lines(session, 2, 1, 2, patience=0.5)
            assert len(await lines(session, 3, 1, 2)) == 1

    run(main())


def test_it_ends_with_its_session(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path) as (_, log, session):
            await log.append(b"x")
            waiting = asyncio.ensure_future(lines(session, 1, 2, 3))
            await turns(3)
            await session.close()
            with pytest.raises(errors.Closed):
                await waiting
            with pytest.raises(errors.Closed):
                await lines(session, 1, 1, 2)

    run(main())
