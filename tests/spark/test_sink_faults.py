"""Writers that are repeated, replaced, too slow or cut off from the cluster: nothing is there twice, or in halves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import monotonic

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import varlog.sync
from benchmarks.spark_kills import LogToLog
from tests.spark.topics import Topic
from varlog import errors
from varlog.processes import LocalCluster
from varlog.spark import sinking
from varlog.spark.sink import Message, StreamWriter
from varlog.spark.sink_options import Chosen, How, SinkOptions, parse_sink
from varlog.spark.sinking import Attempt, Share

SECONDS = 60.0
LOOK_SECONDS = 0.01
MARK = StreamWriter(parse_sink({"checkpointLocation": "theirs"}, streaming=True), Chosen((), (), How.BYTES))._mark
FIRST = Attempt("spark/a query", "its first run" + MARK, 7)
SECOND = Attempt("spark/a query", "its second run" + MARK, 7)


@pytest.fixture
def sequenced(cluster: LocalCluster) -> Iterator[Topic]:
    """A topic that a sequencer orders."""
    with varlog.sync.admin(cluster.path) as admin:
        admin.add_topic("sequenced", streams=2, ordering="sequencer")
        yield Topic(cluster.path, "sequenced")
        admin.remove_topic("sequenced")


def options(topic: Topic, **more: object) -> SinkOptions:
    return parse_sink(topic.options(**more), streaming=False)


def write(topic: Topic, attempt: Attempt, *batches: list[bytes]) -> Share:
    """What a task does."""
    return sinking.write(options(topic), attempt, iter([pa.array(batch) for batch in batches]))


def commit(topic: Topic, *shares: Share) -> None:
    """What the driver does."""
    sinking.commit(options(topic), shares)


def seen(topic: Topic) -> list[bytes]:
    with topic.log() as log:
        return [payload for batch in log.scan() for payload in batch.payloads()]


def test_P1_of_two_attempts_of_a_task_only_the_one_that_counts_is_seen(topic: Topic) -> None:
    with ThreadPoolExecutor(2) as threads:
        speculative = threads.submit(write, topic, FIRST, [b"a", b"b"], [b"c"])
        counted = threads.submit(write, topic, FIRST, [b"a", b"b"], [b"c"])
        other = write(topic, FIRST, [b"d"])
        assert speculative.result(SECONDS).txid == counted.result(SECONDS).txid == other.txid
    assert seen(topic) == []
    commit(topic, counted.result(), Share(), other)
    assert sorted(seen(topic)) == [b"a", b"b", b"c", b"d"]
    late = write(topic, FIRST, [b"a", b"b"], [b"c"])
    assert late.is_done, "an attempt that begins when all is over writes nothing"
    assert sorted(seen(topic)) == [b"a", b"b", b"c", b"d"]


def test_P1_of_two_drivers_with_one_checkpoint_the_later_one_writes(topic: Topic) -> None:
    first = write(topic, FIRST, [b"of the first"])
    second = write(topic, SECOND, [b"of the second"])
    with pytest.raises(errors.TransactionAborted, match="a later attempt of 'spark/a query'"):
        commit(topic, first)
    late = write(topic, FIRST, [b"of a task of the first that comes late"])
    with pytest.raises(errors.TransactionAborted, match="a later attempt of 'spark/a query'"):
        commit(topic, late)
    driver = StreamWriter(options(topic)._replace(checkpoint="theirs"), Chosen((0,), ("payload",), How.BYTES))
    driver.abort([Message(late), None], 7)
    commit(topic, second)
    assert seen(topic) == [b"of the second"], "the other driver leaves it alone, although it has the same checkpoint"


def test_P1_where_a_sequencer_makes_the_order_it_is_the_same(sequenced: Topic) -> None:
    test_P1_of_two_drivers_with_one_checkpoint_the_later_one_writes(sequenced)
    assert write(sequenced, FIRST, [b"of the first"]).is_done
    assert seen(sequenced) == [b"of the second"]


def test_P1_what_the_first_driver_committed_the_second_does_not_write_again(topic: Topic) -> None:
    first = write(topic, FIRST, [b"of the first"])
    commit(topic, first)
    second = write(topic, SECOND, [b"of the second"])
    assert second.is_done
    commit(topic, second, Share())
    commit(topic, first)
    assert seen(topic) == [b"of the first"], "however often that is said"


def test_a_number_that_was_committed_with_other_rows_is_an_error(topic: Topic) -> None:
    """An old copy of a checkpoint has Spark plan a micro-batch anew, with more input than it had."""
    commit(topic, write(topic, FIRST, [b"a"], [b"b"]), write(topic, FIRST, [b"c"]))
    more = [write(topic, SECOND, [b"a", b"b"], [b"c"]), Share(), write(topic, SECOND, [b"d"])]
    with pytest.raises(errors.ConsistencyViolation, match=r"number 7 .* at 4 with 3 rows, and now has 4.*old copy"):
        commit(topic, *more)
    commit(topic, *more[:2])
    later = FIRST._replace(number=8)
    commit(topic, write(topic, later, [b"e"]))
    with pytest.raises(errors.ConsistencyViolation, match="number 8 was committed since, at 6"):
        commit(topic, *more[:2])
    assert seen(topic) == [b"a", b"b", b"c", b"e"]


def test_rows_of_tasks_that_began_before_it_was_known_are_counted_as_well(topic: Topic) -> None:
    first = write(topic, FIRST, [b"a"])
    commit(topic, write(topic, SECOND, [b"a", b"b"]))
    assert first.part is not None
    commit(topic, first, write(topic, FIRST, [b"b"]))
    with pytest.raises(errors.ConsistencyViolation, match="with 2 rows, and now has 3"):
        commit(topic, first, write(topic, FIRST, [b"b", b"c"]))
    with pytest.raises(errors.ConsistencyViolation, match="with 2 rows, and now has 1"):
        commit(topic, first)
    assert seen(topic) == [b"a", b"b"]


def test_a_commit_that_is_trimmed_is_taken_for_the_same(topic: Topic) -> None:
    commit(topic, write(topic, FIRST, [b"a"]))
    with topic.log() as log:
        log.trim(log.append(b"behind it").glsn)
    commit(topic, write(topic, SECOND, [b"a"]))


def test_a_commit_of_shares_of_different_transactions_is_refused(topic: Topic) -> None:
    ours, theirs = write(topic, FIRST, [b"a"]), write(topic, Attempt("spark/another", "run"), [b"b"])
    with pytest.raises(errors.TransactionAborted, match=rf"wrote in transaction {theirs.txid}, and it has become"):
        commit(topic, ours, theirs)
    sinking.abort(options(topic), [ours, theirs])
    assert seen(topic) == []
    with topic.log() as log:
        assert log.transactions() == []


def test_a_transaction_that_takes_too_long_holds_readers_no_longer_than_it_may(topic: Topic) -> None:
    """A task stops; a reader passes its rows when they have expired, and the task cannot go on."""

    def rows() -> Iterator[pa.Array]:
        yield pa.array([b"too early"])
        with topic.log() as log:
            first = next(iter(log.subscribe(uncommitted=True)))
            assert first.data == b"too early", "it is sent while this goes on"
            behind = log.append(b"behind it")
            for entry in log.subscribe(end=behind.glsn + 1):
                assert entry.data == b"behind it"
        yield pa.array([b"too late"])

    slow = sinking.write(options(topic, transactionTimeout=1), FIRST, rows())
    with pytest.raises(errors.TransactionAborted, match="expired: it may take 1 s"):
        commit(topic, slow)
    assert seen(topic) == [b"behind it"]


def test_P1_a_metadata_repository_restarted_during_a_commit_makes_no_difference(own_cluster: LocalCluster) -> None:
    topic = Topic(own_cluster.path, "log")
    share = write(topic, FIRST, [b"a"], [b"b"])
    asyncio.run(own_cluster.vmrs[0].kill())
    with ThreadPoolExecutor(1) as thread:
        committing = thread.submit(commit, topic, share)
        asyncio.run(own_cluster.vmrs[0].start())
        committing.result(SECONDS)
    assert seen(topic) == [b"a", b"b"]
    assert write(topic, SECOND, [b"a"]).is_done


def test_P1_a_query_is_exact_while_nodes_and_metadata_repository_die(
    spark: SparkSession, own_cluster: LocalCluster, tmp_path: Path
) -> None:
    query = LogToLog(own_cluster.path, "in", "out", tmp_path / "query")
    asyncio.run(query.prepare(600))
    running = query.start(query.frame(spark, 100, 2, 0.0), availableNow=True)
    for victim in (own_cluster.vmrs[0], own_cluster.nodes[1]):
        until_it_goes_on(query)
        asyncio.run(victim.kill())
        asyncio.run(victim.start())
    assert running.awaitTermination(int(SECONDS)), running.lastProgress
    assert query.judge(600) == (0, 0, 0)


def until_it_goes_on(query: LogToLog) -> None:
    """Wait until rows of another transaction are written."""
    deadline, pause = monotonic() + SECONDS, Event()
    with varlog.sync.connect(query.cluster, topic=query.target, timeout=SECONDS) as log:
        tail = log.tail()
        while log.tail() == tail:
            assert monotonic() < deadline
            pause.wait(LOOK_SECONDS)
