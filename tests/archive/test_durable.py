"""What survives a loss of power, and what a full disk does.

`Power` watches what is synced. What a disk would be left with is built from that: names as they were when their
directory was last synced, contents as they were when their file was. Everything else is taken to be lost.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.archive.made import archive, create, file, glsns_of
from varlog.archive import Archive

ROOT = Path(__file__).resolve().parents[2]
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")
SECONDS = 60.0


class Power:
    """See the module's text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._names: dict[int, dict[str, int]] = {}
        self._contents: dict[int, bytes] = {}
        self._sync = os.fsync
        monkeypatch.setattr(os, "fsync", self._synced)

    def _synced(self, fd: int) -> None:
        self._sync(fd)
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        inode = os.fstat(fd).st_ino
        if path.is_dir():
            self._names[inode] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._contents[inode] = path.read_bytes()

    def left(self, directory: Path, target: Path) -> Path:
        """What is left of a directory, as a copy."""
        self._copy(directory.stat().st_ino, target)
        return target

    def _copy(self, inode: int, target: Path) -> None:
        if inode in self._names:
            target.mkdir()
            for name, entry in self._names[inode].items():
                self._copy(entry, target / name)
        else:
            target.write_bytes(self._contents.get(inode, b""))


def test_P1_what_is_committed_survives_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    power = Power(monkeypatch)
    made = create(disk / "deep" / "it")
    for number, (begin, end) in enumerate([(1, 10), (10, 20), (20, 30)]):
        held = file(made.uri, begin, end)
        before = Archive.open(str(power.left(disk, tmp_path / f"before-{number}") / "deep" / "it"))
        assert before.end == begin
        made.commit([held], begin)
        after = Archive.open(str(power.left(disk, tmp_path / f"after-{number}") / "deep" / "it"))
        assert glsns_of(after.scan(1, end)) == list(range(1, end))


def _killed(_fd: int) -> None:
    raise KeyboardInterrupt


def test_P1_what_somebody_else_committed_can_be_made_to_survive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archiver that was killed between its commit and the sync leaves an entry that others see."""
    disk = tmp_path / "disk"
    disk.mkdir()
    power = Power(monkeypatch)
    made = create(disk / "it")
    held = file(made.uri, 1, 10)
    with monkeypatch.context() as killed:
        killed.setattr(os, "fsync", _killed)
        with pytest.raises(KeyboardInterrupt):
            made.commit([held], 1)
    other = Archive.open(made.uri)
    assert other.end == 10
    assert Archive.open(str(power.left(disk, tmp_path / "before") / "it")).end == 1
    other.sync()
    assert Archive.open(str(power.left(disk, tmp_path / "after") / "it")).end == 10


def test_P1_checkpoints_survive_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    power = Power(monkeypatch)
    made = create(disk / "it")
    for begin in range(1, 60):
        made.commit([file(made.uri, begin, begin + 1)], begin)
    left = power.left(disk, tmp_path / "left") / "it"
    assert list((left / "_delta_log").glob("*.checkpoint.parquet"))
    assert all(path.stat().st_size for path in (left / "_delta_log").iterdir())
    assert glsns_of(Archive.open(str(left)).scan(1, 60)) == list(range(1, 60))


def test_a_full_disk_is_said_to_be_full(tmp_path: Path) -> None:
    """In a name space of its own, in which an ordinary user may mount a disk that is small."""
    command = [*UNSHARE, sys.executable, "-m", "tests.archive.full", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"


def test_a_commit_is_refused_when_the_disk_is_gone(tmp_path: Path) -> None:
    made = archive(tmp_path / "it", 1, 10)
    held = file(made.uri, 10, 20)
    (tmp_path / "it").rename(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="it"):
        made.commit([held], 10)
    (tmp_path / "elsewhere").rename(tmp_path / "it")
    assert Archive.open(made.uri).end == 10
