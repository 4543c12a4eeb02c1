"""`materialize`: keep a table of the latest value of every key that a topic's JSON entries name.

    varlog pipeline materialize /tables/customers --topic orders --key customer.id --value customer
    spark-submit --master spark://host:7077 .../varlog/pipeline/materialize.py /tables/customers --key customer.id ...

It is a streaming query: micro-batches are ranges of the log; each entry's key and value are taken from its JSON; a
stateful operator (`transformWithState`) lets those pass that are newer than all that it has seen of their key
(`materialize_tasks`); and these are merged into the table, in one commit per micro-batch (`materialize_table`).

What always holds, wherever the job is killed: the table has each key once, with the value of its greatest position, up
to the greatest position in the table, and nothing later. Spark repeats a micro-batch that it does not know to be done,
from the same state and with the same range; to merge it again changes nothing. So nothing is lost or counted twice
between Spark's checkpoint and the table's log, though no transaction spans both: a commit of the table is durable
before Spark is told that the micro-batch is done. Without its checkpoint it begins anew, and the table stays right.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from varlog import errors
from varlog.archive import resolve
from varlog.cli.failures import connecting
from varlog.cli.output import Output, duration_of, size_of
from varlog.client.cluster import find
from varlog.pipeline.jobs import Following, Silence, ends_on_sigterm, submitted
from varlog.pipeline.materialize_table import CHECKPOINT, SLOTS, Identity, Table
from varlog.pipeline.progress import Show, shown
from varlog.spark.connections import connections, pin
from varlog.spark.options import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    from varlog import Log
    from varlog.core.messages import TopicInfo

PARTS: Final = 8
POSITIONS_PER_BATCH: Final = 1_000_000
EVERY_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.25
"""Between two looks at the query."""
STATE_STORE: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_NAME: Final = r"[^.\[\]'\"*?$\s][^.\[\]'\"*?$]*"
_PATH: Final = re.compile(rf"(?:\$\.)?({_NAME}(?:\[\d+\])*(?:\.{_NAME}(?:\[\d+\])*)*)")
_TYPED: Final = re.compile(r"varlog\.errors\.(\w+): (.+)")


class Step(Enum):
    """Where a micro-batch stands."""

    WRITTEN = "its files are durable, and no commit names them"
    COMMITTED = "the table has it, and Spark does not know"


class Steps:
    """Told of every step when it has been reached; tests stop a driver there."""

    def reached(self, step: Step) -> None:
        """A step is done."""


class Wanted(NamedTuple):
    """What a run is to do."""

    uri: str
    key: str
    """Where in an entry its key is: `customer.id`, `items[0].sku`."""
    value: str | None = None
    """Where its value is; the whole entry if that is not said."""
    parts: int = PARTS
    checkpoint: str | None = None
    """Where checkpoints are; each table has its own there, by its id, so that none goes on where another was."""
    follow: bool = False
    every: float = EVERY_SECONDS
    positions_per_batch: int = POSITIONS_PER_BATCH


class Batch(msgspec.Struct, tag="committed", tag_field="event"):
    """One micro-batch."""

    begin: int
    end: int
    entries: int
    ignored: int
    """Entries without a key."""
    keys: int
    """Keys that it changed."""
    version: int
    seconds: float


class Summary(msgspec.Struct, tag="summary", tag_field="event"):
    """What a run did, and what there is now."""

    topic: str
    table: str
    end: int = 0
    """The position behind the last one that was read; 0 if there was nothing to read."""
    keys: int = 0
    """That the table has."""
    bytes: int = 0
    files: int = 0
    version: int = 0
    batches: int = 0
    entries: int = 0
    ignored: int = 0
    changed: int = 0
    removed: int = 0
    """Files that were deleted, because the table has had others for long."""
    seconds: float = 0.0


def materialize(
    connection: Connection,
    wanted: Wanted,
    start: Callable[[], SparkSession],
    *,
    output: Output | None = None,
    steps: Steps | None = None,
) -> Summary:
    """Do it; see the module's text. Nothing is printed unless to `output`."""
    job = Materializer(pin(connection), wanted, start, output or Silence(json=True), steps or Steps())
    job.run()
    return job.summary


