"""Requests that somebody waits for: answered, lost with their connection, or given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.wire.peers import CLUSTER, NODE, SECRET, Recorder, run
from varlog import errors
from varlog.core.messages import GetInfo, Info, Message
from varlog.manager import asking
from varlog.manager.asking import Asking
from varlog.types import StorageNodeID
from varlog.wire import Connection, Identity, Role, Server, dial


@asynccontextmanager
async def node() -> AsyncIterator[tuple[Recorder, Server]]:
    """A node that hears and says nothing by itself."""
    there = Recorder()
    server = await Server.start("127.0.0.1:0", NODE, frozenset({Role.MANAGER}), SECRET, there)
    try:
        yield there, server
    finally:
        await server.close()


async def connect(server: Server, receiver: Asking) -> Connection:
    return await dial(server.address, Identity(CLUSTER, Role.MANAGER), Role.STORAGE_NODE, SECRET, receiver)


def info(request: int) -> Info:
    return Info(request, StorageNodeID(5), 1, ())


def test_each_answer_finds_who_asked() -> None:
    async def main() -> None:
        async with node() as (there, server):
            questions = Asking()
            connection = await connect(server, questions)
            asked = [asyncio.ensure_future(questions.ask(connection, GetInfo(number))) for number in (1, 2, 3)]
            await there.received(3)
            for number in (3, 1, 2):
                there.connections[0].send(info(number))
            assert await asyncio.gather(*asked) == [info(1), info(2), info(3)]
            assert len(questions) == 0

    run(main())


def test_an_answer_counts_only_where_the_question_was_put() -> None:
    async def main() -> None:
        async with node() as (there, server):
            questions = Asking()
            first, second = [await connect(server, questions) for _ in range(2)]
            asked = asyncio.ensure_future(questions.ask(first, GetInfo(1)))
            await there.received(1)
            assert not questions.answers(second, info(1))
            assert not questions.answers(first, info(2))
            assert not questions.answers(first, Message())
            assert questions.answers(first, info(1))
            assert not questions.answers(first, info(1)), "and only once"
            assert await asked == info(1)

    run(main())


def test_a_lost_connection_is_told_at_once_and_to_those_who_wait_for_it_only() -> None:
    async def main() -> None:
        async with node() as (there, server):
            questions = Asking()
            going, staying = [await connect(server, questions) for _ in range(2)]
            lost = asyncio.ensure_future(questions.ask(going, GetInfo(1)))
            kept = asyncio.ensure_future(questions.ask(staying, GetInfo(2)))
            await there.received(2)
            there.connections[0].close()
            with pytest.raises(errors.ConnectionLost, match="went away before it answered"):
                await lost
            there.connections[1].send(info(2))
            assert await kept == info(2)
            assert len(questions) == 0

    run(main())


def test_what_cannot_be_sent_is_not_waited_for() -> None:
    async def main() -> None:
        async with node() as (_, server):
            questions = Asking()
            connection = await connect(server, questions)
            connection.close()
            with pytest.raises(errors.Unreachable):
                await questions.ask(connection, GetInfo(1))
            assert len(questions) == 0

    run(main())


def test_silence_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 0.05)

    async def main() -> None:
        async with node() as (there, server):
            questions = Asking()
            connection = await connect(server, questions)
            with pytest.raises(errors.DeadlineExceeded, match="did not answer GetInfo"):
                await questions.ask(connection, GetInfo(1))
            there.connections[0].send(info(1))
            assert len(questions) == 0

    run(main())
