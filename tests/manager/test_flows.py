"""What comes back by itself: nodes, the manager and the metadata repository end and start again, or move."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.waiting import pause
from tests.daemon.small import TOPIC, Small, cluster, run, until
from varlog import errors
from varlog.core.executor import LogStreamExecutor
from varlog.core.identity import boot_of
from varlog.core.messages import (
    AddLogStream,
    AddStream,
    CreateStream,
    Decided,
    RegisterManager,
    RemoveStream,
    ReplicaReply,
    Scan,
    ScanReply,
    SealStream,
)
from varlog.manager.server import ManagerServer
from varlog.types import GLSN, LogStreamID, ReplicaState, StreamStatus, TopicID
from varlog.wire import Role
from varlog.wire.endpoint import parse_address


async def looks(manager: ManagerServer, count: int = 2) -> None:
    """Wait until a manager has heard from every node so many times more."""
    for _ in range(count):
        before = max(info.request for info in manager.infos.values())
        await until(partial(_all_beyond, manager, before))


def _all_beyond(manager: ManagerServer, request: int) -> bool:
    return all(info.request > request for info in manager.infos.values())


def executor_of(small: Small, number: int) -> LogStreamExecutor:
    """The replica of the only log stream on a node."""
    (replica,) = small.nodes[number].replicas
    assert isinstance(replica.executor, LogStreamExecutor)
    return replica.executor


async def committed(small: Small, end: int) -> None:
    """Wait until every node knows of everything below an LLSN."""
    await until(lambda: all(executor_of(small, number).committed_end == end for number in small.nodes))


async def stays(small: Small, manager: ManagerServer) -> None:
    """All is in order: a manager that looks on has nothing to do."""
    epochs = [stream.epoch for stream in small.streams()]
    steps = manager.steps
    await looks(manager)
    assert manager.steps == steps
    assert [stream.epoch for stream in small.streams()] == epochs


async def read(small: Small, number: int, lsid: int = 1) -> int:
    """How many entries a node serves of a log stream."""
    client = await small.call_node(number)
    reply = await client.ask(ScanReply, lambda request: Scan(request, LogStreamID(lsid), GLSN(1), 1 << 20, True))
    assert reply.code == 0
    return sum(count for _, _, count, *_ in reply.batches)


@pytest.mark.parametrize("which", ["primary", "backup"])
def test_B7_a_node_that_starts_again_is_sealed_and_runs_again_by_itself(which: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            await small.append(b"a", b"b")
            (stream,) = small.streams()
            number = next(n for n in (1, 2, 3) if (n == stream.primary) == (which == "primary"))
            await small.stop_node(number)
            await small.start_node(number)
            assert executor_of(small, number).state is ReplicaState.SEALING
            assert (await small.info(number)).boot == boot_of(1, 2)
            (stream,) = await small.running(beyond=2)
            assert stream.epoch == 4
            assert (await small.append(b"c", sequence=2)).glsn == 3
            await committed(small, 4)
            assert [await read(small, number) for number in (1, 2, 3)] == [3, 3, 3]
            if which == "primary":
                await stays(small, small.managers[0])

    run(main())


def test_B3_a_whole_cluster_that_starts_again_has_everything(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, streams=2) as small:
            for sequence in (1, 2, 3):
                assert (await small.append(b"x", sequence=sequence)).code == 0
            address = small.vmr.address
            await small.stop_manager(small.managers[0])
            for number in (1, 2, 3):
                await small.stop_node(number)
            await small.stop_vmr()
            await small.start_vmr(address)
            for number in (3, 1, 2):
                await small.start_node(number)
            await small.start_manager()
            await small.running(2, beyond=2)
            assert (await small.append(b"y", sequence=4)).glsn == 4
            assert (await small.append(b"y", lsid=2)).glsn == 5
            assert [await read(small, number) for number in (1, 2, 3)] == [4, 4, 4]

    run(main())


def test_M3_a_manager_that_is_gone_is_missed_only_when_something_is_to_be_done(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            await small.stop_manager(small.managers[0])
            assert (await small.append(b"a")).glsn == 1
            await small.stop_node(2)
            await small.start_node(2)
            manager = await small.start_manager()
            await small.running(beyond=2)
            assert (await small.append(b"b", sequence=2)).glsn == 2
            assert (await small.metadata()).manager == manager.address

    run(main())


@pytest.mark.parametrize("status", [StreamStatus.SEALED, StreamStatus.UNSEALING])
def test_M3_a_manager_that_dies_between_two_steps_is_followed_by_another(status: StreamStatus, tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            await small.append(b"a")
            (stream,) = small.streams()
            await small.decide(lambda request: SealStream(request, stream.lsid, stream.epoch))
            await until(lambda: small.streams()[0].status in (status, StreamStatus.RUNNING))
            await small.stop_manager(small.managers[0])
            await small.start_manager()
            await small.running(beyond=2)
            assert (await small.append(b"b", sequence=2)).glsn == 2

    run(main())


def test_M3_a_log_stream_whose_making_was_not_finished_counts_for_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            lsid = LogStreamID((await small.decide(lambda request: CreateStream(request, TopicID(1)))).value)
            for number in (1, 2):  # so far got a manager that has died since
                manager = await small.call_node(number, Role.MANAGER)
                added = await manager.ask(ReplicaReply, lambda request: AddLogStream(request, TopicID(1), lsid))
                assert added.code == 0
            assert (await small.append(b"a")).glsn == 1
            assert await small.manage(lambda request: AddStream(request, TOPIC)) == 3
            await until(lambda: small.streams()[2].status is StreamStatus.RUNNING)
            assert small.streams()[1].status is StreamStatus.CREATING
            assert [replica.lsid for replica in (await small.info(1)).replicas] == [1, 2, 3]
            assert await small.manage(lambda request: RemoveStream(request, LogStreamID(2))) == 2
            for number in (1, 2, 3):
                assert [replica.lsid for replica in (await small.info(number)).replicas] == [1, 3]

    run(main())


def test_M4_of_two_managers_one_acts_and_the_other_takes_over_from_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            first = small.managers[0]
            second = await small.start_manager()
            await until(lambda: second.answering == [1, 2, 3])
            await until(lambda: first.address in second.leader_elsewhere)
            assert (await small.metadata()).manager == first.address
            assert (first.leads, second.leads) == (True, False)
            with pytest.raises(errors.StandBy, match=first.address):
                await small.manage(lambda request: AddStream(request, TOPIC), second)
            assert await small.manage(lambda request: AddStream(request, TOPIC), first) == 2
            await small.running(2)
            await small.stop_node(1)
            await small.stop_manager(first)
            await small.start_node(1)
            await small.running(2, beyond=2)
            assert second.leads
            assert (await small.metadata()).manager == second.address
            assert await small.manage(lambda request: AddStream(request, TOPIC), second) == 3
            await small.running(3)
            await stays(small, second)

    run(main())


def test_M4_a_manager_that_slept_and_was_replaced_does_nothing_when_it_wakes(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            (first,) = small.managers
            assert first._timer is not None
            first._timer.cancel()  # it sleeps
            other = await small.call_vmr(Role.MANAGER)
            register = partial(RegisterManager, address="127.0.0.1:1")
            assert (await other.ask(Decided, register)).code == errors.StandBy.code
            while (await other.ask(Decided, register)).code:
                await pause(0.05)
            await until(lambda: not first.leads)
            with pytest.raises(errors.StandBy):
                await small.manage(lambda request: AddStream(request, TOPIC), first)
            assert len(small.streams()) == 1
            first._beat()
            other.connection.close()
            await until(lambda: first.leads)
            assert (await small.metadata()).manager == first.address

    run(main())


def test_M1_a_node_that_moved_says_where_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            await small.append(b"a")
            before = small.nodes[2].address
            await small.stop_node(2)
            keeper = socket.create_server(parse_address(before))
            node = await small.start_node(2)
            assert node.address != before
            await small.running(beyond=2)
            (known,) = [known for known in (await small.metadata()).nodes if known.snid == 2]
            assert known.address == node.address
            assert (await small.append(b"b", sequence=2)).glsn == 2
            keeper.close()

    run(main())


def test_M1_nodes_that_have_changed_places_are_told_apart(tmp_path: Path) -> None:
    """The address a node knows for another one is then somebody's who answers, and is not the one."""

    async def main() -> None:
        async with cluster(tmp_path) as small:
            await small.append(b"a")
            places = {number: small.nodes[number].address for number in (1, 2, 3)}
            for number in (2, 3):
                await small.stop_node(number)
            await small.start_node(2, listen=places[3])
            await small.start_node(3, listen=places[2])
            await small.running(beyond=2)
            known = {node.snid: node.address for node in (await small.metadata()).nodes}
            assert known == {1: places[1], 2: places[3], 3: places[2]}
            assert (await small.append(b"b", sequence=2)).glsn == 2
            await until(lambda: small.managers[0].answering == [1, 2, 3])

    run(main())


