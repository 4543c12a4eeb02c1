"""Batches of an archive, cut so that they are what a reader of the log knows.

An archive has rows, in GLSN order, of all log streams. A reader gets runs of them: consecutive positions of one log
stream that got them at the same time, which is what a batch of the log is too, or a part of one or several. Runs are
found and cut without a look at single rows in Python.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from varlog import errors
from varlog.client.columns import SCHEMA
from varlog.client.entries import Entry, EntryBatch, new_entry
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, Version


class ArchivedBatch(EntryBatch):
    """Entries from an archive. What only the log knows of a batch is not there: `epoch`, `version` and
    `writer_timestamp` are 0. So are `log_stream`, `llsn` and `time` where the rows are of several runs."""

    __slots__ = ("rows",)

    def __init__(self, rows: pa.RecordBatch, glsn: int, lsid: int, llsn: int, time: int) -> None:
        self.rows = rows
        """As the archive has them."""
        self.glsn = GLSN(glsn)
        self.count = rows.num_rows
        self.log_stream = LogStreamID(lsid)
        self.llsn = LLSN(llsn)
        self.epoch = Epoch(0)
        self.version = Version(0)
        self.time = time

    @property
    def end(self) -> GLSN:
        return GLSN(self.rows.column(0)[-1].as_py() + 1)

    @property
    def writer_timestamp(self) -> int:
        return 0

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes)

    def payloads(self) -> list[bytes]:
        return list(self.column().to_pylist())

    def column(self) -> pa.BinaryArray:
        return self.rows.column(4)

    def to_arrow(self) -> pa.RecordBatch:
        columns = [column.view(field.type) for column, field in zip(self.rows.columns, SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def __iter__(self) -> Iterator[Entry]:
        glsn, llsn, log_stream, time = (numbers.tolist() for numbers in _numbers(self.rows))
        return map(new_entry, zip(glsn, self.payloads(), llsn, log_stream, time, strict=True))


def batches_of(rows: pa.RecordBatch, begin: int, end: int, *, whole: bool) -> list[ArchivedBatch]:
    """The runs in some rows of an archive, or the rows as they are. They must ascend, and lie in [begin, end)."""
    if not rows.num_rows:
        return []
    glsn, llsn, log_stream, time = _numbers(rows)
    steps = np.diff(glsn)
    if glsn[0] < begin or glsn[-1] >= end or (steps <= 0).any():
        raise errors.BrokenArchive(f"rows from {glsn[0]} to {glsn[-1]} do not ascend within {begin} to {end - 1}")
    if whole:
        return [ArchivedBatch(rows, int(glsn[0]), 0, 0, 0)]
    breaks = (steps != 1) | (np.diff(llsn) != 1) | (log_stream[1:] != log_stream[:-1]) | (time[1:] != time[:-1])
    begins = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    lengths = np.diff(begins, append=len(glsn))
    of_runs = (numbers[begins].tolist() for numbers in (glsn, log_stream, llsn, time))
    return [
        ArchivedBatch(rows.slice(at, length), *known)
        for at, length, *known in zip(begins.tolist(), lengths.tolist(), *of_runs, strict=True)
    ]


def _numbers(rows: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    glsn, llsn, log_stream, time = rows.columns[:4]
    return glsn.to_numpy(), llsn.to_numpy(), log_stream.to_numpy(), time.view(pa.int64()).to_numpy()
