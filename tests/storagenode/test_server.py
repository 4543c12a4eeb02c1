"""A storage node over real sockets: who may say what, what it tells of itself, and what it survives."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from copy import copy
from pathlib import Path

import pytest

from tests.cluster.fillable import FillableFileSystem
from tests.daemon.small import CID, Small, cluster, run, until
from tests.storagenode.gated import GatedFileSystem
from varlog import batch, errors, limits
from varlog.core.executor import LogStreamExecutor
from varlog.core.identity import boot_of
from varlog.core.messages import (
    AddLogStream,
    AnnounceNode,
    Append,
    AppendReply,
    Commit,
    Decided,
    GetInfo,
    GetMetadata,
    Info,
    Leading,
    Message,
    RemoveLogStream,
    ReopenLogStream,
    ReplicaReply,
    ReplicateAck,
    Report,
    Scan,
    ScanReply,
    Seal,
    Snapshot,
    TrimTopic,
    Unseal,
)
from varlog.core.storagenode import ReadPlan, StorageNode
from varlog.storagenode import answering
from varlog.storagenode.answering import READS_PER_TURN
from varlog.storagenode.writing import INLINE_BYTES
from varlog.types import (
    GLSN,
    LLSN,
    Epoch,
    LogStreamID,
    ReplicaState,
    Sequence,
    StorageNodeID,
    Term,
    TopicID,
    Version,
)
from varlog.wire import Connection, Identity, Ping, Pong, Role, Server

LSID, TOPIC = LogStreamID(1), TopicID(1)
SEAL = Seal(9, LSID, Epoch(3), LLSN(1), GLSN(0))
COMMIT = Commit(Term(9), Version(0), Version(1 << 40), 0, (), ())


def scan(request: int, begin: int = 1, lsid: int = LSID, *, wait: bool = False) -> Scan:
    return Scan(request, LogStreamID(lsid), GLSN(begin), 1 << 20, wait)


def append(epoch: Epoch, data: bytes, sequence: int = 1) -> Append:
    packed = batch.encode([data], writer_id=7, sequence=sequence)
    return Append(1_000_000, LSID, epoch, Sequence(sequence - 1), LLSN(1), packed)


MISUSES: list[tuple[Role, Message]] = [
    (Role.CLIENT, SEAL),
    (Role.CLIENT, Unseal(9, LSID, Epoch(2), (StorageNodeID(1),), StorageNodeID(1), GLSN(0))),
    (Role.CLIENT, AddLogStream(9, TOPIC, LogStreamID(77))),
    (Role.CLIENT, RemoveLogStream(9, LSID)),
    (Role.CLIENT, COMMIT),
    (Role.CLIENT, Snapshot(Term(9), Version(1 << 40), Version(0), (), ())),
    (Role.CLIENT, ReplicateAck(LSID, StorageNodeID(2), Epoch(2), False, LLSN(1), LLSN(1))),
    (Role.CLIENT, TrimTopic(9, TOPIC, GLSN(1))),
    (Role.STORAGE_NODE, SEAL),
    (Role.STORAGE_NODE, RemoveLogStream(9, LSID)),
    (Role.STORAGE_NODE, COMMIT),
    (Role.STORAGE_NODE, GetInfo(9)),
    (Role.MANAGER, COMMIT),
    (Role.MANAGER, scan(9)),
    (Role.MANAGER, GetMetadata(9)),
    (Role.MANAGER, Info(9, StorageNodeID(1), 1, ())),
    (Role.MANAGER, Unseal(9, LSID, Epoch(4), tuple(map(StorageNodeID, range(1, 9))), StorageNodeID(1), GLSN(0))),
    (Role.MANAGER, Unseal(9, LSID, Epoch(4), (StorageNodeID(-1),), StorageNodeID(1), GLSN(0))),
]


def test_M4_who_says_what_it_may_not_is_closed_and_nobody_else_notices(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            (stream,) = small.streams()
            bystander = await small.call_node(stream.primary)
            bystander.connection.send(scan(1_000_000, wait=True))
            for role, message in MISUSES:
                bad = await small.call_node(stream.primary, role, 2)
                bad.connection.send(message)
                assert isinstance(await bad.ended, errors.ProtocolError), message
            assert not bystander.heard
            assert (await small.append(b"x")).glsn == 1
            await until(lambda: bool(bystander.heard))
            assert (await bystander.ask(ScanReply, scan)).code == 0
            assert [(after.status, after.epoch) for after in small.streams()] == [(stream.status, stream.epoch)]
            assert len((await small.info(stream.primary)).replicas) == 1

    run(main())


def test_a_stranger_to_the_roles_is_not_let_in(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            with pytest.raises(errors.WrongRole):
                await small.call_node(1, Role.METADATA_REPOSITORY)

    run(main())


def test_everybody_gets_an_answer_to_a_ping(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1) as small:
            for role in (Role.CLIENT, Role.STORAGE_NODE, Role.MANAGER):
                caller = await small.call_node(1, role, 7)
                assert (await caller.ask(Pong, Ping)).time > 0

    run(main())


def test_M12_a_node_tells_what_it_is_and_how_its_replicas_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, streams=2) as small:
            await small.append(b"one", b"two")
            reader = await small.call_node(1)
            assert (await reader.ask(ScanReply, scan)).code == 0
            info = await small.info(1)
            assert (info.snid, info.boot, info.address) == (1, boot_of(1, 1), small.nodes[1].address)
            (volume,) = info.volumes
            assert volume.path == small.volumes(1)[0]
            assert 0 < volume.free_bytes < volume.total_bytes
            first, second = info.replicas
            assert (first.lsid, first.tpid, first.state, first.epoch) == (1, 1, ReplicaState.RUNNING, 2)
            assert (first.committed_end, first.durable_end, first.global_hwm, first.local_hwm) == (3, 3, 2, 2)
            assert (first.healthy, first.fault, first.volume, first.trim) == (True, 0, volume.path, 0)
            stats = first.stats
            assert (stats.batches, stats.entries, stats.commits, stats.scans, stats.refused) == (1, 2, 1, 1, 0)
            assert stats.bytes > 6
            assert stats.syncs >= 3
            assert second.stats.batches == 0
            refused = await small.append(b"x", lsid=2, sequence=5)
            assert refused.code == errors.SequenceGap.code
            (stream,) = [stream for stream in small.streams() if stream.lsid == 2]
            assert (await small.info(stream.primary)).replicas[1].stats.refused == 1

    run(main())


def test_M12_a_volume_that_is_gone_has_no_room_and_the_node_still_answers(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1, manager=False) as small:
            shutil.rmtree(small.volumes(1)[0])
            (volume,) = (await small.info(1)).volumes
            assert (volume.total_bytes, volume.free_bytes) == (0, 0)

    run(main())


def test_unknown_log_streams_are_told_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1) as small:
            client = await small.call_node(1)
            manager = await small.call_node(1, Role.MANAGER)
            unknown = LogStreamID(99)
            packed = batch.encode([b"x"], writer_id=1, sequence=1)
            appended = await client.ask(
                AppendReply, lambda request: Append(request, unknown, Epoch(2), Sequence(0), LLSN(1), packed)
            )
            read = await client.ask(ScanReply, lambda request: scan(request, lsid=99))
            sealed = await manager.ask(ReplicaReply, lambda request: Seal(request, unknown, Epoch(1), LLSN(1), GLSN(0)))
            assert {appended.code, read.code, sealed.code} == {errors.UnknownLogStream.code}
            removed = await manager.ask(ReplicaReply, lambda request: RemoveLogStream(request, unknown))
            assert removed.code == 0

    run(main())


REFUSED: list[tuple[Callable[[int], Message], int]] = [
    (lambda request: AddLogStream(request, TopicID(-1), LogStreamID(5)), errors.InvalidArgument.code),
    (lambda request: AddLogStream(request, TOPIC, LogStreamID(1 << 40)), errors.InvalidArgument.code),
    (lambda request: AddLogStream(request, TOPIC, LogStreamID(5), "/elsewhere"), errors.InvalidArgument.code),
    (lambda request: AddLogStream(request, TOPIC, LogStreamID(5), "v" * 5_000_000), errors.InvalidArgument.code),
    (lambda request: AddLogStream(request, TOPIC, LSID), errors.AlreadyExists.code),
]


def test_M2_a_log_stream_that_cannot_be_added_is_refused_in_a_few_words(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1) as small:
            manager = await small.call_node(1, Role.MANAGER)
            for build, code in REFUSED:
                refused = await manager.ask(ReplicaReply, build)
                assert refused.code == code
                assert 0 < len(refused.detail) <= limits.MAX_DETAIL
            assert (await small.append(b"x")).code == 0

    run(main())


def test_M5_a_replica_that_has_committed_more_than_a_seal_says_stops_the_node_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            await small.start(nodes=1)
            await small.append(b"x", b"y")
            bystander = await small.call_node(1)
            manager = await small.call_node(1, Role.MANAGER)
            manager.connection.send(SEAL)
            manager.connection.send(GetInfo(10))
            await manager.ended
            await bystander.ended
            assert [type(failure) for failure in small.failures] == [errors.ConsistencyViolation]
            assert not manager.heard, "what came behind it was not looked at"

    run(main())


def test_a_flood_of_reads_is_served_in_turn_and_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1) as small:
            await small.append(b"x")
            greedy, modest = await small.call_node(1), await small.call_node(1)
            count = 2 * limits.MAX_WAITING_READS
            for request in range(count):
                greedy.connection.send(scan(request + 1_000_000))
            greedy.connection.flush()
            assert (await modest.ask(ScanReply, scan)).code == 0
            await until(lambda: len(greedy.heard) == count)
            codes = [reply.code for reply in greedy.heard if isinstance(reply, ScanReply)]
            assert set(codes) == {0, errors.Busy.code}
            assert codes.count(0) >= READS_PER_TURN

    run(main())


def overheard(small: Small, monkeypatch: pytest.MonkeyPatch) -> tuple[StorageNode, LogStreamExecutor, list[Message]]:
    """The first node, its only replica, and what it says from now on, which nobody else hears."""
    node = small.nodes[1].node
    (executor,) = node.executors
    sent: list[Message] = []
    monkeypatch.setattr(node, "_send", lambda _, message: sent.append(message))
    return node, executor, sent


def test_reads_that_take_long_leave_the_others_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "TURN_SECONDS", 0)

    async def main() -> None:
        async with cluster(tmp_path, nodes=1) as small:
            await small.append(b"x")
            node, executor, sent = overheard(small, monkeypatch)
            node.reads += [ReadPlan("nobody", scan(request), executor, GLSN(2), GLSN(1)) for request in (1, 2, 3)]
            small.nodes[1]._answering.do_some()
            assert [reply.request for reply in sent if isinstance(reply, ScanReply)] == [1]
            await until(lambda: not node.reads)
            assert [reply.request for reply in sent if isinstance(reply, ScanReply)] == [1, 2, 3]
            monkeypatch.undo()

    run(main())


def test_a_read_of_what_was_opened_anew_since_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was planned with what the closed replica knew: an empty answer would be told as complete."""

    async def main() -> None:
        async with cluster(tmp_path, nodes=1) as small:
            await small.append(b"x")
            node, executor, sent = overheard(small, monkeypatch)
            node.reads.append(ReadPlan("nobody", scan(1), copy(executor), GLSN(2), GLSN(1)))
            small.nodes[1]._answering.do_some()
            monkeypatch.undo()
            (refused,) = sent
            assert isinstance(refused, ScanReply)
            assert refused.code == errors.Busy.code

    run(main())


