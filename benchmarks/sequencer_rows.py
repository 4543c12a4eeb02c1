"""The rows of the sequencer ordering while all is well: positions, appends, reads, each with the limit it is held
against.

As for the rows of the cluster, a limit is measured before and after every value, and their mean counts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from statistics import median
from time import perf_counter
from typing import Final

from benchmarks import cluster_load
from benchmarks.bare_frames import CLUSTER, IN_FLIGHT, PAYLOAD, SECRET
from benchmarks.cluster_load import Appended, Load
from benchmarks.cluster_processes import placed
from benchmarks.cluster_rows import MB, REPLICAS, SECONDS, Limits, between
from benchmarks.harness import Row, against_limit
from varlog import limits
from varlog.client.cluster import Cluster
from varlog.client.log import Log
from varlog.core.messages import Granted, Message, Next, TopicInfo
from varlog.core.projection import Projection
from varlog.errors import VarlogError
from varlog.types import Epoch
from varlog.wire import Connection, Identity, Ping, Pong, Role, dial

BLOCK: Final = 100
READS: Final = 1000


class Asking:
    """Calls of one connection that are awaited: a future for every request, found by its number."""

    def __init__(self) -> None:
        self._sent = 0
        self._replies: dict[int, asyncio.Future[Message]] = {}
        self._loop = asyncio.get_running_loop()

    async def call(self, connection: Connection, request_of: Callable[[int], Message]) -> Message:
        self._sent = number = self._sent + 1
        reply: asyncio.Future[Message] = self._loop.create_future()
        self._replies[number] = reply
        connection.send(request_of(number))
        return await reply

    def on_connected(self, connection: Connection) -> None: ...

    def on_message(self, _connection: Connection, message: Message) -> None:
        if (reply := self._replies.pop(getattr(message, "request", 0), None)) is not None:
            reply.set_result(message)

    def on_turn(self, connection: Connection) -> None: ...

    def on_closed(self, connection: Connection, error: VarlogError | None) -> None: ...


class Counter:
    """Whoever asks the sequencer of a topic for positions, and writes nothing at them: a client that dies."""

    def __init__(self, asking: Asking, connection: Connection, topic: TopicInfo, epoch: Epoch) -> None:
        self._asking = asking
        self._connection = connection
        self._tpid = topic.tpid
        self._epoch = epoch

    @classmethod
    async def dial(cls, cluster: Cluster, topic: TopicInfo) -> Counter:
        projection = topic.projection
        assert projection is not None
        asking = Asking()
        identity = Identity(cluster.cid, Role.CLIENT)
        connection = await dial(projection.sequencer, identity, Role.SEQUENCER, cluster.credentials, asking)
        return cls(asking, connection, topic, projection.epoch)

    async def next(self, count: int) -> int:
        """The first of so many positions."""
        answer = await self._asking.call(
            self._connection, lambda request: Next(request, self._tpid, self._epoch, (count,))
        )
        assert isinstance(answer, Granted)
        assert answer.code == 0, f"{answer}"
        return answer.glsns[0]

    async def calls_per_second(self, count: int, seconds: float) -> float:
        calls, began = 0, perf_counter()
        until = began + seconds

        async def caller() -> None:
            nonlocal calls
            while perf_counter() < until:
                await self.next(count)
                calls += 1

        await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
        return calls / (perf_counter() - began)

    async def close(self) -> None:
        self._connection.close()
        await self._connection.gone()


def projection_of(log: Log) -> Projection:
    projection = log.topic.projection
    assert projection is not None, f"{log.name} has no projection"
    return projection


async def next_rows(counter: Counter, limits_: Limits) -> list[Row]:
    """Positions from the sequencer alone. They are never written: this topic is nobody's log afterwards."""

    async def one_by_one() -> float:
        return await counter.calls_per_second(1, SECONDS / 2)

    async def in_blocks() -> float:
        return await counter.calls_per_second(BLOCK, SECONDS / 2) * BLOCK

    about = f"{IN_FLIGHT} calls in flight over one connection"
    single = against_limit("seq-next", "calls/s", await between(one_by_one, limits_.bare), "bare-frames", ">=", 0.5)
    blocks = against_limit(
        "seq-next-100", "positions/s", await between(in_blocks, limits_.bare), "bare-frames", ">=", 20
    )
    return [replace(single, note=f"one position a call; {about}"), replace(blocks, note=f"{BLOCK} a call; {about}")]


