"""The part of `materialize` that runs on executors: which entries change a key, and the table's files written anew.

Entries are parsed by Spark itself. `Latest` gets those of one key, in whatever order, and what it remembers of the key
is the greatest position that it has seen: only an entry beyond it is a change. Spark keeps that state in RocksDB, in
versions that belong to the micro-batches, so a micro-batch that is done again begins with what it began with before.

Of a micro-batch's changes those of each part of the table come together in one task, which merges them with the part's
file. What comes back to the driver is one line for each part. A task that cannot do its work comes back with the error
in words, so that the driver can raise it for what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import functions as sql
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from varlog.errors import VarlogError
from varlog.pipeline.materialize_table import COLUMNS, PART, File, merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHANGE: Final = "key STRING, value STRING, glsn BIGINT, timestamp TIMESTAMP"
_OUTCOME: Final = "part INT, path STRING, rows BIGINT, bytes BIGINT, changes BIGINT, code INT, detail STRING"
_ARROW: Final = pa.schema(
    [
        ("part", pa.int32()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("changes", pa.int64()),
        ("code", pa.int32()),
        ("detail", pa.string()),
    ]
)
METRICS: Final = "varlog"
"""What is counted of a micro-batch."""


class Latest(StatefulProcessor):
    """See the module's text."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", "glsn BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803  # Spark's names
        latest = max(rows, key=_glsn)
        seen = self._seen.get()
        if seen is None or latest.glsn > seen[0]:
            self._seen.update((latest.glsn,))
            yield Row(key=key[0], value=latest.value, glsn=latest.glsn, timestamp=latest.timestamp)

    def close(self) -> None:
        """There is nothing to close."""


def _glsn(row: Row) -> int:
    glsn: int = row.glsn
    return glsn


def changes_of(entries: DataFrame, key: str, value: str) -> DataFrame:
    """A stream of entries as one of changes. Paths are those of `get_json_object`; no value is the whole entry."""
    text = sql.col("payload").cast("string")
    parsed = entries.select(
        sql.get_json_object(text, key).alias("key"),
        (sql.get_json_object(text, value) if value else text).alias("value"),
        "glsn",
        "timestamp",
    ).observe(METRICS, sql.count("*").alias("entries"), sql.count("key").alias("keyed"))
    return (
        parsed.where("key IS NOT NULL")
        .groupBy("key")
        .transformWithState(statefulProcessor=Latest(), outputStructType=CHANGE, outputMode="Update", timeMode="None")
    )


class Merged(NamedTuple):
    """What a micro-batch comes to: files for the parts that it changes, and how many keys it changes."""

    files: list[File]
    keys: int


def merged(changes: DataFrame, uri: str, files: Mapping[int, File], parts: int) -> Merged:
    """Write the files of all parts that change. The first error of any of them is raised, and then nothing is to be
    committed."""
    held = dict(files)

    def run(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
        return outcome(uri, key[0].as_py(), held, table)

    numbered = changes.withColumn(PART, sql.pmod(sql.hash("key"), sql.lit(parts)).cast("int"))
    found = numbered.groupBy(PART).applyInArrow(run, _OUTCOME).collect()
    for row in found:
        if row["code"]:
            raise VarlogError.of(row["code"], row["detail"])
    written = [File(row["part"], row["path"], row["rows"], row["bytes"]) for row in found if row["path"]]
    return Merged(sorted(written), sum(row["changes"] for row in found))


def outcome(uri: str, part: int, held: Mapping[int, File], changes: pa.Table) -> pa.Table:
    """What a task comes back with: the file that it has written, or why it has not."""
    row: dict[str, Any] = {"part": part, "path": "", "rows": 0, "bytes": 0, "changes": len(changes)}
    try:
        made = merge(uri, part, held.get(part), changes.select(COLUMNS.names).cast(COLUMNS))
        row |= {**(made._asdict() if made is not None else {}), "code": 0, "detail": ""}
    except VarlogError as error:
        row |= {"code": error.code, "detail": str(error)}
    return pa.Table.from_pylist([row], schema=_ARROW)
