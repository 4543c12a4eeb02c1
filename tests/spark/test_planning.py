"""How ranges are cut, and what is missing of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from varlog.spark.planning import Extent, Range, split


@st.composite
def _cases(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int, int, list[int]]:
    points = sorted(draw(st.sets(st.integers(1, 10_000), min_size=2, max_size=6)))
    pieces = list(pairwise(points))[::2]
    edges = sorted(draw(st.sets(st.integers(1, 10_000), max_size=20)))
    return pieces, draw(st.integers(1, 3000)), draw(st.integers(0, 50)), edges


@given(_cases())
def test_P1_ranges_cover_the_pieces_without_gap_or_overlap(
    case: tuple[list[tuple[int, int]], int, int, list[int]],
) -> None:
    pieces, most, at_least, edges = case
    ranges = split(pieces, most, at_least, edges)
    assert [n for begin, end, _ in ranges for n in range(begin, end)] == [n for b, e in pieces for n in range(b, e)]
    assert all(0 < end - begin <= most for begin, end, _ in ranges)
    assert len(ranges) >= min(at_least, sum(end - begin for begin, end in pieces))
    assert [range_.affinity for range_ in ranges] == list(range(len(ranges)))


def test_ranges_are_about_equal() -> None:
    assert split([(1, 11)], 4, 0) == [Range(1, 4, 0), Range(4, 7, 1), Range(7, 11, 2)]
    assert split([(1, 10)], 100, 4) == [Range(1, 3, 0), Range(3, 5, 1), Range(5, 7, 2), Range(7, 10, 3)]
    assert split([(1, 3)], 100, 4) == [Range(1, 2, 0), Range(2, 3, 1)]


def test_cuts_are_made_where_the_files_of_an_archive_begin() -> None:
    assert split([(1, 401)], 150, 0, [1, 91, 191, 291]) == [
        Range(1, 91, 0),
        Range(91, 191, 1),
        Range(191, 291, 2),
        Range(291, 401, 3),
    ]


def test_nothing_is_missing_of_what_log_and_archive_have() -> None:
    assert Extent(1, 101).missing(1, 101) == []
    assert Extent(51, 101, (1, 31, 61)).missing(1, 101) == []
    assert Extent(51, 101, (1, 31, 51)).earliest == 1
    assert Extent(51, 101).earliest == 51
    assert Extent(1, 101, (1, 31, 61)).missing(5, 20) == []


def test_what_is_missing_is_named() -> None:
    assert Extent(51, 101).missing(1, 101) == [(1, 51)]
    assert Extent(51, 101).missing(1, 30) == [(1, 30)]
    assert Extent(51, 101, (11, 31, 41)).missing(1, 101) == [(1, 11), (41, 51)]
    assert Extent(51, 101, (11, 31, 41)).missing(45, 101) == [(45, 51)]
    assert Extent(51, 101, (60, 80)).missing(1, 101) == [(1, 51)]
