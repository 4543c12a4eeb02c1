"""A storage node's disk runs full: appends fail clearly, reads go on, nothing acknowledged is lost; once there is space
again and the node was restarted, appends go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import pytest

import varlog
from tests.cluster.cluster import Cluster, Files
from tests.cluster.recorder import RecordedLog, judge
from varlog.errors import DiskFull
from varlog.sim.history import History, Kind, Outcome

PATIENCE = 3.0
"""Long enough for a client to find out why nothing is appended."""


async def fill(client: RecordedLog) -> None:
    """Append until that fails."""
    number = 1
    while await client.append([f"{number}/".encode() + bytes(20_000)], seconds=PATIENCE):
        number += 1


async def live_through_a_full_disk(directory: Path) -> None:
    history = History(monotonic)
    async with Cluster(directory, files=Files.FILLABLE, streams=1) as cluster:
        node = cluster.nodes[1]
        full = cluster.full_marker(node.name)
        async with varlog.connect(cluster.path) as log:
            client = RecordedLog("client", log, history)
            assert await client.append([b"before"])
            full.touch()
            await fill(client)
            assert history.of(Kind.APPEND)[-1].error == "DiskFull"
        async with varlog.connect(cluster.path) as log:
            with pytest.raises(DiskFull, match=r"storage node 2 has no space left on .*; free space there and restart"):
                await log.append(b"rejected", timeout=PATIENCE)
            reader = RecordedLog("reader", log, history)
            await reader.scan(1, await reader.tail() + 1)
            assert history.of(Kind.SCAN)[-1].outcome is Outcome.OK
            full.unlink()
            assert await node.stop() == 0
            await node.start()
            assert await reader.append([b"after"])
        await cluster.settled()
        assert set((await cluster.stop()).values()) == {0}
        judge(cluster.evidence(history), directory)


def test_M8_a_full_disk(tmp_path: Path) -> None:
    asyncio.run(live_through_a_full_disk(tmp_path / "cluster"))
