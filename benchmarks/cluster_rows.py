"""The rows of the cluster: each function measures one or some, with the limit they are held against.

A limit is measured before and after every value, and their mean counts: the machine is not the same from one minute to
the next, and what a disk gives in a burst it does not give for long. For the same reason the synced sequential limit
writes as many bytes as the cluster wrote in that window, and the small syncs are taken in the same minute as the
appends that wait for them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import varlog
from benchmarks import cluster_load, disk_limits
from benchmarks.bare_frames import calls_per_second
from benchmarks.cluster_load import Appended, Load, Region
from benchmarks.cluster_processes import OTHERS, CpuUse, idle_cores, in_words, restart, status_bytes, written_bytes
from benchmarks.harness import Row, against_limit
from varlog import limits
from varlog.client.log import Log
from varlog.processes import LocalCluster

MB = 1_000_000
GB = 1_000_000_000
REPLICAS = 3
ROUNDS = 3
SECONDS = 2.0
BARE_SECONDS = 0.7
FILL_BYTES = 2 * GB
READ_ENTRIES = 2_000_000
"""The most of a region that one pass reads."""

Measure = Callable[[], Awaitable[float]]


class Limits:
    """Every measure of what the machine can do, in the order it was taken."""

    def __init__(self, directory: Path, echo_address: str) -> None:
        self._directory = directory
        self._echo_address = echo_address
        self.bare_frames: list[float] = []
        self.fdatasync: list[float] = []
        self.synced_sequential: list[float] = []

    async def bare(self) -> float:
        """Calls/s."""
        self.bare_frames.append(await calls_per_second(self._echo_address, BARE_SECONDS))
        return self.bare_frames[-1]

    async def sync(self) -> float:
        """Seconds."""
        self.fdatasync.append(disk_limits.fdatasync_seconds(self._directory))
        return self.fdatasync[-1]

    def append(self) -> float:
        """Seconds of all that the disk does for an append which comes alone."""
        return disk_limits.append_seconds(self._directory, REPLICAS)

    async def sequential(self, size: float = 256 * limits.MIB) -> float:
        """MB/s of about so many bytes."""
        mebibytes = min(1024, max(128, int(size) // limits.MIB))
        self.synced_sequential.append(disk_limits.synced_sequential(self._directory, mebibytes))
        return self.synced_sequential[-1]

    def rows(self) -> list[Row]:
        """What they were, at the median over the run."""
        syncs, rates = sorted(self.fdatasync), sorted(self.synced_sequential)
        cores = disk_limits.fdatasyncs(self._directory)
        of_cores = ", ".join(f"{median(took) * 1e3:.2f} on core {core}" for core, took in cores.items())
        return [
            Row(
                "fdatasync",
                median(syncs) * 1e3,
                "ms",
                note=f"4 KiB appended to a growing file; median of {len(syncs)} medians, "
                f"{syncs[0] * 1e3:.2f} to {syncs[-1] * 1e3:.2f} ms; at the end {of_cores}",
            ),
            Row(
                "synced-sequential",
                median(rates),
                "MB/s",
                note=f"1 MiB writes, each synced; median of {len(rates)} runs, {rates[0]:.0f} to {rates[-1]:.0f} MB/s",
            ),
        ]


class Place(NamedTuple):
    """Where rows are measured: a cluster with a topic of one log stream and one of four, three replicas each."""

    cluster: LocalCluster
    one: Log
    four: Log
    limits: Limits
    others: list[float]
    """How many cores had something else to do, in each window of appends."""

    async def append(self, log: Log, load: Load) -> tuple[Appended, str]:
        """Append for a while, and say who used how much CPU."""

        async def window() -> tuple[Appended, dict[str, float]]:
            use = CpuUse(self.cluster.daemons)
            return await cluster_load.append_for(log, load, SECONDS, replicas=REPLICAS), use.shares()

        appended, shares = await cluster_load.again(window)
        self.others.append(shares[OTHERS])
        return appended, in_words(shares, appended.batches_per_second)

    def others_row(self) -> Row:
        """How much the machine had to do besides."""
        told = f"cores busy with other things while appends were measured, at most {max(self.others):.2f}"
        note = f"{told}; what is above 0.2 or so disturbs every figure here"
        return Row("others-cpu", median(self.others), "cores", note=note)


async def between(value: Measure, limit: Measure, rounds: int = ROUNDS) -> list[tuple[float, ...]]:
    """Value and limit of so many rounds; the limit is the mean of what it was before and after."""
    before = await limit()
    pairs: list[tuple[float, ...]] = []
    for _ in range(rounds):
        found = await value()
        after = await limit()
        pairs.append((found, (before + after) / 2))
        before = after
    return pairs


async def append_rows(place: Place) -> tuple[list[Row], Region]:
    """Entries/s against bare frames, and where the batches of 100 lie for those who read."""
    rows = []
    region = Region(1, 1)
    for name, load, target in (
        ("append-100-b1-c256", Load(100, 1, 256), 0.25),
        ("append-100-b100", Load(100, 100, 256), 5),
        ("append-100-b1000", Load(100, 1000, 48), 6),
    ):
        begin = await cluster_load.settle(place.one) + 1
        row, seen = await _append(place, name, load, target)
        if load.batch == 100:
            region = Region(begin, await place.one.tail() + 1)
        rows.append(row)
        if load.batch == 1:
            rows += _latency_rows(name, seen)
    return rows, region


async def _append(place: Place, name: str, load: Load, target: float) -> tuple[Row, list[Appended]]:
    seen: list[Appended] = []
    words: list[str] = []

    async def value() -> float:
        appended, cpu = await place.append(place.one, load)
        seen.append(appended)
        words.append(cpu)
        return appended.entries_per_second

    rounds = await between(value, place.limits.bare)
    row = against_limit(name, "entries/s", rounds, "bare-frames", ">=", target)
    at = [appended.entries_per_second for appended in seen].index(row.value)
    return _noted(row, f"{load.in_flight} in flight; p50 {seen[at].p50 * 1e3:.1f} ms; {words[at]}"), seen


def _latency_rows(name: str, seen: list[Appended]) -> list[Row]:
    return [
        Row(f"{name}-p50", median(appended.p50 for appended in seen) * 1e3, "ms", note="of one append"),
        Row(f"{name}-p99", median(appended.p99 for appended in seen) * 1e3, "ms", note="of one append"),
    ]


async def bandwidth_rows(place: Place) -> tuple[list[Row], Region]:
    """Payload MB/s against a third of what the disk takes, and where the batches of 100 lie."""
    rows = []
    region = Region(1, 1)
    for name, load, target in (
        ("append-1k-b100", Load(1024, 100, 128), 0.5),
        ("append-1k-b1000", Load(1024, 1000, 16), 0.5),
        ("append-16k-b10", Load(16 * 1024, 10, 64), 0.35),
    ):
        begin = await cluster_load.settle(place.one) + 1
        rows.append(await _bandwidth(place, name, load, target))
        if name == "append-1k-b100":
            region = Region(begin, await place.one.tail() + 1)
    return rows, region


async def _bandwidth(place: Place, name: str, load: Load, target: float) -> Row:
    seen: list[float] = []
    words: list[str] = []

    async def value() -> float:
        appended, cpu = await place.append(place.one, load)
        seen.append(appended.megabytes_per_second)
        words.append(f"p50 {appended.p50 * 1e3:.1f} ms; {cpu}")
        return seen[-1]

    async def limit() -> float:
        wrote = seen[-1] * MB * SECONDS * REPLICAS if seen else 512 * limits.MIB
        return await place.limits.sequential(wrote) / REPLICAS

    rounds = await between(value, limit)
    row = against_limit(name, "MB/s", rounds, "synced-sequential / 3", ">=", target)
    return _noted(row, f"payload; {load.in_flight} in flight; {words[seen.index(row.value)]}")


async def four_streams_row(place: Place) -> tuple[Row, Region]:
    """Four log streams against one, and where the four lie for those who read."""
    load = Load(100, 100, 512)
    begin = await cluster_load.settle(place.four) + 1

    words: dict[float, str] = {}

    async def append(log: Log) -> float:
        appended, cpu = await place.append(log, load)
        words[appended.entries_per_second] = cpu
        return appended.entries_per_second

    rounds = await between(lambda: append(place.four), lambda: append(place.one))
    row = against_limit("append-100-b100-ls4", "entries/s", rounds, "one log stream", ">=", 0.8)
    return _noted(row, f"{load.in_flight} in flight; {words[row.value]}"), Region(begin, await place.four.tail() + 1)


async def lone(log: Log, seconds: float) -> Appended:
    """One append at a time for so long."""
    return await cluster_load.again(lambda: cluster_load.append_for(log, Load(100, 1, 1), seconds, replicas=REPLICAS))


async def latency_rows(place: Place) -> list[Row]:
    """One append at a time, against a sync; and how much later a subscriber has it."""
    seen: list[Appended] = []

    async def value() -> float:
        seen.append(await lone(place.one, SECONDS / 2))
        return seen[-1].p50 * 1e3

    async def limit() -> float:
        return await place.limits.sync() * 1e3

    rounds = await between(value, limit, 5)
    alone = against_limit("latency-c1", "ms", rounds, "fdatasync", "<=", 5)
    p99 = median(appended.p99 for appended in seen) * 1e3
    delivered = await cluster_load.deliver(place.one, 100, SECONDS)
    after = delivered.after_acknowledgement
    return [
        _noted(alone, "p50 of one append with nothing else in flight"),
        Row("latency-c1-p99", p99, "ms"),
        Row(
            "disk-c1",
            place.limits.append() * 1e3,
            "ms",
            note=f"what of it is the disk's: {REPLICAS} processes sync at once, then one more; nothing else is done",
        ),
        Row(
            "e2e-c1",
            after.p50 * 1e3,
            "ms",
            op="<=",
            target=1,
            note=f"p50 from acknowledgement to subscriber (p99 {after.p99 * 1e3:.2f} ms); "
            f"from append to subscriber p50 {delivered.after_append.p50 * 1e3:.2f} ms",
        ),
    ]


async def lone_latency_row(
    name: str, cluster: LocalCluster, directory: Path, rounds: int = ROUNDS, measured: float = SECONDS / 2
) -> Row:
    """As `latency-c1`, of a cluster that is there for this row alone."""
    async with cluster, varlog.connect(cluster.path) as log:

        async def value() -> float:
            return (await lone(log, measured)).p50 * 1e3

        async def limit() -> float:
            return disk_limits.fdatasync_seconds(directory) * 1e3

        return against_limit(name, "ms", await between(value, limit, rounds), "fdatasync", "<=", 5)


async def own_layouts_row(directory: Path, rounds: int = ROUNDS, measured: float = SECONDS / 2) -> Row:
    """The same where every daemon has a memory layout of its own, as if started by hand (`varlog.layout`)."""
    name = "latency-c1-own-layouts"
    cluster = LocalCluster(directory / name)
    for daemon in cluster.daemons:
        daemon.shares_layout = False
    row = await lone_latency_row(name, cluster, directory, rounds, measured)
    return replace(row, op=None, target=None, note="every daemon with a memory layout of its own")


async def asleep_row(directory: Path, rounds: int = ROUNDS, measured: float = SECONDS / 2) -> Row:
    """The same where daemons sleep whenever they wait (`varlog.daemon.polling`)."""
    name = "latency-c1-asleep"
    cluster = LocalCluster(directory / name)
    for daemon in (*cluster.vmrs, *cluster.nodes):
        daemon.options["busy_poll"] = "0"
    row = await lone_latency_row(name, cluster, directory, rounds, measured)
    return replace(row, op=None, target=None, note="with busy_poll = 0: every daemon sleeps whenever it waits")


async def read_rows(place: Place, one: Region, four: Region) -> list[Row]:
    """Reading what the append rows have written in batches of 100."""
    one, four = one.part(READ_ENTRIES), four.part(READ_ENTRIES)

    async def scan(log: Log, region: Region) -> float:
        return (await cluster_load.scan(log, region, 100, SECONDS / 2)).entries_per_second

    async def scan_one() -> float:
        return await scan(place.one, one)

    async def scan_four() -> float:
        return await scan(place.four, four)

    async def iterate() -> float:
        return await cluster_load.iterate(place.one, one, SECONDS / 2)

    bare = place.limits.bare
    scans = against_limit("scan-100", "entries/s", await between(scan_one, bare), "bare-frames", ">=", 20)
    fours = against_limit("scan-100-ls4", "entries/s", await between(scan_four, scan_one), "scan-100", ">=", 0.7)
    entries = against_limit("iterate-100", "entries/s", await between(iterate, bare), "bare-frames", ">=", 5)
    return [
        _noted(scans, "as batches of 100, from the page cache, every batch verified"),
        _noted(fours, "as batches, merged in order of position"),
        _noted(entries, "async for over a subscription, one entry at a time"),
    ]


async def scan_large_row(place: Place, region: Region) -> Row:
    """Reading what was written in batches of 100 entries of 1 KiB."""
    rates = [
        (await cluster_load.scan(place.one, region.part(READ_ENTRIES), 1024, SECONDS / 2)).megabytes_per_second
        for _ in range(ROUNDS)
    ]
    return Row("scan-1k", median(rates), "MB/s", note="payload, as batches of 100")


async def disk_bytes_row(place: Place) -> Row:
    """What lies behind the bytes a user appends."""
    nodes = place.cluster.nodes
    await cluster_load.settle(place.one)
    before = [written_bytes(node.pid) for node in nodes]
    journal = written_bytes(place.cluster.vmr.pid)
    payload = await cluster_load.append_bytes(place.one, Load(1024, 100, 128), 200 * MB)
    await cluster_load.settle(place.one)
    wrote = sum(written_bytes(node.pid) - then for node, then in zip(nodes, before, strict=True))
    journal = written_bytes(place.cluster.vmr.pid) - journal
    return Row(
        "disk-bytes-1k-b100",
        wrote / payload / REPLICAS,
        "x",
        op="<=",
        target=1.15,
        note=f"write_bytes of the storage nodes; {payload / MB:.0f} MB of payload, 128 in flight; "
        f"the metadata repository wrote {journal / payload:.3f} x beside them",
    )


async def fill(place: Place) -> float:
    """Let the log of one log stream hold 2 GB, and that of four next to nothing; how many GB lie on a node then."""
    for log in (place.one, place.four):
        await log.trim(await cluster_load.settle(log))
    await cluster_load.append_bytes(place.one, Load(1024, 100, 128), FILL_BYTES)
    (stream,) = place.one.log_streams
    segments = (place.cluster.path / "node-1").rglob(f"lsid={stream.lsid}/*.seg")
    return sum(path.stat().st_size for path in segments) / GB


def memory_row(cluster: LocalCluster) -> Row:
    """The most memory a daemon had resident since it began."""
    sizes = {daemon.name: status_bytes(daemon.pid, "VmHWM") / MB for daemon in cluster.daemons}
    told = ", ".join(f"{name} {size:.0f} MB" for name, size in sizes.items())
    return Row("rss-max", max(sizes.values()), "MB", op="<=", target=200, note=f"the largest daemon's VmHWM: {told}")


async def idle_row(cluster: LocalCluster, seconds: float) -> Row:
    """What all daemons together use while a client is connected and does nothing."""
    shares = await idle_cores(cluster.daemons, seconds)
    told = ", ".join(f"{name} {share:.2%}" for name, share in shares.items())
    return Row("idle-cpu", sum(shares.values()) * 100, "% of a core", op="<=", target=1, note=f"{seconds:g} s; {told}")


async def restart_rows(cluster: LocalCluster, gigabytes: float) -> list[Row]:
    """How long a storage node takes until it serves."""
    rows = []
    for name, kill in (("restart-2gb", True), ("restart-2gb-stopped", False)):
        serving, python = await restart(cluster, 5, kill=kill)
        how = "killed" if kill else "stopped"
        note = (
            f"a node {how} before, {gigabytes:.1f} GB of log; {serving:.3f} s after exec, Python's own {python:.3f} s"
        )
        rows.append(
            Row(name, serving - python, "s", op="<=" if kill else None, target=0.5 if kill else None, note=note)
        )
    return rows


def _noted(row: Row, note: str) -> Row:
    return replace(row, note=note)
