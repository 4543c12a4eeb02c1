"""A server among strangers: connections that send garbage, and one that must not notice.

    python -m tests.wire.fuzz --seconds 60 --seed 1

A real server, a member of the cluster that calls it all the time with small and large messages, and beside it strangers
in all shapes: bytes at random, hellos with a wrong secret, frames cut short, changed, oversized or never finished,
requests whose answers nobody reads, silence. What each stranger does follows from the seed and its number. Every call
of the member has to be answered, rightly and in time; memory has to stay within its bounds; and when the strangers are
gone nothing of them may be left.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.wire.made import DISGUISES, resealed
from tests.wire.peers import CLIENT, NODE, SECRET, Recorder, Stranger, join, run, serve, until
from varlog import limits
from varlog.core.messages import (
    Append,
    AppendReplies,
    AppendReply,
    GetMetadata,
    Message,
    Replicate,
    Report,
    ScanReply,
)
from varlog.errors import ProtocolError, VarlogError
from varlog.types import LLSN, Epoch, LogStreamID, Sequence, StorageNodeID, Version
from varlog.wire import Connection, Ping, Pong, Role, Secret, Server, catalogue
from varlog.wire.frames import BUDGET
from varlog.wire.hello import Dialing, Hello, Identity
from varlog.wire.hot import HEADER_BYTES

AT_ONCE = 8
SLOWEST_CALL = 10.0
MOST_MEMORY = 3 << 30
"""Of address space: a leak ends the run and not the machine."""
WRONG = Secret(b"not the secret of the cluster, but as long")


@dataclass
class Tally:
    """What happened."""

    strangers: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    slowest: float = 0.0
    most_held: int = 0
    complaints: list[str] = field(default_factory=list)


class Members:
    """The server's receiver: answers as a storage node would, at greater length if it is asked to; keeps nothing."""

    def on_connected(self, connection: Connection) -> None: ...

    def on_message(self, connection: Connection, message: Message) -> None:
        match message:
            case Ping(request, payload):
                connection.send(Pong(request, len(payload)))
            case Append(request, lsid, epoch, _, _, batch):
                connection.send(AppendReply(request, lsid, 0, epoch, count=len(batch)))
            case GetMetadata(request):
                line = (1, 1, 1, 2, 3, 4, bytes(256 << 10))
                connection.send(ScanReply(request, LogStreamID(1), 0, (line,) * 4))
            case _:
                raise ProtocolError("not what a storage node is asked")

    def on_turn(self, connection: Connection) -> None: ...

    def on_closed(self, connection: Connection, error: VarlogError | None) -> None: ...


# What strangers do


