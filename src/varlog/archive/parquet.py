"""One data file of an archive: Parquet with the rows of a range of GLSNs, in GLSN order.

The name says the range, `data/{begin}-{end}-{unique}-crc.parquet`, each number with twenty digits. Every GLSN of it has
a row, except those that hold nothing for readers: fill, and what was lost. Columns are
`varlog.spark.columns.ARROW_SCHEMA`, nothing is null, all of a file is under checksums (see `checked`), and a row group
is small enough to be held in memory whole, so reading and writing take a bounded amount of it however large a file is.

A file is written once and never changed. On a local disk it is written under a temporary name (it begins with a dot),
synced, and then renamed. What is read is checked against what the manifest says and against the file's own range before
anything is handed out; a file that fails is `BrokenArchive`, by name. Files without `-crc` are of earlier releases and
have checksums in their pages only: no row group of them is left out on the word of its statistics.
"""

from __future__ import annotations

import io
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from varlog.archive import checked
from varlog.archive.place import DATA, Place
from varlog.errors import BrokenArchive, InvalidArgument
from varlog.spark.columns import ARROW_SCHEMA

ROW_GROUP_ROWS: Final = 1 << 17
ROW_GROUP_BYTES: Final = 16 << 20
MAX_ROWS: Final = 10_000
BATCH_BYTES: Final = 4 << 20
"""A batch that is read has no more rows than these, and about as many bytes at most; a row may have more."""
COMPRESSION: Final = "zstd"
COMPRESSION_LEVEL: Final = 1
TEMPORARY: Final = "."

_NAME: Final = re.compile(rf"{DATA}/(\d{{20}})-(\d{{20}})-[0-9a-f]{{32}}(?:-crc)?\.parquet")
_LAST: Final = 1 << 63
"""No position is as high: it would not fit into the column."""


class Range(NamedTuple):
    """One data file: the rows of the GLSNs [begin, end)."""

    begin: int
    end: int
    path: str
    """In the archive."""
    rows: int
    bytes: int


class Bounds(NamedTuple):
    """The lowest and highest values that a file has of a column."""

    low: int
    high: int


def range_of(path: str, rows: int, size: int) -> Range:
    """What the name of a file says."""
    found = _NAME.fullmatch(path)
    if found is None:
        raise BrokenArchive(f"{path}: this file is none of those that an archive consists of")
    begin, end = int(found[1]), int(found[2])
    if not 0 < begin < end <= _LAST or not 0 <= rows <= end - begin:
        raise BrokenArchive(f"{path}: a file of the positions {begin} to {end - 1} cannot have {rows} rows")
    return Range(begin, end, path, rows, size)


# Writing


def write_rows(place: Place, begin: int, end: int, batches: Iterable[pa.RecordBatch]) -> Range:
    """Write a file; it is complete and durable when this returns."""
    if not 0 < begin < end <= _LAST:
        raise InvalidArgument(f"a file of an archive holds some positions from 1 on, not [{begin}, {end})")
    name = f"{begin:020d}-{end:020d}-{uuid.uuid4().hex}{checked.SUFFIX}"
    final = f"{DATA}/{name}"
    written = f"{DATA}/{TEMPORARY}{name}" if place.is_local else final
    with place.typed_errors():
        try:
            rows = _write(place, written, begin, end, batches)
            if place.is_local:
                place.sync([written])
                place.rename(written, final)
        except BaseException:
            place.remove(written)
            raise
        size = place.size(final)
    assert size is not None, "it was just written"
    return Range(begin, end, final, rows, size)


