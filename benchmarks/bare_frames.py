"""Bare frames: how many calls a second the wire alone carries, on the connections that the daemons use.

One client and one server process on loopback; requests of 100 bytes, replies of 16, 64 in flight. Nothing is done with
a request but to answer it. This is the limit that rows of the cluster are held against: what they fall short of it is
what storing, replicating and ordering cost.

- `bare-frames` is a call as anybody makes one: 64 tasks, each of which sends a request and awaits the future of its
  reply. Ratios are made with this one.
- `bare-frames-callbacks` has no tasks and no futures: the arrival of a reply sends the next request. Nobody writes an
  application that way; it shows how much of a call is the wire, and how much is asyncio.

    python -m benchmarks.bare_frames
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import uvloop

from benchmarks.harness import ROOT, Row
from varlog.core.messages import Message
from varlog.errors import VarlogError
from varlog.types import ClusterID
from varlog.wire import Connection, Identity, Ping, Pong, Role, Secret, Server, dial

IN_FLIGHT = 64
PAYLOAD = bytes(92)
"""With the number of the request, 100 bytes."""
CLUSTER = ClusterID(1)
SECRET = Secret(bytes(32))


class Echo:
    """Answers every request at once."""

    def on_connected(self, connection: Connection) -> None: ...

    def on_message(self, connection: Connection, message: Message) -> None:
        assert isinstance(message, Ping)
        connection.send(Pong(message.request, 0))

    def on_turn(self, connection: Connection) -> None: ...

    def on_closed(self, connection: Connection, error: VarlogError | None) -> None: ...


class Awaiting:
    """Calls that are awaited: a future for every request, found by its number."""

    def __init__(self) -> None:
        self.calls = 0
        self._sent = 0
        self._replies: dict[int, asyncio.Future[Pong]] = {}

    async def call_for(self, connection: Connection, seconds: float) -> None:
        until = perf_counter() + seconds
        loop = asyncio.get_running_loop()

        async def call() -> Pong:
            self._sent = number = self._sent + 1
            reply: asyncio.Future[Pong] = loop.create_future()
            self._replies[number] = reply
            connection.send(Ping(number, PAYLOAD))
            return await reply

        async def caller() -> None:
            while perf_counter() < until:
                await call()
                self.calls += 1

        await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))

    def on_connected(self, connection: Connection) -> None: ...

    def on_message(self, _connection: Connection, message: Message) -> None:
        assert isinstance(message, Pong)
        self._replies.pop(message.request).set_result(message)

    def on_turn(self, connection: Connection) -> None: ...

    def on_closed(self, connection: Connection, error: VarlogError | None) -> None: ...


class CallingBack:
    """Calls that nobody awaits: every reply sends a request."""

    def __init__(self) -> None:
        self.calls = 0
        self._finished = asyncio.Event()
        self._sent = 0
        self._until = 0.0

    async def call_for(self, connection: Connection, seconds: float) -> None:
        self._until = perf_counter() + seconds
        for number in range(IN_FLIGHT):
            connection.send(Ping(number, PAYLOAD))
        self._sent = IN_FLIGHT
        await self._finished.wait()

    def on_connected(self, connection: Connection) -> None: ...

    def on_message(self, connection: Connection, message: Message) -> None:
        assert isinstance(message, Pong)
        self.calls += 1
        self._sent += 1
        connection.send(Ping(self._sent, PAYLOAD))

    def on_turn(self, _connection: Connection) -> None:
        if perf_counter() >= self._until:
            self._finished.set()

    def on_closed(self, connection: Connection, error: VarlogError | None) -> None: ...


async def _serve() -> None:
    """Until the one who started this process lets go of its standard input."""
    identity = Identity(CLUSTER, Role.STORAGE_NODE, 1)
    server = await Server.start("127.0.0.1:0", identity, frozenset({Role.CLIENT}), SECRET, Echo())
    print(server.address, flush=True)
    let_go = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), let_go.set)
    await let_go.wait()
    await server.close()


@contextmanager
def echo_server() -> Iterator[str]:
    """A server process; its address."""
    command = [sys.executable, "-m", "benchmarks.bare_frames", "serve"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()


async def calls_per_second(address: str, seconds: float, kind: type[Awaiting | CallingBack] = Awaiting) -> float:
    """Measure once, against a server that is there."""
    caller = kind()
    connection = await dial(address, Identity(CLUSTER, Role.CLIENT), Role.STORAGE_NODE, SECRET, caller)
    began = perf_counter()
    await caller.call_for(connection, seconds)
    rate = caller.calls / (perf_counter() - began)
    connection.close()
    await connection.gone()
    return rate


async def measure(seconds: float = 1.0, rounds: int = 3) -> list[Row]:
    """Both rows: the best of some rounds, since what disturbs them can only slow them down."""
    with echo_server() as address:
        turns = [
            (await calls_per_second(address, seconds), await calls_per_second(address, seconds, CallingBack))
            for _ in range(rounds)
        ]
    awaited, called_back = map(max, zip(*turns, strict=True))
    about = f"{IN_FLIGHT} in flight, 100-byte requests, 16-byte replies, one client and one server process"
    return [
        Row("bare-frames", awaited, "calls/s", note=f"awaited, a future per request; {about}; ratios use this one"),
        Row("bare-frames-callbacks", called_back, "calls/s", note=f"callbacks alone, nothing is awaited; {about}"),
    ]


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        uvloop.run(_serve())
    else:
        for row in uvloop.run(measure()):
            print(f"{row.name}: {row.value:,.0f} {row.unit}")
