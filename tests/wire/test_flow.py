"""Peers that do not read, peers that stop half-way, and memory for large frames."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from tests.wire.peers import CLIENT, SECRET, Host, Recorder, Stranger, join, run, serve, turn, until
from varlog import errors, limits
from varlog.core.messages import Append, Message, ScanReply
from varlog.types import LLSN, Epoch, LogStreamID, Sequence
from varlog.wire import Connection, Ping, Pong, Role, catalogue, dial
from varlog.wire import connection as wire_connection
from varlog.wire.frames import ReceiveBudget
from varlog.wire.hot import HEADER_BYTES

MIB = limits.MIB


def append(number: int, size: int) -> Append:
    return Append(number, LogStreamID(2), Epoch(2), Sequence(0), LLSN(1), bytes(size))


class Generous(Recorder):
    """Answers a ping with much more than it asked for."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.most_buffered = 0
        self._gift = bytes(size)

    def answer(self, connection: Connection, message: Message) -> None:
        assert isinstance(message, Ping)
        line = (1, 1, 1, 2, 3, 4, self._gift)
        connection.send(ScanReply(message.request, LogStreamID(1), 0, (line,)))
        self.most_buffered = max(self.most_buffered, connection.buffered)


# Peers that do not read


def test_a_server_reads_no_more_of_a_peer_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory for that peer is bounded, nothing is lost, and all goes on when the peer reads again."""
    monkeypatch.setattr(limits, "CONNECTION_BUFFER_HIGH", 1 * MIB)
    pings = [Ping(number, bytes(limits.MAX_PING_BYTES)) for number in range(600)]

    async def main() -> None:
        there, here = Generous(64 << 10), Recorder()
        server = await serve(there)
        async with await Stranger.to(server) as greedy:
            await greedy.greet()
            saying = asyncio.ensure_future(greedy.say(*pings))
            await there.until(lambda: there.connections[0].buffered > 1 * MIB)
            assert len(there.messages) < len(pings)
            other = await join(server, here)
            other.send(Ping(7))
            await here.received(1)
            answers = [await greedy.hear() for _ in pings]
            await saying
        assert [answer.request for answer in answers if isinstance(answer, ScanReply)] == list(range(600))
        assert there.most_buffered < 8 * MIB
        await server.close()

    run(main())


def test_what_is_too_much_for_a_peer_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTION_BUFFER_HIGH", 1 * MIB)
    monkeypatch.setattr(limits, "CONNECTION_BUFFER_MAX", 4 * MIB)
    size = 100_000

    async def main() -> None:
        here = Recorder()
        host = await Host.start()
        dialed = asyncio.ensure_future(dial(host.address, CLIENT, Role.STORAGE_NODE, SECRET, here))
        guest = await host.guest()
        connection = await dialed
        sent = 0
        while connection.send(append(sent, size)):
            sent += 1
            await turn()
            assert connection.buffered <= 4 * MIB + size + HEADER_BYTES + 40
        assert connection.buffered > 4 * MIB
        assert not connection.send(Ping(1)), "small or large"
        for number in range(sent):
            assert await guest.hear() == append(number, size)
        await until(lambda: not connection.buffered)
        assert connection.send(Ping(2))
        assert await guest.hear() == Ping(2)
        connection.close()
        assert await guest.refused() is None
        guest.leave()
        host.close()

    run(main())


def test_a_dialer_goes_on_reading_while_its_server_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """If both waited for the other to read first, neither would ever go on."""
    monkeypatch.setattr(limits, "CONNECTION_BUFFER_HIGH", 1 * MIB)

    async def main() -> None:
        here = Recorder()
        host = await Host.start()
        dialed = asyncio.ensure_future(dial(host.address, CLIENT, Role.STORAGE_NODE, SECRET, here))
        guest = await host.guest()
        connection = await dialed
        for number in range(20):
            assert connection.send(append(number, 1 * MIB))
        await turn()
        assert connection.buffered > 2 * MIB
        await guest.say(*(Pong(number, 0) for number in range(100)))
        await here.received(100)
        assert connection.buffered > 2 * MIB
        for number in range(20):
            assert await guest.hear() == append(number, 1 * MIB)
        connection.close()
        guest.leave()
        host.close()

    run(main())


def test_a_peer_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTION_BUFFER_HIGH", 1 * MIB)
    monkeypatch.setattr(limits, "STALL_SECONDS", 0.05)

    async def main() -> None:
        there, here = Generous(1 * MIB), Recorder()
        server = await serve(there)
        other = await join(server, here)
        async with await Stranger.to(server) as greedy:
            await greedy.greet()
            await greedy.say(*(Ping(number) for number in range(40)))
            error = await there.ended()
            assert isinstance(error, errors.PeerStalled)
            assert "takes nothing" in str(error)
        other.send(Ping(1))
        await here.received(1)
        assert len(server.connections) == 1
        await server.close()

    run(main())


def test_closing_does_not_wait_for_ever_for_a_peer_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HELLO_SECONDS", 0.2)

    async def main() -> None:
        there = Generous(1 * MIB)
        server = await serve(there)
        async with await Stranger.to(server) as greedy:
            await greedy.greet()
            await greedy.say(*(Ping(number) for number in range(20)))
            await there.until(lambda: there.connections[0].buffered > 2 * MIB)
            await server.close()
            assert len(there.closed) == 1

    run(main())


# Peers that stop half-way


@pytest.mark.parametrize("size", [1000, 1 * MIB], ids=["small", "large"])
def test_a_frame_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(limits, "STALL_SECONDS", 0.05)
    budget = ReceiveBudget(8 * MIB)
    monkeypatch.setattr(wire_connection, "BUDGET", budget)

    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        other = await join(server, here)
        async with await Stranger.to(server) as slow:
            await slow.greet()
            await slow.say(catalogue.encode(append(1, size))[: size // 2])
            refused = await slow.refused()
            assert refused is not None
            assert refused.code == errors.PeerStalled.code
        assert isinstance(await there.ended(), errors.PeerStalled)
        assert budget.free == 8 * MIB
        other.send(Ping(1))
        assert await here.received(1) == [Pong(1, 0)], "a quiet connection is not a stalled one"
        await server.close()

    run(main())


def test_a_frame_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then is no progress."""
    monkeypatch.setattr(limits, "STALL_SECONDS", 0.1)

    async def main() -> None:
        there = Recorder()
        server = await serve(there)
        async with await Stranger.to(server) as slow:
            await slow.greet()
            frame = catalogue.encode(append(1, 1 * MIB))
            ended = asyncio.ensure_future(there.ended())
            for at in range(len(frame)):
                await slow.say(frame[at : at + 1])
                await asyncio.wait({ended}, timeout=0.005)
                if ended.done():
                    break
            assert isinstance(await ended, errors.PeerStalled)
        await server.close()

    run(main())


