"""Load on a real cluster: clients that go on until they are stopped, whatever happens to the cluster, and are recorded.

Every client has a connection of its own. Entries say who appended them and which one they are, so no two are equal.
The load is kept small on purpose: enough that something is under way at any moment, and few enough operations that the
checkers judge them in a second or two.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator
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
PACE: Final = 0.02
PIPELINE: Final = "pipeline"


def large_batches() -> Iterator[list[bytes]]:
    """To fill disks with; no two entries are equal."""
    for number in count(1):
        yield [f"large/{number}/{i}/".encode() + bytes(20_000) for i in range(10)]


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
        """Appends, so many at a time."""
        rng = Random(self._rng.random())
        batches = self._batches(client, rng)

        async def one_after_another() -> None:
            while not self._stopping.is_set():
                await client.append(next(batches), seconds=APPEND_SECONDS)
                await self._breathe(rng)

        await asyncio.gather(*(one_after_another() for _ in range(window)))

    async def pipe(self, client: RecordedLog) -> None:
        """Appends in a pipeline."""
        rng = Random(self._rng.random())

        async def batches() -> AsyncIterator[list[bytes]]:
            for batch in self._batches(client, rng):
                if self._stopping.is_set():
                    return
                yield batch
                await self._breathe(rng)

        await client.pipeline(batches(), seconds=APPEND_SECONDS)

    @staticmethod
    def _batches(client: RecordedLog, rng: Random) -> Iterator[list[bytes]]:
        """One to eight entries each, some of them large; no two are equal."""
        for number in count(1):
            padding = bytes(rng.choice((0, 0, 100, 2000)))
            yield [f"{client.name}/{number}/{i}/".encode() + padding for i in range(rng.choice((1, 1, 3, 8)))]

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

    async def start(self, stack: AsyncExitStack, *, trims: bool) -> None:
        """Three writers, one of them in a pipeline, a reader and a subscriber."""

        async def client(name: str) -> RecordedLog:
            log = await stack.enter_async_context(varlog.connect(self.cluster.path))
            return RecordedLog(name, log, self.history)

        self.writers += ["writer1", "writer2", PIPELINE]
        for name in self.writers[:2]:
            self._begin(self.write(await client(name), window=self._rng.choice((1, 4, 8))))
        self._begin(self.pipe(await client(PIPELINE)))
        self._begin(self.read(await client("reader"), trims=trims))
        subscriber = await client("subscriber")
        self._subscriptions.append(asyncio.create_task(subscriber.subscribe(1)))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

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
async def load_on(cluster: Cluster, *, seed: int, trims: bool) -> AsyncIterator[Load]:
    """Clients that work until the block ends; in it `stop` ends them in an orderly way."""
    load = Load(cluster, seed)
    async with AsyncExitStack() as stack:
        try:
            await load.start(stack, trims=trims)
            yield load
        finally:
            await load.cancel()
