"""`read_range`: what a task does on an executor, and whoever else reads a range of the log as Arrow batches.

It reads through a connection of its own process, from one replica or another, and goes on where it was when one of them
fails. Batches of the log become batches for Spark without a look at single rows. While one is worked on by Spark the
next ones are read; what is held at a time is bounded by the client's read-ahead and a few batches, however long the
range is.

What always holds: what comes out are the entries of [begin, end) in GLSN order, each once, less those that a rule hides
(filled positions, verdicts on transactions, and what these did not commit) or that the caller does not want (other log
streams). It is checked: positions ascend, stay inside of the range, and together with those that were passed over they
are as many as the range is long. A range of which something is no longer there ends in `DataLoss`, or goes on behind it
where the caller allows for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Generator, Iterator, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

import varlog
from varlog import errors, limits
from varlog.client.archived import ArchivedBatch
from varlog.client.entries import EntryBatch
from varlog.client.reading import Batches
from varlog.spark.columns import COLUMNS, record_batch
from varlog.spark.connections import connections
from varlog.spark.options import Connection
from varlog.spark.settling import settle

_log: Final = logging.getLogger(__name__)


def read_range(
    connection: Connection,
    begin: int,
    end: int,
    affinity: int = 0,
    *,
    columns: Sequence[str] = COLUMNS,
    log_streams: Collection[int] | None = None,
    uncommitted: bool = False,
    fail_on_data_loss: bool = True,
) -> Generator[pa.RecordBatch, None, None]:
    """The entries of [begin, end), in order, as batches of the columns.

    Readers with different numbers for `affinity` spread over the replicas. `log_streams` are those whose entries are
    wanted, if not all are. With `uncommitted` also those of transactions that are open, or were not committed.
    """
    settle()
    with connections.log(connection) as log:
        position, failures = begin, 0
        while position < end:
            scan = _Scan(log, position, end, affinity + failures, connection.poll_timeout, uncommitted=uncommitted)
            try:
                for group in scan.groups():
                    failures = 0
                    yield from _rows(group, columns, log_streams)
                position = scan.position
            except (errors.Trimmed, errors.Lost) as error:
                position = _behind_loss(error, scan.position, end, fail=fail_on_data_loss)
            except errors.VarlogError as error:
                position = scan.position
                if not error.retriable or failures == connection.retries:
                    raise
                failures += 1
                _log.warning("reading goes on at %d in %g s: %s", position, connection.retry_interval, error)
                connections.run(asyncio.sleep(connection.retry_interval))
            finally:
                scan.close()


class _Group(NamedTuple):
    """Batches of the log that came together, and the error that came after them."""

    batches: list[EntryBatch]
    error: errors.VarlogError | None = None


class _Scan:
    """One scan from the thread of the task: the next group is read while the task deals with the one before."""

    def __init__(
        self, log: varlog.Log, begin: int, end: int, affinity: int, timeout: float, *, uncommitted: bool
    ) -> None:
        self._begin = begin
        self._end = end
        self._next = begin
        self._count = 0

        async def open_scan() -> Batches:
            return log.scan(begin, end, timeout=timeout, affinity=affinity, uncommitted=uncommitted).whole()

        self._batches = connections.run(open_scan())
        self._pending: Future[_Group] | None = None

    @property
    def position(self) -> int:
        """Everything below was handed over, or holds nothing."""
        return self._batches.position

    def groups(self) -> Iterator[list[EntryBatch]]:
        """Groups of batches, none of them empty, up to the end of the range."""
        self._pending = connections.submit(self._gather())
        while True:
            batches, error = self._pending.result()
            position, filled = self._batches.position, self._batches.filled
            if batches and error is None:
                self._pending = connections.submit(self._gather())
            if batches:
                self._check(batches)
                yield batches
            if error is not None:
                raise error
            if not batches:
                self._check_end(position, filled)
                return

    async def _gather(self) -> _Group:
        """In the event loop: wait for batches until they are enough for Spark, or there are no more."""
        found: list[EntryBatch] = []
        rows = size = 0
        try:
            while rows < limits.SPARK_BATCH_ROWS and size < limits.SPARK_BATCH_BYTES:
                several = await self._batches.several()
                if not several:
                    break
                found += several
                rows += sum(batch.count for batch in several)
                size += sum(batch.nbytes for batch in several)
        except errors.VarlogError as error:
            return _Group(found, error)
        return _Group(found)

    def _check(self, batches: Sequence[EntryBatch]) -> None:
        for batch in batches:
            if batch.glsn < self._next or batch.end > self._end:
                raise errors.ConsistencyViolation(
                    f"positions {batch.glsn} to {batch.end - 1} came where {self._next} to {self._end - 1} were due"
                )
            self._next = batch.end
            self._count += batch.count

    def _check_end(self, position: int, filled: int) -> None:
        if position != self._end or self._count + filled != self._end - self._begin:
            raise errors.ConsistencyViolation(
                f"{self._begin} to {self._end - 1} ended at {position} with {self._count} entries "
                f"and {filled} positions that hold none"
            )

    def close(self) -> None:
        """Read no more."""
        if self._pending is not None:
            self._pending.cancel()
        connections.run(self._batches.aclose())


def _behind_loss(error: errors.Trimmed | errors.Lost, position: int, end: int, *, fail: bool) -> int:
    """Where to go on."""
    begin = max(position, error.begin)
    behind = min(error.first if isinstance(error, errors.Trimmed) else error.end, end)
    loss = errors.DataLoss(begin, behind, str(error))
    if fail or behind <= position:
        raise loss from None
    _log.warning("passing over a loss: %s", loss)
    return behind


def _rows(
    group: Sequence[EntryBatch], columns: Sequence[str], log_streams: Collection[int] | None
) -> Iterator[pa.RecordBatch]:
    """Batches for Spark of a group: full ones, and what is left of it goes with the last if it is less than half a
    batch; large ones, and those of an archive, as they are."""
    together: list[EntryBatch] = []
    rows = size = 0
    left = sum(batch.count for batch in group)
    for batch in group:
        left -= batch.count
        is_large = batch.nbytes >= limits.SPARK_LARGE_BYTES
        if together and (is_large or isinstance(batch, ArchivedBatch)):
            yield record_batch(together, columns)
            together, rows, size = [], 0, 0
        if isinstance(batch, ArchivedBatch):
            yield from _archived(batch, columns, log_streams)
        elif log_streams is None or batch.log_stream in log_streams:
            together.append(batch)
            rows += batch.count
            size += batch.nbytes
            is_full = rows >= limits.SPARK_BATCH_ROWS or size >= limits.SPARK_BATCH_BYTES
            if is_large or (is_full and left >= rows // 2):
                yield record_batch(together, columns)
                together, rows, size = [], 0, 0
    if together:
        yield record_batch(together, columns)


def _archived(
    batch: ArchivedBatch, columns: Sequence[str], log_streams: Collection[int] | None
) -> Iterator[pa.RecordBatch]:
    rows = batch.rows
    if log_streams is not None:
        rows = rows.filter(pc.is_in(rows.column("log_stream"), pa.array(sorted(log_streams), pa.int32())))
    if rows.num_rows:
        yield rows.select(list(columns))
