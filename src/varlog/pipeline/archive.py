"""`archive`: put a topic away, as ordered Parquet files in consecutive ranges of positions.

    varlog pipeline archive /backup/orders --topic orders
    spark-submit --master spark://host:7077 .../varlog/pipeline/archive.py /backup/orders --topic orders

The job repeats one *batch*: the archive says where it ends; the positions from there to the tail, or to the first
transaction that is not decided yet, or as many as fill a few files for every core, are split evenly; each part is read
and written by one task of Spark (`archive_tasks`); when all files are there and durable, the driver adds them to the
archive in one commit. Then, with `--trim`, it deletes from the log what the archive has.

What always holds, wherever the job is killed and however many run at once:

- The archive has every position from its first to its last exactly once. It only grows by commits, each of which says
  where the archive must end for it; files of a batch that was not committed belong to nobody and are removed later.
- A position is trimmed only after the commit that has it is durable; and, unless the caller says `--detached`, only
  while the archive is attached to the topic, so that whoever reads the position finds it there.
- All that is known about progress is in the archive, so to restart is to start.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

import varlog
from varlog import errors
from varlog.archive import Archive, Range, resolve
from varlog.cli.failures import connecting
from varlog.cli.output import Output, duration_of, size_of
from varlog.client.cluster import find
from varlog.pipeline.archive_tasks import Part, write_files
from varlog.pipeline.jobs import Following, Silence, ends_on_sigterm, submitted
from varlog.pipeline.progress import Show, shown
from varlog.spark.columns import ARROW_SCHEMA
from varlog.spark.connections import connections, pin
from varlog.spark.options import Connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from varlog import Log
    from varlog.core.messages import TopicInfo

ROWS_PER_FILE: Final = 1_000_000
FILES_PER_CORE: Final = 2
"""Of one batch: enough for tasks that take unequal time, few enough to lose when the driver is killed."""
EVERY_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 1.0
"""Between two looks at the tail."""
GRACE_SECONDS: Final = 24 * 3600.0
"""After that, a file that no commit names is taken for what a killed archiver left."""

_T = TypeVar("_T")


class Step(Enum):
    """Where a run stands."""

    OPENED = "the archive is there"
    PLANNED = "a batch is about to be written"
    WRITTEN = "its files are durable, and no commit names them"
    COMMITTED = "they are committed, and nothing is trimmed"
    TRIMMED = "the log is trimmed"


class Steps:
    """Told of every step when it has been reached; tests stop a driver there."""

    def reached(self, step: Step) -> None:
        """A step is done."""


class Wanted(NamedTuple):
    """What a run is to do."""

    uri: str
    rows_per_file: int = ROWS_PER_FILE
    until: int | None = None
    """The last position to archive, if not the tail."""
    follow: bool = False
    every: float = EVERY_SECONDS
    attach: bool = False
    """Attach the archive to the topic, if none is."""
    trim: bool = False
    keep: int = 0
    """How many archived positions the log keeps."""
    detached: bool = False


class Committed(msgspec.Struct, tag="committed", tag_field="event"):
    """One batch."""

    begin: int
    end: int
    rows: int
    files: int
    bytes: int
    version: int
    seconds: float


class Summary(msgspec.Struct, tag="summary", tag_field="event"):
    """What a run did, and what there is now."""

    topic: str
    archive: str
    begin: int
    """The archive's first position,"""
    end: int
    """and the one after its last."""
    positions: int = 0
    """Archived by this run; those without a row are fill, lost, or of transactions."""
    rows: int = 0
    files: int = 0
    bytes: int = 0
    commits: int = 0
    conflicts: int = 0
    """Batches that another archiver was faster with."""
    log_first: int = 0
    """Where the log begins after it was trimmed by this run; 0 if it was not."""
    removed: int = 0
    """Files of killed archivers that were removed."""
    seconds: float = 0.0


def archive(
    connection: Connection,
    wanted: Wanted,
    start: Callable[[], SparkSession],
    *,
    output: Output | None = None,
    steps: Steps | None = None,
) -> Summary:
    """Do it; see the module's text. `start` gives the Spark session when there is something to do for it. Nothing is
    printed unless to `output`."""
    archiver = Archiver(pin(connection), wanted, start, output or Silence(json=True), steps or Steps())
    archiver.run()
    return archiver.summary


