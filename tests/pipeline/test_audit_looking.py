"""A closer look at a cell: what is said of two lists of entries that are not the same."""

from __future__ import annotations

from hashlib import sha256

import pytest
from msgspec.structs import replace

from varlog.pipeline.audit_findings import Fault, spans_of
from varlog.pipeline.audit_judging import Run, joined
from varlog.pipeline.audit_looking import Row, Rows, compare, looks_at


def row(glsn: int, payload: bytes, llsn: int = 0, time: int = 7) -> Row:
    return Row(glsn, llsn or glsn, time, len(payload), sha256(payload).digest(), payload)


def rows(*payloads: bytes, first: int = 10) -> Rows:
    return Rows([row(first + number, payload) for number, payload in enumerate(payloads)], [])


def found(right: Rows, held: Rows) -> list[tuple[Fault, int, int]]:
    return [finding[:3] for finding in compare(right, held, 10, 20)]


LOG = rows(b"a", b"b", b"c", b"d", b"e", b"f")


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (rows(b"a", b"b", b"c", b"d"), [(Fault.MISSING, 14, 16)]),
        (rows(b"a", b"b", b"c", b"d", b"e", b"f", b"g"), [(Fault.EXTRA, 16, 17)]),
        (rows(b"a", b"c", b"b", b"d", b"e", b"f"), [(Fault.SWAPPED, 11, 13)]),
        (rows(b"c", b"d", b"a", b"b", b"e", b"f"), [(Fault.SWAPPED, 10, 14)]),
        (rows(b"a", b"b", b"a", b"b", b"e", b"f"), [(Fault.DUPLICATED, 12, 14)]),
        (rows(b"a", b"b", b"C", b"d", b"e", b"f"), [(Fault.CHANGED, 12, 13)]),
        (rows(b"a", b"b", b"ccc", b"d", b"e", b"f"), [(Fault.CHANGED, 12, 13)]),
        (Rows([*LOG.rows[:3], *LOG.rows[2:]], []), [(Fault.DUPLICATED, 12, 13)]),
        (Rows([*LOG.rows[:2], LOG.rows[3], LOG.rows[2], *LOG.rows[4:]], []), [(Fault.SWAPPED, 12, 14)]),
        (Rows([*LOG.rows[:3], *(r._replace(llsn=r.llsn - 1) for r in LOG.rows[3:])], []), [(Fault.LLSN, 13, 16)]),
        (Rows([LOG.rows[0]._replace(time=8), *LOG.rows[1:]], []), [(Fault.DIFFERS, 10, 11)]),
    ],
)
def test_what_differs_is_named(held: Rows, expected: list[tuple[Fault, int, int]]) -> None:
    assert found(LOG, held) == expected


def test_a_bit_is_counted() -> None:
    ((_, _, _, said),) = compare(rows(b"abc"), rows(b"abb"), 10, 11)
    assert said == "1 bit differs, the first in byte 2"


def test_the_same_entries_in_other_batches_are_found_too() -> None:
    other = [(10, 10, 6, 1, 1, 7, b"x")], [(10, 10, 3, 1, 1, 7, b"y"), (13, 13, 3, 1, 1, 7, b"z")]
    one, two = (LOG._replace(batches=list(batches)) for batches in other)
    assert found(one, two) == [(Fault.DIFFERS, 10, 14)]


def test_neighbours_in_which_the_same_copies_differ_are_one() -> None:
    cells = [Run(1, (2,), (1, 3), False, begin, begin + 10, 1, begin + 10, begin) for begin in (10, 20, 30, 50)]
    cells.append(replace(cells[0], log_stream=2))
    runs = joined(reversed(cells))
    assert [(run.log_stream, run.begin, run.end, run.cells) for run in runs] == [
        (1, 10, 40, 3),
        (1, 50, 60, 1),
        (2, 10, 20, 1),
    ]
    assert [(look.log_stream, look.begin, look.known) for look in looks_at(runs, None, {1: 55, 2: 15}, 60)] == [
        (1, 10, 20),
        (2, 10, 15),
        (1, 30, 40),
        (1, 50, 55),
    ]


def test_spans() -> None:
    assert spans_of([1, 2, 3, 7, 8, 10]) == [(1, 4), (7, 9), (10, 11)]
