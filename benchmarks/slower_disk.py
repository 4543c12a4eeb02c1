"""The latency of one append on disks whose syncs take longer than this one's: how much of it is the disk's.

    python -m benchmarks.slower_disk PARENT SECONDS vsn start ...

is a daemon all of whose syncs take so much longer; it ends with its parent. In the process that measures, the syncs of
the limit take as much longer, so value and limit are those of one disk.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import varlog
from benchmarks import cluster_load, disk_limits
from benchmarks.cluster_load import Load
from benchmarks.cluster_rows import SECONDS, between
from benchmarks.harness import Row, against_limit
from varlog.daemon import child
from varlog.processes import Daemon, LocalCluster

SLOWER = (0.0002, 0.001)
"""In seconds: what the disks of larger machines take, and those that are reached over a network."""


@contextmanager
def slower(seconds: float) -> Iterator[None]:
    """Let every sync of this process take so much longer."""
    fdatasync = os.fdatasync

    def sync(fd: int) -> None:
        fdatasync(fd)
        time.sleep(seconds)

    with patch.object(os, "fdatasync", sync):
        yield


class SlowerDaemon(Daemon):
    """A daemon on such a disk."""

    seconds = 0.0

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "benchmarks.slower_disk", str(os.getpid()), str(self.seconds), self.program]


class SlowerCluster(LocalCluster):
    """A cluster of such daemons."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._seconds = seconds
        super().__init__(path)

    def _daemon(self, name: str, **options: str) -> Daemon:
        usual = super()._daemon(name, **options)
        daemon = SlowerDaemon(usual.name, usual.program, self.path, usual.options)
        daemon.seconds = self._seconds
        return daemon


async def latency_row(directory: Path, seconds: float, rounds: int = 3, measured: float = SECONDS / 2) -> Row:
    """One append at a time, against a sync, both so many seconds slower."""
    name = f"latency-c1-slower-{seconds * 1e3:g}ms"
    with slower(seconds):
        async with SlowerCluster(directory / name, seconds) as cluster, varlog.connect(cluster.path) as log:

            async def value() -> float:
                return (await cluster_load.append_for(log, Load(100, 1, 1), measured)).p50 * 1e3

            async def limit() -> float:
                return disk_limits.fdatasync_seconds(directory) * 1e3

            return against_limit(name, "ms", await between(value, limit, rounds), "fdatasync", "<=", 5)


def main() -> int:
    """See the module's text."""
    parent, seconds, *started = sys.argv[1:]
    sys.argv[1:] = [parent, *started]
    with slower(float(seconds)):
        return child.main()


if __name__ == "__main__":
    sys.exit(main())
