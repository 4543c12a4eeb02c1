"""What Spark makes of the demo's log, of which one part is in the archive only and the other in the live log only.

One DataFrame covers both. From it come a table (what happened, how often, for how much), the numbers for two plots, and
a fingerprint: the sum of the checksums of every entry together with its position. The same sum over what the readers
saw has to be the same number.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from varlog.demo.events import SCHEMA
from varlog.demo.proof import Record
from varlog.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEP_SECONDS: Final = 0.25
"""Of the plot of how many events there were when."""
POINTS: Final = 400
"""Of each line in the plot along the order."""

BY_KIND: Final = """\
select kind,
       count(*) as events,
       count_if(glsn < {archived_end}) as from_archive,
       count_if(glsn >= {archived_end}) as from_live_log,
       sum(cents) / 100 as euros
from events group by kind order by events desc"""
_FINGERPRINT: Final = """
select count(*) as entries, sum(crc32(concat(cast(cast(glsn as string) as binary), payload))) as checksums
from events"""
_PULSE: Final = """
select floor(unix_micros(timestamp) / 1e6 / {step}) as step, glsn < {archived_end} as archived, count(*) as events
from events group by 1, 2 order by 1, 2"""
_ALONG: Final = """
select writer, floor(glsn / {stride}) as stride, sum(cents) / 100.0 as euros
from events group by 1, 2 order by 1, 2"""


class Fingerprint(NamedTuple):
    """Of a log: equal logs give equal ones."""

    entries: int
    checksums: int


class Analysis(NamedTuple):
    """What came out."""

    by_kind: list[tuple[str, int, int, int, float]]
    fingerprint: Fingerprint
    pulse: list[tuple[float, bool, int]]
    """Seconds since 1970, whether from the archive, events."""
    along: dict[int, list[tuple[int, float]]]
    """Of each writer: the position, and what it has taken in up to there."""


def fingerprint_of(record: Record) -> Fingerprint:
    """Of what the first reader saw."""
    seen = record.read[0]
    return Fingerprint(len(seen), sum(crc32(b"%d%b" % entry) for entry in seen))


def analyse(cluster: Path, *, archived_end: int, tail: int) -> Analysis:
    """Start Spark, ask it, stop it; what it says and writes stays in the directory of the cluster."""
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(cluster),
        "spark.sql.warehouse.dir": str(cluster / "warehouse"),
    }
    spark = session("varlog demo", log_file=cluster / "spark.log", **conf)
    try:
        _events(spark, cluster).cache().createOrReplaceTempView("events")
        stride = max(1, tail // POINTS)
        fingerprint = _rows(spark, _FINGERPRINT)[0]
        pulse = _rows(spark, _PULSE.format(step=STEP_SECONDS, archived_end=archived_end))
        return Analysis(
            by_kind=_rows(spark, BY_KIND.format(archived_end=archived_end)),
            fingerprint=Fingerprint(*fingerprint),
            pulse=[(step * STEP_SECONDS, archived, events) for step, archived, events in pulse],
            along=_accumulated(_rows(spark, _ALONG.format(stride=stride)), stride),
        )
    finally:
        spark.stop()


def _events(spark: SparkSession, cluster: Path) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415

    log = spark.read.format("varlog").option("cluster", str(cluster)).load()
    return log.withColumn("event", f.from_json(f.col("payload").cast("string"), SCHEMA)).select("*", "event.*")


def _rows(spark: SparkSession, query: str) -> list[Any]:
    return [tuple(row) for row in spark.sql(query).collect()]


def _accumulated(rows: Iterable[tuple[int, int, float]], stride: int) -> dict[int, list[tuple[int, float]]]:
    lines: dict[int, list[tuple[int, float]]] = {}
    for writer, number, euros in rows:
        line = lines.setdefault(writer, [(0, 0.0)])
        line.append(((number + 1) * stride, line[-1][1] + float(euros)))
    return lines
