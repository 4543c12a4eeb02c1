"""Log streams are added to a running node and removed from it, whatever is under way there."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from tests.daemon.small import Caller, Small, run, until
from tests.storagenode.gated import GatedFileSystem
from varlog import batch, errors, limits
from varlog.core.messages import (
    AddLogStream,
    Append,
    AppendReply,
    Decided,
    GetInfo,
    Info,
    RemoveLogStream,
    ReopenLogStream,
    ReplicaReply,
    Scan,
    ScanReply,
    Seal,
    TrimTopic,
    Unseal,
)
from varlog.storage.files import OSFile, OSFileSystem
from varlog.storagenode.daemon import health
from varlog.storagenode.reading import TAIL_ENTRIES
from varlog.storagenode.writing import INLINE_BYTES
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, ReplicaState, Sequence, StorageNodeID, TopicID
from varlog.wire import Role

ONE, TWO = LogStreamID(1), LogStreamID(2)
TOPIC = TopicID(1)


class Host(Small):
    """One node on a disk that can be made to wait, with log streams 1 and 2 of a topic that run."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.disk = GatedFileSystem()

    async def set_up(self, segment_bytes: int = limits.SEGMENT_BYTES) -> Caller:
        """What the manager calls from."""
        await self.start(nodes=0, streams=0)
        await self.start_node(1, self.disk, segment_bytes=segment_bytes)
        await self.add_nodes()
        await self.add_topic(streams=2)
        return await self.call_node(1, Role.MANAGER)

    def directory(self, lsid: int) -> Path:
        return Path(self.volumes(1)[0]) / "cid=3" / "snid=1" / f"lsid={lsid}"

    async def fill(self) -> None:
        """More than a tail of entries in log stream 1."""
        for sequence in (1, 2):
            reply = await self.append(*[b"x"] * TAIL_ENTRIES, sequence=sequence)
            assert reply.code == 0


def remove(lsid: LogStreamID = ONE) -> type[RemoveLogStream]:
    return lambda request: RemoveLogStream(request, lsid)  # type: ignore[return-value]


def scan(request: int, lsid: int = ONE, *, begin: int = 1, wait: bool = False) -> Scan:
    return Scan(request, LogStreamID(lsid), GLSN(begin), 1 << 20, wait)


def append(lsid: LogStreamID, data: bytes) -> Append:
    packed = batch.encode([data], writer_id=9, sequence=1)
    return Append(1_000_000, lsid, Epoch(2), Sequence(0), LLSN(1), packed)


def test_M2_a_new_replica_is_sealing_and_its_request_may_be_repeated(tmp_path: Path) -> None:
    async def main() -> None:
        async with Host(tmp_path) as host:
            manager = await host.set_up()
            for _ in range(2):
                added = await manager.ask(ReplicaReply, lambda request: AddLogStream(request, TOPIC, LogStreamID(5)))
                assert (added.code, added.epoch, added.state, added.snid) == (0, 0, ReplicaState.SEALING, 1)
            assert host.directory(5).is_dir()
            sealed = await manager.ask(
                ReplicaReply, lambda request: Seal(request, LogStreamID(5), Epoch(1), LLSN(1), GLSN(0))
            )
            assert (sealed.code, sealed.state) == (0, ReplicaState.SEALED)
            refused = await manager.ask(ReplicaReply, lambda request: AddLogStream(request, TOPIC, LogStreamID(5)))
            assert refused.code == errors.AlreadyExists.code

    run(main())


def test_B6_data_stays_until_it_is_asked_for_and_comes_back_with_the_node(tmp_path: Path) -> None:
    """What the metadata repository forgets is not what a node deletes."""

    async def main() -> None:
        async with Host(tmp_path) as host:
            await host.set_up()
            await host.append(b"x")
            for manager in list(host.managers):
                await host.stop_manager(manager)
            await host.stop_vmr()
            for file in (tmp_path / "metadata").iterdir():
                file.unlink()
            await host.start_vmr()
            await host.stop_node(1)
            await host.start_node(1)
            assert [replica.lsid for replica in (await host.info(1)).replicas] == [1, 2]
            caller = await host.call_node(1, Role.MANAGER)
            refused = await caller.ask(ReplicaReply, lambda request: AddLogStream(request, TOPIC, ONE))
            assert refused.code == errors.AlreadyExists.code

    run(main())


