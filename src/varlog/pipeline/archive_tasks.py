"""The part of the archive job that runs on executors: each task reads a range of the log and writes it as one file.

Rows go from the log into the file inside of the task; what comes back to the driver is one line for each file. A task
that cannot do its work comes back with the error in words, so that the driver can raise it for what it is. A lost
executor is Spark's to make up for; of a file that was written twice one is named by no commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from varlog.archive import Range, write_range
from varlog.errors import DataLoss, JobFailed, Trimmed, VarlogError
from varlog.pipeline.progress import tasks_told
from varlog.spark.connections import connections
from varlog.spark.options import Connection
from varlog.spark.task import read_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from varlog import Log

SCHEMA: Final = "begin BIGINT, end BIGINT, path STRING, rows BIGINT, bytes BIGINT, code INT, detail STRING"
_ARROW: Final = pa.schema(
    [
        ("begin", pa.int64()),
        ("end", pa.int64()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("code", pa.int32()),
        ("detail", pa.string()),
    ]
)


class Part(NamedTuple):
    """What one task archives: the positions [begin, end)."""

    begin: int
    end: int


def write_files(
    spark: SparkSession, connection: Connection, uri: str, parts: Sequence[Part], told: Callable[[int], None]
) -> list[Range]:
    """Write a file for each part; `told` is told how many are done. The first error of any of them is raised, and then
    nothing is to be committed."""
    wanted = tuple(parts)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield outcome(connection, uri, wanted[number], number)

    from pyspark.errors import PySparkException  # noqa: PLC0415  # it is here, or there would be no session

    frame = spark.range(0, len(wanted), 1, len(wanted)).mapInArrow(run, SCHEMA)
    try:
        with tasks_told(spark, told):
            found = frame.collect()
    except PySparkException as error:
        raise JobFailed(f"Spark could not write the files: {str(error).strip().splitlines()[-1]}") from error
    for row in found:
        if row["code"]:
            raise VarlogError.of(row["code"], row["detail"])
    return sorted(Range(row["begin"], row["end"], row["path"], row["rows"], row["bytes"]) for row in found)


def outcome(connection: Connection, uri: str, part: Part, number: int) -> pa.RecordBatch:
    """What a task comes back with: the file that it has written, or why it has not."""
    try:
        made = write_range(uri, part.begin, part.end, _rows(connection, part, number))
        row = {**made._asdict(), "code": 0, "detail": ""}
    except VarlogError as error:
        row = {"begin": part.begin, "end": part.end, "path": "", "rows": 0, "bytes": 0}
        row |= {"code": error.code, "detail": str(error)}
    return pa.RecordBatch.from_pylist([row], schema=_ARROW)


def _rows(connection: Connection, part: Part, affinity: int) -> Iterator[pa.RecordBatch]:
    """What the log has of the part. What an operator has declared lost has no row; what was trimmed before it could be
    archived is an error: the archive may not have a gap."""

    async def first(log: Log) -> int:
        return await log.first()

    begin = part.begin
    while begin < part.end:
        try:
            yield from read_range(connection, begin, part.end, affinity)
            return
        except DataLoss as loss:
            log_begins = connections.ask(connection, first)
            if log_begins > loss.begin or loss.end <= begin:
                raise Trimmed(log_begins, loss.begin) from loss
            begin = loss.end
