"""Metadata is lost, is restored from an old backup, or moves to another store: real processes, real files, and the
commands that help.

After a rebuild the log is judged by what clients were told before: whatever was acknowledged at a position that the
disks know of is there, and all else is listed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import varlog
from tests.cluster.cluster import CID, TOPIC, Cluster, Files
from tests.cluster.load import load_on
from tests.metarepo.test_backup import on_etcd
from varlog.cli import main
from varlog.daemon.service import Exit
from varlog.errors import Lost
from varlog.etcdserver import EtcdCluster
from varlog.sim.history import History, Kind, Outcome

ENTRIES = 20
Captured = pytest.CaptureFixture[bytes]


class Operator:
    """Calls commands on a stopped cluster's files."""

    def __init__(self, cluster: Cluster, captured: Captured) -> None:
        self.cluster = cluster
        self.metadata = str(cluster.path / "meta")
        self._captured = captured

    async def run(self, *arguments: str) -> Any:
        """The object that a command prints."""
        self._captured.readouterr()
        code = await asyncio.to_thread(main, ["metadata", *arguments, "--json"])
        out, err = self._captured.readouterr()
        assert code == 0, err.decode()
        return json.loads(out)

    async def survey(self) -> list[str]:
        """The surveys of all nodes."""
        files = []
        for node in self.cluster.nodes:
            files.append(str(self.cluster.path / f"{node.name}.survey"))
            told = await self.run("survey", str(self.cluster.volume(node.name)), "--out", files[-1])
            assert told["node"] == int(node.options["snid"])
        return files


async def entries_of(cluster: Cluster) -> dict[int, bytes]:
    """All that can be read, by position."""
    found: dict[int, bytes] = {}
    async with varlog.connect(cluster.path) as log:
        begin, end = 1, (await log.tail()) + 1
        while begin < end:
            try:
                async for batch in log.scan(begin, end):
                    found.update({entry.glsn: bytes(entry.data) for entry in batch})
                begin = end
            except Lost as lost:
                begin = lost.end
    return found


def acknowledged(history: History) -> dict[int, bytes]:
    """What clients were told, by position."""
    appends = [op for op in history.of(Kind.APPEND) if op.outcome is Outcome.OK]
    return {op.glsn + number: payload for op in appends for number, payload in enumerate(op.payloads)}


async def runs_whole(cluster: Cluster) -> None:
    """Wait until every log stream runs on all its replicas."""
    await cluster.is_on(lambda replicas: len(replicas) == cluster.factor)


def test_O2_metadata_is_rebuilt_from_the_storage_nodes_alone(tmp_path: Path, capfdbinary: Captured) -> None:
    """Power fails under load, and with it go the metadata and whatever no disk had synced."""

    async def scenario() -> None:
        async with Cluster(tmp_path / "cluster", files=Files.FORGETFUL) as cluster:
            async with load_on(cluster, seed=1, trims=False) as load:
                await load.grows(100)
                await cluster.kill()
            operator = Operator(cluster, capfdbinary)
            shutil.rmtree(operator.metadata)
            wanted = ("rebuild", *await operator.survey(), operator.metadata, "--topic", f"1={TOPIC}", "--declare-lost")
            plan = await operator.run(*wanted, "--dry-run")
            assert "meta" not in os.listdir(cluster.path)
            told = await operator.run(*wanted)
            assert (told["version"], told["topics"], told["cluster"]) == (plan["version"], plan["topics"], CID)
            (topic,) = told["topics"]
            await cluster.start()
            await runs_whole(cluster)
            there, known = await entries_of(cluster), acknowledged(load.history)
            lost = {position for begin, end in topic["lost"] for position in range(begin, end)}
            assert there.keys() | lost == set(range(1, topic["last"] + 1))
            assert known.keys() <= there.keys() | lost
            assert all(there[position] == known[position] for position in known.keys() - lost)
            listed = {
                (one["log_stream"], one["llsn_begin"] + n) for one in told["uncommitted"] for n in range(_length(one))
            }
            assert len(lost) <= len(listed)
            async with varlog.connect(cluster.path) as log:
                assert (await log.append(b"after")).glsn == topic["last"] + 1

    asyncio.run(scenario())