def test_reads_go_on_where_the_disk_is_full_and_appends_say_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            marker = tmp_path / "full"
            await small.start(nodes=0, streams=0)
            node = await small.start_node(1, FillableFileSystem(str(marker)), segment_bytes=4096)
            await small.add_nodes()
            await small.add_topic()
            await small.append(b"x")
            marker.touch()
            client = await small.call_node(1)
            client.connection.send(append(small.streams()[0].epoch, bytes(8192), sequence=2))
            await until(lambda: not next(iter(node.replicas)).executor.healthy)
            (replica,) = (await small.info(1)).replicas
            assert (replica.healthy, replica.fault) == (False, errors.DiskFull.code)
            manager = await small.call_node(1, Role.MANAGER)
            refused = await manager.ask(ReplicaReply, lambda request: ReopenLogStream(request, LSID))
            assert refused.code in (errors.DiskFull.code, errors.Busy.code), "who has just tried is not tried again"
            assert (await client.ask(ScanReply, scan)).code == 0
            assert (await small.append(b"z", sequence=2)).code == errors.DiskFull.code
            marker.unlink()
            await small.running(beyond=2)
            assert (await small.append(b"z", sequence=2)).code == 0

    run(main())


class Repository:
    """A metadata repository that says what the test wants."""

    def __init__(self, *answers: int) -> None:
        self.announced: list[AnnounceNode] = []
        self.reports: list[Report] = []
        self._answers = list(answers)

    def on_connected(self, connection: Connection) -> None:
        connection.send(Leading(Term(1)))

    def on_message(self, connection: Connection, message: Message) -> None:
        if isinstance(message, AnnounceNode):
            self.announced.append(message)
            code = self._answers.pop(0) if self._answers else 0
            connection.send(Decided(message.request, code, Version(1), detail="as the test wants"))
        elif isinstance(message, Report):
            self.reports.append(message)

    def on_turn(self, connection: Connection) -> None: ...

    def on_closed(self, connection: Connection, error: errors.VarlogError | None) -> None: ...