def test_M12_a_removed_replica_is_gone_with_its_data_and_may_be_asked_for_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with Host(tmp_path) as host:
            manager = await host.set_up()
            await host.append(b"x")
            for _ in range(2):
                assert (await manager.ask(ReplicaReply, remove())).code == 0
            assert not host.directory(1).exists()
            assert [replica.lsid for replica in (await host.info(1)).replicas] == [2]
            client = await host.call_node(1)
            assert (await client.ask(ScanReply, scan)).code == errors.UnknownLogStream.code
            assert (await host.append(b"y", lsid=2)).code == 0, "the other one goes on"

    run(main())


class FailingFile(OSFile):
    def __init__(self, fd: int, disk: FailingFileSystem) -> None:
        super().__init__(fd)
        self._disk = disk

    def fdatasync(self) -> None:
        if self._disk.fails_to_sync:
            raise OSError(errno.EIO, "it cannot be synced")
        super().fdatasync()


class FailingFileSystem(OSFileSystem):
    """A disk that does not sync, or on which segments cannot be opened, whenever a test says so."""

    def __init__(self) -> None:
        self.fails_to_sync = False
        self.fails_to_open = 0
        """The error, if it does."""

    def open(self, path: str) -> FailingFile:
        if self.fails_to_open and path.endswith(".seg"):
            raise OSError(self.fails_to_open, "it cannot be opened")
        return FailingFile(os.open(path, os.O_RDWR | os.O_CLOEXEC), self)

    def create(self, path: str) -> FailingFile:
        return FailingFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), self)


def reopen(request: int) -> ReopenLogStream:
    return ReopenLogStream(request, ONE)


def remove_failed(request: int) -> RemoveLogStream:
    return RemoveLogStream(request, ONE, failed_only=True)


def add(request: int) -> AddLogStream:
    return AddLogStream(request, TOPIC, ONE)


