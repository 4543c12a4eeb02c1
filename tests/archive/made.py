"""Rows and archives for tests: what each row holds follows from its position, so that everything can be checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from varlog.archive import Archive, Range, write_range
from varlog.spark.columns import ARROW_SCHEMA

TIME = 1_700_000_000_000_000
PER_ROW = 1000
"""Microseconds from one row to the next."""


def payload(glsn: int) -> bytes:
    return b"entry %d " % glsn * (glsn % 7)


def rows(glsns: Iterable[int]) -> pa.RecordBatch:
    """Rows at these positions."""
    wanted = list(glsns)
    numbers = np.array(wanted, np.int64)
    columns = [
        pa.array(numbers),
        pa.array(numbers // 2),
        pa.array((numbers % 2 + 1).astype(np.int32)),
        pa.array(TIME + numbers * PER_ROW).view(ARROW_SCHEMA.field("timestamp").type),
        pa.array(list(map(payload, wanted)), pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def glsns_of(batches: Iterable[pa.RecordBatch]) -> list[int]:
    """The positions of rows, after a look whether they hold what they should."""
    found: list[int] = []
    for batch in batches:
        assert batch.schema == ARROW_SCHEMA
        glsns = batch.column("glsn").to_pylist()
        assert batch == rows(glsns)
        found += glsns
    return found


def file(uri: str | Path, begin: int, end: int, hidden: Sequence[int] = ()) -> Range:
    """Write one file."""
    wanted = [glsn for glsn in range(begin, end) if glsn not in set(hidden)]
    return write_range(str(uri), begin, end, _parts(wanted))


def _parts(glsns: Sequence[int], size: int = 100) -> Iterator[pa.RecordBatch]:
    for begin in range(0, len(glsns), size):
        yield rows(glsns[begin : begin + size])


def create(uri: str | Path, first: int = 1, topic: str = "log") -> Archive:
    return Archive.create(str(uri), cid=1, topic=topic, tpid=1, first=first)


def archive(uri: str | Path, *cuts: int, hidden: Sequence[int] = ()) -> Archive:
    """An archive with a file from each cut to the next, committed together."""
    made = create(uri, cuts[0])
    if len(cuts) > 1:
        made.commit([file(uri, begin, end, hidden) for begin, end in pairwise(cuts)], cuts[0])
    return made
