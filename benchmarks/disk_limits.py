"""What the disk under the checkout can do, as the cluster's rows need to know it.

- `fdatasync`: the median time to append 4 KiB to a growing file and sync it;
- `synced-sequential`: MB/s of writing 1 MiB to the end of a growing file and syncing it, again and again.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median
from time import perf_counter

from varlog import limits

MB = 1_000_000
_SMALL = os.urandom(4 * limits.KIB)
_LARGE = os.urandom(limits.MIB)


def fdatasync_seconds(directory: Path, samples: int = 200) -> float:
    """The median of so many syncs of 4 KiB."""
    return median(_synced_writes(directory / "fdatasync", _SMALL, samples))


def synced_sequential(directory: Path, mebibytes: int = 96) -> float:
    """MB/s."""
    return mebibytes * limits.MIB / MB / sum(_synced_writes(directory / "sequential", _LARGE, mebibytes))


def _synced_writes(path: Path, data: bytes, count: int) -> list[float]:
    """How long each of these took, in seconds."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        took = []
        for _ in range(count):
            began = perf_counter()
            os.write(fd, data)
            os.fdatasync(fd)
            took.append(perf_counter() - began)
        return took
    finally:
        os.close(fd)
        path.unlink()
