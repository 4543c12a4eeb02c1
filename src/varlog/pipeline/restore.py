"""`restore`: bring a topic back from its archive, in the same order and at the same positions.

    varlog pipeline restore /backup/orders --topic orders

Entries get their positions in the order they are appended, so there is one writer, which appends in a pipeline to one
log stream and knows of every batch where it must come to stand. Positions without a row are filled, with nothing for
readers in them; an archive that begins later than at 1 becomes a topic that does. Then the topic is read again and held
against the archive, in parallel, as tasks of Spark. LLSNs, log streams and times are the new topic's own.

What always holds, wherever the job is killed:

- What the topic has is the beginning of what the archive has, or the job ends with `Diverged` and says where it is not.
  That is checked of what is there at the start, of every append, and of everything at the end.
- To restart is to start: the job goes on behind the topic's tail. Appends of a job that was killed may still be on
  their way, so the log streams are sealed and run again first, which ends whatever was sent before.

Nobody else may write to the topic meanwhile. If somebody does, the job notices it by the positions and ends; what is
there then is of no use, and has to be removed. Where a sequencer orders the topic, an append may also lose its position
to a failure, and that ends the job in the same way. Batches are cut where such a topic's blocks end (rule 24).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import varlog
from varlog import errors, limits
from varlog.archive import Archive
from varlog.cli.failures import connecting
from varlog.cli.output import Output, duration_of, size_of
from varlog.pipeline.jobs import submitted
from varlog.pipeline.progress import Show, shown
from varlog.pipeline.restore_tasks import Part, compare
from varlog.spark.connections import connections, pin
from varlog.spark.options import Connection
from varlog.types import GLSN, Ordering

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from varlog import Admin, Log
    from varlog.client.connecting import Connecting
    from varlog.client.entries import AppendResult

BATCH_ROWS: Final = 1000
BATCH_BYTES: Final = 1 * limits.MIB
"""Entries that are appended together: up to so many, of about so many bytes."""
WINDOW: Final = 256
APPEND_SECONDS: Final = 60.0
OPERATE_SECONDS: Final = 60.0
"""For a topic to be made, or a log stream to be sealed."""


class Wanted(NamedTuple):
    """What a run is to do."""

    uri: str
    streams: int = 1
    """Of the topic, if it has to be made."""
    replication_factor: int = 0
    ordering: str = Ordering.COMMIT.label


class Summary(msgspec.Struct, tag="summary", tag_field="event"):
    """What a run did, and what there is now."""

    topic: str
    archive: str
    begin: int
    """The archive's first position,"""
    end: int
    """and the one after its last: the topic has the same."""
    resumed_at: int
    """Where this run began to write,"""
    rows: int = 0
    """and what it wrote,"""
    filled: int = 0
    """besides positions that hold nothing."""
    bytes: int = 0
    write_seconds: float = 0.0
    verified_rows: int = 0
    """All rows that were held against the archive."""
    seconds: float = 0.0


def restore(
    connection: Connection, wanted: Wanted, start: Callable[[], SparkSession], *, output: Output | None = None
) -> Summary:
    """Do it; see the module's text. `start` gives the Spark session when there is something to verify."""
    return _Restoring(connection, wanted, start, output or Output(json=True)).run()