def some_frame(drawn: random.Random) -> bytes:
    size = drawn.choice([0, 10, 1000, 20_000, 400_000])
    messages: list[Message] = [
        Ping(drawn.getrandbits(64), bytes(min(size, limits.MAX_PING_BYTES))),
        Append(1, LogStreamID(2), Epoch(2), Sequence(3), LLSN(4), drawn.randbytes(size)),
        Replicate(LogStreamID(2), Epoch(2), LLSN(4), (Sequence(3),) * 3, tuple(map(drawn.randbytes, (size, 7, size)))),
        AppendReplies(LogStreamID(2), Epoch(2), 3, True, 4, *[tuple(range(size // 20))] * 3),
        Report(StorageNodeID(1), 2, 3, Version(4), ((1, 2, 3, 4, 5, True),) * (size // 20), False, False),
        GetMetadata(drawn.getrandbits(32)),
    ]
    return catalogue.encode(drawn.choice(messages))


async def noise(stranger: Stranger, drawn: random.Random) -> None:
    await stranger.say(drawn.randbytes(drawn.randrange(HEADER_BYTES, 3000)))
    await stranger.refused()


async def silence(stranger: Stranger, drawn: random.Random) -> None:
    await stranger.say(b"\x2a"[: drawn.randrange(2)])


async def half_a_hello(stranger: Stranger, drawn: random.Random) -> None:
    hello = catalogue.encode(Dialing(CLIENT, Role.STORAGE_NODE, SECRET).begin())
    await stranger.say(hello[: drawn.randrange(len(hello))])


async def slow_hello(stranger: Stranger, drawn: random.Random) -> None:
    hello = catalogue.encode(Dialing(Identity(NODE.cid, Role(drawn.choice(list(Role)))), Role.CLIENT, SECRET).begin())
    for at in range(len(hello)):
        await stranger.say(hello[at : at + 1])
    await stranger.hear()


async def wrong_secret(stranger: Stranger, drawn: random.Random) -> None:
    await stranger.say(Hello(1, NODE.cid, 1, 0, drawn.randbytes(32)))
    await stranger.hear()
    await stranger.say(catalogue.encode(Dialing(CLIENT, Role.STORAGE_NODE, WRONG).begin()))
    await stranger.refused()


async def noise_of_a_member(stranger: Stranger, drawn: random.Random) -> None:
    await stranger.greet()
    await stranger.say(some_frame(drawn), drawn.randbytes(drawn.randrange(HEADER_BYTES, 100_000)))
    await stranger.refused()


async def changed_frames(stranger: Stranger, drawn: random.Random) -> None:
    await stranger.greet()
    for _ in range(drawn.randrange(1, 20)):
        frame = bytearray(some_frame(drawn))
        at = drawn.randrange(min(len(frame), 68))
        frame[at : at + drawn.randrange(4)] = drawn.randbytes(drawn.randrange(4))
        await stranger.say(drawn.choice(DISGUISES)(bytes(frame)))


async def oversized(stranger: Stranger, drawn: random.Random) -> None:
    await stranger.greet()
    frame = some_frame(drawn)
    await stranger.say(resealed(frame[:4] + drawn.randrange(1 << 26, 1 << 32).to_bytes(4, "little") + frame[8:]))
    await stranger.refused()


async def never_finished(stranger: Stranger, drawn: random.Random) -> None:
    await stranger.greet()
    length = drawn.randrange(1 << 19, limits.MAX_BATCH_BYTES)
    frame = catalogue.encode(Append(1, LogStreamID(2), Epoch(2), Sequence(3), LLSN(4), b""))
    begun = frame[:4] + length.to_bytes(4, "little") + frame[8:]
    await stranger.say(begun, drawn.randbytes(drawn.randrange(400_000)))


async def nobody_listens(stranger: Stranger, drawn: random.Random) -> None:
    await stranger.greet()
    await stranger.say(*(GetMetadata(number) for number in range(drawn.randrange(1, 60))))


async def member(stranger: Stranger, drawn: random.Random) -> None:
    await stranger.greet()
    for number in range(drawn.randrange(1, 50)):
        await stranger.say(Ping(number))
        assert await stranger.hear() == Pong(number, 0)


SHAPES: list[Callable[[Stranger, random.Random], Awaitable[None]]] = [
    noise,
    silence,
    half_a_hello,
    slow_hello,
    wrong_secret,
    noise_of_a_member,
    changed_frames,
    oversized,
    never_finished,
    nobody_listens,
    member,
]


async def send_strangers(server: Server, seed: int, until_time: float, lane: int, tally: Tally) -> None:
    loop = asyncio.get_running_loop()
    number = lane
    while loop.time() < until_time or number < len(SHAPES):
        drawn = random.Random(f"{seed}/{number}")
        shape = SHAPES[number % len(SHAPES)]
        async with await Stranger.to(server) as stranger:
            with suppress(ConnectionError, asyncio.IncompleteReadError):  # the server has heard enough
                await asyncio.wait_for(shape(stranger, drawn), SLOWEST_CALL)
        tally.strangers[shape.__name__] += 1
        number += AT_ONCE


# The one that must not notice


async def call_all_the_time(server: Server, seed: int, until_time: float, tally: Tally) -> None:
    drawn = random.Random(f"{seed}/member")
    loop = asyncio.get_running_loop()
    here = Recorder()
    connection = await join(server, here)
    while loop.time() < until_time:
        batch = drawn.randbytes(drawn.choice([10, 100, 1000, 50_000, 300_000, 2_000_000]))
        began = loop.time()
        connection.send(Ping(tally.calls, batch[:100]))
        connection.send(Append(tally.calls, LogStreamID(1), Epoch(2), Sequence(0), LLSN(1), batch))
        await asyncio.wait_for(here.received(2), SLOWEST_CALL)
        answers = [
            Pong(tally.calls, len(batch[:100])),
            AppendReply(tally.calls, LogStreamID(1), 0, Epoch(2), count=len(batch)),
        ]
        assert here.messages == answers, "answered rightly"
        assert not here.closed, "kept"
        here.messages.clear()
        tally.calls += 1
        tally.slowest = max(tally.slowest, loop.time() - began)
        look_at_memory(server, tally)
    connection.close()
    await here.ended()


def look_at_memory(server: Server, tally: Tally) -> None:
    held = sum(connection.held for connection in server.connections)
    tally.most_held = max(tally.most_held, held)
    assert held <= len(server.connections) * limits.RECEIVE_BUFFER_BYTES + limits.RECEIVE_BYTES_IN_ALL
    assert all(each.buffered <= limits.CONNECTION_BUFFER_MAX + (2 << 20) for each in server.connections)


async def fuzz(seconds: float, seed: int, tally: Tally) -> None:
    """So long, from this seed; raises at what must not be."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: tally.complaints.append(str(context)))
    server = await serve(Members())
    until_time = loop.time() + seconds
    work: list[Any] = [send_strangers(server, seed, until_time, lane, tally) for lane in range(AT_ONCE)]
    await asyncio.gather(call_all_the_time(server, seed, until_time, tally), *work)
    await asyncio.wait_for(until(lambda: not server.connections), SLOWEST_CALL)
    assert BUDGET.free == limits.RECEIVE_BYTES_IN_ALL, "memory for large frames was given back"
    await server.close()
    assert not tally.complaints, tally.complaints[:3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    tally = Tally()
    try:
        run(fuzz(wanted.seconds, wanted.seed, tally), wanted.seconds + 60)
    finally:
        lines = [f"{count:8d} {name}" for name, count in sorted(tally.strangers.items())]
        lines += [
            f"{tally.calls:8d} calls of the member, the slowest took {tally.slowest * 1000:.0f} ms",
            f"{tally.most_held / limits.MIB:8.1f} MiB held at most for what was being received",
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / limits.KIB:8.1f} MiB resident at most",
            f"seed {wanted.seed}",
        ]
        sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
