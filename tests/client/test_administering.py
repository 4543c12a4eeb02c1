"""An operator's calls, on a cluster in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import varlog
from tests.client.rig import pass_time, run
from varlog import errors
from varlog.core.messages import Metadata
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


def test_a_topic_may_begin_at_a_later_position(tmp_path: Path) -> None:
    """As the one that a trimmed topic is restored into."""

    async def main() -> None:
        cluster = await EmbeddedCluster.start(tmp_path)
        async with varlog.admin(tmp_path) as admin:
            topic = await admin.add_topic("restored", streams=2, first=1_000_001)
            assert (topic.hwm, topic.trim) == (1_000_000, 1_000_000)
            async with varlog.connect(tmp_path, topic="restored") as log:
                assert (await log.first(), await log.tail()) == (1_000_001, 1_000_000)
                assert [batch async for batch in log.scan(1_000_001)] == []
                results = [await log.append_batch([b"%d" % number] * 2) for number in range(4)]
                assert [result.glsn for result in results] == [1_000_001, 1_000_003, 1_000_005, 1_000_007]
                assert {result.llsn for result in results} == {1, 3}, "of each log stream they begin at 1"
                found = [entry.data async for entry in log.subscribe(1_000_001, end=1_000_009)]
                assert found == [b"0", b"0", b"1", b"1", b"2", b"2", b"3", b"3"]
                for position in (1, 1_000_000):
                    with pytest.raises(errors.Trimmed, match="begins at 1000001"):
                        await log.read(position)
                await admin.add_stream("restored")
                assert await log.trim(1_000_003) == 1_000_003
            for wrong in (0, -1, 1 << 63):
                with pytest.raises(errors.InvalidArgument, match=r"first is .*, it must be a position"):
                    await admin.add_topic("wrong", first=wrong)
        await cluster.stop()
        cluster = await EmbeddedCluster.start(tmp_path)
        async with varlog.connect(tmp_path, topic="restored") as log:
            assert (await log.first(), await log.tail()) == (1_000_004, 1_000_008)
            assert (await log.append(b"behind it")).glsn == 1_000_009
            assert (await log.read(1_000_004)).data == b"1"
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


# What operators do with what is there


Check = Callable[[Metadata], bool]


async def reached(admin: varlog.Admin, check: Check) -> Metadata:
    """The metadata once it is as it should be; the test's own deadline ends the waiting."""
    while not check(metadata := await admin.metadata()):
        await pass_time(0.02)
    return metadata


def on(lsid: int, *snids: int) -> Check:
    """A log stream runs on these nodes, and nothing more is wanted of it."""

    def check(metadata: Metadata) -> bool:
        (stream,) = [stream for stream in metadata.streams if stream.lsid == lsid]
        wanted = (stream.joining, stream.leaving in stream.replicas) == (0, False)
        return stream.status is StreamStatus.RUNNING and set(stream.replicas) == set(snids) and wanted

    return check


async def filled(path: Path, topic: str = "log", count: int = 20) -> None:
    async with varlog.connect(path, topic=topic) as log:
        for number in range(count):
            await log.append(b"%d" % number)


async def assert_filled(path: Path, topic: str = "log", count: int = 20) -> None:
    async with varlog.connect(path, topic=topic) as log:
        found = [data async for batch in log.scan() for data in batch.payloads()]
        assert found == [b"%d" % number for number in range(count)]


