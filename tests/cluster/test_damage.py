"""What a kill and a rotten disk do to data, and what the rest of the cluster makes of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

import varlog
from tests.cluster.cluster import Cluster, Files
from tests.cluster.inspection import stored_in
from tests.cluster.processes import Daemon
from tests.cluster.proxy import Direction
from tests.cluster.recorder import RecordedLog, judge
from tests.cluster.waiting import until
from varlog.errors import VarlogError
from varlog.sim.history import History, Kind, Operation, Outcome

ENTRIES = 200


async def append(client: RecordedLog, name: str, entries: int = ENTRIES, size: int = 0) -> None:
    batches = [[f"{name}/{number}/".encode() + bytes(size)] for number in range(entries)]
    done = await asyncio.gather(*map(client.append, batches))
    assert all(done)


@pytest.mark.parametrize("sync", [True, False], ids=["synced", "unsynced"])
def test_a_kill_takes_what_was_not_synced(sync: bool, tmp_path: Path) -> None:
    """The forgetful files have teeth: nodes that report before they have synced lose what they reported."""

    async def test() -> None:
        async with Cluster(tmp_path / "cluster", files=Files.FORGETFUL, streams=1) as cluster:
            for node in cluster.nodes:
                await node.stop()
                node.flags = [] if sync else ["--no-sync"]
            await cluster.start()
            await cluster.settled()
            async with varlog.connect(cluster.path) as log:
                client = RecordedLog("writer", log, History(monotonic))
                await append(client, "entry")
            await cluster.kill()
            kept = [stored_in(cluster.volume(node.name), tmp_path / "inspected") for node in cluster.nodes]
            assert kept == [{1: ENTRIES}] * 3 if sync else all(stored[1] < ENTRIES for stored in kept)

    asyncio.run(test())


def flip_a_bit(volume: Path, lsid: int, text: bytes) -> None:
    """Of an entry in a replica's files."""
    for path in volume.glob(f"cid=*/snid=*/lsid={lsid}/*.seg"):
        data = bytearray(path.read_bytes())
        if text in data:
            data[data.index(text)] ^= 1
            path.write_bytes(data)


async def read_until_found(cluster: Cluster, written: Operation, node: Daemon) -> None:
    """Nobody reads all of a closed segment at a start; whoever reads the place later finds it."""

    async def is_found() -> bool:
        with suppress(VarlogError):
            await admin.fingerprint(2, written.lsid, 1, written.glsn + 1)
        return "damage found" in node.said()

    async with varlog.admin(cluster.path) as admin:
        await until(is_found)


async def live_through_damage(directory: Path, *, closed: bool) -> None:
    history = History(monotonic)
    async with Cluster(directory) as cluster:
        node = cluster.nodes[1]
        async with varlog.connect(cluster.path) as log:
            client = RecordedLog("client", log, history)
            for number in range(3):
                await append(client, f"before/{number}")  # so that the first ones are proven to have been synced
            first = history.of(Kind.APPEND)[0]
            if closed:
                await append(client, "filling", 20, 100_000)
            await cluster.kill(node)
            flip_a_bit(cluster.volume(node.name), first.lsid, first.payloads[0])
            await node.start()
            repaired = asyncio.create_task(
                cluster.vms.says(f"log stream {first.lsid}: the replica on node 2 is corrupt; it is removed")
            )
            if closed:
                await read_until_found(cluster, first, node)
            await repaired
            await append(client, "after")
            for _ in range(3):
                await client.scan(1, await client.tail() + 1)
            assert {scan.outcome for scan in history.of(Kind.SCAN)} == {Outcome.OK}
        await cluster.settled()
        assert set((await cluster.stop()).values()) == {0}
        evidence = await cluster.evidence(history)
        assert not any(dump.damaged for dump in evidence.replicas)
        judge(evidence, directory)


@pytest.mark.parametrize("closed", [False, True], ids=["newest segment", "closed segment"])
def test_a_damaged_replica_is_found_passed_over_and_copied_anew(closed: bool, tmp_path: Path) -> None:
    """A bit flips while its node is down. The replica says so, at its start or when that is read, and is in nobody's
    way: entries are read from the others, appends go on without it, and it is removed and copied from another."""
    asyncio.run(live_through_damage(tmp_path / "cluster", closed=closed))


async def live_through_flipped_bits(directory: Path) -> None:
    history = History(monotonic)
    async with Cluster(directory, streams=1, proxied=True) as cluster:
        for number, node in enumerate(cluster.nodes):
            proxy = cluster.proxies[node.name]
            async with varlog.connect(cluster.path) as log:
                client = RecordedLog(f"client{number}", log, history)
                await client.append([f"warm/{number}".encode()])
                proxy.corrupt(Direction.TO_TARGET, after=20_000)
                await client.append([f"flipped/{number}/".encode() + bytes(50_000)])
                await client.append([f"next/{number}".encode()])
                await proxy.heal()
                proxy.corrupt(Direction.FROM_TARGET, after=20_000)
                await client.scan(1, await client.tail() + 1)
                await proxy.heal()
        assert {scan.outcome for scan in history.of(Kind.SCAN)} == {Outcome.OK}
        await cluster.settled()
        assert set((await cluster.stop()).values()) == {0}
        judge(await cluster.evidence(history), directory)


def test_a_bit_that_flips_on_the_way_is_found(tmp_path: Path) -> None:
    """In a batch, between client and primary, primary and backup, replica and reader: no one stores or delivers it."""
    asyncio.run(live_through_flipped_bits(tmp_path / "cluster"))