class Archiver(Following):
    """One run of the job."""

    def __init__(
        self,
        connection: Connection,
        wanted: Wanted,
        start: Callable[[], SparkSession],
        output: Output,
        steps: Steps,
    ) -> None:
        super().__init__(output, follow=wanted.follow)
        self._connection = connection
        self._wanted = wanted._replace(uri=resolve(wanted.uri))
        self._start = start
        self._steps = steps
        self._spark: SparkSession | None = None
        self._archive = self._open()
        self.summary = Summary(self._archive.topic, self._archive.uri, self._archive.begin, self._archive.end)

    def run(self) -> None:
        """Until everything is archived, or with `follow` until it is stopped."""
        self._steps.reached(Step.OPENED)
        try:
            self._collect()
            self._trim()
            while not self._stopped.is_set() and (end := self._next_end()) is not None:
                with shown(self._output, f"archiving {self._archive.topic!r}", end - self._archive.end) as show:
                    self._up_to(end, show)
        finally:
            self.summary.seconds = self._seconds
            self.summary.begin, self.summary.end = self._archive.begin, self._archive.end

    # The log

    def _open(self) -> Archive:
        """The archive, after a look whether it is this log's and can be continued."""
        connection, wanted = self._connection, self._wanted
        with connecting():
            topic, first, tail = connections.ask(connection, _state)
        will_be_attached = wanted.attach and not topic.archive
        if not will_be_attached:
            self._check_attached(topic)
        at = connection
        cid = find(at.cluster, cid=at.cid, secret_file=at.secret_file, tls=at.tls).cid
        found = Archive.create(wanted.uri, cid=cid, topic=topic.name, tpid=topic.tpid, first=first)
        if found.end > tail + 1:
            raise errors.WrongIdentity(
                f"the archive at {found.uri} has positions up to {found.end - 1}, the log only up to {tail}: "
                "it is of another log that had the same name; use another place"
            )
        if found.end < first:
            raise errors.Trimmed(first, found.end, found.uri)
        last = found.last()
        if last is not None and last.column("glsn")[0].as_py() >= first:
            self._check_same(found, last)
        if will_be_attached:
            connections.run(self._attach(topic.name))
        return found

    async def _attach(self, topic: str) -> None:
        at = self._connection
        async with varlog.admin(
            at.cluster, cid=at.cid, secret_file=at.secret_file, tls=at.tls, timeout=at.timeout
        ) as admin:
            await admin.attach_archive(topic, self._wanted.uri)

    def _check_same(self, found: Archive, last: pa.RecordBatch) -> None:
        """Names and ids are easily the same in another cluster; what the last archived entry holds is not."""
        glsn = last.column("glsn")[0].as_py()

        async def read(log: Log) -> pa.RecordBatch:
            entry = await log.read(glsn)
            row = [[entry.glsn], [entry.llsn], [entry.log_stream], [entry.timestamp], [entry.data]]
            return pa.RecordBatch.from_arrays(
                [pa.array(value, field.type) for value, field in zip(row, ARROW_SCHEMA, strict=True)],
                schema=ARROW_SCHEMA,
            )

        if self._ask(read) != last:
            raise errors.WrongIdentity(
                f"the archive at {found.uri} has another entry at {glsn} than the log: "
                "it is of another log that had the same name; use another place"
            )

    def _check_attached(self, topic: TopicInfo) -> None:
        wanted = self._wanted
        if topic.archive == wanted.uri:
            return
        has = f"has the archive {topic.archive} attached" if topic.archive else "has no archive attached"
        if wanted.attach:
            raise errors.InvalidArgument(f"topic {topic.name!r} {has}; detach it first")
        if wanted.trim and not wanted.detached:
            raise errors.InvalidArgument(
                f"topic {topic.name!r} {has}, so what is trimmed could not be read any more: "
                "attach this one with --attach, or say --detached"
            )

    def _next_end(self) -> int | None:
        """Up to where to archive next; None if that is enough. Waits if there is nothing yet and more is to come."""
        wanted = self._wanted
        patience = time.monotonic() + wanted.every
        while True:
            stable = self._ask(_stable)
            end = stable + 1 if wanted.until is None else min(stable, wanted.until) + 1
            ready = end - self._archive.end
            if not wanted.follow:
                return end if ready > 0 else None
            if ready > 0 and (ready >= wanted.rows_per_file or time.monotonic() >= patience):
                return end
            if wanted.until is not None and self._archive.end > wanted.until:
                return None
            if self._stopped.wait(LOOK_SECONDS):
                return None

    def _ask(self, question: Callable[[Log], Coroutine[Any, Any, _T]]) -> _T:
        """Ask the log something that may be asked twice."""
        while True:
            try:
                return connections.ask(self._connection, question)
            except errors.VarlogError as error:
                if not self._is_patient_with(error):
                    raise

    # Batches

    def _up_to(self, end: int, show: Show) -> None:
        begun = self._archive.end
        while not self._stopped.is_set() and self._archive.end < end:
            self._batch(end, lambda done: show(self._archive.end - begun + done, f"{self.summary.files} files"))

    def _batch(self, end: int, told: Callable[[int], None]) -> None:
        began, begin = time.monotonic(), self._archive.end
        if self._spark is None:
            self._spark = self._start()
        cores = self._spark.sparkContext.defaultParallelism
        parts = split(begin, end, self._wanted.rows_per_file, cores)
        self._steps.reached(Step.PLANNED)
        try:
            ranges = write_files(
                self._spark, self._connection, self._archive.uri, parts, lambda done: told(done * _size(parts[0]))
            )
        except errors.VarlogError as error:
            if not self._is_excused(error, begin):
                raise
            return
        self._steps.reached(Step.WRITTEN)
        try:
            self._archive.commit(ranges, begin)
        except errors.ArchiveConflict as conflict:
            self._give_way(str(conflict))
            self._archive.discard(ranges)
            return
        self._steps.reached(Step.COMMITTED)
        self._count(ranges, time.monotonic() - began)
        told(0)
        self._trim()
        self._collect()

    def _is_excused(self, error: errors.VarlogError, begin: int) -> bool:
        """Whether a batch that could not be written is no reason to end."""
        if error.code in {errors.Trimmed.code, errors.DataLoss.code}:
            self._archive.refresh()
            if self._archive.end > begin:
                self._give_way(f"another archiver has trimmed up to {self._archive.end - 1}")
                return True
            _, first, _ = self._ask(_state)
            raise errors.Trimmed(first, begin, self._archive.uri) from error
        return self._is_patient_with(error)

    def _give_way(self, why: str) -> None:
        self._archive.refresh()
        self.summary.conflicts += 1
        self._output.note(f"{why}; going on at {self._archive.end}")

    def _count(self, ranges: Sequence[Range], seconds: float) -> None:
        rows, size = sum(held.rows for held in ranges), sum(held.bytes for held in ranges)
        begin, end = ranges[0].begin, ranges[-1].end
        summary = self.summary
        summary.positions += end - begin
        summary.rows += rows
        summary.files += len(ranges)
        summary.bytes += size
        summary.commits += 1
        if self._wanted.follow:
            self._output.line(f"{begin} to {end - 1}: {rows:,} rows, {size_of(size)}, {duration_of(seconds)}")
        version = self._archive.version
        self._output.record(Committed(begin, end, rows, len(ranges), size, version, round(seconds, 3)))

    # Housekeeping

    def _trim(self) -> None:
        """Delete from the log what the archive has, durably, and others can read there."""
        if not self._wanted.trim:
            return
        topic, first, _ = self._ask(_state)
        last = self._archive.end - 1 - self._wanted.keep
        if last >= first:
            self._check_attached(topic)
            self._archive.sync()

            async def trim(log: Log) -> int | str:
                try:
                    return await log.trim(last)
                except errors.TransactionOpen as error:
                    return str(error)

            trimmed = self._ask(trim)
            if isinstance(trimmed, str):  # the next batch, or run, will
                self._output.note(f"nothing is trimmed now: {trimmed}")
            else:
                self.summary.log_first = trimmed + 1
        self._steps.reached(Step.TRIMMED)

    def _collect(self) -> None:
        if self._is_time_to_collect():
            self.summary.removed += len(self._archive.collect(GRACE_SECONDS))


