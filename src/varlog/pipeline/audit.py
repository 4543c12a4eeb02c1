"""`audit`: is everything that a topic holds what it should be, on every replica and in the archive?

`varlog verify` asks the nodes what they hold, and believes their digests; it is quick. An audit reads every byte of
every replica and of the archive itself, in parallel, as tasks of Spark, and proves of them: every position is there
exactly once; LLSNs have no hole; replicas are equal; the chain of commits is whole; the archive equals the log;
transactions are whole. Where a sequencer orders the topic there are no commits, and LLSNs are GLSNs.

How it goes: look at the cluster and plan (`audit_plan`); read everything (`audit_tasks`, `audit_replica`,
`audit_archive`), which leaves a few digests per thousand entries (`audit_rows`); compare these, slice by slice
(`audit_judging`); put together what was said of the slices (`audit_result`); look closer where copies differ
(`audit_looking`); tell (`report`). Nothing but what is wrong, and some totals for each slice, comes to the driver. It
changes nothing, and may be run at any time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from varlog.archive import Archive
from varlog.cli.failures import Exit, connecting
from varlog.cli.looking import Seen, caught_up, see
from varlog.cli.options import Cluster
from varlog.cli.output import Column, Output, duration_of, size_of
from varlog.client.cluster import find
from varlog.core.verifying import Verdict
from varlog.errors import BrokenArchive, JobFailed, UnknownTopic, WrongIdentity
from varlog.pipeline.audit_findings import ARCHIVE
from varlog.pipeline.audit_judging import Rules
from varlog.pipeline.audit_looking import looks_at
from varlog.pipeline.audit_plan import DataFile, Manifest, Plan
from varlog.pipeline.audit_result import AuditResult, Gathered, Pictured, Row, finding_of
from varlog.pipeline.audit_rows import SLICE
from varlog.pipeline.audit_tasks import judge_all, look_at_all
from varlog.pipeline.jobs import submitted
from varlog.pipeline.progress import shown, tasks_told
from varlog.pipeline.report import proofs, write
from varlog.spark.connections import connections, pin
from varlog.spark.options import Connection
from varlog.types import GLSN, Ordering

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from varlog import Log
    from varlog.core.messages import TopicInfo

SLICES_PER_TASK: Final = 20
"""That are judged one after another."""
LONGEST_LIST: Final = 20

_CODES: Final = {
    Verdict.CONSISTENT: Exit.OK,
    Verdict.INCOMPLETE: Exit.INCOMPLETE,
    Verdict.INCONSISTENT: Exit.NOT_WELL,
}


def audit(
    start: Callable[[], SparkSession],
    connection: Connection,
    archive: str | None = None,
    *,
    output: Output | None = None,
    slice_positions: int = SLICE,
) -> tuple[AuditResult, Pictured]:
    """Audit a topic, and its archive if one is named or attached. `start` gives the Spark session."""
    began = time.monotonic()
    pinned = pin(connection)
    plan = _plan(pinned, archive, slice_positions)
    spark = start()
    from pyspark.errors import PySparkException  # noqa: PLC0415  # it is here, or there would be no session

    try:
        rules = Rules.of(plan)
        gathered = Gathered(plan, _judged(spark, pinned, plan, rules, output or Output(json=True)))
        looks = looks_at(gathered.runs, plan.archive, rules.ends, plan.end)
        looked = [finding_of(row) for row in look_at_all(spark, pinned, looks).collect()] if looks else []
    except PySparkException as error:
        raise JobFailed(f"Spark could not finish the audit: {str(error).strip().splitlines()[-1]}") from error
    return gathered.result(looked, time.monotonic() - began), gathered.pictured()


def _judged(spark: SparkSession, connection: Connection, plan: Plan, rules: Rules, output: Output) -> list[Row]:
    """Read everything, and compare; what is said of it."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    # Digests are few: a partition for each core is enough to compare them, until there are many slices.
    spark.conf.set(name, str(spark.sparkContext.defaultParallelism + len(plan.slices) // SLICES_PER_TASK))
    try:
        with (
            shown(output, f"reading {plan.topic.name!r}", len(plan.parts)) as show,
            tasks_told(spark, lambda done: show(min(done, len(plan.parts)), f"{len(plan.parts)} parts")),
        ):
            return judge_all(spark, connection, plan.parts, rules).collect()
    finally:
        spark.conf.set(name, str(before))


# The cluster and its archive


def _plan(connection: Connection, archive: str | None, slice_positions: int) -> Plan:
    at = connection
    cid = find(at.cluster, cid=at.cid, secret_file=at.secret_file, tls=at.tls).cid
    with connecting():
        named, _ = connections.ask(connection, _state)
    uri = archive or named.archive
    opened = _opened(uri) if uri else None  # before the log, which is ahead of it
    _, tail = connections.ask(connection, _state)
    seen = connections.run(_survey(connection, named.tpid))
    topic = next((known for known in seen.metadata.topics if known.tpid == named.tpid), None)
    if topic is None:
        raise UnknownTopic(f"topic {named.name!r} was removed")
    if topic.ordering is Ordering.SEQUENCER:
        topic = replace(topic, hwm=GLSN(tail))  # of which the metadata repository knows nothing
    manifest = None
    if isinstance(opened, BrokenArchive):
        manifest = Manifest(uri, (), str(opened))
    elif opened is not None:
        if (opened.cid, opened.tpid) != (cid, topic.tpid):
            whose = f"topic {opened.topic!r} ({opened.tpid}) of cluster {opened.cid}"
            here = f"{topic.name!r} ({topic.tpid}) of cluster {cid}"
            raise WrongIdentity(f"{opened.uri} is the archive of {whose}, not of {here}")
        files = tuple(DataFile(r.path, r.begin, r.end, r.rows, r.bytes) for r in opened.ranges)
        manifest = Manifest(opened.uri, files)
    return Plan(seen.metadata, topic, seen.infos, seen.silent, manifest, slice_positions)


def _opened(uri: str) -> Archive | BrokenArchive:
    """The archive, or what is wrong with its manifest; then nothing in it can be audited, but the log can."""
    try:
        return Archive.open(uri, check=False)
    except BrokenArchive as broken:
        return broken


async def _state(log: Log) -> tuple[TopicInfo, int]:
    """The topic and its tail."""
    await log.refresh()
    return log.topic, await log.tail()


async def _survey(connection: Connection, tpid: int) -> Seen:
    """The cluster, and what its nodes say."""
    secret = Path(connection.secret_file) if connection.secret_file is not None else None
    cert, key, ca = map(Path, connection.tls) if connection.tls is not None else (None, None, None)
    at = Cluster(connection.cluster, connection.cid, secret, connection.timeout, cert, key, ca)
    deadline = time.monotonic() + connection.timeout
    async with at.admin() as admin:
        seen = await caught_up(at, admin, tpid)
        while seen.silent and time.monotonic() < deadline:
            later = await see(at, admin)  # a busy node may take its time, and nothing is known of it otherwise
            seen = seen._replace(infos=seen.infos | later.infos, silent=later.silent)
        return seen


# From the command line


def run(
    connection: Connection, archive: str | None, report: Path | None, start: Callable[[], SparkSession], output: Output
) -> int:
    """Do it and tell of it; the exit code."""
    result, pictured = audit(start, connection, archive, output=output)
    if report is not None:
        write(report, result, pictured)
    tell(output, result, report)
    return _CODES[result.verdict]


def tell(output: Output, result: AuditResult, report: Path | None) -> None:
    """Say what was found."""
    output.record(result)
    heads = [Column("copy"), Column("role"), Column("log stream", right=True), Column("entries", right=True)]
    heads += [Column("from GLSN", right=True), Column("to GLSN", right=True), Column("cells that differ", right=True)]
    output.table(
        heads,
        [
            (_name(c.copy), c.role, c.log_stream, c.rows, c.first, c.last, c.differing or "") for c in result.copies
        ],
    )  # fmt: skip
    output.line()
    for finding in result.findings[:LONGEST_LIST]:
        stream = f", log stream {finding.log_stream}" if finding.log_stream else ""
        output.line(f"{finding.where}{stream}, {finding.positions}: {finding.fault}: {finding.detail}")
    more = len(result.findings) - LONGEST_LIST + result.more_findings
    if more > 0:
        output.line(f"and {more} more findings")
    for claim, stands, why in proofs(result):
        output.line(f"{claim}: {stands}{f', {why}' if why else ''}")
    read = f"{result.entries:,} entries ({size_of(result.bytes)}) were read in {duration_of(result.seconds)}"
    output.line(f"topic {result.topic!r} is {result.verdict}; {read}")
    if report is not None:
        output.line(f"the report is {report}")


def _name(copy: int) -> str:
    return "archive" if copy == ARCHIVE else f"node {copy}"


def main(argv: Sequence[str] | None = None) -> int:
    """What `spark-submit` calls: the same as `varlog pipeline audit`."""
    return submitted("audit", argv)


if __name__ == "__main__":
    sys.exit(main())
