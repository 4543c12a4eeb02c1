"""What the tests of connections share: receivers that remember, a small cluster, and raw sockets."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop
from crc32c import crc32c

from varlog.core.messages import Message
from varlog.errors import VarlogError
from varlog.types import ClusterID
from varlog.wire import Connection, Identity, Ping, Pong, Receiver, Role, Secret, Server, catalogue, dial
from varlog.wire.endpoint import format_address, parse_address
from varlog.wire.frames import HEADER
from varlog.wire.hello import Accepting, Dialing, Refused

CLUSTER = ClusterID(7)
SECRET = Secret(bytes(range(32)))
NODE = Identity(CLUSTER, Role.STORAGE_NODE, 5)
CLIENT = Identity(CLUSTER, Role.CLIENT)
MEMBERS = frozenset(Role)
SECONDS = 20.0


def run(main: Coroutine[Any, Any, None], seconds: float = SECONDS) -> None:
    """Run on the loop of the daemons; a test that hangs fails."""
    with warnings.catch_warnings(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(asyncio.wait_for(main, seconds))
        except BaseException:
            warnings.simplefilter("ignore", ResourceWarning)  # what is left open would hide why the test failed
            raise


async def turn() -> None:
    """Let the loop go round once."""
    turned = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turned.set_result, None)
    await turned


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that nobody is told of."""
    while not condition():
        await turn()


class Recorder:
    """Remembers everything it is told; answers pings if it is a server's."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.messages: list[Message] = []
        self.turns: list[tuple[Connection, int]] = []
        """Whose read it was, and how many messages had arrived at its end."""
        self.closed: list[tuple[Connection, VarlogError | None]] = []
        self._changed = asyncio.Event()

    def on_connected(self, connection: Connection) -> None:
        self.connections.append(connection)
        self._changed.set()

    def on_message(self, connection: Connection, message: Message) -> None:
        self.messages.append(message)
        self.answer(connection, message)
        self._changed.set()

    def answer(self, connection: Connection, message: Message) -> None:
        if isinstance(message, Ping):
            connection.send(Pong(message.request, len(message.payload)))

    def on_turn(self, connection: Connection) -> None:
        self.turns.append((connection, len(self.messages)))

    def on_closed(self, connection: Connection, error: VarlogError | None) -> None:
        self.closed.append((connection, error))
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something this was told of makes the condition true."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def received(self, count: int) -> list[Message]:
        """Wait for so many messages in all."""
        await self.until(lambda: len(self.messages) >= count)
        return self.messages

    async def ended(self, count: int = 1) -> VarlogError | None:
        """Wait for so many connections to have ended; why the last one did."""
        await self.until(lambda: len(self.closed) >= count)
        return self.closed[-1][1]


async def serve(receiver: Receiver, identity: Identity = NODE, address: str = "127.0.0.1:0") -> Server:
    return await Server.start(address, identity, MEMBERS, SECRET, receiver)


async def join(server: Server, receiver: Recorder) -> Connection:
    return await dial(server.address, CLIENT, Role.STORAGE_NODE, SECRET, receiver)


class Stranger:
    """A bare socket towards a server, or from a dialer: says whatever a test wants, when it wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, server: Server) -> Stranger:
        host, port = parse_address(server.address)
        return cls(*await asyncio.open_connection(host, port))

    async def say(self, *what: bytes | Message) -> None:
        for each in what:
            self._writer.write(each if isinstance(each, bytes) else catalogue.encode(each))
        await self._writer.drain()

    async def hear(self) -> Message:
        """The next message."""
        crc, length, number = HEADER.unpack(head := await self._reader.readexactly(HEADER.size))
        body = await self._reader.readexactly(length)
        assert crc == crc32c(head[4:] + body)
        codec = catalogue.CODECS[number][1]
        return codec.decode(memoryview(body), 0, len(body))

    async def greet(self, identity: Identity = CLIENT, secret: Secret = SECRET) -> None:
        """Say hello as a member of the cluster does."""
        handshake = Dialing(identity, Role.STORAGE_NODE, secret)
        answer: Message | None = handshake.begin()
        while answer is not None:
            await self.say(answer)
            answer = handshake.receive(await self.hear())

    async def refused(self) -> Refused | None:
        """Listen until the other end closes; the refusal it ended with, if it did."""
        last: Message | None = None
        try:
            while True:
                last = await self.hear()
        except (asyncio.IncompleteReadError, ConnectionError):
            return last if isinstance(last, Refused) else None

    def leave(self) -> None:
        self._writer.transport.abort()

    async def __aenter__(self) -> Stranger:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()


class Host:
    """A listening socket that says hello as a storage node does, and then whatever a test wants."""

    def __init__(self) -> None:
        self.address = ""
        self._guests: asyncio.Queue[Stranger] = asyncio.Queue()
        self._listener: asyncio.Server

    @classmethod
    async def start(cls) -> Host:
        host = cls()
        host._listener = await asyncio.start_server(host._on_guest, "127.0.0.1", 0)
        host.address = format_address(host._listener.sockets[0].getsockname())
        return host

    def _on_guest(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._guests.put_nowait(Stranger(reader, writer))

    async def stranger(self) -> Stranger:
        """The next one that dials, before the hello."""
        return await self._guests.get()

    async def guest(self) -> Stranger:
        """The next one that dials, after the hello."""
        stranger = await self.stranger()
        handshake = Accepting(NODE, MEMBERS, SECRET)
        while handshake.peer is None:
            answer = handshake.receive(await stranger.hear())
            assert answer is not None
            await stranger.say(answer)
        return stranger

    def close(self) -> None:
        self._listener.close()
