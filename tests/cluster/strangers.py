"""Those who talk nonsense to real daemons, before the hello and after it.

Before it: bytes at random, to the daemon's port and to its page. After it, as a client that knows the secret: frames
that are oversized, cut short or never end; messages that no client may send; and those it may, with values that make no
sense. None of it can succeed, so a cluster that is pestered goes on as if nothing were, with the same processes.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

from tests.cluster.cluster import CID, Cluster
from tests.cluster.processes import Daemon
from varlog import batch, limits
from varlog.core.messages import (
    AddNode,
    AddStream,
    AddTopic,
    Append,
    AppendReplies,
    AttachArchive,
    CreateTopic,
    FetchCuts,
    GetInfo,
    GetMetadata,
    GetTail,
    Message,
    RemoveNode,
    RemoveStream,
    RemoveTopic,
    Replicate,
    Scan,
    Seal,
    SealStream,
    TrimTopic,
)
from varlog.errors import VarlogError
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, Sequence, StorageNodeID, TopicID, Version
from varlog.wire import catalogue, hot
from varlog.wire.connection import Connection
from varlog.wire.hello import Identity, Role
from varlog.wire.link import dial
from varlog.wire.secret import Secret

AT_ONCE: Final = 4
PATIENCE: Final = 0.1
"""How long a stranger waits to be answered or thrown out."""
ROLES: Final = {"vmr": Role.METADATA_REPOSITORY, "vms": Role.MANAGER, "vsn": Role.STORAGE_NODE}
NUMBERS: Final = (0, 1, 2, 3, 255, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
UNREAL: Final = tuple(number for number in NUMBERS if number > 1000)
TEXTS: Final = ("", "?", "x" * 1000, "a:b", "127.0.0.1:0", "127.0.0.1:1", "\0", "[::1", "log\n", "../log", "é" * 300)


def nonsense(rng: Random) -> bytes:
    """No record batch: random bytes, or one whose checksum is wrong."""
    if rng.random() < 0.5:
        return rng.randbytes(rng.choice((0, 1, 63, 64, 65, 1000, 100_000)))
    sound = bytearray(batch.encode([b"nonsense"] * rng.randrange(1, 50), writer_id=1, sequence=1))
    sound[rng.randrange(len(sound))] ^= 1 << rng.randrange(8)
    return bytes(sound)


def message_to(role: Role, rng: Random) -> Message:
    """A message that a client may send to such a daemon, but never with success; or one it may not send."""
    number, unreal = rng.choice(NUMBERS), rng.choice(UNREAL)
    text, request = rng.choice(TEXTS), rng.choice(NUMBERS)
    lsid, tpid, snid = LogStreamID(number), TopicID(number), StorageNodeID(number)
    forbidden: list[Message] = [
        Seal(request, lsid, Epoch(number), LLSN(1), GLSN(0)),
        FetchCuts(snid, lsid, Version(number)),
        Replicate(lsid, Epoch(number), LLSN(1), (Sequence(unreal),) * 2, (nonsense(rng), nonsense(rng))),
        AppendReplies(lsid, Epoch(number), 3, True, number, (request,) * 3, (number,) * 3, (1, 2, 3)),
        SealStream(request, lsid, Epoch(2)),
        CreateTopic(request, text, 3, 2),
    ]
    allowed: dict[Role, list[Message]] = {
        Role.STORAGE_NODE: [
            Append(request, lsid, Epoch(rng.choice(NUMBERS)), Sequence(unreal), LLSN(number), nonsense(rng)),
            Scan(request, lsid, GLSN(rng.choice(NUMBERS)), rng.choice(NUMBERS[:8]), rng.random() < 0.5),
            GetInfo(request),
        ],
        Role.METADATA_REPOSITORY: [
            GetMetadata(request),
            GetTail(request, tpid),
            TrimTopic(request, tpid, GLSN(unreal)),
        ],
        Role.MANAGER: [
            AddNode(request, text),
            RemoveNode(request, StorageNodeID(unreal)),
            AddTopic(request, text, unreal, number, rng.choice(NUMBERS)),
            RemoveTopic(request, text),
            AttachArchive(request, rng.choice(("log", text)), text),
            AddStream(request, text, (snid,) * rng.randrange(5)),
            AddStream(request, "log", (StorageNodeID(unreal),) * 3),
            RemoveStream(request, LogStreamID(unreal)),
        ],
    }
    return rng.choice(forbidden if rng.random() < 0.1 else allowed[role])


def some_frame(role: Role, rng: Random) -> bytes:
    """One of those messages, of which the wire can carry not all."""
    while True:
        with suppress(struct.error):
            return catalogue.encode(message_to(role, rng))


class _Deaf:
    """Hears nothing of what it is told."""

    def on_connected(self, connection: Connection) -> None: ...

    def on_message(self, connection: Connection, message: Message) -> None: ...

    def on_turn(self, connection: Connection) -> None: ...

    def on_closed(self, connection: Connection, error: VarlogError | None) -> None: ...


class Strangers:
    """See the module's text."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self.encounters = 0
        self._cluster = cluster
        self._rng = rng
        self._secret = Secret.load(cluster.path / "secret")

    async def pester(self, seconds: float) -> None:
        """Every daemon, for so long."""
        until = monotonic() + seconds

        async def one_after_another(rng: Random) -> None:
            while monotonic() < until:
                await self._meet(rng.choice(self._cluster.daemons), rng)
                self.encounters += 1

        await asyncio.gather(*(one_after_another(Random(self._rng.random())) for _ in range(AT_ONCE)))

    async def _meet(self, daemon: Daemon, rng: Random) -> None:
        manner = rng.choice((self._noise, self._noise, self._broken_frame, self._messages, self._messages))
        with suppress(OSError, TimeoutError, VarlogError):
            await manner(daemon, rng)

    async def _noise(self, daemon: Daemon, rng: Random) -> None:
        host, _, port = rng.choice((daemon.address, daemon.http)).rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            hello = hot.sealed(struct.pack("<IHH", size := rng.randrange(100), 1, 0) + rng.randbytes(size))
            writer.write(rng.choice((b"", b"GET ", hello[:12], hello)) + rng.randbytes(rng.randrange(5000)))
            async with asyncio.timeout(PATIENCE):
                while await reader.read(1 << 16):
                    pass
        finally:
            writer.transport.abort()

    async def _broken_frame(self, daemon: Daemon, rng: Random) -> None:
        frame = bytearray(some_frame(self._role(daemon), rng))
        match rng.randrange(5):
            case 0:
                frame[4:8] = rng.randrange(1 << 26, 1 << 32).to_bytes(4, "little")
            case 1:
                frame[4:8] = rng.randrange(limits.MAX_BATCH_BYTES).to_bytes(4, "little")
            case 2:
                frame[8:12] = rng.randrange(1 << 10, 1 << 32).to_bytes(4, "little")
            case 3:
                frame[12:] = rng.randbytes(len(frame) - 12)
            case _:
                del frame[rng.randrange(len(frame)) :]
        wrong = bytes(frame) if rng.random() < 0.3 else hot.sealed(bytes(frame[4:]))
        connection = await self._join(daemon)
        await self._say(connection, lambda: connection._transport.write(wrong))

    async def _messages(self, daemon: Daemon, rng: Random) -> None:
        role = self._role(daemon)
        connection = await self._join(daemon)

        def speak() -> None:
            for _ in range(rng.choice((1, 1, 50))):
                with suppress(VarlogError):  # a number that no field on the wire can hold
                    connection.send(message_to(role, rng))

        await self._say(connection, speak)

    async def _say(self, connection: Connection, speak: Callable[[], None]) -> None:
        try:
            speak()
            async with asyncio.timeout(PATIENCE):
                await connection.gone()
        finally:
            connection.close()

    async def _join(self, daemon: Daemon) -> Connection:
        return await dial(
            daemon.address, Identity(CID, Role.CLIENT), self._role(daemon), self._secret, _Deaf(), timeout=PATIENCE
        )

    @staticmethod
    def _role(daemon: Daemon) -> Role:
        return ROLES[daemon.program]


def resident_bytes(daemon: Daemon) -> int:
    """How much memory a daemon has had at most."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) << 10
