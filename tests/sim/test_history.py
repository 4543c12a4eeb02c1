"""The history: what is noted, in which order, and to JSON and back."""

from __future__ import annotations

import math

import pytest

from varlog.sim.history import History, Kind, Outcome


def test_operations_begin_pending_and_end_once() -> None:
    time = [1.0]
    history = History(lambda: time[0])
    append = history.invoke("w", Kind.APPEND, 1, payloads=[b"a", b"b"])
    assert (append.outcome, append.completed) == (Outcome.PENDING, math.inf)
    time[0] = 2.0
    history.ok(append, glsn=5, lsid=3, epoch=2)
    assert (append.outcome, append.invoked, append.completed) == (Outcome.OK, 1.0, 2.0)
    with pytest.raises(ValueError, match="ended already"):
        history.unknown(append, "DeadlineExceeded")


def test_stamps_are_strictly_increasing_while_the_clock_stands() -> None:
    history = History(lambda: 1.0)
    first = history.invoke("w", Kind.TAIL, 1)
    history.ok(first, glsn=1)
    second = history.invoke("w", Kind.TAIL, 1)
    history.failed(second, "Trimmed", first=4)
    stamps = [first.invoked, first.completed, second.invoked, second.completed]
    assert stamps == sorted(set(stamps))
    assert math.isclose(stamps[-1], 1.0)


def test_json_lines_and_back() -> None:
    history = History(iter(range(100)).__next__)
    read = history.invoke("r", Kind.READ, 1, position=3)
    history.ok(read, payloads=[b"\x00\xff"])
    subscription = history.invoke("s", Kind.SUBSCRIBE, 1, position=2)
    history.deliver(subscription, 2, [b"x", b"y"])
    rejected = history.invoke("w", Kind.APPEND, 1, payloads=[b"z"])
    history.rejected(rejected, "Sealed")
    lines = history.to_json_lines()
    assert lines.count(b"\n") == 4
    assert History.from_json_lines(lines).operations == history.operations
    assert [op.parent for op in history.of(Kind.DELIVERY)] == [subscription.id]
    assert str(rejected) == "append #4 of w [4.000000-5.000000] rejected"
