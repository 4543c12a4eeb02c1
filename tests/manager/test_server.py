"""The manager: what operators ask of it (M1, M2), over real sockets and files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.proxy import BreakingProxy
from tests.daemon.small import CID, TOPIC, Small, cluster, run, until
from tests.storagenode.gated import GatedFileSystem
from varlog import errors, limits
from varlog.core.messages import (
    AddLogStream,
    AddNode,
    AddStream,
    AddTopic,
    CreateTopic,
    GetInfo,
    GetMetadata,
    Managed,
    Message,
    RemoveNode,
    RemoveStream,
    RemoveTopic,
    ReplicaReply,
    Report,
    SealStream,
    TrimTopic,
)
from varlog.manager.daemon import health
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID, StreamStatus, TopicID, Version
from varlog.wire import Ping, Pong, Role


def directories(small: Small) -> dict[int, list[str]]:
    """The log streams on every node's disk."""
    return {
        number: sorted(path.name for path in small.path.glob(f"node-{number}-*/cid=*/snid=*/lsid=*"))
        for number in range(1, 4)
    }


MISUSES: list[Message] = [
    GetMetadata(9),
    GetInfo(9),
    CreateTopic(9, "mine", 1, 1),
    SealStream(9, LogStreamID(1), Epoch(2)),
    AddLogStream(9, TopicID(1), LogStreamID(1)),
    TrimTopic(9, TopicID(1), GLSN(1)),
    Report(StorageNodeID(1), 1, 1, Version(0), (), full=True, ask=True),
    Managed(9, 0),
]


def test_who_asks_for_what_it_may_not_is_closed_and_nobody_else_notices(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            bystander = await small.call_manager()
            for message in MISUSES:
                bad = await small.call_manager()
                bad.connection.send(message)
                assert isinstance(await bad.ended, errors.ProtocolError), message
            assert (await bystander.ask(Pong, Ping)).time > 0
            unknown = await bystander.ask(Managed, lambda request: RemoveTopic(request, "nothing"))
            assert unknown.code == errors.UnknownTopic.code
            for role in (Role.MANAGER, Role.STORAGE_NODE, Role.METADATA_REPOSITORY):
                with pytest.raises(errors.WrongRole):
                    await small.call(small.managers[0].address, Role.MANAGER, role, 1)

    run(main())


def test_M1_a_node_is_seen_once_it_was_added(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=2, streams=0) as small:
            node = await small.start_node(3)
            assert [known.snid for known in (await small.metadata()).nodes] == [1, 2]
            assert await small.add_node(node) == 3
            known = (await small.metadata()).nodes[-1]
            assert (known.snid, known.address, known.volumes) == (3, node.address, tuple(small.volumes(3)))
            assert await small.add_node(node) == 3, "adding it again changes nothing"
            await small.add_topic()
            assert [sorted(stream.replicas) for stream in small.streams()] == [[1, 2, 3]]  # by who has most room

    run(main())


def test_M1_a_node_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1, streams=0) as small:
            stranger = await small.start_node(2, cluster=CID + 1)
            with pytest.raises(errors.WrongCluster, match=f"cluster {CID + 1}"):
                await small.add_node(stranger)
            assert [known.snid for known in (await small.metadata()).nodes] == [1]

    run(main())


def test_M1_what_is_no_storage_node_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=0, streams=0) as small:
            await until(lambda: small.managers[0].is_connected)
            for address, error in (
                (small.vmr.address, errors.WrongRole),
                ("127.0.0.1:1", errors.Unreachable),
                ("nowhere", errors.InvalidArgument),
                ("x" * 1_000_000, errors.InvalidArgument),
            ):
                with pytest.raises(error) as refused:
                    await small.manage(lambda request, address=address: AddNode(request, address))  # type: ignore[misc]
                assert len(str(refused.value)) <= limits.MAX_DETAIL
            assert not (await small.metadata()).nodes

    run(main())


def test_M1_an_id_belongs_to_one_node(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1, streams=0) as small:
            impostor = await small.start_node(2, snid=1, metadata_repository="127.0.0.1:1")
            with pytest.raises(errors.AlreadyExists, match="registered already, at"):
                await small.add_node(impostor)

    run(main())


def test_M1_a_node_leaves_when_it_has_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            with pytest.raises(errors.Conflict, match=r"has replicas of log streams \[1\]"):
                await small.manage(lambda request: RemoveNode(request, StorageNodeID(2)))
            await small.manage(lambda request: RemoveTopic(request, TOPIC))
            assert await small.manage(lambda request: RemoveNode(request, StorageNodeID(2))) == 2
            await until(lambda: small.managers[0].answering == [1, 3])
            with pytest.raises(errors.UnknownNode):
                await small.manage(lambda request: RemoveNode(request, StorageNodeID(2)))
            assert await small.add_node(small.nodes[2]) == 2, "and may come back"
            await small.add_topic()

    run(main())