def _write(place: Place, path: str, begin: int, end: int, batches: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    with (
        place.filesystem.open_output_stream(place.path(path)) as stream,
        checked.writing(
            stream,
            ARROW_SCHEMA,
            compression=COMPRESSION,
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=["log_stream", "timestamp"],
            column_encoding={"glsn": "DELTA_BINARY_PACKED", "llsn": "DELTA_BINARY_PACKED", "payload": "PLAIN"},
            write_statistics=["glsn", "llsn", "log_stream", "timestamp"],
            write_page_checksum=True,
        ) as write,
    ):
        for group in _row_groups(_checked(batches, begin, end)):
            write(group)
            rows += len(group)
    return rows


def _checked(batches: Iterable[pa.RecordBatch], begin: int, end: int) -> Iterator[pa.RecordBatch]:
    """The batches, as long as they are what the file is to have."""
    least = begin
    for batch in batches:
        if batch.schema != ARROW_SCHEMA:
            raise InvalidArgument(f"an archive has the columns {ARROW_SCHEMA}, not {batch.schema}")
        if len(batch):
            fault = _fault(batch, least, end)
            if fault:
                raise InvalidArgument(f"rows for [{begin}, {end}): {fault}")
            least = batch.column("glsn")[-1].as_py() + 1
            yield batch


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Rows put together until they make a row group."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if held and (rows + len(batch) > ROW_GROUP_ROWS or size + batch.nbytes > ROW_GROUP_BYTES):
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows += len(batch)
        size += batch.nbytes
    if held:
        yield pa.Table.from_batches(held)


def _fault(batch: pa.RecordBatch, least: int, end: int) -> str:
    """What is wrong with rows that have to lie in [least, end) and to ascend; nothing if they do."""
    if any(column.null_count for column in batch.columns):
        return "there is a null in them"
    glsns = _glsns(batch)
    if glsns[0] < least or glsns[-1] >= end or (len(glsns) > 1 and not np.all(np.diff(glsns) > 0)):
        return f"they go from {glsns[0]} to {glsns[-1]} and should ascend within {least} to {end - 1}"
    return ""


def _glsns(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    array: npt.NDArray[np.int64] = batch.column("glsn").to_numpy()
    return array


def _times(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    array: npt.NDArray[np.int64] = batch.column("timestamp").cast(pa.int64()).to_numpy()
    return array


# Reading


class _Watched(io.RawIOBase):
    """A file that remembers that reading it failed, so that a failure to make sense of it can be told from that."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file
        self.failed: OSError | None = None

    def read(self, size: int | None = -1) -> bytes:
        try:
            data: bytes = self._file.read(None if size is None or size < 0 else size)
        except OSError as error:
            self.failed = error
            raise
        return data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        place: int = self._file.seek(offset, whence)
        return place

    def tell(self) -> int:
        place: int = self._file.tell()
        return place

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def opened(place: Place, wanted: Range) -> Iterator[parquet.ParquetFile]:
    """A file, after a look whether it can be the one that the manifest names."""
    where = place.path(wanted.path)
    size = place.size(wanted.path)
    if size != wanted.bytes:
        has = "is not there" if size is None else f"has {size} bytes instead of {wanted.bytes}"
        raise BrokenArchive(f"{where} {has}; restore it from a copy")
    try:
        file = _Watched(place.open(wanted.path))
    except FileNotFoundError:
        raise BrokenArchive(f"{where} is not there; restore it from a copy") from None
    with file:
        try:
            with checked.parquet_of(file, wanted.path) as found:
                about = found.metadata
                rows = sum(about.row_group(number).num_rows for number in range(about.num_row_groups))
                if found.schema_arrow.remove_metadata() != ARROW_SCHEMA or not rows == about.num_rows == wanted.rows:
                    has = f"{rows} rows of the columns {', '.join(found.schema_arrow.names)}"
                    raise BrokenArchive(f"{where} has {has}, which is not what the manifest says")
                yield found
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if file.failed is not None:
                raise
            reason = " ".join(str(error).split())
            raise BrokenArchive(f"{where} is damaged: {reason}; restore it from a copy") from error


def read_rows(place: Place, wanted: Range, begin: int, end: int, max_rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of [begin, end) that a file has, in GLSN order."""
    with opened(place, wanted) as file:
        least = wanted.begin
        for group in range(file.metadata.num_row_groups):
            held = bounds(file, wanted, group, "glsn")
            if least >= end or (held is not None and (held.high < begin or held.low >= end)):
                continue
            for batch in _batches(file, group, max_rows):
                fault = _fault(batch, least, wanted.end)
                if fault:
                    raise BrokenArchive(f"{place.path(wanted.path)} has rows that do not belong there: {fault}")
                glsns = _glsns(batch)
                first, last = np.searchsorted(glsns, [begin, end]).tolist()
                if first < last:
                    yield pa.RecordBatch.from_arrays(batch.slice(first, last - first).columns, schema=ARROW_SCHEMA)
                least = int(glsns[-1]) + 1


def _batches(file: parquet.ParquetFile, group: int, max_rows: int) -> Iterator[pa.RecordBatch]:
    """A row group in batches that are not too large; after the last one, all of its rows were there."""
    about = file.metadata.row_group(group)
    fitting = about.num_rows * BATCH_BYTES // max(1, about.total_byte_size)
    return checked.batches_of(file, group, max(1, min(max_rows, fitting)))


def bounds(file: parquet.ParquetFile, wanted: Range, group: int, name: str) -> Bounds | None:
    """What a row group says of a column of numbers or times; None if it says nothing, or nothing to be believed."""
    if not checked.is_checked(wanted.path):
        return None
    column = file.metadata.row_group(group).column(ARROW_SCHEMA.get_field_index(name))
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max:
        return None
    return Bounds(int(statistics.min_raw), int(statistics.max_raw))


def first_since(place: Place, wanted: Range, timestamp_us: int) -> int | None:
    """The first GLSN of a file whose time is not before that one; None if all are before."""
    with opened(place, wanted) as file:
        for group in range(file.metadata.num_row_groups):
            held = bounds(file, wanted, group, "timestamp")
            if held is not None and held.high < timestamp_us:
                continue
            for rows in list(checked.batches_of(file, group, MAX_ROWS, ["glsn", "timestamp"])):
                index = int(np.searchsorted(_times(rows), timestamp_us))
                if index < len(rows):
                    return int(_glsns(rows)[index])
    return None


def last_row(place: Place, wanted: Range) -> pa.RecordBatch | None:
    """The last row of a file; None if it has no rows."""
    with opened(place, wanted) as file:
        last = None
        for group in range(file.metadata.num_row_groups)[-1:]:
            *_, last = _batches(file, group, MAX_ROWS)
    return None if last is None else pa.RecordBatch.from_arrays(last.slice(len(last) - 1).columns, schema=ARROW_SCHEMA)


def last_time(place: Place, wanted: Range) -> int:
    """The latest time in a file that has rows."""
    with opened(place, wanted) as file:
        found = bounds(file, wanted, file.metadata.num_row_groups - 1, "timestamp")
    if found is not None:
        return found.high
    last = last_row(place, wanted)
    assert last is not None, "it has rows"
    return int(_times(last)[-1])


def glsn_bounds(place: Place, wanted: Range) -> Bounds | None:
    """The first and the last GLSN of a file; None if it has no rows."""
    with opened(place, wanted) as file:
        groups = file.metadata.num_row_groups
        held = [found for number in range(groups) if (found := bounds(file, wanted, number, "glsn")) is not None]
    return Bounds(held[0].low, held[-1].high) if held else None
