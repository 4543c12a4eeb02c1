"""The screen of `varlog status --watch`, drawn on paper: what is on it, and what is left out where there is no room."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from varlog.cli.records import TopicRecord
from varlog.cli.status import ClusterState, CopyState, NodeState, StreamState
from varlog.cli.watching import Look, screen

NODE = NodeState(1, "10.0.0.1:9091", "ok", True, "", 0.0, 3, 50_000_000_000, 100_000_000_000)
AWAY = NodeState(2, "10.0.0.2:9091", "does not answer", False, "refused", 12.0, 1, 0, 0)
STREAM = StreamState(
    1, "orders", "RUNNING", 4, 1, (1, 2, 3), 501, 500, False, 0, 0, 0, 0, 0, 0, wanted=3, behind=0, waiting=0, copies=[]
)  # fmt: skip
STATE = ClusterState(
    True, 17, "10.0.0.9:9093", True, [], [], [], [NODE], [TopicRecord(1, "orders", 1, 500, 1, 3, 2)], [STREAM]
)


def drawn(look: Look, width: int = 100, height: int = 40) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, highlight=False, legacy_windows=False)
    console.print(screen(look, 1.0, height))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    return lines


def look_at(state: ClusterState, error: str = "") -> Look:
    return Look(state, error, {1: 99.0, 2: 87.0}, 99.5, {1: 12_345.6}, {(1, 2): 50.0})


def changed(**fields: object) -> ClusterState:
    return msgspec.structs.replace(STATE, **fields)


def test_a_cluster_that_is_well() -> None:
    lines = drawn(look_at(STATE))
    assert lines[0] == "all is well; metadata version 17, manager at 10.0.0.9:9093"
    shown = "\n".join(lines)
    assert "every 1 s; Ctrl-C ends" in lines[1]
    assert "12,346" in shown, "how fast the topic grows"
    assert "1*, 2, 3" in shown
    assert "the manager has nothing to do" in shown


def test_a_chain_is_well_too_and_shown_from_head_to_tail() -> None:
    chain = msgspec.structs.replace(STREAM, status="CHAINED", replicas=(3, 1, 2), head=3, tail=2)
    away = msgspec.structs.replace(STREAM, id=7, replicas=(1, 2))
    lines = drawn(look_at(changed(streams=[chain, away])))
    at = [number for number, line in enumerate(lines) if "3 > 1 > 2" in line or "1*, 2 " in line]
    assert "3 > 1 > 2" in lines[at[-1]], "who is not well comes first"


def test_who_is_away_and_since_when() -> None:
    shown = "\n".join(drawn(look_at(changed(healthy=False, nodes=[NODE, AWAY], problems=["node 2: " + "x" * 500]))))
    assert "does not answer" in shown
    assert "12 s ago" in shown
    assert "! node 2: xxx" in shown
    assert "…" in shown, "a sentence is one line; the doctor tells all of it"


@pytest.mark.parametrize(
    ("copied", "filled", "left"), [(0, 0, ", 10 s left"), (250, 12, ", 5.0 s left"), (500, 24, "")]
)
def test_a_copy_has_a_bar(copied: int, filled: int, left: str) -> None:
    copying = msgspec.structs.replace(STREAM, replicas=(1, 3), copies=[CopyState(2, 1, copied, 500)])
    (line,) = [line for line in drawn(look_at(changed(streams=[copying])), width=80) if "to node 2" in line]
    assert (line.count("█"), line.count("░")) == (filled, 24 - filled)
    assert line.rstrip().endswith(f"{copied // 5} % to node 2 from node 1{left}")


def test_of_many_log_streams_those_are_shown_that_are_not_well() -> None:
    streams = [msgspec.structs.replace(STREAM, id=number) for number in range(1, 200)]
    streams.append(msgspec.structs.replace(STREAM, id=200, status="SEALED"))
    lines = drawn(look_at(changed(streams=streams)), height=30)
    assert len(lines) <= 30
    assert any("200" in line and "SEALED" in line for line in lines)
    assert any("more" in line for line in lines)


def test_a_cluster_that_cannot_be_asked_is_shown_as_it_was() -> None:
    shown = "\n".join(drawn(look_at(STATE, error="nobody there")))
    assert "the cluster cannot be asked, this is what was seen last: nobody there" in shown
    assert "RUNNING" in shown
    (line,) = drawn(Look(None, "nobody there", {}, 0.0, {}, {}))
    assert line == "the cluster cannot be asked: nobody there"


def test_a_manager_that_is_away_has_nothing_to_say() -> None:
    assert "the manager does not answer: varlog doctor" in drawn(look_at(changed(manager_answers=False)))