def test_M2_a_topic_and_its_log_streams_are_made_and_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, streams=0) as small:
            await small.add_topic(streams=4)
            metadata = await small.metadata()
            (topic,) = metadata.topics
            assert (topic.name, topic.replication_factor, topic.min_replicas) == (TOPIC, 3, 2)
            assert [stream.volumes for stream in metadata.streams] == [
                tuple(small.volumes(snid)[0] for snid in stream.replicas) for stream in metadata.streams
            ]
            assert len({stream.primary for stream in metadata.streams}) == 3, "primaries are spread"
            for stream in metadata.streams:
                assert (await small.append(b"x", lsid=stream.lsid, writer=stream.lsid)).code == 0
            assert await small.manage(lambda request: AddStream(request, TOPIC)) == 5
            await small.running(5)
            with pytest.raises(errors.AlreadyExists):
                await small.manage(lambda request: AddTopic(request, TOPIC, 0, 0, 1))

    run(main())


NONSENSE: list[tuple[Callable[[int], Message], type[errors.VarlogError]]] = [
    (lambda request: AddTopic(request, "", 0, 0, 1), errors.InvalidArgument),
    (lambda request: AddTopic(request, "two\nlines", 0, 0, 1), errors.InvalidArgument),
    (lambda request: AddTopic(request, "x" * 5_000_000, 0, 0, 1), errors.InvalidArgument),
    (lambda request: AddTopic(request, "a", 0, 0, 0), errors.InvalidArgument),
    (lambda request: AddTopic(request, "a", -5, 0, 1), errors.InvalidArgument),
    (lambda request: AddTopic(request, "a", 4, 0, 1), errors.Conflict),
    (lambda request: AddTopic(request, "a", 2, 3, 1), errors.InvalidArgument),
    (lambda request: AddStream(request, "b"), errors.UnknownTopic),
    (lambda request: AddStream(request, TOPIC, (StorageNodeID(1),)), errors.InvalidArgument),
    (lambda request: AddStream(request, TOPIC, tuple(map(StorageNodeID, (1, 1, 1)))), errors.InvalidArgument),
    (lambda request: AddStream(request, TOPIC, tuple(map(StorageNodeID, (1, 2, 9)))), errors.UnknownNode),
    (lambda request: RemoveTopic(request, "b" * 5_000_000), errors.UnknownTopic),
    (lambda request: RemoveStream(request, LogStreamID(-1)), errors.UnknownLogStream),
    (lambda request: RemoveNode(request, StorageNodeID(1 << 60)), errors.UnknownNode),
]


