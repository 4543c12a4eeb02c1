"""What the archive holds: every data file is read and hashed by the auditor itself, as replicas are.

A file is one task. It must be there, be as large and have as many rows as the manifest says, be as its checksums say,
have the archive's columns, and hold rows of its own range only, positions and times ascending, the LLSNs of each log
stream ascending. Its rows are digested in the order in which the file has them, cell by cell and log stream by log
stream, and so can be held against what replicas have there.

Positions without a row are no fault by themselves: what fills a log (see `Log.append_fill`) is never archived. Where
replicas still have these positions they tell; below the trim point nobody can any more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from varlog.archive import checked
from varlog.archive.place import Place
from varlog.pipeline.audit_findings import ARCHIVE, Fault
from varlog.pipeline.audit_rows import Kind, Notes, Numbers, RowDigest, cells_of
from varlog.spark.columns import ARROW_SCHEMA

BATCH_ROWS: Final = 4096
"""Rows of a file that are in memory at a time, beside its row group's pages."""


class ArchiveFile(NamedTuple):
    """What one task reads."""

    uri: str
    path: str
    begin: int
    end: int
    """The file's positions [begin, end), by its name."""
    rows: int
    size: int
    cuts: tuple[int, ...]
    """Where cells are cut besides, as everywhere else."""
    slices: tuple[int, ...]
    """Where the slices begin that have to do with it."""
    log_streams: tuple[int, ...]
    """Those that the topic has; there may have been others."""


def read(part: ArchiveFile) -> Notes:
    """Everything there is to say of a file. What goes wrong is part of it."""
    reading = _Reading(part)
    try:
        with open_file(part.uri, part.path) as file:
            reading.run(file)
    except FileNotFoundError:
        reading.fault(Fault.GAP, part.begin, part.end, f"{part.path} is missing")
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())
        reading.fault(Fault.DAMAGED, part.begin, part.end, f"{part.path} cannot be read: {said}")
    return reading.notes


def open_file(uri: str, path: str) -> pa.NativeFile:
    """A data file of an archive."""
    return Place.of(uri).open(path)


def rows_of(file: pa.NativeFile, path: str) -> Iterator[pa.RecordBatch]:
    """A data file's rows, a few thousand at a time."""
    with checked.parquet_of(file, path) as parquet:
        for group in range(parquet.num_row_groups):
            yield from checked.batches_of(parquet, group, BATCH_ROWS)


