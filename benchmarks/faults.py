"""The figures of failures and repair. `make bench-faults` runs this; docs/benchmarks.md explains every row.

    python -m benchmarks.faults [--runs 20] [--only kill drain move restart sync] [--more]

What every run gave is kept in `benchmarks/results/faults-runs.json`; with `--only`, the kinds of runs that are not
asked for keep what they gave the last time, and with `--more` those that are asked for are added to it.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import uvloop
from matplotlib.figure import Figure

from benchmarks import faults_runs, faults_sync, harness
from benchmarks.cluster import Progress, alone
from benchmarks.faults_load import Verdict
from benchmarks.faults_runs import BEFORE, BIN, SHOWN, Outcome, Stage, stage
from benchmarks.harness import Row, report, scratch
from varlog.processes import LocalCluster

RUNS: Final = 20
KINDS: Final[Mapping[str, Callable[[Stage, int], Awaitable[None]]]] = {
    "kill": faults_runs.kill_nodes,
    "drain": faults_runs.drain,
    "move": faults_runs.move,
    "restart": faults_runs.restart_all,
    "sync": faults_sync.copy,
}
TARGETS: Final[Mapping[str, float]] = {
    "kill-primary": 2.0,
    "kill-backup": 2.0,
    "drain-stall": 0.2,
    "rejoin-stall": 0.2,
    "move-stall": 0.2,
    "restart-all": 3.0,
}
"""In seconds, at most."""


def seconds_rows(outcomes: Mapping[str, Outcome]) -> list[Row]:
    """The worst of the runs."""
    rows = []
    for name, target in TARGETS.items():
        for outcome in outcomes.values():
            if name in outcome.figures:
                values = sorted(outcome.figures[name].values)
                note = f"the worst of {len(values)} runs; median {values[len(values) // 2]:.3f} s"
                rows.append(Row(name, values[-1], "s", op="<=", target=target, note=note))
    return rows


def sync_rows(outcome: Outcome) -> list[Row]:
    """The worst run of each."""
    copied, limits, kept = (
        outcome.figures[name].values for name in (faults_sync.COPIED, faults_sync.LIMIT, faults_sync.KEPT)
    )
    ratio, value, limit = min((one / other, one, other) for one, other in zip(copied, limits, strict=True))
    note = f"payload; the worst of {len(copied)} runs"
    return [
        Row(faults_sync.COPIED, value, "MB/s", "synced-sequential", limit, ratio, ">=", 0.25, note),
        Row(faults_sync.KEPT, min(kept), "of what was offered", op=">=", target=0.9, note=f"during it; {note}"),
    ]


def verdict_rows(outcomes: Mapping[str, Outcome]) -> list[Row]:
    """What went wrong over all runs."""
    total = Verdict()
    for outcome in outcomes.values():
        total.add(outcome.verdict)
    note = f"of {total.acknowledged:,} acknowledged entries in all runs of {', '.join(outcomes)}; {total.failed} failed"
    return [
        Row(name, getattr(total, name), "entries", op="<=", target=0, note=note)
        for name in ("lost", "repeated", "reordered")
    ]


def draw(outcomes: Mapping[str, Outcome], path: Path) -> None:
    """Acknowledgements over time, around the fault of the worst run of each row."""
    shown = {
        name: figures.timeline
        for outcome in outcomes.values()
        for name, figures in outcome.figures.items()
        if name in TARGETS
    }
    figure = Figure(figsize=(9, 1.6 * len(shown) + 0.6), layout="constrained")
    for axes, (name, timeline) in zip(figure.subplots(len(shown), squeeze=False)[:, 0], shown.items(), strict=True):
        at = [-BEFORE + BIN * i for i in range(len(timeline))]
        axes.bar(at, [count / BIN for count in timeline], width=BIN, align="edge", color="tab:blue")
        axes.axvline(0, color="black", linewidth=1)
        recorded = max((i for i, count in enumerate(timeline, 1) if count), default=0) * BIN - BEFORE
        axes.axvspan(recorded, SHOWN, color="0.9")
        axes.set_xlim(-BEFORE, SHOWN)
        axes.set_ylabel(name)
    axes.set_xlabel(
        "seconds since the fault of the worst run; bars: acknowledged appends per second; grey: after the run"
    )
    figure.savefig(path, dpi=120)


class Kept:
    """What the runs gave, in a file that is written after each kind."""

    def __init__(self, asked: Sequence[str] | None, more: bool) -> None:
        self._more = more
        self._path = harness.RESULTS / "faults-runs.json"
        found: dict[str, Outcome] = {}
        if (asked or more) and self._path.exists():
            found = msgspec.json.decode(self._path.read_bytes(), type=dict[str, Outcome])
        self.outcomes = {kind: found[kind] for kind in KINDS if kind in found}

    def add(self, kind: str, outcome: Outcome) -> None:
        if self._more and kind in self.outcomes:
            self.outcomes[kind].add(outcome)
            outcome = self.outcomes[kind]
        found = self.outcomes | {kind: outcome}
        self.outcomes = {kind: found[kind] for kind in KINDS if kind in found}
        harness.RESULTS.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(msgspec.json.encode(self.outcomes) + b"\n")


async def run(directory: Path, kinds: Sequence[str], runs: int, kept: Kept) -> None:
    """The asked-for kinds of runs."""
    gc.collect()
    gc.freeze()
    tell = Progress()
    for kind in kinds:
        tell(kind)
        async with stage(LocalCluster(directory / kind), tell) as here:
            await KINDS[kind](here, runs)
            kept.add(kind, here.outcome)


async def run_until_terminated(directory: Path, kinds: Sequence[str], runs: int, kept: Kept) -> None:
    """Who ends the benchmark finds no daemons and no gigabytes left behind."""
    running = asyncio.ensure_future(run(directory, kinds, runs, kept))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    await running


def main() -> int:
    parser = harness.options(__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="how many of each kind")
    parser.add_argument("--only", nargs="+", choices=KINDS, help="these kinds of runs; the others stay as they were")
    parser.add_argument("--more", action="store_true", help="add to the runs that there are")
    asked = parser.parse_args()
    kept = Kept(asked.only, asked.more)
    with alone(), scratch() as directory:
        uvloop.run(run_until_terminated(directory, asked.only or list(KINDS), asked.runs, kept))
    outcomes = kept.outcomes
    draw(outcomes, harness.RESULTS / "faults-timeline.png")
    rows = seconds_rows(outcomes)
    if "sync" in outcomes:
        rows += sync_rows(outcomes["sync"])
    return report("faults", [*rows, *verdict_rows(outcomes)])


if __name__ == "__main__":
    sys.exit(main())
