"""The rows of the sequencer ordering under faults: a replica of the chain dies, the sequencer dies, a client dies that
had been given a position.

Every run begins with a chain of three and two sequencers. Nobody operates anything: what is started again is what was
killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final

import varlog
from benchmarks.faults_load import Traffic, Verdict, first_answer
from benchmarks.harness import Row
from benchmarks.sequencer_rows import Counter
from varlog.client.administering import Admin
from varlog.client.cluster import Cluster
from varlog.client.log import Log
from varlog.core.messages import TopicInfo
from varlog.core.projection import Projection
from varlog.processes import Daemon, LocalCluster

ORDER_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.02
BEFORE: Final = 0.5
AFTER: Final = 0.5
INTERVAL: Final = 0.5
"""After which the readers of these runs fill a hole."""
KILLS: Final = ("seq-kill-head", "seq-kill-middle", "seq-kill-tail", "seq-kill-sequencer")
TARGET: Final = 2.0
HOLE_TARGET: Final = 0.2


class Stage:
    """A cluster with traffic on a sequencer topic, and the operator who looks at it."""

    def __init__(self, cluster: LocalCluster, operator: Admin, log: Log, tell: Callable[[str], None]) -> None:
        self.cluster = cluster
        self.log = log
        self.tell = tell
        self.verdict = Verdict()
        self.figures: dict[str, list[float]] = {}
        self._operator = operator
        self.traffic = Traffic(log)

    async def topic(self) -> TopicInfo:
        topics = await self._operator.topics(timeout=ORDER_SECONDS)
        return next(topic for topic in topics if topic.name == self.log.name)

    async def reached(self, condition: Callable[[Projection], bool]) -> Projection:
        async with asyncio.timeout(ORDER_SECONDS):
            while True:
                projection = (await self.topic()).projection
                if projection is not None and condition(projection):
                    return projection
                await asyncio.sleep(LOOK_SECONDS)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Projection]:
        """Traffic, before the fault and after it, and the judgement."""
        projection = await self.reached(lambda found: all(len(chain.nodes) == 3 for chain in found.chains))
        self.traffic.begin()
        await asyncio.sleep(BEFORE)
        yield projection
        await asyncio.sleep(AFTER)
        verdict = await self.traffic.judge()
        if verdict.lost or verdict.repeated or verdict.reordered:
            self.tell(f"WRONG: {verdict}")
        self.verdict.add(verdict)

    def note(self, row: str, value: float) -> None:
        self.figures.setdefault(row, []).append(value)
        self.tell(f"{row}: {value:.3f}")

    def daemon_of(self, row: str, projection: Projection) -> Daemon:
        (chain,) = projection.chains
        if row == "seq-kill-sequencer":
            return next(one for one in self.cluster.sequencers if one.address == projection.sequencer)
        snid = chain.nodes[("seq-kill-head", "seq-kill-middle", "seq-kill-tail").index(row)]
        return next(node for node in self.cluster.nodes if node.options["snid"] == str(snid))

    async def kill(self, row: str) -> None:
        """Kill one process, time the first append that is answered afterwards, and let it come back."""
        async with self.run() as projection:
            victim = self.daemon_of(row, projection)
            fault = perf_counter()
            await victim.kill()
            done = perf_counter()
            async with asyncio.timeout(ORDER_SECONDS):
                while not any(ack.asked > done for ack in self.traffic.acks):
                    await self.traffic.answered(perf_counter())
            self.note(row, first_answer(self.traffic.acks, fault, done))
        await victim.start()

    async def leave_hole(self, connected: Cluster) -> None:
        """Take a position and die; time how long a subscriber is held up, less the interval."""
        async with self.run():
            counter = await Counter.dial(connected, await self.topic())
            subscription = self.log.subscribe(await self.log.tail() + 1)
            hole = await counter.next(1)
            begun = perf_counter()
            await counter.close()
            async with asyncio.timeout(ORDER_SECONDS):
                async for entry in subscription:
                    if entry.glsn > hole:
                        break
            self.note("seq-hole", perf_counter() - begun - INTERVAL)
            await subscription.aclose()


@asynccontextmanager
async def stage(cluster: LocalCluster, tell: Callable[[str], None]) -> AsyncIterator[Stage]:
    """On a cluster that is there, with a topic of one chain."""
    async with varlog.admin(cluster.path, timeout=ORDER_SECONDS) as operator:
        await operator.add_topic("faults", replication_factor=3, ordering="sequencer")
        async with varlog.connect(cluster.path, topic="faults", timeout=ORDER_SECONDS, fill_after=INTERVAL) as log:
            here = Stage(cluster, operator, log, tell)
            try:
                yield here
            finally:
                await here.traffic.close()


def rows(here: Stage) -> list[Row]:
    """The worst of the runs, and what went wrong over all of them."""
    found = []
    for name, values in here.figures.items():
        hole = name == "seq-hole"
        what = f"beyond the interval of {INTERVAL:g} s; " if hole else ""
        note = f"{what}the worst of {len(values)} runs; median {sorted(values)[len(values) // 2]:.3f} s"
        found.append(Row(name, max(values), "s", op="<=", target=HOLE_TARGET if hole else TARGET, note=note))
    note = f"of {here.verdict.acknowledged:,} acknowledged entries; {here.verdict.failed} failed"
    return found + [
        Row(f"seq-{name}", getattr(here.verdict, name), "entries", op="<=", target=0, note=note)
        for name in ("lost", "repeated", "reordered")
    ]
