"""Listening: where it cannot be done, how many are let in, and what happens at the end."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.wire.peers import CLIENT, CLUSTER, MEMBERS, NODE, SECRET, Recorder, Stranger, join, run, serve, until
from varlog import errors, limits
from varlog.wire import Identity, Ping, Pong, Role, Server, dial
from varlog.wire.endpoint import parse_address


def test_a_taken_port_is_told() -> None:
    async def main() -> None:
        server = await serve(Recorder())
        with pytest.raises(errors.CannotListen, match=f"{server.address} is taken by another process"):
            await serve(Recorder(), address=server.address)
        await server.close()
        again = await serve(Recorder(), address=server.address)
        await again.close()

    run(main())


def test_an_address_of_another_machine_is_told() -> None:
    async def main() -> None:
        with pytest.raises(errors.CannotListen, match="cannot listen"):
            await serve(Recorder(), address="192.0.2.1:0")

    run(main())


def test_an_address_that_is_none_is_told() -> None:
    async def main() -> None:
        with pytest.raises(errors.InvalidArgument):
            await serve(Recorder(), address="9091")

    run(main())


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
def test_it_can_be_reached_where_it_says(address: str) -> None:
    async def main() -> None:
        here = Recorder()
        server = await serve(Recorder(), address=address)
        connection = await join(server, here)
        connection.send(Ping(1))
        assert await here.received(1) == [Pong(1, 0)]
        assert connection.remote == server.address
        await server.close()

    run(main())


def test_closing_a_server_closes_its_connections() -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        await join(server, here)
        await join(server, here)
        async with await Stranger.to(server) as stranger:
            await stranger.say(b"\x05")
            await server.close()
            assert len(there.closed) == 2
            assert {error for _, error in there.closed} == {None}
            assert not server.connections
            assert await stranger.refused() is None
        assert isinstance(await here.ended(2), errors.ConnectionLost)
        with pytest.raises(errors.Unreachable, match="cannot connect"):
            await join(server, here)

    run(main())


def test_what_was_sent_before_a_server_closes_arrives() -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        await join(server, here)
        await there.until(lambda: len(there.connections) == 1)
        for number in range(100):
            there.connections[0].send(Pong(number, 0))
        await server.close()
        await here.ended()
        assert here.messages == [Pong(number, 0) for number in range(100)]

    run(main())


def test_the_oldest_unfinished_hello_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_HELLOS", 3)

    async def main() -> None:
        here = Recorder()
        server = await serve(Recorder())
        strangers = [await Stranger.to(server) for _ in range(3)]
        connection = await join(server, here)
        refused = await strangers[0].refused()
        assert refused is not None
        assert refused.code == errors.PeerStalled.code
        connection.send(Ping(1))
        await here.received(1)
        await strangers[1].greet()
        await strangers[2].greet()
        assert len(server.connections) == 3
        for stranger in strangers:
            stranger.leave()
        await server.close()

    run(main())


def test_who_is_to_hear_why_it_is_refused_gives_way_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for a little; that must not let strangers have more connections than others."""
    monkeypatch.setattr(limits, "MAX_HELLOS", 3)

    async def main() -> None:
        here = Recorder()
        server = await serve(Recorder())
        strangers = [socket.create_connection(parse_address(server.address)) for _ in range(3)]
        for stranger in strangers:
            stranger.sendall(bytes.fromhex("160301020001000100fc0303"))  # TLS, where there is none
        await until(lambda: len(server._greeting) == 3 and all(connection.closed for connection in server._greeting))
        await join(server, here)
        assert server.refusals == 1
        for stranger in strangers:
            stranger.close()
        await server.close()

    run(main())


def test_of_what_was_refused_nothing_is_kept_but_why() -> None:
    async def main() -> None:
        there = Recorder()
        server = await serve(there)
        async with await Stranger.to(server) as stranger:
            await stranger.greet()
            await stranger.say(bytes(64))
            error = await there.ended()
            assert isinstance(error, errors.ProtocolError)
            assert (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)
        await server.close()

    run(main())


def test_the_number_of_connections_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(limits, "RESERVED_CONNECTIONS", 0)

    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        first, second = await join(server, here), await join(server, here)
        with pytest.raises(errors.Busy, match="2 connections"):
            await join(server, here)
        first.close()
        await there.ended()
        third = await join(server, here)
        for connection in (second, third):
            connection.send(Ping(1))
        await here.received(2)
        await server.close()

    run(main())


@pytest.mark.parametrize("role", sorted(MEMBERS - {Role.CLIENT}))
def test_clients_in_crowds_keep_nobody_else_out(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 5)
    monkeypatch.setattr(limits, "RESERVED_CONNECTIONS", 3)

    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        first = await join(server, here)
        await join(server, here)
        for _ in range(3):
            with pytest.raises(errors.Busy, match="2 clients, and takes no more"):
                await join(server, here)
        assert len(there.connections) == 2, "nobody is told of those who were refused"
        for number in range(1, 4):
            await dial(server.address, Identity(CLUSTER, role, number), Role.STORAGE_NODE, SECRET, here)
        with pytest.raises(errors.Busy, match="5 connections"):
            await dial(server.address, Identity(CLUSTER, role, 4), Role.STORAGE_NODE, SECRET, here)
        first.close()
        await there.ended()
        third = await join(server, here)
        third.send(Ping(1))
        assert await here.received(1) == [Pong(1, 0)]
        await server.close()

    run(main())


def test_unfinished_hellos_do_not_take_what_is_reserved() -> None:
    assert limits.RESERVED_CONNECTIONS == 2 * limits.MAX_HELLOS


def test_only_the_roles_that_belong_are_let_in() -> None:
    async def main() -> None:
        server = await Server.start("127.0.0.1:0", NODE, MEMBERS - {Role.CLIENT}, SECRET, Recorder())
        with pytest.raises(errors.WrongRole, match="the dialer is CLIENT"):
            await dial(server.address, CLIENT, Role.STORAGE_NODE, SECRET, Recorder())
        for role in MEMBERS - {Role.CLIENT}:
            identity = Identity(CLUSTER, role, 3)
            connection = await dial(server.address, identity, Role.STORAGE_NODE, SECRET, Recorder())
            assert [each.peer for each in server.connections] == [identity]
            connection.close()
            await asyncio.gather(*(each.gone() for each in list(server.connections)))
        await server.close()

    run(main())


def test_strangers_who_come_in_crowds_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def main() -> None:
        server = await serve(Recorder())
        for nth in range(1, 51):
            async with await Stranger.to(server) as stranger:
                await stranger.say(b"GET / HTTP/1.1\r\n\r\n")
                assert await stranger.refused() is not None
            await until(lambda nth=nth: server.refusals == nth)  # type: ignore[misc]
        await server.close()

    run(main())
    told = [record.getMessage() for record in caplog.records if record.name == "varlog.wire.server"]
    assert len(told) == 21
    assert "(1 so far)" in told[0]
    assert "not all are told of" in told[-1]