class Materializer(Following):
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
        self._key = json_path("--key", wanted.key)
        self._value = json_path("--value", wanted.value) if wanted.value is not None else ""
        if not 0 < wanted.parts <= SLOTS:
            raise errors.InvalidArgument(f"--parts {wanted.parts}: allowed are 1 to {SLOTS}")
        self._start = start
        self._steps = steps
        self._failure: BaseException | None = None
        self._committed: dict[int, tuple[int, int]] = {}
        """Of micro-batches that are not told of yet: how many keys they changed, and the version of the table."""
        self._table, self._earliest, self._tail = self._open()
        self.summary = Summary(self._table.identity.topic, self._table.uri)

    def _open(self) -> tuple[Table, int, int]:
        """The table, and where the topic begins and ends."""
        at, wanted = self._connection, self._wanted
        with connecting():
            topic, earliest, tail = connections.ask(at, _state)
        cid = find(at.cluster, cid=at.cid, secret_file=at.secret_file, tls=at.tls).cid
        identity = Identity(int(cid), topic.name, int(topic.tpid), wanted.key, wanted.value or "", wanted.parts)
        return Table.open(wanted.uri, identity), earliest, tail

    def run(self) -> None:
        """Until everything is in the table, or with `follow` until it is stopped."""
        try:
            self._collect()
            spark = self._start()
            while not self._stopped.is_set():
                try:
                    self._stream(spark)
                except errors.VarlogError as error:
                    if not self._is_patient_with(error):
                        raise
                else:
                    return
        finally:
            table, summary = self._table, self.summary
            summary.seconds = self._seconds
            summary.keys, summary.files, summary.version = table.rows, len(table.files), table.version
            summary.bytes = sum(file.bytes for file in table.files.values())

    # The query

    def _stream(self, spark: SparkSession) -> None:
        """Run the query to its end."""
        from pyspark.errors import PySparkException  # noqa: PLC0415  # it is here, or there would be no session

        self._failure = None
        query = self._query(spark)
        try:
            with shown(self._output, f"materializing {self.summary.topic!r}", self._tail) as show:
                while not self._has_ended(query, show):
                    pass
        except PySparkException as error:
            raise self._typed(error) from error
        finally:
            query.stop()

    def _query(self, spark: SparkSession) -> StreamingQuery:
        """Start it. How many partitions the state has is decided when it begins, and kept in its checkpoint."""
        from varlog.pipeline.materialize_tasks import changes_of  # noqa: PLC0415  # Spark is large

        wanted = self._wanted
        settings = {
            "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
            "spark.sql.shuffle.partitions": str(wanted.parts),
        }
        before = {name: spark.conf.get(name) for name in settings}
        entries = spark.readStream.format("varlog").options(**self._options()).load()
        try:
            for name, setting in settings.items():
                spark.conf.set(name, setting)
            writer = (
                changes_of(entries, self._key, self._value)
                .writeStream.foreachBatch(self._merge)
                .outputMode("update")
                .option("checkpointLocation", f"{wanted.checkpoint or f'{wanted.uri}/{CHECKPOINT}'}/{self._table.id}")
            )
            if wanted.follow:
                return writer.trigger(processingTime=f"{max(1, round(wanted.every * 1000))} milliseconds").start()
            return writer.trigger(availableNow=True).start()
        finally:
            for name, had in before.items():
                spark.conf.set(name, str(had))

    def _options(self) -> dict[str, str]:
        at = self._connection
        given: dict[str, object] = {
            "cluster": at.cluster,
            "topic": at.topic,
            "cid": at.cid,
            "secretFile": at.secret_file,
            "connectTimeoutMs": round(at.timeout * 1000),
            "startingOffsets": "earliest",
            "columns": "glsn,timestamp,payload",
            "maxOffsetsPerTrigger": self._wanted.positions_per_batch,
        }
        if at.tls is not None:
            given |= dict(zip(("tlsCert", "tlsKey", "tlsCa"), at.tls, strict=True))
        return {name: str(value) for name, value in given.items() if value is not None}

    def _merge(self, changes: DataFrame, number: int) -> None:
        """A micro-batch, in a thread of Spark's: when this returns, Spark takes it for done."""
        from varlog.pipeline.materialize_tasks import merged  # noqa: PLC0415

        try:
            self._table.refresh()
            found = merged(changes, self._table.uri, self._table.files, self._wanted.parts)
            self._steps.reached(Step.WRITTEN)
            if found.files:
                self._table.replace(found.files)
            self._steps.reached(Step.COMMITTED)
            self._committed[number] = (found.keys, self._table.version)
            self._collect()
        except BaseException as error:
            self._failure = error
            raise

    def _typed(self, error: Exception) -> errors.VarlogError:
        """What a failure of the query is really about."""
        if isinstance(self._failure, errors.VarlogError):
            return self._failure
        said = str(self._failure or error).strip()
        named = _TYPED.search(said)
        kind = getattr(errors, named[1], None) if named else None
        if named and isinstance(kind, type) and issubclass(kind, errors.VarlogError):
            return errors.VarlogError.of(kind.code, named[2])
        return errors.JobFailed(f"Spark could not go on: {said.splitlines()[-1]}")

    def _has_ended(self, query: StreamingQuery, show: Show) -> bool:
        """Wait a little, and tell of what was done meanwhile."""
        is_active = query.isActive and not (self._stopped.is_set() and not query.status["isTriggerActive"])
        if is_active:
            time.sleep(LOOK_SECONDS)
        elif not self._stopped.is_set():
            query.awaitTermination()  # which raises what it has failed with
        for progress in query.recentProgress:
            if progress.batchId in self._committed:
                self._tell(progress, show)
        return not is_active

    def _tell(self, progress: StreamingQueryProgress, show: Show) -> None:
        keys, version = self._committed.pop(progress.batchId)
        source, counted = progress.sources[0], progress.observedMetrics.get("varlog")
        begin, end = _glsn_of(source.startOffset) or self._earliest, _glsn_of(source.endOffset)
        entries, keyed = (counted["entries"], counted["keyed"]) if counted is not None else (0, 0)
        seconds = round(progress.durationMs.get("triggerExecution", 0) / 1000, 3)
        summary = self.summary
        summary.end = end
        summary.batches += 1
        summary.entries += entries
        summary.ignored += entries - keyed
        summary.changed += keys
        show(end - 1, f"{keys:,} keys changed")
        if self._wanted.follow:
            self._output.line(f"{begin} to {end - 1}: {entries:,} entries, {keys:,} keys, {duration_of(seconds)}")
        self._output.record(Batch(begin, end, entries, entries - keyed, keys, version, seconds))

    def _collect(self) -> None:
        if self._is_time_to_collect():
            self.summary.removed += self._table.collect()


