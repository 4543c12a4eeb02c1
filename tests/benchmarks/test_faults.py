"""The judgement over runs with faults has teeth, and stalls are what they are called."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks import faults, harness
from benchmarks.faults_load import Ack, Placed, Verdict, compare, first_after, first_answer, longest_stall
from benchmarks.faults_runs import Figures, Outcome

LOG = [Placed(1, (0, 1)), Placed(2, (1, 1)), Placed(3, (0, 2))]
ACKS = [Ack(0.0, 1.0, 1, (0, 1)), Ack(0.0, 1.5, 2, (1, 1)), Ack(1.1, 2.0, 3, (0, 2))]


def wrong(acks: list[Ack], read: list[Placed], seen: list[Placed]) -> tuple[int, int, int]:
    verdict = compare(acks, read, seen)
    return verdict.lost, verdict.repeated, verdict.reordered


def test_what_was_acknowledged_is_there_once_in_order_for_readers_and_subscribers() -> None:
    assert wrong(ACKS, LOG, LOG) == (0, 0, 0)
    assert wrong(ACKS[:2], LOG, LOG) == (0, 0, 0), "what was not acknowledged may be there"
    assert wrong(ACKS, LOG[:2], LOG[:2])[0] == 1
    assert wrong(ACKS, LOG, LOG[:2])[0] == 1, "the subscriber has missed one"
    again = [*LOG, Placed(4, (0, 2))]
    assert wrong(ACKS, again, again)[1] == 1
    assert wrong(ACKS, LOG, [*LOG, LOG[2]])[1] == 1, "the subscriber has seen one twice"
    assert wrong(ACKS, LOG, [LOG[0], LOG[2], LOG[1]])[2] == 1, "the subscriber has seen another order"
    turned = [Placed(1, (0, 2)), Placed(2, (1, 1)), Placed(3, (0, 1))]
    assert wrong([], turned, turned)[2] == 1, "a writer's entries are in its order"
    late = [Ack(0.0, 1.0, 2, (0, 1)), Ack(1.1, 2.0, 1, (1, 1))]
    there = [Placed(1, (1, 1)), Placed(2, (0, 1))]
    assert wrong(late, there, there)[2] == 1, "what began after an acknowledgement comes behind it"


def test_how_long_nothing_was_acknowledged() -> None:
    acks = [Ack(0.0, 1.0, 1, (0, 1)), Ack(0.9, 3.0, 2, (1, 1)), Ack(3.0, 3.5, 3, (0, 2))]
    assert first_answer(acks, 1.5, 1.6) == 2.0, "the second was asked for before the fault"
    assert first_after(acks, 1.5) == 1.5
    assert longest_stall(acks, 0.5, 4.0) == 2.0
    assert longest_stall(acks, 3.5, 5.0) == 1.5, "also if nothing is acknowledged any more"


def test_the_worst_run_counts_and_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    figures = Figures()
    for value, fault in ((0.5, 1.0), (0.7, 2.0), (0.6, 3.0)):
        figures.add(value, fault, [Ack(0.0, fault + value, 1, (0, 1))])
    assert [i for i, count in enumerate(figures.timeline) if count] == [60]
    sync = {"sync-1gb": Figures([100.0, 90.0]), "sync-1gb-limit": Figures([200.0, 100.0])}
    sync["sync-1gb-appends"] = Figures([1.0, 0.95])
    outcomes = {
        "kill": Outcome(Verdict(5, lost=1), {"kill-primary": figures}),
        "sync": Outcome(Verdict(7), sync),
    }
    assert msgspec.json.decode(msgspec.json.encode(outcomes), type=dict[str, Outcome]) == outcomes
    (row,) = faults.seconds_rows(outcomes)
    assert (row.name, row.value, row.met) == ("kill-primary", 0.7, True)
    copied, kept = faults.sync_rows(outcomes["sync"])
    assert (copied.ratio, copied.value, kept.value, kept.met) == (0.5, 100.0, 0.95, True)
    assert [row.met for row in faults.verdict_rows(outcomes)] == [False, True, True]
    faults.draw(outcomes, tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_runs_are_added_to_those_that_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    for asked, more, value in ((None, False, 1.0), (["sync"], True, 3.0), (["sync"], True, 2.0)):
        faults.Kept(asked, more).add("sync", Outcome(Verdict(5), {"row": Figures([value], [int(value)])}))
    faults.Kept(["kill"], False).add("kill", Outcome(Verdict(1), {}))
    kept = faults.Kept(["move"], False).outcomes
    assert list(kept) == ["kill", "sync"]
    assert kept["sync"] == Outcome(Verdict(15), {"row": Figures([1.0, 3.0, 2.0], [3])})
    assert not faults.Kept(None, False).outcomes
