"""The figures of metadata in etcd. `make bench-meta` runs this; docs/benchmarks.md explains every row.

    python -m benchmarks.meta [--runs 20] [--only kill pause append idle size]

With `--only`, the rows that are not asked for stay in `benchmarks/results/meta.json` as they were.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Final

import uvloop

import varlog
from benchmarks import etcd_size, harness, meta_rows
from benchmarks.cluster import Progress, alone
from benchmarks.faults_runs import CLIENT_SECONDS, stage
from benchmarks.harness import Row, report, scratch
from benchmarks.meta_rows import KILL, PAUSE, Fault, cluster_on, store_on
from varlog.etcdserver import EtcdCluster

RUNS: Final = 20
ORDER: Final = (
    "leader-kill",
    "leader-pause",
    "latency-etcd",
    "throughput-etcd",
    "idle-etcd",
    "etcd-size",
    "leader-kill-wrong",
    "leader-pause-wrong",
)


async def faults(directory: Path, runs: int, tell: Progress, fault: Fault) -> list[Row]:
    async with EtcdCluster(directory / "etcd") as etcd, stage(cluster_on(etcd, directory / "cluster"), tell) as here:
        await meta_rows.without_leader(here, fault, runs)
        return meta_rows.fault_rows(fault, here.outcome)


async def append(directory: Path, _runs: int, _tell: Progress) -> list[Row]:
    async with meta_rows.sides(directory) as found:
        return [await meta_rows.latency_row(found), await meta_rows.throughput_row(found)]


async def idle(directory: Path, _runs: int, _tell: Progress) -> list[Row]:
    async with (
        EtcdCluster(directory / "etcd") as etcd,
        cluster_on(etcd, directory / "cluster") as cluster,
        varlog.connect(cluster.path, timeout=CLIENT_SECONDS) as log,
        store_on(etcd) as store,
    ):
        return [await meta_rows.idle_row(store, log)]


async def size(directory: Path, _runs: int, _tell: Progress) -> list[Row]:
    return [etcd_size.row(*await etcd_size.grow(directory))]


KINDS: Final[Mapping[str, Callable[[Path, int, Progress], Coroutine[None, None, list[Row]]]]] = {
    "kill": lambda directory, runs, tell: faults(directory, runs, tell, KILL),
    "pause": lambda directory, runs, tell: faults(directory, runs, tell, PAUSE),
    "append": append,
    "idle": idle,
    "size": size,
}


async def until_terminated(measuring: Coroutine[None, None, list[Row]]) -> list[Row]:
    """Who ends the benchmark finds no daemons and no files left behind."""
    running = asyncio.ensure_future(measuring)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    return await running


def kept() -> dict[str, Row]:
    """What was measured the last time, by name."""
    path = harness.RESULTS / "meta.json"
    found = json.loads(path.read_text()) if path.exists() else []
    return {row["name"]: Row(**{key: value for key, value in row.items() if key != "met"}) for row in found}


def main() -> int:
    parser = harness.options(__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="how often a leader is killed, and paused")
    parser.add_argument("--only", nargs="+", choices=KINDS, help="these; the rows of the others stay as they were")
    asked = parser.parse_args()
    rows = kept() if asked.only else {}
    gc.collect()
    gc.freeze()
    tell = Progress()
    with alone(), scratch() as directory:
        for kind in asked.only or KINDS:
            tell(kind)
            rows |= {
                row.name: row for row in uvloop.run(until_terminated(KINDS[kind](directory / kind, asked.runs, tell)))
            }
    return report("meta", [rows[name] for name in ORDER if name in rows])


if __name__ == "__main__":
    sys.exit(main())
