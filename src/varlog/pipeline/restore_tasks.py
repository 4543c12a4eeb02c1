"""The part of the restore job that runs on executors: each task holds a range of the topic against the archive.

Both sides are read as rows and digested, position and payload, cell by cell; what comes back to the driver is one line
for each range. LLSN, log stream and time are not compared: a restored log has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from varlog.archive import Place, Range
from varlog.archive.parquet import MAX_ROWS, read_rows
from varlog.errors import JobFailed, VarlogError
from varlog.pipeline.audit_rows import CELL, RowDigest
from varlog.pipeline.progress import tasks_told
from varlog.spark.options import Connection
from varlog.spark.task import read_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS: Final = ("glsn", "payload")
SCHEMA: Final = "rows BIGINT, bytes BIGINT, differs BIGINT, code INT, detail STRING"
_ARROW: Final = pa.schema(
    [
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("differs", pa.int64()),
        ("code", pa.int32()),
        ("detail", pa.string()),
    ]
)


class Part(NamedTuple):
    """What one task compares: the positions [begin, end), all of one file."""

    begin: int
    end: int
    held: Range


class Compared(NamedTuple):
    """What was compared."""

    rows: int
    bytes: int
    differs: int
    """The first position of a cell that is not the same; 0 if all are."""


def compare(
    spark: SparkSession, connection: Connection, uri: str, parts: Sequence[Part], told: Callable[[int], None]
) -> Compared:
    """Compare the parts; `told` is told how many are done. An error of any of them is raised."""
    wanted = tuple(parts)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield _outcome(connection, uri, wanted[number], number)

    from pyspark.errors import PySparkException  # noqa: PLC0415  # it is here, or there would be no session

    frame = spark.range(0, len(wanted), 1, len(wanted)).mapInArrow(run, SCHEMA)
    try:
        with tasks_told(spark, told):
            found = frame.collect()
    except PySparkException as error:
        raise JobFailed(f"Spark could not compare the files: {str(error).strip().splitlines()[-1]}") from error
    for row in found:
        if row["code"]:
            raise VarlogError.of(row["code"], row["detail"])
    differs = min((row["differs"] for row in found if row["differs"]), default=0)
    return Compared(sum(row["rows"] for row in found), sum(row["bytes"] for row in found), differs)


def _outcome(connection: Connection, uri: str, part: Part, affinity: int) -> pa.RecordBatch:
    try:
        archived = digests(read_rows(Place.of(uri), part.held, part.begin, part.end, MAX_ROWS))
        restored = digests(read_range(connection, part.begin, part.end, affinity, columns=COLUMNS))
        differ = [cell for cell in archived.keys() | restored.keys() if not _is_same(archived, restored, cell)]
        row = {
            "rows": sum(cell.rows for cell in restored.values()),
            "bytes": sum(cell.bytes for cell in restored.values()),
            "differs": max(min(differ), part.begin) if differ else 0,
            "code": 0,
        }
    except VarlogError as error:
        row = {"code": error.code, "detail": str(error)}  # type: ignore[dict-item]  # one more type of value
    return pa.RecordBatch.from_pylist([row], schema=_ARROW)


def digests(batches: Iterable[pa.RecordBatch]) -> dict[int, RowDigest]:
    """Of each cell that has rows, by where it begins."""
    cells: dict[int, RowDigest] = {}
    for batch in batches:
        glsns = batch.column("glsn").to_numpy()
        payloads = batch.column("payload")
        numbers = glsns // CELL
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(glsns)]
        for first, last in pairwise(cuts):
            if first < last:
                nothing = np.zeros(last - first, np.int64)
                cell = cells.setdefault(int(numbers[first]) * CELL, RowDigest())
                cell.add(glsns[first:last], nothing, nothing, payloads.slice(first, last - first))
    return cells


def _is_same(one: dict[int, RowDigest], other: dict[int, RowDigest], cell: int) -> bool:
    return cell in one and cell in other and one[cell].digest() == other[cell].digest()
