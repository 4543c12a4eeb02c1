"""Chains of real processes: members die, lose their disks, are drained; the log goes on without them, and they come
back at the tail, while appends go on."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import varlog
from tests.cluster.waiting import until
from varlog.client.administering import Admin
from varlog.client.log import Log
from varlog.core.projection import Chain, Projection
from varlog.processes import LocalCluster


class Writer:
    """Appends numbers, one after another, and remembers where they are."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.acknowledged: list[int] = []

    async def run(self) -> None:
        while True:
            await self.append()

    async def append(self) -> None:
        appended = await self._log.append(b"%d" % len(self.acknowledged))
        self.acknowledged.append(appended.glsn)

    async def has_more(self, entries: int = 20) -> None:
        """Wait until so many more were acknowledged."""
        wanted = len(self.acknowledged) + entries

        async def has() -> bool:
            return len(self.acknowledged) >= wanted

        await until(has)

    async def check(self) -> None:
        """Everything is where it was acknowledged, once, and nothing else is there."""
        tail = await self._log.tail()
        found = {int(entry.glsn): entry.data async for batch in self._log.scan(1, tail + 1) for entry in batch}
        assert [found[glsn] for glsn in self.acknowledged] == [b"%d" % n for n in range(len(self.acknowledged))]
        assert self.acknowledged == sorted(self.acknowledged)
        assert len(found) <= len(self.acknowledged) + 1, "one may be under way when it ends"


class Chained:
    """A cluster with a topic that a sequencer orders."""

    def __init__(self, cluster: LocalCluster, admin: Admin) -> None:
        self.cluster = cluster
        self.admin = admin

    async def projection(self) -> Projection:
        (topic,) = (await self.admin.metadata()).topics
        assert topic.projection is not None
        return topic.projection

    async def until_chains(self, holds: Callable[[Chain], bool]) -> Projection:
        async def do() -> bool:
            return all(holds(chain) for chain in (await self.projection()).chains)

        await until(do)
        return await self.projection()

    async def check_equal(self, log: Log) -> None:
        """All members of every chain have the same, up to the tail."""
        end = await log.tail() + 1
        for chain in (await self.projection()).chains:
            found = [await self.admin.fingerprint(snid, chain.lsid, 1, end) for snid in chain.nodes]
            assert len({(one.next_glsn, one.content, one.spans) for one in found}) == 1, found


@asynccontextmanager
async def chained(path: Path, nodes: int, streams: int) -> AsyncIterator[Chained]:
    async with (
        LocalCluster(path, nodes=nodes, streams=streams, ordering="sequencer") as cluster,
        varlog.admin(cluster.path) as admin,
    ):
        yield Chained(cluster, admin)


def test_S3_S6_head_middle_and_tail_die_in_turn_and_come_back_under_load(tmp_path: Path) -> None:
    async def main() -> None:
        async with chained(tmp_path, 3, 2) as chains, varlog.connect(tmp_path) as log:
            writer = Writer(log)
            writing = asyncio.create_task(writer.run())
            await writer.has_more()
            for which in range(3):
                snid = (await chains.projection()).chains[0].nodes[which]
                node = chains.cluster.nodes[snid - 1]
                await node.kill()
                await writer.has_more()
                if which == 2:  # and B11: it loses its disk, too
                    shutil.rmtree(tmp_path / f"node-{snid}")
                    (tmp_path / f"node-{snid}").mkdir()
                await node.start()
                whole = await chains.until_chains(lambda chain: len(chain.nodes) == 3)
                assert all(chain.tail == snid for chain in whole.chains)
                await writer.has_more()
            writing.cancel()
            await writer.check()
            await chains.check_equal(log)

    asyncio.run(main())


def test_a_chain_goes_on_with_one_member_though_nobody_appends_and_a_node_is_drained(tmp_path: Path) -> None:
    async def main() -> None:
        async with chained(tmp_path, 4, 1) as chains:
            cluster, admin = chains.cluster, chains.admin
            members = (await chains.projection()).chains[0].nodes
            away = [cluster.nodes[snid - 1] for snid in members[:2]]
            for node in away:
                await node.kill()
            whole = await chains.until_chains(lambda chain: chain.nodes == (members[2],))
            assert whole.epoch <= 3, "by the manager"
            async with varlog.connect(tmp_path) as log:
                writer = Writer(log)
                await writer.append()
                diagnosis = await admin.diagnose()
                assert "stream-short" in {finding.kind for finding in diagnosis.findings}
                assert any("nothing protects it until another is added" in said for said in diagnosis.doing)
                for node in away:
                    await node.start()
                await chains.until_chains(lambda chain: len(chain.nodes) == 3)
                await writer.append()
                await admin.drain_node(members[2])
                await chains.until_chains(lambda chain: len(chain.nodes) == 3 and members[2] not in chain.nodes)
                await writer.append()
                await writer.check()
                await chains.check_equal(log)

    asyncio.run(main())
