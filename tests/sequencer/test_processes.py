"""`vsq` as a process: appends go on with another sequencer, with the same one started again, and beside one that was
away and does not know that it was replaced."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import varlog
from varlog.processes import Daemon, LocalCluster


def test_S1_appends_outlive_their_sequencers(tmp_path: Path) -> None:
    async def test() -> None:
        async with LocalCluster(tmp_path, ordering="sequencer", sequencers=2) as cluster:
            by_address = {daemon.address: daemon for daemon in cluster.sequencers}
            async with varlog.connect(cluster.path, timeout=30) as log, varlog.admin(cluster.path) as operator:

                async def named() -> Daemon:
                    (topic,) = await operator.topics()
                    assert topic.projection is not None
                    return by_address[topic.projection.sequencer]

                written = [await log.append(b"before")]
                first = await named()
                await first.kill()
                written.append(await log.append(b"with the other one"))
                second = await named()
                assert second is not first
                second.send(signal.SIGSTOP)
                await first.start()
                written.append(await log.append(b"with the first one, started again"))
                assert await named() is first
                second.send(signal.SIGCONT)
                written.append(await log.append(b"with one back that was replaced"))
                assert await first.stop() == 0
                written.append(await log.append(b"after one that ended in good order"))
                positions = [receipt.glsn for receipt in written]
                assert positions == sorted(set(positions))
                assert [entry.glsn async for batch in log.scan(1, positions[-1] + 1) for entry in batch] == positions
                assert await health(second) == "ok"

    asyncio.run(test())


async def health(daemon: Daemon) -> str:
    """What it says of itself."""

    def ask() -> str:
        try:
            with urlopen(f"http://{daemon.http}/healthz", timeout=10) as answer:
                said: bytes = answer.read()
        except HTTPError as error:
            said = error.read()
        return str(json.loads(said)["status"])

    return await asyncio.to_thread(ask)
