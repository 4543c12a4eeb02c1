"""What a task makes of its rows: entries of the log, as batches of binary columns.

Rows come from Spark as Arrow batches and stay such: a column of payloads is taken as it is, JSON is made by Arrow
(`sinking_json`), and large batches are cut by a look at the offsets of their payloads. No row is touched in Python.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from varlog import limits
from varlog.errors import InvalidArgument
from varlog.spark.sink_options import Chosen, How
from varlog.spark.sinking_json import json_of, objects


class Payloads:
    """Makes them for one task."""

    def __init__(self, chosen: Chosen) -> None:
        self._chosen = chosen
        self._rows = 0
        """That were dealt with before."""

    def of(self, rows: pa.RecordBatch) -> Iterator[pa.Array]:
        """Rows as batches for the log, in their order; none is empty. A row without a payload is refused."""
        column = self._column(rows)
        if column.null_count:
            row = self._rows + int(pc.index(column.is_null(), True).as_py())
            raise InvalidArgument(
                f"{self._chosen.names[0]} is null in row {row} of the task's; an entry is bytes, of which there may be "
                "none. Leave such rows out, or coalesce(...) them"
            )
        self._rows += rows.num_rows
        yield from pieces(column)

    def _column(self, rows: pa.RecordBatch) -> pa.Array:
        columns = [rows.column(place) for place in self._chosen.places]
        if self._chosen.how is How.BYTES:
            return _as_bytes(columns[0])
        if self._chosen.how is How.VALUES:
            return _as_bytes(json_of(columns[0]))
        return _as_bytes(objects(columns, self._chosen.names))


def _as_bytes(column: pa.Array) -> pa.Array:
    large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    return column.cast(pa.large_binary() if large else pa.binary())


def pieces(column: pa.Array) -> Iterator[pa.Array]:
    """A binary column in pieces that are as large as a batch of the log should be."""
    if not len(column):
        return
    width = np.dtype(np.int64 if pa.types.is_large_binary(column.type) else np.int32)
    offsets = np.frombuffer(column.buffers()[1], width, len(column) + 1, column.offset * width.itemsize)
    begin = 0
    while begin < len(column):
        behind = int(np.searchsorted(offsets, offsets[begin] + limits.SPARK_SINK_BATCH_BYTES, side="right")) - 1
        end = min(len(column), max(behind, begin + 1))
        yield column.slice(begin, end - begin)
        begin = end
