"""Archives for the tests of those who read them: made from a log, by what makes real ones."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa

import varlog
from varlog.archive import Archive, write_range
from varlog.spark.columns import ARROW_SCHEMA


async def archive(log: varlog.Log, path: Path, begin: int, end: int, *, files: int = 2, tpid: int = 0) -> Archive:
    """Put [begin, end) of a log into the archive at a path, which is made if there is none, in several files."""
    cid, topic = log._session.cluster.cid, log.topic
    made = Archive.create(str(path), cid=cid, topic=topic.name, tpid=tpid or topic.tpid, first=begin)
    edges = [begin + (end - begin) * number // files for number in range(files)] + [end]
    ranges = []
    for low, high in pairwise(edges):
        rows = [as_archived(batch.to_arrow()) async for batch in log.scan(low, high)]
        ranges.append(write_range(str(path), low, high, rows))
    made.commit(ranges, begin)
    return made


def as_archived(rows: pa.RecordBatch) -> pa.RecordBatch:
    columns = [column.view(field.type) for column, field in zip(rows.columns, ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)
