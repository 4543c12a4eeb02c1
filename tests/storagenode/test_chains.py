"""Replicas of chains on storage nodes over real sockets: written, read, sealed, copied, and what they survive."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path

import pytest

from tests.cluster.fillable import FillableFileSystem
from tests.core.chains import batch_of, junk, name_of
from tests.daemon.small import Caller, Small, cluster, run, until
from tests.storagenode.gated import GatedFileSystem
from varlog import errors, limits
from varlog.core.messages import (
    AddLogStream,
    Append,
    AppendReply,
    ChainCopied,
    ChainCopy,
    ChainPart,
    ChainRead,
    ChainSeal,
    ChainSealed,
    ChainWrite,
    ChainWritten,
    Digest,
    Fingerprint,
    GetDigest,
    GetFingerprint,
    Message,
    RemoveLogStream,
    ReopenLogStream,
    ReplicaReply,
    Scan,
    Scrub,
    ScrubState,
)
from varlog.storagenode.reading import TAIL_ENTRIES
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, Ordering, Sequence, StorageNodeID, TopicID
from varlog.wire import Role

TPID, LSID = TopicID(5), LogStreamID(77)
"""Nobody has registered it, and it was not given out yet: so the manager leaves it alone."""


class Chain:
    """One log stream on some nodes of a cluster, and those who talk to them."""

    def __init__(self, small: Small) -> None:
        self.small = small
        self.clients: dict[int, Caller] = {}
        self.manager: dict[int, Caller] = {}

    async def call(self, snid: int) -> None:
        self.clients[snid] = await self.small.call_node(snid)
        self.manager[snid] = await self.small.call_node(snid, Role.MANAGER)

    async def add(self, snid: int) -> None:
        """A replica on a node that has its lease."""
        await self.call(snid)
        node = self.small.nodes[snid]
        await until(lambda: node.node.chains.is_leased(node._loop.time()))
        ordering = Ordering.SEQUENCER
        reply = await self.manager[snid].ask(ReplicaReply, lambda r: AddLogStream(r, TPID, LSID, "", ordering))
        assert reply.code == 0

    async def seal(self, snid: int, epoch: int, base: int = 0, *, joins: bool = False) -> ChainSealed:
        return await self.clients[snid].ask(ChainSealed, lambda r: ChainSeal(r, LSID, Epoch(epoch), Epoch(base), joins))

    async def write(self, snid: int, *placed: tuple[int, bytes], epoch: int = 1) -> ChainWritten:
        glsns, batches = zip(*placed, strict=True)
        times = (9,) * len(glsns)
        return await self.clients[snid].ask(
            ChainWritten, lambda r: ChainWrite(r, LSID, Epoch(epoch), glsns, times, batches)
        )

    async def read(self, snid: int, glsn: int, *, epoch: int = 1, wait: bool = False, seen: int = 0) -> ChainPart:
        return await self.clients[snid].ask(
            ChainPart, lambda r: ChainRead(r, LSID, Epoch(epoch), GLSN(glsn), 1 << 20, wait, seen)
        )

    async def copied(self, snid: int, source: int, epoch: int, end: int = 0) -> ChainCopied:
        """Ask until it is a copy."""
        while True:
            copied = await self.manager[snid].ask(
                ChainCopied, lambda r: ChainCopy(r, LSID, Epoch(epoch), StorageNodeID(source), GLSN(end))
            )
            if copied.code or copied.is_complete:
                return copied

    async def fingerprint(self, snid: int, end: int) -> Fingerprint:
        return await self.clients[snid].ask(Fingerprint, lambda r: GetFingerprint(r, LSID, GLSN(1), GLSN(end)))


async def chained(small: Small, *snids: int) -> Chain:
    """A log stream in epoch 1 on these nodes."""
    chain = Chain(small)
    for snid in snids:
        await chain.add(snid)
        assert (await chain.seal(snid, 1)).code == 0
    return chain


def files_of_chain(small: Small) -> list[Path]:
    return sorted(Path(small.volumes(1)[0]).glob(f"cid=*/snid=*/lsid={LSID}/*"))


def damage(small: Small, content: bytes) -> None:
    """Change a byte of what was written."""
    for path in files_of_chain(small):
        at = path.read_bytes().find(content)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([content[0] ^ 0xFF]))


def positions(part: ChainPart) -> list[int]:
    assert part.code == 0, part
    return [line[0] for line in part.batches]


def test_S3_S4_a_chain_is_written_and_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1, streams=0) as small:
            chain = await chained(small, 1)
            assert positions(await chain.read(1, 1)) == []
            written = await chain.write(1, (1, batch_of(1)), (4, batch_of(4, 3)), (2, junk(2)))
            assert (written.code, written.refused, written.epoch, written.synced) == (0, (), 1, True)
            part = await chain.read(1, 3)
            assert positions(part) == [2, 4]
            assert (bytes(part.batches[1][6]), part.batches[1][5], part.end) == (batch_of(4, 3), 9, 7)
            again = await chain.write(1, (4, batch_of(40)), (7, batch_of(7)))
            ((number, code, glsn, time, content),) = again.refused
            assert (number, name_of(code), glsn, time, bytes(content)) == (0, "Written", 4, 9, batch_of(4, 3))
            digest = await chain.clients[1].ask(Digest, lambda r: GetDigest(r, LSID, Epoch(1), GLSN(1), True))
            assert (digest.lines, digest.end) == (((1, 7, 0, 0),), 8)
            info = next(r for r in (await small.info(1)).replicas if r.lsid == LSID)
            assert (info.tpid, info.epoch, info.durable_end, info.volume) == (TPID, 1, 8, small.volumes(1)[0])

    run(main())


def test_S4_a_single_position_is_read_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1, streams=0) as small:
            chain = await chained(small, 1)

            async def one(glsn: int, epoch: int = 1) -> ChainPart:
                return await chain.clients[1].ask(ChainPart, lambda r: ChainRead(r, LSID, Epoch(epoch), GLSN(glsn), 1))

            await chain.write(1, (2, batch_of(2, 3)), (5, batch_of(5)), (9, batch_of(9)))
            part = await one(3)
            assert (positions(part), part.end, part.seen, part.epoch) == ([2], 10, 3, 1)
            assert bytes(part.batches[0][6]) == batch_of(2, 3)
            assert [positions(await one(glsn)) for glsn in (1, 5, 6, 9, 10)] == [[2], [5], [9], [9], []]
            assert name_of((await one(5, epoch=2)).code) == "StaleEpoch"
            assert name_of((await one(0)).code) == "InvalidArgument"
            damage(small, b"5.0")
            assert name_of((await one(5)).code) == "Corrupt"
            assert positions(await one(2)) == [2], "the rest is still read"

    run(main())


def test_a_reader_at_the_end_waits_for_what_is_written(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1, streams=0) as small:
            chain = await chained(small, 1)
            reader = await small.call_node(1)
            reader.connection.send(ChainRead(99, LSID, Epoch(1), GLSN(1), 1 << 20, True, 0))
            await chain.write(1, (1, batch_of(1)))
            await until(lambda: bool(reader.heard))
            (part,) = reader.heard
            assert isinstance(part, ChainPart)
            assert positions(part) == [1]

    run(main())


def test_B3_a_chain_outlives_a_restart_and_is_read_from_files(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1, streams=0) as small:
            chain = await chained(small, 1)
            await chain.write(1, (2, batch_of(2, TAIL_ENTRIES)), (TAIL_ENTRIES + 5, batch_of(3)))
            await small.stop_node(1)
            node = await small.start_node(1)
            await chain.call(1)
            await until(lambda: node.node.chains.is_leased(node._loop.time()))
            part = await chain.read(1, 1)
            assert positions(part) == [2, TAIL_ENTRIES + 5]
            assert name_of((await chain.write(1, (2, junk()))).refused[0][1]) == "Written"
            assert name_of((await chain.seal(1, 1)).code) == "StaleEpoch"

    run(main())


def test_rule22_a_replica_becomes_a_copy_of_another_nodes(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=2, streams=0) as small:
            chain = await chained(small, 1, 2)
            placed = [(glsn, batch_of(glsn, size=2000)) for glsn in range(1, 900)]
            for at in range(0, len(placed), 300):
                await chain.write(1, *placed[at : at + 300])
            await chain.write(2, *placed[:100])
            await chain.write(2, (200, batch_of(7)), (950, junk()))
            assert (await chain.seal(1, 2, 1)).end == 900
            followed = await chain.copied(2, 1, 2)
            assert (followed.code, followed.verified, followed.copied) == (0, 101, 900)
            await chain.write(1, (900, batch_of(900)), epoch=2)
            end = (await chain.seal(1, 3, 2)).end
            await chain.seal(2, 3, 2, joins=True)
            assert name_of((await chain.read(2, 1, epoch=3)).code) == "NoSource"
            copied = await chain.copied(2, 1, 3, end)
            assert (copied.code, copied.is_complete, copied.copied) == (0, True, 901)
            one, two = await chain.fingerprint(1, 901), await chain.fingerprint(2, 901)
            assert (one.content, one.spans, one.batches) == (two.content, two.spans, two.batches)
            assert one.spans == ((1, 901),)
            assert positions(await chain.read(2, 900, epoch=3)) == [900]

    run(main())


def test_S10_a_node_that_is_not_answered_loses_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1, streams=0) as small:
            chain = await chained(small, 1)
            monkeypatch.setattr(limits, "NODE_LEASE_SECONDS", 0.5)
            address = small.vmr.address
            await small.stop_vmr()
            await until(lambda: not small.nodes[1].node.chains.is_leased(small.nodes[1]._loop.time()))
            assert name_of((await chain.write(1, (1, batch_of(1)))).code) == "LeaseExpired"
            assert name_of((await chain.read(1, 1)).code) == "LeaseExpired"
            assert (await chain.seal(1, 2)).code == 0
            monkeypatch.undo()
            await small.start_vmr(address)
            written = await chain.write(1, (1, batch_of(1)), epoch=2)
            while written.code == errors.LeaseExpired.code:
                written = await chain.write(1, (1, batch_of(1)), epoch=2)
            assert written.code == 0

    run(main())


def test_calls_of_the_other_ordering_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1, streams=1) as small:
            chain = await chained(small, 1)
            packed = batch_of(1)
            reply = await chain.clients[1].ask(
                AppendReply, lambda r: Append(r, LSID, Epoch(1), Sequence(0), LLSN(1), packed)
            )
            assert name_of(reply.code) == "WrongOrdering"
            (stream,) = small.streams()
            written = await chain.clients[1].ask(
                ChainWritten, lambda r: ChainWrite(r, stream.lsid, stream.epoch, (1,), (0,), (packed,))
            )
            assert name_of(written.code) == "WrongOrdering"
            assert (await small.append(b"x")).glsn == 1

    run(main())


NOT_FOR: Seq[tuple[Role, Message]] = (
    (Role.CLIENT, ChainCopy(9, LSID, Epoch(1), StorageNodeID(2))),
    (Role.CLIENT, ChainPart(9, LSID, 0, Epoch(1))),
    (Role.CLIENT, Digest(9, LSID, 0, Epoch(1))),
    (Role.STORAGE_NODE, ChainWrite(9, LSID, Epoch(1), (1,), (0,), (batch_of(1),))),
    (Role.STORAGE_NODE, ChainSeal(9, LSID, Epoch(7))),
    (Role.STORAGE_NODE, ChainCopy(9, LSID, Epoch(1), StorageNodeID(2))),
    (Role.MANAGER, ChainWrite(9, LSID, Epoch(1), (1,), (0,), (batch_of(1),))),
)


def test_M4_who_says_of_chains_what_it_may_not_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1, streams=0) as small:
            chain = await chained(small, 1)
            for role, message in NOT_FOR:
                bad = await small.call_node(1, role, 2)
                bad.connection.send(message)
                assert isinstance(await bad.ended, errors.ProtocolError), message
            assert positions(await chain.read(1, 1)) == []

    run(main())


def test_M2_a_chains_replica_is_removed(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1, streams=0) as small:
            chain = await chained(small, 1)
            await chain.write(1, (1, batch_of(1)))
            manager = chain.manager[1]
            kept = await manager.ask(ReplicaReply, lambda r: RemoveLogStream(r, LSID, new_only=True))
            assert name_of(kept.code) == "AlreadyExists"
            assert (await manager.ask(ReplicaReply, lambda r: RemoveLogStream(r, LSID))).code == 0
            assert name_of((await chain.read(1, 1)).code) == "UnknownLogStream"
            assert not files_of_chain(small)

    run(main())


def test_a_chains_replica_that_is_removed_while_it_is_read_answers(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            await small.start(nodes=0, streams=0)
            fs = GatedFileSystem()
            await small.start_node(1, fs)
            await small.add_nodes()
            chain = await chained(small, 1)
            await chain.write(1, (1, batch_of(1, TAIL_ENTRIES)), (TAIL_ENTRIES + 1, batch_of(2)))
            fs.reads.close()
            chain.clients[1].connection.send(ChainRead(99, LSID, Epoch(1), GLSN(1), 1 << 20))
            await until(lambda: fs.reads.waiting == 1)
            chain.manager[1].connection.send(RemoveLogStream(98, LSID))
            await until(lambda: small.nodes[1]._hosting.is_leaving(LSID))
            fs.reads.open()
            await until(lambda: bool(chain.clients[1].heard) and bool(chain.manager[1].heard))
            (part,) = chain.clients[1].heard
            assert isinstance(part, ChainPart)
            assert name_of(part.code) == "UnknownLogStream"

    run(main())


def test_M8_a_full_disk_fails_a_chains_replica_and_it_is_opened_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            await small.start(nodes=0, streams=0)
            marker = tmp_path / "full"
            await small.start_node(1, FillableFileSystem(str(marker)), segment_bytes=1 << 20)
            await small.add_nodes()
            chain = await chained(small, 1)
            assert (await chain.write(1, (1, batch_of(1)))).code == 0
            marker.touch()
            glsn, code = 2, 0
            while not code:
                code = (await chain.write(1, (glsn, batch_of(glsn, size=100_000)))).code
                glsn += 1
            assert name_of(code) == "DiskFull"
            assert positions(await chain.read(1, 1))[0] == 1
            assert name_of((await chain.seal(1, 2, 1)).code) == "DiskFull"
            marker.unlink()
            reply = await chain.manager[1].ask(ReplicaReply, lambda r: ReopenLogStream(r, LSID))
            while name_of(reply.code) == "Busy":
                reply = await chain.manager[1].ask(ReplicaReply, lambda r: ReopenLogStream(r, LSID))
            assert reply.code == 0
            assert (await chain.seal(1, 2, 1)).code == 0
            assert (await chain.write(1, (glsn + 9, batch_of(7)), epoch=2)).code == 0

    run(main())


def test_rule15_a_scrub_finds_damage_in_a_chains_replica(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1, streams=0) as small:
            chain = await chained(small, 1)
            await chain.write(1, *[(glsn, batch_of(glsn, size=500)) for glsn in range(1, 50)])
            await chain.write(1, (60, batch_of(60)))
            damage(small, b"17.0")
            client = chain.clients[1]
            state = await client.ask(ScrubState, lambda r: Scrub(r, True))
            while state.is_under_way:
                state = await client.ask(ScrubState, Scrub)
            assert state.damaged == (LSID,)
            info = next(r for r in (await small.info(1)).replicas if r.lsid == LSID)
            assert (info.healthy, name_of(info.fault)) == (False, "Corrupt")
            assert name_of((await chain.seal(1, 2, 1)).code) == "Corrupt"
            assert name_of((await chain.write(1, (70, junk()))).code) == "Corrupt"

    run(main())


def test_a_scan_of_a_chain_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, nodes=1, streams=0) as small:
            chain = await chained(small, 1)
            chain.clients[1].connection.send(Scan(99, LSID, GLSN(1), 1, False))
            await until(lambda: bool(chain.clients[1].heard))
            assert name_of(chain.clients[1].heard[0].code) == "WrongOrdering"  # type: ignore[attr-defined]

    run(main())
