"""The figures of a cluster of real processes. `make bench-cluster` runs this; docs/benchmarks.md explains every row.

Three storage nodes, a metadata repository and a manager, which idles, on this machine; this process is the one client.
Data lies on the disk of the checkout. Everything is synced before it is reported or acknowledged, as is the default.

What waits for small syncs comes first, and what fills the disk's queues later; the matrix, memory, idling and the
restart come after the log has grown to 2 GB.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from time import perf_counter

import uvloop

import varlog
from benchmarks import bare_frames, cluster_matrix, cluster_rows, slower_disk
from benchmarks.cluster_load import Appended
from benchmarks.cluster_matrix import Results, Shape
from benchmarks.cluster_rows import Limits, Place
from benchmarks.harness import Row, options, report, scratch
from varlog.client.log import Log
from varlog.processes import LocalCluster

TIMEOUT = 60.0
IDLE_SECONDS = 30.0
REST_SECONDS = 5.0
"""Before idling, so that no daemon still does what was asked of it before."""


class Progress:
    """Says what is being measured, and since when."""

    def __init__(self) -> None:
        self._began = perf_counter()

    def __call__(self, what: str) -> None:
        print(f"{perf_counter() - self._began:5.0f} s  {what}", flush=True)


async def open_topic(stack: AsyncExitStack, cluster: LocalCluster, name: str, shape: Shape) -> Log:
    """Make a topic, and connect to it."""
    async with varlog.admin(cluster.path, timeout=TIMEOUT) as admin:
        await admin.add_topic(name, replication_factor=shape.replicas, streams=shape.streams)
    return await stack.enter_async_context(varlog.connect(cluster.path, topic=name, timeout=TIMEOUT))


async def small_batches(place: Place, tell: Progress) -> list[Row]:
    """What waits for syncs and messages more than for the disk's bandwidth, and reading it."""
    tell("latency")
    rows = await cluster_rows.latency_rows(place)
    tell("appends of 100 B")
    appended, small = await cluster_rows.append_rows(place)
    tell("appends of 100 B on four log streams")
    four, small_four = await cluster_rows.four_streams_row(place)
    tell("scans of 100 B")
    read = await cluster_rows.read_rows(place, small, small_four)
    return [*rows, *appended, four, *read]


async def loads(cluster: LocalCluster, one: Log, limits: Limits, tell: Progress) -> tuple[list[Row], Results, float]:
    """Every row that needs somebody to append or read, and the matrix. Afterwards only the topic of one log stream is
    left, with so many GB in it."""
    results: dict[cluster_matrix.Cell, Appended] = {}
    async with AsyncExitStack() as stack:
        four = await open_topic(stack, cluster, "four", Shape(3, 4))
        logs = {shape: await open_topic(stack, cluster, f"matrix-{shape}", shape) for shape in cluster_matrix.SHAPES}
        place = Place(cluster, one, four, limits, [])
        rows = await small_batches(place, tell)
        tell("appends of 1 KiB and 16 KiB")
        bandwidth, large = await cluster_rows.bandwidth_rows(place)
        rows += bandwidth
        tell("scan of 1 KiB, disk bytes")
        rows += [await cluster_rows.scan_large_row(place, large), await cluster_rows.disk_bytes_row(place)]
        tell("filling the log up to 2 GB")
        gigabytes = await cluster_rows.fill(place)
        async for cell, appended in cluster_matrix.measure(logs):
            tell(f"matrix: {cell.load} {cell.shape}: {appended.entries_per_second:,.0f} entries/s")
            results[cell] = appended
    async with varlog.admin(cluster.path, timeout=TIMEOUT) as admin:
        for topic in await admin.topics():
            if topic.name != one.name:
                await admin.remove_topic(topic.name)
    return [*limits.rows(), place.others_row(), *rows], results, gigabytes


async def run(directory: Path, tell: Progress) -> tuple[list[Row], Results]:
    """Every row, and the matrix."""
    gc.collect()
    gc.freeze()  # what the benchmark has imported is not the client's
    tell("bare frames")
    rows = await bare_frames.measure()
    tell("latency on slower disks, with layouts of their own, and of daemons that sleep")
    others = [await slower_disk.latency_row(directory, seconds) for seconds in slower_disk.SLOWER]
    others.append(await cluster_rows.own_layouts_row(directory))
    others.append(await cluster_rows.asleep_row(directory))
    async with AsyncExitStack() as stack:
        echo_address = stack.enter_context(bare_frames.echo_server())
        tell("starting the cluster")
        cluster = await stack.enter_async_context(LocalCluster(directory / "cluster"))
        one = await stack.enter_async_context(varlog.connect(cluster.path, timeout=TIMEOUT))
        measured, results, gigabytes = await loads(cluster, one, Limits(directory, echo_address), tell)
        rows += [*measured, *others, cluster_rows.memory_row(cluster)]
        tell(f"idling for {IDLE_SECONDS:g} s")
        await asyncio.sleep(REST_SECONDS)
        rows.append(await cluster_rows.idle_row(cluster, IDLE_SECONDS))
        tell("restart")
        rows += await cluster_rows.restart_rows(cluster, gigabytes)
        tell("done")
    return rows, results


async def run_until_terminated(directory: Path) -> tuple[list[Row], Results]:
    """Who ends the benchmark finds no daemons and no gigabytes left behind."""
    running = asyncio.ensure_future(run(directory, Progress()))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    return await running


def main() -> int:
    options(__doc__).parse_args()
    with alone(), scratch() as directory:
        rows, results = uvloop.run(run_until_terminated(directory))
    cluster_matrix.show(results)
    return report("cluster", rows, cluster_matrix.rows(results))


@contextmanager
def alone() -> Iterator[None]:
    """Two of these at once would measure each other."""
    with open(__file__, "rb") as this:
        try:
            fcntl.flock(this, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit("another run of this benchmark is under way; wait until it has ended") from None
        yield


if __name__ == "__main__":
    sys.exit(main())
