"""The part of `materialize` that runs on executors: which entries change a key, and the table's files written anew.

Entries are parsed by Spark itself. Keys belong to *slots*, by their hashes, and `Latest` gets the entries of one slot,
in whatever order. What it remembers of the slot are its keys, each with the greatest position that it has seen: only an
entry beyond that is a change. So the state is looked up and written once for many keys, and rows are compared as
columns. Spark keeps the state in RocksDB, in versions that belong to the micro-batches: one that is done again begins
with what it began with before.

Of a micro-batch's changes those of each part of the table come together in one task, which merges them with the part's
file. What comes back to the driver is one line for each part. A task that cannot do its work comes back with the error
in words, so that the driver can raise it for what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sql
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from varlog.errors import VarlogError
from varlog.pipeline.materialize_table import COLUMNS, PART, SLOTS, File, latest_of, merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHANGE: Final = "slot INT, key STRING, value STRING, glsn BIGINT, micros BIGINT"
"""Times are numbers here: pandas, which carries these rows, would have them in a time zone."""
_CHANGE_ARROW: Final = pa.schema(
    [
        ("slot", pa.int32()),
        ("key", pa.string()),
        ("value", pa.string()),
        ("glsn", pa.int64()),
        ("micros", pa.int64()),
    ]
)
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
        self._seen = handle.getValueState("seen", "keys BINARY")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: ARG002, N802, N803  # Spark's names
        frames = [pa.Table.from_pandas(frame, _CHANGE_ARROW, preserve_index=False) for frame in rows]
        known = self._seen.get()
        seen = Seen.of(bytes(known[0]) if known is not None else None)
        changed = seen.advance(latest_of(pa.concat_tables(frames)))
        if len(changed):
            self._seen.update((seen.packed(),))
            yield changed.to_pandas()

    def close(self) -> None:
        """There is nothing to close."""


class Seen:
    """The keys of a slot, and the greatest position of each."""

    SCHEMA: Final = pa.schema([("key", pa.string()), ("glsn", pa.int64())])

    def __init__(self, keys: pa.Array, glsns: npt.NDArray[np.int64]) -> None:
        self.keys = keys
        self.glsns = glsns

    @classmethod
    def of(cls, packed: bytes | None) -> Seen:
        """As it was kept; None: nothing yet."""
        if packed is None:
            return cls(pa.array([], pa.string()), np.zeros(0, np.int64))
        with pa.ipc.open_stream(packed) as stream:
            batch = stream.read_next_batch()
        return cls(batch.column("key"), batch.column("glsn").to_numpy())

    def packed(self) -> bytes:
        """To be kept."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.SCHEMA) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays([self.keys, pa.array(self.glsns)], schema=self.SCHEMA))
        held: bytes = sink.getvalue().to_pybytes()
        return held

    def advance(self, latest: pa.Table) -> pa.Table:
        """Those of some rows that are newer than what was seen of their keys, each of which has one; now they are."""
        keys = latest.column("key").combine_chunks()
        glsns: npt.NDArray[np.int64] = latest.column("glsn").to_numpy()
        at: npt.NDArray[np.int64] = pc.fill_null(pc.index_in(keys, self.keys), -1).to_numpy().astype(np.int64)
        is_known = at >= 0
        is_newer = ~is_known
        is_newer[is_known] = glsns[is_known] > self.glsns[at[is_known]]
        grown = self.glsns.copy()
        grown[at[is_known & is_newer]] = glsns[is_known & is_newer]
        self.keys = pa.concat_arrays([self.keys, keys.filter(pa.array(~is_known))])
        self.glsns = np.concatenate((grown, glsns[~is_known]))
        return latest.filter(pa.array(is_newer))


def changes_of(entries: DataFrame, key: str, value: str) -> DataFrame:
    """A stream of entries as one of changes. Paths are those of `get_json_object`; no value is the whole entry."""
    text = sql.col("payload").cast("string")
    parsed = entries.select(
        sql.get_json_object(text, key).alias("key"),
        (sql.get_json_object(text, value) if value else text).alias("value"),
        "glsn",
        sql.unix_micros("timestamp").alias("micros"),
    ).observe(METRICS, sql.count("*").alias("entries"), sql.count("key").alias("keyed"))
    slot = sql.pmod(sql.hash("key"), sql.lit(SLOTS)).cast("int")
    return (
        parsed.where("key IS NOT NULL")
        .select(slot.alias("slot"), "key", "value", "glsn", "micros")
        .groupBy("slot")
        .transformWithStateInPandas(
            statefulProcessor=Latest(), outputStructType=CHANGE, outputMode="Update", timeMode="None"
        )
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

    numbered = changes.withColumn(PART, sql.pmod("slot", sql.lit(parts)).cast("int"))
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
        columns = [changes.column(name) for name in ("key", "value", "glsn", "micros")]
        columns[-1] = columns[-1].cast(COLUMNS.field("timestamp").type)
        made = merge(uri, part, held.get(part), pa.Table.from_arrays(columns, COLUMNS.names).cast(COLUMNS))
        row |= {**(made._asdict() if made is not None else {}), "code": 0, "detail": ""}
    except VarlogError as error:
        row |= {"code": error.code, "detail": str(error)}
    return pa.Table.from_pylist([row], schema=_ARROW)
