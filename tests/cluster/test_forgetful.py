"""The file layer that forgets unsynced writes at a kill, against the simulated disk and by really being killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.fileops import Operation, Performer
from tests.cluster.forgetful import ForgetfulFileSystem
from varlog.sim.disk import SimDisk
from varlog.storage.files import OSFileSystem

ROOT = Path(__file__).resolve().parents[2]
DIRECTORIES = ["d", "d/d", "f"]
FILES = ["f", "g", "d/f", "d/g", "d/d/f"]

number = st.integers(0, 3)
small = st.integers(0, 40)
on_file = st.one_of(
    st.tuples(st.just("write"), number, st.integers(1, 255), small, small),
    st.tuples(st.just("pread"), number, small, small),
    st.tuples(st.sampled_from(["truncate", "allocate"]), number, small),
    st.tuples(st.sampled_from(["fdatasync", "size", "close"]), number),
)
renames = [("rename", f"{d}{a}", f"{d}{b}") for d in ("", "d/") for a in "fg" for b in "fg"]
on_names = st.one_of(
    st.tuples(st.sampled_from(["create", "create", "open", "unlink", "exists"]), st.sampled_from(FILES)),
    st.tuples(st.sampled_from(["mkdir", "rmdir", "listdir", "is_writable_directory"]), st.sampled_from(DIRECTORIES)),
    st.tuples(st.sampled_from(["listdir", "sync_dir"]), st.sampled_from(["", "d", "d/d"])),
    st.sampled_from(renames),
)


class NothingSurvives(random.Random):
    """Chance as a simulated disk needs it to keep none of what was not synced."""

    def random(self) -> float:
        return 1.0

    def randrange(self, *_: int) -> int:  # type: ignore[override]
        return 0


def model_of(program: list[Operation]) -> tuple[SimDisk, list[object], list[Operation]]:
    """The simulated disk after a program, and what it answered.

    A directory that was removed is not made again: the simulated disk would find the old one's files in it.
    """
    disk = SimDisk()
    performer = Performer(disk, "/v")
    answers: list[object] = []
    performed: list[Operation] = []
    removed: set[str | int] = set()
    for one in program:
        if one[0] == "mkdir" and any(str(one[1]).startswith(str(path)) for path in removed):
            continue
        performed.append(one)
        answers.append(performer.perform(one))
        if one[0] == "rmdir" and answers[-1] != "failed":
            removed.add(one[1])
    return disk, answers, performed


def medium_of(disk: SimDisk) -> dict[str, bytes | None]:
    """What a disk holds if the machine loses power now: content by path, None for a directory."""
    disk.power_loss(NothingSurvives())
    image = disk.image()
    found: dict[str, bytes | None] = {path: None for path in image.directories if path != "/v"}
    found.update({path: file.data.ljust(file.size, b"\0") for path, file in image.files.items()})
    return {path.removeprefix("/v/"): data for path, data in found.items()}


def tree_of(root: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in root.rglob("*")}


def check(program: list[Operation]) -> None:
    """Perform it on the simulated disk and on real files, compare every answer, and what a kill leaves."""
    disk, expected, performed = model_of(program)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "v")
        performer = Performer(ForgetfulFileSystem(f"{directory}/scratch"), str(root))
        assert [performer.perform(one) for one in performed] == expected
        assert tree_of(root) == medium_of(disk)


@settings(max_examples=300)
@given(st.lists(st.one_of(on_names, on_file), max_size=40))
def test_it_shows_everything_and_keeps_what_was_synced(program: list[Operation]) -> None:
    check(program)


@settings(max_examples=300)
@given(st.lists(on_file, max_size=30))
def test_handles_of_one_file_see_one_content(program: list[Operation]) -> None:
    opened: list[Operation] = [("create", "f"), ("sync_dir", ""), ("open", "f"), ("open", "f")]
    check([*opened, *program, ("open", "f"), ("pread", -1, 100, 0)])


@settings(max_examples=200)
@given(st.lists(on_names, max_size=40))
def test_names_come_and_go(program: list[Operation]) -> None:
    check([("mkdir", "d/d"), ("create", "d/f"), ("write", 0, 1, 9, 0), ("fdatasync", 0), ("sync_dir", "d"), *program])


def program_of(seed: int) -> list[Operation]:
    """A longer program that gets somewhere: files are made, written, synced and renamed again and again."""
    rng = random.Random(seed)
    program: list[Operation] = [("mkdir", "d")]
    for step in range(60):
        name = f"d/{step}"
        program += [("create", name), ("write", step, step + 1, 5000, 0), ("allocate", step, 9000)]
        if rng.random() < 0.7:
            program += [("fdatasync", step)]
        if rng.random() < 0.5:
            program += [("rename", name, f"d/final{step % 5}")]
        if rng.random() < 0.3:
            program += [("unlink", f"d/final{rng.randrange(5)}")]
        program += [("write", rng.randrange(step + 1), 7, 100, rng.randrange(9000)), ("truncate", step, 8000)]
        if rng.random() < 0.5:
            program += [("sync_dir", "d"), ("fdatasync", rng.randrange(step + 1))]
    return [*program, ("create", "d/unsynced")]


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_process_leaves_what_it_had_synced(seed: int, tmp_path: Path) -> None:
    program = program_of(seed)
    disk, _, _ = model_of(program)
    root = tmp_path / "v"
    command = [sys.executable, "-m", "tests.cluster.fileops", str(root), str(tmp_path / "scratch")]
    killed = subprocess.run(command, input=json.dumps(program), text=True, cwd=ROOT, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert tree_of(root) == medium_of(disk)
    assert list((tmp_path / "scratch").iterdir()), "files without a synced name lay here"
    ForgetfulFileSystem(str(tmp_path / "scratch"))
    assert not list((tmp_path / "scratch").iterdir())


def test_a_lock_is_seen_by_others(tmp_path: Path) -> None:
    fs = ForgetfulFileSystem(str(tmp_path / "scratch"))
    lock = fs.lock(f"{tmp_path}/lock")
    with pytest.raises(BlockingIOError):
        OSFileSystem().lock(f"{tmp_path}/lock")
    lock.release()
    OSFileSystem().lock(f"{tmp_path}/lock").release()


def test_a_closed_file_is_closed_and_nothing_is_held_open(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    fs = ForgetfulFileSystem(str(tmp_path / "scratch"))
    for name in ("a", "b", "c"):
        file = fs.create(f"{tmp_path}/{name}")
        file.pwritev([b"data"], 0)
        if name != "c":
            file.fdatasync()
        file.close()
        with pytest.raises(OSError, match="closed"):
            file.size()
        with pytest.raises(OSError, match="closed"):
            file.close()
    fs.rename(f"{tmp_path}/a", f"{tmp_path}/b")
    fs.unlink(f"{tmp_path}/c")
    fs.sync_dir(str(tmp_path))
    assert fs.listdir(str(tmp_path)) == ["b", "scratch"]
    assert set(os.listdir("/proc/self/fd")) == before


def test_names_stay_in_their_directory(tmp_path: Path) -> None:
    fs = ForgetfulFileSystem(str(tmp_path / "scratch"))
    fs.mkdir(f"{tmp_path}/d")
    fs.create(f"{tmp_path}/a").close()
    with pytest.raises(OSError, match="within one directory"):
        fs.rename(f"{tmp_path}/a", f"{tmp_path}/d/a")
