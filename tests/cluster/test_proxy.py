"""The breaking proxy, between plain sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.cluster.proxy import BreakingProxy, Direction

SECONDS = 10.0


class Echo:
    """A server that sends back what it gets, and knows how each connection to it ended."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.ends: asyncio.Queue[BaseException | None] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end: BaseException | None = None
        try:
            while data := await reader.read(1 << 16):
                self.received += data
                writer.write(data)
                await writer.drain()
        except OSError as e:
            end = e
        writer.close()
        self.ends.put_nowait(end)


class Between:
    """An echo server, a proxy before it, and connections through it."""

    def __init__(self, echo: Echo, proxy: BreakingProxy) -> None:
        self.echo = echo
        self.proxy = proxy
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.proxy.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)


@asynccontextmanager
async def between() -> AsyncIterator[Between]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with BreakingProxy(f"127.0.0.1:{port}") as proxy:
        await proxy.heal()
        rig = Between(echo, proxy)
        yield rig
        await rig.close()
    server.close()
    await server.wait_closed()


def run(test: Callable[[Between], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(3 * SECONDS), between() as rig:
            await test(rig)

    asyncio.run(whole())


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> None:
    async def send() -> None:
        writer.write(data)
        await writer.drain()

    sending = asyncio.create_task(send())
    assert await reader.readexactly(len(data)) == data
    await sending


async def is_reset(reader: asyncio.StreamReader) -> bool:
    try:
        await reader.read()
    except ConnectionResetError:
        return True
    return False


def test_it_carries_bytes_and_ends_both_ways() -> None:
    async def test(rig: Between) -> None:
        first, second = await rig.connect(), await rig.connect()
        await asyncio.gather(exchange(*first, bytes(range(256)) * 40_000), exchange(*second, b"small"))
        assert rig.proxy.connections == rig.proxy.accepted == 2
        first[1].write(b"last words")
        first[1].write_eof()
        assert await first[0].read() == b"last words", "what was under way arrives, then the end does"
        assert await rig.echo.ends.get() is None
        await rig.proxy.wait_until(lambda: rig.proxy.connections == 1)
        await exchange(*second, b"still there")

    run(test)


def test_cut_resets_both_sides_and_lets_new_connections_in() -> None:
    async def test(rig: Between) -> None:
        first, second = await rig.connect(), await rig.connect()
        await exchange(*first, b"a")
        await exchange(*second, b"b")
        rig.proxy.cut()
        assert await is_reset(first[0])
        assert await is_reset(second[0])
        for _ in range(2):
            assert isinstance(await rig.echo.ends.get(), ConnectionResetError)
        await rig.proxy.wait_until(lambda: rig.proxy.connections == 0)
        await exchange(*await rig.connect(), b"new")

    run(test)


def test_refuse_is_a_closed_port_and_spares_what_is_open() -> None:
    async def test(rig: Between) -> None:
        first = await rig.connect()
        await exchange(*first, b"a")
        rig.proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await rig.connect()
        await exchange(*first, b"b")
        await rig.proxy.heal()
        await exchange(*await rig.connect(), b"new")

    run(test)


def test_a_target_that_is_not_there_looks_like_a_reset() -> None:
    async def test(rig: Between) -> None:
        there = rig.proxy.target
        async with BreakingProxy("127.0.0.1:0") as closed:
            rig.proxy.target = closed.address
            reader, _ = await rig.connect()
            assert await is_reset(reader)
            rig.proxy.target = there
            await exchange(*await rig.connect(), b"found")

    run(test)


def test_block_holds_everything_back_until_it_is_healed() -> None:
    async def test(rig: Between) -> None:
        first = await rig.connect()
        await exchange(*first, b"a")
        rig.proxy.block()
        second = await rig.connect()
        first[1].write(b"one")
        second[1].write(b"two")
        for reader, _ in (first, second):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.1)
        assert rig.echo.received == b"a"
        await rig.proxy.heal()
        assert await first[0].readexactly(3) == b"one"
        assert await second[0].readexactly(3) == b"two"

    run(test)


def test_block_of_one_direction_lets_the_other_through() -> None:
    async def test(rig: Between) -> None:
        reader, writer = await rig.connect()
        await exchange(reader, writer, b"a")
        rig.proxy.block(Direction.FROM_TARGET)
        writer.write(b"heard")
        await rig.proxy.wait_until(lambda: rig.proxy.carried(Direction.TO_TARGET) == 6)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        assert rig.echo.received == b"aheard"
        await rig.proxy.heal()
        assert await reader.readexactly(5) == b"heard"

    run(test)


def test_a_blocked_sender_has_to_wait_and_memory_stays_bounded() -> None:
    async def test(rig: Between) -> None:
        reader, writer = await rig.connect()
        await exchange(reader, writer, b"a")
        rig.proxy.block(Direction.TO_TARGET)
        data = bytes(64 << 20)
        writer.write(data)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 0.2)
        assert rig.proxy.carried(Direction.TO_TARGET) == 1
        rig.proxy.cut()
        assert await is_reset(reader)

    run(test)


def test_delay_adds_to_each_way_and_not_to_each_chunk() -> None:
    async def test(rig: Between) -> None:
        reader, writer = await rig.connect()
        await exchange(reader, writer, b"a")
        rig.proxy.delay(0.1)
        begun = asyncio.get_running_loop().time()
        await exchange(reader, writer, bytes(1 << 20))
        took = asyncio.get_running_loop().time() - begun
        assert 0.2 <= took < 1.6, "one megabyte is sixteen chunks each way"

    run(test)


def test_throttle_carries_so_much_and_no_more() -> None:
    async def test(rig: Between) -> None:
        reader, writer = await rig.connect()
        await exchange(reader, writer, b"a")
        rig.proxy.throttle(100_000, Direction.TO_TARGET)
        begun = asyncio.get_running_loop().time()
        await exchange(reader, writer, bytes(30_000))
        took = asyncio.get_running_loop().time() - begun
        assert 0.2 <= took < 3.0

    run(test)


def test_corrupt_flips_one_bit_once() -> None:
    async def test(rig: Between) -> None:
        reader, writer = await rig.connect()
        rig.proxy.corrupt(Direction.FROM_TARGET, after=6)
        writer.write(b"12345")
        assert await reader.readexactly(5) == b"12345"
        writer.write(b"12345")
        assert await reader.readexactly(5) == b"13345"
        await exchange(reader, writer, b"12345" * 100)
        assert rig.echo.received.startswith(b"1234512345")

    run(test)


def test_truncate_ends_the_connection_amid_what_it_carries() -> None:
    async def test(rig: Between) -> None:
        reader, writer = await rig.connect()
        rig.proxy.truncate(Direction.FROM_TARGET, after=3)
        writer.write(b"12345")
        assert await reader.read() == b"123"
        await rig.echo.ends.get()
        await exchange(*await rig.connect(), b"12345")

    run(test)


def test_heal_takes_back_what_has_not_struck_yet() -> None:
    async def test(rig: Between) -> None:
        reader, writer = await rig.connect()
        rig.proxy.corrupt(Direction.TO_TARGET, after=2)
        rig.proxy.truncate(Direction.FROM_TARGET, after=2)
        rig.proxy.throttle(1.0)
        rig.proxy.delay(SECONDS)
        await rig.proxy.heal()
        await exchange(reader, writer, b"12345")

    run(test)
