"""The session: what one participant gets wrong is not the end of time for the others."""

from __future__ import annotations

from pathlib import Path

import pytest

import varlog
from tests.client.hand import Hand
from tests.client.rig import run
from tests.client.stage import Stage
from varlog import errors
from varlog.types import StorageNodeID


class Broken(Hand):
    """A participant that cannot be told the time."""

    outstanding = 1

    def tick(self, _now: float) -> None:
        raise ValueError("no such hour")


def test_a_participant_that_raises_ends_what_is_under_way_and_time_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            stage.nodes[StorageNodeID(1)].silent = stage.repositories[0].silent = True
            Broken(log)
            with pytest.raises(errors.Unknown, match="no such hour"):
                await log.append(b"x")
            with pytest.raises(errors.DeadlineExceeded, match="did not answer GetTail"):
                await log.tail(timeout=0.3)

    run(main())
