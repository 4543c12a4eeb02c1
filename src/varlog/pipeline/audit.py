"""`audit`: is everything that a topic holds what it should be, on every replica and in the archive?

`varlog verify` asks the nodes what they hold, and believes their digests; it is quick. An audit reads every byte of
every replica and of the archive itself, in parallel, as tasks of Spark, and proves of them: every position is there
exactly once; LLSNs have no hole; replicas are equal; the chain of commits is whole; the archive equals the log.

How it goes: look at the cluster and plan (`audit_plan`); read everything (`audit_tasks`, `audit_replica`,
`audit_archive`), which leaves a few digests per thousand entries (`audit_rows`); compare these (`audit_judging`); look
closer where they differ (`audit_looking`); tell (`report`). Nothing but what is wrong, and some totals, comes to the
driver. It changes nothing, and may be run at any time.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from varlog.archive import Archive
from varlog.cli.failures import Exit, connecting
from varlog.cli.looking import Seen, caught_up, see
from varlog.cli.options import Cluster
from varlog.cli.output import Column, Output, duration_of, size_of
from varlog.client.cluster import find
from varlog.core.verifying import Role, Verdict
from varlog.errors import JobFailed, UnknownTopic, WrongIdentity
from varlog.pipeline.audit_findings import ARCHIVE, SHOWN, Fault, Finding
from varlog.pipeline.audit_judging import Bucket, Judgement, judge
from varlog.pipeline.audit_looking import Run, looks_at, runs_of
from varlog.pipeline.audit_plan import DataFile, Manifest, Plan
from varlog.pipeline.audit_rows import SLICE
from varlog.pipeline.audit_tasks import look_at_all, read_all
from varlog.pipeline.progress import shown, tasks_told
from varlog.pipeline.report import proofs, write
from varlog.spark.connections import connections, pin
from varlog.spark.options import Connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from varlog import Log
    from varlog.core.messages import TopicInfo

POSITIONS_PER_SHUFFLE: Final = 5_000_000
"""Every position may be a span of its own: so many are compared by one task."""
LONGEST_LIST: Final = 20

_CODES: Final = {
    Verdict.CONSISTENT: Exit.OK,
    Verdict.INCOMPLETE: Exit.INCOMPLETE,
    Verdict.INCONSISTENT: Exit.NOT_WELL,
}


class CopyResult(msgspec.Struct):
    """One replica of one log stream, or what the archive has of it."""

    copy: int
    """The node; 0 is the archive."""
    role: str
    log_stream: int
    first: int
    last: int
    rows: int
    bytes: int
    commits: int
    differing: int
    """Cells that are not what the log has there."""
    remark: str


class AuditResult(msgspec.Struct):
    """What an audit found."""

    topic: str
    verdict: Verdict
    first: int
    """The first position of the log,"""
    last: int
    """and the last; of the archive the same, 0 if there is none."""
    archive: str
    archive_first: int
    archive_last: int
    entries: int
    """Read, all copies together."""
    bytes: int
    seconds: float
    findings: list[Finding]
    more_findings: int
    """Beyond those that are listed."""
    copies: list[CopyResult]
    tasks: int


class Pictured(msgspec.Struct):
    """What is drawn in the report."""

    buckets: list[Bucket]
    bucket_positions: int
    times: list[tuple[int, int]]


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
        judgement = _judgement(spark, pinned, plan, output or Output(json=True))
        runs = runs_of(judgement.disputes)
        looks = looks_at(runs, plan.archive)
        looked = look_at_all(spark, pinned, looks).collect() if looks else []
    except PySparkException as error:
        raise JobFailed(f"Spark could not finish the audit: {str(error).strip().splitlines()[-1]}") from error
    findings = {
        *plan.findings,
        *judgement.findings,
        *(Finding(r["begin"], r["end"], r["log_stream"], r["copy"], Fault(r["fault"]), r["detail"]) for r in looked),
        *_told_of(runs),
    }
    result = _result(plan, judgement, sorted(findings), time.monotonic() - began)
    return result, Pictured(judgement.buckets, judgement.bucket_positions, judgement.times)


def _judgement(spark: SparkSession, connection: Connection, plan: Plan, output: Output) -> Judgement:
    """Read everything, and compare."""
    with _shuffles_of(spark, plan):
        found = read_all(spark, connection, plan.parts).persist()
        try:
            with (
                shown(output, f"reading {plan.topic.name!r}", len(plan.parts)) as show,
                tasks_told(spark, lambda done: show(done, f"{len(plan.parts)} parts")),
            ):
                found.count()
            return judge(found, plan)
        finally:
            found.unpersist()


@contextmanager
def _shuffles_of(spark: SparkSession, plan: Plan) -> Iterator[None]:
    """Digests are few: as many partitions as cores are enough to compare them, and more only cost time."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    most = spark.sparkContext.defaultParallelism + (plan.end - plan.begin) // POSITIONS_PER_SHUFFLE
    spark.conf.set(name, str(most))
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


