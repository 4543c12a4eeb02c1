"""An operator's calls, on a cluster in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

import varlog
from tests.client.rig import run
from varlog import errors
from varlog.daemon.config import StorageNodeConfig
from varlog.oneprocess import EmbeddedCluster
from varlog.storage.files import OSFileSystem
from varlog.storagenode.server import StorageNodeServer
from varlog.types import StreamStatus


def test_M1_nodes_are_added_described_and_removed(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = await EmbeddedCluster.start(tmp_path, nodes=1)
        volume = tmp_path / "another"
        volume.mkdir()
        config = StorageNodeConfig(
            secret_file=str(tmp_path / "secret"),
            snid=77,
            volumes=[str(volume)],
            listen="127.0.0.1:0",
            metadata_repository=cluster.address,
            http=None,
        )
        node = await StorageNodeServer.start(config, OSFileSystem(), lambda _: None)
        async with varlog.admin(tmp_path) as admin:
            assert [known.snid for known in await admin.nodes()] == [1]
            assert await admin.add_node(node.address) == 77
            assert [known.snid for known in await admin.nodes()] == [1, 77]
            info = await admin.node(77)
            assert (info.snid, info.address, info.replicas) == (77, node.address, ())
            assert [known.path for known in info.volumes] == [str(volume)]
            (replica,) = (await admin.node(1)).replicas
            assert (replica.lsid, replica.healthy) == (1, True)
            assert await admin.add_node(node.address) == 77, "to ask twice changes nothing"
            with pytest.raises(errors.Conflict, match="has replicas"):
                await admin.remove_node(1)
            with pytest.raises(errors.VarlogError):
                await admin.add_node("127.0.0.1:1")
            await admin.remove_node(77)
            assert [known.snid for known in await admin.nodes()] == [1]
            with pytest.raises(errors.UnknownNode):
                await admin.remove_node(77)
            with pytest.raises(errors.UnknownNode):
                await admin.node(77)
        await node.stop()
        await cluster.stop()

    run(main())


def test_M2_topics_and_log_streams_run_when_the_call_returns(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = await EmbeddedCluster.start(tmp_path)
        async with varlog.admin(tmp_path) as admin:
            topic = await admin.add_topic("orders", replication_factor=2, streams=2)
            assert (topic.name, topic.replication_factor) == ("orders", 2)
            assert [known.name for known in await admin.topics()] == ["log", "orders"]
            streams = await admin.streams("orders")
            assert [(s.tpid, s.status, len(s.replicas)) for s in streams] == [(topic.tpid, StreamStatus.RUNNING, 2)] * 2
            third = await admin.add_stream("orders", nodes=[3, 1])
            assert (third.status, set(third.replicas)) == (StreamStatus.RUNNING, {1, 3})
            assert len(await admin.streams()) == 4
            async with varlog.connect(tmp_path, topic="orders") as log:
                assert {(await log.append(b"x")).log_stream for _ in range(6)} == {s.lsid for s in (*streams, third)}
            metadata = await admin.metadata()
            assert metadata.manager == cluster.manager.address
            await admin.remove_topic("orders")
            assert [known.name for known in await admin.topics()] == ["log"]
        await cluster.stop()

    run(main())


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = await EmbeddedCluster.start(tmp_path, nodes=1)
        async with varlog.admin(tmp_path) as admin:
            for call, error in (
                (admin.add_topic("log"), errors.AlreadyExists),
                (admin.add_topic(""), errors.InvalidArgument),
                (admin.remove_topic("none"), errors.UnknownTopic),
                (admin.add_stream("none"), errors.UnknownTopic),
                (admin.streams("none"), errors.UnknownTopic),
                (admin.remove_stream(99), errors.UnknownLogStream),
                (admin.add_stream("log", nodes=[9]), errors.VarlogError),
            ):
                with pytest.raises(error):
                    await call
        with pytest.raises(errors.Closed):
            await admin.nodes()
        await cluster.stop()

    run(main())
