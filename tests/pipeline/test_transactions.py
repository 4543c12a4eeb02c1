"""The jobs on a topic with transactions: an archive has what is committed, restored topics and audits agree with it,
and an audit finds an archive, or a transaction, that does not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import varlog.sync
from tests.pipeline.archives import no_spark, wanted
from tests.pipeline.forging import rewrite
from tests.spark.topics import Topic
from tests.spark.transacting import Story
from varlog.archive import Archive, write_range
from varlog.batch.transactions import Verdict, VerdictKind
from varlog.core.messages import BeginTransaction, Begun
from varlog.core.verifying import Verdict as Judgement
from varlog.oneprocess import CID
from varlog.pipeline.archive import archive
from varlog.pipeline.audit import audit
from varlog.pipeline.audit_findings import ARCHIVE, TOPIC, Fault
from varlog.pipeline.audit_result import AuditResult
from varlog.pipeline.report import proofs
from varlog.pipeline.restore import Wanted, restore
from varlog.spark.connections import connections
from varlog.spark.task import read_range
from varlog.types import GLSN, TransactionID


def rows_of(uri: Path) -> dict[int, bytes]:
    made = Archive.open(str(uri))
    rows = [row for batch in made.scan(made.begin, made.end) for row in batch.to_pylist()]
    return {row["glsn"]: row["payload"] for row in rows}


def read(topic: Topic, begin: int, end: int) -> dict[int, bytes]:
    with topic.log() as log:
        return {entry.glsn: entry.data for batch in log.scan(begin, end) for entry in batch}


def test_P1_an_archive_has_what_is_committed_and_ends_before_what_is_not_decided(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    uri = tmp_path / "it"
    with topic.log() as log:
        story = Story(log)
        story.tell()
        decided = dict(story.visible)
        end = log.tail() + 1
        undecided = log.begin("open")
        written = story.write(undecided, [b"open/%d" % number for number in range(20)])
        story.plain(b"behind it")
        done = archive(topic.connection, wanted(uri, attach=True, trim=True), lambda: spark)
        assert (done.end, rows_of(uri), log.first()) == (end, decided, end)
        assert archive(topic.connection, wanted(uri), no_spark).positions == 0, "until it is decided"

        undecided.commit()
        story.visible |= written
        archive(topic.connection, wanted(uri, trim=True, keep=10), lambda: spark)
        assert rows_of(uri) == story.visible
        assert log.first() == log.tail() - 9, "in the middle of the transaction"
        assert read(topic, 1, log.tail() + 1) == story.visible, "through archive and log"
        assert {glsn for glsn in story.visible if glsn >= log.first()} & written.keys()
    result, _ = audit(lambda: spark, topic.connection)
    assert (result.verdict, result.findings) == (Judgement.CONSISTENT, [])


def test_a_trim_that_a_transaction_forbids_is_left_for_later(topic: Topic, tmp_path: Path) -> None:
    """Where a sequencer orders the topic, a transaction may be registered with a beginning from before all that the
    archive has; nothing of it is there, but nobody can know."""
    name, uri = f"{topic.name}-chained"[-100:], str(tmp_path / "it")
    chained = Topic(topic.path, name)
    with varlog.sync.admin(topic.path) as admin:
        admin.add_topic(name, ordering="sequencer")
    try:
        tail = chained.write([b"one", b"two"], [b"three"])
        with chained.log() as log:
            made = Archive.create(uri, cid=CID, topic=name, tpid=log.topic.tpid, first=1)
            made.commit([write_range(uri, 1, tail + 1, read_range(chained.connection, 1, tail + 1))], 1)
            txid = connections.ask(chained.connection, _registered)
            assert archive(chained.connection, wanted(uri, attach=True, trim=True), no_spark).log_first == 0
            log.end_transaction(txid)
            done = archive(chained.connection, wanted(uri, until=tail, trim=True), no_spark)
            assert done.log_first == log.first() == tail + 1
    finally:
        with varlog.sync.admin(topic.path) as admin:
            admin.remove_topic(name)


async def _registered(log: varlog.Log) -> int:
    """A transaction that begins after the first position."""
    answer = await log._session.asking.ask(
        lambda request: BeginTransaction(request, log._tpid, "late", "token", expiry=60_000, after=GLSN(1)),
        log._deadline(10.0),
    )
    assert isinstance(answer, Begun)
    assert answer.transaction is not None
    return answer.transaction.txid


def test_P1_restored_topics_have_what_was_visible(
    spark: SparkSession, topic: Topic, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    uri, name = tmp_path / "it", f"{request.node.name[:80]}-restored"
    with topic.log() as log:
        story = Story(log)
        story.tell()
    archive(topic.connection, wanted(uri), lambda: spark)
    restored = Topic(topic.path, name)
    done = restore(restored.connection, Wanted(str(uri)), lambda: spark)
    try:
        assert (done.rows, done.verified_rows) == (len(story.visible), len(story.visible))
        assert read(restored, 1, done.end) == story.visible
    finally:
        with varlog.sync.admin(topic.path) as admin:
            admin.remove_topic(name)


# What an audit finds


def findings(result: AuditResult) -> set[tuple[int, Fault, int, int]]:
    return {(f.copy, f.fault, f.begin, f.end) for f in result.findings}


def with_row(glsn: int, payload: bytes) -> Callable[[pa.Table], pa.Table]:
    """A row that is not to be there."""

    def change(table: pa.Table) -> pa.Table:
        at = sum(other < glsn for other in table.column("glsn").to_pylist())
        before = table.slice(max(0, at - 1), 1).to_pylist()[0]
        row = before | {"glsn": glsn, "llsn": before["llsn"] + 1, "payload": payload}
        return pa.concat_tables([table.slice(0, at), pa.Table.from_pylist([row], schema=table.schema), table.slice(at)])

    return change


def test_P1_an_audit_finds_rows_that_are_not_committed_and_misses_those_that_are(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    with topic.log() as log:
        story = Story(log)
        story.tell()
    archive(topic.connection, wanted(tmp_path / "it"), lambda: spark)
    good, _ = audit(lambda: spark, topic.connection, str(tmp_path / "it"))
    assert (good.verdict, good.findings, good.transactions) == (Judgement.CONSISTENT, [], 5)
    assert ("Transactions are whole", "proven", "") in proofs(good)

    hidden = min(story.everything.keys() - story.visible.keys())
    shown = next(glsn for glsn, data in story.visible.items() if data == b"a/3")
    shutil.copytree(tmp_path / "it", tmp_path / "bad")
    path = Archive.open(str(tmp_path / "bad")).ranges[0].path
    rewrite(tmp_path / "bad", path, with_row(hidden, b"b/0"))
    rewrite(tmp_path / "bad", path, lambda table: table.filter(pc.not_equal(table.column("glsn"), shown)))
    bad, _ = audit(lambda: spark, topic.connection, str(tmp_path / "bad"))
    assert bad.verdict is Judgement.INCONSISTENT
    told = findings(bad)
    assert (ARCHIVE, Fault.EXTRA, hidden, hidden + 1) in told
    assert (ARCHIVE, Fault.MISSING, shown, shown + 1) in told


def test_P1_an_audit_counts_the_entries_of_a_committed_part(spark: SparkSession, topic: Topic) -> None:
    """A COMMIT that counts an entry which is not there can only be a fault of who wrote it, or a loss."""
    with topic.log() as log:
        half = log.begin("half")
        half.append_batch([b"one", b"two"])
        part, entries, last = half.finish()
        (open_one,) = log.transactions()
        lie = Verdict(
            VerdictKind.COMMIT,
            TransactionID(half.id),
            GLSN(open_one.after),
            ((part, entries + 1),),
            checked=GLSN(last),
        )

        async def pronounce(inner: varlog.Log) -> int:
            return await inner._verdicts.pronounce(lie, 10.0)

        at = connections.ask(topic.connection, pronounce)
        log.append(b"behind")
    result, _ = audit(lambda: spark, topic.connection)
    assert result.verdict is Judgement.INCONSISTENT
    assert findings(result) == {(TOPIC, Fault.TRANSACTION, open_one.after + 1, at + 1)}
    (finding,) = result.findings
    assert "a part of 3 entries has 2 in the log" in finding.detail
    assert ("Transactions are whole", "not so", "1 finding") in proofs(result)
    assert ("Every position is there exactly once", "proven", "") in proofs(result)
