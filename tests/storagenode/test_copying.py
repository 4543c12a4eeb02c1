"""Copies between storage nodes over real sockets, with real files (M9, rules 12, 14)."""

from __future__ import annotations

from pathlib import Path

from tests.daemon.small import Caller, Small, run, until
from tests.storagenode.gated import GatedFileSystem
from varlog import errors
from varlog.core.messages import (
    AddLogStream,
    Decided,
    RemoveLogStream,
    ReplicaInfo,
    ReplicaReply,
    Seal,
    SealStream,
    Sync,
    SyncReply,
    TrimTopic,
    Unseal,
)
from varlog.core.syncing import RestartPlan
from varlog.storagenode.replicas import Replica
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, ReplicaState, StorageNodeID, TopicID
from varlog.wire import Role

LSID, TOPIC = LogStreamID(1), TopicID(1)
NEW = 3


class Learning(Small):
    """Nodes 1 and 2 run log stream 1, in small segments; node 3 has an empty replica of it. There is no manager any
    more: the test is it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.disk = GatedFileSystem()
        """Of node 3."""
        self.manager: Caller
        self._sequence = 0

    async def set_up(self) -> None:
        await self.start(nodes=0, streams=0)
        for number in (1, 2):
            await self.start_node(number, segment_bytes=1 << 16)
        await self.add_nodes()
        await self.add_topic(factor=2)
        await self.add_node(await self.start_node(NEW, self.disk, segment_bytes=1 << 16))
        await self.stop_manager(self.managers[0])
        self.manager = await self.call_node(NEW, Role.MANAGER)
        assert (await self.add()).code == 0

    async def add(self) -> ReplicaReply:
        return await self.manager.ask(ReplicaReply, lambda request: AddLogStream(request, TOPIC, LSID))

    async def fill(self, batches: int, size: int = 5000) -> None:
        for _ in range(batches):
            self._sequence += 1
            data = b"%d" % self._sequence
            reply = await self.append(data.ljust(size, b"."), data, sequence=self._sequence)
            assert reply.code == 0

    async def sync(self, source: int = 1, *, learner: bool = True) -> SyncReply:
        (stream,) = self.streams()
        snid = StorageNodeID(source)
        return await self.manager.ask(SyncReply, lambda request: Sync(request, LSID, stream.epoch, snid, learner))

    async def caught_up(self, source: int = 1) -> None:
        """Ask until there is nothing left to copy."""
        (stream,) = self.streams()
        while True:
            reply = await self.sync(source)
            if reply.is_complete and reply.copied_end == stream.llsn_end:
                return
            assert reply.code in (0, errors.UnknownLogStream.code), reply

    def replica(self, number: int = NEW) -> Replica:
        replica = self.nodes[number].replicas.committed(LSID)
        assert replica is not None
        return replica

    def info(self, number: int = NEW) -> ReplicaInfo:  # type: ignore[override]
        return self.replica(number).executor.info()

    def log(self, number: int) -> tuple[list[tuple[int, bytes]], bytes]:
        """What a replica has, and what it knows of its writers."""
        executor, storage = self.replica(number).executor, self.replica(number).storage
        stored = storage.read(GLSN(executor.trim_glsn + 1), GLSN(executor.local_hwm + 1), 1 << 30)
        return [(found.glsn, bytes(found.batch)) for found in stored], executor.dedup.snapshot()

    async def trim(self, glsn: int) -> None:
        caller = await self.call_vmr()
        assert (await caller.ask(Decided, lambda request: TrimTopic(request, TOPIC, GLSN(glsn)))).code == 0
        await until(lambda: all(self.info(number).trim == glsn for number in (1, 2)))


def test_rule12_a_new_node_copies_follows_and_joins(tmp_path: Path) -> None:
    async def main() -> None:
        async with Learning(tmp_path) as small:
            await small.set_up()
            await small.fill(40)
            await small.caught_up()
            assert small.info().source == 1
            assert small.disk.forgotten > 0, "a copy leaves the memory to those who append and read"
            await small.fill(3)
            await until(lambda: small.info().committed_end == small.info(1).committed_end)
            assert small.log(NEW) == small.log(1)
            (stream,) = small.streams()
            sealed = await small.decide(lambda request: SealStream(request, LSID, stream.epoch))
            seal = Seal(0, LSID, Epoch(sealed.value), sealed.llsn_end, GLSN(0))
            members = [await small.call_node(number, Role.MANAGER) for number in (1, 2)]
            for member in [*members, small.manager]:
                reply = await member.ask(ReplicaReply, lambda request: Seal(request, *seal_fields(seal)))
                assert (reply.code, reply.state) == (0, ReplicaState.SEALED)
            assert small.info().source == 0
            replicas = tuple(map(StorageNodeID, (1, 2, NEW)))
            epoch = Epoch(sealed.value + 1)
            reply = await small.manager.ask(
                ReplicaReply, lambda request: Unseal(request, LSID, epoch, replicas, replicas[0], GLSN(0))
            )
            assert (reply.code, reply.state) == (0, ReplicaState.RUNNING)

    run(main())


def seal_fields(seal: Seal) -> tuple[LogStreamID, Epoch, LLSN, GLSN]:
    return seal.lsid, seal.epoch, seal.llsn_end, seal.trim


def test_M9_a_copy_goes_on_after_a_restart_of_either_side(tmp_path: Path) -> None:
    async def main() -> None:
        async with Learning(tmp_path) as small:
            await small.set_up()
            await small.fill(60)
            small.disk.syncs.close()
            await small.sync()
            await until(lambda: small.disk.syncs.waiting > 0)
            small.disk.syncs.open()
            await small.stop_node(NEW)
            await small.start_node(NEW, segment_bytes=1 << 16)
            small.manager = await small.call_node(NEW, Role.MANAGER)
            await small.sync(2)
            await small.stop_node(2)
            await until(lambda: small.info().source == 0)
            await small.caught_up(1)
            assert small.log(NEW) == small.log(1)

    run(main())


def test_rule14_a_replica_whose_source_was_trimmed_begins_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with Learning(tmp_path) as small:
            await small.set_up()
            await small.fill(60)
            await small.trim(80)
            await small.caught_up()
            assert small.log(NEW) == small.log(1)
            assert small.info().trim == 80
            await small.stop_node(NEW)
            await small.start_node(NEW, segment_bytes=1 << 16)
            assert small.log(NEW) == small.log(1)

    run(main())


def test_rule14_a_replica_that_is_to_be_removed_does_not_begin_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with Learning(tmp_path) as small:
            await small.set_up()
            await small.fill(60)
            await small.trim(80)
            small.disk.deletions.close()
            await small.sync()
            await until(lambda: small.disk.deletions.waiting == 1)
            assert (await small.add()).code == errors.Busy.code
            for failed_only in (True, False):
                removal = RemoveLogStream(100, LSID, failed_only=failed_only)
                small.manager.connection.send(removal)
            await until(lambda: len(small.manager.heard) == 1)
            small.disk.deletions.open()
            await until(lambda: len(small.manager.heard) == 2)
            codes = [reply.code for reply in small.manager.heard if isinstance(reply, ReplicaReply)]
            assert codes == [errors.Busy.code, 0]
            assert small.nodes[NEW].replicas.get(LSID) is None
            assert (await small.add()).code == 0
            await small.caught_up()
            assert small.log(NEW) == small.log(1)

    run(main())


def test_rule14_what_is_no_base_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with Learning(tmp_path) as small:
            await small.set_up()
            await small.fill(5)
            await small.caught_up()
            before = small.log(NEW)
            hosting = small.nodes[NEW]._hosting
            sync = Sync(1, LSID, Epoch(0), StorageNodeID(1), learner=True)
            hosting.start_anew(RestartPlan(small.replica().executor, b"no base", Epoch(0), sync, 0.0))
            hosting.start_anew(RestartPlan(small.replica(1).executor, b"of a replica elsewhere", Epoch(0), sync, 0.0))
            assert not hosting.is_leaving(LSID)
            assert small.log(NEW) == before

    run(main())


def damage(volume: str) -> None:
    """Turn a bit in the first segment of log stream 1."""
    first = min(Path(volume).glob("cid=*/snid=*/lsid=1/*.seg"))
    data = bytearray(first.read_bytes())
    data[data.index(b"....") + 100] ^= 1
    first.write_bytes(data)


def test_rule15_a_source_that_is_found_damaged_stays_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with Learning(tmp_path) as small:
            await small.set_up()
            await small.fill(40)
            damage(small.volumes(1)[0])
            await small.sync(1)
            await until(lambda: not small.info(1).healthy)
            assert small.info(1).fault == errors.Corrupt.code
            await until(lambda: small.info().source == 0)
            await small.caught_up(2)
            assert small.log(NEW) == small.log(2)

    run(main())


def test_a_node_that_stops_ends_its_copies(tmp_path: Path) -> None:
    async def main() -> None:
        async with Learning(tmp_path) as small:
            await small.set_up()
            await small.fill(30)
            await small.sync()
            await small.stop_node(1)
            await small.stop_node(NEW)

    run(main())
