"""A cluster of real processes in a directory: it serves, outlives the loss of one, and is there again next time."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

import varlog
from varlog.processes import LocalCluster, StartFailed


def is_held(address: str) -> bool:
    """Nobody else can have the port, also while nobody listens on it."""
    host, _, port = address.rpartition(":")
    with socket.socket() as other:
        try:
            other.bind((host, int(port)))
        except OSError:
            return True
    return False


def test_a_local_cluster_serves_outlives_a_process_and_starts_again_where_it_was(tmp_path: Path) -> None:
    async def first_life() -> int:
        async with LocalCluster(tmp_path) as cluster, varlog.connect(cluster.path) as log:
            assert len(cluster.nodes) == 3
            before = await log.append(b"before")
            node = cluster.nodes[0]
            address = node.address
            await node.kill()
            assert not node.alive
            assert is_held(address)
            await node.start()
            assert node.address == address
            after = await log.append(b"after", timeout=30)
            assert after.glsn > before.glsn
            return before.glsn

    async def second_life(glsn: int) -> None:
        async with LocalCluster(tmp_path) as cluster, varlog.connect(cluster.path) as log:
            assert (await log.read(glsn)).data == b"before"
        assert not any(daemon.alive for daemon in cluster.daemons)

    glsn = asyncio.run(first_life())
    asyncio.run(second_life(glsn))


def test_a_daemon_that_cannot_start_says_why_and_leaves_nothing_running(tmp_path: Path) -> None:
    async def test() -> None:
        cluster = LocalCluster(tmp_path, nodes=1)
        (tmp_path / "secret").chmod(0o644)
        with pytest.raises(StartFailed, match="secret") as failed:
            await cluster.__aenter__()
        assert "vmr ended with exit code" in str(failed.value)
        assert not any(daemon.alive for daemon in cluster.daemons)

    asyncio.run(test())


def test_daemons_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from varlog.processes import LocalCluster\n"
        "async def main():\n"
        "    async with LocalCluster(sys.argv[1], nodes=1) as cluster:\n"
        "        print(*(daemon.pid for daemon in cluster.daemons), flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )

    async def test() -> None:
        starter = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert starter.stdout is not None
        pids = [int(word) for word in (await starter.stdout.readline()).split()]
        assert len(pids) == 4
        watched = [os.pidfd_open(pid) for pid in pids]
        ends = [asyncio.Event() for _ in pids]
        loop = asyncio.get_running_loop()
        for descriptor, end in zip(watched, ends, strict=True):
            loop.add_reader(descriptor, end.set)
        starter.send_signal(signal.SIGKILL)
        await starter.wait()
        for descriptor, end in zip(watched, ends, strict=True):
            await asyncio.wait_for(end.wait(), 30)
            loop.remove_reader(descriptor)
            os.close(descriptor)

    asyncio.run(test())
