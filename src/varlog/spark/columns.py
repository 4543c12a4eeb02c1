"""The columns in which Spark, and every archive, has the log.

    glsn BIGINT, llsn BIGINT, log_stream INT, timestamp TIMESTAMP, payload BINARY

Spark knows no unsigned numbers and takes Arrow batches only in exactly the types that it would choose itself, so these
differ from the client's own (`varlog.client.columns`). Nothing is ever null, and Spark is told so: otherwise it looks
for nulls in every column of every row, twice, which was a sixth of its own work.

The log comes in the batches that it was appended in, often small ones; Spark wants batches of some thousand rows.
`record_batch` makes one of many. The work is done per batch in Python and per row in C: numbers by numpy, payloads
copied once, from the bytes that came over the wire.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from varlog.client.entries import EntryBatch
from varlog.errors import ConsistencyViolation

ARROW_SCHEMA: Final = pa.schema(
    [
        pa.field("glsn", pa.int64()),
        pa.field("llsn", pa.int64()),
        pa.field("log_stream", pa.int32()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("payload", pa.binary()),
    ]
)
COLUMNS: Final[tuple[str, ...]] = tuple(ARROW_SCHEMA.names)
SPARK_TYPES: Final = dict(zip(COLUMNS, ("BIGINT", "BIGINT", "INT", "TIMESTAMP", "BINARY"), strict=True))


def spark_schema(columns: Sequence[str] = COLUMNS) -> str:
    """The columns as Spark's schema strings have them."""
    return ", ".join(f"`{name}` {SPARK_TYPES[name]} NOT NULL" for name in columns)


def arrow_schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """The columns as Arrow has them."""
    return pa.schema([ARROW_SCHEMA.field(name) for name in columns])


def record_batch(batches: Sequence[EntryBatch], columns: Sequence[str] = COLUMNS) -> pa.RecordBatch:
    """Batches of the log as one of Spark's. Their positions ascend."""
    counts = np.fromiter((batch.count for batch in batches), np.int64, len(batches))
    total = int(counts.sum())
    first, last = batches[0], batches[-1]
    is_one_stream = all(batch.log_stream == first.log_stream for batch in batches)

    def ascending(firsts: Iterable[int], *, dense: bool) -> npt.NDArray[np.int64]:
        """Each batch's numbers, from its first one on."""
        begins = np.fromiter(firsts, np.int64, len(batches))
        if dense:
            return np.arange(begins[0], begins[0] + total)
        return np.repeat(begins - np.cumsum(counts) + counts, counts) + np.arange(total)

    def column(name: str) -> pa.Array:
        match name:
            case "glsn":
                dense = last.glsn + last.count - first.glsn == total
                return pa.array(ascending((batch.glsn for batch in batches), dense=dense))
            case "llsn":
                dense = is_one_stream and last.llsn + last.count - first.llsn == total
                return pa.array(ascending((batch.llsn for batch in batches), dense=dense))
            case "log_stream":
                streams = np.fromiter((batch.log_stream for batch in batches), np.int32, len(batches))
                return pa.array(np.full(total, streams[0]) if is_one_stream else np.repeat(streams, counts))
            case "timestamp":
                times = np.fromiter((batch.time for batch in batches), np.int64, len(batches))
                return pa.array(np.repeat(times, counts)).view(ARROW_SCHEMA.field(name).type)
            case _:
                return first.column() if len(batches) == 1 else EntryBatch.join(batches)

    return pa.RecordBatch.from_arrays([column(name) for name in columns], schema=arrow_schema(columns))


def declared(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], nullable: Collection[str]
) -> Iterator[pa.RecordBatch]:
    """The same batches, with the columns declared as a query has them: nothing is null, and some say that it may be."""
    schema = pa.schema([ARROW_SCHEMA.field(name).with_nullable(name in nullable) for name in columns])
    for batch in batches:
        if any(column.null_count for column in batch.columns):
            raise ConsistencyViolation(f"there are nulls among rows of the log: {batch.slice(0, 1).to_pylist()}")
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