async def _state(log: Log) -> tuple[TopicInfo, int, int]:
    """The topic, its first position and its tail, all as of now."""
    await log.refresh()
    return log.topic, await log.first(), await log.tail()


async def _stable(log: Log) -> int:
    return await log.stable()


def split(begin: int, end: int, rows_per_file: int, cores: int) -> list[Part]:
    """The parts of the next batch: even ones, for all cores if they are not too small for that."""
    end = min(end, begin + rows_per_file * cores * FILES_PER_CORE)
    count = -(-(end - begin) // rows_per_file)
    even = -(-count // cores) * cores
    if (end - begin) // even >= max(1, rows_per_file // 4):
        count = even
    cuts = [begin + (end - begin) * number // count for number in range(count + 1)]
    return [Part(low, high) for low, high in pairwise(cuts)]


def _size(part: Part) -> int:
    return part.end - part.begin


# From the command line


def run(connection: Connection, wanted: Wanted, start: Callable[[], SparkSession], output: Output) -> int:
    """Do it and tell of it; the exit code."""
    archiver = Archiver(pin(connection), wanted, start, output, Steps())
    try:
        with ends_on_sigterm(archiver):
            archiver.run()
    finally:
        tell(output, archiver.summary)
    return 0


def tell(output: Output, summary: Summary) -> None:
    """Say what was done."""
    output.record(summary)
    speed = f", {summary.rows / summary.seconds:,.0f} rows/s" if summary.rows and summary.seconds else ""
    output.line(
        f"archived {summary.positions:,} positions of {summary.topic!r} ({summary.rows:,} rows, {summary.files} files, "
        f"{size_of(summary.bytes)}) in {duration_of(summary.seconds)}{speed}"
    )
    has = f"{summary.begin} to {summary.end - 1}" if summary.end > summary.begin else "nothing yet"
    output.line(f"the archive at {summary.archive} has {has}")
    if summary.log_first:
        output.line(f"the log now begins at {summary.log_first}")
    if summary.conflicts:
        output.line(f"another archiver was faster with {summary.conflicts} batches")
    if summary.removed:
        output.line(f"removed {summary.removed} files that a killed archiver had left")


def main(argv: Sequence[str] | None = None) -> int:
    """What `spark-submit` calls: the same as `varlog pipeline archive`."""
    return submitted("archive", argv)


if __name__ == "__main__":
    sys.exit(main())