class _Reading:
    def __init__(self, part: ArchiveFile) -> None:
        self._part = part
        self.notes = Notes(ARCHIVE, part.begin)
        self._begins = np.array(cells_of(part.begin, part.end, part.cuts))
        self._cells: dict[tuple[int, int], RowDigest] = {}
        self._last_glsn = part.begin - 1
        self._last_time = -1
        self._last_llsns: dict[int, int] = {}
        self._first_llsns: dict[int, int] = {}
        self._times: list[int] = []

    def fault(self, fault: Fault, begin: int, end: int, detail: str, log_stream: int = 0) -> None:
        self.notes.fault(fault, log_stream, begin, end, detail)

    def run(self, file: pa.NativeFile) -> None:
        part = self._part
        size, rows = file.size(), 0
        if size != part.size:
            self.fault(Fault.DIFFERS, part.begin, part.end, f"{part.path} has {size} bytes, not {part.size}")
        for batch in rows_of(file, part.path):
            if batch.schema.remove_metadata() != ARROW_SCHEMA:
                names = ", ".join(f"{field.name} {field.type}" for field in batch.schema)
                self.fault(Fault.DIFFERS, part.begin, part.end, f"{part.path} has other columns: {names}")
                return
            rows += len(batch)
            self._add(batch)
        if rows != part.rows:
            said = f"{part.path} has {rows} rows, the manifest says {part.rows}"
            self.fault(Fault.MISSING if rows < part.rows else Fault.EXTRA, part.begin, part.end, said)
        self._tell()

    def _add(self, batch: pa.RecordBatch) -> None:
        if any(column.null_count for column in batch.columns):
            begin = self._last_glsn + 1
            self.fault(Fault.DAMAGED, begin, self._part.end, f"{self._part.path} has values that are null")
            return
        glsns = _numbers(batch, "glsn")
        self._check(batch, glsns)
        inside = (glsns >= self._part.begin) & (glsns < self._part.end)
        if not inside.all():
            strangers = glsns[~inside]
            said = f"{self._part.path} has rows of other positions, such as GLSN {strangers[0]}"
            self.fault(Fault.EXTRA, int(strangers.min()), int(strangers.max()) + 1, said)
            batch = batch.filter(pa.array(inside))
            glsns = glsns[inside]
        if len(glsns):
            self._digest(batch, glsns)

    def _check(self, batch: pa.RecordBatch, glsns: Numbers) -> None:
        """Against the rows before."""
        times, lsids, llsns = _numbers(batch, "timestamp"), _numbers(batch, "log_stream"), _numbers(batch, "llsn")
        before = np.concatenate(([self._last_glsn], glsns[:-1]))
        for at in np.flatnonzero(glsns <= before)[:8].tolist():
            fault = Fault.DUPLICATED if glsns[at] == before[at] else Fault.DISORDER
            said = f"GLSN {glsns[at]} comes after {before[at]} in {self._part.path}"
            self.fault(fault, int(glsns[at]), int(before[at]) + 1, said)
        earlier = np.concatenate(([self._last_time], times[:-1]))
        for at in np.flatnonzero(times < earlier)[:1].tolist():
            said = f"its time is before that of the entry before it, in {self._part.path}"
            self.fault(Fault.DISORDER, int(glsns[at]), int(glsns[at]) + 1, said)
        for lsid in np.unique(lsids).tolist():
            own, at_glsn = llsns[lsids == lsid], glsns[lsids == lsid]
            previous = np.concatenate(([self._last_llsns.get(lsid, 0)], own[:-1]))
            for at in np.flatnonzero(own <= previous)[:1].tolist():
                said = f"LLSN {own[at]} comes after {previous[at]} in {self._part.path}"
                self.fault(Fault.LLSN, int(at_glsn[at]), int(at_glsn[at]) + 1, said, lsid)
            self._first_llsns.setdefault(lsid, int(own[0]))
            self._last_llsns[lsid] = int(own[-1])
        self._times = [*self._times[:1], int(times[0]), int(times[-1])]
        self._last_glsn, self._last_time = int(glsns[-1]), int(times[-1])

    def _digest(self, batch: pa.RecordBatch, glsns: Numbers) -> None:
        """Rows of one cell and log stream go together, in the order they come in."""
        llsns, times, lsids = _numbers(batch, "llsn"), _numbers(batch, "timestamp"), _numbers(batch, "log_stream")
        payloads = batch.column("payload")
        cells = np.searchsorted(self._begins, glsns, "right") - 1
        keys = cells * (1 << 32) + lsids
        order = np.argsort(keys, kind="stable")
        cuts = np.flatnonzero(np.diff(keys[order])) + 1
        for first, last in pairwise([0, *cuts.tolist(), len(order)]):
            chosen = order[first:last]
            key = int(self._begins[cells[chosen[0]]]), int(lsids[chosen[0]])
            digest = self._cells.get(key)
            if digest is None:
                digest = self._cells[key] = RowDigest()
            digest.add(glsns[chosen], llsns[chosen], times[chosen], payloads.take(pa.array(chosen)))

    def _tell(self) -> None:
        part = self._part
        lsids = sorted({*part.log_streams, *self._last_llsns})
        for begin, end in pairwise([*self._begins.tolist(), part.end]):
            at = bisect_right(part.slices, begin) - 1
            for lsid in lsids:
                cell = self._cells.get((begin, lsid)) or RowDigest()
                more = {"slice": part.slices[at] if at >= 0 else part.begin, "rows": cell.rows, "bytes": cell.bytes}
                self.notes.add(Kind.CELL, lsid, begin, end, content=cell.digest(), **more)
        for lsid in lsids:
            mine = [cell for (_, other), cell in self._cells.items() if other == lsid]
            self.notes.add(
                Kind.SLICE,
                lsid,
                part.begin,
                part.end,
                rows=sum(cell.rows for cell in mine),
                bytes=sum(cell.bytes for cell in mine),
                llsn_begin=self._first_llsns.get(lsid, 0),
                llsn_end=self._last_llsns.get(lsid, -1) + 1,
                first_time=self._times[0] if self._times else None,
                last_time=self._times[-1] if self._times else None,
            )


def _numbers(batch: pa.RecordBatch, name: str) -> Numbers:
    column = batch.column(name)
    if name == "timestamp":
        column = column.cast(pa.int64())
    numbers: Numbers = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return numbers