async def append_rows(log: Log, limits_: Limits) -> list[Row]:
    """Entries/s against bare frames, and payload against a third of what the disk takes."""
    seen: list[Appended] = []

    async def small() -> float:
        seen.append(await cluster_load.append_for(log, Load(100, 1, 256), SECONDS))
        return seen[-1].entries_per_second

    rounds = await between(small, limits_.bare)
    row = against_limit("seq-append-100-b1-c256", "entries/s", rounds, "bare-frames", ">=", 0.08)
    at = [appended.entries_per_second for appended in seen].index(row.value)
    rows = [replace(row, note=f"256 in flight; p50 {seen[at].p50 * 1e3:.1f} ms, p99 {seen[at].p99 * 1e3:.1f} ms")]
    batched: list[float] = []

    async def large() -> float:
        batched.append((await cluster_load.append_for(log, Load(1024, 100, 128), SECONDS)).megabytes_per_second)
        return batched[-1]

    async def third() -> float:
        wrote = batched[-1] * MB * SECONDS * REPLICAS if batched else 512 * limits.MIB
        return await limits_.sequential(wrote) / REPLICAS

    rounds = await between(large, third)
    row = against_limit("seq-append-1k-b100", "MB/s", rounds, "synced-sequential / 3", ">=", 0.35)
    return [*rows, replace(row, note="payload; 128 in flight")]


async def latency_row(log: Log, limits_: Limits) -> Row:
    """One append at a time, against a sync: a chain's writes are one after another."""

    async def value() -> float:
        return (await cluster_load.append_for(log, Load(100, 1, 1), SECONDS / 2)).p50 * 1e3

    async def limit() -> float:
        return await limits_.sync() * 1e3

    row = against_limit("seq-latency-c1", "ms", await between(value, limit, 5), "fdatasync", "<=", 8)
    return replace(row, note="p50 of one append with nothing else in flight, three replicas")


async def commit_rows(log: Log) -> list[Row]:
    """The same loads on a topic of the other ordering, in the same run: to be compared, and held against nothing."""
    small = await cluster_load.append_for(log, Load(100, 1, 256), SECONDS)
    large = await cluster_load.append_for(log, Load(1024, 100, 128), SECONDS)
    alone = await cluster_load.append_for(log, Load(100, 1, 1), SECONDS)
    positions = await written(log)
    with placed(together=True):
        reads = await read_seconds(log, positions)
    note = "of a topic that commits order"
    return [
        Row("commit-append-100-b1-c256", small.entries_per_second, "entries/s", note=note),
        Row("commit-append-1k-b100", large.megabytes_per_second, "MB/s", note=note),
        Row("commit-latency-c1", alone.p50 * 1e3, "ms", note=note),
        Row("commit-read", reads * 1e6, "us", note=note),
    ]


async def written(log: Log) -> list[int]:
    """Positions that hold an entry."""
    return [(await log.append(os.urandom(100))).glsn for _ in range(READS)]


async def read_seconds(log: Log, positions: list[int]) -> float:
    """Of one read at a time, the median."""
    took = []
    for glsn in positions:
        began = perf_counter()
        await log.read(glsn)
        took.append(perf_counter() - began)
    return median(took)


async def read_row(log: Log, echo_address: str) -> Row:
    """One read at a time, at the tail of the chain, against a bare frame there and back: where the client has a core to
    itself, and where it shares one with all servers. What is worse counts."""
    positions = await written(log)
    asking = Asking()
    echo = await dial(echo_address, Identity(CLUSTER, Role.CLIENT), Role.STORAGE_NODE, SECRET, asking)

    async def value() -> float:
        return await read_seconds(log, positions) * 1e6

    async def limit() -> float:
        took = []
        for _ in range(READS):
            began = perf_counter()
            pong = await asking.call(echo, lambda request: Ping(request, PAYLOAD))
            took.append(perf_counter() - began)
            assert isinstance(pong, Pong)
        return median(took) * 1e6

    rows = []
    for where in ("on two cores", "on one core"):
        with placed(together=where == "on one core"):
            rounds = await between(value, limit)
        row = against_limit("seq-read", "us", rounds, "a bare frame's round trip", "<=", 2.5)
        rows.append(replace(row, note=f"client and servers {where}"))
    echo.close()
    await echo.gone()
    better, worse = sorted(rows, key=attrgetter("ratio"))
    other = f"{better.note} {better.value:.0f} us, {better.ratio:.2f} x"
    return replace(worse, note=f"p50 of `read` of one position with nothing else in flight; {worse.note}; {other}")
