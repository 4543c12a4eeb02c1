"""A disk that is full, for `test_durable`: a small tmpfs, mounted in a name space of its own.

    unshare --user --map-root-user --mount python -m tests.archive.full DIRECTORY

The disk is filled to the last byte before a file is written, and again before a commit. Both say so, leave the archive
as it was, and succeed when there is space again.
"""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from tests.archive.made import create, file, glsns_of
from varlog.archive import Archive
from varlog.errors import DiskFull

SMALL = "2m"


def fill(path: Path) -> None:
    """Leave no space."""
    with path.open("wb", buffering=0) as ballast:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while ballast.write(bytes(size)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017  # this is no test, it makes one possible


def main() -> None:
    """See the module's text."""
    disk = Path(sys.argv[1]) / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(disk)], check=True)
    made = create(disk / "it")
    made.commit([file(made.uri, 1, 10)], 1)
    ballast = disk / "ballast"

    fill(ballast)
    with pytest.raises(DiskFull, match=f"no space is left for the archive at {disk}/it"):
        file(made.uri, 10, 5000)
    assert len(list((disk / "it" / "data").iterdir())) == 1, "nothing is left of it"
    ballast.unlink()
    held = file(made.uri, 10, 5000)

    fill(ballast)
    with pytest.raises(DiskFull, match=f"no space is left for the archive at {disk}/it"):
        made.commit([held], 10)
    assert Archive.open(made.uri).end == 10
    ballast.unlink()
    made.commit([held], 10)
    assert glsns_of(Archive.open(made.uri).scan(1, 5000)) == list(range(1, 5000))


if __name__ == "__main__":
    main()
