"""What is read of a copy, in few rows: digests of cells, and what was noticed on the way.

Positions are cut into *slices*, one to a task, and these into *cells* of `CELL` positions. Of each cell and log stream
a copy is asked for one digest of its entries: position, LLSN, time and payload of each, in the order in which the copy
has them. Copies that hold the same give the same digest, whether they are replicas, which have batches, or the archive,
which has rows; and how they were read does not matter. What is left to compare is a few rows per thousand entries,
which is Spark's work, and never comes to one place as a whole.

`FOUND` is the table that all tasks write to. Its rows are of several kinds: a *cell* with its digests; a *slice* as a
whole, for what must go on from one slice to the next; a *span* of positions that a replica has, for the density of the
topic; and a *fault* that could be seen in the copy by itself. Of transactions (`audit_fates`) there are *verdicts*, and
what was *marked* as a part of one. Judging a slice adds two: a *run* of cells in which copies differ, and a *bucket* of
the plots; judging transactions how many there are.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from enum import StrEnum
from hashlib import sha256
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from varlog.pipeline.audit_findings import Fault

CELL: Final = 4096
SLICE: Final = 64 * CELL
DIGEST_BYTES: Final = 16
FAULTS_KEPT: Final = 50
"""Of one slice of one copy; what lies beyond is counted, and the cells tell where it is."""

_BATCH_ROWS: Final = 20_000
_ROW: Final = Struct("<qqqq")

Numbers = npt.NDArray[np.int64]

FOUND: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("copy", pa.int32()),
        ("log_stream", pa.int32()),
        ("slice", pa.int64()),
        ("begin", pa.int64()),
        ("end", pa.int64()),
        ("rows", pa.int64()),
        ("positions", pa.int64()),
        ("bytes", pa.int64()),
        ("content", pa.binary()),
        ("raw", pa.binary()),
        ("llsn_begin", pa.int64()),
        ("llsn_end", pa.int64()),
        ("first_version", pa.int64()),
        ("prev_hwm", pa.int64()),
        ("last_version", pa.int64()),
        ("hwm", pa.int64()),
        ("commits", pa.int64()),
        ("first_time", pa.int64()),
        ("last_time", pa.int64()),
        ("fault", pa.string()),
        ("detail", pa.string()),
    ]
)
SPARK_SCHEMA: Final = ", ".join(
    f"`{field.name}` " + {"string": "STRING", "int32": "INT", "int64": "BIGINT", "binary": "BINARY"}[str(field.type)]
    for field in FOUND
)


class Kind(StrEnum):
    CELL = "cell"
    SLICE = "slice"
    SPAN = "span"
    FAULT = "fault"
    RUN = "run"
    BUCKET = "bucket"
    VERDICT = "verdict"
    MARKED = "marked"
    TRANSACTIONS = "transactions"


class RowDigest:
    """Of entries, in the order they are added; however they are split up, the digest is the same."""

    __slots__ = ("_data", "_numbers", "bytes", "rows")

    def __init__(self) -> None:
        self._numbers = sha256()
        self._data = sha256()
        self.rows = 0
        self.bytes = 0

    def add(self, glsns: Numbers, llsns: Numbers, times: Numbers, payloads: pa.BinaryArray) -> None:
        """Entries as columns."""
        sizes, data = payloads_of(payloads)
        table = np.empty((len(sizes), 4), dtype="<i8")
        table[:, 0] = glsns
        table[:, 1] = llsns
        table[:, 2] = times
        table[:, 3] = sizes
        self._numbers.update(table.data)
        self._data.update(data)
        self.rows += len(sizes)
        self.bytes += len(data)

    def add_one(self, glsn: int, llsn: int, time: int, payload: bytes) -> None:
        """The same of a single entry, in a fraction of the time."""
        self._numbers.update(_ROW.pack(glsn, llsn, time, len(payload)))
        self._data.update(payload)
        self.rows += 1
        self.bytes += len(payload)

    def digest(self) -> bytes:
        return sha256(self._numbers.digest() + self._data.digest()).digest()[:DIGEST_BYTES]


def payloads_of(payloads: pa.BinaryArray) -> tuple[npt.NDArray[np.int32], memoryview]:
    """The sizes of a column's entries, and their bytes one after another."""
    count = len(payloads)
    _, offset_buffer, data_buffer = payloads.buffers()
    if not count:
        return np.zeros(0, np.int32), memoryview(b"")
    offsets = np.frombuffer(offset_buffer, np.int32, count + 1, 4 * payloads.offset)
    data = memoryview(data_buffer if data_buffer is not None else b"")
    return np.diff(offsets), data[offsets[0] : offsets[-1]]


