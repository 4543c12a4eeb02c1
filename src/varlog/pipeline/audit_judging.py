"""The verdict on a slice: what all copies say of the same positions, held against each other.

Spark brings together what tasks found of a slice, whichever copy it is of, and `judge_slice` judges it, one slice to a
call, in parallel. What it says goes to the driver: a few rows for each slice, and never a digest.

- Of every cell and log stream the replicas' digests are counted like votes, as `varlog verify` counts them: members of
  the set have the greater say, then the greater number, then the side that the archive is on, then the primary's. What
  the winning side holds is the log there. Whoever holds something else differs, and so does the archive.
- Those who hold the same entries must have the same commits.
- What was met of transactions comes in groups of its own, which `audit_fates` judges.
- The positions that the log streams have in the slice, each by its best copy, must be every position exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from varlog.pipeline.audit_fates import Bounds, judge_transactions
from varlog.pipeline.audit_findings import ARCHIVE, TOPIC, Fault
from varlog.pipeline.audit_plan import Plan
from varlog.pipeline.audit_rows import CELL, FOUND, Kind

BUCKETS: Final = 200
"""So many points along the log are drawn."""
SPANS_SHOWN: Final = 50
"""Of one slice; more are counted."""

Row = dict[str, Any]
Copies = dict[int, Row]
"""What each copy says of one cell or slice of a log stream."""


class Rules(NamedTuple):
    """What has to be known of the whole to judge a part."""

    begin: int
    end: int
    """The positions of the log."""
    slices: Mapping[int, int]
    """Their ends, by where they begin; the archive may have more, which nobody can be compared with."""
    members: frozenset[tuple[int, int]]
    primaries: frozenset[tuple[int, int]]
    """As (node, log stream)."""
    ends: Mapping[int, int]
    """Where what each log stream should have ends."""
    lost: tuple[tuple[int, int, int], ...]
    """What was declared lost, as (log stream, begin, end)."""
    first: int
    bucket_positions: int
    """Of the plots: whole cells, so that they are all alike."""

    @classmethod
    def of(cls, plan: Plan) -> Rules:
        first = min(plan.begin, plan.archive.begin or plan.begin) if plan.archive is not None else plan.begin
        return cls(
            plan.begin,
            plan.end,
            dict(plan.slices),
            frozenset((int(copy.snid), int(copy.lsid)) for copy in plan.copies if copy.is_member),
            frozenset((int(copy.snid), int(copy.lsid)) for copy in plan.copies if copy.role == "primary"),
            {int(lsid): plan.end_of(lsid) for lsid in plan.streams},
            tuple((int(s.lsid), s.lost_begin, s.lost_end) for s in plan.streams.values() if s.lost_end > s.lost_begin),
            first,
            max(1, -(-(plan.end - first) // (BUCKETS * CELL))) * CELL,
        )


class Run(msgspec.Struct, frozen=True, order=True):
    """Neighbouring cells in which the same copies differ."""

    log_stream: int
    losers: tuple[int, ...]
    """Who differs; `ARCHIVE` is among them if it does."""
    winners: tuple[int, ...]
    """Whose content counts."""
    undecided: bool
    """The losers have as much of a say as the winners."""
    begin: int
    end: int
    cells: int
    first_end: int
    """Where the first of the cells ends,"""
    last_begin: int
    """and the last one begins."""


def joined(runs: Iterable[Run]) -> list[Run]:
    """Runs that follow on each other are one."""
    found: list[Run] = []
    for run in sorted(runs):
        before = found[-1] if found else None
        if before is not None and before.end == run.begin and _parties(before) == _parties(run):
            cells, last = before.cells + run.cells, run.last_begin
            found[-1] = msgspec.structs.replace(before, end=run.end, cells=cells, last_begin=last)
        else:
            found.append(run)
    return found


def _parties(run: Run) -> tuple[object, ...]:
    return run.log_stream, run.losers, run.winners, run.undecided


def judge_slice(rules: Rules, begin: int, table: pa.Table) -> pa.Table:
    """All that is to be said of a slice, or of a group of transactions, as rows of `FOUND`."""
    if begin < 0:
        judged = judge_transactions(Bounds(rules.begin, rules.lost), table.to_pylist())
        return pa.Table.from_pylist(judged, schema=FOUND)
    return pa.Table.from_pylist(_Slice(rules, begin, table).judged(), schema=FOUND)


class _Slice:
    def __init__(self, rules: Rules, begin: int, table: pa.Table) -> None:
        self._rules = rules
        self._begin = begin
        self._end = rules.slices.get(begin, 0)
        is_span = pc.equal(table.column("kind"), Kind.SPAN.value)
        self._spans = table.filter(is_span).select(["copy", "log_stream", "begin", "end"]).combine_chunks()
        rows = table.filter(pc.invert(is_span)).to_pylist()
        self._cells = [row for row in rows if row["kind"] == Kind.CELL]
        self._wholes = [row for row in rows if row["kind"] == Kind.SLICE]
        faults = [row for row in rows if row["kind"] == Kind.FAULT]
        trimmed = [row["end"] for row in faults if row["fault"] == Fault.TRIMMED]
        self._first = max([begin, *trimmed])
        """What lies below was trimmed while it was being read."""
        self._told: list[Row] = [*faults, *self._wholes]
        self._runs: list[Run] = []
        self._lost: set[tuple[int, int, int]] = set()
        """Cells in which copies differ, as (copy, log stream, begin)."""

    def judged(self) -> list[Row]:
        if self._end:
            by_cell: dict[tuple[int, int], tuple[Copies, list[Row]]] = {}
            for row in self._cells:
                if row["begin"] >= self._first:
                    replicas, archived = by_cell.setdefault((row["log_stream"], row["begin"]), ({}, []))
                    if row["copy"] == ARCHIVE:
                        archived.append(row)
                    else:
                        replicas[row["copy"]] = row
            for (lsid, _), (replicas, archived) in sorted(by_cell.items(), key=lambda item: item[0]):
                self._judge_cell(lsid, replicas, archived)
            self._judge_chains()
            self._judge_density()
        self._tell_runs()
        self._tell_buckets()
        return self._told

    def _fault(self, begin: int, end: int, log_stream: int, copy: int, fault: Fault, detail: str) -> None:
        row = {"kind": Kind.FAULT.value, "copy": copy, "log_stream": log_stream, "begin": begin, "end": end}
        self._told.append(row | {"slice": self._begin, "fault": fault.value, "detail": detail})

    # Votes

    def _sides(self, lsid: int, votes: Mapping[int, object], sided: object) -> list[list[int]]:
        """Those that say the same, the side with the greatest say first. `sided` is what the archive says."""
        sides: dict[object, list[int]] = {}
        for copy, said in sorted(votes.items()):
            sides.setdefault(said, []).append(copy)
        return [
            copies
            for said, copies in sorted(
                sides.items(),
                key=lambda side: (*self._say(lsid, side[1]), side[0] == sided, self._has_primary(lsid, side[1])),
                reverse=True,
            )
        ]

    def _say(self, lsid: int, copies: Sequence[int]) -> tuple[int, int]:
        return sum((copy, lsid) in self._rules.members for copy in copies), len(copies)

    def _has_primary(self, lsid: int, copies: Sequence[int]) -> bool:
        return any((copy, lsid) in self._rules.primaries for copy in copies)

    def _judge_cell(self, lsid: int, replicas: Copies, archived: list[Row]) -> None:
        if not replicas:
            for row in archived:
                self._judge_alone(lsid, row)
            return
        votes = {copy: (row["content"], row["raw"]) for copy, row in replicas.items()}
        sided = next((raw for raw in votes.values() if archived and raw[0] == archived[0]["content"]), None)
        winners, *others = self._sides(lsid, votes, sided)
        winner = replicas[winners[0]]
        if others:
            losers = [copy for side in others for copy in side]
            even = self._say(lsid, winners) == self._say(lsid, others[0]) and votes[winners[0]] != sided
            self._differ(lsid, winner, winners, losers, undecided=even)
        if any(row["content"] != winner["content"] for row in archived) and winner["begin"] < self._rules.end:
            self._differ(lsid, winner, winners, [ARCHIVE], undecided=False)

    def _differ(
        self, lsid: int, cell: Row, winners: Sequence[int], losers: Sequence[int], *, undecided: bool
    ) -> None:  # fmt: skip
        begin, end = cell["begin"], cell["end"]
        self._lost.update((copy, lsid, begin) for copy in losers)
        self._runs.append(Run(lsid, tuple(losers), tuple(winners), undecided, begin, end, 1, end, begin))

    def _judge_alone(self, lsid: int, row: Row) -> None:
        """A cell of the archive where no replica was read: it should be empty if the log stream has nothing there."""
        rules, begin = self._rules, row["begin"]
        if not row["rows"] or begin >= rules.end or any(s == lsid and b <= begin < e for s, b, e in rules.lost):
            return
        if begin >= rules.ends.get(lsid, 0):
            said = f"{row['rows']} rows of a log stream that has nothing there"
            self._fault(begin, row["end"], lsid, ARCHIVE, Fault.EXTRA, said)

    def _tell_runs(self) -> None:
        for run in joined(self._runs):
            row = {"kind": Kind.RUN.value, "slice": self._begin, "begin": run.begin, "end": run.end}
            self._told.append(row | {"detail": msgspec.json.encode(run).decode()})

    # Commits

    def _judge_chains(self) -> None:
        """Who holds the same entries of the same range holds the same commits."""
        ranges: dict[tuple[int, int, int], Copies] = {}
        disputed = {lsid for _, lsid, _ in self._lost}
        for row in self._wholes:
            if row["copy"] != ARCHIVE and row["raw"] is not None and row["log_stream"] not in disputed:
                ranges.setdefault((row["log_stream"], row["begin"], row["end"]), {})[row["copy"]] = row
        said = "its commits are others than those of the other replicas, though its entries are the same"
        for (lsid, begin, end), copies in ranges.items():
            votes = {copy: (row["raw"], row["first_version"], row["last_version"]) for copy, row in copies.items()}
            for losers in self._sides(lsid, votes, None)[1:]:
                for copy in losers:
                    self._fault(begin, end, lsid, copy, Fault.CHAIN, said)

    # Density

    def _judge_density(self) -> None:
        """Every position exactly once; of a log stream that nobody could read nothing is known here."""
        best = self._best_copies()
        if any(self._begin < end and lsid not in best for lsid, end in self._rules.ends.items()):
            return
        taken = [np.zeros((0, 2), np.int64)]
        for lsid, copy in best.items():
            is_best = pc.and_(pc.equal(self._spans["copy"], copy), pc.equal(self._spans["log_stream"], lsid))
            mine = self._spans.filter(is_best)
            taken.append(np.column_stack([mine["begin"].to_numpy(), mine["end"].to_numpy()]))
        spans = np.concatenate(taken)
        spans = spans[spans[:, 1] > self._first]
        spans[:, 0] = np.maximum(spans[:, 0], self._first)
        spans = spans[np.argsort(spans[:, 0], kind="stable")]
        reached = np.maximum.accumulate(np.concatenate(([self._first], spans[:, 1])))
        begins = np.concatenate((spans[:, 0], [self._end]))
        gaps = np.flatnonzero(begins > reached)
        for at in gaps[:SPANS_SHOWN].tolist():
            for begin, end in without(int(reached[at]), int(begins[at]), [(b, e) for _, b, e in self._rules.lost]):
                self._fault(begin, end, 0, TOPIC, Fault.NOWHERE, "no log stream has these positions")
        for at in np.flatnonzero(spans[:, 0] < reached[:-1])[:SPANS_SHOWN].tolist():
            begin, end = int(spans[at, 0]), int(min(spans[at, 1], reached[at]))
            said = "more than one log stream has these positions, or one of them twice"
            self._fault(begin, end, 0, TOPIC, Fault.TWICE, said)

    def _best_copies(self) -> dict[int, int]:
        """Of each log stream the copy that differs least."""
        lost: dict[tuple[int, int], int] = {}
        for row in self._cells:
            if row["copy"] != ARCHIVE:
                key = row["log_stream"], row["copy"]
                lost[key] = lost.get(key, 0) + ((row["copy"], row["log_stream"], row["begin"]) in self._lost)
        best: dict[int, int] = {}
        order = sorted(lost, key=lambda key: (lost[key], key[::-1] not in self._rules.members, key))
        for lsid, copy in order:
            best.setdefault(lsid, copy)
        return best

    # Plots

    def _tell_buckets(self) -> None:
        """Sums over the parts of the log that are drawn as one point; `positions` counts cells that differ."""
        width, first = self._rules.bucket_positions, self._rules.first
        sums: dict[tuple[int, int, int], list[int]] = {}
        for row in self._cells:
            key = row["copy"], row["log_stream"], row["begin"]
            bucket = sums.setdefault((key[0], key[1], max(key[2] - key[2] % width, first)), [0, 0, 0])
            bucket[0] += row["rows"]
            bucket[1] += row["bytes"]
            bucket[2] += key in self._lost
        for (copy, lsid, begin), (rows, size, differing) in sums.items():
            row = {"kind": Kind.BUCKET.value, "copy": copy, "log_stream": lsid, "slice": self._begin, "begin": begin}
            self._told.append(row | {"rows": rows, "bytes": size, "positions": differing})


def without(begin: int, end: int, lost: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
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
