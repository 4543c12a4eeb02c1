"""`sync-1gb`: how fast a node whose disk was lost gets its replica back, while appends go on.

A log of 1 GB lies on two nodes. What they take of 1 KiB x 100 appends in closed loop is measured; half of that is then
offered, by the clock and whatever becomes of it, while the third node comes back with nothing on its disk: the manager
renews it, and it copies the log and joins. The copy's MB/s of payload are held against what this disk writes and syncs
in sequence, and what was acknowledged meanwhile against what was offered.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from time import perf_counter
from typing import Final

from benchmarks import cluster_load, disk_limits
from benchmarks.cluster_load import MB, Load
from benchmarks.faults_load import KEY, Ack, Placed, compare, placed
from benchmarks.faults_runs import LOOK_SECONDS, Figures, Stage
from varlog.client.log import Log
from varlog.errors import VarlogError
from varlog.types import StreamStatus

GIGABYTE: Final = 1_000_000_000
LOAD: Final = Load(1024, 100, 64)
SECONDS: Final = 3.0
COPY_SECONDS: Final = 120.0
LIMIT_MEBIBYTES: Final = 1024
"""As much as is copied: what a disk takes in a burst it does not take for long."""
SNID: Final = 3
COPIED: Final = "sync-1gb"
LIMIT: Final = "sync-1gb-limit"
KEPT: Final = "sync-1gb-appends"


class Offered:
    """Batches appended by the clock, so many a second."""

    def __init__(self, log: Log, rate: float) -> None:
        self.acks: list[Ack] = []
        """Of batches: where their first entries lie."""
        self.failed = 0
        self._log = log
        self._rate = rate
        self._rest = os.urandom(LOAD.entry_bytes - KEY.size)
        self._under_way: set[asyncio.Task[None]] = set()
        self._offering = asyncio.create_task(self._offer())

    async def _offer(self) -> None:
        began, number = perf_counter(), 0
        while True:
            while number < (perf_counter() - began) * self._rate:
                number += 1
                task = asyncio.create_task(self._append(number))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            await asyncio.sleep(0.002)

    async def _append(self, number: int) -> None:
        asked = perf_counter()
        try:
            result = await self._log.append_batch([KEY.pack(number, i) + self._rest for i in range(LOAD.batch)])
        except VarlogError:
            self.failed += 1
            return
        self.acks.append(Ack(asked, perf_counter(), result.glsn, (number, 0)))

    def acknowledged(self, begin: float, end: float) -> float:
        """Batches a second in that time."""
        return sum(begin < ack.told < end for ack in self.acks) / (end - begin)

    async def end(self) -> None:
        """No more; wait for what is under way."""
        self._offering.cancel()
        await asyncio.gather(self._offering, *self._under_way, return_exceptions=True)


class Copying:
    """A stage on which the third node loses its disk again and again."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._log = stage.log
        self._node = stage.cluster.nodes[2]

    async def lose_disk(self) -> None:
        """It is killed, and nothing is left of its data."""
        await self._node.kill()
        await self._stage.reached(lambda stream: SNID not in stream.replicas)
        volume = self._node.options["volumes"]
        shutil.rmtree(volume)
        os.mkdir(volume)

    async def trim(self) -> None:
        """Leave 1 GB."""
        tail = await cluster_load.settle(self._log)
        keep = GIGABYTE // LOAD.entry_bytes
        if tail > keep:
            await self._log.trim(tail - keep)

    async def run(self, rate: float) -> None:
        """The copy, while so many batches a second are offered."""
        await self.trim()
        first = await self._log.tail() + 1
        limit = disk_limits.synced_sequential(self._stage.cluster.path, LIMIT_MEBIBYTES)
        offered = Offered(self._log, rate)
        try:
            await self._node.start()
            begin, end, entries = await self._copied()
        finally:
            await offered.end()
        limit = (limit + disk_limits.synced_sequential(self._stage.cluster.path, LIMIT_MEBIBYTES)) / 2
        copied = entries * LOAD.entry_bytes / MB / (end - begin)
        kept = offered.acknowledged(begin, end) / rate
        self._stage.tell(
            f"{COPIED}: {copied:.0f} MB/s of {limit:.0f} in {end - begin:.1f} s; {kept:.2f} of appends kept"
        )
        figures = self._stage.outcome.figures
        for name, value in ((COPIED, copied), (LIMIT, limit), (KEPT, kept)):
            figures.setdefault(name, Figures()).add(value, begin, offered.acks)
        await self._judge(offered, first)

    async def _copied(self) -> tuple[float, float, int]:
        """When the node began to copy, when it had joined, and how many entries it had then."""
        operator, began = self._stage.operator, 0.0
        async with asyncio.timeout(COPY_SECONDS):
            while True:
                stream = await self._stage.stream()
                if SNID in stream.replicas and stream.status is StreamStatus.RUNNING:
                    break
                if not began and any(replica.source for replica in (await operator.node(SNID)).replicas):
                    began = perf_counter()
                await asyncio.sleep(LOOK_SECONDS)
        ended = perf_counter()
        (replica,) = (await operator.node(SNID)).replicas
        return began, ended, replica.committed_end - 1 - replica.trim

    async def _judge(self, offered: Offered, first: int) -> None:
        """A batch is judged by its first entry, behind which the others are to lie. Appends by the clock have no order
        among them that anybody could rely on, save that of acknowledgements."""
        read: list[Placed] = []
        scattered, before = 0, Placed(first - 1, (0, LOAD.batch - 1))
        async for batch in self._log.scan(first, await cluster_load.settle(self._log)):
            for entry in placed(batch.glsn, batch.payloads()):
                if entry.key[1] == 0:
                    read.append(entry)
                    scattered += before.key[1] != LOAD.batch - 1
                else:
                    scattered += entry != Placed(before.glsn + 1, (before.key[0], before.key[1] + 1))
                before = entry
        verdict = compare(offered.acks, read, read)
        verdict.acknowledged *= LOAD.batch
        verdict.reordered += scattered
        verdict.failed = offered.failed
        self._stage.outcome.verdict.add(verdict)


async def copy(stage: Stage, runs: int) -> None:
    """All runs. The stage's own traffic has a rest."""
    await stage.traffic.close()
    copying = Copying(stage)
    await copying.lose_disk()
    await cluster_load.append_bytes(stage.log, Load(1024, 100, 128), GIGABYTE)
    reached = await cluster_load.append_for(stage.log, LOAD, SECONDS)
    stage.tell(f"two replicas take {reached.megabytes_per_second:.0f} MB/s")
    for number in range(runs):
        if number:
            await copying.lose_disk()
        await copying.run(reached.batches_per_second / 2)
