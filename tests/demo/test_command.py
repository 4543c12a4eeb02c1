"""The command `varlog demo`, as its audience sees it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.docs.sessions import align, blocks_of

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "varlog", "demo"]
ACTS = (
    "A cluster of 5 processes",
    "4 writers append, 2 readers follow",
    "kill -9 vsn2",
    "kill -9 everything",
    "The proof",
    "The run",
)


def pids_in(told: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"pid (\d+)", told)]


def alive(pids: Sequence[int]) -> list[int]:
    """Those that still run a daemon."""
    commands = {pid: Path(f"/proc/{pid}/cmdline") for pid in pids}
    return [pid for pid, command in commands.items() if command.exists() and b"varlog" in command.read_bytes()]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the demo says where there is no terminal."""
    directory = tmp_path_factory.mktemp("temporary")
    environment = {**os.environ, "TMPDIR": str(directory)}
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False, timeout=100, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    assert not list(directory.iterdir()), "it leaves nothing behind"
    return done.stdout


def result(told: str, name: str) -> str:
    """A value of the closing table."""
    found = re.search(rf"{name} +│ +(\S[^│]*?) +│", told)
    assert found is not None, name
    return found[1]


def number(told: str, name: str) -> int:
    return int(result(told, name).replace(",", ""))


def test_the_story_is_told_from_beginning_to_end(told: str) -> None:
    places = [told.index(act) for act in ACTS]
    assert places == sorted(places)
    assert "\x1b" not in told, "without a terminal it is plain text"


def test_real_processes_are_killed_and_started_again(told: str) -> None:
    begun = re.findall(r"(\w+) +pid (\d+)  127\.0\.0\.1:\d+  ", told)
    gone = re.findall(r"(\w+) \(pid (\d+)\) is gone", told)
    again = re.findall(r"(\w+) is started again \(pid (\d+)\)", told)
    assert [name for name, _ in begun] == ["vmr", "vms", "vsn1", "vsn2", "vsn3"]
    assert [name for name, _ in gone] == ["vsn2", "vmr", "vms", "vsn1", "vsn2", "vsn3"]
    assert [name for name, _ in again] == [name for name, _ in gone]
    assert set(gone) <= {*begun, *again}
    assert not alive(pids_in(told)), "none is left"


def test_the_manager_speaks_for_itself(told: str) -> None:
    for decision in (
        r"log stream \d: sealing at GLSN \d+ because node 2 has not answered for [\d.]+ s",
        r"log stream \d: sealed at GLSN \d+ because .*; going on with nodes \d, \d",
        r"log stream \d: sealing at GLSN \d+ so that node 2 can join; it lacks \d+ of \d+ entries",
        r"log stream \d: sealed at GLSN \d+; going on with nodes \d, \d, \d; node 2 joined",
        r"log stream \d: nodes \d, \d, \d run in epoch \d+, node \d as primary",
    ):
        assert re.search(f"manager: {decision}", told), decision


def test_the_log_goes_on_after_each_kill(told: str) -> None:
    assert re.search(r"the log goes on without vsn2, [\d.]+ seconds after the kill", told)
    assert re.search(r"vsn2 has copied what it missed and is a replica again, after [\d.]+ seconds", told)
    assert re.search(r"the log goes on, [\d.]+ seconds after the kill", told)
    rounds = [int(count.replace(",", "")) for count in re.findall(r"([\d,]+) entries in 3 seconds", told)]
    assert len(rounds) == 4
    assert all(rounds)
    assert number(told, "entries in the log") >= sum(rounds)


def test_the_proof_holds(told: str) -> None:
    assert told.count("  holds  ") == 6
    assert "VIOLATED" not in told
    assert result(told, "checks passed") == "6 of 6"
    assert number(told, "entries in the log") == number(told, "acknowledged") + number(told, "not acknowledged")
    assert number(told, "read by each reader") == number(told, "entries in the log")
    assert "one order, nothing lost, nothing twice" in told


def test_the_readme_shows_what_the_demo_shows(told: str) -> None:
    """`VARLOG_REWRITE_GOLDEN=1` pastes it anew."""
    readme = ROOT / "README.md"
    page = readme.read_text()
    (shown,) = [block.text for block in blocks_of(page) if "kill -9 vsn2" in block.text]
    aligned = align(shown.splitlines(), told.splitlines(), numbers_vary=True)
    assert aligned is not None, told
    if os.environ.get("VARLOG_REWRITE_GOLDEN") == "1":
        readme.write_text(page.replace(shown, "\n".join([*aligned, ""])))


def test_it_ends_with_all_its_processes_when_it_is_interrupted() -> None:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        said = ""
        for line in demo.stdout:
            said += line
            if "writers append" in line:
                break
        pids = pids_in(said)
        assert len(alive(pids)) == 5
        demo.send_signal(signal.SIGINT)
        _, complaints = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert not complaints
    assert not alive(pids)
