"""What an audit found, put together on the driver from what was said of each slice.

From one slice of a copy to the next LLSNs have to go on and commits to follow each other, and the last one has to end
where the metadata repository says. There is one row for each task to judge that by. Of a chain only times have to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import msgspec

from varlog.core.verifying import Role, Verdict
from varlog.pipeline.audit_findings import ARCHIVE, SHOWN, Fault, Finding
from varlog.pipeline.audit_judging import Rules, Run, joined
from varlog.pipeline.audit_plan import Plan
from varlog.pipeline.audit_rows import Kind

Row = Any
"""One of `FOUND`, as Spark or Arrow gives it."""


class CopyResult(msgspec.Struct):
    """One replica of one log stream, or what the archive has of it."""

    copy: int
    """The node; 0 is the archive."""
    role: str
    log_stream: int
    first: int = 0
    last: int = 0
    rows: int = 0
    bytes: int = 0
    commits: int = 0
    differing: int = 0
    """Cells that are not what the log has there."""
    remark: str = ""


class AuditResult(msgspec.Struct):
    """What an audit found."""

    topic: str
    ordering: str
    """commit or sequencer: some of what is proven of one, the other does not have."""
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
    transactions: int = 0
    """That were met, whatever became of them."""


class Bucket(NamedTuple):
    """Of one copy and log stream, over a part of the log."""

    copy: int
    log_stream: int
    begin: int
    rows: int
    bytes: int
    differing: int


class Pictured(msgspec.Struct):
    """What is drawn in the report."""

    buckets: list[Bucket]
    bucket_positions: int
    times: list[tuple[int, int]]
    """Positions, and when they were committed, in microseconds."""


class Gathered:
    """What was said of all slices."""

    def __init__(self, plan: Plan, rows: Iterable[Row]) -> None:
        self._plan = plan
        self.findings = list(plan.findings)
        self._slices: list[Row] = []
        self._buckets: dict[tuple[int, int, int], list[int]] = {}
        self.first = plan.begin
        """Where the log begins now; what lies below was trimmed meanwhile."""
        self.transactions = 0
        runs: list[Run] = []
        for row in rows:
            if row["kind"] == Kind.SLICE:
                self._slices.append(row)
            elif row["kind"] == Kind.RUN:
                runs.append(msgspec.json.decode(row["detail"], type=Run))
            elif row["kind"] == Kind.BUCKET:
                bucket = self._buckets.setdefault((row["copy"], row["log_stream"], row["begin"]), [0, 0, 0])
                for at, name in enumerate(("rows", "bytes", "positions")):
                    bucket[at] += row[name]
            elif row["kind"] == Kind.TRANSACTIONS:
                self.transactions += row["rows"]
            elif row["fault"] == Fault.TRIMMED:
                self.first = max(self.first, row["end"])
            else:
                self.findings.append(finding_of(row))
        self.runs = joined(runs)
        self._slices.sort(key=lambda row: (row["copy"], row["log_stream"], row["begin"]))
        for (copy, lsid), of_copy in groupby(self._slices, key=lambda row: (row["copy"], row["log_stream"])):
            if copy != ARCHIVE:
                self._follow(copy, lsid, list(of_copy))

    def _find(self, begin: int, lsid: int, copy: int, fault: Fault, detail: str) -> None:
        self.findings.append(Finding(begin, begin + 1, lsid, copy, fault, detail))

    def _follow(self, copy: int, lsid: int, slices: list[Row]) -> None:
        """The slices of one replica, ascending."""
        held = [row for row in slices if row["positions"]]
        breaks = {after["begin"] for before, after in pairwise(slices) if after["begin"] != before["end"]}
        for before, after in pairwise(held):
            if any(before["begin"] < at <= after["begin"] for at in breaks):
                continue  # what lies between was not read, or trimmed
            if self._plan.is_chained:
                if 0 < after["first_time"] < before["last_time"]:
                    said = f"its time {after['first_time']} us comes after {before['last_time']} us"
                    self._find(after["begin"], lsid, copy, Fault.DISORDER, said)
                continue
            if after["llsn_begin"] != before["llsn_end"]:
                said = f"LLSN {after['llsn_begin']} follows on {before['llsn_end'] - 1}"
                self._find(after["begin"], lsid, copy, Fault.LLSN, said)
            if not _follows(before, after):
                said = f"commit {after['first_version']} does not follow on commit {before['last_version']}"
                self._find(after["begin"], lsid, copy, Fault.CHAIN, said)
        if held and not self._plan.is_chained:
            self._ends(copy, lsid, held[0], held[-1], slices[-1]["end"])

    def _ends(self, copy: int, lsid: int, first: Row, last: Row, end: int) -> None:
        """A log stream ends where the metadata repository says, and begins with the first LLSN if nothing is gone."""
        stream = self._plan.streams[lsid]  # type: ignore[index]
        is_lost = stream.lost_end > stream.lost_begin
        if end == self._plan.end_of(lsid) and not is_lost and last["llsn_end"] != stream.llsn_end:
            said = f"it ends at LLSN {last['llsn_end'] - 1}, the metadata repository says {stream.llsn_end - 1}"
            self._find(end - 1, lsid, copy, Fault.LLSN, said)
        if self.first == 1 and first["llsn_begin"] != 1:
            self._find(1, lsid, copy, Fault.LLSN, f"it begins with LLSN {first['llsn_begin']}")

    # The result

    def result(self, looked: Iterable[Finding], seconds: float) -> AuditResult:
        plan, archive = self._plan, self._plan.archive
        findings = sorted({*filter(self._can_be_told, self.findings), *looked, *self._long_runs()})
        copies = self._copies()
        return AuditResult(
            topic=plan.topic.name,
            ordering=plan.topic.ordering.label,
            verdict=self._verdict(findings),
            first=self.first,
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
            transactions=self.transactions,
        )

    def _can_be_told(self, finding: Finding) -> bool:
        """Whether a transaction is whole can be told only where all of it was read, and nothing trimmed meanwhile."""
        if finding.fault is not Fault.TRANSACTION:
            return True
        return finding.begin >= self.first and not any(other.fault is Fault.UNREAD for other in self.findings)

    def _long_runs(self) -> Iterable[Finding]:
        """Of neighbouring cells that differ only the ends are looked into."""
        for run in self.runs:
            if run.cells > 2:
                said = f"{run.cells} cells one after another differ; the first and the last of them were looked into"
                for copy in run.losers:
                    yield Finding(run.begin, run.end, run.log_stream, copy, Fault.DIFFERS, said)

    def _verdict(self, findings: Sequence[Finding]) -> Verdict:
        outside = {(copy.snid, copy.lsid) for copy in self._plan.copies if copy.role is Role.OUTSIDE}
        unread = [finding for finding in findings if finding.fault is Fault.UNREAD]
        if len(unread) < len(findings):
            return Verdict.INCONSISTENT
        if any((finding.copy, finding.log_stream) not in outside for finding in unread):
            return Verdict.INCOMPLETE
        return Verdict.CONSISTENT

    def _copies(self) -> list[CopyResult]:
        results = {
            (int(copy.snid), int(copy.lsid)): CopyResult(copy.snid, copy.role, copy.lsid, remark=copy.detail)
            for copy in self._plan.copies
        }
        for row in self._slices:
            copy, lsid = row["copy"], row["log_stream"]
            result = results.setdefault((copy, lsid), CopyResult(copy, "archive", lsid))
            result.first = min(result.first or row["begin"], row["begin"])
            result.last = max(result.last, row["end"] - 1)
            result.rows += row["rows"]
            result.bytes += row["bytes"]
            result.commits += row["commits"] or 0
        for (copy, lsid, _), (_, _, differing) in self._buckets.items():
            if (copy, lsid) in results:
                results[copy, lsid].differing += differing
        return [results[key] for key in sorted(results)]

    def pictured(self) -> Pictured:
        """What is drawn."""
        times: dict[int, int] = {}
        for row in self._slices:
            if row["first_time"]:
                times[row["begin"]] = min(times.get(row["begin"], row["first_time"]), row["first_time"])
                times[row["end"]] = max(times.get(row["end"], 0), row["last_time"])
        drawn = sorted(times.items())
        rules = Rules.of(self._plan)
        thinned = drawn[:: max(1, len(drawn) // 1000)]
        return Pictured(
            [Bucket(*key, *sums) for key, sums in sorted(self._buckets.items())], rules.bucket_positions, thinned
        )


def _follows(before: Row, after: Row) -> bool:
    """Whether the commits of one slice can follow on those of the one before. One commit may be in both."""
    if after["first_time"] < before["last_time"]:
        return False
    first, last = after["first_version"], before["last_version"]
    if first is None or last is None:
        return True  # they could not be followed, which was told
    return bool(first == last or (first > last and after["prev_hwm"] >= before["hwm"]))


def finding_of(row: Row) -> Finding:
    """A fault that some task told of."""
    return Finding(row["begin"], row["end"], row["log_stream"], row["copy"], Fault(row["fault"]), row["detail"])
