"""Connections between two real sockets."""

from __future__ import annotations

import asyncio

import pytest

from tests.wire.peers import CLIENT, CLUSTER, NODE, SECRET, Recorder, join, run, serve
from varlog.core.messages import Append, GetMetadata, Replicate
from varlog.types import LLSN, Epoch, LogStreamID, Sequence
from varlog.wire import Identity, Link, Ping, Pong, Role, dial


def append(batch: bytes) -> Append:
    return Append(1, LogStreamID(2), Epoch(2), Sequence(0), LLSN(1), batch)


@pytest.mark.parametrize("run_on", [run, asyncio.run], ids=["uvloop", "asyncio"])
def test_messages_arrive_in_order(run_on) -> None:  # type: ignore[no-untyped-def]
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        connection = await join(server, here)
        for number in range(1000):
            assert connection.send(Ping(number, b"x" * (number % 300)))
        answers = await here.received(1000)
        assert answers == [Pong(number, number % 300) for number in range(1000)]
        assert there.connections[0].peer == CLIENT
        assert connection.peer == NODE
        await server.close()

    run_on(main())


@pytest.mark.parametrize("size", [0, 1, 16 << 10, (16 << 10) + 1, 100_000, (256 << 10) - 48, 256 << 10, 5 << 20])
def test_batches_of_every_size_arrive(size: int) -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        connection = await join(server, here)
        batch = bytes(i % 251 for i in range(size))
        sent = [
            append(batch),
            GetMetadata(1),
            Replicate(LogStreamID(1), Epoch(2), LLSN(3), Sequence(4), batch),
            Ping(9),
        ]
        for message in sent:
            connection.send(message)
        assert await there.received(4) == sent
        await server.close()

    run(main())


def test_a_link_finds_its_server_again() -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        link = Link(server.address, CLIENT, Role.STORAGE_NODE, SECRET, here)
        assert not link.send(Ping(1))
        link.open()
        await here.until(lambda: link.connected)
        assert link.send(Ping(1))
        await here.received(1)
        await server.close()
        await here.ended()
        assert not link.connected
        assert not link.send(Ping(2))
        server = await serve(there, address=server.address)
        await here.until(lambda: link.connected)
        assert link.send(Ping(3))
        assert await here.received(2) == [Pong(1, 0), Pong(3, 0)]
        link.close()
        await here.ended(2)
        await server.close()

    run(main())


def test_what_the_other_end_is_has_to_fit() -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        stranger = Identity(CLUSTER, Role.CLIENT)
        with pytest.raises(Exception, match="MANAGER"):
            await dial(server.address, stranger, Role.MANAGER, SECRET, here)
        assert not here.connections
        await server.close()

    run(main())
