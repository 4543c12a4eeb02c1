"""Running many seeds, here and in other processes."""

from __future__ import annotations

import multiprocessing

import pytest

from tests.sim.toy_runs import Weather
from varlog.sim.runner import Totals, run_checked, run_seeds

TOYS = "tests.sim.toy_runs"


@pytest.mark.parametrize("jobs", [1, 2])
def test_totals_do_not_depend_on_the_number_of_processes(jobs: int) -> None:
    totals = Totals()
    for report in run_seeds(range(1, 11), jobs=jobs, path=f"{TOYS}:badly_at_3"):
        totals.add(report)
    assert (totals.seeds, totals.operations, totals.simulated_seconds) == (10, 50, 360.0)
    assert totals.coverage.counts == {Weather.RAIN: 5, Weather.SNOW: 1}
    assert [report.seed for report in totals.failures] == [3]


def test_children_end_when_the_caller_stops_listening() -> None:
    reports = run_seeds(range(1000), jobs=2, path=f"{TOYS}:well")
    assert next(reports).violations == []
    assert len(multiprocessing.active_children()) == 2
    reports.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


def test_a_failed_seed_comes_with_its_trace() -> None:
    assert run_checked(1, path=f"{TOYS}:badly_at_3").trace == []
    report = run_checked(3, path=f"{TOYS}:badly_at_3")
    assert report.violations == [("agreement", "the two disagree")]
    assert [line.split() for line in report.trace] == [["1.000000", "rained"]]


def test_a_replay_has_its_trace_also_if_nothing_is_wrong() -> None:
    assert len(run_checked(1, path=f"{TOYS}:well", trace=True).trace) == 1


def test_a_run_that_raises_is_a_violation() -> None:
    ((checker, message),) = run_checked(1, path=f"{TOYS}:raising").violations
    assert checker == "exception"
    assert "seed 1 fell over" in message


def test_a_seed_that_takes_two_courses_is_a_violation() -> None:
    assert [checker for checker, _ in run_checked(1, path=f"{TOYS}:fickle").violations] == ["trim", "determinism"]
