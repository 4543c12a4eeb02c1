"""The demo's pictures, as PNG files.

`pulse.png`: how many events got their positions when, of the archive and of the live log, with the kills marked.
`order.png`: what each writer took in, along the one order of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from matplotlib.figure import Figure

from varlog.demo.analysis import STEP_SECONDS, Analysis

SIZE: Final = (9.0, 4.2)
DPI: Final = 120
ARCHIVE: Final = "#4477aa"
LIVE: Final = "#ee8866"
KILL: Final = "#bb2233"
LINES: Final = ("#4477aa", "#ee8866", "#228833", "#aa3377")


class Mark(NamedTuple):
    """Something that happened."""

    time: float
    """Seconds since 1970."""
    what: str


def draw(analysis: Analysis, marks: Sequence[Mark], archived_end: int, directory: Path) -> list[Path]:
    """Draw both; returns where they are."""
    directory.mkdir(parents=True, exist_ok=True)
    pulse, order = directory / "pulse.png", directory / "order.png"
    _pulse(analysis, marks, pulse)
    _order(analysis, archived_end, order)
    return [pulse, order]


def _pulse(analysis: Analysis, marks: Sequence[Mark], path: Path) -> None:
    figure = Figure(SIZE, dpi=DPI, layout="constrained")
    axes = figure.subplots()
    begin = min(time for time, _, _ in analysis.pulse)
    base: dict[float, float] = {}
    for name, is_archived, colour in (("from the archive", True, ARCHIVE), ("from the live log", False, LIVE)):
        bars = [(time, events / STEP_SECONDS) for time, archived, events in analysis.pulse if archived is is_archived]
        axes.bar(
            [time - begin for time, _ in bars],
            [rate for _, rate in bars],
            width=STEP_SECONDS,
            align="edge",
            bottom=[base.get(time, 0.0) for time, _ in bars],
            color=colour,
            label=name,
        )
        base |= dict(bars)
    for mark in marks:
        axes.axvline(mark.time - begin, color=KILL, linewidth=1.2)
        axes.annotate(
            mark.what,
            (mark.time - begin, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            color=KILL,
        )
    axes.set(xlabel="seconds", ylabel="events per second")
    axes.set_title("When events got their positions", pad=24)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)
    _write(figure, path)


def _order(analysis: Analysis, archived_end: int, path: Path) -> None:
    figure = Figure(SIZE, dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for colour, (writer, line) in zip(LINES, sorted(analysis.along.items()), strict=True):
        axes.plot(
            [position for position, _ in line],
            [euros for _, euros in line],
            color=colour,
            label=f"writer {writer}",
            linewidth=1.4,
        )
    last = max(line[-1][0] for line in analysis.along.values())
    axes.axvspan(0, archived_end, color=ARCHIVE, alpha=0.10, linewidth=0, label="in the archive")
    axes.axvspan(archived_end, last, color=LIVE, alpha=0.14, linewidth=0, label="in the live log")
    axes.set(xlabel="position in the log (GLSN)", ylabel="euros", title="What each writer took in, along the one order")
    axes.set_xlim(0, last)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(loc="upper left", frameon=False)
    _write(figure, path)


def _write(figure: Figure, path: Path) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
