"""The command `varlog demo`, as its audience sees it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from varlog.sim.checkers import CHECKERS
from varlog.sim.demo import run_demo

ACTS = (
    "A cluster is set up",
    "Clients append and read",
    "Node 2 loses power",
    "All machines lose power at once",
    "The log around the power losses",
    "The checks",
    "The run",
)


@pytest.fixture(scope="module")
def told() -> str:
    """What the demo prints where there is no terminal."""
    done = subprocess.run([sys.executable, "-m", "varlog", "demo"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    return done.stdout


def result(told: str, name: str) -> int:
    """A number of the closing table."""
    found = re.search(rf"{name}\s+\S\s+([\d,]+)", told)
    assert found is not None, name
    return int(found[1].replace(",", ""))


def test_the_story_is_told_from_beginning_to_end(told: str) -> None:
    places = [told.index(act) for act in ACTS]
    assert places == sorted(places)
    assert "\x1b" not in told, "without a terminal it is plain text"


def test_power_is_lost_with_unsynced_data_and_the_log_comes_back(told: str) -> None:
    assert re.search(r"sn/2 without power \(.*unsynced write", told)
    assert re.search(r"sn/1, sn/2, sn/3, mr/1 without power \(.*unsynced write", told)
    assert told.count("all log streams run again, on all replicas") == 2
    assert result(told, "machines that lost power") == 5
    assert result(told, "unsynced writes lost or damaged") > 0


def test_the_manager_speaks_for_itself(told: str) -> None:
    for decision in (
        r"log stream \d: sealing epoch \d+ because node \d is SEALING",
        r"log stream \d: node 2 is to seal at LLSN \d+",
        r"log stream \d: all 3 replicas are sealed at LLSN \d+; unsealing",
        r"log stream \d: node \d is to run as backup in epoch \d+",
        r"log stream \d: node \d is to run as primary in epoch \d+",
        r"log stream \d: all replicas run in epoch \d+",
    ):
        assert re.search(f"manager: {decision}", told), decision


def test_appends_go_on_after_each_loss(told: str) -> None:
    rounds = [int(count) for count in re.findall(r"in 3 seconds (\d+) appends are acknowledged", told)]
    assert len(rounds) == 3
    assert all(rounds)
    assert result(told, "appends acknowledged") >= sum(rounds)
    assert result(told, "entries read") > 0


def test_every_check_is_named_and_passed(told: str) -> None:
    for name in CHECKERS:
        assert re.search(rf"passed\s+{name}: \S", told), name
    assert f"{len(CHECKERS)} of {len(CHECKERS)}" in told
    assert "nothing was violated" in told


def test_a_failed_check_fails_the_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(CHECKERS, "grumpy", lambda _: ["there is always something"])
    assert run_demo() == 1
    out = capsys.readouterr().out
    assert "VIOLATED  grumpy" in out
    assert "grumpy: there is always something" in out
    assert "nothing was violated" not in out
    assert f"{len(CHECKERS) - 1} of {len(CHECKERS)}" in out


def test_the_same_seed_is_the_same_course(told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo() == 0
    here, there = (re.sub(r"\S seconds  .*", "", text) for text in (capsys.readouterr().out, told))
    assert here == there
