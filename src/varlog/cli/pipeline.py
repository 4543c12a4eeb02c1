"""`varlog pipeline`: the jobs of the data pipeline from the command line.

What a job does is in `varlog.pipeline`; here its options become what it takes, and Spark is started when it wants it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter, validators

from varlog.cli.options import ANSWER_SECONDS, USUAL_TOPIC, Flag, Position, Positive, Seconds, Topic, Whole
from varlog.cli.output import Output
from varlog.errors import JobFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from varlog.spark.options import Connection

Place = Annotated[str, Parameter(metavar="WHERE")]
Master = Annotated[
    str | None,
    Parameter(metavar="URL", help="Where Spark runs the tasks; without it what Spark is configured for, or else here."),
]
Count = Annotated[Whole, Parameter(validator=validators.Number(gte=0), metavar="N")]


def archive_pipeline(
    archive: Place,
    /,
    *,
    follow: Annotated[Flag, Parameter(name=["--follow", "-f"])] = False,
    every: Seconds = 60.0,
    until: Annotated[Position | None, Parameter(metavar="GLSN")] = None,
    attach: Flag = False,
    trim: Flag = False,
    keep: Count = 0,
    detached: Flag = False,
    rows_per_file: Positive = 1_000_000,
    master: Master = None,
    at: Topic = USUAL_TOPIC,
) -> int:
    """Archive a topic.

    Parameters
    ----------
    archive
        The archive: a path, or a URI.
    follow
        Go on as the log grows.
    every
        With --follow: how long to gather entries for the next file, if they are not enough to fill one.
    until
        The last position to archive, if not the tail.
    attach
        Attach the archive to the topic: readers find there what is trimmed.
    trim
        Delete from the log what the archive has.
    keep
        With --trim: how many positions to keep in the log though the archive has them.
    detached
        With --trim: also if the archive is not attached to the topic, so that readers will not find what is trimmed.
    rows_per_file
        How many positions a file has at most.
    """
    from varlog.pipeline.archive import Wanted, run  # noqa: PLC0415  # it needs an extra, and is large

    wanted = Wanted(archive, rows_per_file, until, follow, every, attach, trim, keep, detached)
    with spark_of("archive", master, at.output) as start:
        return run(connection_of(at), wanted, start, at.output)


def restore_pipeline(
    archive: Place,
    /,
    *,
    streams: Positive = 1,
    replication_factor: Count = 0,
    ordering: Literal["commit", "sequencer"] = "commit",
    master: Master = None,
    at: Topic = USUAL_TOPIC,
) -> int:
    """Restore a topic.

    Parameters
    ----------
    archive
        The archive: a path, or a URI.
    streams
        How many log streams the topic gets, if it has to be made. One of them gets everything that is restored.
    replication_factor
        How many replicas each of them gets; 0 lets the manager choose.
    ordering
        Who says where an entry stands in it, if it has to be made; whatever the archived topic had.
    """
    from varlog.pipeline.restore import Wanted, run  # noqa: PLC0415  # it needs an extra, and is large

    with spark_of("restore", master, at.output) as start:
        return run(connection_of(at), Wanted(archive, streams, replication_factor, ordering), start, at.output)


def audit_pipeline(
    *,
    archive: Annotated[str | None, Parameter(metavar="WHERE", show_default=False)] = None,
    report: Annotated[Path | None, Parameter(metavar="FILE", show_default=False)] = None,
    master: Master = None,
    at: Topic = USUAL_TOPIC,
) -> int:
    """Audit a topic.

    Parameters
    ----------
    archive
        Its archive; without it the one that is attached to the topic, if one is.
    report
        Write an HTML page about it.
    """
    from varlog.pipeline.audit import run  # noqa: PLC0415  # it needs an extra, and is large

    with spark_of("audit", master, at.output) as start:
        return run(connection_of(at), archive, report, start, at.output)


def materialize_pipeline(
    table: Place,
    /,
    *,
    key: Annotated[str, Parameter(metavar="PATH")],
    value: Annotated[str | None, Parameter(metavar="PATH", show_default=False)] = None,
    follow: Annotated[Flag, Parameter(name=["--follow", "-f"])] = False,
    every: Seconds = 10.0,
    parts: Positive = 8,
    positions_per_batch: Positive = 1_000_000,
    checkpoint: Annotated[str | None, Parameter(metavar="WHERE", show_default=False)] = None,
    master: Master = None,
    at: Topic = USUAL_TOPIC,
) -> int:
    """Keep a table of latest values.

    Parameters
    ----------
    table
        The table: a path, or a URI.
    key
        Where an entry has its key: customer.id, items[0].sku.
    value
        Where it has its value; without it the whole entry is the value.
    follow
        Go on as the log grows.
    every
        With --follow: the least time from one commit of the table to the next.
    parts
        How many files the table has, and how many partitions the state; decided when the table is made.
    positions_per_batch
        How many positions of the log are merged into the table at a time, at most.
    checkpoint
        Where Spark keeps how far it is, and its state; without it _checkpoint in the table's directory.
    """
    from varlog.pipeline.materialize import Wanted, run  # noqa: PLC0415  # it needs an extra, and is large

    wanted = Wanted(table, key, value, parts, checkpoint, follow, every, positions_per_batch)
    with spark_of("materialize", master, at.output) as start:
        return run(connection_of(at), wanted, start, at.output)


def connection_of(at: Topic) -> Connection:
    """How the processes of Spark reach the topic that is meant."""
    from varlog.spark.options import Connection  # noqa: PLC0415

    secret = None if at.secret_file is None else str(at.secret_file)
    return Connection(at.cluster, at.topic, at.cid, secret, timeout=at.timeout or ANSWER_SECONDS, tls=at.tls)


@contextmanager
def spark_of(job: str, master: str | None, output: Output) -> Iterator[Callable[[], SparkSession]]:
    """What starts Spark for a job; it ends with the block. If Spark fails, what it printed is kept."""
    with ExitStack() as running:
        kept = tempfile.mkdtemp(prefix=f"varlog-{job}-")
        running.callback(shutil.rmtree, kept)

        def start() -> SparkSession:
            from varlog.spark import session  # noqa: PLC0415  # Spark is large

            spark = session(f"varlog pipeline {job}", master=master, log_file=Path(kept) / "spark.log")
            running.callback(spark.stop)
            return spark

        try:
            yield start
        except JobFailed:
            copy = shutil.copy(Path(kept) / "spark.log", f"{kept}.log")
            output.note(f"what Spark said is in {copy}")
            raise