def test_M2_what_makes_no_sense_is_refused_in_a_few_words(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            for build, error in NONSENSE:
                with pytest.raises(error) as refused:
                    await small.manage(build)
                assert 0 < len(str(refused.value)) <= limits.MAX_DETAIL
            assert [topic.name for topic in (await small.metadata()).topics] == [TOPIC]
            assert directories(small) == {1: ["lsid=1"], 2: ["lsid=1"], 3: ["lsid=1"]}

    run(main())


def test_M2_a_node_takes_only_so_many_log_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LOG_STREAMS_PER_NODE", 2)

    async def main() -> None:
        async with cluster(tmp_path, streams=2) as small:
            with pytest.raises(errors.LimitExceeded):
                await small.manage(lambda request: AddStream(request, TOPIC))
            assert directories(small) == {number: ["lsid=1", "lsid=2"] for number in (1, 2, 3)}
            running = [stream.status for stream in small.streams() if stream.status is StreamStatus.RUNNING]
            assert len(running) == 2

    run(main())


def test_M2_a_node_that_goes_away_while_it_is_asked_is_told_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            disk = GatedFileSystem()
            await small.start(nodes=2, streams=0)
            await small.start_node(3, disk)
            await small.add_nodes()
            await small.add_topic()
            disk.deletions.close()
            removal = asyncio.ensure_future(small.manage(lambda request: RemoveTopic(request, TOPIC)))
            await until(lambda: disk.deletions.waiting == 1)
            stopping = asyncio.ensure_future(small.stop_node(3))
            began = asyncio.get_running_loop().time()
            await removal
            assert asyncio.get_running_loop().time() - began < 2, "sooner than the deadline of an answer"
            disk.deletions.open()
            await stopping
            assert directories(small) == {1: [], 2: [], 3: []}

    run(main())


def test_a_log_stream_that_holds_entries_stays(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, streams=2) as small:
            await small.append(b"x", b"y")
            with pytest.raises(errors.Conflict, match="holds entries up to 2; trim topic 'log' first"):
                await small.manage(lambda request: RemoveStream(request, LogStreamID(1)))
            assert (await small.append(b"z", sequence=2)).glsn == 3, "it goes on as if nobody had asked"
            client = await small.call_vmr()
            client.connection.send(TrimTopic(1_000_000, TopicID(1), GLSN(3)))
            await until(lambda: bool(client.heard))
            assert await small.manage(lambda request: RemoveStream(request, LogStreamID(1))) == 1
            assert [stream.lsid for stream in small.streams()] == [2]
            assert directories(small) == {number: ["lsid=2"] for number in (1, 2, 3)}
            assert (await small.append(b"z", lsid=2)).glsn == 4, "positions are not given again"

    run(main())


def test_a_topic_is_removed_with_its_data_where_nodes_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, streams=2) as small:
            await small.append(b"x")
            await small.manage(lambda request: AddTopic(request, "other", 2, 0, 1))
            await small.running(3)
            await small.stop_node(3)
            await until(lambda: small.managers[0].answering == [1, 2])
            await small.manage(lambda request: RemoveTopic(request, TOPIC))
            assert [topic.name for topic in (await small.metadata()).topics] == ["other"]
            found = directories(small)
            assert set(found[1] + found[2]) <= {"lsid=3"}
            assert set(found[3]) >= {"lsid=1", "lsid=2"}, "of a node that does not answer it stays"
            await small.start_node(3)
            assert await small.manage(lambda request: AddTopic(request, TOPIC, 2, 0, 1)) == 3
            await until(lambda: [s.status for s in small.streams() if s.lsid == 4] == [StreamStatus.RUNNING])
            assert (await small.append(b"new", lsid=4)).glsn == 1, "a topic of the same name begins anew"

    run(main())


def test_a_topic_is_removed_also_where_no_replica_of_it_should_be_any_more(tmp_path: Path) -> None:
    """As on a node that was just drained, whose data would be removed later, and by nobody if the topic is gone."""

    async def main() -> None:
        async with cluster(tmp_path, streams=0) as small:
            await small.manage(lambda request: AddTopic(request, TOPIC, 2, 0, 1))
            await small.running(1)
            (stream,) = small.streams()
            (left,) = {1, 2, 3} - set(stream.replicas)
            node = await small.call_node(left, Role.MANAGER, 7)
            add = partial(AddLogStream, tpid=stream.tpid, lsid=stream.lsid)
            assert (await node.ask(ReplicaReply, add)).code == 0
            assert directories(small) == {number: ["lsid=1"] for number in (1, 2, 3)}
            (manager,) = small.managers
            await until(lambda: any(info.replicas for snid, info in manager.infos.items() if snid == left))
            await small.manage(lambda request: RemoveTopic(request, TOPIC))
            assert directories(small) == {1: [], 2: [], 3: []}

    run(main())


def test_the_health_and_the_metrics_of_a_manager(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            (manager,) = small.managers
            await until(lambda: manager.answering == [1, 2, 3])
            told = health(manager)
            assert told.status == "ok"
            assert told.details["storage_nodes"] == [1, 2, 3]
            assert (told.details["silent"], told.details["address"]) == ([], manager.address)
            assert manager.steps > 3
            await small.stop_node(2)
            await until(lambda: health(manager).status == "degraded")
            assert health(manager).details["silent"] == [2]
            await small.start_node(2)
            await until(lambda: health(manager).status == "ok")
            await small.stop_vmr()
            await until(lambda: not manager.is_connected)
            assert health(manager).status == "disconnected"
            assert health(manager).details["silent"] == []

    run(main())


def test_a_manager_goes_on_asking_the_nodes_while_the_metadata_repository_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            await small.start_vmr()
            async with await BreakingProxy.start(small.vmr.address) as proxy:
                manager = await small.start_manager(metadata_repository=proxy.address)
                await small.start_node(1)
                await small.add_nodes()
                await until(lambda: health(manager).status == "ok")
                proxy.block()
                await until(lambda: health(manager).status == "disconnected")
                assert health(manager).details["metadata_repository"] == f"{proxy.address}: does not answer"
                assert manager.answering == [1]
                await proxy.heal()
                await until(lambda: health(manager).status == "ok")
                await small.stop_manager(manager)
                await proxy.wait_until(lambda: not proxy.connections)

    monkeypatch.setattr(limits, "NODE_LEASE_SECONDS", 3.0)
    run(main())
