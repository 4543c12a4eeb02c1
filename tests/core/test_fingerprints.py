"""Fingerprints: equal of equal replicas and of no others, whatever they are stored in and wherever one asks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.paperlog import EVERYTHING, PaperLog, paper
from varlog import errors, limits
from varlog.core.fingerprints import Density, Held, fingerprint
from varlog.types import GLSN, LLSN, LogStreamID, Version


def of(log: PaperLog, begin: int = 1, end: int = EVERYTHING, trim: int = 0) -> Held:
    return fingerprint(log, GLSN(trim), GLSN(begin), GLSN(min(end, log.end)))


def three() -> PaperLog:
    return paper((1, 2, 1), (4, 1), (10, 3, 2))


def test_it_says_what_is_there_and_where() -> None:
    held = of(three())
    assert (held.llsn_begin, held.llsn_end, held.batches, held.commits) == (1, 10, 5, 3)
    assert held.spans == ((1, 5), (10, 15))
    assert (held.first_version, held.prev_hwm, held.last_version, held.hwm) == (1, 0, 3, 14)
    assert (held.next_glsn, held.trim) == (0, 0)


def test_it_does_not_depend_on_how_much_is_read_at_once() -> None:
    assert of(paper((1, 2, 1), (4, 1), (10, 3, 2), chunk=1)) == of(three())


def swapped(log: PaperLog) -> None:
    first, second = log.lines[0][-1], log.lines[1][-1]
    log.replace(0, bytes(second))
    log.replace(1, bytes(first))


def another_epoch(log: PaperLog) -> None:
    glsn, llsn, count, _, version, time, content = log.lines[1]
    log.lines[1] = (glsn, llsn, count, 4, version, time, content)


def another_time(log: PaperLog) -> None:
    log.commits[1] = log.commits[1]._replace(time=7)


def another_version(log: PaperLog) -> None:
    log.commits[2] = log.commits[2]._replace(version=Version(9))
    log.lines[3:] = [(*line[:4], 9, *line[5:]) for line in log.lines[3:]]


@pytest.mark.parametrize("change", [swapped, another_epoch, another_time, another_version])
def test_whatever_is_different_shows(change: Callable[[PaperLog], None]) -> None:
    log = three()
    change(log)
    assert (of(log).content, of(log).chain) != (of(three()).content, of(three()).chain)


@pytest.mark.parametrize("begin", range(1, 16))
def test_a_range_may_begin_and_end_anywhere(begin: int) -> None:
    """Batches are hashed whole, entries are counted as far as they lie inside."""
    every = [*range(1, 5), *range(10, 15)]
    for end in range(begin + 1, 17):
        held = of(three(), begin, end)
        inside = [glsn for glsn in every if begin <= glsn < end]
        assert [glsn for first, last in held.spans for glsn in range(first, last)] == inside
        assert held.llsn_end - held.llsn_begin == len(inside)
        if inside:
            assert held.llsn_begin == every.index(inside[0]) + 1
        else:
            assert (held.llsn_begin, held.batches, held.commits) == (0, 0, 0)


def test_who_began_behind_a_trim_point_is_equal_from_there_on() -> None:
    """Rule 14: a copy that began within a commit has the rest of it."""
    log = three()
    log.trimmed = 11
    rest = PaperLog(trimmed=11)
    rest.lines = log.lines[3:]
    rest.commits = [log.commits[2]._replace(llsn_begin=LLSN(7), glsn_begin=GLSN(12), count=3)]
    assert of(rest) == of(log)
    assert of(log).trim == 11
    assert of(log).spans == ((12, 15),)


def test_what_is_trimmed_meanwhile_is_left_out() -> None:
    log = three()
    log.trimmed = 3
    assert of(log, trim=0) == of(log, trim=3)


def test_one_fingerprint_covers_so_much_and_says_where_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FINGERPRINT_COMMITS", 2)
    log = paper(*((1 + 2 * number, 1, 1) for number in range(10)))
    begin, parts = GLSN(1), []
    while begin:
        parts.append(of(log, begin))
        assert of(PaperLog(log.lines, log.commits, chunk=50), begin) == parts[-1], "equal ones stop at the same place"
        begin = parts[-1].next_glsn
    assert sum(part.batches for part in parts) == 20
    for before, after in pairwise(parts):
        assert before.llsn_end == after.llsn_begin
        assert before.last_version == after.first_version or before.hwm <= after.prev_hwm
    monkeypatch.setattr(limits, "FINGERPRINT_BYTES", 1)
    assert (of(log).batches, of(log).next_glsn) == (1, 2)


def test_rule15_damage_is_told_as_damage() -> None:
    log = three()
    log.damaged = 12
    assert of(log, 1, 10).batches == 3
    with pytest.raises(errors.Corrupt):
        of(log)


def hole(log: PaperLog) -> None:
    del log.lines[1]


def commit_gone(log: PaperLog) -> None:
    del log.commits[1]


def commit_beyond_its_hwm(log: PaperLog) -> None:
    log.commits[1] = log.commits[1]._replace(hwm=GLSN(3))


def hwm_going_back(log: PaperLog) -> None:
    log.commits[1] = log.commits[1]._replace(prev_hwm=GLSN(1))


def commits_ending_early(log: PaperLog) -> None:
    log.commits[2] = log.commits[2]._replace(count=3)


@pytest.mark.parametrize("harm", [hole, commit_gone, commit_beyond_its_hwm, hwm_going_back, commits_ending_early])
def test_B9_a_broken_chain_is_a_violation(harm: Callable[[PaperLog], None]) -> None:
    log = three()
    harm(log)
    with pytest.raises(errors.ConsistencyViolation):
        fingerprint(log, GLSN(0), GLSN(1), GLSN(15))


# Density

A, B = LogStreamID(1), LogStreamID(2)


def test_every_position_exactly_once() -> None:
    density = Density(GLSN(1), [A, B])
    density.add(A, [(1, 3), (6, 9)], 9)
    assert density.judged == 1, "the other may have anything"
    density.add(B, [(3, 6)], 7)
    assert density.judged == 9, "what begins below is judged as a whole"
    density.add(B, [(9, 12)], 12)
    density.add(A, [], 12)
    density.end(12)
    assert (density.judged, density.missing, density.twice) == (12, [], [])


def test_what_is_missing_and_what_is_there_twice() -> None:
    density = Density(GLSN(1), [A, B])
    density.add(A, [(2, 5), (5, 8)], 12)
    density.add(B, [(6, 7), (9, 11)], 12)
    density.end(12)
    assert density.missing == [(1, 2), (8, 9), (11, 12)]
    assert density.twice == [(6, 7)]


def test_what_was_declared_lost_is_not_missing() -> None:
    density = Density(GLSN(1), [A], [(3, 6), (20, 30)])
    density.add(A, [(1, 2), (8, 9)], 9)
    assert density.missing == [(2, 3), (6, 8)]
    assert density.lost == 3


def test_what_was_trimmed_meanwhile_is_not_asked_for() -> None:
    density = Density(GLSN(1), [A, B])
    density.add(A, [(4, 8)], 8)
    density.trim(6)
    density.add(B, [], 8)
    assert (density.missing, density.twice, density.judged) == ([], [], 8)


def test_a_topic_without_log_streams_lacks_what_it_is_said_to_have() -> None:
    density = Density(GLSN(5), [])
    density.end(8)
    assert density.missing == [(5, 8)]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=40), st.randoms(use_true_random=False))
def test_density_is_what_counting_gives(deals: list[tuple[int, int]], random: object) -> None:
    """Whatever order the log streams are read in, and whatever was dealt twice or left out."""
    spans: dict[int, list[tuple[int, int]]] = {0: [], 1: [], 2: []}
    counts: dict[int, int] = {}
    at = 1
    for lsid, count in deals:
        begin = max(1, at + random.choice((0, 0, 0, 1, -1)), spans[lsid][-1][1] if spans[lsid] else 1)  # type: ignore[attr-defined]
        spans[lsid].append((begin, begin + count))
        for glsn in range(begin, begin + count):
            counts[glsn] = counts.get(glsn, 0) + 1
        at = begin + count
    end = max(counts, default=0) + 1
    density = Density(GLSN(1), [LogStreamID(lsid) for lsid in spans])
    while any(spans.values()):
        lsid = random.choice([lsid for lsid, left in spans.items() if left])  # type: ignore[attr-defined]
        span = spans[lsid].pop(0)
        density.add(LogStreamID(lsid), [span], span[1])
    for lsid in spans:
        density.add(LogStreamID(lsid), [], end)
    density.end(end)
    missing = {glsn for first, last in density.missing for glsn in range(first, last)}
    twice = {glsn for first, last in density.twice for glsn in range(first, last)}
    assert missing == {glsn for glsn in range(1, end) if glsn not in counts}
    assert twice == {glsn for glsn, count in counts.items() if count > 1}