def test_M1_a_node_whose_place_was_not_heard_says_it_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            repository = Repository(errors.Busy.code, errors.Busy.code, errors.UnknownNode.code)
            accepts = frozenset({Role.STORAGE_NODE})
            identity = Identity(CID, Role.METADATA_REPOSITORY)
            server = await Server.start("127.0.0.1:0", identity, accepts, small.secret, repository)
            node = await small.start_node(1, metadata_repository=server.address)
            await until(lambda: len(repository.announced) == 3)
            assert {(said.snid, said.address) for said in repository.announced} == {(1, node.address)}
            reports = len(repository.reports)
            await until(lambda: len(repository.reports) > reports)
            assert len(repository.announced) == 3, "one that is not registered has nothing to repeat"
            await small.stop_node(1)
            await server.close()

    run(main())


def counted(monkeypatch: pytest.MonkeyPatch, of: object, name: str) -> list[str]:
    """Grows by one whenever that method, which takes nothing, is called."""
    calls: list[str] = []
    method = getattr(of, name)

    def call() -> None:
        calls.append(name)
        method()

    monkeypatch.setattr(of, name, call)
    return calls


def test_an_answer_to_a_report_does_not_wake_a_node_that_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1) as small:
            node = small.nodes[1]
            await until(lambda: not node._is_active)
            woken = counted(monkeypatch, node, "_wake_up")
            answered = counted(monkeypatch, node.node, "_on_answered")
            await until(lambda: len(answered) > 1)
            assert not woken
            await small.append(b"x")
            assert woken

    run(main())


