"""The figures of the sequencer ordering. `make bench-sequencer` runs this; docs/benchmarks.md explains every row.

    python -m benchmarks.sequencer [--runs 20] [--only calm faults]

Three storage nodes, a metadata repository, a manager and two sequencers on this machine; this process is the one
client. Everything is synced before it is acknowledged, as is the default.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

import varlog
from benchmarks import bare_frames, sequencer_faults, sequencer_rows
from benchmarks.cluster import TIMEOUT, Progress, alone
from benchmarks.cluster_rows import Limits
from benchmarks.harness import Row, options, report, scratch
from varlog.client import cluster as clusters
from varlog.processes import LocalCluster

RUNS = 20
PARTS = ("calm", "faults")


async def calm(cluster: LocalCluster, limits: Limits, echo_address: str, tell: Progress) -> list[Row]:
    """What needs nothing to fail."""
    async with varlog.admin(cluster.path, timeout=TIMEOUT) as operator:
        for name in ("seq", "counted"):
            await operator.add_topic(name, replication_factor=3, ordering="sequencer")
        topics = {topic.name: topic for topic in await operator.topics()}
    tell("positions")
    counter = await sequencer_rows.Counter.dial(clusters.find(cluster.path), topics["counted"])
    rows = await sequencer_rows.next_rows(counter, limits)
    await counter.close()
    async with varlog.connect(cluster.path, topic="seq", timeout=TIMEOUT) as log:
        tell("latency")
        rows.append(await sequencer_rows.latency_row(log, limits))
        tell("appends")
        rows += await sequencer_rows.append_rows(log, limits)
        tell("reads")
        rows.append(await sequencer_rows.read_row(log, echo_address))
    tell("the other ordering")
    async with varlog.connect(cluster.path, timeout=TIMEOUT) as log:
        rows += await sequencer_rows.commit_rows(log)
    async with varlog.admin(cluster.path, timeout=TIMEOUT) as operator:
        for name in ("seq", "counted"):
            await operator.remove_topic(name)
    return [*limits.rows(), *rows]


async def faults(cluster: LocalCluster, runs: int, tell: Progress) -> list[Row]:
    """What has to go on when something does."""
    async with sequencer_faults.stage(cluster, tell) as here:
        for _ in range(runs):
            for row in sequencer_faults.KILLS:
                await here.kill(row)
            await here.leave_hole(clusters.find(cluster.path))
        return sequencer_faults.rows(here)


async def run(directory: Path, parts: Sequence[str], runs: int) -> list[Row]:
    gc.collect()
    gc.freeze()  # what the benchmark has imported is not the client's
    tell = Progress()
    rows: list[Row] = []
    async with AsyncExitStack() as stack:
        echo_address = stack.enter_context(bare_frames.echo_server())
        cluster = await stack.enter_async_context(LocalCluster(directory / "cluster", sequencers=2))
        if "calm" in parts:
            rows += await calm(cluster, Limits(directory, echo_address), echo_address, tell)
        if "faults" in parts:
            rows += await faults(cluster, runs, tell)
    return rows


async def run_until_terminated(directory: Path, parts: Sequence[str], runs: int) -> list[Row]:
    """Who ends the benchmark finds no daemons and no gigabytes left behind."""
    running = asyncio.ensure_future(run(directory, parts, runs))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    return await running


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="how many of each fault")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts alone; nothing is recorded then")
    asked = parser.parse_args()
    with alone(), scratch() as directory:
        rows = uvloop.run(run_until_terminated(directory, asked.only or PARTS, asked.runs))
    if asked.only:
        for row in rows:
            held = "" if row.ratio is None else f" = {row.ratio:.2f} x {row.limit_name}"
            print(f"{row.name}: {row.value:,.3f} {row.unit}{held} {'' if row.met is None else row.met}")
        return 0 if all(row.met is not False for row in rows) else 1
    return report("sequencer", rows)


if __name__ == "__main__":
    sys.exit(main())
