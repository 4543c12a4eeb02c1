"""Tiny stand-ins for a simulated run, named by `module:function` as the runner names the real one."""

from __future__ import annotations

import itertools
from enum import Enum

from varlog.sim.coverage import Coverage
from varlog.sim.runner import SeedReport
from varlog.sim.world import World


class Weather(Enum):
    RAIN = "rain"
    SNOW = "snow"


_fickle = itertools.count()


def well(seed: int, *, trace: bool = False) -> SeedReport:
    """Nothing is violated; it rains on odd seeds and snows on the tenth."""
    world = World(seed, tracing=trace)
    world.at(1.0, world.trace, "rained")
    world.run(36.0)
    coverage = Coverage({"weather": (Weather,)})
    if seed % 2:
        coverage.observe(Weather.RAIN)
    if seed == 10:
        coverage.observe(Weather.SNOW)
    return SeedReport(seed, [], 5, world.now, coverage, world.trace_hash(), world.trace_lines(), "toy")


def badly_at_3(seed: int, *, trace: bool = False) -> SeedReport:
    """Seed 3 violates something."""
    report = well(seed, trace=trace)
    violations = [("agreement", "the two disagree")] if seed == 3 else []
    return SeedReport(seed, violations, 5, 36.0, report.coverage, report.trace_hash, report.trace, "toy")


def raising(seed: int, *, trace: bool = False) -> SeedReport:
    raise RuntimeError(f"seed {seed} fell over, trace {trace}")


def fickle(seed: int, *, trace: bool = False) -> SeedReport:
    """Never the same course twice."""
    report = well(seed, trace=trace)
    course = str(next(_fickle))
    return SeedReport(seed, [("trim", "bad")], 5, 36.0, report.coverage, course, report.trace)