def cells_of(begin: int, end: int, cuts: Iterable[int] = ()) -> list[int]:
    """Where the cells of [begin, end) begin: there, at multiples of `CELL`, and at those of `cuts` that lie inside."""
    grid = range(begin - begin % CELL + CELL, end, CELL)
    return sorted({begin, *grid, *(cut for cut in cuts if begin < cut < end)})


def cell_of(glsn: int, begin: int) -> int:
    """Where the cell of a position begins, in what is cut at `begin` and nowhere else."""
    return max(glsn - glsn % CELL, begin)


class Spans:
    """Positions [begin, end), ascending, those that are adjacent joined; there may be very many."""

    __slots__ = ("begins", "ends")

    def __init__(self) -> None:
        self.begins = array("q")
        self.ends = array("q")

    def add(self, begin: int, end: int) -> None:
        if self.ends and self.ends[-1] == begin:
            self.ends[-1] = end
        else:
            self.begins.append(begin)
            self.ends.append(end)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spans) and (self.begins, self.ends) == (other.begins, other.ends)

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def positions(self) -> int:
        return sum(self.ends) - sum(self.begins)


class Notes:
    """The rows of one slice or file, of one copy."""

    def __init__(self, copy: int, slice_begin: int) -> None:
        self.copy = copy
        self.slice_begin = slice_begin
        self._rows: list[dict[str, Any]] = []
        self._spans: list[tuple[int, Spans]] = []
        self._faults = 0

    def add(self, kind: Kind, log_stream: int, begin: int, end: int, **more: Any) -> None:
        row = {"kind": kind.value, "copy": self.copy, "slice": self.slice_begin, "log_stream": log_stream}
        self._rows.append(row | {"begin": begin, "end": end} | more)

    def fault(self, fault: Fault, log_stream: int, begin: int, end: int, detail: str) -> None:
        """Something that cannot be right, whatever the other copies hold."""
        self._faults += 1
        if self._faults <= FAULTS_KEPT:
            self.add(Kind.FAULT, log_stream, begin, end, fault=fault.value, detail=detail)

    def spans(self, log_stream: int, spans: Spans) -> None:
        """What a replica has of its log stream."""
        self._spans.append((log_stream, spans))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All of it as Arrow."""
        if self._faults > FAULTS_KEPT:
            more = f"there are {self._faults - FAULTS_KEPT} more faults in this part"
            self.add(Kind.FAULT, 0, self.slice_begin, self.slice_begin, fault=Fault.DIFFERS.value, detail=more)
        for at in range(0, len(self._rows), _BATCH_ROWS):
            yield pa.RecordBatch.from_pylist(self._rows[at : at + _BATCH_ROWS], schema=FOUND)
        for log_stream, spans in self._spans:
            for at in range(0, len(spans), _BATCH_ROWS):
                yield self._of_spans(log_stream, spans, at)

    def _of_spans(self, log_stream: int, spans: Spans, at: int) -> pa.RecordBatch:
        begins = pa.array(np.frombuffer(spans.begins, np.int64)[at : at + _BATCH_ROWS])
        ends = pa.array(np.frombuffer(spans.ends, np.int64)[at : at + _BATCH_ROWS])
        count = len(begins)
        known: dict[str, Any] = {
            "kind": pa.repeat(Kind.SPAN.value, count),
            "copy": pa.repeat(pa.scalar(self.copy, pa.int32()), count),
            "log_stream": pa.repeat(pa.scalar(log_stream, pa.int32()), count),
            "slice": pa.repeat(pa.scalar(self.slice_begin, pa.int64()), count),
            "begin": begins,
            "end": ends,
        }
        columns = [known.get(field.name, pa.nulls(count, field.type)) for field in FOUND]
        return pa.RecordBatch.from_arrays(columns, schema=FOUND)
