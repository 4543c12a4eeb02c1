"""Load on a real cluster: clients that go on until they are stopped, whatever happens to the cluster, and are recorded.

Every client has a connection of its own. Entries say who appended them and which one they are, so no two are equal.
The load is kept small on purpose: enough that something is under way at any moment, and few enough operations that the
checkers judge them in a second or two.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from random import Random
from time import monotonic
from typing import Final

import varlog
from tests.cluster.cluster import Cluster
from tests.cluster.recorder import RecordedLog
from tests.cluster.waiting import pause, until
from varlog.sim.evidence import LivenessPhase
from varlog.sim.history import History, Kind, Outcome

APPEND_SECONDS: Final = 20.0
READ_SECONDS: Final = 20.0
GRACE_SECONDS: Final = 20.0
PACE: Final = 0.005


class Load:
    """The clients of a run and their history."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.history = History(monotonic)
        self.writers: list[str] = []
        self._rng = Random(seed)
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._subscriptions: list[asyncio.Task[None]] = []
        self._known = 0
        """The greatest position any client was told of."""

    # Clients

    async def write(self, client: RecordedLog, *, window: int) -> None:
        """Appends, several at a time, one to eight entries each, some of them large."""
        rng = Random(self._rng.random())
        numbers = count(1)
        self.writers.append(client.name)

        async def one_after_another() -> None:
            while not self._stopping.is_set():
                batch = next(numbers)
                size = rng.choice((0, 0, 100, 2000))
                entries = [
                    f"{client.name}/{batch}/{i}/".encode() + bytes(size) for i in range(rng.choice((1, 1, 3, 8)))
                ]
                await client.append(entries, seconds=APPEND_SECONDS)
                await self._breathe(rng)

        await asyncio.gather(*(one_after_another() for _ in range(window)))

    async def read(self, client: RecordedLog, *, trims: bool) -> None:
        """Asks for the tail, reads and scans here and there below it, and may trim."""
        rng = Random(self._rng.random())
        first = 1
        while not self._stopping.is_set():
            self._known = max(self._known, await client.tail(seconds=READ_SECONDS))
            if trims and self._known > first + 150 and rng.random() < 0.2:
                first = self._known - 50
                await client.trim(first - 1, seconds=READ_SECONDS)
            elif self._known >= first:
                begin = rng.randint(max(1, first - 5), self._known)
                await client.read(begin, seconds=READ_SECONDS)
                await client.scan(begin, min(begin + 50, self._known + 1), seconds=READ_SECONDS)
            await self._breathe(rng)

    @staticmethod
    async def _breathe(rng: Random) -> None:
        await pause(rng.uniform(0.0, 2 * PACE))

    # The run

    async def grows(self, appends: int = 50) -> None:
        """Wait until so many more appends were acknowledged that have yet to begin, and one of each writer."""
        since = monotonic()

        async def has_grown() -> bool:
            self._look_at_clients()
            new = self._acknowledged(since)
            return new.total() >= appends and set(self.writers) <= new.keys()

        await until(has_grown)

    def _acknowledged(self, since: float) -> Counter[str]:
        """How many appends that began since then were acknowledged, by writer."""
        return Counter(
            op.client for op in self.history.of(Kind.APPEND) if op.outcome is Outcome.OK and op.invoked >= since
        )

    def _look_at_clients(self) -> None:
        for task in (*self._tasks, *self._subscriptions):
            if task.done():
                task.result()

    async def start(self, stack: AsyncExitStack, *, writers: int, readers: int, subscribers: int, trims: bool) -> None:
        async def client(name: str) -> RecordedLog:
            log = await stack.enter_async_context(varlog.connect(self.cluster.path))
            return RecordedLog(name, log, self.history)

        for number in range(writers):
            writing = self.write(await client(f"writer{number + 1}"), window=self._rng.choice((1, 4, 8)))
            self._tasks.append(asyncio.create_task(writing))
        for number in range(readers):
            reading = self.read(await client(f"reader{number + 1}"), trims=trims and number == 0)
            self._tasks.append(asyncio.create_task(reading))
        for number in range(subscribers):
            subscriber = await client(f"subscriber{number + 1}")
            self._subscriptions.append(asyncio.create_task(subscriber.subscribe(1)))

    async def stop(self) -> None:
        """Let what is under way end, and the subscriptions come to the end of the log."""
        self._stopping.set()
        async with asyncio.timeout(2 * APPEND_SECONDS):
            await asyncio.gather(*self._tasks)
        await until(self._subscriptions_are_complete)

    async def _subscriptions_are_complete(self) -> bool:
        self._look_at_clients()
        known = max((op.glsn + len(op.payloads) - 1 for op in self.history.of(Kind.APPEND)), default=0)
        ends = dict.fromkeys((op.id for op in self.history.of(Kind.SUBSCRIBE) if op.outcome is Outcome.PENDING), 0)
        for op in self.history.of(Kind.DELIVERY):
            if op.parent in ends:
                ends[op.parent] = op.glsn + len(op.payloads) - 1
        return all(end >= known for end in ends.values())

    async def cancel(self) -> None:
        tasks = [*self._tasks, *self._subscriptions]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def liveness(self, healed: float) -> LivenessPhase:
        """What a cluster owes that was healed then and has settled since."""
        return LivenessPhase(healed, monotonic(), GRACE_SECONDS, self.writers)


@asynccontextmanager
async def load_on(
    cluster: Cluster, *, seed: int = 1, writers: int = 3, readers: int = 1, subscribers: int = 1, trims: bool = False
) -> AsyncIterator[Load]:
    """Clients that work until the block ends; in it `stop` ends them in an orderly way."""
    load = Load(cluster, seed)
    async with AsyncExitStack() as stack:
        try:
            await load.start(stack, writers=writers, readers=readers, subscribers=subscribers, trims=trims)
            yield load
        finally:
            await load.cancel()
