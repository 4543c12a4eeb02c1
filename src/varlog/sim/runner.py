"""Runs many seeds, here or in several processes, and adds up what they found.

One seed is one run of `varlog.sim.cluster.run_seed`. A seed that violates something is run again with its trace, in the
same worker: the second run must take the same course, and if it does not, that is a violation too.

Workers are processes started afresh (`spawn`), so a result does not depend on how many there are; they end with the
runner, whatever ends it.
"""

from __future__ import annotations

import importlib
import multiprocessing
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from varlog.sim.coverage import Coverage

RUN_SEED: Final = "varlog.sim.cluster:run_seed"

TRACE_TAIL: Final = 200
"""As many of its last trace lines are kept of a failed seed among many; a replay keeps all."""

Violation = tuple[str, str]
"""The checker that found it, and what it says."""


@dataclass(frozen=True)
class SeedReport:
    """What one seed came to."""

    seed: int
    violations: Sequence[Violation]
    operations: int
    """How many operations clients asked for."""
    simulated_seconds: float
    coverage: Coverage
    trace_hash: str
    trace: Sequence[str] = ()
    """Readable lines, if they were asked for."""
    description: str = ""
    """What kind of run it was: the cluster's shape and the nemesis's profile, in words."""


RunSeed = Callable[..., SeedReport]
"""`run_seed(seed, trace=...)`."""


@dataclass
class Totals:
    """What many seeds came to."""

    seeds: int = 0
    operations: int = 0
    simulated_seconds: float = 0.0
    coverage: Coverage = field(default_factory=lambda: Coverage({}))
    failures: list[SeedReport] = field(default_factory=list)

    def add(self, report: SeedReport) -> None:
        self.seeds += 1
        self.operations += report.operations
        self.simulated_seconds += report.simulated_seconds
        self.coverage.merge(report.coverage)
        if report.violations:
            self.failures.append(report)


def find_run_seed(path: str = RUN_SEED) -> RunSeed:
    """The function that runs a seed, by `module:name`."""
    module, _, name = path.partition(":")
    found: Any = getattr(importlib.import_module(module), name)
    return found  # type: ignore[no-any-return]


def run_checked(seed: int, *, path: str = RUN_SEED, trace: bool = False) -> SeedReport:
    """Run a seed, with the whole trace if it is wanted, and with the end of it if the seed fails.

    Never raises: a run that does is a violation.
    """
    run_seed = find_run_seed(path)
    report = _run(run_seed, seed, trace)
    if not report.violations or trace:
        return report
    again = _run(run_seed, seed, True)
    if again.trace_hash != report.trace_hash:
        told = ("determinism", f"seed {seed} took two courses: {report.trace_hash} and {again.trace_hash}")
        again = replace(again, violations=[*report.violations, told])
    return replace(again, trace=again.trace[-TRACE_TAIL:])


def _run(run_seed: RunSeed, seed: int, trace: bool) -> SeedReport:
    try:
        return run_seed(seed, trace=trace)
    except Exception:  # Whatever a run raises is what the run is there to find.
        return SeedReport(seed, [("exception", traceback.format_exc())], 0, 0.0, Coverage({}), "")


def run_seeds(seeds: Iterable[int], *, jobs: int = 1, path: str = RUN_SEED) -> Iterator[SeedReport]:
    """The report of each seed, as they become ready."""
    work = partial(run_checked, path=path)
    if jobs <= 1:
        yield from map(work, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(work, seeds, chunksize=4)
