"""The matrix: appends of every size, batch, number in flight, replication factor and number of log streams.

Every cell is a short window after a warm-up, on a topic of its replication factor and log streams; topics are trimmed
after each cell, so that the disk does not fill. How many bytes are in flight is bounded by the client: 256 batches of
16 MB wait for room.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from itertools import product
from typing import NamedTuple

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks import harness
from benchmarks.cluster_load import Appended, Load, again, append_for, settle
from benchmarks.harness import Row
from varlog.client.log import Log

SIZES = (100, 1024, 16 * 1024)
BATCHES = (1, 10, 100, 1000)
IN_FLIGHT = (1, 256)
REPLICAS = (1, 3)
STREAMS = (1, 4)
SECONDS = 1.5


class Shape(NamedTuple):
    """Which topic."""

    replicas: int
    streams: int

    def __str__(self) -> str:
        return f"rf{self.replicas}-ls{self.streams}"


class Cell(NamedTuple):
    load: Load
    shape: Shape


SHAPES = tuple(Shape(*shape) for shape in product(REPLICAS, STREAMS))
CELLS = tuple(
    Cell(Load(size, batch, in_flight), shape)
    for size, batch, in_flight, shape in product(SIZES, BATCHES, IN_FLIGHT, SHAPES)
)
Results = Mapping[Cell, Appended]


async def measure(logs: Mapping[Shape, Log], seconds: float = SECONDS) -> AsyncIterator[tuple[Cell, Appended]]:
    """Every cell, one after the other."""
    for cell in CELLS:
        log = logs[cell.shape]
        appended = await again(partial(append_for, log, cell.load, seconds, replicas=cell.shape.replicas))
        await log.trim(await settle(log))
        yield cell, appended


def rows(results: Results) -> list[Row]:
    """A row for every cell."""
    return [
        Row(
            f"matrix-{cell.load}-{cell.shape}",
            appended.entries_per_second,
            "entries/s",
            note=f"{appended.megabytes_per_second:.2f} MB/s of payload; "
            f"p50 {appended.p50 * 1e3:.2f} ms, p99 {appended.p99 * 1e3:.2f} ms",
        )
        for cell, appended in results.items()
    ]


def show(results: Results) -> None:
    """Print entries/s as a table, and draw them."""
    table = Table(title="appends, entries/s, by replicas (rf), log streams (ls) and number in flight (c)")
    table.add_column("entry x batch")
    columns = list(product(SHAPES, IN_FLIGHT))
    for shape, in_flight in columns:
        table.add_column(f"{shape} c{in_flight}", justify="right")
    for size, batch in product(SIZES, BATCHES):
        found = [results[Cell(Load(size, batch, in_flight), shape)] for shape, in_flight in columns]
        table.add_row(f"{size} B x {batch}", *(f"{appended.entries_per_second:,.0f}" for appended in found))
    Console(width=150).print(table)
    draw(results)


def draw(results: Results) -> None:
    """A picture per entry size and number in flight: entries/s over the size of the batch, a line for every topic."""
    figure = Figure(figsize=(13, 7), layout="constrained")
    grid = figure.subplots(len(IN_FLIGHT), len(SIZES), sharex=True, squeeze=False)
    for (row, in_flight), (column, size) in product(enumerate(IN_FLIGHT), enumerate(SIZES)):
        axes = grid[row][column]
        for shape in SHAPES:
            rates = [results[Cell(Load(size, batch, in_flight), shape)].entries_per_second for batch in BATCHES]
            axes.loglog(BATCHES, rates, marker="o", label=str(shape))
        axes.set_title(f"{size} B, {in_flight} in flight")
        axes.set_xlabel("entries in a batch")
        axes.set_ylabel("entries/s")
        axes.grid(visible=True, alpha=0.3)
    grid[0][0].legend()
    harness.RESULTS.mkdir(parents=True, exist_ok=True)
    figure.savefig(harness.RESULTS / "cluster-matrix.png", dpi=110)