def _told_of(runs: list[Run]) -> Iterator[Finding]:
    """Of neighbouring cells only the ends are looked at."""
    for run in runs:
        if len(run.cells) > 2:
            said = f"{len(run.cells)} cells one after another differ; the first and the last of them were looked into"
            for copy in run.cells[0].losers:
                yield Finding(run.begin, run.end, run.cells[0].log_stream, copy, Fault.DIFFERS, said)


# The cluster and its archive


def _plan(connection: Connection, archive: str | None, slice_positions: int) -> Plan:
    cid = find(connection.cluster, cid=connection.cid, secret_file=connection.secret_file).cid
    with connecting():
        named = connections.ask(connection, _topic)
    uri = archive or named.archive
    opened = Archive.open(uri, check=False) if uri else None  # before the log, which is ahead of it
    seen = connections.run(_survey(connection))
    topic = next((known for known in seen.metadata.topics if known.tpid == named.tpid), None)
    if topic is None:
        raise UnknownTopic(f"topic {named.name!r} was removed")
    if opened is not None and (opened.cid, opened.tpid) != (cid, topic.tpid):
        whose = f"topic {opened.topic!r} ({opened.tpid}) of cluster {opened.cid}"
        raise WrongIdentity(
            f"{opened.uri} is the archive of {whose}, not of {topic.name!r} ({topic.tpid}) of cluster {cid}"
        )
    manifest = None
    if opened is not None:
        files = tuple(DataFile(r.path, r.begin, r.end, r.rows, r.bytes) for r in opened.ranges)
        manifest = Manifest(opened.uri, files)
    return Plan(seen.metadata, topic, seen.infos, seen.silent, manifest, slice_positions)


async def _topic(log: Log) -> TopicInfo:
    await log.refresh()
    return log.topic


async def _survey(connection: Connection) -> Seen:
    """The cluster, and what its nodes say."""
    secret = Path(connection.secret_file) if connection.secret_file is not None else None
    at = Cluster(connection.cluster, connection.cid, secret, connection.timeout)
    deadline = time.monotonic() + connection.timeout
    async with at.admin() as admin:
        seen = await caught_up(at, admin)
        while seen.silent and time.monotonic() < deadline:
            later = await see(at, admin)  # a busy node may take its time, and nothing is known of it otherwise
            seen = seen._replace(infos=seen.infos | later.infos, silent=later.silent)
        return seen


# The result


def _result(plan: Plan, judgement: Judgement, findings: list[Finding], seconds: float) -> AuditResult:
    copies = _copies(plan, judgement)
    archive = plan.archive
    return AuditResult(
        topic=plan.topic.name,
        verdict=_verdict(plan, findings),
        first=judgement.first,
        last=plan.end - 1,
        archive=archive.uri if archive is not None else "",
        archive_first=archive.begin if archive is not None else 0,
        archive_last=archive.end - 1 if archive is not None else 0,
        entries=sum(copy.rows for copy in copies),
        bytes=sum(copy.bytes for copy in copies),
        seconds=round(seconds, 3),
        findings=findings[:SHOWN],
        more_findings=max(0, len(findings) - SHOWN),
        copies=copies,
        tasks=len(plan.parts),
    )


def _verdict(plan: Plan, findings: list[Finding]) -> Verdict:
    outside = {(copy.snid, copy.lsid) for copy in plan.copies if copy.role is Role.OUTSIDE}
    unread = [finding for finding in findings if finding.fault is Fault.UNREAD]
    if len(unread) < len(findings):
        return Verdict.INCONSISTENT
    if any((finding.copy, finding.log_stream) not in outside for finding in unread):
        return Verdict.INCOMPLETE
    return Verdict.CONSISTENT


def _copies(plan: Plan, judgement: Judgement) -> list[CopyResult]:
    totals = {(total.copy, total.log_stream): total for total in judgement.totals}
    planned = {(int(copy.snid), int(copy.lsid)): copy for copy in plan.copies}
    results = []
    for snid, lsid in sorted({*planned, *totals}):
        total, copy = totals.get((snid, lsid)), planned.get((snid, lsid))
        results.append(
            CopyResult(
                copy=snid,
                role="archive" if snid == ARCHIVE else (copy.role.value if copy is not None else ""),
                log_stream=lsid,
                first=total.begin if total is not None else 0,
                last=total.end - 1 if total is not None else 0,
                rows=total.rows if total is not None else 0,
                bytes=total.bytes if total is not None else 0,
                commits=total.commits if total is not None else 0,
                differing=judgement.differing.get((snid, lsid), 0),
                remark=copy.detail if copy is not None else "",
            )
        )
    return results


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
    from varlog.cli import main as command  # noqa: PLC0415  # the command line imports this module

    given = list(sys.argv[1:] if argv is None else argv)
    with contextlib.suppress(ValueError):
        given.remove("--")
    return command(["pipeline", "audit", *given])


if __name__ == "__main__":
    sys.exit(main())