def _length(listed: Any) -> int:
    length: int = listed["llsn_end"] - listed["llsn_begin"]
    return length


def test_rule5_nodes_stop_when_an_old_backup_is_restored_and_a_rebuild_brings_all_back(
    tmp_path: Path, capfdbinary: Captured
) -> None:
    async def scenario() -> None:
        async with Cluster(tmp_path / "cluster") as cluster:
            operator = Operator(cluster, capfdbinary)
            old = str(cluster.path / "old.backup")
            before = await grow(cluster, "before")
            assert await cluster.vmr.stop() == 0
            assert (await operator.run("backup", operator.metadata, old))["topics"] == 1
            await cluster.start(cluster.vmr)
            restarted, *others = cluster.nodes
            assert await restarted.stop() == 0
            await cluster.start(restarted)
            await cluster.settled()
            since = await grow(cluster, "since")
            assert await cluster.vmr.stop() == 0
            restored = await operator.run("restore", old, operator.metadata, "--replace")
            await cluster.start(cluster.vmr)
            for node in others:
                assert await node.ended() == Exit.PROTECTED
                assert "its metadata was restored from an older state" in node.said()
            assert await restarted.ended() == Exit.PROTECTED
            assert "empty nothing: varlog metadata rebuild" in restarted.said()
            await cluster.kill(cluster.vmr, *cluster.managers)

            surveys = await operator.survey()
            told = await operator.run("rebuild", *surveys, operator.metadata, "--backup", old, "--replace")
            assert told["term"] > restored["term"]
            assert told["uncommitted"] == told["remarks"] == told["topics"][0]["lost"] == []
            await cluster.start()
            await cluster.settled()
            assert await entries_of(cluster) == before | since
            assert (await grow(cluster, "after")).keys() == {len(before | since) + 1 + n for n in range(ENTRIES)}
            await cluster.settled()

    asyncio.run(scenario())


async def grow(cluster: Cluster, name: str) -> dict[int, bytes]:
    """Append some entries; by position."""
    entries = [f"{name} {number}".encode() for number in range(ENTRIES)]
    async with varlog.connect(cluster.path) as log:
        return {(await log.append(entry)).glsn: entry for entry in entries}


def test_O2_a_cluster_moves_from_its_journal_to_etcd_and_back(
    tmp_path: Path, capfdbinary: Captured, etcd: EtcdCluster
) -> None:
    """The metadata repository is stopped for it; everybody else runs on, and notices nothing but that."""

    async def scenario() -> None:
        async with Cluster(tmp_path / "cluster") as cluster:
            operator = Operator(cluster, capfdbinary)
            options, where = cluster.vmr.options, on_etcd(etcd)
            any_version = () if etcd.program.is_sound else ("--etcd-any-version",)
            entries = await grow(cluster, "in the journal")
            assert await cluster.vmr.stop() == 0
            await operator.run("copy", operator.metadata, where, *any_version)
            shutil.rmtree(options.pop("path"))
            options |= {"store": where} | ({} if etcd.program.is_sound else {"etcd_any_version": "true"})
            await cluster.start(cluster.vmr)
            entries |= await grow(cluster, "on etcd")
            running = str(cluster.path / "running.backup")
            assert (await operator.run("backup", where, running, *any_version))["storage_nodes"] == len(cluster.nodes)
            assert await cluster.vmr.stop() == 0
            await operator.run("copy", where, operator.metadata, "--cid", str(CID), *any_version)
            for name in ("store", "etcd_any_version"):
                options.pop(name, None)
            options["path"] = operator.metadata
            await cluster.start(cluster.vmr)
            entries |= await grow(cluster, "in the journal again")
            assert await entries_of(cluster) == entries
            assert entries.keys() == set(range(1, 3 * ENTRIES + 1))

    asyncio.run(scenario())
