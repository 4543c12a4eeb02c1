"""etcd-size: how large etcd's database is after 20,000 cuts, and after 40,000.

A metadata repository on an etcd of three members, with 16 log streams of three replicas each, decides one cut after
another. etcd keeps every revision of every key until it is told to forget, which the store does; pages that are freed
so are used again. So the file grows up to what is kept, and no further: `etcd-size` is the largest file of a member
after 40,000 cuts, and what stands beside it is the one after 20,000.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from benchmarks.harness import Row, options, report, scratch
from varlog.core.address import Address, node_address
from varlog.core.branches import ignore
from varlog.core.messages import (
    Commit,
    CreateStream,
    CreateTopic,
    Decided,
    Message,
    RegisterManager,
    RegisterNode,
    RegisterStream,
    Report,
    ReportLine,
    RunStream,
    UnsealStream,
)
from varlog.core.metarepo import MetadataRepository, Role
from varlog.etcdserver import EtcdCluster
from varlog.metarepo.etcd.store import EtcdStore
from varlog.metarepo.stores import open_etcd
from varlog.types import Epoch, LogStreamID, StorageNodeID, TopicID

NODES = tuple(map(StorageNodeID, (1, 2, 3)))
STREAMS = range(1, 17)
TOPIC = TopicID(1)
RUNNING = Epoch(2)
ENTRIES = 10
CUTS = 20_000
SECONDS = 10.0
"""For one decision."""
MIB = 1 << 20


class Cutting:
    """A metadata repository on etcd, and the mouths of its storage nodes."""

    def __init__(self, store: EtcdStore) -> None:
        self._repository = MetadataRepository(store, self._hear, ignore)
        self._changed = asyncio.Event()
        self._decided: list[Decided] = []
        self._sequence = 0
        self._end = 1

    def _hear(self, _: Address, message: Message) -> None:
        if isinstance(message, Decided):
            self._decided.append(message)
        if isinstance(message, Decided | Commit):
            self._changed.set()

    async def _wait(self, version: int) -> None:
        async with asyncio.timeout(SECONDS):
            while self._repository.state.version < version:
                self._changed.clear()
                await self._changed.wait()

    async def _ask(self, message: Message) -> None:
        version = self._repository.state.version
        self._repository.on_message("bench", message, 0.0)
        await self._wait(version + 1)
        assert self._decided.pop().code == 0

    async def set_up(self) -> None:
        self._repository.on_turn_of_role = self._changed.set
        self._repository.campaign(0.0)
        async with asyncio.timeout(SECONDS):
            while self._repository.role is not Role.LEADING:
                self._changed.clear()
                await self._changed.wait()
        await self._ask(RegisterManager(0, "bench:1"))
        for snid in NODES:
            await self._ask(RegisterNode(0, snid))
        await self._ask(CreateTopic(0, "log", len(NODES), 2))
        for lsid in map(LogStreamID, STREAMS):
            await self._ask(CreateStream(0, TOPIC))
            await self._ask(RegisterStream(0, lsid, NODES))
            await self._ask(UnsealStream(0, lsid, Epoch(RUNNING - 1), NODES, NODES[0]))
            await self._ask(RunStream(0, lsid, RUNNING))

    async def cut(self) -> None:
        """Every replica has stored more, and has its earlier commits on disk."""
        version = self._repository.state.version
        committed, self._end = self._end, self._end + ENTRIES
        self._sequence += 1
        lines: list[ReportLine] = [(number, RUNNING, version, committed, self._end, True) for number in STREAMS]
        for snid in NODES:
            report_ = Report(snid, 1, self._sequence, version, tuple(lines), full=False, ask=False)
            self._repository.on_message(node_address(snid), report_, 0.0)
        await self._wait(version + 1)


def largest(etcd: EtcdCluster) -> float:
    """MiB of the largest database file of a member."""
    return max((member.path / "member" / "snap" / "db").stat().st_size for member in etcd.members) / MIB


async def grow(directory: Path) -> tuple[float, float]:
    async with EtcdCluster(directory) as etcd:
        store = await open_etcd(etcd.url("varlog"), any_version=not etcd.program.is_sound)
        try:
            cutting = Cutting(store)
            await cutting.set_up()
            sizes = []
            for _ in range(2):
                for _ in range(CUTS):
                    await cutting.cut()
                sizes.append(largest(etcd))
        finally:
            await store.close()
    return sizes[0], sizes[1]


def row(before: float, after: float) -> Row:
    note = f"MiB of the largest database file after {2 * CUTS} cuts; the limit is its size after {CUTS}"
    return Row("etcd-size", after, "MiB", f"after {CUTS:,} cuts", before, after / before, "<=", 1.1, note)


def main() -> int:
    options(__doc__).parse_args()
    with scratch() as directory:
        return report("etcd-size", [row(*asyncio.run(grow(directory)))])


if __name__ == "__main__":
    sys.exit(main())
