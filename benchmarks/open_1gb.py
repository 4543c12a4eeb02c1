"""open-1gb: how long a storage node takes to open a replica of a gigabyte that was not closed.

What takes time is the last segment, which has to be scanned, so it is almost full. How many records it holds matters
most: `open-1gb-small-batches` is the same log when its last segment holds as many as a segment may, and as many bytes.

Before every round another process appends a batch and ends without closing, as a killed one does, and the files are
dropped from the page cache: a node that comes back has a cold one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.harness import ROOT, Row, in_turns
from benchmarks.one_replica import ENTRIES, IDENTITY, Arrived, Replica, fill, make_batches, segments_of
from varlog import batch, limits
from varlog.storage.files import OSFileSystem
from varlog.storage.log import LogStreamStorage

SEGMENTS = 17
SPARE = 20
"""Room in the last segment, in batches, for what the rounds append."""
SMALL_BYTES = 1800
"""The entry of a small batch: so many of them as a segment may hold records almost fill it."""
SMALL_PER_COMMIT = 100


def append_and_die(path: Path) -> None:
    """Run in a process of its own."""
    replica = Replica.open(path)
    replica.stage(make_batches(1)[0])
    replica.write()
    os._exit(0)


def die_dirty(path: Path) -> None:
    subprocess.run([sys.executable, "-m", "benchmarks.open_1gb", str(path)], cwd=ROOT, check=True)
    for segment in segments_of(path):
        with segment.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def open_once(path: Path, batches: int) -> float:
    die_dirty(path)
    begin = perf_counter()
    storage = LogStreamStorage.open(OSFileSystem(), str(path), IDENTITY)
    elapsed = perf_counter() - begin
    assert storage.recovered.corruption is None
    assert storage.recovered.uncommitted_llsn_end > batches * ENTRIES
    storage.close()
    return elapsed


def crowd_last_segment(path: Path) -> None:
    """Begin a segment and fill it with small batches."""
    data = batch.encode([bytes(SMALL_BYTES)], writer_id=1, sequence=1)
    small = Arrived(data, batch.verify(data))
    replica = Replica.open(path)
    (large,) = make_batches(1)
    closed = len(segments_of(path))
    while len(segments_of(path)) == closed:
        replica.stage(large)
        replica.write()
    for _ in range((limits.SEGMENT_RECORDS - 2 * SPARE) // (SMALL_PER_COMMIT + 1)):
        for _ in range(SMALL_PER_COMMIT):
            replica.stage(small)
        replica.write()
    replica.storage.close()


def measure(directory: Path) -> list[Row]:
    path = directory / "log"
    per_segment = limits.SEGMENT_BYTES // len(make_batches(1)[0].data)
    batches = SEGMENTS * per_segment - SPARE
    fill(path, batches).storage.close()
    rounds = in_turns(5, lambda: open_once(path, batches))
    assert len(segments_of(path)) == SEGMENTS
    crowd_last_segment(path)
    crowded = in_turns(5, lambda: open_once(path, batches))
    assert len(segments_of(path)) == SEGMENTS + 1
    return [
        Row("open-1gb", median(seconds for (seconds,) in rounds), "s", op="<=", target=0.3),
        Row("open-1gb-small-batches", median(seconds for (seconds,) in crowded), "s", op="<=", target=0.3),
    ]


if __name__ == "__main__":
    append_and_die(Path(sys.argv[1]))
