"""`restore`: the same entries at the same positions, also after it was killed, or not at all."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import varlog.sync
from varlog.archive import Archive, write_range
from varlog.errors import BrokenArchive, Diverged, Filled, UnknownTopic, Unwritten
from varlog.pipeline.restore import BATCH_BYTES, BATCH_ROWS, Summary, Wanted, pieces, restore
from varlog.processes import LocalCluster
from varlog.spark.columns import ARROW_SCHEMA
from varlog.spark.connections import connections
from varlog.spark.options import Connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 100.0
MANY = 400_000
"""Entries that take some seconds to write."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = LocalCluster(tmp_path_factory.mktemp("restored") / "varlog-data")
    asyncio.run(running.__aenter__())
    yield running
    connections.close()
    asyncio.run(running.stop())


def payload_of(glsn: int) -> bytes:
    return b"entry %d" % glsn


def rows_at(glsns: Sequence[int]) -> pa.RecordBatch:
    numbers = np.array(glsns, np.int64)
    columns = [
        pa.array(numbers),
        pa.array(numbers // 2 + 1),
        pa.array((numbers % 2 + 1).astype(np.int32)),
        pa.array(numbers).view(ARROW_SCHEMA.field("timestamp").type),
        pa.array([payload_of(glsn) for glsn in glsns], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def archive_of(uri: Path, bounds: Sequence[int], hidden: frozenset[int] = frozenset()) -> Archive:
    """An archive with a file between any two bounds, without rows at hidden positions."""
    archive = Archive.create(str(uri), cid=9, topic="orders", tpid=4, first=bounds[0])
    for begin, end in pairwise(bounds):
        glsns = [glsn for glsn in range(begin, end) if glsn not in hidden]
        batches = [rows_at(glsns[at : at + 10_000]) for at in range(0, len(glsns), 10_000)]
        archive.commit([write_range(str(uri), begin, end, batches)], archive.end)
    return archive


def restored(cluster: LocalCluster, topic: str, uri: Path, spark: SparkSession, streams: int = 1) -> Summary:
    return restore(Connection(str(cluster.path), topic), Wanted(str(uri), streams), lambda: spark)


def test_P1_every_entry_is_at_its_position_again(cluster: LocalCluster, spark: SparkSession, tmp_path: Path) -> None:
    """The archive begins in the middle of a log, and has positions without an entry: some, many, first and last."""
    hidden = frozenset({101, 102, 150, 999, *range(2000, 4500), 5999})
    archive_of(tmp_path / "archive", [101, 1000, 3000, 6000], hidden)
    summary = restored(cluster, "again", tmp_path / "archive", spark, streams=2)
    assert (summary.begin, summary.end, summary.resumed_at) == (101, 6000, 101)
    assert (summary.rows, summary.filled) == (5899 - len(hidden), len(hidden))
    assert summary.verified_rows == summary.rows
    with varlog.sync.connect(cluster.path, topic="again", timeout=30) as log:
        assert (log.first(), log.tail()) == (101, 5999)
        found = {entry.glsn: entry.data for batch in log.scan(101) for entry in batch}
        assert found == {glsn: payload_of(glsn) for glsn in range(101, 6000) if glsn not in hidden}
        with pytest.raises(Filled):
            log.read(2000)
        assert log.append(b"more").glsn == 6000
    with varlog.sync.admin(cluster.path) as admin:
        assert len(admin.streams("again")) == 2


def test_what_is_complete_is_only_looked_at(cluster: LocalCluster, spark: SparkSession, tmp_path: Path) -> None:
    archive_of(tmp_path / "archive", [1, 2000])
    first = restored(cluster, "twice", tmp_path / "archive", spark)
    again = restored(cluster, "twice", tmp_path / "archive", spark)
    assert (first.rows, again.rows) == (1999, 0)
    assert (again.resumed_at, again.verified_rows) == (2000, 1999)


def test_an_archive_without_entries(cluster: LocalCluster, spark: SparkSession, tmp_path: Path) -> None:
    archive_of(tmp_path / "archive", [50])
    summary = restored(cluster, "empty", tmp_path / "archive", spark)
    assert (summary.rows, summary.begin, summary.end) == (0, 50, 50)
    with varlog.sync.connect(cluster.path, topic="empty") as log:
        assert (log.first(), log.tail()) == (50, 49)


def test_a_topic_that_goes_on_elsewhere_is_refused(cluster: LocalCluster, spark: SparkSession, tmp_path: Path) -> None:
    archive_of(tmp_path / "archive", [101, 200])
    with varlog.sync.admin(cluster.path) as admin:
        admin.add_topic("elsewhere")
    with pytest.raises(Diverged, match=r"goes on at 1; the archive .* has GLSN 101 to 199"):
        restored(cluster, "elsewhere", tmp_path / "archive", spark)
    with varlog.sync.connect(cluster.path, topic="elsewhere") as log, pytest.raises(Unwritten):
        log.read(1)


def test_a_topic_with_other_entries_is_refused(cluster: LocalCluster, spark: SparkSession, tmp_path: Path) -> None:
    archive_of(tmp_path / "archive", [1, 2000])
    with varlog.sync.admin(cluster.path) as admin:
        admin.add_topic("foreign")
    with varlog.sync.connect(cluster.path, topic="foreign") as log:
        log.append_batch([payload_of(1), payload_of(2), b"something else"])
    with pytest.raises(Diverged, match="from GLSN 1 on: somebody else has written to it"):
        restored(cluster, "foreign", tmp_path / "archive", spark)
    with varlog.sync.connect(cluster.path, topic="foreign") as log:
        assert log.tail() == 3


def test_of_a_broken_archive_nothing_is_written_that_could_not_be_read(
    cluster: LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    archive = archive_of(tmp_path / "archive", [1, 1000, 2000])
    (tmp_path / "archive" / archive.ranges[0].path).unlink()
    with pytest.raises(BrokenArchive):
        restored(cluster, "broken", tmp_path / "archive", spark)
    with varlog.sync.connect(cluster.path, topic="broken") as log:
        assert log.tail() == 0


def wait_for_tail(cluster: LocalCluster, topic: str, least: int) -> None:
    """Until a topic is there and has so many positions."""
    deadline = threading.Event()
    timer = threading.Timer(SECONDS, deadline.set)
    timer.start()
    while not deadline.is_set():
        try:
            with varlog.sync.connect(cluster.path, topic=topic) as log:
                while not deadline.is_set():
                    if log.tail() >= least:
                        timer.cancel()
                        return
        except UnknownTopic:
            continue
    raise AssertionError(f"{topic} has not come to {least}")


def test_P1_a_restore_that_was_killed_goes_on(cluster: LocalCluster, spark: SparkSession, tmp_path: Path) -> None:
    archive_of(tmp_path / "archive", [1, MANY // 2, MANY + 1])
    command = [sys.executable, "-m", "varlog", "pipeline", "restore", str(tmp_path / "archive"), "--topic", "killed"]
    environment = os.environ | {"VARLOG_CLUSTER": str(cluster.path)}
    with subprocess.Popen([*command, "--json"], env=environment, stdout=subprocess.PIPE) as process:
        wait_for_tail(cluster, "killed", 20_000)
        process.send_signal(signal.SIGKILL)
        assert process.wait(SECONDS) == -signal.SIGKILL
    summary = restored(cluster, "killed", tmp_path / "archive", spark)
    assert 20_000 < summary.resumed_at <= MANY
    assert summary.rows == MANY + 1 - summary.resumed_at
    assert summary.verified_rows == MANY
    with varlog.sync.connect(cluster.path, topic="killed", timeout=60) as log:
        assert log.tail() == MANY
        assert [entry.data for batch in log.scan(MANY - 3) for entry in batch] == [
            payload_of(glsn) for glsn in range(MANY - 3, MANY + 1)
        ]


def test_P1_somebody_who_writes_meanwhile_is_noticed(
    cluster: LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    archive_of(tmp_path / "archive", [1, MANY + 1])
    failed: list[BaseException] = []

    def run() -> None:
        try:
            restored(cluster, "shared", tmp_path / "archive", spark)
        except Diverged as error:
            failed.append(error)

    writing = threading.Thread(target=run)
    writing.start()
    wait_for_tail(cluster, "shared", 10_000)
    with varlog.sync.connect(cluster.path, topic="shared", timeout=30) as log:
        log.append(b"me too")
    writing.join(SECONDS)
    assert len(failed) == 1
    assert "somebody else writes to topic 'shared'" in str(failed[0])
    with pytest.raises(Diverged, match="is not what the archive"):
        restored(cluster, "shared", tmp_path / "archive", spark)


def test_pieces_are_consecutive_not_too_many_and_not_too_large() -> None:
    glsns = np.array([*range(1, 2501), *range(2600, 2700), 5000], np.int64)
    payloads = pa.array([b"x"] * 2500 + [bytes(BATCH_BYTES // 4)] * 100 + [bytes(2 * BATCH_BYTES)], pa.binary())
    cut = list(pieces(glsns, payloads))
    assert [first for first, _ in cut] == [0, *(last for _, last in cut[:-1])]
    assert cut[:3] == [(0, BATCH_ROWS), (BATCH_ROWS, 2 * BATCH_ROWS), (2 * BATCH_ROWS, 2500)]
    assert cut[3:-1] == [(first, first + 4) for first in range(2500, 2600, 4)]
    assert cut[-1] == (2600, 2601)
    sliced = list(pieces(glsns[2400:2600], payloads.slice(2400, 200)))
    assert sliced[0] == (0, 100)
