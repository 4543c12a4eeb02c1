"""The open connections of a daemon, by name; over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.wire.peers import CLUSTER, SECRET, Recorder, run, serve
from varlog.core.address import METADATA_REPOSITORY
from varlog.core.messages import GetMetadata
from varlog.daemon.peers import Peers, answers_ping
from varlog.wire import Connection, Identity, Ping, Pong, Role, Server, dial


class Lobby(Recorder):
    """Knows everybody who is there."""

    def __init__(self) -> None:
        super().__init__()
        self.peers = Peers()
        self.names: list[str] = []
        self.left: list[str | None] = []

    def on_connected(self, connection: Connection) -> None:
        self.names.append(self.peers.admit(connection))
        super().on_connected(connection)

    def on_closed(self, connection: Connection, error: Exception | None) -> None:
        self.left.append(self.peers.drop(connection))
        super().on_closed(connection, error)  # type: ignore[arg-type]


@asynccontextmanager
async def lobby() -> AsyncIterator[tuple[Lobby, Server]]:
    there = Lobby()
    server = await serve(there)
    try:
        yield there, server
    finally:
        await server.close()


async def enter(there: Lobby, server: Server, role: Role, node_id: int = 0) -> tuple[Connection, Recorder]:
    """Connect; returns when the other side knows."""
    here, before = Recorder(), len(there.names)
    connection = await dial(server.address, Identity(CLUSTER, role, node_id), Role.STORAGE_NODE, SECRET, here)
    await there.until(lambda: len(there.names) > before)
    return connection, here


def test_everybody_has_a_name() -> None:
    async def main() -> None:
        async with lobby() as (there, server):
            for role, node_id in (
                (Role.STORAGE_NODE, 8),
                (Role.METADATA_REPOSITORY, 0),
                (Role.CLIENT, 0),
                (Role.MANAGER, 0),
                (Role.CLIENT, 0),
            ):
                await enter(there, server, role, node_id)
            assert there.names == ["sn/8", "mr/1", "guest/2", "guest/3", "guest/4"]
            assert len(there.peers) == 5
            for connection, name in zip(there.connections, there.names, strict=True):
                assert there.peers.name(connection) == name
                assert there.peers.at(name) is connection

    run(main())


def test_one_of_the_metadata_repositories_is_the_one_that_is_followed() -> None:
    async def main() -> None:
        async with lobby() as (there, server):
            older, newer = [await enter(there, server, Role.METADATA_REPOSITORY) for _ in range(2)]
            assert not there.peers.send(METADATA_REPOSITORY, GetMetadata(1)), "nobody is yet"
            there.peers.follow(there.connections[0])
            assert there.peers.send(METADATA_REPOSITORY, GetMetadata(2))
            assert await older[1].received(1) == [GetMetadata(2)]
            there.peers.follow(there.connections[1])
            assert there.peers.send(METADATA_REPOSITORY, GetMetadata(3))
            assert await newer[1].received(1) == [GetMetadata(3)]
            older[0].close()
            await there.ended(1)
            assert there.peers.at(METADATA_REPOSITORY) is there.connections[1]
            newer[0].close()
            await there.ended(2)
            assert there.peers.at(METADATA_REPOSITORY) is None
            there.peers.follow(None)

    run(main())


def test_a_message_goes_to_whoever_has_the_name_or_to_nobody() -> None:
    async def main() -> None:
        async with lobby() as (there, server):
            guest, heard = await enter(there, server, Role.CLIENT)
            assert there.peers.send("guest/1", GetMetadata(1))
            assert await heard.received(1) == [GetMetadata(1)]
            assert not there.peers.send("sn/8", GetMetadata(2))
            guest.close()
            await there.ended()
            assert not there.peers.send("guest/1", GetMetadata(3))
            await enter(there, server, Role.CLIENT)
            assert there.names[-1] == "guest/2", "a guest's name is not given again"
            assert not there.peers.send("guest/1", GetMetadata(4))

    run(main())


@pytest.mark.parametrize("first_to_go", ["older", "newer"])
def test_of_two_connections_to_one_node_the_newer_one_is_used(first_to_go: str) -> None:
    async def main() -> None:
        async with lobby() as (there, server):
            older, newer = [await enter(there, server, Role.STORAGE_NODE, 8) for _ in range(2)]
            assert there.peers.send("sn/8", GetMetadata(1))
            assert await newer[1].received(1) == [GetMetadata(1)]
            assert not older[1].messages
            going, staying = (older, newer) if first_to_go == "older" else (newer, older)
            going[0].close()
            await there.ended(1)
            assert there.left == [None], "somebody of that name is still there"
            before = len(staying[1].messages)
            assert there.peers.send("sn/8", GetMetadata(2))
            assert (await staying[1].received(before + 1))[-1] == GetMetadata(2)
            staying[0].close()
            await there.ended(2)
            assert there.left == [None, "sn/8"]
            assert len(there.peers) == 0
            assert there.peers.at("sn/8") is None

    run(main())


def test_what_is_held_is_sent_when_it_is_released_and_what_is_urgent_before() -> None:
    async def main() -> None:
        async with lobby() as (there, server):
            _, here = await enter(there, server, Role.STORAGE_NODE, 8)
            there.peers.hold()
            assert there.peers.send("sn/8", GetMetadata(1))
            connection = there.peers.at("sn/8")
            assert connection is not None
            assert connection.buffered > 0
            assert there.peers.send_now("sn/8", GetMetadata(2))
            assert not there.peers.send_now("sn/9", GetMetadata(2))
            assert await here.received(2) == [GetMetadata(1), GetMetadata(2)], "in order"
            assert connection.buffered == 0
            assert there.peers.send("sn/8", GetMetadata(3))
            there.peers.release()
            assert (await here.received(3))[-1] == GetMetadata(3)
            assert there.peers.send("sn/8", GetMetadata(4))
            assert (await here.received(4))[-1] == GetMetadata(4)

    run(main())


def test_what_was_never_admitted_is_dropped_by_nobody() -> None:
    async def main() -> None:
        async with lobby() as (there, server):
            connection, _ = await enter(there, server, Role.CLIENT)
            assert Peers().drop(connection) is None

    run(main())


def test_all_are_closed_at_once() -> None:
    async def main() -> None:
        async with lobby() as (there, server):
            entered = [await enter(there, server, Role.CLIENT) for _ in range(3)]
            there.peers.close()
            assert not there.peers.send("guest/1", GetMetadata(1))
            for _, heard in entered:
                await heard.ended()
            await there.ended(3)
            assert len(there.peers) == 0

    run(main())


def test_a_ping_is_answered_and_nothing_else_is_a_ping() -> None:
    async def main() -> None:
        async with lobby() as (there, server):
            _, heard = await enter(there, server, Role.CLIENT)
            assert answers_ping(there.connections[0], Ping(5, b"x"))
            assert not answers_ping(there.connections[0], GetMetadata(6))
            (pong,) = await heard.received(1)
            assert isinstance(pong, Pong)
            assert pong.request == 5
            assert pong.time > 1_700_000_000_000_000

    run(main())
