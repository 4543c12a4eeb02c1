"""The log as a stream: micro-batches that are consistent cuts.

An offset is one number for all log streams, the next position to read, and the topic that it is of: `{"glsn": 4711,
"topic": 1}`. Everything below it has been read and nothing from it on, so a micro-batch is a range of the total order,
and what is in it has happened before whatever is not yet. A micro-batch that has to be repeated has the same range, and
so the same rows: it ends before the first transaction that is not decided, so what it shows of transactions is decided
as well. A topic's number is never given to another one, so a checkpoint is not taken for one of another log, not even
of the same name. Offsets that were written before they had a topic are taken as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from varlog import errors
from varlog.spark import planning
from varlog.spark.connections import connections
from varlog.spark.options import Options
from varlog.spark.planning import Range
from varlog.spark.source import Partition, read_partition

if TYPE_CHECKING:
    import pyarrow as pa

    import varlog

Offset = dict[str, int]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query: in one process of the driver for as long as it runs, and in each task."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._target: int | None = None
        """Where to stop, with the trigger AvailableNow."""

    def initialOffset(self) -> Offset:  # noqa: N802  # these are Spark's names
        async def find(log: varlog.Log) -> Offset:
            planning.check_log_streams(log, self._options)
            extent = await planning.extent_of(log)
            begin = await planning.resolve(log, extent, self._options.start, self._options)
            if begin > extent.end:
                raise errors.BadOption(
                    f"option startingOffsets = '{begin}': the log ends before {extent.end}; "
                    f"allowed is up to {extent.end}"
                )
            return _offset(log, begin)

        return connections.ask(self._options.connection, find)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self.reportLatestOffset()["glsn"]

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        async def find(log: varlog.Log) -> Offset:
            return _offset(log, await planning.latest_of(log, self._options))

        return connections.ask(self._options.connection, find)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        async def find(log: varlog.Log) -> Offset:
            self._check(log, start)
            return _offset(log, await self._end_of_batch(log, start["glsn"], limit))

        return connections.ask(self._options.connection, find)

    def _check(self, log: varlog.Log, start: Offset) -> None:
        """Whether a query can go on from there; asked whenever it does, because it may have been started anew."""
        planning.check_log_streams(log, self._options)
        known = int(log.topic.tpid)
        if start.get("topic", known) != known:
            raise errors.ConsistencyViolation(
                f"the query has read topic number {start['topic']}, and {log.name!r} is number {known}: it is another "
                "log than the one that the checkpoint is of; begin with a new checkpoint"
            )

    async def _end_of_batch(self, log: varlog.Log, begin: int, limit: ReadLimit) -> int:
        end = await planning.latest_of(log, self._options)
        if begin > end and begin > (tail := await log.tail()) + 1:
            raise errors.ConsistencyViolation(
                f"the query has read up to {begin - 1}, and topic {log.name!r} ends at {tail}: it is another log "
                "than the one that the checkpoint is of; begin with a new checkpoint"
            )
        # What was read before is decided, though a transaction may be open that was begun at an earlier position.
        end = max(begin, end if self._target is None else min(end, self._target))
        if isinstance(limit, ReadAllAvailable) or begin == end:
            return end
        if isinstance(limit, ReadMaxRows):
            end = min(end, begin + limit.max_rows)
        if self._options.max_bytes:
            end = await planning.end_within(log, begin, end, self._options.max_bytes)
        return end

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        begin, behind = start["glsn"], end["glsn"]
        if begin == behind:
            return []

        async def plan(log: varlog.Log) -> list[Range]:
            self._check(log, start)
            extent = await planning.extent_of(log)
            return await planning.partitions_of(log, extent, begin, behind, self._options)

        return [Partition(found) for found in connections.ask(self._options.connection, plan)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query that cannot be. Spark tells what a reader raises, but buries what kept it from having one under
    an error of its own; so this one raises it whatever it is asked first."""

    def __init__(self, error: errors.VarlogError) -> None:
        self._error = error

    def _refuse(self, *_: object) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = partitions = read = _refuse  # type: ignore[assignment]  # noqa: N815
    getDefaultReadLimit = prepareForTriggerAvailableNow = reportLatestOffset = _refuse  # noqa: N815


def _offset(log: varlog.Log, glsn: int) -> Offset:
    return {"glsn": glsn, "topic": int(log.topic.tpid)}
