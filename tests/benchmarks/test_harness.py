"""The benchmarks' bookkeeping: what a target is held against, and that a missed one is not overlooked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.harness import Row, against_limit, in_turns, report


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (Row("a", 201, "x/s", op=">=", target=200), True),
        (Row("a", 199, "x/s", op=">=", target=200), False),
        (Row("a", 0.2, "s", op="<=", target=0.3), True),
        (Row("a", 0.4, "s", op="<=", target=0.3), False),
        (Row("a", 1000, "MB/s", "plain", 2000, 0.5, ">=", 0.8), False),
        (Row("a", 1000, "MB/s", "plain", 1100, 0.91, ">=", 0.8), True),
        (Row("a", 5, "x/s"), None),
    ],
)
def test_a_target_is_held_against_the_ratio_where_there_is_a_limit(row: Row, met: bool | None) -> None:
    assert row.met is met


def test_value_and_limit_are_compared_within_each_round() -> None:
    """A machine that was slow for one round was slow for both."""
    rounds = [(95.0, 100.0), (9.0, 10.0), (80.0, 100.0)]
    row = against_limit("a", "MB/s", rounds, "plain", ">=", 0.8)
    assert (row.value, row.limit, row.ratio) == (9.0, 10.0, 0.9)


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_a_row_is_one_round_and_does_not_contradict_itself(count: int) -> None:
    rounds = [(70.0, 100.0), (50.0, 40.0), (9.0, 10.0), (30.0, 60.0), (81.0, 90.0)][:count]
    row = against_limit("a", "MB/s", rounds, "plain", ">=", 0.8)
    assert (row.value, row.limit) in rounds
    assert row.limit is not None
    assert row.ratio == row.value / row.limit


def test_measures_take_turns_and_the_first_round_only_warms_up() -> None:
    calls: list[str] = []

    def measure(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    assert in_turns(2, lambda: measure("a"), lambda: measure("b")) == [(3.0, 4.0), (5.0, 6.0)]
    assert calls == ["a", "b"] * 3


def test_the_report_is_written_and_fails_if_a_target_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    rows = [Row("fast", 300, "x/s", op=">=", target=200), Row("watched", 7, "x/s")]
    assert report("some", rows) == 0
    (tmp_path / "some.json").unlink()
    assert report("some", [*rows, Row("slow", 0.4, "s", op="<=", target=0.3)]) == 1
    found = json.loads((tmp_path / "some.json").read_text())
    assert [row["name"] for row in found] == ["fast", "watched", "slow"]
    assert list(found[0]) == ["name", "value", "unit", "limit_name", "limit", "ratio", "op", "target", "note", "met"]
    assert found[1]["target"] is None
    assert [row["met"] for row in found] == [True, None, False]
    assert (tmp_path / "some.png").read_bytes().startswith(b"\x89PNG")
    assert "missed: slow" in capsys.readouterr().out


def test_what_is_unlisted_stands_in_the_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    assert report("some", [Row("listed", 7, "x/s")], [Row("beside", 8, "x/s", note="of little interest")]) == 0
    found = json.loads((tmp_path / "some.json").read_text())
    assert [(row["name"], row["note"]) for row in found] == [("listed", ""), ("beside", "of little interest")]
    printed = capsys.readouterr().out
    assert "listed" in printed
    assert "beside" not in printed


def test_the_picture_shows_rows_without_a_target_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)

    def picture(*rows: Row) -> bytes:
        report("some", rows)
        return (tmp_path / "some.png").read_bytes()

    fast = Row("fast", 300, "x/s", op=">=", target=200)
    alone = picture(fast)
    assert picture(fast) == alone
    assert picture(fast, Row("watched", 7, "x/s")) != alone
    assert picture(fast, Row("watched", 7, "x/s")) != picture(fast, Row("watched", 8, "x/s"))


@pytest.mark.parametrize("value", [0.001, 0.0, -0.04])
def test_a_figure_far_beyond_its_target_leaves_room_for_the_others(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    assert (
        report("some", [Row("much better", value, "ms", op="<=", target=1), Row("just", 1, "ms", op="<=", target=1)])
        == 0
    )
