"""The demo's events, what is made of them, and its pictures."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from matplotlib.image import imread

from varlog.demo.analysis import Analysis, Fingerprint, fingerprint_of
from varlog.demo.events import event
from varlog.demo.plots import Mark, draw
from varlog.demo.proof import Record

TIME = 1_763_000_000.0


def test_no_two_events_are_equal_and_all_kinds_come_up() -> None:
    events = [event(writer, number) for writer in range(1, 5) for number in range(1, 5001)]
    assert len(set(events)) == len(events)
    decoded = [json.loads(data) for data in events]
    kinds = Counter(one["kind"] for one in decoded)
    assert [kind for kind, _ in kinds.most_common()] == ["view", "cart", "order", "refund"]
    assert all((one["cents"] > 0) == (one["kind"] == "order") for one in decoded)
    assert all((one["cents"] < 0) == (one["kind"] == "refund") for one in decoded)


def test_a_fingerprint_tells_logs_apart() -> None:
    seen = [(1, b"a"), (2, b"b"), (3, b"c")]
    same = fingerprint_of(Record(read=[seen]))
    assert same == fingerprint_of(Record(read=[list(seen), []]))
    for other in (seen[:2], [(1, b"b"), (2, b"a"), (3, b"c")], [(1, b"a"), (2, b"b"), (4, b"c")]):
        assert fingerprint_of(Record(read=[other])) != same


@pytest.mark.parametrize("live", [True, False], ids=["with a live part", "all in the archive"])
def test_pictures_are_drawn(live: bool, tmp_path: Path) -> None:
    pulse = [(TIME, True, 10), (TIME + 0.25, True, 5), *([(TIME + 0.25, False, 5)] if live else [])]
    along = {writer: [(0, 0.0), (10, 5.0 * writer), (20, -3.0)] for writer in range(1, 5)}
    analysis = Analysis([], Fingerprint(20, 1), pulse, along)
    directory = tmp_path / "new" / "a path with spaces"
    drawn = draw(analysis, [Mark(TIME + 0.1, "kill -9 vsn2")], 16 if live else 21, directory)
    assert [path.name for path in drawn] == ["pulse.png", "order.png"]
    for path in drawn:
        height, width = imread(path).shape[:2]
        assert (width, height) == (1080, 504)