def test_a_node_is_drained_and_removed(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = await EmbeddedCluster.start(tmp_path, nodes=4)
        async with varlog.admin(tmp_path) as admin:
            (before,) = await admin.streams()
            leaver, spare = before.replicas[0], ({1, 2, 3, 4} - set(before.replicas)).pop()
            await filled(tmp_path)
            assert (await admin.drain_node(leaver)).is_draining
            await reached(admin, on(1, *before.replicas[1:], spare))
            assert (await admin.drain_node(leaver)).is_draining, "to ask twice changes nothing"
            assert not (await admin.undrain_node(leaver)).is_draining
            await admin.remove_node(leaver)
            assert leaver not in {node.snid for node in await admin.nodes()}
        await assert_filled(tmp_path)
        await cluster.stop()

    run(main())


def test_a_drain_without_a_spare_leaves_a_replica_less(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = await EmbeddedCluster.start(tmp_path, nodes=3)
        async with varlog.admin(tmp_path) as admin:
            await filled(tmp_path)
            await admin.drain_node(2)
            await reached(admin, on(1, 1, 3))
            with pytest.raises(errors.Conflict, match="log stream 1 needs 2 replicas"):
                await admin.drain_node(3)
            await admin.undrain_node(2)
            await reached(admin, on(1, 1, 2, 3))
        await assert_filled(tmp_path)
        await cluster.stop()

    run(main())


def test_a_node_takes_the_place_of_another(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = await EmbeddedCluster.start(tmp_path, nodes=4, streams=2)
        async with varlog.admin(tmp_path) as admin:
            first = next(stream for stream in await admin.streams() if stream.lsid == 1)
            leaver, spare = first.replicas[1], ({1, 2, 3, 4} - set(first.replicas)).pop()
            second = next(stream for stream in await admin.streams() if stream.lsid == 2)
            if {leaver, spare} <= set(second.replicas):
                await admin.remove_stream(2)
            await filled(tmp_path)
            assert 1 in [stream.lsid for stream in await admin.replace_node(leaver, spare)]
            await reached(admin, on(1, *(set(first.replicas) - {leaver}), spare))
            await reached(admin, lambda metadata: all(leaver not in s.replicas for s in metadata.streams))
            assert await admin.replace_node(leaver, spare) == [], "to ask twice changes nothing"
            with pytest.raises(errors.InvalidArgument):
                await admin.replace_node(spare, spare)
        await assert_filled(tmp_path)
        await cluster.stop()

    run(main())


def test_a_dead_node_is_replaced_and_removed(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = await EmbeddedCluster.start(tmp_path, nodes=4)
        async with varlog.admin(tmp_path) as admin:
            (before,) = await admin.streams()
            leaver, spare = before.replicas[2], ({1, 2, 3, 4} - set(before.replicas)).pop()
            await filled(tmp_path)
            await cluster.nodes[leaver - 1].stop()
            await reached(admin, on(1, *(set(before.replicas) - {leaver})))
            await admin.replace_node(leaver, spare)
            await reached(admin, on(1, *(set(before.replicas) - {leaver}), spare))
            await admin.remove_node(leaver)
        await assert_filled(tmp_path)
        await cluster.stop()

    run(main())


def test_a_replica_is_moved_while_appends_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = await EmbeddedCluster.start(tmp_path, nodes=4)
        async with varlog.admin(tmp_path) as admin, varlog.connect(tmp_path) as log:
            (before,) = await admin.streams()
            leaver, spare = before.replicas[0], ({1, 2, 3, 4} - set(before.replicas)).pop()
            moved = asyncio.Event()

            async def write() -> int:
                count = 0
                while not moved.is_set():
                    await log.append(b"%d" % count)
                    count += 1
                return count

            writing = asyncio.ensure_future(write())
            stream = await admin.move_replica(1, to=spare, away_from=leaver)
            assert stream.lsid == 1
            await reached(admin, on(1, *(set(before.replicas) - {leaver}), spare))
            moved.set()
            count = await writing
            await assert_filled(tmp_path, count=count)
            with pytest.raises(errors.Conflict, match="as its topic wants"):
                await admin.move_replica(1, to=leaver)
            with pytest.raises(errors.UnknownNode):
                await admin.move_replica(1, to=9)
            assert (await admin.move_replica(1)).joining == 0, "to give up nothing is no mistake"
        await cluster.stop()

    run(main())


def test_M5_a_log_stream_is_sealed_and_unsealed(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = await EmbeddedCluster.start(tmp_path)
        async with varlog.admin(tmp_path) as admin:
            await filled(tmp_path)
            for _ in range(2):
                sealed = await admin.seal_stream(1)
                assert (sealed.status, sealed.is_held) == (StreamStatus.SEALED, True)
            async with varlog.connect(tmp_path) as log:
                with pytest.raises(errors.VarlogError):
                    await log.append(b"no", timeout=0.5)
            await assert_filled(tmp_path)
            running = await admin.unseal_stream(1)
            assert (running.status, running.is_held) == (StreamStatus.RUNNING, False)
            with pytest.raises(errors.Conflict, match="was not sealed by an operator"):
                await admin.unseal_stream(1)
            with pytest.raises(errors.UnknownLogStream):
                await admin.seal_stream(9)
            async with varlog.connect(tmp_path) as log:
                assert (await log.append(b"yes")).glsn == 21
        await cluster.stop()

    run(main())


def test_M9_a_replica_that_lacks_nothing_is_synchronised(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = await EmbeddedCluster.start(tmp_path)
        async with varlog.admin(tmp_path) as admin:
            assert await admin.sync_stream(1, 2) == 100
            with pytest.raises(errors.InvalidArgument, match="cannot copy from itself"):
                await admin.sync_stream(1, 2, source=2)
            with pytest.raises(errors.UnknownNode):
                await admin.sync_stream(1, 9)
        await cluster.stop()

    run(main())


def test_what_nobody_has_any_more_is_declared_lost(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = await EmbeddedCluster.start(tmp_path)
        async with varlog.admin(tmp_path) as admin:
            await admin.add_topic("scratch", replication_factor=1)
            (stream,) = await admin.streams("scratch")
            (only,) = stream.replicas
            await filled(tmp_path, "scratch")
            with pytest.raises(errors.Conflict, match="is RUNNING; seal it first"):
                await admin.declare_lost(stream.lsid)
            await cluster.nodes[only - 1].stop()
            await reached(admin, lambda metadata: status_of(metadata, stream.lsid) is StreamStatus.SEALED)
            with pytest.raises(errors.Conflict, match=f"storage node {only} does not answer, and may have"):
                await admin.declare_lost(stream.lsid)
            would = await admin.declare_lost(stream.lsid, gone=[only], dry_run=True)
            assert (await admin.streams("scratch"))[0].lost_end == 0
            lost = await admin.declare_lost(stream.lsid, gone=[only])
            assert lost == would == (1, 21)
            (after,) = await admin.streams("scratch")
            assert (after.lost_begin, after.lost_end, after.is_held) == (1, 21, True)
            assert await admin.declare_lost(stream.lsid, gone=[only]) == lost, "to ask twice changes nothing"
            async with varlog.connect(tmp_path, topic="scratch") as log:
                with pytest.raises(errors.Lost) as told:
                    await log.read(5)
                assert (told.value.begin, told.value.end) == (5, 21)
        await cluster.stop()

    run(main())


def status_of(metadata: Metadata, lsid: int) -> StreamStatus:
    return next(stream.status for stream in metadata.streams if stream.lsid == lsid)


def test_a_cluster_that_is_well_has_nothing_to_tell(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = await EmbeddedCluster.start(tmp_path)
        async with varlog.admin(tmp_path) as admin:
            assert (await admin.diagnose()).findings == ()
        await cluster.stop()

    run(main())
