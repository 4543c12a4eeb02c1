"""The table that `materialize` keeps: the latest value of every key, as Parquet files with a Delta log.

    table/
      _delta_log/                       which files the table has: a Delta table, partitioned by `part`
      _checkpoint/                      how far the streaming query is, and its state (Spark's)
      data/00003-8f0c...e1.parquet      the rows of one part

A key belongs to one part, by its slot, and a part is one file. A change of some keys writes the files of their parts
anew (`merge`) and puts them in the place of the old ones, all in one commit, which is a compare-and-swap: of two who
change the table at once one does.

What always holds: a key has one row, that of the greatest GLSN of all that was merged for it. So to merge something
again, or what is older, changes nothing; and the table as a whole is that of the greatest GLSN in it. `deltalake` does
not sync what it writes; a commit is durable when `replace` returns, and files are before.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import parquet

from varlog.archive.place import DATA, Place
from varlog.errors import BrokenArchive, Conflict, UnsupportedFormat, WrongIdentity

FORMAT: Final = 1
COLUMNS: Final = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("value", pa.string()),
        pa.field("glsn", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
"""Of a data file."""
PART: Final = "part"
SLOTS: Final = 256
"""Keys belong to slots, by Spark's hash of them, and slots to parts: there are no more parts than these."""
CHECKPOINT: Final = "_checkpoint"
CHECKPOINT_INTERVAL: Final = 50
RETAIN_HOURS: Final = 1
"""How long files are kept that the table has no more: for those who read it as it was."""
ROW_GROUP_ROWS: Final = 1 << 16
_READ_ROWS: Final = 1 << 16
_ONCE: Final = 0
"""Commits are not tried again behind somebody else's."""

_SCHEMA: Final = COLUMNS.append(pa.field(PART, pa.int32()))


class Identity(NamedTuple):
    """What a table is made from. It is kept with it, and another is refused."""

    cid: int
    topic: str
    tpid: int
    key: str
    value: str
    parts: int


class File(NamedTuple):
    """The file of a part."""

    part: int
    path: str
    rows: int
    bytes: int


