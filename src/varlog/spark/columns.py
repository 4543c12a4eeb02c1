"""The columns in which Spark, and every archive, has the log.

    glsn BIGINT, llsn BIGINT, log_stream INT, timestamp TIMESTAMP, payload BINARY

Spark knows no unsigned numbers and takes Arrow batches only in exactly the types that it would choose itself, so these
differ from the client's own (`varlog.client.columns`). Nothing is ever null.

The log comes in the batches that it was appended in, often small ones; Spark wants batches of some thousand rows.
`record_batch` makes one of many. The work is done per batch in Python and per row in C: numbers by numpy, payloads
copied once, from the bytes that came over the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from varlog.client.entries import EntryBatch

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
    return ", ".join(f"`{name}` {SPARK_TYPES[name]}" for name in columns)


def arrow_schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """The columns as Arrow has them."""
    return pa.schema([ARROW_SCHEMA.field(name) for name in columns])


def record_batch(batches: Sequence[EntryBatch], columns: Sequence[str] = COLUMNS) -> pa.RecordBatch:
    """Batches of the log as one of Spark's."""
    counts = np.fromiter((batch.count for batch in batches), np.int64, len(batches))
    begins = np.cumsum(counts) - counts

    def ascending(firsts: Sequence[int]) -> npt.NDArray[np.int64]:
        """Each batch's numbers, from its first one on."""
        shifts = np.array(firsts, np.int64) - begins
        return np.repeat(shifts, counts) + np.arange(int(counts.sum()), dtype=np.int64)

    def column(name: str) -> pa.Array:
        match name:
            case "glsn":
                return pa.array(ascending([batch.glsn for batch in batches]))
            case "llsn":
                return pa.array(ascending([batch.llsn for batch in batches]))
            case "log_stream":
                return pa.array(np.repeat(np.array([batch.log_stream for batch in batches], np.int32), counts))
            case "timestamp":
                times = np.repeat(np.array([batch.time for batch in batches], np.int64), counts)
                return pa.array(times).view(ARROW_SCHEMA.field(name).type)
            case _:
                payloads = [batch.column() for batch in batches]
                return payloads[0] if len(payloads) == 1 else pa.concat_arrays(payloads)

    return pa.RecordBatch.from_arrays([column(name) for name in columns], schema=arrow_schema(columns))
