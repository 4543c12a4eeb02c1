"""Transactions, for every log: both orderings, simulated, in one process, and of real processes."""

from __future__ import annotations

import pytest

from tests.conformance.rigs import BLOCK, LogUnderTest
from varlog import errors


def data(log: LogUnderTest) -> list[bytes]:
    return [entry for _, entry in log.committed(1, log.tail() + 1)]


def test_what_is_committed_is_seen_at_its_own_positions(log: LogUnderTest) -> None:
    log.append(b"before")
    transaction = log.begin("job")
    first = transaction.append(*[b"one"] * BLOCK)
    between = log.append(b"between")
    second = transaction.append(b"two")
    end = transaction.commit()
    assert second < end
    found = log.another().committed(1, log.tail() + 1)
    assert found == sorted(
        [(1, b"before"), *((first + each, b"one") for each in range(BLOCK)), (between, b"between"), (second, b"two")]
    )


def test_a_range_has_what_a_commit_beyond_it_makes_visible(log: LogUnderTest) -> None:
    transaction = log.begin("job")
    first = transaction.append(b"one")
    for _ in range(2 * BLOCK):
        log.append(b"others")
    assert transaction.commit() > first + 1
    assert log.committed(first, first + 1) == [(first, b"one")]


def test_what_is_aborted_is_passed_over(log: LogUnderTest) -> None:
    transaction = log.begin("job")
    transaction.append(b"never")
    log.append(b"plain")
    transaction.abort()
    assert data(log) == [b"plain"]


def test_a_later_attempt_fences_an_earlier_one(log: LogUnderTest) -> None:
    older = log.begin("job")
    older.append(b"older")
    younger = log.another().begin("job")
    older.append(b"too late")
    with pytest.raises(errors.TransactionAborted):
        older.commit()
    younger.append(b"younger")
    younger.commit()
    other = log.begin("another name")
    other.append(b"not fenced")
    other.commit()
    assert data(log) == [b"younger", b"not fenced"]


def test_a_number_is_committed_once(log: LogUnderTest) -> None:
    for number in (1, 2):
        transaction = log.begin("job", number)
        transaction.append(b"%d" % number)
        glsn = transaction.commit()
        with pytest.raises(errors.AlreadyCommitted) as caught:
            log.another().begin("job", number)
        assert caught.value.glsn == glsn
        with pytest.raises(errors.AlreadyCommitted):
            log.begin("job", 1)
    assert data(log) == [b"1", b"2"]
