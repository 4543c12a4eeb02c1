"""Disks run full: the log goes on with those that have space; with too few of them appends fail clearly, reads go on,
and nothing acknowledged is lost; once there is space again and the nodes were restarted, appends go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import pytest

import varlog
from tests.cluster.cluster import Cluster, Files
from tests.cluster.load import large_batches
from tests.cluster.recorder import RecordedLog, judge
from varlog.errors import DiskFull
from varlog.sim.history import History, Kind, Outcome

PATIENCE = 3.0
"""Long enough for a client to find out why nothing is appended."""


async def live_through_full_disks(directory: Path) -> None:
    history, batches = History(monotonic), large_batches()
    async with Cluster(directory, files=Files.FILLABLE, streams=1) as cluster:
        second, third = cluster.nodes[1:]
        async with varlog.connect(cluster.path) as log:
            client = RecordedLog("client", log, history)
            cluster.full_marker(second.name).touch()
            while 2 in (await cluster.sets()).get(1, (2,)):
                assert await client.append(next(batches), seconds=PATIENCE)
            cluster.full_marker(third.name).touch()
            while await client.append(next(batches), seconds=PATIENCE):
                pass
            assert history.of(Kind.APPEND)[-1].error == "DiskFull"
        async with varlog.connect(cluster.path) as log:
            with pytest.raises(DiskFull, match=r"storage node 3 has no space left on .*; free space there and restart"):
                await log.append(b"rejected", timeout=PATIENCE)
            reader = RecordedLog("reader", log, history)
            await reader.scan(1, await reader.tail() + 1)
            assert history.of(Kind.SCAN)[-1].outcome is Outcome.OK
            for node in (second, third):
                cluster.full_marker(node.name).unlink()
                assert await node.stop() == 0
                await node.start()
            assert await reader.append([b"after"])
        await cluster.settled()
        assert set((await cluster.stop()).values()) == {0}
        judge(await cluster.evidence(history), directory)


def test_M8_full_disks(tmp_path: Path) -> None:
    asyncio.run(live_through_full_disks(tmp_path / "cluster"))
