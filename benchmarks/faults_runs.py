"""The runs: each befalls a cluster under traffic once, and says how long nothing was acknowledged.

Every run begins and ends with a cluster that is in order: its log stream runs on all the replicas it should have. No
run does anything that an operator would have to do to have appends go on; what they start again is what was killed.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final

import msgspec

import varlog
from benchmarks.faults_load import Ack, Traffic, Verdict, first_after, first_answer, longest_stall
from varlog.client.administering import Admin
from varlog.client.log import Log
from varlog.core.messages import StreamInfo
from varlog.processes import Daemon, LocalCluster
from varlog.types import StreamStatus

CLIENT_SECONDS: Final = 30.0
ORDER_SECONDS: Final = 60.0
"""How long a cluster may take until it is in order again."""
LOOK_SECONDS: Final = 0.02
BEFORE: Final = 0.5
"""How long there is traffic before the fault."""
AFTER: Final = 0.5
"""And after it is over."""
BIN: Final = 0.02
"""Seconds of a bar of the timeline."""
SHOWN: Final = 3.0
"""Seconds of the timeline after the fault."""


class Figures(msgspec.Struct):
    """What the runs of one row gave."""

    values: list[float] = []
    timeline: list[int] = []
    """Acknowledgements in each `BIN` from `BEFORE` the fault of the worst run to `SHOWN` after it."""

    def add(self, value: float, fault: float, acks: Iterable[Ack]) -> None:
        if not self.values or value > max(self.values):
            self.timeline = [0] * round((BEFORE + SHOWN) / BIN)
            for ack in acks:
                at = int((ack.told - fault + BEFORE) // BIN)
                if 0 <= at < len(self.timeline):
                    self.timeline[at] += 1
        self.values.append(value)


class Outcome(msgspec.Struct):
    """What a kind of run gave, by the names of rows."""

    verdict: Verdict
    figures: dict[str, Figures]

    def add(self, other: Outcome) -> None:
        """More runs of the same kind."""
        self.verdict.add(other.verdict)
        for row, figures in other.figures.items():
            mine = self.figures.setdefault(row, Figures())
            if max(figures.values) > max(mine.values, default=0.0):
                mine.timeline = figures.timeline
            mine.values += figures.values


class Stage:
    """A cluster with traffic, and the operator who looks at it."""

    def __init__(
        self, cluster: LocalCluster, operator: Admin, log: Log, traffic: Traffic, tell: Callable[[str], None]
    ) -> None:
        self.cluster = cluster
        self.operator = operator
        self.log = log
        self.traffic = traffic
        self.outcome = Outcome(Verdict(), {})
        self.tell = tell

    async def stream(self) -> StreamInfo:
        (stream,) = await self.operator.streams(timeout=CLIENT_SECONDS)
        return stream

    async def reached(self, condition: Callable[[StreamInfo], bool]) -> StreamInfo:
        """Wait until the log stream runs and is as it should be."""
        async with asyncio.timeout(ORDER_SECONDS):
            while True:
                stream = await self.stream()
                if stream.status is StreamStatus.RUNNING and condition(stream):
                    return stream
                await asyncio.sleep(LOOK_SECONDS)

    async def in_order(self) -> StreamInfo:
        return await self.reached(lambda stream: len(stream.replicas) == 3)

    async def answered(self, since: float) -> None:
        """Wait for an acknowledgement. What the metadata says is not enough after a restart: it may be of before."""
        async with asyncio.timeout(ORDER_SECONDS):
            await self.traffic.answered(since)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Traffic, before the fault and after it, and the judgement."""
        await self.in_order()
        self.traffic.begin()
        await asyncio.sleep(BEFORE)
        yield
        await asyncio.sleep(AFTER)
        verdict = await self.traffic.judge()
        if verdict.lost or verdict.repeated or verdict.reordered:
            self.tell(f"WRONG: {verdict}")
        self.outcome.verdict.add(verdict)

    def note(self, row: str, value: float, fault: float) -> None:
        self.outcome.figures.setdefault(row, Figures()).add(value, fault, self.traffic.acks)
        self.tell(f"{row}: {value:.3f}")

    async def stalls(self, row: str, act: Callable[[], Awaitable[object]], done: Callable[[StreamInfo], bool]) -> None:
        """Do what should hardly be noticed, and note the longest stall until it is done and a little later."""
        begin = perf_counter()
        await act()
        await self.reached(done)
        await asyncio.sleep(AFTER)
        await self.answered(perf_counter())  # a stall that goes on is not over because nobody looks any more
        self.note(row, longest_stall(self.traffic.acks, begin, perf_counter()), begin)


