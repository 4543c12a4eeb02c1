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

from benchmarks.cluster_rows import SECONDS, lone_latency_row
from benchmarks.harness import Row
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
        return await lone_latency_row(name, SlowerCluster(directory / name, seconds), directory, rounds, measured)


def main() -> int:
    """See the module's text."""
    parent, seconds, *started = sys.argv[1:]
    sys.argv[1:] = [parent, *started]
    with slower(float(seconds)):
        return child.main()


if __name__ == "__main__":
    sys.exit(main())
