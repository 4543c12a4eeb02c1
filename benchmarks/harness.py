"""What the benchmarks share: rows, repetition, and the report.

A row is one figure. Where a limit is named (what the machine itself can do: a plain file, a bare loop) it is measured
in the same run, and the row's `ratio`, value over limit, is what the target is held against; otherwise the value is. A
row without a target is there to be watched.

Machines are noisy, so value and limit are measured in turns, round after round, and compared within each round: what
disturbs one then disturbs the other. The round with the median ratio counts, and a row shows that one round: its value
over its limit is its ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median_low
from typing import Literal

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
WIDTH = 130
"""Of the table, where there is no terminal to fit it to."""
LONGEST_BAR = 4
"""In targets."""
Op = Literal[">=", "<="]


def options(module_text: str | None) -> argparse.ArgumentParser:
    """Of a benchmark's command line: it says what its module says first, and refuses what it does not know."""
    return argparse.ArgumentParser(description=(module_text or "").partition("\n")[0])


@dataclass(frozen=True)
class Row:
    """One figure, as it stands in the results file."""

    name: str
    value: float
    unit: str
    limit_name: str | None = None
    limit: float | None = None
    ratio: float | None = None
    op: Op | None = None
    target: float | None = None
    note: str = ""
    """How it was measured, and whatever else helps to understand the figure."""

    @property
    def held(self) -> float:
        """What the target is compared with."""
        return self.value if self.ratio is None else self.ratio

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if there is none."""
        if self.target is None:
            return None
        return self.held >= self.target if self.op == ">=" else self.held <= self.target


def in_turns(rounds: int, *measures: Callable[[], float], warm_up: int = 1) -> list[tuple[float, ...]]:
    """Run the measures one after another, so often; the first rounds only warm up and are not told."""
    return [tuple(measure() for measure in measures) for _ in range(warm_up + rounds)][warm_up:]


def against_limit(
    name: str, unit: str, rounds: Sequence[tuple[float, ...]], limit_name: str, op: Op, target: float
) -> Row:
    """A row of the round with the median ratio, from rounds of (value, limit)."""
    ratio, value, limit = median_low((value / limit, value, limit) for value, limit in rounds)
    return Row(name, value, unit, limit_name, limit, ratio, op, target)


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty directory on the disk of the checkout; the system's own place for such things may be memory."""
    path = ROOT / "build" / f"benchmark-{os.getpid()}"
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def report(title: str, rows: Sequence[Row], unlisted: Sequence[Row] = ()) -> int:
    """Print the table, write `<title>.json` and `<title>.png`; the exit code says whether every target is met. What is
    unlisted stands in the file alone."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{title}.json").write_text(json.dumps([_record(row) for row in (*rows, *unlisted)], indent=2) + "\n")
    _draw(title, rows)
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    console.print(_table(title, rows))
    missed = [row.name for row in rows if row.met is False]
    if missed:
        console.print(f"[red]missed: {', '.join(missed)}[/red]")
    return 1 if missed else 0


def _record(row: Row) -> dict[str, object]:
    return {**asdict(row), "met": row.met}


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = Table(title=f"{title} on {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for heading in ("name", "value", "limit", "ratio", "target", ""):
        table.add_column(heading, justify="left" if heading in {"name", ""} else "right")
    for row in rows:
        table.add_row(
            row.name,
            f"{_number(row.value)} {row.unit}",
            "" if row.limit is None else f"{_number(row.limit)} ({row.limit_name})",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            "" if row.target is None else f"{row.op} {_number(row.target)}",
            {True: "[green]met[/green]", False: "[red]missed[/red]", None: ""}[row.met],
        )
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _draw(title: str, rows: Sequence[Row]) -> None:
    """Every figure. One with a target is drawn as a share of it: a bar that reaches the line has met its target. One
    without has no bar, only its value."""
    upwards = rows[::-1]
    figure = Figure(figsize=(8, 1.2 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    shares = [_share(row) for row in upwards]
    bars = axes.barh(
        [row.name for row in upwards], shares, color=["tab:green" if row.met else "tab:red" for row in upwards]
    )
    axes.bar_label(bars, [_label(row) for row in upwards])
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlim(0, max([1, *shares]) * 1.3)
    axes.set_xlabel("how well the target is met (1: just)")
    axes.set_title(title)
    figure.savefig(RESULTS / f"{title}.png", dpi=120)


def _share(row: Row) -> float:
    """How far the bar goes. One that is far beyond its target would leave no room for the others."""
    if row.target is None:
        return 0
    if row.op == ">=":
        return min(LONGEST_BAR, row.held / row.target)
    return min(LONGEST_BAR, row.target / row.held) if row.held > 0 else LONGEST_BAR


def _label(row: Row) -> str:
    if row.target is None:
        return f" {_number(row.value)} {row.unit} (no target)"
    return f" {_number(row.held)} ({row.op} {_number(row.target)})"
