"""A proof that could not fail would prove nothing: each check finds what it is there for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from varlog.demo import proof
from varlog.demo.proof import CHECKS, SHOWN, Record, Sent, judge


def good() -> Record:
    """Two writers, two readers; one entry of unknown outcome that is there, one that is not, one rejected."""
    sent = {
        "a": [Sent(b"a1", 0, 1), Sent(b"a2", 1, 3), Sent(b"a3", 4)],
        "b": [Sent(b"b1", 0, 2), Sent(b"b2", 3), Sent(b"b3", 3, rejected=True)],
    }
    seen = [(1, b"a1"), (2, b"b1"), (3, b"a2"), (4, b"b2")]
    return Record(sent, [seen, list(seen)])


def hole(record: Record) -> None:
    for seen in record.read:
        seen[3] = (5, seen[3][1])


def other_content(record: Record) -> None:
    record.read[1][3] = (4, b"a3")


def short_reader(record: Record) -> None:
    del record.read[1][3]


def lost(record: Record) -> None:
    for seen in record.read:
        seen[2] = (3, b"a3")


def elsewhere(record: Record) -> None:
    record.sent["a"][1].position = 4


def twice(record: Record) -> None:
    for seen in record.read:
        seen.append((5, b"a1"))


def from_nowhere(record: Record) -> None:
    for seen in record.read:
        seen.append((5, b"c1"))


def rejected_and_there(record: Record) -> None:
    for seen in record.read:
        seen.append((5, b"b3"))


def out_of_order(record: Record) -> None:
    record.sent["b"].reverse()


def too_early(record: Record) -> None:
    record.sent["a"][1].floor = 3


def findings(record: Record) -> dict[str, list[str]]:
    return {claim: found for claim, found in judge(record) if found}


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert not findings(good())
    assert [claim for claim, _ in judge(good())] == [(check.__doc__ or "").rstrip(".") for check in CHECKS]


@pytest.mark.parametrize(
    ("break_it", "check"),
    [
        (hole, proof.no_hole),
        (other_content, proof.one_order),
        (short_reader, proof.one_order),
        (lost, proof.nothing_lost),
        (elsewhere, proof.nothing_lost),
        (twice, proof.exactly_once),
        (from_nowhere, proof.exactly_once),
        (rejected_and_there, proof.exactly_once),
        (out_of_order, proof.writers_order),
        (too_early, proof.real_time),
    ],
    ids=lambda value: value.__name__,
)
def test_a_violation_is_found(break_it: Callable[[Record], None], check: Callable[[Record], object]) -> None:
    record = good()
    break_it(record)
    assert (check.__doc__ or "").rstrip(".") in findings(record)


def test_few_of_many_findings_are_told() -> None:
    record = good()
    for seen in record.read:
        seen += [(position, b"c%d" % position) for position in range(5, 100)]
    assert [len(found) for found in findings(record).values()] == [SHOWN]
