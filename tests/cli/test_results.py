"""How rows of a query are printed: exact for programs, harmless for terminals."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from varlog.cli.output import Output
from varlog.cli.results import WIDEST, Bytes, print_csv, print_json, print_table
from varlog.errors import BadQuery

Printer = Callable[[pa.Table, Bytes, Output], None]
TIME = datetime(2026, 1, 31, 12, 30, 0, 5, UTC)


def printed(
    capture: pytest.CaptureFixture[bytes], printer: Printer, columns: dict[str, list[Any]], form: Bytes = Bytes.TEXT
) -> str:
    printer(pa.table(columns), form, Output(json=printer is print_json))
    return capture.readouterr().out.decode()


def test_a_table_has_titles_and_numbers_to_the_right(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    told = printed(capfdbinary, print_table, {"glsn": [1, 100], "payload": [b"one", None]})
    assert told == "glsn  payload\n   1  one\n 100  NULL\n"


def test_a_table_does_nothing_to_a_terminal(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    told = printed(capfdbinary, print_table, {"a\x1b": [b"\x1b[2J\n\t", b"\xff\x00", "é\u202e".encode(), b"x" * 500]})
    lines = told.splitlines()
    assert lines[:4] == ["a\\x1b", "\\x1b[2J\\n\\t", "0xff00", "é\\u202e"]
    assert lines[4] == "x" * (WIDEST - 1) + "…"


def test_json_is_exact(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    there = timezone(timedelta(hours=2))
    columns = {
        "n": [1, None],
        "d": [Decimal("12.50"), Decimal("-0.01")],
        "t": pa.array([TIME, TIME.astimezone(there)], pa.timestamp("us", "UTC")),
        "day": [date(2026, 1, 31), None],
        "b": [b"line\nline", b"\xff"],
        "s": [{"x": b"\xfe", "y": [1, 2]}, None],
    }
    first, second = map(json.loads, printed(capfdbinary, print_json, columns).splitlines())
    assert first == {
        "n": 1,
        "d": 12.5,
        "t": "2026-01-31T12:30:00.000005Z",
        "day": "2026-01-31",
        "b": "line\nline",
        "s": {"x": "0xfe", "y": [1, 2]},
    }
    assert second == {"n": None, "d": -0.01, "t": first["t"], "day": None, "b": "0xff", "s": None}


def test_csv_is_exact(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    told = printed(capfdbinary, print_csv, {"n": [1, None], "b": [b'say "hi",\nyes', b"\xff"], "l": [[1, 2], []]})
    assert told == 'n,b,l\n1,"say ""hi"",\nyes","[1,2]"\n,0xff,[]\n'


@pytest.mark.parametrize(("form", "shown"), [(Bytes.TEXT, "hi"), (Bytes.HEX, "6869"), (Bytes.BASE64, "aGk=")])
def test_bytes_are_shown_as_asked_for(capfdbinary: pytest.CaptureFixture[bytes], form: Bytes, shown: str) -> None:
    for printer in (print_table, print_csv):
        assert printed(capfdbinary, printer, {"b": [b"hi"]}, form).splitlines() == ["b", shown]
    assert json.loads(printed(capfdbinary, print_json, {"b": [b"hi"]}, form)) == {"b": shown}


def test_columns_of_the_same_name(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    print_table(twice, Bytes.TEXT, Output(json=False))
    print_csv(twice, Bytes.TEXT, Output(json=False))
    assert capfdbinary.readouterr().out == b"n  n\n1  2\nn,n\n1,2\n"
    with pytest.raises(BadQuery, match="two columns are named 'n'"):
        print_json(twice, Bytes.TEXT, Output(json=True))


def test_no_rows(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    nothing = {"n": pa.array([], pa.int64())}
    assert printed(capfdbinary, print_table, nothing) == "n\n"
    assert printed(capfdbinary, print_csv, nothing) == "n\n"
    assert printed(capfdbinary, print_json, nothing) == ""


def test_many_rows_of_csv_come_in_pieces(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    told = printed(capfdbinary, print_csv, {"n": list(range(50_000))})
    assert told.splitlines() == ["n", *map(str, range(50_000))]
