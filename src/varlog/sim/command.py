"""The command `varlog sim`: look for a seed that breaks the log.

On a terminal there is a progress bar; elsewhere a line now and then. Failures are told as they are found. At the end
stand what was done, what was met, and which seeds to replay.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec
from cyclopts import ArgumentCollection, Group, Parameter, validators
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from varlog.sim.runner import RUN_SEED, SeedReport, Totals, run_checked, run_seeds
from varlog.types import Ordering

RUNS: Final = {
    (Ordering.COMMIT, False): RUN_SEED,
    (Ordering.SEQUENCER, False): "varlog.sim.chains.cluster:run_seed",
    (Ordering.COMMIT, True): "varlog.sim.transactions.cluster:run_seed",
    (Ordering.SEQUENCER, True): "varlog.sim.transactions.chains:run_seed",
}
"""What runs a seed, by the ordering of the simulated topic, and whether there are transactions."""
_SHOWN_VIOLATIONS: Final = 10
_PLAIN_EVERY: Final = 20
"""As many lines of progress, about, where there is no terminal."""


_WHAT_RUNS: Final = ("--ordering", "--transactions")


def _one_or_many(given: ArgumentCollection) -> None:
    """A seed to replay says all there is to say of what to run."""
    names = [argument.name for argument in given if argument.tokens and argument.name not in _WHAT_RUNS]
    if "--seed" in names and len(names) > 1:
        names.remove("--seed")
        raise ValueError(f"--seed replays one seed, without {' and '.join(names)}")


_WHAT_TO_RUN: Final = Group(validator=_one_or_many)

WhatToRun = Parameter(group=("Parameters", _WHAT_TO_RUN))
Flag = Annotated[bool, Parameter(negative=())]
Positive = Annotated[int, Parameter(validator=validators.Number(gte=1))]
Seed = Annotated[int, Parameter(validator=validators.Number(gte=0))]


def run_sim(
    *,
    seeds: Annotated[Positive, WhatToRun] = 100,
    first_seed: Annotated[Seed, WhatToRun] = 1,
    seed: Annotated[Seed | None, WhatToRun] = None,
    jobs: Annotated[Positive | None, WhatToRun] = None,
    json: Flag = False,
    require_coverage: Annotated[Flag, WhatToRun] = False,
    ordering: Literal["commit", "sequencer"] = "commit",
    transactions: Flag = False,
) -> int:
    """Run many seeds, or replay one.

    Parameters
    ----------
    seeds
        How many seeds to run.
    first_seed
        The first of them; the others follow it.
    seed
        Replay this one seed instead, with its trace.
    jobs
        How many processes to use; as many as there are processors if not given.
    json
        Print the result as JSON, and nothing else.
    require_coverage
        Fail also if any fault, state transition or rule branch was never met.
    ordering
        Of the simulated topic: commit or sequencer.
    transactions
        Simulate clients that transact, and readers that show only what is committed.
    """
    path = RUNS[Ordering.labelled(ordering), transactions]
    if seed is not None:
        return replay(seed, json=json, path=path)
    jobs = jobs or os.cpu_count() or 1
    return campaign(first_seed, seeds, jobs=jobs, json=json, require_coverage=require_coverage, path=path)


def replay(seed: int, *, json: bool = False, path: str = RUN_SEED) -> int:
    """Run one seed with its trace and show it."""
    report = run_checked(seed, path=path, trace=True)
    console = Console(highlight=False)
    if json:
        _print_json(_report_as_dict(report) | {"trace": list(report.trace)})
    else:
        for line in report.trace:
            console.print(line, markup=False, soft_wrap=True)
        console.print(f"seed {seed}: {report.description}", markup=False, soft_wrap=True)
        console.print(
            f"{report.operations} operations, {report.simulated_seconds:.1f} simulated seconds, "
            f"course {report.trace_hash}",
            soft_wrap=True,
        )
        _print_violations(console, report)
        if not report.violations:
            console.print("[green]nothing was violated[/green]")
    return 1 if report.violations else 0


def campaign(
    first_seed: int,
    seeds: int,
    *,
    jobs: int = 1,
    json: bool = False,
    require_coverage: bool = False,
    path: str = RUN_SEED,
) -> int:
    """Run many seeds and show what they came to."""
    # Progress and failures are for a person, who also wants to see them when the result is piped on as JSON.
    console = Console(highlight=False, stderr=json)
    totals = Totals()
    started = time.monotonic()
    reports = run_seeds(range(first_seed, first_seed + seeds), jobs=jobs, path=path)
    for report in _with_progress(console, reports, seeds):
        totals.add(report)
        if report.violations:
            _print_failure(console, report)
    totals.failures.sort(key=lambda report: report.seed)
    seconds = time.monotonic() - started
    zeros = totals.coverage.zeros()
    if json:
        _print_json(_totals_as_dict(totals, seconds))
    else:
        console.print(totals.coverage.table())
        console.print(_summary(totals, seconds))
    for title, member in zeros if require_coverage else ():
        console.print(f"[bold red]never exercised[/bold red] ({title}): {member.value}")
    for report in totals.failures:
        names = ", ".join(sorted({checker for checker, _ in report.violations}))
        again = f"varlog sim --seed {report.seed}{_which(path)}"
        console.print(f"[bold red]seed {report.seed}[/bold red] violates {names}; {again}")
    return 1 if totals.failures or (require_coverage and zeros) else 0


def _which(path: str) -> str:
    """The options that say what to run, where that is not what is run anyway."""
    ordering, transactions = next((run for run, known in RUNS.items() if known == path), (Ordering.COMMIT, False))
    which = "" if ordering is Ordering.COMMIT else f" --ordering {ordering.label}"
    return f"{which} --transactions" if transactions else which


def _with_progress(console: Console, reports: Iterator[SeedReport], seeds: int) -> Iterator[SeedReport]:
    if console.is_terminal:
        columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            yield from progress.track(reports, total=seeds)
        return
    every = max(1, seeds // _PLAIN_EVERY)
    for done, report in enumerate(reports, 1):
        yield report
        if done % every == 0 or done == seeds:
            console.print(f"{done} of {seeds} seeds")


def _print_failure(console: Console, report: SeedReport) -> None:
    console.rule(f"seed {report.seed}: {report.description}" if report.description else f"seed {report.seed}")
    for line in report.trace:
        console.print(line, markup=False, soft_wrap=True)
    _print_violations(console, report)


def _print_violations(console: Console, report: SeedReport) -> None:
    for checker, message in report.violations[:_SHOWN_VIOLATIONS]:
        console.print(f"[bold red]{checker}[/bold red]", end=": ")
        console.print(message, markup=False, soft_wrap=True)
    if len(report.violations) > _SHOWN_VIOLATIONS:
        console.print(f"and {len(report.violations) - _SHOWN_VIOLATIONS} more")


def _summary(totals: Totals, seconds: float) -> Table:
    table = Table(title="result", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("seeds", f"{totals.seeds:,}")
    table.add_row("seeds that violate something", f"{len(totals.failures):,}")
    table.add_row("operations", f"{totals.operations:,}")
    table.add_row("simulated hours", f"{totals.simulated_seconds / 3600:,.2f}")
    for title, times in totals.coverage.totals().items():
        table.add_row(title, f"{times:,}")
    table.add_row("never exercised", f"{len(totals.coverage.zeros()):,}")
    table.add_row("seconds", f"{seconds:,.1f}")
    table.add_row("operations per second", f"{totals.operations / max(seconds, 1e-9):,.0f}")
    return table


def _report_as_dict(report: SeedReport) -> dict[str, object]:
    return {
        "seed": report.seed,
        "description": report.description,
        "operations": report.operations,
        "simulated_seconds": report.simulated_seconds,
        "trace_hash": report.trace_hash,
        "violations": [{"checker": checker, "message": message} for checker, message in report.violations],
    }


def _totals_as_dict(totals: Totals, seconds: float) -> dict[str, object]:
    return {
        "seeds": totals.seeds,
        "operations": totals.operations,
        "simulated_hours": totals.simulated_seconds / 3600,
        "seconds": seconds,
        "failures": [_report_as_dict(report) for report in totals.failures],
        "exercised": totals.coverage.as_dict(),
        "never_exercised": [str(member.value) for _, member in totals.coverage.zeros()],
    }


def _print_json(what: object) -> None:
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
