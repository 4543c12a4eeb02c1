"""What the disk under the checkout can do, as the cluster's rows need to know it.

- `fdatasync`: the median time to append 4 KiB to a growing file and sync it, on all cores in turns: the disk interrupts
  one of them, and there a sync takes less than on the others. The daemons are on all of them, and where the kernel puts
  the one process that measures is chance;
- `synced-sequential`: MB/s of writing 1 MiB to the end of a growing file and syncing it, again and again;
- `disk-c1`: the median time of all that the disk does for an append which comes alone: three processes are told at once
  to write and sync what a replica writes, each to a file that is laid out as a replica's is, and when all have done so
  this process writes and syncs as much, as a metadata repository would. Nothing else is done in between.

    python -m benchmarks.disk_limits PATH

is one of those processes: for every line that it reads it writes once to that file, and says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

from varlog import limits

_ROOT = Path(__file__).resolve().parent.parent
MB = 1_000_000
_SMALL = os.urandom(4 * limits.KIB)
_LARGE = os.urandom(limits.MIB)
_FRAMES = os.urandom(400)
"""About what the frames of an entry of 100 bytes and of its commit context take."""
_PREALLOCATED = 4 * limits.MIB
_TURNS = 4
"""How often every core is visited."""


def fdatasync_seconds(directory: Path, samples: int = 200) -> float:
    """The median of so many syncs of 4 KiB, as many on every core."""
    return median([seconds for took in fdatasyncs(directory, samples).values() for seconds in took])


def fdatasyncs(directory: Path, samples: int = 200) -> dict[int, list[float]]:
    """What they took, by core."""
    allowed = os.sched_getaffinity(0)
    each = -(-samples // (_TURNS * len(allowed)))
    took: dict[int, list[float]] = {core: [] for core in sorted(allowed)}
    with _growing(directory / "fdatasync") as fd:
        try:
            for core in sorted(allowed) * _TURNS:
                os.sched_setaffinity(0, {core})
                took[core] += _synced_writes(fd, _SMALL, each)
        finally:
            os.sched_setaffinity(0, allowed)
    return took


def synced_sequential(directory: Path, mebibytes: int = 96) -> float:
    """MB/s."""
    with _growing(directory / "sequential") as fd:
        return mebibytes * limits.MIB / MB / sum(_synced_writes(fd, _LARGE, mebibytes))


@contextmanager
def _growing(path: Path) -> Iterator[int]:
    """A new file to append to."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        yield fd
    finally:
        os.close(fd)
        path.unlink()


def _synced_writes(fd: int, data: bytes, count: int) -> list[float]:
    """How long each of these took, in seconds."""
    took = []
    for _ in range(count):
        began = perf_counter()
        os.write(fd, data)
        os.fdatasync(fd)
        took.append(perf_counter() - began)
    return took


def append_seconds(directory: Path, replicas: int = 3, samples: int = 500) -> float:
    """The median of `disk-c1`, with so many replicas."""
    took = []
    with ExitStack() as stack:
        others = [stack.enter_context(_replica(directory / f"replica-{number}")) for number in range(replicas)]
        write = stack.enter_context(_preallocated(directory / "journal"))
        for _ in range(samples):
            began = perf_counter()
            for to_other, _from_other in others:
                os.write(to_other, b"\n")
            for _to_other, from_other in others:
                os.read(from_other, 1)
            next(write)
            took.append(perf_counter() - began)
    return median(took)


@contextmanager
def _replica(path: Path) -> Iterator[tuple[int, int]]:
    """A process that writes there when it is told; where it is told, and where it says that it has done so."""
    command = [sys.executable, "-m", "benchmarks.disk_limits", str(path)]
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            os.read(process.stdout.fileno(), 1)  # it is ready
            yield process.stdin.fileno(), process.stdout.fileno()
        finally:
            process.stdin.close()


@contextmanager
def _preallocated(path: Path) -> Iterator[Iterator[None]]:
    """Each step of it writes what an append comes to behind what it has written, and syncs it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.posix_fallocate(fd, 0, _PREALLOCATED)
        os.fsync(fd)
        yield _appends(fd)
    finally:
        os.close(fd)
        path.unlink()


def _appends(fd: int) -> Iterator[None]:
    offset = 0
    while True:
        os.pwrite(fd, _FRAMES, offset)
        os.fdatasync(fd)
        offset = (offset + len(_FRAMES)) % (_PREALLOCATED - len(_FRAMES))
        yield


def main() -> int:
    """See the module's text."""
    with _preallocated(Path(sys.argv[1])) as write:
        os.write(1, b".")
        while os.read(0, 1):
            next(write)
            os.write(1, b".")
    return 0


if __name__ == "__main__":
    sys.exit(main())
