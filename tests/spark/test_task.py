"""What a task yields: exactly its range, in order, from whichever replica is there. Without Spark, over real nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import varlog.sync
from tests.spark.topics import Topic, small_cluster
from varlog import errors, limits
from varlog.batch import decode, encode
from varlog.client.entries import EntryBatch
from varlog.core.merging import Chunk
from varlog.spark.columns import ARROW_SCHEMA, COLUMNS, declared
from varlog.spark.connections import connections
from varlog.spark.options import Connection
from varlog.spark.task import _Scan, read_range
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, Version


def table_of(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches, ARROW_SCHEMA)


def test_P1_a_range_is_read_whole_in_order_and_with_the_clients_values(topic: Topic) -> None:
    tail = topic.write_numbers(25_000)
    table = table_of(read_range(topic.connection, 1, tail + 1))
    with topic.log() as log:
        entries = [entry for batch in log.scan() for entry in batch]
    assert table.column("glsn").to_pylist() == list(range(1, tail + 1))
    assert table.column("payload").to_pylist() == [entry.data for entry in entries]
    assert table.column("llsn").to_pylist() == [entry.llsn for entry in entries]
    assert table.column("log_stream").to_pylist() == [entry.log_stream for entry in entries]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [entry.timestamp for entry in entries]
    assert len(set(table.column("log_stream").to_pylist())) == 2


def test_small_batches_of_the_log_become_large_ones_for_spark(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    tail = topic.write_numbers(25_000)
    monkeypatch.setattr(limits, "SPARK_BATCH_ROWS", 2_000)
    sizes = [batch.num_rows for batch in read_range(topic.connection, 1, tail + 1)]
    assert sum(sizes) == tail
    assert len(sizes) < 25
    assert max(sizes) < 1.5 * (limits.SPARK_BATCH_ROWS + 100)


@pytest.mark.parametrize(("begin", "end"), [(1, 2), (150, 151), (99, 302), (250, 251), (1, 501), (500, 501)])
def test_a_range_may_begin_and_end_inside_of_a_batch(topic: Topic, begin: int, end: int) -> None:
    topic.write_numbers(500)
    table = table_of(read_range(topic.connection, begin, end))
    assert table.column("glsn").to_pylist() == list(range(begin, end))
    assert table.column("payload").to_pylist() == topic.payloads(begin, end)


def test_an_empty_range_has_no_rows(topic: Topic) -> None:
    topic.write([b"one"])
    assert list(read_range(topic.connection, 1, 1)) == []


def test_filled_positions_have_no_rows_and_are_accounted_for(topic: Topic) -> None:
    with topic.log() as log:
        log.append_batch([b"one", b"two"])
        log.append_fill(1000)
        log.append(b"three")
        log.append_fill(5)
    table = table_of(read_range(topic.connection, 1, 1009))
    assert table.column("glsn").to_pylist() == [1, 2, 1003]
    assert list(read_range(topic.connection, 3, 1003)) == []


def test_a_subset_of_log_streams_and_of_columns(topic: Topic) -> None:
    while True:
        tail = topic.write_numbers(5000)
        whole = table_of(read_range(topic.connection, 1, tail + 1))
        log_streams = set(whole.column("log_stream").to_pylist())
        if len(log_streams) == 2:  # one may be sealed for a moment, where the processors are busy
            break
    one = min(log_streams)
    columns = ["payload", "glsn"]
    batches = list(read_range(topic.connection, 1, tail + 1, columns=columns, log_streams={one}))
    wanted = whole.filter(pc.equal(whole.column("log_stream"), one)).select(columns)
    assert pa.Table.from_batches(batches).equals(wanted)


def test_entries_of_many_sizes(topic: Topic) -> None:
    entries = [b"", b"x" * (3 << 20), b"y", *[bytes([n]) * n for n in range(200)], b"z" * (5 << 20)]
    topic.write(entries[:1], entries[1:2], entries[2:100], entries[100:])
    table = table_of(read_range(topic.connection, 1, len(entries) + 1))
    assert table.column("payload").to_pylist() == entries


def test_a_trimmed_range_is_a_loss_with_its_name(topic: Topic) -> None:
    topic.write_numbers(1000)
    with topic.log() as log:
        log.trim(400)
    with pytest.raises(errors.DataLoss, match=r"100 to 400 can no longer be read: .*failOnDataLoss") as raised:
        list(read_range(topic.connection, 100, 1001))
    assert (raised.value.begin, raised.value.end) == (100, 401)
    table = table_of(read_range(topic.connection, 100, 1001, fail_on_data_loss=False))
    assert table.column("glsn").to_pylist() == list(range(401, 1001))
    assert list(read_range(topic.connection, 100, 300, fail_on_data_loss=False)) == []


@pytest.mark.parametrize("fails", [True, False])
def test_a_trim_that_overtakes_a_task_is_a_loss_or_is_passed_over(topic: Topic, fails: bool) -> None:
    tail = topic.write_numbers(60_000, per_batch=1000, size=1000)
    reading = read_range(topic.connection, 1, tail + 1, fail_on_data_loss=fails)
    glsns = [next(reading).column("glsn").to_numpy()]
    with topic.log() as log:
        log.trim(tail - 500)
    try:
        glsns += [batch.column("glsn").to_numpy() for batch in reading]
        lost_end = tail - 499
        assert not fails
    except errors.DataLoss as loss:
        lost_end = loss.end
        assert fails
    seen = np.concatenate(glsns)
    gap = int(np.flatnonzero(np.diff(seen) != 1)[0]) if not fails else len(seen) - 1
    assert np.array_equal(seen[: gap + 1], np.arange(1, gap + 2)), "what came before the loss is whole"
    assert lost_end == tail - 499
    assert np.array_equal(seen[gap + 1 :], np.arange(tail - 499, tail + 1) if not fails else [])


def test_an_unknown_topic_is_an_error_that_names_those_there_are(topic: Topic) -> None:
    with pytest.raises(errors.UnknownTopic, match=f"no topic 'absent'; the cluster has .*{topic.name[:20]}"):
        list(read_range(topic.connection._replace(topic="absent"), 1, 2))


def test_a_topic_that_is_made_anew_under_its_name_is_found(topic: Topic) -> None:
    topic.write([b"old"])
    assert next(read_range(topic.connection, 1, 2)).column("payload").to_pylist() == [b"old"]
    with varlog.sync.admin(topic.path) as admin:
        admin.remove_topic(topic.name)
        admin.add_topic(topic.name)
    topic.write([b"new"])
    assert next(read_range(topic.connection, 1, 2)).column("payload").to_pylist() == [b"new"]


def test_a_reader_that_stops_early_leaves_nothing_behind(topic: Topic) -> None:
    tail = topic.write_numbers(20_000, per_batch=1000, size=1000)
    reading = read_range(topic.connection, 1, tail + 1)
    next(reading)
    reading.close()
    assert table_of(read_range(topic.connection, 1, tail + 1)).num_rows == tail


def test_nobody_there_is_an_error_in_time(tmp_path: Path, topic: Topic) -> None:
    unreachable = Connection(
        "127.0.0.1:1", topic.name, 1, str(topic.path / "secret"), timeout=0.2, retries=1, retry_interval=0.01
    )
    with pytest.raises(errors.Unreachable):
        list(read_range(unreachable, 1, 2))
    with pytest.raises(errors.BadConfig, match="neither a cluster file"):
        list(read_range(Connection(str(tmp_path / "absent")), 1, 2))


@pytest.mark.parametrize("killed", [0, 1, 2])
def test_P1_a_node_killed_in_the_middle_of_a_read_makes_no_difference(tmp_path: Path, killed: int) -> None:
    cluster = small_cluster(tmp_path)
    topic = Topic(cluster.path, "log")
    asyncio.run(cluster.__aenter__())
    try:
        tail = topic.write_numbers(40_000, per_batch=500, size=1000)
        with varlog.sync.admin(cluster.path) as admin:
            asked = admin.streams("log")[0].replicas[killed]
        reading = read_range(topic.connection, 1, tail + 1, affinity=killed)
        glsns = [next(reading).column("glsn").to_numpy()]
        asyncio.run(cluster.nodes[asked - 1].kill())
        glsns += [batch.column("glsn").to_numpy() for batch in reading]
        assert np.array_equal(np.concatenate(glsns), np.arange(1, tail + 1))
    finally:
        connections.close()
        asyncio.run(cluster.stop())


def test_a_task_waits_for_a_cluster_that_is_down_for_a_while(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cluster = small_cluster(tmp_path)
    topic = Topic(cluster.path, "log")
    asyncio.run(cluster.__aenter__())
    try:
        tail = topic.write_numbers(40_000, per_batch=500, size=1000)
        patient = topic.connection._replace(poll_timeout=0.3, retries=1000, retry_interval=0.05)
        reading = read_range(patient, 1, tail + 1)
        glsns = [next(reading).column("glsn").to_numpy()]
        for node in cluster.nodes:
            asyncio.run(node.kill())
        with ThreadPoolExecutor(1) as thread:
            rest = thread.submit(lambda: [batch.column("glsn").to_numpy() for batch in reading])
            deadline, pause = monotonic() + 60, Event()
            while "reading goes on" not in caplog.text:
                assert monotonic() < deadline
                assert not rest.done()
                pause.wait(0.02)
            for node in cluster.nodes:
                asyncio.run(node.start())
            assert np.array_equal(np.concatenate([*glsns, *rest.result(60)]), np.arange(1, tail + 1))
    finally:
        connections.close()
        asyncio.run(cluster.stop())


class _Liar:
    """A scan of [1, 11) that hands over batches which are not what was asked for."""

    def __init__(self, batches: list[EntryBatch], position: int, filled: int) -> None:
        self._batches = batches
        self.position = position
        self.filled = filled

    def scan(self, *_: object, **__: object) -> _Liar:
        return self

    def whole(self) -> _Liar:
        return self

    async def several(self) -> list[EntryBatch]:
        found, self._batches = self._batches, []
        return found

    async def aclose(self) -> None:
        """There is nothing to end."""


def _batch(glsn: int, count: int) -> EntryBatch:
    encoded = encode([b"x"] * count)
    line = (GLSN(glsn), LLSN(glsn), count, Epoch(2), Version(1), 0, encoded)
    return EntryBatch(Chunk(GLSN(glsn), LogStreamID(1), 0, count, line), decode(encoded))


@pytest.mark.parametrize(
    ("batches", "position", "filled", "said"),
    [
        ([(1, 5), (5, 6)], 11, 0, "positions 5 to 10 came where 6 to 10 were due"),
        ([(6, 5), (1, 5)], 11, 0, "positions 1 to 5 came where 11 to 10 were due"),
        ([(1, 11)], 12, 0, "positions 1 to 11 came where 1 to 10 were due"),
        ([(1, 5), (7, 4)], 11, 0, "1 to 10 ended at 11 with 9 entries and 0 positions that hold none"),
        ([(1, 5)], 6, 0, "1 to 10 ended at 6 with 5 entries and 0"),
        ([(1, 10)], 11, 1, "1 to 10 ended at 11 with 10 entries and 1"),
    ],
)
def test_P1_a_range_that_is_not_exactly_what_was_asked_for_is_an_error(
    batches: list[tuple[int, int]], position: int, filled: int, said: str
) -> None:
    liar: Any = _Liar([_batch(*batch) for batch in batches], position, filled)
    scan = _Scan(liar, 1, 11, 0, 1.0, uncommitted=False)
    with pytest.raises(errors.ConsistencyViolation, match=said):
        list(scan.groups())
    scan.close()
    connections.close()


def test_columns_are_those_of_the_schema() -> None:
    assert COLUMNS == ("glsn", "llsn", "log_stream", "timestamp", "payload")
    assert not any(field.type in (pa.uint64(), pa.large_binary()) for field in ARROW_SCHEMA)


def test_a_null_where_there_is_none_is_found() -> None:
    sound = pa.array([1, 2], pa.int64())
    batches = [pa.RecordBatch.from_arrays([column], ["glsn"]) for column in (sound, pa.array([3, None], pa.int64()))]
    rows = declared(batches, ["glsn"], ())
    assert next(rows).schema == pa.schema([pa.field("glsn", pa.int64(), nullable=False)])
    with pytest.raises(errors.ConsistencyViolation, match="nulls among rows of the log"):
        next(rows)
