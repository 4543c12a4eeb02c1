"""The source and the jobs on topics that a sequencer orders: junk yields no row, the end is the contiguous prefix, and
what was archived comes back at the same positions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import varlog.sync
from tests.client.hand import Hand
from tests.spark.topics import Topic
from varlog.core.verifying import Verdict
from varlog.pipeline.archive import Wanted as Archived
from varlog.pipeline.archive import archive
from varlog.pipeline.audit import audit
from varlog.pipeline.restore import Wanted, restore
from varlog.processes import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCK = 64


@pytest.fixture
def chained(cluster: LocalCluster) -> Iterator[Topic]:
    """Two log streams on three nodes; entries, and holes that a client has left."""
    with varlog.sync.admin(cluster.path) as admin:
        admin.add_topic("chained", streams=2, ordering="sequencer", block=BLOCK)
        asyncio.run(_write(cluster.path))
        yield Topic(cluster.path, "chained")
        admin.remove_topic("chained")


async def _write(path: Path) -> None:
    async with varlog.connect(path, topic="chained", fill_after=0.2) as log:
        hand = Hand(log)
        for number in range(30):
            await log.append_batch([b"%d/%d" % (number, entry) for entry in range(10)])
            if number % 10 == 5:
                await hand.grant(3)
        await hand.grant(2)


def test_P1_S5_spark_archive_audit_and_restore(
    cluster: LocalCluster, chained: Topic, spark: SparkSession, tmp_path: Path
) -> None:
    wanted = [b"%d/%d" % (number, entry) for number in range(30) for entry in range(10)]
    rows = chained.read(spark, minPartitions=4).orderBy("glsn").collect()
    assert [bytes(row.payload) for row in rows] == wanted
    assert all(row.llsn == row.glsn for row in rows)
    with chained.log() as log:
        tail, filled = log.tail(), log.tail() - len(wanted)
    assert rows[-1].glsn < tail, "the last positions are junk"

    uri = str(tmp_path / "archive")
    made = archive(chained.connection, Archived(uri, rows_per_file=100, attach=True), lambda: spark)
    assert (made.begin, made.end, made.rows) == (1, tail + 1, len(wanted))
    result, _ = audit(lambda: spark, chained.connection)
    assert (result.verdict, result.findings) == (Verdict.CONSISTENT, [])
    assert result.entries == 4 * len(wanted), "three replicas and the archive"

    trimmed = archive(chained.connection, Archived(uri, trim=True, keep=20), lambda: spark)
    assert trimmed.log_first == tail - 19
    assert [bytes(row.payload) for row in chained.read(spark).orderBy("glsn").collect()] == wanted
    with chained.log() as log:
        assert log.read(rows[0].glsn).data == wanted[0], "from the archive"

    again = chained.connection._replace(topic="again")
    back = restore(again, Wanted(uri, 2, ordering="sequencer"), lambda: spark)
    assert (back.rows, back.filled, back.verified_rows) == (len(wanted), filled, len(wanted))
    once_more = restore(again, Wanted(uri, 2), lambda: spark)
    assert (once_more.rows, once_more.verified_rows) == (0, len(wanted))
    with varlog.sync.admin(cluster.path) as admin:
        admin.remove_topic("again")


def test_L6_S5_a_streaming_query_passes_over_holes(chained: Topic, spark: SparkSession, tmp_path: Path) -> None:
    found: list[bytes] = []
    query = (
        chained.stream(spark, startingOffsets="earliest")
        .writeStream.option("checkpointLocation", str(tmp_path))
        .foreachBatch(lambda frame, _: found.extend(bytes(row.payload) for row in frame.orderBy("glsn").collect()))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(100)
    assert found == [b"%d/%d" % (number, entry) for number in range(30) for entry in range(10)]
