"""What the rows of Spark are measured with: a log of random entries, and what the Python workers of Spark take.

No two entries are alike. Otherwise a Parquet file of them would be little more than a dictionary, and no measure of how
fast as many rows are read.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from benchmarks.cluster_load import Load
from benchmarks.cluster_processes import status_bytes
from varlog.client.log import Log

BATCH: Final = 1000
EVERY: Final = 0.05
"""Seconds from one look at the workers to the next."""
DAEMON: Final = b"pyspark.daemon"
"""Spark's process of this name forks the workers, which keep its name."""


async def append(log: Log, load: Load, rows: int) -> None:
    """Append so many entries, in whole batches."""
    random = np.random.default_rng(load.entry_bytes)
    offsets = pa.py_buffer(np.arange(load.batch + 1, dtype=np.int32) * load.entry_bytes)
    left = rows // load.batch

    async def some() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            buffers = [None, offsets, pa.py_buffer(random.bytes(load.batch_bytes))]
            await log.append_batch(pa.BinaryArray.from_buffers(pa.binary(), load.batch, buffers))

    await asyncio.gather(*(some() for _ in range(load.in_flight)))


def parents() -> dict[int, int]:
    """The parent of every process there is."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        found[int(path.parent.name)] = int(fields[1])
    return found


def workers(ancestor: int) -> list[int]:
    """The Python workers among the descendants of a process."""
    parent = parents()
    daemons = {pid for pid in parent if _descends(pid, ancestor, parent) and _is_spark(pid)}
    return [pid for pid in daemons if parent[pid] in daemons]


def _descends(pid: int, ancestor: int, parent: dict[int, int]) -> bool:
    while pid in parent and pid != ancestor:
        pid = parent[pid]
    return pid == ancestor


def _is_spark(pid: int) -> bool:
    try:
        return DAEMON in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False


class Peaks(dict[int, int]):
    """The most memory that each worker of this process had resident since it began, in bytes, by its id."""

    def look(self) -> None:
        for pid in workers(os.getpid()):
            try:
                self[pid] = max(self.get(pid, 0), status_bytes(pid, "VmHWM"))
            except (FileNotFoundError, ProcessLookupError, KeyError):  # it has ended, or is about to
                continue


@contextmanager
def watched() -> Iterator[Peaks]:
    """Look at the workers again and again: one that has ended tells nothing any more."""
    peaks, over = Peaks(), threading.Event()

    def watch() -> None:
        while not over.wait(EVERY):
            peaks.look()

    watcher = threading.Thread(target=watch, name="watch-workers")
    watcher.start()
    try:
        yield peaks
    finally:
        over.set()
        watcher.join()
        peaks.look()
