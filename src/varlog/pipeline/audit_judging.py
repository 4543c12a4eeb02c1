"""The verdict on what the tasks found: comparing is Spark's work, and only what is wrong comes to the driver.

Of every cell the replicas' digests are counted like votes, as `varlog verify` counts them: members of the set have the
greater say, then the greater number, then the side that the archive is on, then the primary's. What the winning side
holds is the log there; whoever holds something else differs, and the archive is held against it.

From one slice to the next LLSNs have to go on, and commits to follow each other. The positions that the log streams
have must, together, be every position exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyspark.sql.functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql import Column, DataFrame, Row, Window

from varlog.pipeline.audit_findings import ARCHIVE, SHOWN, TOPIC, Fault, Finding
from varlog.pipeline.audit_plan import Plan
from varlog.pipeline.audit_rows import Kind

DISPUTES: Final = 20_000
"""So many cells that differ are looked at one by one; what they have in common shows in the first of them."""
BUCKETS: Final = 200
"""So many points along the log are drawn."""


class Dispute(NamedTuple):
    """A cell of which not all copies hold the same."""

    log_stream: int
    begin: int
    end: int
    winners: tuple[int, ...]
    """Whose content counts,"""
    losers: tuple[int, ...]
    """and who differs; `ARCHIVE` is among them if it does."""
    undecided: bool
    """The losers have as much of a say as the winners."""


class Total(NamedTuple):
    """Of one copy and log stream, over everything that was read."""

    copy: int
    log_stream: int
    rows: int
    positions: int
    bytes: int
    commits: int
    llsn_begin: int
    llsn_end: int
    begin: int
    end: int


class Bucket(NamedTuple):
    """Of one copy and log stream, over a part of the log; for the plots."""

    copy: int
    log_stream: int
    begin: int
    rows: int
    bytes: int
    differing: int


class Judgement(NamedTuple):
    """What was found."""

    findings: list[Finding]
    disputes: list[Dispute]
    differing: dict[tuple[int, int], int]
    """How many cells of a copy and log stream differ."""
    totals: list[Total]
    buckets: list[Bucket]
    bucket_positions: int
    times: list[tuple[int, int]]
    """Positions, and when they were committed, in microseconds."""
    first: int
    """Where the log begins now; what lies below was trimmed meanwhile."""


def judge(found: DataFrame, plan: Plan) -> Judgement:
    """`found` is read several times: cache it."""
    return _Judging(found, plan).run()


class _Judging:
    def __init__(self, found: DataFrame, plan: Plan) -> None:
        self._plan = plan
        self._findings: list[Finding] = []
        trimmed = found.where(f"kind = 'fault' AND fault = '{Fault.TRIMMED}'").agg(F.max("end")).first()
        self._first: int = max(plan.begin, (trimmed[0] if trimmed is not None else None) or 0)
        self._found = found
        spark = found.sparkSession
        roles = [
            (int(copy.snid), int(copy.lsid), int(copy.is_member), int(copy.role == "primary")) for copy in plan.copies
        ]
        schema = "copy INT, log_stream INT, member INT, primary INT"
        self._roles = F.broadcast(spark.createDataFrame(roles, schema))
        live = found.where((F.col("kind") == Kind.CELL.value) & (F.col("begin") >= self._first))
        self._archived = live.where(f"copy = {ARCHIVE} AND begin < {plan.end}")
        self._cells = live.where(f"copy != {ARCHIVE}").join(self._roles, ["copy", "log_stream"])
        self._ranked = self._rank(self._cells, ["log_stream", "begin", "end", "slice"], ["content", "raw"]).cache()

    def run(self) -> Judgement:
        try:
            self._faults()
            disputes = [*self._disputes(), *self._archive_disputes()]
            self._continuity()
            self._chains()
            self._density()
            totals = self._totals()
            self._ends(totals)
            width, buckets = self._buckets()
            return Judgement(
                sorted(set(self._findings)),
                disputes,
                self._differing(),
                totals,
                buckets,
                width,
                self._times(),
                self._first,
            )
        finally:
            self._ranked.unpersist()

    def _find(self, begin: int, end: int, log_stream: int, copy: int, fault: Fault, detail: str) -> None:
        self._findings.append(Finding(begin, end, log_stream, copy, fault, detail))

    def _faults(self) -> None:
        """What tasks saw in one copy by itself."""
        faults = self._found.where(f"kind = 'fault' AND fault != '{Fault.TRIMMED}'")
        for row in faults.orderBy("begin", "copy").limit(SHOWN).collect():
            fault = Fault(row["fault"])
            self._find(row["begin"], row["end"], row["log_stream"], row["copy"], fault, row["detail"])

    # Votes

    def _rank(self, votes: DataFrame, of: list[str], on: list[str]) -> DataFrame:
        """The parties of every cell or slice, the one with the greatest say first."""
        archived = self._archived.groupBy("log_stream", "begin").agg(F.max("content").alias("archived"))
        sided = F.max((F.col("content") == F.col("archived")).cast("int")) if "content" in on else F.lit(0)
        joined = votes.join(archived, ["log_stream", "begin"], "left") if "content" in on else votes
        parties = joined.groupBy(*of, *on).agg(
            F.sum("member").alias("members"),
            F.count("*").alias("copies"),
            F.coalesce(sided, F.lit(0)).alias("sided"),
            F.max("primary").alias("primary"),
            F.sort_array(F.collect_set("copy")).alias("who"),
        )
        each = Window.partitionBy(*of)
        order = each.orderBy(*(F.desc(name) for name in ("members", "copies", "sided", "primary")), *on)
        say = F.struct("members", "copies", "sided")
        return (
            parties.withColumn("place", F.row_number().over(order))
            .withColumn("parties", F.count("*").over(each))
            .withColumn("even", F.first(say).over(order) == say)
        )

    def _disputes(self) -> list[Dispute]:
        """Cells of which replicas hold different things."""
        rows = (
            self._ranked.where("parties > 1").orderBy("log_stream", "begin", "place").limit(DISPUTES).collect()
        )  # fmt: skip
        disputes: dict[tuple[int, int], list[Row]] = {}
        for row in rows:
            disputes.setdefault((row["log_stream"], row["begin"]), []).append(row)
        return [
            Dispute(
                lsid,
                begin,
                parties[0]["end"],
                tuple(parties[0]["who"]),
                tuple(copy for party in parties[1:] for copy in party["who"]),
                any(party["even"] for party in parties[1:]),
            )
            for (lsid, begin), parties in disputes.items()
        ]

    def _against_log(self) -> DataFrame:
        """Cells of the archive that are not what the log has there."""
        log = self._ranked.where("place = 1").select(
            "log_stream", "begin", F.col("content").alias("logged"), F.col("who").alias("winners")
        )
        joined = self._archived.join(log, ["log_stream", "begin"], "left")
        return joined.where("logged IS NULL AND rows > 0 OR content != logged")

    def _archive_disputes(self) -> list[Dispute]:
        disputes = []
        for row in self._against_log().orderBy("log_stream", "begin").limit(DISPUTES).collect():
            lsid, begin, end = row["log_stream"], row["begin"], row["end"]
            if row["logged"] is not None:
                disputes.append(Dispute(lsid, begin, end, tuple(row["winners"]), (ARCHIVE,), False))
            elif self._plan.is_lost(lsid, begin):
                continue  # the archive has what the log has no more
            elif lsid not in self._plan.streams or begin >= self._plan.end_of(lsid):
                said = f"{row['rows']} rows of a log stream that has nothing there"
                self._find(begin, end, lsid, ARCHIVE, Fault.EXTRA, said)
        return disputes

    def _differing(self) -> dict[tuple[int, int], int]:
        losers = self._ranked.where("place > 1").select("log_stream", F.explode("who").alias("copy"))
        archive = self._against_log().select("log_stream", F.lit(ARCHIVE).alias("copy"))
        counted = losers.unionByName(archive).groupBy("copy", "log_stream").count().collect()
        return {(row["copy"], row["log_stream"]): row["count"] for row in counted}

    # From one slice to the next

    def _continuity(self) -> None:
        each = Window.partitionBy("copy", "log_stream").orderBy("begin")
        slices = self._found.where(f"kind = 'slice' AND copy != {ARCHIVE}")
        cut = F.coalesce((F.col("begin") != F.lag("end").over(each)).cast("int"), F.lit(0))
        slices = slices.withColumn("run", F.sum(cut).over(each))
        run = Window.partitionBy("copy", "log_stream", "run").orderBy("begin")
        before = run.rowsBetween(Window.unboundedPreceding, -1)

        def last(name: str) -> Column:
            return F.last(F.when(F.col("positions") > 0, F.col(name)), ignorenulls=True).over(before)

        follows = (
            slices.withColumn("llsn_before", last("llsn_end"))
            .withColumn("version_before", last("last_version"))
            .withColumn("hwm_before", last("hwm"))
            .withColumn("time_before", last("last_time"))
            .where("positions > 0")
        )
        backwards = "(first_version != version_before AND prev_hwm < hwm_before OR first_version < version_before"
        broken = follows.where(f"llsn_begin != llsn_before OR {backwards} OR first_time < time_before)")
        for row in broken.orderBy("begin").limit(SHOWN).collect():
            at = row["begin"], row["begin"] + 1, row["log_stream"], row["copy"]
            if row["llsn_begin"] != row["llsn_before"]:
                self._find(*at, Fault.LLSN, f"LLSN {row['llsn_begin']} follows on {row['llsn_before'] - 1}")
            else:
                said = f"commit {row['first_version']} does not follow on commit {row['version_before']}"
                self._find(*at, Fault.CHAIN, said)

    def _chains(self) -> None:
        """Who holds the same entries holds the same commits."""
        slices = self._found.where(f"kind = 'slice' AND copy != {ARCHIVE}").join(self._roles, ["copy", "log_stream"])
        ranked = self._rank(slices, ["log_stream", "slice", "begin", "end"], ["raw", "first_version", "last_version"])
        differ = ranked.where("place > 1")
        contents = self._ranked.where("parties > 1").select("log_stream", "slice").distinct()
        alone = differ.join(contents, ["log_stream", "slice"], "left_anti")
        for row in alone.withColumn("copy", F.explode("who")).orderBy("begin").limit(SHOWN).collect():
            said = "its commits are others than those of the other replicas, though its entries are the same"
            self._find(row["begin"], row["end"], row["log_stream"], row["copy"], Fault.CHAIN, said)

    def _ends(self, totals: Sequence[Total]) -> None:
        """A log stream ends where the metadata repository says, and begins with the first LLSN if nothing is gone."""
        plan = self._plan
        for total in totals:
            stream = next((s for lsid, s in plan.streams.items() if lsid == total.log_stream), None)
            if total.copy == ARCHIVE or stream is None or not total.positions:
                continue
            end = plan.end_of(stream.lsid)
            is_lost = stream.lost_end > stream.lost_begin
            if total.end == end and not is_lost and total.llsn_end != stream.llsn_end:
                said = f"it ends at LLSN {total.llsn_end - 1}, the metadata repository says {stream.llsn_end - 1}"
                self._find(end - 1, end, total.log_stream, total.copy, Fault.LLSN, said)
            if self._first == total.begin == 1 and total.llsn_begin != 1:
                said = f"it begins with LLSN {total.llsn_begin}"
                self._find(1, 2, total.log_stream, total.copy, Fault.LLSN, said)

    # Density

    def _density(self) -> None:
        """Every position exactly once, by what the best copy of each log stream has in each slice."""
        plan, first = self._plan, self._first
        spans = self._best_spans().where(f"end > {first}").withColumn("begin", F.greatest("begin", F.lit(first)))
        judged = self._judged_slices()
        spans = spans.join(judged.select("slice"), "slice").select("slice", "begin", "end")
        edges = judged.selectExpr("slice", "first AS begin", "first AS end").union(
            judged.selectExpr("slice", "last AS begin", "last AS end")
        )
        each = Window.partitionBy("slice").orderBy("begin", "end")
        reached = F.max("end").over(each.rowsBetween(Window.unboundedPreceding, -1))
        steps = spans.unionByName(edges).withColumn("reached", reached)
        gaps = steps.where("begin > reached").selectExpr("reached AS begin", "begin AS end")
        twice = steps.where("begin < reached AND end > begin").selectExpr("begin", "least(end, reached) AS end")
        for row in gaps.orderBy("begin").limit(SHOWN).collect():
            for begin, end in _without(row["begin"], row["end"], plan.lost):
                self._find(begin, end, 0, TOPIC, Fault.NOWHERE, "no log stream has these positions")
        for row in twice.orderBy("begin").limit(SHOWN).collect():
            said = "more than one log stream has these positions, or one of them twice"
            self._find(row["begin"], row["end"], 0, TOPIC, Fault.TWICE, said)

    def _best_spans(self) -> DataFrame:
        lost = self._ranked.select(
            "log_stream", "slice", F.explode("who").alias("copy"), (F.col("place") > 1).cast("int").alias("lost")
        )
        standing = lost.groupBy("log_stream", "slice", "copy").agg(F.sum("lost").alias("lost"))
        each = Window.partitionBy("log_stream", "slice").orderBy("lost", F.desc("member"), F.desc("primary"), "copy")
        best = standing.join(self._roles, ["copy", "log_stream"]).withColumn("place", F.row_number().over(each))
        keys = best.where("place = 1").select("log_stream", "slice", "copy")
        return self._found.where("kind = 'span'").join(keys, ["log_stream", "slice", "copy"])

    def _judged_slices(self) -> DataFrame:
        """Slices in which some copy of every log stream was read, of those that have something there."""
        expected = [
            (begin, max(begin, self._first), end, sum(begin < self._plan.end_of(lsid) for lsid in self._plan.streams))
            for begin, end in self._plan.slices
            if end > self._first
        ]
        slices = self._found.sparkSession.createDataFrame(
            expected, "slice BIGINT, first BIGINT, last BIGINT, expected INT"
        )
        cells = self._found.where(f"kind = 'cell' AND copy != {ARCHIVE}")
        read = cells.groupBy("slice").agg(F.countDistinct("log_stream").alias("read"))
        return slices.join(read, "slice", "left").where("coalesce(read, 0) = expected")

    # Numbers

    def _totals(self) -> list[Total]:
        slices = self._found.where("kind = 'slice'")
        totals = slices.groupBy("copy", "log_stream").agg(
            F.sum("rows"),
            F.coalesce(F.sum("positions"), F.lit(0)),
            F.sum("bytes"),
            F.coalesce(F.sum("commits"), F.lit(0)),
            F.coalesce(F.min_by("llsn_begin", F.when(F.col("llsn_begin") > 0, F.col("begin"))), F.lit(0)),
            F.coalesce(F.max_by("llsn_end", F.when(F.col("llsn_end") > 0, F.col("begin"))), F.lit(0)),
            F.min("begin"),
            F.max("end"),
        )
        return sorted(Total(*row) for row in totals.collect())

    def _buckets(self) -> tuple[int, list[Bucket]]:
        plan = self._plan
        begin = min(plan.begin, plan.archive.begin or plan.begin) if plan.archive is not None else plan.begin
        width = max(1, -(-(plan.end - begin) // BUCKETS))
        bucket: Any = F.floor((F.col("begin") - begin) / width) * width + begin
        cells = self._found.where("kind = 'cell'").withColumn("bucket", bucket)
        losers = self._ranked.where("place > 1").select(F.explode("who").alias("copy"), "log_stream", "begin")
        archive = self._against_log().select(F.lit(ARCHIVE).alias("copy"), "log_stream", "begin")
        differs = losers.unionByName(archive).withColumn("differs", F.lit(1))
        joined = cells.join(differs, ["copy", "log_stream", "begin"], "left")
        grouped = joined.groupBy("copy", "log_stream", "bucket").agg(
            F.sum("rows"), F.sum("bytes"), F.coalesce(F.sum("differs"), F.lit(0))
        )
        return width, sorted(Bucket(*row) for row in grouped.collect())

    def _times(self) -> list[tuple[int, int]]:
        slices = (
            self._found.where("kind = 'slice' AND first_time > 0")
            .groupBy("slice")
            .agg(F.min("begin").alias("begin"), F.min("first_time"), F.max("end"), F.max("last_time"))
        )
        times: list[tuple[int, int]] = []
        for row in slices.orderBy("begin").limit(5 * BUCKETS).collect():
            times += [(row[1], row[2]), (row[3], row[4])]
        return times


def _without(begin: int, end: int, lost: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left of a span without those that were declared lost."""
    left = []
    for lost_begin, lost_end in sorted(lost):
        if lost_end <= begin or lost_begin >= end:
            continue
        if begin < lost_begin:
            left.append((begin, lost_begin))
        begin = max(begin, lost_end)
    if begin < end:
        left.append((begin, end))
    return left
