"""The list of an archive's files: the log of a Delta table.

A commit adds files. It is a compare-and-swap: `deltalake` writes the entry of the version after the one that was read,
and creates it only if there is none, so of two archivers that extend the same archive one does, and the other is told
(`ArchiveConflict`). Files are added at the end and never removed, so the ranges of all files together are consecutive:
no gap, no overlap. That is checked whenever the list is read.

`deltalake` does not sync what it writes. On a local disk a commit is made durable here, after it was made: so an entry
may be seen by others before it would survive a loss of power. Whoever deletes something because an archive has it calls
`sync` first, whoever made the entry.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from varlog.archive.parquet import Range, glsn_bounds, range_of
from varlog.archive.place import LOG, Place
from varlog.errors import (
    AlreadyExists,
    ArchiveConflict,
    BrokenArchive,
    InvalidArgument,
    NoArchive,
    UnsupportedFormat,
    VarlogError,
)
from varlog.spark.columns import ARROW_SCHEMA

FORMAT: Final = 1
CHECKPOINT_INTERVAL: Final = 50
"""After so many commits the list is written as a whole, so that opening it reads no more entries than these."""
_ONCE: Final = 0
"""Commits are not tried again behind somebody else's."""


class Identity(NamedTuple):
    """Whose log an archive has, and from which position on."""

    cid: int
    topic: str
    tpid: int
    first: int


class Manifest:
    """See the module's text."""

    def __init__(self, place: Place, table: DeltaTable, *, check: bool = True) -> None:
        self._place = place
        self._table = table
        self._check = check
        self._synced: set[str] = set()
        self.identity = _identity(place, table)
        self.version = -1
        self.ranges: tuple[Range, ...] = ()
        self._read()

    @classmethod
    def open(cls, place: Place, *, check: bool = True) -> Manifest:
        """Read the one that is there."""
        try:
            return cls(place, DeltaTable(place.uri), check=check)
        except TableNotFoundError:
            raise NoArchive(f"there is no archive at {place.uri}") from None
        except DeltaError as error:
            raise _broken(place, error) from error

    @classmethod
    def create(cls, place: Place, identity: Identity) -> Manifest:
        """Make an empty one; `AlreadyExists` if there is a table."""
        place.make()
        configuration = {
            "delta.appendOnly": "true",
            "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
            "varlog.format": str(FORMAT),
            **{f"varlog.{key}": str(value) for key, value in identity._asdict().items()},
        }
        try:
            table = DeltaTable.create(
                place.uri,
                ARROW_SCHEMA,
                name=identity.topic,
                description="A Varlog archive: entries of a log in GLSN order.",
                configuration=configuration,
                commit_properties=CommitProperties(max_commit_retries=_ONCE),
                raise_if_key_not_exists=False,
            )
        except (DeltaError, OSError) as error:
            if DeltaTable.is_deltatable(place.uri):
                raise AlreadyExists(f"there is a table at {place.uri} already") from error
            raise place.error_of(error) from error
        manifest = cls(place, table)
        manifest.sync()
        return manifest

    @property
    def end(self) -> int:
        """The position after the last one that is in the archive."""
        return self.ranges[-1].end if self.ranges else self.identity.first

    def refresh(self) -> None:
        """Read what others have added."""
        try:
            self._table.update_incremental()
        except DeltaError as error:
            raise _broken(self._place, error) from error
        if self._table.version() != self.version:
            self._read()

    def _read(self) -> None:
        actions = pa.table(self._table.get_add_actions(flatten=True))
        wanted = (actions.column(name).to_pylist() for name in ("path", "size_bytes", "num_records", "min.glsn"))
        found = []
        for path, size, rows, low in zip(*wanted, strict=True):
            if rows is None or (rows == 0 and low is not None):
                raise BrokenArchive(f"{self._place.path(path)}: the manifest does not say clearly how many rows it has")
            found.append(range_of(path, rows, size))
        found.sort()
        if self._check:
            check_consecutive(found, self.identity.first, self._place.uri)
        self.ranges = tuple(found)
        self.version = self._table.version()

    def append(self, ranges: Sequence[Range], expected_end: int) -> None:
        """Add files behind `expected_end`, all of them or none, durably."""
        self.refresh()
        if self.end != expected_end:
            raise ArchiveConflict(f"the archive at {self._place.uri} goes up to {self.end} now, not to {expected_end}")
        if not ranges:
            raise InvalidArgument("a commit adds at least one file")
        check_consecutive(ranges, expected_end, self._place.uri)
        actions: list[AddAction | RemoveAction] = [self._action(added) for added in ranges]
        before = self.version
        try:
            self._table.create_write_transaction(
                actions, "append", ARROW_SCHEMA, commit_properties=CommitProperties(max_commit_retries=_ONCE)
            )
        except (DeltaError, OSError) as error:
            self._judge(error, ranges, before)
        self.refresh()
        if not set(ranges) <= set(self.ranges):
            raise BrokenArchive(f"{self._place.uri}: what was committed is not in the manifest")
        self.sync()

    def _action(self, added: Range) -> AddAction:
        """What the table's log says of a file, after a look into it."""
        held = glsn_bounds(self._place, added)
        statistics: dict[str, Any] = {"numRecords": added.rows}
        if held is not None:
            statistics |= {"minValues": {"glsn": held.low}, "maxValues": {"glsn": held.high}, "nullCount": {"glsn": 0}}
        return AddAction(
            path=added.path,
            size=added.bytes,
            partition_values={},
            modification_time=time.time_ns() // 1_000_000,
            data_change=True,
            stats=json.dumps(statistics),
        )

    def _judge(self, error: Exception, ranges: Sequence[Range], before: int) -> None:
        """A commit failed, or seems to have: it may have happened all the same, when the answer was lost or what is
        done after it failed."""
        self.refresh()
        if set(ranges) <= set(self.ranges):
            return
        if self.version != before:
            raise ArchiveConflict(
                f"somebody else has extended the archive at {self._place.uri}, up to {self.end}"
            ) from error
        raise self._place.error_of(error) from error

    def sync(self) -> None:
        """Make durable all that was committed up to now, by anyone."""
        self._synced = self._place.sync_log(self._synced)


def check_consecutive(ranges: Sequence[Range], first: int, where: str) -> None:
    """Ranges follow upon each other from `first` on."""
    expected = first
    for held in ranges:
        if held.begin != expected:
            what = "nothing holds" if held.begin > expected else "two files hold"
            low, high = sorted((held.begin, expected))
            raise BrokenArchive(f"{where}: {what} the positions {low} to {high - 1}, before {held.path}")
        expected = held.end


def _identity(place: Place, table: DeltaTable) -> Identity:
    configuration = table.metadata().configuration
    written = configuration.get("varlog.format")
    if written is None:
        raise NoArchive(f"the Delta table at {place.uri} is not an archive of Varlog")
    if written != str(FORMAT):
        raise UnsupportedFormat(f"the archive at {place.uri} has format {written}; this release knows {FORMAT}")
    try:
        return Identity(
            int(configuration["varlog.cid"]),
            configuration["varlog.topic"],
            int(configuration["varlog.tpid"]),
            int(configuration["varlog.first"]),
        )
    except (KeyError, ValueError) as error:
        raise BrokenArchive(f"the archive at {place.uri} does not say whose it is: {error}") from None


def _broken(place: Place, error: DeltaError) -> VarlogError:
    reason = str(error).partition("\n")[0]
    return BrokenArchive(
        f"the list of files of the archive at {place.uri} cannot be read: {reason}; restore {LOG} from a copy"
    )
