"""Bare frames: how many calls a second the wire alone carries, on the connections that the daemons use.

One client and one server process on loopback; requests of 100 bytes, replies of 16, 64 in flight. Nothing is done with
a request but to answer it. This is the limit that rows of the cluster are held against: what they fall short of it is
what storing, replicating and ordering cost.

    python -m benchmarks.bare_frames
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from time import perf_counter

import uvloop

from benchmarks.harness import Row
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

    def __init__(self) -> None:
        self.finished = asyncio.Event()

    def on_connected(self, connection: Connection) -> None: ...

    def on_message(self, connection: Connection, message: Message) -> None:
        assert isinstance(message, Ping)
        connection.send(Pong(message.request, 0))

    def on_turn(self, connection: Connection) -> None: ...

    def on_closed(self, _connection: Connection, _error: VarlogError | None) -> None:
        self.finished.set()


class Caller:
    """Sends a request for every reply, for so long."""

    def __init__(self) -> None:
        self.finished = asyncio.Event()
        self.calls = 0
        self._sent = 0
        self._until = 0.0

    def begin(self, connection: Connection, seconds: float) -> None:
        self._until = perf_counter() + seconds
        for number in range(IN_FLIGHT):
            connection.send(Ping(number, PAYLOAD))
        self._sent = IN_FLIGHT

    def on_connected(self, connection: Connection) -> None: ...

    def on_message(self, connection: Connection, message: Message) -> None:
        assert isinstance(message, Pong)
        self.calls += 1
        self._sent += 1
        connection.send(Ping(self._sent, PAYLOAD))

    def on_turn(self, connection: Connection) -> None:
        if perf_counter() >= self._until:
            self.finished.set()
            connection.close()

    def on_closed(self, _connection: Connection, _error: VarlogError | None) -> None:
        self.finished.set()


async def _serve() -> None:
    echo = Echo()
    identity = Identity(CLUSTER, Role.STORAGE_NODE, 1)
    server = await Server.start("127.0.0.1:0", identity, frozenset({Role.CLIENT}), SECRET, echo)
    print(server.address, flush=True)
    await echo.finished.wait()
    await server.close()


async def _call(address: str, seconds: float) -> float:
    caller = Caller()
    connection = await dial(address, Identity(CLUSTER, Role.CLIENT), Role.STORAGE_NODE, SECRET, caller)
    began = perf_counter()
    caller.begin(connection, seconds)
    await caller.finished.wait()
    return caller.calls / (perf_counter() - began)


def calls_per_second(seconds: float = 2.0) -> float:
    """Measure once, with a server process of its own."""
    command = [sys.executable, "-m", "benchmarks.bare_frames", "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        return uvloop.run(_call(address, seconds))


def measure() -> list[Row]:
    """The row for the table: the best of three, since what disturbs it can only slow it down."""
    return [Row("bare-frames", max(calls_per_second() for _ in range(3)), "calls/s")]


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        uvloop.run(_serve())
    else:
        for row in measure():
            print(f"{row.name}: {row.value:,.0f} {row.unit}")
