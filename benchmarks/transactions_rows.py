"""The rows of transactions: what they cost a client that writes much, and one that waits.

Both compare the same appends with and without transactions, in turns on one topic: what disturbs one disturbs the
other. Of each the round with the median ratio counts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter
from typing import Final

import varlog
from benchmarks.cluster import TIMEOUT
from benchmarks.harness import Row, against_limit
from varlog.client.log import Log
from varlog.processes import LocalCluster

TOPIC: Final = "transactions"
ENTRIES: Final = 1000
"""Of one transaction."""
BATCH: Final = 10
LARGE_BATCH: Final = 100
"""Told as well: the fewer batches there are, the more a transaction itself costs of it all."""
ENTRY_BYTES: Final = 100
WRITERS: Final = 96
"""At once, each with one transaction after another: so many that the batches below are in flight all the time."""
TASKS: Final = 4
"""Of each writer, which append its batches."""
IN_FLIGHT: Final = 256
"""Batches, with transactions and without."""
ROUNDS: Final = 11
"""On a shared machine what runs beside makes single rounds differ by half."""
SECONDS: Final = 2.0
WARM_UP: Final = 0.5
SMALL: Final = 150
"""Transactions of one entry, in a round."""

Unit = Callable[[int], Awaitable[object]]
"""Writes 1,000 entries, by the writer of that number."""


async def _rate(write: Unit) -> float:
    """Entries/s of all writers, between the first and the last acknowledgement after a warm-up; there are two at least,
    however long that takes."""
    inside: list[float] = []
    begin = perf_counter() + WARM_UP
    end = begin + SECONDS

    async def repeat(writer: int) -> None:
        while perf_counter() < end or len(inside) < 2:
            await write(writer)
            now = perf_counter()
            if begin <= now <= end or (now > end and len(inside) < 2):
                inside.append(now)

    await asyncio.gather(*(repeat(writer) for writer in range(WRITERS)))
    return ENTRIES * (len(inside) - 1) / (inside[-1] - inside[0])


async def overhead_row(log: Log) -> Row:
    """Appends in transactions of 1,000 entries against the same appends without."""
    rounds = [await _compared(log, BATCH) for _ in range(1 + ROUNDS)][1:]
    row = against_limit("txn-overhead", "entries/s", rounds, "without transactions", ">=", 0.9)
    transacted, plain = await _compared(log, LARGE_BATCH)
    note = (
        f"{WRITERS} writers, {ENTRIES} entries of {ENTRY_BYTES} B in batches of {BATCH} to a transaction, {IN_FLIGHT} "
        "batches in flight in either case; each transaction is begun, committed, and its commit read from the log. In "
        f"batches of {LARGE_BATCH}: {transacted:,.0f} against {plain:,.0f}, {transacted / plain:.2f}"
    )
    return _noted(row, note)


async def _compared(log: Log, batch: int) -> tuple[float, float]:
    """Entries/s with transactions and without."""
    entries = [os.urandom(ENTRY_BYTES) for _ in range(batch)]
    room = asyncio.Semaphore(IN_FLIGHT)
    tasks = min(TASKS, ENTRIES // batch)

    async def append(to: Log | varlog.Transaction, share: int) -> None:
        for _ in range(share, ENTRIES // batch, tasks):
            async with room:
                await to.append_batch(entries)

    async def unit(to: Log | varlog.Transaction) -> None:
        await asyncio.gather(*(append(to, share) for share in range(tasks)))

    async def plain(_writer: int) -> None:
        await unit(log)

    async def transacted(writer: int) -> None:
        transaction = await log.begin(f"writer {writer}")
        await unit(transaction)
        await transaction.commit()

    return await _rate(transacted), await _rate(plain)


async def latency_row(log: Log) -> Row:
    """Begin, one append, commit, against a plain append; one after another."""
    entry = os.urandom(ENTRY_BYTES)

    async def plain() -> None:
        await log.append(entry)

    async def transacted() -> None:
        transaction = await log.begin("small")
        await transaction.append(entry)
        await transaction.commit()

    async def took(call: Callable[[], Awaitable[None]]) -> float:
        began = perf_counter()
        await call()
        return 1e3 * (perf_counter() - began)

    rounds = []
    for _ in range(1 + ROUNDS):
        pairs = [(await took(transacted), await took(plain)) for _ in range(SMALL)]
        rounds.append((median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)))
    row = against_limit("txn-latency", "ms", rounds[1:], "a plain append", "<=", 3.3)
    return _noted(row, f"begin, append of {ENTRY_BYTES} B, commit; medians of {SMALL} each, in turns")


def _noted(row: Row, note: str) -> Row:
    return Row(row.name, row.value, row.unit, row.limit_name, row.limit, row.ratio, row.op, row.target, note)


async def measured(cluster: LocalCluster) -> list[Row]:
    """Both rows, on a topic of their own."""
    async with varlog.admin(cluster.path, timeout=TIMEOUT) as admin:
        await admin.add_topic(TOPIC, replication_factor=3, streams=1)
        async with varlog.connect(cluster.path, topic=TOPIC, timeout=TIMEOUT) as log:
            rows = [await overhead_row(log), await latency_row(log)]
        await admin.remove_topic(TOPIC)
    return rows
