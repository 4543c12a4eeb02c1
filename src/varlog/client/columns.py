"""A batch of entries as an Arrow record batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from varlog.client.entries import EntryBatch

SCHEMA: Final = pa.schema(
    [
        pa.field("glsn", pa.uint64(), nullable=False),
        pa.field("llsn", pa.uint64(), nullable=False),
        pa.field("log_stream", pa.uint32(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)


def record_batch(entries: EntryBatch, payload: pa.BinaryArray) -> pa.RecordBatch:
    """The columns of `SCHEMA`."""
    count = entries.count
    columns = [
        pa.array(np.arange(entries.glsn, entries.glsn + count, dtype=np.uint64)),
        pa.array(np.arange(entries.llsn, entries.llsn + count, dtype=np.uint64)),
        pa.array(np.full(count, entries.log_stream, dtype=np.uint32)),
        pa.array(np.full(count, entries.time, dtype=np.int64)).view(SCHEMA.field("timestamp").type),
        payload,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
