"""How long a command waits for what the manager does."""

from __future__ import annotations

import asyncio

import pytest

from varlog.cli import following
from varlog.cli.following import Patience
from varlog.cli.options import Cluster
from varlog.errors import DeadlineExceeded


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which passes when the test says so."""
    now = [0.0]
    monkeypatch.setattr(following, "monotonic", lambda: now[0])
    monkeypatch.setattr(following, "LOOK_AGAIN", 0.0)
    return now


def wait(patience: Patience, state: object) -> None:
    asyncio.run(patience.moment(state, "it is not done yet"))


def test_it_waits_as_long_as_something_moves(clock: list[float]) -> None:
    patience = Patience(Cluster())
    for state in range(10):
        wait(patience, state)
        clock[0] += following.STALL_SECONDS
    wait(patience, 10)


def test_it_does_not_wait_for_what_does_not_move(clock: list[float]) -> None:
    patience = Patience(Cluster())
    wait(patience, "here")
    clock[0] += following.STALL_SECONDS
    wait(patience, "here")
    clock[0] += 0.1
    with pytest.raises(DeadlineExceeded, match="it is not done yet, and nothing has moved for 60 s; see varlog doctor"):
        wait(patience, "here")


def test_a_timeout_is_kept_whatever_moves(clock: list[float]) -> None:
    patience = Patience(Cluster(timeout=5.0))
    wait(patience, 1)
    clock[0] += 5.1
    with pytest.raises(DeadlineExceeded, match="it is not done yet; the manager goes on with it"):
        wait(patience, 2)