def test_a_peer_that_finishes_its_frame_in_time_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is told by a second peer, which stops for good later."""
    monkeypatch.setattr(limits, "STALL_SECONDS", 0.1)
    frame = catalogue.encode(Ping(1, bytes(1000)))

    async def main() -> None:
        there = Recorder()
        server = await serve(there)
        async with await Stranger.to(server) as slow, await Stranger.to(server) as clock:
            await slow.greet()
            await clock.greet()
            await slow.say(frame[:500])
            await slow.say(frame[500:])
            assert await slow.hear() == Pong(1, 1000)
            await clock.say(frame[:500])
            assert await clock.refused() is not None
            await slow.say(frame)
            assert await slow.hear() == Pong(1, 1000)
        await server.close()

    run(main())


# Large frames


def test_large_frames_wait_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = ReceiveBudget(5 * MIB)
    monkeypatch.setattr(wire_connection, "BUDGET", budget)
    monkeypatch.setattr(limits, "HURRY_SECONDS", 60.0)
    frame = catalogue.encode(append(1, 4 * MIB))

    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        strangers = [await Stranger.to(server) for _ in range(4)]
        for stranger in strangers:
            await stranger.greet()
        await strangers[0].say(frame[: 1 * MIB])
        await until(lambda: budget.free < 1 * MIB)
        saying = [asyncio.ensure_future(stranger.say(frame)) for stranger in strangers[1:]]
        other = await join(server, here)
        other.send(append(2, 100_000))
        await there.received(1)
        assert sum(each.held for each in server.connections) <= 5 * limits.RECEIVE_BUFFER_BYTES + 4 * MIB + 40
        strangers[1].leave()
        await strangers[0].say(frame[1 * MIB :])
        await there.received(4)
        assert [message.request for message in there.messages if isinstance(message, Append)] == [2, 1, 1, 1]
        assert budget.free == 5 * MIB
        await asyncio.gather(*saying, return_exceptions=True)
        for stranger in strangers:
            stranger.leave()
        await server.close()

    run(main())


LARGE = catalogue.encode(append(1, 4 * MIB))

Act = Callable[[Stranger, Connection, Recorder], Awaitable[None]]


def while_another_waits(monkeypatch: pytest.MonkeyPatch, act: Act) -> None:
    """`act` with who has begun a large frame, its connection, and what arrives; another waits to send one."""
    monkeypatch.setattr(wire_connection, "BUDGET", ReceiveBudget(5 * MIB))

    async def main() -> None:
        there = Recorder()
        server = await serve(there)
        first, second = await Stranger.to(server), await Stranger.to(server)
        for stranger in (first, second):
            await stranger.greet()
        await first.say(LARGE[: 1 * MIB])
        await until(lambda: any(each._borrowed for each in server.connections))
        (holder,) = [each for each in server.connections if each._borrowed]
        saying = asyncio.ensure_future(second.say(LARGE))
        await act(first, holder, there)
        await saying
        first.leave()
        second.leave()
        await server.close()

    run(main())


def test_who_sends_a_large_frame_slowly_does_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dawdle(slow: Stranger, _holder: Connection, there: Recorder) -> None:
        assert "too slowly while others wait" in str(await slow.refused())
        await there.received(1)

    monkeypatch.setattr(limits, "HURRY_SECONDS", 0.2)
    while_another_waits(monkeypatch, dawdle)


def test_who_sends_a_large_frame_quickly_enough_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go_on(first: Stranger, holder: Connection, there: Recorder) -> None:
        await until(lambda: holder._hurry is not None)
        for part in (LARGE[1 * MIB : 2 * MIB], LARGE[2 * MIB : 3 * MIB]):
            looked_at = holder._hurry
            await first.say(part)
            await until(partial(lambda before: holder._hurry not in {None, before}, looked_at))
        await first.say(LARGE[3 * MIB :])
        await there.received(2)

    monkeypatch.setattr(limits, "HURRY_SECONDS", 0.5)
    monkeypatch.setattr(limits, "HURRY_BYTES", 1)
    while_another_waits(monkeypatch, go_on)