def test_M8_a_replica_that_failed_to_write_is_opened_anew_and_has_what_it_had(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            disk = FailingFileSystem()
            await small.start(nodes=0, streams=0)
            await small.start_node(1, disk)
            await small.add_nodes()
            await small.add_topic(streams=1)
            manager = await small.call_node(1, Role.MANAGER)
            assert (await small.append(b"x")).code == 0
            for vms in list(small.managers):
                await small.stop_manager(vms)
            agreed = await manager.ask(ReplicaReply, reopen)
            assert (agreed.code, agreed.state) == (0, ReplicaState.RUNNING), "it is sound, and stays as it is"
            unknown = await manager.ask(ReplicaReply, lambda request: ReopenLogStream(request, TWO))
            assert unknown.code == errors.NoSuchReplica.code

            disk.fails_to_sync = True
            client = await small.call_node(1)
            client.connection.send(append(ONE, b"y"))
            while (await small.info(1)).replicas[0].healthy:
                pass
            refused = await manager.ask(ReplicaReply, reopen)
            assert refused.code not in (0, errors.Busy.code)
            assert (await small.info(1)).replicas, "while its disk takes nothing it can at least be read"
            disk.fails_to_sync, disk.fails_to_open = False, errno.EMFILE
            while (refused := await manager.ask(ReplicaReply, reopen)).code == errors.Busy.code:
                pass
            assert refused.code == errors.Poisoned.code
            assert [replica.fault for replica in (await small.info(1)).replicas] == [errors.Poisoned.code]
            removal = await manager.ask(ReplicaReply, remove_failed)
            added = await manager.ask(ReplicaReply, add)
            again = await manager.ask(ReplicaReply, reopen)
            refusals = (errors.Conflict.code, errors.AlreadyExists.code, errors.Busy.code)
            assert (removal.code, added.code, again.code) == refusals, "its files are there"

            disk.fails_to_open = 0
            while not (replicas := (await small.info(1)).replicas)[0].healthy:
                pass
            assert replicas[0].state is ReplicaState.SEALING
            assert replicas[0].committed_end >= 2, "what was written again when it was opened may be committed as well"
            (hosted,) = small.nodes[1].replicas
            hosted.executor.on_corrupt()
            while (refused := await manager.ask(ReplicaReply, reopen)).code == errors.Busy.code:
                pass
            assert refused.code == errors.Conflict.code, "what is damaged is of no use"

    run(main())


def test_rule15_a_replica_that_cannot_be_read_when_it_is_opened_anew_is_damaged(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            disk = FailingFileSystem()
            await small.start(nodes=0, streams=0)
            await small.start_node(1, disk)
            await small.add_nodes()
            await small.add_topic(streams=1)
            manager = await small.call_node(1, Role.MANAGER)
            for vms in list(small.managers):
                await small.stop_manager(vms)
            (hosted,) = small.nodes[1].replicas
            hosted.executor.on_failed(errors.Poisoned.code)
            disk.fails_to_open = errno.EIO
            assert (await manager.ask(ReplicaReply, reopen)).code == errors.Corrupt.code
            (replica,) = (await small.info(1)).replicas
            assert (replica.healthy, replica.fault) == (False, errors.Corrupt.code)
            while (again := await manager.ask(ReplicaReply, reopen)).code == errors.Busy.code:
                pass
            assert again.code == errors.Conflict.code, "it has to be copied anew"
            assert (await manager.ask(ReplicaReply, remove_failed)).code == 0
            assert not (await small.info(1)).replicas
            disk.fails_to_open = 0
            assert (await manager.ask(ReplicaReply, add)).code == 0

    run(main())


def test_rule15_a_node_starts_with_a_damaged_replica_and_tells_of_it_until_it_is_removed(tmp_path: Path) -> None:
    async def main() -> None:
        async with Host(tmp_path) as host:
            await host.set_up()
            for manager in list(host.managers):
                await host.stop_manager(manager)
            await host.stop_node(1)
            (segment,) = host.directory(1).glob("*.seg")
            content = segment.read_bytes()
            segment.write_bytes(bytes([content[0] ^ 1]) + content[1:])
            node = await host.start_node(1)
            replicas = {replica.lsid: replica for replica in (await host.info(1)).replicas}
            assert (replicas[ONE].fault, replicas[TWO].healthy) == (errors.Corrupt.code, True)
            assert health(node).details["in_need_of_repair"] == [1]
            client, caller = await host.call_node(1), await host.call_node(1, Role.MANAGER)
            assert (await client.ask(ScanReply, scan)).code == errors.UnknownLogStream.code
            new = await caller.ask(ReplicaReply, lambda request: RemoveLogStream(request, ONE, new_only=True))
            added = await caller.ask(ReplicaReply, add)
            assert new.code == added.code == errors.AlreadyExists.code, "it may have a past"
            assert segment.exists()
            assert (await caller.ask(ReplicaReply, remove_failed)).code == 0
            assert not host.directory(1).exists()
            assert [replica.lsid for replica in (await host.info(1)).replicas] == [2]
            assert (await caller.ask(ReplicaReply, add)).code == 0

    run(main())


def test_B6_what_has_a_past_is_not_removed_as_something_new(tmp_path: Path) -> None:
    async def main() -> None:
        async with Host(tmp_path) as host:
            manager = await host.set_up()
            await manager.ask(ReplicaReply, lambda request: AddLogStream(request, TOPIC, LogStreamID(5)))
            new = await manager.ask(ReplicaReply, lambda request: RemoveLogStream(request, LogStreamID(5), True))
            old = await manager.ask(ReplicaReply, lambda request: RemoveLogStream(request, ONE, True))
            assert (new.code, old.code) == (0, errors.AlreadyExists.code)
            assert not host.directory(5).exists()
            assert host.directory(1).exists()
            assert (await host.append(b"x")).code == 0

    run(main())


def test_a_replica_that_knows_of_a_later_epoch_is_not_removed_as_left_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with Host(tmp_path) as host:
            manager = await host.set_up()
            late = await manager.ask(ReplicaReply, lambda request: RemoveLogStream(request, ONE, until=Epoch(1)))
            assert late.code == errors.Conflict.code
            assert host.directory(1).exists()
            timely = await manager.ask(ReplicaReply, lambda request: RemoveLogStream(request, ONE, until=Epoch(2)))
            assert timely.code == 0
            assert not host.directory(1).exists()

    run(main())


def test_B6_a_cluster_whose_metadata_is_lost_does_not_lose_its_data_to_the_next_one(tmp_path: Path) -> None:
    """An operator who begins anew on the old nodes gets an error, and the disks keep what they have."""

    async def main() -> None:
        async with Host(tmp_path) as host:
            await host.set_up()
            await host.append(b"x")
            await host.stop_vmr()
            for file in (tmp_path / "metadata").iterdir():
                file.unlink()
            await host.start_vmr(host.vmr.address)
            await host.add_nodes()
            with pytest.raises(errors.VarlogError):
                await host.add_topic()
            await until(lambda: bool(host.failures))
            assert all(any(host.directory(lsid).glob("*.seg")) for lsid in (1, 2))

    run(main())


def test_a_removal_waits_for_the_group_under_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with Host(tmp_path) as host:
            manager = await host.set_up()
            host.disk.syncs.close()
            client = await host.call_node(1)
            client.connection.send(append(ONE, bytes(2 * INLINE_BYTES)))
            await until(lambda: host.disk.syncs.waiting == 1)
            removal = asyncio.ensure_future(manager.ask(ReplicaReply, remove()))
            other = await host.call_node(1, Role.MANAGER)
            again = asyncio.ensure_future(other.ask(ReplicaReply, remove()))
            busy = await manager.ask(ReplicaReply, lambda request: AddLogStream(request, TOPIC, ONE))
            assert busy.code == errors.Busy.code, "what is on its way out is not handed out as new"
            assert (await client.ask(ScanReply, scan)).code == errors.UnknownLogStream.code
            assert [replica.lsid for replica in (await host.info(1)).replicas] == [2]
            assert host.directory(1).exists()
            assert not removal.done()
            host.disk.syncs.open()
            assert (await removal).code == (await again).code == 0
            assert not host.directory(1).exists()
            assert not [reply for reply in client.heard if isinstance(reply, AppendReply) and reply.code == 0]

    run(main())


def test_a_removal_waits_for_the_reads_under_way_and_tells_their_readers(tmp_path: Path) -> None:
    async def main() -> None:
        async with Host(tmp_path) as host:
            manager = await host.set_up()
            await host.fill()
            host.disk.reads.close()
            client = await host.call_node(1)
            reads = [asyncio.ensure_future(client.ask(ScanReply, scan)) for _ in range(5)]
            await until(lambda: host.disk.reads.waiting == 2)
            removal = asyncio.ensure_future(manager.ask(ReplicaReply, remove()))
            await manager.ask(Info, GetInfo)
            assert host.directory(1).exists()
            host.disk.reads.open()
            assert (await removal).code == 0
            assert {(await read).code for read in reads} == {errors.UnknownLogStream.code}
            assert not host.directory(1).exists()

    run(main())


def test_a_removal_tells_those_who_wait_at_the_tail(tmp_path: Path) -> None:
    async def main() -> None:
        async with Host(tmp_path) as host:
            manager = await host.set_up()
            client = await host.call_node(1)
            read = asyncio.ensure_future(client.ask(ScanReply, lambda request: scan(request, wait=True)))
            await client.ask(Info, GetInfo)
            assert (await manager.ask(ReplicaReply, remove())).code == 0
            assert (await read).code == errors.UnknownLogStream.code

    run(main())


def test_deleting_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        async with Host(tmp_path) as host:
            manager = await host.set_up()
            host.disk.deletions.close()
            removal = asyncio.ensure_future(manager.ask(ReplicaReply, remove()))
            await until(lambda: host.disk.deletions.waiting == 1)
            assert (await host.append(b"x", lsid=2)).code == 0
            assert not removal.done()
            host.disk.deletions.open()
            assert (await removal).code == 0

    run(main())


def test_L5_a_trim_keeps_nobody_waiting_who_appends_and_a_removal_waits_for_its_deletions(tmp_path: Path) -> None:
    async def main() -> None:
        async with Host(tmp_path) as host:
            manager = await host.set_up(segment_bytes=4096)
            for sequence in range(1, 31):
                assert (await host.append(bytes(4096), sequence=sequence)).code == 0
            await until(lambda: len(list(host.directory(1).glob("*.seg"))) > 30)
            vmr = await host.call_vmr()
            assert (await vmr.ask(Decided, lambda request: TrimTopic(request, TOPIC, GLSN(15)))).code == 0
            await until(lambda: len(list(host.directory(1).glob("*.seg"))) < 20)
            host.disk.deletions.close()
            assert (await vmr.ask(Decided, lambda request: TrimTopic(request, TOPIC, GLSN(30)))).code == 0
            await until(lambda: host.disk.deletions.waiting == 1)
            assert (await host.append(b"x", sequence=31)).code == 0
            removal = asyncio.ensure_future(manager.ask(ReplicaReply, remove()))
            await manager.ask(Info, GetInfo)
            assert not removal.done()
            host.disk.deletions.open()
            assert (await removal).code == 0
            assert not host.directory(1).exists()

    run(main())


@pytest.mark.parametrize("held_up", ["syncs", "deletions"])
def test_a_node_that_stops_finishes_what_it_was_removing(held_up: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with Host(tmp_path) as host:
            manager = await host.set_up()
            gate = getattr(host.disk, held_up)
            gate.close()
            client = await host.call_node(1)
            if held_up == "syncs":
                client.connection.send(append(ONE, bytes(2 * INLINE_BYTES)))
                await until(lambda: gate.waiting == 1)
            manager.connection.send(RemoveLogStream(1_000_000, ONE))
            await manager.ask(Info, GetInfo)
            stopping = asyncio.ensure_future(host.stop_node(1))
            await client.ended
            gate.open()
            await stopping
            assert not host.directory(1).exists()
            assert host.directory(2).exists()
            await host.start_node(1)
            assert [replica.lsid for replica in (await host.info(1)).replicas] == [2]

    run(main())


def test_a_directory_that_cannot_be_deleted_is_told_and_finished_later(tmp_path: Path) -> None:
    async def main() -> None:
        async with Host(tmp_path) as host:
            manager = await host.set_up()
            (host.directory(1) / "lost+found").mkdir()
            failed = await manager.ask(ReplicaReply, remove())
            assert failed.code != 0
            assert "lost+found" in failed.detail
            assert [replica.lsid for replica in (await host.info(1)).replicas] == [2]
            await host.stop_node(1)
            await host.start_node(1)
            assert [replica.lsid for replica in (await host.info(1)).replicas] == [2], "it is in nobody's way"
            manager = await host.call_node(1, Role.MANAGER)
            refused = await manager.ask(ReplicaReply, lambda request: AddLogStream(request, TOPIC, ONE))
            assert refused.code == errors.AlreadyExists.code, "what is made there now would be deleted with it"
            await host.stop_node(1)
            (host.directory(1) / "lost+found").rmdir()
            await host.start_node(1)
            assert not host.directory(1).exists()

    run(main())


def test_M13_what_was_never_sealed_cannot_be_unsealed(tmp_path: Path) -> None:
    async def main() -> None:
        async with Host(tmp_path) as host:
            manager = await host.set_up()
            await manager.ask(ReplicaReply, lambda request: AddLogStream(request, TOPIC, LogStreamID(5)))
            me = StorageNodeID(1)
            refused = await manager.ask(
                ReplicaReply, lambda request: Unseal(request, LogStreamID(5), Epoch(2), (me,), me, GLSN(0))
            )
            assert (refused.code, refused.state) == (errors.StaleEpoch.code, ReplicaState.SEALING)

    run(main())