class Table:
    """See the module's text. It shows the table as of the last `refresh` or `replace`."""

    def __init__(self, place: Place, table: DeltaTable) -> None:
        self._place = place
        self._table = table
        self._synced: set[str] = set()
        self.identity = _identity(place, table)
        self.version = -1
        self.files: dict[int, File] = {}
        self._read()

    @classmethod
    def open(cls, uri: str, wanted: Identity) -> Table:
        """The table at a path or URI, made if there is none; `WrongIdentity` if it is of something else."""
        place = Place.of(uri, "table")
        try:
            table = DeltaTable(place.uri)
        except TableNotFoundError:
            table = _create(place, wanted)
        except DeltaError as error:
            raise _broken(place, error) from error
        found = cls(place, table)
        for name, has, asked in zip(Identity._fields, found.identity, wanted, strict=True):
            if has != asked:
                raise WrongIdentity(
                    f"the table at {place.uri} is made from {_words(found.identity)}, not from {_words(wanted)}: "
                    f"{name} is another; use another place"
                )
        found.sync()
        return found

    @property
    def uri(self) -> str:
        return self._place.uri

    @property
    def id(self) -> str:
        """Of this very table: one that is made anew at the same place has another."""
        return str(self._table.metadata().id)

    @property
    def rows(self) -> int:
        """How many keys it has."""
        return sum(file.rows for file in self.files.values())

    def refresh(self) -> None:
        """Read what others have changed."""
        try:
            self._table.update_incremental()
        except DeltaError as error:
            raise _broken(self._place, error) from error
        self._read()

    def _read(self) -> None:
        if self._table.version() == self.version:
            return
        names = ["path", "size_bytes", "num_records", f"partition.{PART}"]
        actions = pa.table(self._table.get_add_actions(flatten=True)).select(names)
        files: dict[int, File] = {}
        for path, size, rows, part in zip(*(column.to_pylist() for column in actions.columns), strict=True):
            if rows is None or part is None or part in files:
                raise BrokenArchive(f"{self._place.path(path)}: no such file can be of this table")
            files[part] = File(part, path, rows, size)
        self.files, self.version = files, self._table.version()

    def replace(self, files: Sequence[File]) -> None:
        """Put the files of some parts in the place of those that the table has now, durably, and all of them or none;
        `Conflict` if somebody else has changed it."""
        now = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = []
        for file in files:
            actions.append(
                AddAction(
                    path=file.path,
                    size=file.bytes,
                    partition_values={PART: str(file.part)},
                    modification_time=now,
                    data_change=True,
                    stats=json.dumps({"numRecords": file.rows}),
                )
            )
            old = self.files.get(file.part)
            if old is not None:
                actions.append(_removed(old, now))
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                _SCHEMA,
                partition_by=[PART],
                commit_properties=CommitProperties(max_commit_retries=_ONCE),
            )
        except (DeltaError, OSError) as error:
            self._judge(error, files)
        self.refresh()
        self.sync()

    def _judge(self, error: Exception, files: Sequence[File]) -> None:
        """A commit failed, or seems to have: it may have happened all the same."""
        before = self.version
        self.refresh()
        if set(files) <= set(self.files.values()):
            return
        if self.version != before:
            raise Conflict(f"somebody else has changed the table at {self.uri}: let one job keep it") from error
        raise self._place.error_of(error) from error

    def sync(self) -> None:
        """Make durable all that was committed up to now, by anyone."""
        self._synced = self._place.sync_log(self._synced)

    def collect(self) -> int:
        """Delete what nobody needs any more: files that were replaced a while ago, or were never committed."""
        gone = self._table.vacuum(RETAIN_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
        self.refresh()
        return len(gone)


def _create(place: Place, wanted: Identity) -> DeltaTable:
    place.make()
    configuration = {
        "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
        "varlog.table": str(FORMAT),
        **{f"varlog.{key}": str(value) for key, value in wanted._asdict().items()},
    }
    try:
        return DeltaTable.create(
            place.uri,
            _SCHEMA,
            partition_by=[PART],
            name=wanted.topic,
            description="The latest value of every key of a Varlog topic.",
            configuration=configuration,
            commit_properties=CommitProperties(max_commit_retries=_ONCE),
            raise_if_key_not_exists=False,
        )
    except (DeltaError, OSError) as error:
        raise place.error_of(error) from error


def _identity(place: Place, table: DeltaTable) -> Identity:
    has = table.metadata().configuration
    written = has.get("varlog.table")
    if written is None:
        raise WrongIdentity(f"the Delta table at {place.uri} was not made by this job; use another place")
    if written != str(FORMAT):
        raise UnsupportedFormat(f"the table at {place.uri} has format {written}; this release knows {FORMAT}")
    try:
        cid, topic, tpid, key, value, parts = (has[f"varlog.{name}"] for name in Identity._fields)
        return Identity(int(cid), topic, int(tpid), key, value, int(parts))
    except (KeyError, ValueError) as error:
        raise BrokenArchive(f"the table at {place.uri} does not say what it is made from: {error}") from None


def _words(identity: Identity) -> str:
    cid, topic, tpid, key, value, parts = identity
    of = f"{value} by {key}" if value else f"whole entries by {key}"
    return f"{of} of topic {topic!r} (id {tpid}) of cluster {cid}, in {parts} parts"


def _broken(place: Place, error: DeltaError) -> BrokenArchive:
    return BrokenArchive(f"the table at {place.uri} cannot be read: {str(error).partition(chr(10))[0]}")


def _removed(old: File, now: int) -> RemoveAction:
    return RemoveAction(
        path=old.path,
        data_change=True,
        deletion_timestamp=now,
        size=old.bytes,
        partition_values={PART: str(old.part)},
    )


# In a task


def merge(uri: str, part: int, old: File | None, changes: pa.Table) -> File | None:
    """The rows of a part with some of them changed, as a new file, complete and durable; None if nothing is newer than
    what there is. What is in memory are the changes, and some thousand rows of the part."""
    place = Place.of(uri, "table")
    name = f"{part:05d}-{uuid.uuid4().hex}.parquet"
    final = f"{DATA}/{name}"
    written = f"{DATA}/.{name}" if place.is_local else final
    with place.typed_errors():
        try:
            rows = _write(place, written, _merged(place, old, latest_of(changes)))
            if rows is None:
                place.remove(written)
                return None
            if place.is_local:
                place.sync([written])
                place.rename(written, final)
        except BaseException:
            place.remove(written)
            raise
        size = place.size(final)
    assert size is not None, "it was just written"
    return File(part, final, rows, size)


def latest_of(changes: pa.Table) -> pa.Table:
    """One row to a key, that of the greatest position, in the order of keys."""
    ordered = changes.sort_by([("key", "ascending"), ("glsn", "ascending")])
    keys = ordered.column("key").combine_chunks()
    if len(keys) < 2:
        return ordered
    is_last = pc.not_equal(keys.slice(0, len(keys) - 1), keys.slice(1))
    return ordered.filter(pa.concat_arrays([is_last, pa.array([True])]))


def _merged(place: Place, old: File | None, changes: pa.Table) -> Iterator[tuple[pa.Table, bool]]:
    """The rows that stay, and those of the changes that are newer than what there is; and whether it is these."""
    keys = changes.column("key").combine_chunks()
    glsns: npt.NDArray[np.int64] = changes.column("glsn").to_numpy()
    is_newer = np.ones(len(glsns), dtype=bool)
    for held in _held(place, old):
        at: npt.NDArray[np.int64] = pc.fill_null(pc.index_in(held.column("key"), keys), -1).to_numpy().astype(np.int64)
        has_change = at >= 0
        stays = ~has_change
        stays[has_change] = held.column("glsn").to_numpy()[has_change] >= glsns[at[has_change]]
        is_newer[at[has_change & stays]] = False
        yield held.filter(pa.array(stays)), False
    yield changes.filter(pa.array(is_newer)), True


def _held(place: Place, old: File | None) -> Iterator[pa.Table]:
    if old is None:
        return
    with place.open(old.path) as file, parquet.ParquetFile(file, page_checksum_verification=True) as found:
        if found.schema_arrow.remove_metadata() != COLUMNS or found.metadata.num_rows != old.rows:
            raise BrokenArchive(f"{place.path(old.path)} is not the file that the table names")
        for batch in found.iter_batches(_READ_ROWS, use_threads=False):
            yield pa.Table.from_batches([batch])


def _write(place: Place, path: str, groups: Iterator[tuple[pa.Table, bool]]) -> int | None:
    """How many rows were written; None if none of them is new."""
    rows, has_new = 0, False
    with (
        place.filesystem.open_output_stream(place.path(path)) as stream,
        parquet.ParquetWriter(stream, COLUMNS, compression="zstd", compression_level=1, write_page_checksum=True) as to,
    ):
        for group, is_new in groups:
            if len(group):
                to.write_table(group.cast(COLUMNS), row_group_size=ROW_GROUP_ROWS)
                rows += len(group)
                has_new |= is_new
    return rows if has_new else None
