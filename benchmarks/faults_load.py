"""What clients do while faults befall a cluster, and the judgement over all of it.

`Traffic` is some writers in closed loop, each with one append under way, and one subscriber. Every entry says who wrote
it and which one it is. A subscriber sees the whole log, over all runs; the writers write during a run.

After each run `Traffic.judge` reads the log of that run back and compares: every acknowledged entry is to lie where the
acknowledgement said, once, in the order in which its writer and any other client can have seen it; and the subscriber
is to have seen the same. What was not acknowledged may be there, but once at most.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Final, NamedTuple

import msgspec

from varlog.client.log import Log
from varlog.errors import VarlogError

WRITERS: Final = 8
ENTRY_BYTES: Final = 100
APPEND_SECONDS: Final = 30.0
CATCH_UP_SECONDS: Final = 30.0
KEY: Final = struct.Struct("<IQ")

Key = tuple[int, int]
"""Which writer, and the number of its entry."""


class Ack(NamedTuple):
    asked: float
    told: float
    glsn: int
    key: Key


class Placed(NamedTuple):
    """An entry as a reader gets it."""

    glsn: int
    key: Key


class Verdict(msgspec.Struct):
    """How many entries went which way, over any number of runs."""

    acknowledged: int = 0
    failed: int = 0
    """Appends that ended with an error, which nothing is promised about save that they happen once at most."""
    lost: int = 0
    repeated: int = 0
    reordered: int = 0

    def add(self, other: Verdict) -> None:
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))


def compare(acks: Sequence[Ack], read: Sequence[Placed], seen: Sequence[Placed]) -> Verdict:
    """`read` is the log of a run, `seen` what the subscriber got of it, in the order in which it did."""
    there = {entry.glsn: entry.key for entry in read}
    verdict = Verdict(acknowledged=len(acks))
    verdict.lost = sum(there.get(ack.glsn) != ack.key for ack in acks)
    verdict.lost += len(set(read) - set(seen))
    verdict.repeated = _twice(entry.key for entry in read) + _twice(entry.glsn for entry in seen)
    verdict.repeated += len(set(seen) - set(read))
    verdict.reordered = _descents([entry.glsn for entry in seen]) + _overtaken(acks)
    written: dict[int, list[int]] = {}
    for writer, number in (entry.key for entry in read):
        written.setdefault(writer, []).append(number)
    verdict.reordered += sum(map(_descents, written.values()))
    return verdict


def _twice(things: Iterable[object]) -> int:
    return sum(count - 1 for count in Counter(things).values())


def _descents(numbers: Sequence[int]) -> int:
    return sum(later < earlier for earlier, later in pairwise(numbers))


def _overtaken(acks: Sequence[Ack]) -> int:
    """How many lie before one that was acknowledged before they were asked for."""
    told = sorted(acks, key=lambda ack: ack.told)
    overtaken = highest = at = 0
    for ack in sorted(acks, key=lambda ack: ack.asked):
        while told[at].told < ack.asked:
            highest = max(highest, told[at].glsn)
            at += 1
        overtaken += ack.glsn < highest
    return overtaken


class Traffic:
    """See the module's text."""

    def __init__(self, log: Log, writers: int = WRITERS) -> None:
        self.acks: list[Ack] = []
        """Of this run, in the order in which they came."""
        self._log = log
        self._numbers = [0] * writers
        self._failed: list[VarlogError] = []
        self._writing: list[asyncio.Task[None]] = []
        self._is_over = False
        self._begin = 1
        """Where this run's part of the log begins."""
        self._seen: list[Placed] = []
        self._came = asyncio.Event()
        self._told = asyncio.Event()
        self._subscriber = asyncio.create_task(self._subscribe())

    async def _subscribe(self) -> None:
        async for batch in self._log.subscribe(1).batches():
            self._seen += placed(batch.glsn, batch.payloads())
            self._came.set()

    async def _write(self, writer: int) -> None:
        while not self._is_over:
            self._numbers[writer] += 1
            key = (writer, self._numbers[writer])
            asked = perf_counter()
            try:
                result = await self._log.append(KEY.pack(*key).ljust(ENTRY_BYTES, b"."), timeout=APPEND_SECONDS)
            except VarlogError as error:
                self._failed.append(error)
            else:
                self.acks.append(Ack(asked, perf_counter(), result.glsn, key))
                self._told.set()

    def begin(self) -> None:
        """Let the writers write."""
        assert not self._writing
        self._is_over = False
        self._writing = [asyncio.create_task(self._write(writer)) for writer in range(len(self._numbers))]

    async def answered(self, since: float) -> None:
        """Wait for an acknowledgement."""
        while not self.acks or self.acks[-1].told < since:
            self._told.clear()
            await self._told.wait()

    async def judge(self) -> Verdict:
        """Let the writers end, read back what this run wrote, and forget it."""
        self._is_over = True
        await asyncio.gather(*self._writing)
        self._writing = []
        tail = await self._log.tail(timeout=CATCH_UP_SECONDS)
        read: list[Placed] = []
        if tail >= self._begin:
            async for batch in self._log.scan(self._begin, tail + 1, timeout=CATCH_UP_SECONDS):
                read += placed(batch.glsn, batch.payloads())
        async with asyncio.timeout(CATCH_UP_SECONDS):
            while not self._seen or self._seen[-1].glsn < tail:
                self._came.clear()
                await self._came.wait()
        verdict = compare(self.acks, read, self._seen)
        verdict.failed = len(self._failed)
        for error in self._failed[:3]:
            print(f"         an append failed: {error!r}", flush=True)
        self._begin = tail + 1
        self.acks, self._seen, self._failed = [], [], []
        return verdict

    async def close(self) -> None:
        for task in (self._subscriber, *self._writing):
            task.cancel()
        await asyncio.gather(self._subscriber, *self._writing, return_exceptions=True)


def placed(glsn: int, payloads: Sequence[bytes]) -> list[Placed]:
    """The entries of a batch."""
    return [Placed(glsn + i, KEY.unpack_from(payload)) for i, payload in enumerate(payloads)]


def first_answer(acks: Sequence[Ack], fault: float, done: float) -> float:
    """Seconds from a fault, which was complete when it was done, to the first acknowledgement of an append that was
    asked for later: those that come earlier may have been on their way."""
    return min(ack.told for ack in acks if ack.asked > done) - fault


def first_after(acks: Sequence[Ack], moment: float) -> float:
    """Seconds from a moment, at which nothing could be acknowledged any more, to the first acknowledgement after it."""
    return min(ack.told for ack in acks if ack.told > moment) - moment


def longest_stall(acks: Sequence[Ack], begin: float, end: float) -> float:
    """The longest time in that window without an acknowledged append."""
    times = [begin, *(ack.told for ack in acks if begin < ack.told < end), end]
    return max(later - earlier for earlier, later in pairwise(times))