def json_path(option: str, path: str) -> str:
    """A path of names and numbers as Spark takes it."""
    found = _PATH.fullmatch(path)
    if found is None:
        raise errors.InvalidArgument(
            f"{option} {path!r}: allowed are names with dots between them, and numbers of an array: customer.id, "
            "items[0].sku"
        )
    steps = re.findall(rf"\[\d+\]|{_NAME}", found[1])
    return "$" + "".join(step if step.startswith("[") else f"['{step}']" for step in steps)


def _glsn_of(offset: Any) -> int:
    """Of an offset in a query's progress: JSON, of nothing before the first one; 0 then."""
    known = json.loads(offset) if offset else None
    return int(known["glsn"]) if known is not None else 0


async def _state(log: Log) -> tuple[TopicInfo, int, int]:
    await log.refresh()
    return log.topic, await log.earliest(), await log.tail()


# From the command line


def run(connection: Connection, wanted: Wanted, start: Callable[[], SparkSession], output: Output) -> int:
    """Do it and tell of it; the exit code."""
    job = Materializer(pin(connection), wanted, start, output, Steps())
    try:
        with ends_on_sigterm(job):
            job.run()
    finally:
        tell(output, job.summary)
    return 0


def tell(output: Output, summary: Summary) -> None:
    """Say what was done."""
    output.record(summary)
    speed = f", {summary.entries / summary.seconds:,.0f} entries/s" if summary.entries and summary.seconds else ""
    output.line(
        f"read {summary.entries:,} entries of {summary.topic!r}, which changed {summary.changed:,} keys, "
        f"in {duration_of(summary.seconds)}{speed}"
    )
    if summary.ignored:
        output.line(f"{summary.ignored:,} entries have no key, and were passed over")
    output.line(
        f"the table at {summary.table} has {summary.keys:,} keys ({summary.files} files, {size_of(summary.bytes)}), "
        f"version {summary.version}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """What `spark-submit` calls: the same as `varlog pipeline materialize`."""
    return submitted("materialize", argv)


if __name__ == "__main__":
    sys.exit(main())