def test_O2_a_metadata_repository_that_starts_again_loses_nothing_and_stops_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            assert (await small.append(b"a")).glsn == 1
            await small.restart_vmr()
            await until(lambda: all(node.is_connected for node in small.nodes.values()))
            await until(lambda: small.managers[0].is_connected)
            assert (await small.append(b"b", sequence=2)).glsn == 2
            assert [stream.epoch for stream in small.streams()] == [2], "no log stream was sealed for it"

    run(main())


def test_O1_connections_that_break_are_made_again_and_nothing_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            for number in (1, 2, 3):
                small.nodes[number].peers.close()
                await until(lambda: all(node.is_connected for node in small.nodes.values()))
                glsn = 0
                while not glsn:  # refused while the log stream is sealed, if it is
                    await small.running()
                    glsn = (await small.append(b"x", sequence=number)).glsn
                assert glsn == number
            await committed(small, 4)
            assert [await read(small, number) for number in (1, 2, 3)] == [3, 3, 3]

    run(main())


def test_M7_an_append_that_a_backup_did_not_get_is_there_once_when_the_backup_is_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            await small.append(b"a")
            (stream,) = small.streams()
            backup = next(snid for snid in stream.replicas if snid != stream.primary)
            await small.stop_node(backup)
            waiting = asyncio.ensure_future(small.append(b"b", sequence=2))
            (stream,) = await small.running(beyond=2)
            assert backup not in stream.replicas
            assert (await waiting).code == errors.DidNotHappen.code, "known as soon as it is sealed"
            again = await small.append(b"b", sequence=2)
            assert (again.code, again.glsn) == (0, 2)
            await small.start_node(backup)
            await until(lambda: backup in small.streams()[0].replicas)
            await committed(small, 3)
            assert [await read(small, number) for number in (1, 2, 3)] == [2, 2, 2]

    run(main())