def test_rule5_a_metadata_repository_that_went_back_stops_the_node(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            await small.start(nodes=1)
            await small.append(b"x")
            await small.stop_vmr()
            shutil.rmtree(tmp_path / "metadata")
            (tmp_path / "metadata").mkdir()
            await small.start_vmr(small.vmr.address)
            await small.add_nodes()
            await until(lambda: bool(small.failures))
            (failure,) = small.failures
            assert isinstance(failure, errors.ConsistencyViolation)
            assert "restored from an older state" in str(failure)

    run(main())


def test_a_node_that_stops_while_a_group_is_under_way_has_it_afterwards(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            disk = GatedFileSystem()
            await small.start(nodes=0, streams=0)
            await small.start_node(1, disk)
            await small.add_nodes()
            await small.add_topic()
            disk.syncs.close()
            client = await small.call_node(1)
            client.connection.send(append(small.streams()[0].epoch, bytes(2 * INLINE_BYTES)))
            await until(lambda: disk.syncs.waiting == 1)
            stopping = asyncio.ensure_future(small.stop_node(1))
            await client.ended
            assert not stopping.done(), "its connections are closed, the group is awaited"
            disk.syncs.open()
            await stopping
            await small.start_node(1)
            assert next(iter(small.nodes[1].replicas)).executor.end == 2
            await small.running(beyond=2)

    run(main())


def open_files(directory: Path) -> list[str]:
    """What this process has open below a directory."""
    names = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return [name for name in names if name.startswith(str(directory))]


def test_files_are_closed_when_a_node_has_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, streams=2) as small:
            await small.append(b"x")
            reader = await small.call_node(2)
            await reader.ask(ScanReply, scan)
            await small.stop_node(2)
            assert not open_files(tmp_path / "node-2-0")
            assert open_files(tmp_path / "node-1-0")

    run(main())
