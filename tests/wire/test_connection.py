"""Connections between two real sockets, and what a misbehaving peer or receiver does to the others: nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.wire.made import frame, resealed
from tests.wire.peers import CLIENT, NODE, SECRET, Host, Recorder, Stranger, join, run, serve
from varlog import errors, limits
from varlog.core.messages import Append, CreateTopic, GetMetadata, Message, Replicate, ScanReply, Seal
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, Sequence
from varlog.wire import Connection, Ping, Pong, Role, catalogue, dial
from varlog.wire.frames import BUDGET
from varlog.wire.hello import Hello, Proof, Ready, Refused, Welcome


def append(batch: bytes) -> Append:
    return Append(1, LogStreamID(2), Epoch(2), Sequence(0), LLSN(1), batch)


@pytest.mark.parametrize("run_on", [run, asyncio.run], ids=["uvloop", "asyncio"])
def test_messages_arrive_in_order(run_on: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        connection = await join(server, here)
        for number in range(1000):
            assert connection.send(Ping(number, b"x" * (number % 300)))
        assert await here.received(1000) == [Pong(number, number % 300) for number in range(1000)]
        assert there.connections[0].peer == CLIENT
        assert connection.peer == NODE
        await server.close()

    run_on(main())


@pytest.mark.parametrize("run_on", [run, asyncio.run], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("size", [0, 16 << 10, (16 << 10) + 1, 100_000, (256 << 10) - 48, 256 << 10, 5 << 20])
def test_batches_of_every_size_arrive(run_on: Callable[[Coroutine[Any, Any, None]], None], size: int) -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        connection = await join(server, here)
        batch = random.Random(size).randbytes(size)
        line = (1, 2, 3, 4, 5, 6, batch)
        runs = [
            Replicate(LogStreamID(1), Epoch(2), LLSN(3), tuple(map(Sequence, range(count))), (batch,) * count)
            for count in (1, 3)
        ]
        replies = [ScanReply(number, LogStreamID(1), 0, (line,) * number) for number in (1, 2)]
        sent: list[Message] = [append(batch), GetMetadata(1), *runs, *replies, Ping(9)]
        for message in sent:
            connection.send(message)
        assert await there.received(len(sent)) == sent
        await server.close()
        assert BUDGET.free == limits.RECEIVE_BYTES_IN_ALL

    run_on(main())


def test_many_pieces_go_out_in_order() -> None:
    """More than the kernel gathers in one call, and more than it takes at once."""

    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        connection = await join(server, here)
        drawn = random.Random(1)
        lines = [(number, 1, 1, 2, 3, 4, drawn.randbytes(drawn.choice([10, 5000, 20_000]))) for number in range(1500)]
        sent = [ScanReply(1, LogStreamID(1), 0, tuple(lines)), Ping(1), ScanReply(2, LogStreamID(1), 0, tuple(lines))]
        for message in sent:
            connection.send(message)
        assert await there.received(3) == sent
        await server.close()

    run(main())


def test_a_turn_ends_after_all_messages_of_a_read() -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        connection = await join(server, here)
        for number in range(100):
            connection.send(Ping(number))
        await here.received(100)
        assert there.turns == [(there.connections[0], 100)], "sent in one turn, one read"
        assert {each for each, _ in here.turns} == {connection}
        assert here.turns[-1][1] == 100
        await server.close()

    run(main())


def test_flush_hands_over_at_once() -> None:
    """For use before a call that blocks the loop: the kernel has it when this returns."""

    async def main() -> None:
        here = Recorder()
        host = await Host.start()
        dialed = asyncio.ensure_future(dial(host.address, CLIENT, Role.STORAGE_NODE, SECRET, here))
        guest = await host.guest()
        connection = await dialed
        connection.send(Ping(1))
        assert connection.buffered == 20
        connection.flush()
        assert connection.buffered == 0
        assert await guest.hear() == Ping(1)
        connection.flush()
        connection.close()
        guest.leave()
        host.close()

    run(main())


@pytest.mark.parametrize(
    "message",
    [Ping(-1), Ping(1 << 64), GetMetadata(1 << 64), CreateTopic(1, "\udc80", 3, 2), Ping(1, bytes(1 << 20))],
    ids=["negative", "too large", "too large for msgpack", "no text", "too long"],
)
def test_what_cannot_be_said_in_bytes_is_refused_here(message: Message) -> None:
    async def main() -> None:
        here = Recorder()
        server = await serve(Recorder())
        connection = await join(server, here)
        with pytest.raises((errors.InvalidArgument, errors.BatchTooLarge)):
            connection.send(message)
        assert connection.buffered == 0
        connection.send(Ping(2))
        assert await here.received(1) == [Pong(2, 0)]
        await server.close()

    run(main())


def test_closing_sends_what_was_queued_and_nothing_after() -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        connection = await join(server, here)
        for _ in range(50):
            connection.send(append(bytes(100_000)))
        connection.close()
        connection.close(errors.Busy("a second time changes nothing"))
        assert connection.closed
        assert not connection.send(Ping(1))
        assert len(await there.received(50)) == 50
        assert isinstance(await there.ended(), errors.ConnectionLost)
        assert await here.ended() is None
        assert (connection.buffered, connection.held) == (0, 0)
        assert not connection.send(Ping(1))
        await server.close()
        assert (len(here.closed), len(there.closed)) == (1, 1)

    run(main())


def test_closing_with_an_error_tells_the_peer() -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        connection = await join(server, here)
        connection.close(errors.Conflict("not like this"))
        assert repr(await there.ended()) == "Conflict('not like this')"
        assert repr(await here.ended()) == "Conflict('not like this')"
        await server.close()

    run(main())


class Strict(Recorder):
    """Takes pings and nothing else."""

    def __init__(self, raises: Exception) -> None:
        super().__init__()
        self._raises = raises

    def answer(self, connection: Connection, message: Message) -> None:
        if not isinstance(message, Ping):
            raise self._raises
        super().answer(connection, message)


def test_a_receiver_can_refuse_a_message() -> None:
    async def main() -> None:
        there, here, other = Strict(errors.ProtocolError("pings only")), Recorder(), Recorder()
        server = await serve(there)
        connection, undisturbed = await join(server, here), await join(server, other)
        for message in (Ping(1), GetMetadata(1), Ping(2)):
            connection.send(message)
        assert repr(await here.ended()) == "ProtocolError('pings only')"
        assert here.messages == [Pong(1, 0)]
        assert there.messages == [Ping(1), GetMetadata(1)], "nothing is handed over after that"
        undisturbed.send(Ping(3))
        assert await other.received(1) == [Pong(3, 0)]
        await server.close()

    run(main())


def test_a_mistake_in_a_receiver_costs_one_connection() -> None:
    async def main() -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        there, here, other = Strict(ZeroDivisionError("a mistake")), Recorder(), Recorder()
        server = await serve(there)
        connection, undisturbed = await join(server, here), await join(server, other)
        connection.send(GetMetadata(1))
        assert isinstance(await here.ended(), errors.ConnectionLost)
        assert isinstance(await there.ended(), errors.ConnectionLost)
        undisturbed.send(Ping(3))
        assert await other.received(1) == [Pong(3, 0)]
        assert [repr(each["exception"]) for each in complaints] == ["ZeroDivisionError('a mistake')"]
        await server.close()

    run(main())


GREETING = [Hello(1, 7, 1, 0, bytes(32)), Welcome(1, 7, 2, 5, bytes(32), bytes(32)), Proof(bytes(32)), Ready()]


@pytest.mark.parametrize(
    "said",
    [
        b"\xff" * 100,
        bytes(12),
        b"GET / HTTP/1.1\r\n\r\n",
        catalogue.encode(Seal(1, LogStreamID(1), Epoch(1), LLSN(1), GLSN(0)))[:-1] + b"\x01",
        resealed(catalogue.encode(Seal(1, LogStreamID(1), Epoch(1), LLSN(1), GLSN(0)))[:-1] + b"\xc1"),
        frame(catalogue.NUMBERS[Append], b"", length=(1 << 32) - 1),
        frame(catalogue.NUMBERS[GetMetadata], b"\x91\x01", length=limits.MAX_CONTROL_BYTES + 1),
        *map(catalogue.encode, GREETING),
    ],
)
def test_one_that_talks_nonsense_disturbs_nobody(said: bytes) -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        undisturbed = await join(server, here)
        async with await Stranger.to(server) as stranger:
            await stranger.greet()
            await stranger.say(Ping(1), said)
            assert await stranger.hear() == Pong(1, 0)
            refused = await stranger.refused()
            assert isinstance(refused, Refused)
            assert refused.code == errors.ProtocolError.code
        assert isinstance(await there.ended(), errors.ProtocolError)
        undisturbed.send(Ping(2))
        assert await here.received(1) == [Pong(2, 0)]
        assert sum(each.held for each in server.connections) == limits.RECEIVE_BUFFER_BYTES
        assert BUDGET.free == limits.RECEIVE_BYTES_IN_ALL
        await server.close()

    run(main())


def test_a_server_that_talks_nonsense_is_left() -> None:
    async def main() -> None:
        here = Recorder()
        host = await Host.start()
        dialed = asyncio.ensure_future(dial(host.address, CLIENT, Role.STORAGE_NODE, SECRET, here))
        guest = await host.guest()
        connection = await dialed
        await guest.say(Pong(1, 2), b"\xff" * 100)
        assert isinstance(await here.ended(), errors.ProtocolError)
        assert (here.messages, connection.closed) == ([Pong(1, 2)], True)
        guest.leave()
        host.close()

    run(main())


def test_a_connection_cut_in_the_middle_of_a_frame_is_lost() -> None:
    async def main() -> None:
        there = Recorder()
        server = await serve(there)
        for size in (100, 1 << 20):
            stranger = await Stranger.to(server)
            await stranger.greet()
            await stranger.say(Ping(1), catalogue.encode(append(bytes(size)))[:-50])
            await stranger.hear()
            stranger.leave()
        await there.until(lambda: len(there.closed) == 2)
        assert {type(error) for _, error in there.closed} == {errors.ConnectionLost}
        assert there.messages == [Ping(1), Ping(1)]
        assert BUDGET.free == limits.RECEIVE_BYTES_IN_ALL
        await server.close()

    run(main())
