"""What the client process does to a cluster, and how it is timed.

Appends are made by as many tasks as there are to be in flight; each awaits its own acknowledgement before it appends
again. Of what they did only a window counts: it opens after a warm-up and runs from the first acknowledgement in it to
the last, so that few large batches are not counted with the gaps at its ends.

A node whose disk keeps it waiting for long is taken out of its log streams until it has caught up, and fewer replicas
are quicker. What was measured meanwhile is thrown away and measured again, once all replicas are there.

How many bytes are in flight is bounded by the client itself (`limits.CLIENT_BYTES_IN_FLIGHT`): where batch and number
would exceed that, tasks wait for room, and that wait is part of the latency they see. When the time is up all tasks are
cancelled, and what they had sent is waited for before the next measure.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Awaitable, Callable, Sequence
from statistics import quantiles
from time import perf_counter
from typing import NamedTuple, TypeVar

import numpy as np

from varlog.client.log import Log
from varlog.client.reading import Batches

T = TypeVar("T")

WARM_UP = 0.3
_TRIES = 3
_WHOLE_SECONDS = 30.0
_LOOK_AGAIN = 0.1
MB = 1_000_000


class Load(NamedTuple):
    """Which appends."""

    entry_bytes: int
    batch: int
    in_flight: int

    @property
    def batch_bytes(self) -> int:
        return self.entry_bytes * self.batch

    def __str__(self) -> str:
        size = f"{self.entry_bytes // 1024}k" if self.entry_bytes >= 1024 else str(self.entry_bytes)
        return f"{size}-b{self.batch}-c{self.in_flight}"


class Appended(NamedTuple):
    """What a window of appends has shown. Latencies are in seconds."""

    load: Load
    batches_per_second: float
    p50: float
    p99: float

    @property
    def entries_per_second(self) -> float:
        return self.batches_per_second * self.load.batch

    @property
    def megabytes_per_second(self) -> float:
        return self.batches_per_second * self.load.batch_bytes / MB


class Calls:
    """When calls began and ended."""

    def __init__(self) -> None:
        self._began = array("d")
        self._ended = array("d")

    async def repeat(self, call: Callable[[], Awaitable[object]]) -> None:
        """Make one after the other until cancelled."""
        while True:
            began = perf_counter()
            await call()
            self.add(began, perf_counter())

    def add(self, began: float, ended: float) -> None:
        self._began.append(began)
        self._ended.append(ended)

    def window(self, load: Load, begin: float, end: float) -> Appended:
        """What ended in that time."""
        began, ended = np.array(self._began), np.array(self._ended)
        inside = (ended >= begin) & (ended <= end)
        count = int(inside.sum())
        assert count > 1, f"only {count} appends of {load} were acknowledged in {end - begin:.1f} s"
        took = ended[inside] - began[inside]
        span = float(ended[inside].max() - ended[inside].min())
        return Appended(load, (count - 1) / span, float(np.quantile(took, 0.5)), float(np.quantile(took, 0.99)))


def appending(log: Log, load: Load) -> Callable[[], Awaitable[object]]:
    """The call that is one append of this load."""
    if load.batch == 1:
        entry = os.urandom(load.entry_bytes)
        return lambda: log.append(entry)
    entries = [os.urandom(load.entry_bytes) for _ in range(load.batch)]
    return lambda: log.append_batch(entries)


class ReplicasMissing(Exception):
    """Log streams did not have all their replicas, or did not keep them while they were measured."""


async def append_for(
    log: Log, load: Load, seconds: float, warm_up: float = WARM_UP, *, replicas: int | None = None
) -> Appended:
    """Append for so long; if that is said, with so many replicas all the time: `ReplicasMissing` if there were not."""
    before = await _sets(log, replicas)
    appended = await _append_for(log, load, seconds, warm_up)
    await log.refresh()
    if replicas is not None and _sets_now(log) != before:
        raise ReplicasMissing(f"while {load} was measured, nodes have left their log streams or come back")
    return appended


async def again(measure: Callable[[], Awaitable[T]]) -> T:
    """What is measured, once more if replicas were missing meanwhile; that is said, for whoever judges the figures."""
    for _ in range(_TRIES - 1):
        try:
            return await measure()
        except ReplicasMissing as missing:
            print(f"         measured again: {missing}", flush=True)
    return await measure()


async def _sets(log: Log, replicas: int | None) -> set[tuple[int, int, int]]:
    """The log streams, their epochs, and how many replicas they have, once they all have so many."""
    until = perf_counter() + _WHOLE_SECONDS
    while replicas is not None and {count for _, _, count in _sets_now(log)} != {replicas}:
        if perf_counter() > until:
            raise ReplicasMissing(f"after {_WHOLE_SECONDS:g} s there are not {replicas} replicas: {_sets_now(log)}")
        await asyncio.sleep(_LOOK_AGAIN)
        await log.refresh()
    return _sets_now(log)


def _sets_now(log: Log) -> set[tuple[int, int, int]]:
    return {(stream.lsid, stream.epoch, len(stream.replicas)) for stream in log.log_streams}


async def _append_for(log: Log, load: Load, seconds: float, warm_up: float) -> Appended:
    calls, call = Calls(), appending(log, load)
    tasks = [asyncio.create_task(calls.repeat(call)) for _ in range(load.in_flight)]
    begin = perf_counter() + warm_up
    try:
        done, _ = await asyncio.wait(tasks, timeout=warm_up + seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        end = perf_counter()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()  # tasks end by an error only
    await settle(log)
    return calls.window(load, begin, end)


async def append_bytes(log: Log, load: Load, payload_bytes: int) -> int:
    """Append at least so much, and wait for it; how much it was."""
    left = -(-payload_bytes // load.batch_bytes)
    whole = left * load.batch_bytes
    call = appending(log, load)

    async def some() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await call()

    await asyncio.gather(*(some() for _ in range(load.in_flight)))
    return whole


async def settle(log: Log) -> int:
    """Wait for everything that was sent on any log stream; the tail after it."""
    await asyncio.gather(*(log.append(b"") for _ in log.log_streams))
    return await log.tail()


class Region(NamedTuple):
    """Consecutive positions of a log that were written by one load."""

    begin: int
    end: int

    def part(self, most: int) -> Region:
        return Region(self.begin, min(self.end, self.begin + most))


class Read(NamedTuple):
    entries_per_second: float
    megabytes_per_second: float
    """Of payload."""


async def scan(log: Log, region: Region, entry_bytes: int, seconds: float) -> Read:
    """Read a region as batches, again and again for so long."""
    entries, began = 0, perf_counter()
    while (elapsed := perf_counter() - began) < seconds:
        entries += await _pass(log.scan(region.begin, region.end), region)
    return Read(entries / elapsed, entries * entry_bytes / MB / elapsed)


async def _pass(batches: Batches, region: Region) -> int:
    position = region.begin
    async for found in batches:
        assert found.glsn == position
        position += found.count
    assert position == region.end
    return region.end - region.begin


async def iterate(log: Log, region: Region, seconds: float) -> float:
    """Read a region one entry at a time, again and again for so long; entries/s."""
    entries, began = 0, perf_counter()
    while (elapsed := perf_counter() - began) < seconds:
        async for _entry in log.subscribe(region.begin, end=region.end):
            entries += 1
    return entries / elapsed


class Latency(NamedTuple):
    """In seconds."""

    p50: float
    p99: float


def latency(samples: Sequence[float]) -> Latency:
    hundredths = quantiles(samples, n=100, method="inclusive")
    return Latency(hundredths[49], hundredths[98])


class Delivered(NamedTuple):
    after_acknowledgement: Latency
    after_append: Latency


async def deliver(log: Log, entry_bytes: int, seconds: float) -> Delivered:
    """One append after the other, each awaited at its end and by a subscriber in this process."""
    entry = os.urandom(entry_bytes)
    subscription = log.subscribe(await settle(log) + 1)
    arrivals: asyncio.Queue[float] = asyncio.Queue()

    async def receive() -> None:
        async for _ in subscription:
            arrivals.put_nowait(perf_counter())

    receiving = asyncio.create_task(receive())
    since_acknowledged, since_appended = [], []
    until = perf_counter() + seconds
    while perf_counter() < until:
        appended = perf_counter()
        await log.append(entry)
        acknowledged = perf_counter()
        arrived = await asyncio.wait_for(arrivals.get(), 10)
        since_acknowledged.append(arrived - acknowledged)
        since_appended.append(arrived - appended)
    await subscription.aclose()
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    return Delivered(latency(since_acknowledged), latency(since_appended))
