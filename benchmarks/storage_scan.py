"""storage-scan: reading a log back and verifying every batch, against reading the same files and checksumming them.

The limit is one loop that reads the segments a piece at a time and runs crc32c over it: the least anybody can do who
does not trust the disk. Both read from the page cache.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from crc32c import crc32c

from benchmarks.harness import Row, against_limit, in_turns
from benchmarks.one_replica import ENTRIES, MB, fill, segments_of
from varlog import limits
from varlog.storage.log import LogStreamStorage
from varlog.types import FIRST_GLSN, GLSN

BATCHES = 2500


def scan(storage: LogStreamStorage) -> float:
    """MB/s of batches."""
    begin = perf_counter()
    position, end, size = FIRST_GLSN, GLSN(BATCHES * ENTRIES + 1), 0
    while position < end:
        for stored in storage.read(position, end, limits.SCAN_REPLY_BYTES):
            assert stored.glsn == position
            position = GLSN(stored.glsn + stored.count)
            size += len(stored.batch)
    return size / MB / (perf_counter() - begin)


def checksum(path: Path) -> float:
    """MB/s of files."""
    begin = perf_counter()
    size = 0
    for segment in segments_of(path):
        with segment.open("rb", buffering=0) as file:
            while piece := file.read(limits.SCAN_REPLY_BYTES):
                crc32c(piece)
                size += len(piece)
    return size / MB / (perf_counter() - begin)


def measure(directory: Path) -> list[Row]:
    path = directory / "log"
    storage = fill(path, BATCHES).storage
    rounds = in_turns(9, lambda: scan(storage), lambda: checksum(path))
    storage.close()
    return [against_limit("storage-scan", "MB/s", rounds, "crc32c loop", ">=", 0.5)]