class _Restoring:
    def __init__(
        self, connection: Connection, wanted: Wanted, start: Callable[[], SparkSession], output: Output
    ) -> None:
        self._archive = Archive.open(wanted.uri)
        self._connection = pin(connection._replace(topic=connection.topic or self._archive.topic))
        self._wanted = wanted
        self._start = start
        self._output = output
        self._spark: SparkSession | None = None
        self._verified = 0

    @property
    def _name(self) -> str:
        assert self._connection.topic is not None
        return self._connection.topic

    def run(self) -> Summary:
        began, archive = time.monotonic(), self._archive
        first, tail = connections.run(self._prepare())
        self._verify(max(first, archive.begin), tail + 1, "checking what is there")
        summary = Summary(self._name, archive.uri, archive.begin, archive.end, tail + 1)
        writing = time.monotonic()
        with shown(self._output, f"restoring {self._name!r}", archive.end - tail - 1) as show:
            connections.run(self._write(summary, show))
        summary.write_seconds = round(time.monotonic() - writing, 3)
        self._verify(summary.resumed_at, archive.end, "verifying")
        summary.verified_rows = self._verified
        summary.seconds = round(time.monotonic() - began, 3)
        return summary

    # The topic

    async def _prepare(self) -> tuple[int, int]:
        """See that the topic is there and at rest; its first position and its tail."""
        at, archive = self._connection, self._archive
        with connecting():
            admin = await varlog.admin(
                at.cluster, cid=at.cid, secret_file=at.secret_file, tls=at.tls, timeout=at.timeout
            )
        async with admin:
            topic = next((known for known in await admin.topics() if known.name == self._name), None)
            if topic is None:
                topic = await admin.add_topic(
                    self._name,
                    streams=self._wanted.streams,
                    replication_factor=self._wanted.replication_factor,
                    first=archive.begin,
                    ordering=self._wanted.ordering,
                    timeout=OPERATE_SECONDS,
                )
            elif topic.hwm > topic.trim and topic.ordering is Ordering.COMMIT:
                await _settle(admin, self._name)
        async with self._log() as log:
            if topic.ordering is Ordering.SEQUENCER:
                await log.seal(timeout=OPERATE_SECONDS)
            first, tail = await log.first(), await log.tail()
        has = f"topic {self._name!r} has GLSN {first} to {tail}" if tail >= first else f"topic {self._name!r} is empty"
        if not archive.begin <= tail + 1 <= archive.end:
            raise errors.Diverged(
                f"{has} and goes on at {tail + 1}; the archive {archive.uri} has GLSN {archive.begin} to "
                f"{archive.end - 1}. Name a topic that is not there yet: it is made as it has to be"
            )
        return first, tail

    def _log(self) -> Connecting[Log]:
        at = self._connection
        return varlog.connect(
            at.cluster, topic=self._name, cid=at.cid, secret_file=at.secret_file, tls=at.tls, timeout=at.timeout
        )

    # Writing

    async def _write(self, summary: Summary, show: Show) -> None:
        if summary.resumed_at >= self._archive.end:
            return
        async with (
            self._log() as log,
            _Placing(log, summary, APPEND_SECONDS) as placing,
        ):
            async for rows in _ahead(self._archive.scan(summary.resumed_at, self._archive.end)):
                glsns, payloads = rows.column("glsn").to_numpy(), rows.column("payload")
                for first, last in pieces(glsns, payloads):
                    await placing.fill(int(glsns[first]))
                    await placing.append(payloads.slice(first, last - first))
                show(placing.next - summary.resumed_at, f"{summary.rows:,} rows")
            await placing.fill(self._archive.end)

    # Verifying

    def _verify(self, begin: int, end: int, what: str) -> None:
        """Hold [begin, end) of the topic against the archive."""
        parts = [
            Part(max(begin, held.begin), min(end, held.end), held)
            for held in self._archive.ranges
            if held.begin < end and held.end > begin
        ]
        if not parts or begin >= end:
            return
        if self._spark is None:
            self._spark = self._start()
        with shown(self._output, what, len(parts)) as show:
            found = compare(
                self._spark, self._connection, self._archive.uri, parts, lambda done: show(done, f"{len(parts)} files")
            )
        self._verified += found.rows
        if found.differs:
            raise errors.Diverged(
                f"topic {self._name!r} is not what the archive {self._archive.uri} has, in the positions from GLSN "
                f"{found.differs} on: somebody else has written to it. Remove it, and restore it again"
            )


async def _settle(admin: Admin, name: str) -> None:
    """Let nothing come into the topic any more that was sent before now; where a sequencer orders it, `seal` does."""
    for stream in await admin.streams(name):
        await admin.seal_stream(stream.lsid, timeout=OPERATE_SECONDS)
    for stream in await admin.streams(name):
        await admin.unseal_stream(stream.lsid, timeout=OPERATE_SECONDS)


