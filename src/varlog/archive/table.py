"""`Archive`: the part of a log that was put away, readable without the cluster.

    archive = Archive.open("/backup/orders")
    for rows in archive.scan(archive.begin, archive.end):
        ...

An archive has the positions [begin, end) of one topic, each once; it grows at its end and nowhere else. What an object
shows is the archive as it was when it was opened, refreshed, or committed to; it never shrinks, so what was seen stays
true. One object is used by one thread at a time; a scan that was begun goes on undisturbed by `refresh` and `commit`.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from varlog.archive import parquet
from varlog.archive.manifest import Identity, Manifest
from varlog.archive.parquet import Range
from varlog.archive.place import DATA, Place
from varlog.errors import AlreadyExists, InvalidArgument, NoArchive, WrongIdentity


class Archive:
    """See the module's text."""

    def __init__(self, place: Place, manifest: Manifest) -> None:
        self._place = place
        self._manifest = manifest

    @classmethod
    def open(cls, uri: str, *, check: bool = True) -> Archive:
        """The archive at a path or URI; `NoArchive` if there is none, `BrokenArchive` if it contradicts itself. Whoever
        looks for what is wrong with one does without the check that its ranges are consecutive."""
        return cls.at(Place.of(uri), check=check)

    @classmethod
    def at(cls, place: Place, *, check: bool = True) -> Archive:
        """The same for a place that is known already."""
        return cls(place, Manifest.open(place, check=check))

    @classmethod
    def create(cls, uri: str, *, cid: int, topic: str, tpid: int, first: int) -> Archive:
        """Make an archive that begins at `first`. If there is one of the same topic it is opened, wherever it begins;
        one of another topic is `WrongIdentity`."""
        return cls.create_at(Place.of(uri), Identity(cid, topic, tpid, first))

    @classmethod
    def create_at(cls, place: Place, identity: Identity) -> Archive:
        """The same for a place that is known already."""
        try:
            archive = cls.at(place)
        except NoArchive:
            try:
                archive = cls(place, Manifest.create(place, identity))
            except AlreadyExists:  # somebody else was faster
                archive = cls.at(place)
        archive.check(cid=identity.cid, topic=identity.topic, tpid=identity.tpid)
        return archive

    def check(self, *, cid: int, topic: str, tpid: int) -> None:
        """Refuse if it is not of that topic."""
        if (self.cid, self.topic, self.tpid) != (cid, topic, tpid):
            raise WrongIdentity(
                f"the archive at {self.uri} is of topic {self.topic!r} (id {self.tpid}) of cluster {self.cid}, not of "
                f"topic {topic!r} (id {tpid}) of cluster {cid}; use another place"
            )

    @property
    def uri(self) -> str:
        """Where it is, as `resolve` gives it."""
        return self._place.uri

    @property
    def version(self) -> int:
        """Of the table; each commit makes the next one."""
        return self._manifest.version

    @property
    def cid(self) -> int:
        return self._manifest.identity.cid

    @property
    def topic(self) -> str:
        return self._manifest.identity.topic

    @property
    def tpid(self) -> int:
        return self._manifest.identity.tpid

    @property
    def begin(self) -> int:
        """The first position that it has, or will have."""
        return self._manifest.identity.first

    @property
    def end(self) -> int:
        """The position after its last one."""
        return self._manifest.end

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Its files, in order."""
        return self._manifest.ranges

    def path(self, held: Range) -> str:
        """Where a file of it is, as its file system knows it."""
        return self._place.path(held.path)

    def refresh(self) -> None:
        """Look what was added since."""
        self._manifest.refresh()

    def scan(self, begin: int, end: int, max_rows: int = parquet.MAX_ROWS) -> Iterator[pa.RecordBatch]:
        """The rows of [begin, end) in GLSN order, in batches of at most `max_rows`. Positions that hold nothing for
        readers have no row."""
        if begin < end and not self.begin <= begin < end <= self.end:
            raise InvalidArgument(
                f"the archive at {self.uri} has [{self.begin}, {self.end}), not all of [{begin}, {end})"
            )
        return self._rows(self.ranges, begin, end, max_rows)

    def _rows(self, ranges: Sequence[Range], begin: int, end: int, max_rows: int) -> Iterator[pa.RecordBatch]:
        if begin >= end:
            return
        for index in range(bisect_right(ranges, begin, key=lambda held: held.begin) - 1, len(ranges)):
            held = ranges[index]
            if held.begin >= end:
                return
            yield from parquet.read_rows(self._place, held, begin, end, max_rows)

    def last(self) -> pa.RecordBatch | None:
        """Its last row; None if it has none."""
        found = (parquet.last_row(self._place, held) for held in reversed(self.ranges))
        return next((row for row in found if row is not None), None)

    def find_time(self, timestamp_us: int) -> int:
        """The first position of a row whose timestamp is at or after that time; `end` if there is none."""
        filled = [held for held in self.ranges if held.rows]
        low, high = 0, len(filled)
        while low < high:
            middle = (low + high) // 2
            if parquet.last_time(self._place, filled[middle]) < timestamp_us:
                low = middle + 1
            else:
                high = middle
        found = parquet.first_since(self._place, filled[low], timestamp_us) if low < len(filled) else None
        return self.end if found is None else found

    def commit(self, ranges: Sequence[Range], expected_end: int) -> None:
        """Extend it by files that `write_range` made, which follow upon each other and upon `expected_end`: all of them
        or none, durably. `ArchiveConflict` if it does not end there any more."""
        self._manifest.append(ranges, expected_end)

    def sync(self) -> None:
        """Make sure that a loss of power takes nothing of it away; for those who delete what it has."""
        self._manifest.sync()

    def collect(self, grace_seconds: float) -> list[str]:
        """Remove files that belong to no commit and are older than that: what archivers left that were killed. Younger
        ones may be about to be committed. The removed ones are returned."""
        limit = time.time() - grace_seconds
        old = [info for info in self._place.listed(DATA) if info.mtime is not None and info.mtime.timestamp() < limit]
        self.refresh()
        named = {held.path for held in self.ranges}
        removed = [path for info in old if (path := f"{DATA}/{info.base_name}") not in named]
        for path in removed:
            self._place.remove(path)
        return removed

    def discard(self, ranges: Iterable[Range]) -> None:
        """Remove files that one has written and will not commit."""
        named = {held.path for held in self.ranges}
        for held in ranges:
            if held.path not in named:
                self._place.remove(held.path)

    def __repr__(self) -> str:
        return f"<Archive of {self.topic!r} at {self.uri}: [{self.begin}, {self.end})>"


def write_range(uri: str, begin: int, end: int, batches: Iterable[pa.RecordBatch]) -> Range:
    """Write the rows of [begin, end) as a file of the archive at a path or URI, for a later commit. It is complete and
    durable when this returns."""
    return parquet.write_rows(Place.of(uri), begin, end, batches)