@asynccontextmanager
async def stage(cluster: LocalCluster, tell: Callable[[str], None]) -> AsyncIterator[Stage]:
    """A new cluster, and its end."""
    async with (
        cluster,
        varlog.connect(cluster.path, timeout=CLIENT_SECONDS) as log,
        varlog.admin(cluster.path, timeout=CLIENT_SECONDS) as operator,
    ):
        traffic = Traffic(log)
        try:
            yield Stage(cluster, operator, log, traffic, tell)
        except BaseException:
            for daemon in cluster.daemons:
                print(f"--- {daemon.name} said ---\n{daemon.said()}", flush=True)
            raise
        finally:
            await traffic.close()
    shutil.rmtree(cluster.path)


def node_of(cluster: LocalCluster, snid: int) -> Daemon:
    return next(node for node in cluster.nodes if node.options["snid"] == str(snid))


async def kill_nodes(stage: Stage, runs: int) -> None:
    """Kill the primary, and let it come back and rejoin; then the same with a backup."""
    for _ in range(runs):
        for row in ("kill-primary", "kill-backup"):
            async with stage.run():
                await _kill_node(stage, row)


async def _kill_node(stage: Stage, row: str) -> None:
    stream = await stage.stream()
    backup = next(snid for snid in stream.replicas if snid != stream.primary)
    victim = stream.primary if row == "kill-primary" else backup
    node = node_of(stage.cluster, victim)
    fault = perf_counter()
    await node.kill()
    done = perf_counter()
    await stage.reached(lambda stream: victim not in stream.replicas)
    await asyncio.sleep(AFTER)
    stage.note(row, first_answer(stage.traffic.acks, fault, done), fault)
    await stage.stalls("rejoin-stall", node.start, lambda stream: victim in stream.replicas)


async def drain(stage: Stage, runs: int) -> None:
    """Drain a node; afterwards let it back in."""
    for number in range(runs):
        async with stage.run():
            await _drain_node(stage, 1 + number % 3)


async def _drain_node(stage: Stage, snid: int) -> None:
    await stage.stalls(
        "drain-stall", lambda: stage.operator.drain_node(snid), lambda stream: snid not in stream.replicas
    )
    await stage.operator.undrain_node(snid)
    await stage.in_order()


async def move(stage: Stage, runs: int) -> None:
    """Move a replica to a node that is new and empty; the node it leaves is removed and deleted."""
    for number in range(4, 4 + runs):
        new = _empty_node(stage.cluster, number)
        stage.cluster.nodes.append(new)
        await new.start()
        await stage.operator.add_node(new.address)
        async with stage.run():
            old = (await stage.stream()).replicas[number % 3]
            await _move_replica(stage, old, number)
        await stage.operator.remove_node(old)
        gone = node_of(stage.cluster, old)
        await gone.stop()
        stage.cluster.nodes.remove(gone)
        shutil.rmtree(gone.options["volumes"])


async def _move_replica(stage: Stage, old: int, new: int) -> None:
    lsid = (await stage.stream()).lsid
    await stage.stalls(
        "move-stall",
        lambda: stage.operator.move_replica(lsid, to=new, away_from=old),
        lambda stream: new in stream.replicas and old not in stream.replicas,
    )


def _empty_node(cluster: LocalCluster, number: int) -> Daemon:
    volume = cluster.path / f"node-{number}"
    volume.mkdir()
    options = cluster.nodes[0].options | {"listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
    return Daemon(f"vsn{number}", "vsn", cluster.path, options | {"volumes": str(volume), "snid": str(number)})


async def restart_all(stage: Stage, runs: int) -> None:
    """Kill everything at once, and start everything at once."""
    daemons = stage.cluster.daemons
    for _ in range(runs):
        async with stage.run():
            for daemon in daemons:
                daemon.send(signal.SIGKILL)
            for daemon in daemons:
                await daemon.ended()
            starting = [asyncio.create_task(daemon.start()) for daemon in daemons]
            await asyncio.sleep(0)  # in which each of them is executed
            executed = perf_counter()
            assert all(daemon.alive for daemon in daemons)
            await asyncio.gather(*starting)
            await stage.answered(executed)
            await stage.in_order()
            await asyncio.sleep(AFTER)
            stage.note("restart-all", first_after(stage.traffic.acks, executed), executed)
