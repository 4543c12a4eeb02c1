"""Judging a slice: votes, the archive's side, commits and density, by rows as tasks would have found them."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from varlog.pipeline.audit_findings import ARCHIVE, TOPIC, Fault
from varlog.pipeline.audit_judging import Rules, Run, judge_slice, without
from varlog.pipeline.audit_rows import FOUND, Kind

RULES = Rules(
    begin=1,
    end=101,
    slices={1: 101},
    members=frozenset({(1, 5), (2, 5), (3, 5), (1, 6)}),
    primaries=frozenset({(1, 5), (1, 6)}),
    ends={5: 101, 6: 81},
    lost=(),
    first=1,
    bucket_positions=10,
)


def cell(copy: int, content: bytes, lsid: int = 5, begin: int = 1, raw: bytes = b"", rows: int = 10) -> dict[str, Any]:
    stored = None if copy == ARCHIVE else raw or content
    row = {"kind": "cell", "copy": copy, "log_stream": lsid, "slice": 1, "begin": begin, "end": begin + 50}
    return row | {"rows": rows, "bytes": 100, "content": content, "raw": stored}


def span(copy: int, lsid: int, begin: int, end: int) -> dict[str, Any]:
    return {"kind": "span", "copy": copy, "log_stream": lsid, "slice": 1, "begin": begin, "end": end}


WHOLE = [span(1, 5, 1, 51), span(1, 6, 51, 81), span(1, 5, 81, 101), cell(1, b"other", 6)]
"""Every position once, for tests of something else."""


def judged(*rows: dict[str, Any], rules: Rules = RULES) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = judge_slice(rules, 1, pa.Table.from_pylist(list(rows), schema=FOUND)).to_pylist()
    return told


def runs(*rows: dict[str, Any]) -> list[Run]:
    told = judged(*WHOLE, *rows)
    return [msgspec.json.decode(row["detail"], type=Run) for row in told if row["kind"] == Kind.RUN]


def faults(*rows: dict[str, Any], rules: Rules = RULES) -> list[tuple[int, str, int, int]]:
    told = judged(*rows, rules=rules)
    return [(row["copy"], row["fault"], row["begin"], row["end"]) for row in told if row["kind"] == Kind.FAULT]


def test_all_the_same() -> None:
    cells = [cell(copy, b"x") for copy in (1, 2, 3, ARCHIVE)]
    assert runs(*cells) == []
    assert faults(*WHOLE, *cells) == []


def test_the_greater_number_of_members_is_right() -> None:
    (run,) = runs(cell(1, b"y"), cell(2, b"x"), cell(3, b"x"), cell(7, b"y"), cell(8, b"y"))
    assert (run.winners, run.losers, run.undecided) == ((2, 3), (1, 7, 8), False)


def test_bytes_count_where_entries_are_the_same() -> None:
    (run,) = runs(cell(1, b"x"), cell(2, b"x"), cell(3, b"x", raw=b"other batches"))
    assert (run.winners, run.losers) == ((1, 2), (3,))


def test_of_two_the_archive_tells_who_is_right() -> None:
    (run,) = runs(cell(1, b"y"), cell(2, b"x"))
    assert (run.winners, run.losers, run.undecided) == ((1,), (2,), True)
    (run,) = runs(cell(1, b"y"), cell(2, b"x"), cell(ARCHIVE, b"x"))
    assert (run.winners, run.losers, run.undecided) == ((2,), (1,), False)


def test_the_archive_differs() -> None:
    (run,) = runs(cell(1, b"x"), cell(2, b"x"), cell(ARCHIVE, b"y"))
    assert (run.winners, run.losers) == ((1, 2), (ARCHIVE,))


def test_rows_of_the_archive_where_a_log_stream_has_nothing() -> None:
    assert faults(*WHOLE, cell(1, b"x"), cell(ARCHIVE, b"y", lsid=9)) == [(ARCHIVE, Fault.EXTRA, 1, 51)]
    assert faults(*WHOLE, cell(1, b"x"), cell(ARCHIVE, b"", lsid=9, rows=0)) == []


def test_neighbouring_cells_are_one_run() -> None:
    (run,) = runs(*(cell(copy, b"x" if copy < 3 else b"y", begin=begin) for copy in (1, 2, 3) for begin in (1, 51)))
    assert (run.begin, run.end, run.cells, run.first_end, run.last_begin) == (1, 101, 2, 51, 51)


def test_every_position_exactly_once() -> None:
    cells = [cell(1, b"x"), cell(1, b"x", 6)]
    spans = [span(1, 5, 1, 40), span(1, 6, 45, 81), span(1, 5, 79, 100)]
    assert sorted(faults(*cells, *spans)) == [
        (TOPIC, Fault.NOWHERE, 40, 45),
        (TOPIC, Fault.NOWHERE, 100, 101),
        (TOPIC, Fault.TWICE, 79, 81),
    ]


def test_what_was_declared_lost_is_not_missed() -> None:
    rules = RULES._replace(lost=((6, 42, 44),), ends={5: 101, 6: 42})
    cells = [cell(1, b"x"), cell(1, b"x", 6)]
    spans = [span(1, 5, 1, 40), span(1, 6, 40, 41), span(1, 5, 44, 101)]
    assert faults(*cells, *spans, rules=rules) == [(TOPIC, Fault.NOWHERE, 41, 42)]


def test_nothing_is_missed_where_a_log_stream_was_not_read() -> None:
    assert faults(cell(1, b"x"), span(1, 5, 1, 40)) == []


def test_what_was_trimmed_meanwhile_is_not_judged() -> None:
    trimmed = {"kind": "fault", "copy": 2, "log_stream": 5, "slice": 1, "begin": 1, "end": 51}
    rows = [cell(1, b"x"), cell(2, b"y"), cell(1, b"x", begin=51), cell(2, b"x", begin=51), cell(1, b"x", 6)]
    spans = [span(1, 6, 51, 81), span(1, 5, 81, 101)]
    assert faults(*rows, *spans, trimmed | {"fault": Fault.TRIMMED}) == [(2, Fault.TRIMMED, 1, 51)]


def test_commits_are_compared_where_entries_are_the_same() -> None:
    whole = {"kind": "slice", "log_stream": 5, "slice": 1, "begin": 1, "end": 101, "first_version": 3}
    wholes = [whole | {"copy": copy, "raw": b"c" if copy < 3 else b"d", "last_version": 9} for copy in (1, 2, 3)]
    assert faults(*WHOLE, *(cell(copy, b"x") for copy in (1, 2, 3)), *wholes) == [(3, Fault.CHAIN, 1, 101)]
    assert faults(*WHOLE, cell(1, b"x"), cell(2, b"x"), cell(3, b"y"), *wholes) == []


def test_a_span_without_what_was_lost() -> None:
    assert without(1, 100, [(10, 20), (90, 200)]) == [(1, 10), (20, 90)]
    assert without(1, 100, [(0, 200)]) == []
