"""sim-rate: how many client operations a second one process simulates, clusters, faults and checkers included.

The same few seeds in every round, so that what is compared from day to day is the same work. Whether they hold what
they promise is for `varlog sim` to say.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.harness import Row, in_turns
from varlog.sim.cluster import run_seed

SEEDS = range(8)


def rate() -> float:
    """Operations per second of wall time."""
    begin = perf_counter()
    operations = sum(run_seed(seed).operations for seed in SEEDS)
    return operations / (perf_counter() - begin)


def measure(_: Path) -> list[Row]:
    rounds = in_turns(3, rate)
    return [Row("sim-rate", median(operations for (operations,) in rounds), "operations/s")]
