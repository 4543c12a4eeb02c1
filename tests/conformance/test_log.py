"""One suite for every log: both orderings, simulated, in one process, and of real processes.

What an application may rely on is said here once, in the words of the requirements, and holds for all of them.
"""

from __future__ import annotations

import pytest

from tests.conformance.rigs import BLOCK, LogUnderTest
from varlog import errors


def numbered(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


def test_L1_positions_begin_at_1_and_follow_each_other(log: LogUnderTest) -> None:
    assert [log.append(entry) for entry in numbered(1, 6)] == [1, 2, 3, 4, 5]
    assert log.scan(1) == list(enumerate(numbered(1, 6), 1))


def test_L1_what_was_acknowledged_before_an_append_began_stands_before_it(log: LogUnderTest) -> None:
    other = log.another()
    positions = [each.append(b"in turn") for _ in range(10) for each in (log, other)]
    assert positions == sorted(set(positions))


def test_L1_every_reader_sees_the_same_entry_at_the_same_position(log: LogUnderTest) -> None:
    other = log.another()
    positions = log.append_all(numbered(0, 30)) + other.append_all(numbered(30, 60))
    seen = log.scan(1)
    assert seen == other.scan(1)
    assert [other.read(glsn) for glsn, _ in seen] == [data for _, data in seen]
    assert dict(seen) == dict(zip(positions, numbered(0, 60), strict=True))


def test_a_pipeline_keeps_its_order(log: LogUnderTest) -> None:
    positions = log.append_all(numbered(0, 5 * BLOCK))
    assert positions == sorted(set(positions))
    assert [data for _, data in log.scan(1)] == numbered(0, 5 * BLOCK)


def test_a_batch_has_positions_that_follow_each_other(log: LogUnderTest) -> None:
    batches = [numbered(0, 3), numbered(3, 4), numbered(4, 4 + BLOCK), numbered(20, 25)]
    for batch in batches:
        begin = log.append(*batch)
        assert log.scan(begin, begin + len(batch)) == list(enumerate(batch, begin))
    assert [data for _, data in log.scan(1)] == [entry for batch in batches for entry in batch]


def test_a_scan_begins_and_ends_anywhere(log: LogUnderTest) -> None:
    log.append(*numbered(1, 6))
    log.append(*numbered(6, 9))
    assert log.scan(3, 7) == list(enumerate(numbered(3, 7), 3))
    assert log.scan(8, 9) == [(8, b"8")]


def test_L6_a_subscription_delivers_in_order_from_any_position(log: LogUnderTest) -> None:
    log.append_all(numbered(1, 41))
    assert log.follow(1, 40) == list(enumerate(numbered(1, 41), 1))
    assert log.follow(17, 10) == list(enumerate(numbered(17, 27), 17))


def test_the_tail_counts_every_append_that_was_acknowledged(log: LogUnderTest) -> None:
    other = log.another()
    assert (log.tail(), log.first()) == (0, 1)
    for _ in range(5):
        begin = log.append(b"one", b"two")
        assert other.tail() >= begin + 1


def test_L5_trim_deletes_up_to_a_position_and_says_where_the_log_begins(log: LogUnderTest) -> None:
    log.append_all(numbered(1, 31))
    assert log.trim(12) == 12
    assert log.first() == 13
    with pytest.raises(errors.Trimmed) as trimmed:
        log.read(12)
    assert trimmed.value.first == 13
    with pytest.raises(errors.Trimmed):
        log.scan(5)
    assert log.scan(13) == list(enumerate(numbered(13, 31), 13))
    assert log.trim(3) == 12, "trim points only grow"


def test_rule24_positions_that_were_filled_hold_no_entry_and_are_passed_over(log: LogUnderTest) -> None:
    log.append(b"before")
    begin = log.append_fill(5)
    after = log.append(b"after")
    assert log.scan(1) == [(1, b"before"), (after, b"after")]
    assert log.follow(1, 2) == [(1, b"before"), (after, b"after")]
    for glsn in range(begin, begin + 5):
        with pytest.raises(errors.Filled):
            log.read(glsn)


def test_entries_of_any_size_come_back_as_they_were(log: LogUnderTest) -> None:
    entries = [b"", b"x", bytes(range(256)) * 4096, b"\0" * 100]
    positions = [log.append(entry) for entry in entries]
    assert [log.read(glsn) for glsn in positions] == entries
