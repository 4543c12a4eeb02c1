"""A TCP proxy that breaks: what lies between two processes, in the hands of a test.

`BreakingProxy` listens on a loopback port of its own and carries every connection to its target. At any time a test may

- `cut` all connections with a reset, or `refuse` new ones, as the kernel of a machine does whose server has died;
- `block` one or both directions: connections stay open, new ones are accepted, and nothing arrives. The bytes are not
  lost but wait, as TCP's do when packets are: after `heal` they go on in order;
- `delay` what is carried, or `throttle` it to so many bytes per second;
- `corrupt` one byte, or `truncate` a connection, after so many more bytes have passed;
- have an `Inspector` look at what passes, and reset a connection in place of something it is looking for;
- `heal` all of it. Connections that are still open go on.

It lives in the event loop of the test, so between two awaits of the test nothing moves.

What always holds: the bytes of one direction arrive in order and once, save the one byte `corrupt` was asked for; and
when one side of a connection ends, so does the other, but not before what was under way has arrived.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol, Self

from tests.cluster.waiting import pause

CHUNK_BYTES: Final = 1 << 16
CHUNKS_UNDER_WAY: Final = 64
"""How much a direction holds before its sender has to wait."""
RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER on, for no time: closing such a socket resets its connection."""


class Direction(Enum):
    TO_TARGET = "to the target"
    FROM_TARGET = "from the target"


BOTH: Final = (Direction.TO_TARGET, Direction.FROM_TARGET)


class Inspector(Protocol):
    """Looks at what one connection carries, in pieces of any size."""

    def passes(self, direction: Direction, data: bytes) -> bool:
        """Whether these bytes go on. If not, the connection is reset in their place."""


@dataclass
class _Strike:
    """A fault that waits until so many more bytes have passed, and then happens once."""

    after: int
    corrupts: bool
    """One byte; otherwise it truncates."""


@dataclass
class _Flow:
    """The condition of one direction, for all connections."""

    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    delay: float = 0.0
    rate: float | None = None
    strike: _Strike | None = None
    carried: int = 0

    def heal(self) -> None:
        self.is_open.set()
        self.delay, self.rate, self.strike = 0.0, None, None

    @property
    def chunk_bytes(self) -> int:
        """A throttled direction carries a fiftieth of a second's worth at a time."""
        return CHUNK_BYTES if self.rate is None else max(1, min(CHUNK_BYTES, int(self.rate / 50)))

    def struck(self, data: bytes) -> tuple[bytes, bool]:
        """What is left of these bytes as they pass, and whether the connection ends behind them."""
        strike = self.strike
        if strike is None:
            return data, False
        if strike.after >= len(data):
            strike.after -= len(data)
            return data, False
        self.strike = None
        if not strike.corrupts:
            return data[: strike.after], True
        damaged = bytearray(data)
        damaged[strike.after] ^= 1
        return bytes(damaged), False


