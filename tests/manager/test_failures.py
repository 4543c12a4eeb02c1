"""Failures and repair over real sockets and files: the log goes on without a node, and takes it or another in again."""

from __future__ import annotations

import asyncio
import shutil
import socket
from pathlib import Path

import pytest

from tests.daemon.small import TOPIC, Small, cluster, run, until
from varlog import errors, storagenode
from varlog.core.messages import (
    AddNode,
    AddTopic,
    CreateStream,
    Diagnose,
    Diagnosis,
    DrainNode,
    MoveReplica,
    RemoveNode,
)
from varlog.core.world import DEAD_AFTER
from varlog.manager import server
from varlog.types import LogStreamID, StorageNodeID, StreamStatus, TopicID
from varlog.wire import Link
from varlog.wire.endpoint import parse_address


async def goes_on(small: Small, sequence: int) -> float:
    """Append until it is taken; how long that took, in seconds."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        await small.running()
        try:
            if (await small.append(b"x", sequence=sequence)).code == 0:
                return loop.time() - began
        except errors.VarlogError:
            await until(lambda: small.managers[0].is_connected)


def members(small: Small) -> list[int]:
    """The nodes that the log stream runs on."""
    (stream,) = small.streams()
    return sorted(stream.replicas) if stream.status is StreamStatus.RUNNING else []


@pytest.mark.parametrize("which", ["primary", "backup"])
def test_M6_the_log_goes_on_without_a_node_that_died_and_takes_it_in_again(which: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            await small.append(b"a")
            (stream,) = small.streams()
            number = next(n for n in (1, 2, 3) if (n == stream.primary) == (which == "primary"))
            epoch = stream.epoch
            await small.stop_node(number)
            await until(lambda: small.streams()[0].epoch > epoch)
            assert await goes_on(small, 2) < 1.3
            assert number not in members(small)
            assert (await small.append(b"y" * 1000, sequence=3)).code == 0
            await small.start_node(number)
            await until(lambda: members(small) == [1, 2, 3])
            assert (await small.append(b"z", sequence=4)).glsn == 4

    run(main())


class Patient(Link):
    """Would wait for an hour before it dials again."""

    first_wait = longest_wait = 3600.0


@pytest.mark.parametrize("which", [0, 1])
def test_M6_a_backup_that_is_back_is_dialled_at_once(
    which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            await small.append(b"a")
            (stream,) = small.streams()
            backup = [snid for snid in stream.replicas if snid != stream.primary][which]
            address = small.nodes[backup].address
            await small.stop_node(backup)
            await until(lambda: backup not in members(small))
            assert await goes_on(small, 2) < 1.3
            await small.start_node(backup, listen=address)
            await until(lambda: members(small) == [1, 2, 3])
            assert (await small.append(b"b", sequence=3)).glsn == 3

    monkeypatch.setattr(storagenode.server, "Link", Patient)
    run(main())


def test_a_spare_takes_the_place_of_a_node_that_stays_away(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            await small.start_vmr()
            await small.start_manager(replace_after=1.0)
            for number in (1, 2, 3, 4):
                await small.start_node(number)
            await small.add_nodes()
            await small.add_topic(factor=3)
            await small.append(b"a")
            gone = members(small)[0]
            spare = ({1, 2, 3, 4} - {*members(small)}).pop()
            await small.stop_node(gone)
            await until(lambda: spare in members(small))
            assert gone not in members(small)
            assert (await small.append(b"b", sequence=2)).glsn == 2

    run(main())


def test_a_drained_node_is_replaced_and_may_go(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=4, streams=0) as small:
            await small.add_topic(factor=3)
            await small.append(b"a")
            drained = members(small)[0]
            await small.manage(lambda request: DrainNode(request, StorageNodeID(drained)))
            await until(lambda: drained not in members(small) and len(members(small)) == 3)
            await small.manage(lambda request: RemoveNode(request, StorageNodeID(drained)))
            assert (await small.append(b"b", sequence=2)).glsn == 2

    run(main())


def test_a_replica_is_moved(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=4, streams=0) as small:
            await small.add_topic(factor=3)
            await small.append(b"a")
            leaving, joining = members(small)[0], ({1, 2, 3, 4} - {*members(small)}).pop()
            await small.manage(
                lambda request: MoveReplica(request, LogStreamID(1), StorageNodeID(joining), StorageNodeID(leaving))
            )
            await until(lambda: joining in members(small) and leaving not in members(small))
            assert len(members(small)) == 3
            assert (await small.append(b"b", sequence=2)).glsn == 2

    run(main())


def test_B11_a_node_that_lost_its_disk_gets_a_new_secret_and_everything_else_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            assert (await small.append(b"a")).glsn == 1
            address = small.nodes[3].address
            await small.stop_node(3)
            shutil.rmtree(small.path / "node-3-0")
            await small.start_node(3, listen=address)
            await until(lambda: members(small) == [1, 2])
            await until(lambda: members(small) == [1, 2, 3])
            (known,) = [node for node in (await small.metadata()).nodes if node.snid == 3]
            assert known.generation == 2
            assert (await small.append(b"b", sequence=2)).glsn == 2
            (replica,) = (await small.info(3)).replicas
            assert replica.committed_end >= 2

    run(main())


def test_B11_a_node_that_lost_its_disk_and_its_place_is_added_again(tmp_path: Path) -> None:
    """Nobody believes one that cannot prove who it is where it is: a person says so."""

    async def main() -> None:
        async with cluster(tmp_path) as small:
            assert (await small.append(b"a")).glsn == 1
            before = small.nodes[3].address
            await small.stop_node(3)
            keeper = socket.create_server(parse_address(before))  # nobody else shall get it
            shutil.rmtree(small.path / "node-3-0")
            node = await small.start_node(3)
            await until(lambda: members(small) == [1, 2])
            assert (await small.append(b"b", sequence=2)).glsn == 2
            (known,) = [known for known in (await small.metadata()).nodes if known.snid == 3]
            assert (known.address, known.generation) == (before, 1)
            await until(lambda: small.managers[0].answering == [1, 2])
            assert await small.manage(lambda request: AddNode(request, node.address)) == 3
            await until(lambda: members(small) == [1, 2, 3])
            (known,) = [known for known in (await small.metadata()).nodes if known.snid == 3]
            assert (known.address, known.generation) == (node.address, 2)
            keeper.close()

    run(main())


def test_rule15_a_corrupt_replica_is_made_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            await small.append(b"a" * 5000)
            (hosted,) = small.nodes[3].replicas
            hosted.executor.on_corrupt()
            await until(lambda: members(small) == [1, 2])
            await until(lambda: members(small) == [1, 2, 3])
            (replica,) = (await small.info(3)).replicas
            assert replica.healthy
            assert (await small.append(b"b", sequence=2)).glsn == 2

    run(main())


def test_rule15_a_damaged_replica_that_cannot_be_removed_is_told_of_and_a_spare_takes_its_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            await small.start_vmr()
            await small.start_manager(replace_after=5.0)
            for node in (1, 2, 3, 4):
                await small.start_node(node)
            await small.add_nodes()
            await small.add_topic(factor=3)
            await small.append(b"a")
            number = members(small)[0]
            spare = ({1, 2, 3, 4} - {*members(small)}).pop()
            directory = Path(small.volumes(number)[0]) / "cid=3" / f"snid={number}" / "lsid=1"
            await small.stop_node(number)
            for segment in directory.glob("*.seg"):
                segment.unlink()
            (directory / "lost+found").mkdir()
            await small.start_node(number)
            await until(lambda: spare in members(small))
            operator = await small.call_manager()
            told = [finding.what for finding in (await operator.ask(Diagnosis, Diagnose)).findings]
            assert any(f"node {number} made no replica of it (AlreadyExists: " in what for what in told)

    run(main())


def test_M3_what_was_not_finished_is_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("varlog.manager.server.COLLECT_AFTER", 0.5)

    async def main() -> None:
        async with cluster(tmp_path) as small:
            made = (await small.decide(lambda request: CreateStream(request, TopicID(1)))).value
            await until(lambda: made not in {stream.lsid for stream in small.streams()})
            assert await small.manage(lambda request: AddTopic(request, "new", 0, 0, 2)) > 1
            await small.running(3)

    run(main())


def test_what_is_wrong_and_what_is_done_about_it_is_told_to_who_asks(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            client = await small.call_manager()
            told = await client.ask(Diagnosis, Diagnose)
            assert (told.code, told.doing) == (0, ())
            await small.stop_node(3)
            waits = "log stream 1: has 2 of 3 replicas; node 3 may come back"
            await until(lambda: any(waits in doing for doing in small.managers[0].doing))
            told = await client.ask(Diagnosis, Diagnose)
            assert "node 3" in {finding.subject for finding in told.findings}
            assert any(waits in doing for doing in told.doing)
            await small.stop_vmr()
            late = await small.start_manager()
            stranger = await small.call_manager(late)
            assert (await stranger.ask(Diagnosis, Diagnose)).code == errors.Unreachable.code

    run(main())


def test_a_manager_that_did_not_listen_blames_nobody_for_it(tmp_path: Path) -> None:
    """It was stopped, or had no processor: all the others seem to have been silent for as long."""

    async def main() -> None:
        async with cluster(tmp_path) as small:
            manager = small.managers[0]
            await until(lambda: len(manager.answering) == 3)
            manager._due -= 5.0
            manager._lookout.excuse(-5.0)
            manager._beat()
            world = manager.world()
            assert world is not None
            assert all(not view.is_dead for view in world.views.values())
            assert members(small) == [1, 2, 3]
            assert server.LATE < 1.0

    run(main())


def test_nodes_are_asked_also_while_the_metadata_repository_is_away_and_nobody_is_blamed(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            manager, loop = small.managers[0], asyncio.get_running_loop()
            (stream,) = small.streams()
            silences: list[float] = []

            def is_long_away() -> bool:
                world = manager.world()
                assert world is not None
                silences.extend(view.silent for view in world.views.values())
                return world.metadata_silent > 3.5

            address = small.vmr.address
            await until(lambda: len(manager.answering) == 3)
            await small.stop_vmr()
            await until(is_long_away)
            assert max(silences) < DEAD_AFTER
            await small.start_vmr(address)
            back = loop.time()
            await until(lambda: manager.leads and loop.time() - back > 1.5)
            told = await (await small.call_manager()).ask(Diagnosis, Diagnose)
            assert (told.findings, told.doing) == ((), ())
            assert small.streams()[0].epoch == stream.epoch, "and it was not sealed"

    run(main())


def test_a_topic_of_a_cluster_in_trouble_still_takes_appends_where_it_can(tmp_path: Path) -> None:
    """Two log streams; one replica of one of them fails, and the other is not touched."""

    async def main() -> None:
        async with cluster(tmp_path, streams=2) as small:
            before = {stream.lsid: stream.epoch for stream in small.streams()}
            small.nodes[1].replicas.get(LogStreamID(1)).executor.on_corrupt()  # type: ignore[union-attr]
            await until(lambda: len({s.lsid for s in small.streams() if s.epoch > before[s.lsid]}) == 1)
            assert (await small.append(b"x", lsid=2)).code == 0
            await until(lambda: all(len(stream.replicas) == 3 for stream in small.streams()))
            await small.running(2)
            assert {stream.epoch for stream in small.streams() if stream.lsid == 2} == {before[LogStreamID(2)]}
            assert TOPIC in {topic.name for topic in (await small.metadata()).topics}

    run(main())
