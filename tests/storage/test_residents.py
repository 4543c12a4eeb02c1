"""Many logs share what they may keep open: what is read closes what was used longest ago, and nothing in use."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.storage.owner import Owner, options
from varlog.sim.disk import SimDisk
from varlog.storage.files import FileSystem
from varlog.storage.log import StorageOptions
from varlog.storage.residents import OpenFiles

FEW = 5


def sharing(open_files: OpenFiles) -> StorageOptions:
    return replace(options(400), open_files=open_files)


def grown(fs: FileSystem, open_files: OpenFiles, path: str, stores: int = 12) -> Owner:
    """A log of many segments."""
    owner = Owner(fs, sharing(open_files), path=path)
    for _ in range(stores):
        owner.store(2, 100)
    return owner


def test_many_logs_are_read_with_few_files_open() -> None:
    open_files, disk = OpenFiles(FEW), SimDisk()
    owners = [grown(disk, open_files, f"/volume/{number}") for number in range(6)]
    for _ in range(2):
        for owner in owners:
            owner.check()
            assert len(open_files) == sum(one.storage._reader.residents for one in owners) <= FEW
            owner.store()
    for owner in owners:
        owner.storage.close()
    assert len(open_files) == 0


def test_what_was_used_longest_ago_is_closed_whosever_it_is() -> None:
    open_files, disk = OpenFiles(FEW), SimDisk()
    first, second = (grown(disk, open_files, f"/volume/{number}") for number in range(2))
    kept = first.storage._segments[:FEW]
    for segment in kept:
        first.storage._reader.index(segment)
    first.storage._reader.index(kept[0])
    for segment in second.storage._segments[: FEW - 1]:
        second.storage._reader.index(segment)
    at_hand = [segment for segment in kept if first.storage._reader.index_at_hand(segment) is not None]
    assert at_hand == [kept[0]]
    second.storage.close()
    assert len(open_files) == first.storage._reader.residents == 1


def test_a_file_is_not_closed_under_who_reads_it() -> None:
    open_files, disk = OpenFiles(FEW), SimDisk()
    first, second = (grown(disk, open_files, f"/volume/{number}") for number in range(2))
    with first.storage._reader.borrow(first.storage._segments[0]) as resident:
        second.check()
        assert first.storage._reader.residents == 0
        assert resident.file.pread(8, 0)
    with pytest.raises(OSError, match="closed"):
        resident.file.pread(8, 0)
    first.check()


READS = """
import resource, sys

from tests.storage.test_residents import OpenFiles, grown
from varlog import descriptors
from varlog.storage.files import OSFileSystem

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
shared = OpenFiles(descriptors.for_segments())
given = shared if sys.argv[2] == "shared" else OpenFiles()
owners = [grown(OSFileSystem(), given, f"{sys.argv[1]}/{number}") for number in range(5)]
for owner in owners:
    owner.check()
    for other in owners:
        other.store(2, 100)
print(len(shared))
"""


@pytest.mark.parametrize("kind", ["shared", "unbounded"])
def test_reading_leaves_descriptors_for_who_writes(kind: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READS, str(tmp_path), kind], capture_output=True, text=True, check=False
    )  # fmt: skip
    if kind == "shared":
        assert (done.returncode, done.stdout) == (0, "16\n"), done.stderr
    else:
        assert "Too many open files" in done.stderr, "or this test would prove nothing"
