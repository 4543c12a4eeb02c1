"""Tasks on executors: each reads a part of what is audited and says what it found, as rows of `FOUND`. Spark brings
together what is of the same slice, and other tasks judge that.

A task has a connection of its own for as long as it runs. That something cannot be read is a finding, not a failure of
the task: an audit is there to tell how far everything can be read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from varlog import errors
from varlog.client.connecting import open_session
from varlog.client.log import Log
from varlog.client.session import Session
from varlog.pipeline import audit_archive, audit_replica
from varlog.pipeline.audit_archive import ArchiveFile
from varlog.pipeline.audit_fates import FatesOf
from varlog.pipeline.audit_findings import Fault
from varlog.pipeline.audit_judging import Rules, judge_slice
from varlog.pipeline.audit_looking import Look, look
from varlog.pipeline.audit_plan import Part
from varlog.pipeline.audit_rows import SPARK_SCHEMA, Notes
from varlog.spark.connections import connections, locate
from varlog.spark.options import Connection

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

MOST_TASKS: Final = 10_000
"""Of one job; beyond it a task does several things one after another."""

_Item = TypeVar("_Item")
_T = TypeVar("_T")


def judge_all(spark: SparkSession, connection: Connection, parts: Sequence[Part], rules: Rules) -> DataFrame:
    """Read the parts; what is to be said of each slice."""
    found = _spread(spark, parts, lambda part: _read(connection, part))

    def judged(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
        return judge_slice(rules, key[0].as_py(), table)

    return found.groupBy("slice").applyInArrow(judged, SPARK_SCHEMA)


def look_at_all(spark: SparkSession, connection: Connection, looks: Sequence[Look]) -> DataFrame:
    """What a closer look finds."""
    return _spread(spark, looks, lambda at: _look(connection, at))


def _spread(spark: SparkSession, items: Sequence[_Item], work: Callable[[_Item], Notes]) -> DataFrame:
    """One task for each item."""
    count = len(items)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(items[number]).batches()

    return spark.range(0, count, 1, max(1, min(count, MOST_TASKS))).mapInArrow(run, SPARK_SCHEMA)


def _read(connection: Connection, part: Part) -> Notes:
    if isinstance(part, ArchiveFile):
        return audit_archive.read(part)
    try:
        return _in_session(connection, part.audited, lambda session, fates: audit_replica.read(session, part, fates))
    except errors.VarlogError as error:
        notes = Notes(part.snid, part.begin)
        notes.fault(Fault.UNREAD, part.lsid, part.begin, part.known, f"{type(error).__name__}: {error}")
        return notes


def _look(connection: Connection, at: Look) -> Notes:
    notes = Notes(at.losers[0], at.begin)
    try:
        found = _in_session(connection, at.audited, lambda session, fates: look(session, at, fates))
    except errors.VarlogError as error:
        notes.fault(Fault.UNREAD, at.log_stream, at.begin, at.end, f"{type(error).__name__}: {error}")
        return notes
    for finding in found:
        notes.copy = finding.copy
        notes.fault(finding.fault, finding.log_stream, finding.begin, finding.end, finding.detail)
    return notes


def _in_session(
    connection: Connection, audited: int, work: Callable[[Session, FatesOf], Coroutine[Any, Any, _T]]
) -> _T:
    """Do it with a connection to the cluster, and with one to the topic, if it meets transactions."""

    async def run() -> _T:
        async with opened(connection) as session, AsyncExitStack() as held:
            logs: list[Log] = []

            async def log() -> Log:
                if not logs:
                    logs.append(await held.enter_async_context(connections.using(connection)))
                return logs[0]

            return await work(session, FatesOf(log, audited))

    return connections.run(run())


@asynccontextmanager
async def opened(connection: Connection) -> AsyncIterator[Session]:
    """A connection to the cluster, for a while."""
    at = locate(connection)
    session = await open_session(at.cluster, at.cid, at.secret_file, at.timeout, at.tls)
    try:
        yield session
    finally:
        await session.close()