class BreakingProxy:
    """See the module's text. Made by `start`."""

    def __init__(self, target: str) -> None:
        self.target = target
        """Where connections go; one that is made later goes where this points then."""
        self.accepted = 0
        """How many connections there have been."""
        self.inspect: Callable[[], Inspector] | None = None
        """Makes the inspector of each connection from now on."""
        self._flows = {direction: _Flow() for direction in BOTH}
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._server: asyncio.Server | None = None
        self._holder = _bound("127.0.0.1:0")
        """Keeps the port also while nobody listens on it."""
        self.address = "{}:{}".format(*self._holder.getsockname())

    @classmethod
    async def start(cls, target: str) -> Self:
        proxy = cls(target)
        await proxy.heal()
        return proxy

    async def close(self) -> None:
        """End everything. The port is free afterwards."""
        self.refuse()
        self._holder.close()
        tasks = list(self._connections.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # What it sees

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    def carried(self, direction: Direction) -> int:
        """How many bytes have been handed on in that direction."""
        return self._flows[direction].carried

    async def wait_until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """Wait for a condition on the above, which is looked at whenever a connection begins, ends or carries bytes."""
        if condition():
            return
        waiting = (condition, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            await asyncio.wait_for(waiting[1], seconds)
        finally:
            self._waiting.remove(waiting)

    # Faults

    def cut(self) -> None:
        """Reset every connection, on both sides. New ones are accepted."""
        for connection in list(self._connections):
            connection.reset()

    def refuse(self) -> None:
        """Refuse new connections; those there are go on."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def block(self, *directions: Direction) -> None:
        """Carry nothing in these directions, by default in both, and let everybody wait."""
        for direction in directions or BOTH:
            self._flows[direction].is_open.clear()

    def delay(self, seconds: float, *directions: Direction) -> None:
        """Let everything arrive so much later."""
        for direction in directions or BOTH:
            self._flows[direction].delay = seconds

    def throttle(self, bytes_per_second: float, *directions: Direction) -> None:
        """Carry so much and no more on each connection."""
        for direction in directions or BOTH:
            self._flows[direction].rate = bytes_per_second

    def corrupt(self, direction: Direction, after: int = 0) -> None:
        """Flip a bit of one byte, once `after` more bytes have passed, on whatever connection that is."""
        self._flows[direction].strike = _Strike(after, corrupts=True)

    def truncate(self, direction: Direction, after: int = 0) -> None:
        """End a connection, in an orderly way, once `after` more bytes have passed and no matter what comes then."""
        self._flows[direction].strike = _Strike(after, corrupts=False)

    async def heal(self) -> None:
        """Carry everything as it comes, and accept connections."""
        for flow in self._flows.values():
            flow.heal()
        if self._server is None:
            self._server = await asyncio.start_server(self._accepted, sock=_bound(self.address), limit=CHUNK_BYTES)

    # Inside

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs this in a task of its own"
        inspector = None if self.inspect is None else self.inspect()
        connection = _Connection(self._flows, reader, writer, self._look, inspector)
        self._connections[connection] = task
        self.accepted += 1
        self._look()
        try:
            await connection.run(self.target)
        finally:
            connection.reset()
            del self._connections[connection]
            self._look()

    def _look(self) -> None:
        for condition, future in self._waiting:
            if not future.done() and condition():
                future.set_result(None)


class _Chunk(NamedTuple):
    due: float
    data: bytes
    """Empty at the end."""


class _Connection:
    """One connection, that is two of them."""

    def __init__(
        self,
        flows: dict[Direction, _Flow],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        carried: Callable[[], None],
        inspector: Inspector | None,
    ) -> None:
        self._flows = flows
        self._reader = reader
        self._writer = writer
        self._writers = [writer]
        self._carried = carried
        self._inspector = inspector

    async def run(self, target: str) -> None:
        """Carry until both directions have ended or the connection was reset."""
        for flow in self._flows.values():
            await flow.is_open.wait()  # a dial is a word and an answer
        host, _, port = target.rpartition(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port), limit=CHUNK_BYTES)
        except OSError:
            return
        self._writers.append(writer)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(Direction.TO_TARGET, self._reader, writer))
                both.create_task(self._carry(Direction.FROM_TARGET, reader, self._writer))
        except* OSError:
            pass  # it was reset by somebody, which is passed on
        for each in self._writers:
            each.close()

    def reset(self) -> None:
        for writer in self._writers:
            transport = writer.transport
            if not transport.is_closing():
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                transport.abort()

    async def _carry(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way: asyncio.Queue[_Chunk] = asyncio.Queue(CHUNKS_UNDER_WAY)
        async with asyncio.TaskGroup() as pair:
            pair.create_task(_take(self._flows[direction], reader, under_way))
            pair.create_task(self._hand_on(direction, under_way, writer))

    async def _hand_on(
        self, direction: Direction, under_way: asyncio.Queue[_Chunk], writer: asyncio.StreamWriter
    ) -> None:
        flow = self._flows[direction]
        loop = asyncio.get_running_loop()
        while True:
            due, data = await under_way.get()
            await pause(due - loop.time())
            if not data:
                await flow.is_open.wait()
                writer.write_eof()
                return
            while data:
                size = flow.chunk_bytes
                await self._write(direction, writer, data[:size])
                data = data[size:]

    async def _write(self, direction: Direction, writer: asyncio.StreamWriter, data: bytes) -> None:
        flow = self._flows[direction]
        await flow.is_open.wait()
        if self._inspector is not None and not self._inspector.passes(direction, data):
            self.reset()
            raise ConnectionResetError
        data, ends = flow.struck(data)
        writer.write(data)
        await writer.drain()
        flow.carried += len(data)
        self._carried()
        if ends:
            for each in self._writers:
                each.close()
            raise ConnectionResetError
        if flow.rate is not None:
            await pause(len(data) / flow.rate)


async def _take(flow: _Flow, reader: asyncio.StreamReader, under_way: asyncio.Queue[_Chunk]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        data = await reader.read(CHUNK_BYTES)
        await under_way.put(_Chunk(loop.time() + flow.delay, data))
        if not data:
            return


def _bound(address: str) -> socket.socket:
    """A socket with that address, which it shares with others of the proxy's."""
    host, _, port = address.rpartition(":")
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((host, int(port)))
    return bound
