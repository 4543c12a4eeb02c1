"""The directory of a log on a real disk: one process at a time, and one that may be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.storage.owner import IDENTITY, Owner, check_opened, options
from varlog.errors import DirectoryLocked, NotWritable
from varlog.storage import format as fmt
from varlog.storage.files import OSFileSystem
from varlog.storage.log import LogStreamStorage

OPEN = """
import sys
from varlog.storage.files import OSFileSystem
from varlog.storage.log import LogStreamStorage
from varlog.types import LogStreamIdentity
from varlog.errors import VarlogError
try:
    LogStreamStorage.open(OSFileSystem(), sys.argv[1], LogStreamIdentity(1, 2, 3, 4))
except VarlogError as e:
    print(type(e).__name__)
else:
    print("opened")
"""


def open_in_another_process(path: Path) -> str:
    result = subprocess.run([sys.executable, "-c", OPEN, str(path)], capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_two_processes_on_one_directory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    owner = Owner(OSFileSystem(), options(), path=str(path))
    owner.store()
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    assert open_in_another_process(path) == "DirectoryLocked"
    with pytest.raises(DirectoryLocked):
        LogStreamStorage.open(OSFileSystem(), str(path), IDENTITY)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    owner.store()
    owner.storage.close()
    assert open_in_another_process(path) == "opened"
    check_opened(owner.reopen(), owner.model)
    owner.storage.close()


AS_A_USER = """
import os, sys
from varlog.storage.files import OSFileSystem
from varlog.storage.log import LogStreamStorage
from varlog.types import LogStreamIdentity
from varlog.errors import VarlogError
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for attempt in (LogStreamStorage.open, LogStreamStorage.create):
    for path in sys.argv[1:]:
        try:
            attempt(OSFileSystem(), path, LogStreamIdentity(1, 2, 3, 4))
        except VarlogError as e:
            print(type(e).__name__)
        else:
            print("done")
"""


def attempts_of_a_user(*paths: Path) -> list[str]:
    """What opening and creating say to a process that is not root; the modules are loaded while it still may."""
    done = subprocess.run(
        [sys.executable, "-c", AS_A_USER, *map(str, paths)], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_a_directory_that_may_not_be_written_is_refused_untouched() -> None:
    """On real permissions: a log whose directory is read-only, and a place for one below a read-only directory."""
    with TemporaryDirectory() as name:  # everybody may look into it; into pytest's own only its owner may
        parent = Path(name)
        parent.chmod(0o755)
        path = parent / "log"
        owner = Owner(OSFileSystem(), options(), path=str(path))
        owner.store()
        owner.storage.close()
        before = {file.name: file.read_bytes() for file in path.iterdir()}
        for directory in (path, parent):
            directory.chmod(0o555)
        try:
            assert attempts_of_a_user(path, parent / "new") == [
                "NotWritable",
                "NoSuchReplica",
                "NotWritable",
                "NotWritable",
            ]
            assert {file.name: file.read_bytes() for file in path.iterdir()} == before
            assert [file.name for file in parent.iterdir()] == ["log"]
        finally:
            for directory in (path, parent):
                directory.chmod(0o755)


def test_a_volume_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotWritable):
            LogStreamStorage.create(OSFileSystem(), str(path), IDENTITY)
    assert (tmp_path / "file").read_bytes() == b""


def test_segments_are_preallocated_and_closed_ones_end_where_their_footer_does(tmp_path: Path) -> None:
    owner = Owner(OSFileSystem(), options(10_000), path=str(tmp_path / "log"))
    while len(files := sorted((tmp_path / "log").glob("*.seg"))) < 3:
        owner.store(4, 500)
    assert os.stat(files[-1]).st_size == 10_000
    assert all(file.read_bytes()[-fmt.FOOTER_BYTES :][:4] == b"VLSF" for file in files[:-1])
    owner.storage.close()
    check_opened(owner.reopen(), owner.model)
    owner.storage.close()
