"""Topics whose every entry is known, and archives made of them without Spark."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import varlog
from varlog.archive import Archive, write_range
from varlog.oneprocess import CID
from varlog.spark.options import Connection
from varlog.spark.task import read_range

FIRST = 5000
"""Entries that come first, of each log stream: more than a cell has."""
BATCHES = 16
"""Batches after them, of three entries each, every one committed by itself."""


class Place(NamedTuple):
    glsn: int
    lsid: int


class Written(NamedTuple):
    """A topic, and where its entries are."""

    path: Path
    name: str
    places: dict[bytes, Place]

    @property
    def connection(self) -> Connection:
        return Connection(str(self.path), self.name)

    def glsn(self, payload: bytes) -> int:
        return self.places[payload].glsn

    def neighbours(self, number: int) -> tuple[list[bytes], int]:
        """The first entries of some batches that follow each other in one log stream, and that."""
        lsid = self.places[b"%d/0" % number].lsid
        same = [b"%d/0" % n for n in range(number, BATCHES) if self.places[b"%d/0" % n].lsid == lsid]
        return same, lsid


async def write_topic(path: Path, name: str, streams: int = 2, ordering: str = "commit") -> Written:
    """Make a topic and fill it. Where a sequencer orders it, some positions at the ends of blocks are junk."""
    async with varlog.admin(path) as admin:
        block = FIRST + 1000 if ordering == "sequencer" else 0
        await admin.add_topic(name, streams=streams, ordering=ordering, block=block)
    async with varlog.connect(path, topic=name, timeout=30) as log:
        for number in range(streams):
            await log.append_batch([b"first/%d/%d" % (number, entry) for entry in range(FIRST)])
        for number in range(BATCHES):
            await log.append_batch([b"%d/%d" % (number, entry) for entry in range(3)])
        places = {
            entry.data: Place(entry.glsn, entry.log_stream) async for batch in log.scan() for entry in batch
        }  # fmt: skip
    return Written(path, name, places)


def archived(written: Written, uri: Path, tpid: int, bounds: list[int]) -> Archive:
    """An archive of a topic with one file between any two of the bounds."""
    archive = Archive.create(str(uri), cid=CID, topic=written.name, tpid=tpid, first=bounds[0])
    for begin, end in pairwise(bounds):
        rows = read_range(written.connection, begin, end)
        archive.commit([write_range(str(uri), begin, end, rows)], archive.end)
    return archive
