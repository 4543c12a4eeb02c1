"""Connecting once, and staying connected."""

from __future__ import annotations

import asyncio

import pytest

from tests.wire.peers import CLIENT, NODE, SECRET, Host, Recorder, join, run, serve, turn, until
from varlog import errors
from varlog.wire import Connection, Link, Ping, Pong, Role, Secret, Server, dial

OTHER = Secret(b"another secret, as long as it must be")


def link_to(server: Server, receiver: Recorder, secret: Secret = SECRET) -> Link:
    return Link(server.address, CLIENT, Role.STORAGE_NODE, secret, receiver)


def present(link: Link) -> tuple[bool, Connection | None, type[errors.VarlogError] | None]:
    return link.connected, link.connection, None if link.error is None else type(link.error)


def test_a_link_finds_its_server_again_and_again() -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        link = link_to(server, here)
        assert not link.send(Ping(0))
        link.open()
        for number in range(1, 4):
            await here.until(lambda: link.connected)
            assert present(link) == (True, here.connections[-1], None)
            assert link.send(Ping(number))
            await here.received(number)
            await server.close()
            await here.ended(number)
            assert present(link) == (False, None, errors.ConnectionLost)
            assert not link.send(Ping(0))
            server = await serve(there, address=server.address)
        link.close()
        await server.close()
        assert here.messages == [Pong(1, 0), Pong(2, 0), Pong(3, 0)]

    run(main())


def test_a_link_waits_for_its_server() -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        await server.close()
        link = link_to(server, here)
        link.open()
        with pytest.raises(errors.Unreachable, match="cannot connect"):
            await join(server, here)
        await until(lambda: link.error is not None)
        assert isinstance(link.error, errors.Unreachable)
        server = await serve(there, address=server.address)
        await here.until(lambda: link.connected)
        link.close()
        await here.ended()
        assert not link.connected
        await server.close()

    run(main())


class Patient(Link):
    """Would wait for an hour before it dials again."""

    first_wait = longest_wait = 3600.0


def test_a_link_waits_no_longer_when_it_is_told_to_hasten() -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        link = Patient(server.address, CLIENT, Role.STORAGE_NODE, SECRET, here)
        await server.close()
        link.open()
        for number in range(1, 3):
            await until(lambda: link.error is not None)
            server = await serve(there, address=server.address)
            link.hasten()
            await here.until(lambda: link.connected)
            link.hasten()  # which changes nothing
            await server.close()
            await here.ended(number)
        link.close()

    run(main())


class Eager(Recorder):
    """Sends through the link as soon as it is told of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.link: Link
        self.sent: list[bool] = []
        self.connected_at_the_end: list[bool] = []

    def on_connected(self, connection: Connection) -> None:
        super().on_connected(connection)
        self.sent.append(self.link.send(Ping(1)))

    def on_closed(self, connection: Connection, error: errors.VarlogError | None) -> None:
        self.connected_at_the_end.append(self.link.connected)
        super().on_closed(connection, error)


def test_a_link_can_be_used_as_soon_as_its_receiver_knows() -> None:
    async def main() -> None:
        here = Eager()
        server = await serve(Recorder())
        here.link = link_to(server, here)
        here.link.open()
        await here.received(1)
        await server.close()
        await here.ended()
        here.link.close()
        assert (here.sent, here.connected_at_the_end) == ([True], [False])

    run(main())


def test_a_link_tells_why_it_is_refused_and_goes_on_trying() -> None:
    async def main() -> None:
        server = await serve(Recorder())
        here = Recorder()
        link = link_to(server, here, OTHER)
        link.open()
        await until(lambda: server.refusals == 3)
        assert isinstance(link.error, errors.WrongSecret)
        link.close()
        await server.close()
        assert not here.connections

    run(main())


def test_a_closed_link_stays_closed() -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        link = link_to(server, here)
        link.close()
        link.open()
        link.open()
        await here.until(lambda: link.connected)
        link.close()
        link.close()
        assert await here.ended() is None
        await there.ended()
        assert (len(here.connections), len(there.connections)) == (1, 1)
        await server.close()

    run(main())


def test_a_link_can_be_closed_while_it_dials() -> None:
    async def main() -> None:
        here = Recorder()
        host = await Host.start()
        link = Link(host.address, CLIENT, Role.STORAGE_NODE, SECRET, here)
        link.open()
        guest = await host.stranger()
        link.close()
        assert await guest.refused() is None
        guest.leave()
        host.close()
        assert not here.connections

    run(main())


def test_an_address_that_is_none_is_told_at_once() -> None:
    async def main() -> None:
        with pytest.raises(errors.InvalidArgument, match="is not an address"):
            Link("nowhere", CLIENT, Role.STORAGE_NODE, SECRET, Recorder()).open()

    run(main())


def test_a_server_that_is_gone_before_the_hello_is_unreachable() -> None:
    async def main() -> None:
        host = await Host.start()
        dialed = asyncio.ensure_future(dial(host.address, CLIENT, Role.STORAGE_NODE, SECRET, Recorder()))
        guest = await host.stranger()
        guest.leave()
        with pytest.raises(errors.Unreachable, match="before the hello was done"):
            await dialed
        host.close()

    run(main())


@pytest.mark.parametrize("turns", range(12))
def test_dialing_can_be_cancelled_at_any_moment(turns: int) -> None:
    """Nothing is left behind: the server sees the connection end, and the receiver hears of both or of neither."""

    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there, NODE)
        dialed = asyncio.ensure_future(join(server, here))
        for _ in range(turns):
            await turn()
        if dialed.cancel():
            with pytest.raises(asyncio.CancelledError):
                await dialed
        else:
            (await dialed).close()
        await here.until(lambda: len(here.closed) == len(here.connections))
        await server.close()
        assert len(there.closed) == len(there.connections)
        assert not server.connections

    run(main())
