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

from tests.docs.sessions import align, blocks_of, until

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 270.0
"""For all of it, on a machine with much else to do."""
COMMAND = [sys.executable, "-m", "varlog", "demo"]
ACTS = (
    "A cluster of 5 processes",
    "4 writers append, 2 readers follow",
    "kill -9 vsn2",
    "kill -9 everything",
    "Spark archives the log as it grows",
    "Spark reads archive and live log as one",
    "The proof",
    "The run",
)
PNG = b"\x89PNG\r\n\x1a\n"

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("spark")]


def pids_in(told: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"pid (\d+)", told)]


def alive(pids: Sequence[int]) -> list[int]:
    """Those that still run a daemon."""
    commands = {pid: Path(f"/proc/{pid}/cmdline") for pid in pids}
    return [pid for pid, command in commands.items() if command.exists() and b"varlog" in command.read_bytes()]


def of_directory(directory: Path) -> list[str]:
    """The processes that were started with this as their temporary directory: the demo's, and Spark's."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={directory}\0".encode() in process.joinpath("environ").read_bytes():
                found.append(process.joinpath("cmdline").read_text()[:200])
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
    return found


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "a path with spaces"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, output: Path) -> str:
    """What the demo says where there is no terminal."""
    directory = tmp_path_factory.mktemp("temporary")
    done = subprocess.run(
        [*COMMAND, "--output", str(output)],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env={**os.environ, "TMPDIR": str(directory)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    until(lambda: not of_directory(directory))
    assert not list(directory.glob("varlog-*")), "it leaves nothing behind"
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
    assert len(rounds) == 5
    assert all(rounds)
    assert number(told, "entries in the log") >= sum(rounds)


def test_the_proof_holds(told: str) -> None:
    assert told.count("  holds  ") == 7
    assert "VIOLATED" not in told
    assert result(told, "checks passed") == "7 of 7"
    assert number(told, "entries in the log") == number(told, "acknowledged") + number(told, "not acknowledged")
    assert number(told, "read by each reader") == number(told, "entries in the log")
    assert "one order, nothing lost, nothing twice" in told


def test_P1_spark_archives_the_log_and_reads_both_as_one(told: str) -> None:
    batches = [
        [int(number.replace(",", "")) for number in found]
        for found in re.findall(r"archived: GLSN ([\d,]+) to ([\d,]+), \d+ files?, ", told)
    ]
    assert [begin for begin, _ in batches] == [1, *(end + 1 for _, end in batches[:-1])]
    archived = number(told, "archived")
    assert archived == batches[-1][1]
    assert f"GLSN 1 to {archived:,} are in the archive only" in told
    rows = re.findall(r"(\w+) +│ +([\d,]+) │ +([\d,]+) │ +([\d,]+) │ +-?[\d,.]+ │", told)
    assert {kind for kind, *_ in rows} == {"view", "cart", "order", "refund"}
    counts = [[int(count.replace(",", "")) for count in counts] for _, *counts in rows]
    events, from_archive, from_log = map(sum, zip(*counts, strict=True))
    assert from_archive == archived
    assert from_log > 0
    assert events == from_archive + from_log == number(told, "entries in the log")


def test_the_pictures_are_where_it_says(told: str, output: Path) -> None:
    drawn = re.findall(r"drawn: (.*\.png)", told)
    assert drawn == [str(output / "pulse.png"), str(output / "order.png")]
    assert all(Path(path).read_bytes().startswith(PNG) for path in drawn)


def test_the_readme_shows_what_the_demo_shows(told: str) -> None:
    """`VARLOG_REWRITE_GOLDEN=1` pastes it anew."""
    readme = ROOT / "README.md"
    page = readme.read_text()
    (shown,) = [block.text for block in blocks_of(page) if "kill -9 vsn2" in block.text]
    aligned = align(shown.splitlines(), told.splitlines(), numbers_vary=True)
    assert aligned is not None, told
    if os.environ.get("VARLOG_REWRITE_GOLDEN") == "1":
        readme.write_text(page.replace(shown, "\n".join([*aligned, ""])))


@pytest.mark.parametrize("moment", ["writers append", "varlog pipeline archive"])
def test_it_ends_with_all_its_processes_when_it_is_interrupted(moment: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    ) as demo:
        assert demo.stdout is not None
        said = ""
        for line in demo.stdout:
            said += line
            if moment in line:
                break
        pids = pids_in(said)
        assert len(alive(pids)) == 5
        demo.send_signal(signal.SIGINT)
        _, complaints = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert not complaints
    assert not alive(pids)
    until(lambda: not of_directory(tmp_path))