async def _ahead(batches: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    """The batches, the next of which is read from the disk while one is worked on."""
    reading = asyncio.ensure_future(asyncio.to_thread(next, batches, None))
    try:
        while (batch := await reading) is not None:
            reading = asyncio.ensure_future(asyncio.to_thread(next, batches, None))
            yield batch
    finally:
        await asyncio.wait([reading])  # a thread cannot be told to stop, and nobody may leave before it has


def pieces(glsns: np.ndarray[tuple[int], np.dtype[np.int64]], payloads: pa.BinaryArray) -> Iterator[tuple[int, int]]:
    """Rows that go into one append, as [first, last): at consecutive positions, not too many, not too large."""
    count = len(glsns)
    sizes = np.concatenate(([0], np.cumsum(pc.binary_length(payloads).to_numpy(zero_copy_only=False))))
    ends = [*(np.flatnonzero(np.diff(glsns) != 1) + 1).tolist(), count]
    first = 0
    for end in ends:
        while first < end:
            fitting = int(np.searchsorted(sizes, sizes[first] + BATCH_BYTES, "right")) - 1
            last = min(end, first + BATCH_ROWS, max(first + 1, fitting))
            yield first, last
            first = last


class _Placing:
    """Appends in a pipeline, each of which must get its position."""

    def __init__(self, log: Log, summary: Summary, timeout: float) -> None:
        self._appender = log.appender(window=WINDOW, timeout=timeout)
        self._log = log
        self._summary = summary
        self._sent: deque[tuple[int, asyncio.Future[AppendResult]]] = deque()
        self.next = summary.resumed_at
        """Where the next entry belongs."""

    def _room(self) -> int:
        """How many positions may go into one append."""
        projection = self._log.topic.projection
        if projection is None:
            return limits.MAX_BATCH_ENTRIES
        return projection.block_end(GLSN(self.next)) - self.next

    async def append(self, payloads: pa.BinaryArray) -> None:
        """Entries, at the next positions."""
        while len(payloads):
            together = payloads.slice(0, self._room())
            self._sent.append((self.next, await self._appender.append_batch(together)))
            self.next += len(together)
            self._summary.rows += len(together)
            self._summary.bytes += together.nbytes
            self._check()
            payloads = payloads.slice(len(together))

    async def fill(self, end: int) -> None:
        """Nothing, up to `end`."""
        while self.next < end:
            count = min(end - self.next, self._room())
            self._sent.append((self.next, await self._appender.append_fill(count)))
            self.next += count
            self._summary.filled += count
            self._check()

    def _check(self) -> None:
        """Whether those that are decided stand where they belong."""
        while self._sent and self._sent[0][1].done():
            wanted, decided = self._sent.popleft()
            got = decided.result().glsn
            if got != wanted:
                failed = "" if self._log.topic.projection is None else ", or a process of it failed"
                raise errors.Diverged(
                    f"what belongs to GLSN {wanted} came to stand at {got}: somebody else writes to topic "
                    f"{self._log.name!r}{failed}. Remove it, and restore it again while nobody else does"
                )

    async def __aenter__(self) -> _Placing:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        async with self._appender:
            if kind is None:
                await self._appender.flush()
                self._check()


# From the command line


def run(connection: Connection, wanted: Wanted, start: Callable[[], SparkSession], output: Output) -> int:
    """Do it and tell of it; the exit code."""
    tell(output, restore(connection, wanted, start, output=output))
    return 0


def tell(output: Output, summary: Summary) -> None:
    """Say what was done."""
    output.record(summary)
    written = summary.rows + summary.filled
    speed = f", {summary.rows / summary.write_seconds:,.0f} rows/s" if summary.rows and summary.write_seconds else ""
    filled = f" and {summary.filled:,} positions without one" if summary.filled else ""
    output.line(
        f"restored {summary.rows:,} entries{filled} of {summary.topic!r} ({size_of(summary.bytes)}) "
        f"in {duration_of(summary.write_seconds)}{speed}"
        if written
        else f"topic {summary.topic!r} had everything"
    )
    has = f"GLSN {summary.begin} to {summary.end - 1}" if summary.end > summary.begin else "nothing"
    output.line(f"topic {summary.topic!r} has {has}, as the archive {summary.archive}")
    output.line(f"verified: {summary.verified_rows:,} entries are the same in both")


def main(argv: Sequence[str] | None = None) -> int:
    """What `spark-submit` calls: the same as `varlog pipeline restore`."""
    return submitted("restore", argv)


if __name__ == "__main__":
    sys.exit(main())
