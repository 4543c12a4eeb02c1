"""A client outlives restarts of everything it talks to, and goes on by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import varlog
from tests.client.rig import run, until
from tests.client.stage import Stage
from varlog.core.messages import Append, GetTail
from varlog.oneprocess import EmbeddedCluster
from varlog.types import Epoch, StorageNodeID
from varlog.wire import Link


def test_the_whole_cluster_is_restarted_and_its_nodes_have_moved(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = await EmbeddedCluster.start(tmp_path)
        address = cluster.address
        async with varlog.connect(tmp_path, timeout=20) as log:
            acknowledged: list[tuple[int, bytes]] = []
            seen: list[tuple[int, bytes]] = []
            stopping = asyncio.Event()

            async def write() -> None:
                while not stopping.is_set():
                    payload = b"%d" % len(acknowledged)
                    result = await log.append(payload)
                    acknowledged.append((result.glsn, payload))

            async def read() -> None:
                async for entry in log.subscribe():
                    if entry.data == b"last":
                        return
                    seen.append((entry.glsn, entry.data))

            tasks = writing, reading = asyncio.ensure_future(write()), asyncio.ensure_future(read())

            async def twenty_more() -> None:
                enough = len(acknowledged) + 20
                await until(lambda: len(acknowledged) >= enough or any(task.done() for task in tasks))
                for task in tasks:
                    if task.done():
                        task.result()

            for _ in range(2):
                await twenty_more()
                await cluster.stop()
                cluster = await EmbeddedCluster.start(tmp_path, listen=address)
            await twenty_more()
            stopping.set()
            await writing
            await log.append(b"last")
            await reading
            assert seen == acknowledged
            assert [glsn for glsn, _ in acknowledged] == list(range(1, len(acknowledged) + 1))
        await cluster.stop()

    run(main(), seconds=60)


def test_what_was_in_flight_on_a_broken_connection_is_sent_again_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            await log.append(b"x")
            node, loop = stage.nodes[StorageNodeID(1)], asyncio.get_running_loop()
            for _ in range(3):
                node.silent = True
                appending = asyncio.ensure_future(log.append(b"y"))
                before = len(node.of(Append))
                await until(lambda least=before: len(node.of(Append)) > least)  # type: ignore[misc]
                node.silent = False
                begun = loop.time()
                node.break_connections()
                await appending
                assert loop.time() - begun < 0.45, "the attempt's timeout was not waited for"
            assert stage.hwm == 4, "each of them once"

    run(main())


def test_a_question_is_asked_again_on_a_new_connection(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            (repository,) = stage.repositories
            repository.silent = True
            asking = asyncio.ensure_future(log.tail())
            await until(lambda: bool(repository.of(GetTail)))
            repository.silent = False
            begun = asyncio.get_running_loop().time()
            repository.break_connections()
            assert await asking == 0
            assert asyncio.get_running_loop().time() - begun < 0.8

    run(main())


def test_a_node_that_comes_back_elsewhere_is_found(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            await log.append(b"x")
            node, loop = stage.nodes[StorageNodeID(1)], asyncio.get_running_loop()
            for glsn in range(2, 6):
                waiting = asyncio.ensure_future(anext(log.subscribe(glsn)))
                await node.stop()
                node.address = "127.0.0.1:0"
                await node.restart()
                stage.version += 1
                begun = loop.time()
                assert (await log.append(b"y")).glsn == glsn
                assert (await waiting).data == b"y"
                assert (await log.read(1)).data == b"x"
                assert loop.time() - begun < 3, "no timeout of a read was waited for"

    run(main())


def test_a_primary_that_is_back_is_dialled_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            await log.append(b"x")
            node = stage.nodes[StorageNodeID(1)]
            await node.stop()
            appending = asyncio.ensure_future(log.append(b"y"))
            await node.restart()
            stage.change(1, epoch=Epoch(4))
            assert (await appending).glsn == 2

    monkeypatch.setattr(Link, "first_wait", 3600.0)
    run(main())


def test_a_node_that_is_listed_nowhere_is_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=2) as stage, varlog.connect(tmp_path) as log:
            stage.write(1, [b"x"])
            gone = stage.nodes.pop(StorageNodeID(2))
            stage.version += 1
            await log.refresh()
            for _ in range(6):
                assert (await log.read(1, timeout=3)).data == b"x"
            stage.change(1, primary=StorageNodeID(2))
            await log.refresh()
            appending = asyncio.ensure_future(log.append(b"y"))
            stage.nodes[StorageNodeID(2)] = gone
            stage.version += 1
            assert (await appending).glsn == 2

    run(main())


def test_an_idle_client_has_no_timer_and_says_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            await log.append(b"x")
            await log.tail()
            await until(lambda: log._session.ticker is None)
            heard = [len(puppet.heard) for puppet in (*stage.repositories, *stage.nodes.values())]
            await until(lambda: log._session.ticker is None)
            assert heard == [len(puppet.heard) for puppet in (*stage.repositories, *stage.nodes.values())]

    run(main())
