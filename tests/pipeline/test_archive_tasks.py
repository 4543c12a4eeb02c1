"""What one task of the archive job does, on a cluster in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import varlog
from tests.archive.made import create
from tests.client.rig import until
from varlog import errors
from varlog.archive import Archive, Range
from varlog.oneprocess import EmbeddedCluster
from varlog.pipeline.archive_tasks import Part, outcome
from varlog.spark.connections import connections
from varlog.spark.options import Connection
from varlog.types import StreamStatus

SECONDS = 60.0


async def work(path: Path, uri: str, begin: int, end: int, topic: str) -> dict[str, Any]:
    """One task, beside the cluster."""
    connection = Connection(str(path), topic)
    (row,) = (await asyncio.to_thread(outcome, connection, uri, Part(begin, end), 0)).to_pylist()
    found: dict[str, Any] = row
    return found


def test_what_was_declared_lost_has_no_row_and_everything_else_has(tmp_path: Path) -> None:
    """Two log streams of one replica each, and one of them is gone."""

    async def main() -> None:
        cluster = await EmbeddedCluster.start(tmp_path / "data")
        path = cluster.path
        async with varlog.admin(path) as admin, asyncio.timeout(SECONDS):
            await admin.add_topic("scratch", replication_factor=1, streams=2)
            async with varlog.connect(path, topic="scratch") as log:
                for number in range(40):
                    await log.append(b"%d" % number)
                entries = {entry.glsn: entry async for batch in log.scan() for entry in batch}
            streams = {entry.log_stream for entry in entries.values()}
            assert len(streams) == 2
            gone, stays = sorted(streams)
            (only,) = next(s.replicas for s in await admin.streams("scratch") if s.lsid == gone)
            await cluster.nodes[only - 1].stop()

            def is_sealed() -> bool:
                known = cluster.manager.metadata
                return known is not None and any(
                    s.lsid == gone and s.status is StreamStatus.SEALED for s in known.streams
                )

            await until(is_sealed)
            await admin.declare_lost(gone, gone=[only])
        made = create(tmp_path / "it")
        row = await work(path, made.uri, 1, 41, "scratch")
        assert row["code"] == 0, row["detail"]
        made.commit([Range(row["begin"], row["end"], row["path"], row["rows"], row["bytes"])], 1)
        kept = [glsn for glsn, entry in sorted(entries.items()) if entry.log_stream == stays]
        found = [glsn for batch in Archive.open(made.uri).scan(1, 41) for glsn in batch.column("glsn").to_pylist()]
        assert found == kept
        connections.close()
        await cluster.stop()

    asyncio.run(main())


def test_what_was_trimmed_is_an_error_with_its_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path / "data") as log:
            await log.append_batch([b"%d" % number for number in range(20)])
            await log.trim(5)
            row = await work(tmp_path / "data", create(tmp_path / "it").uri, 3, 21, "log")
            assert row["code"] == errors.Trimmed.code
            assert "the log now begins at 6" in row["detail"]
            assert list((tmp_path / "it" / "data").iterdir()) == []
        connections.close()

    asyncio.run(main())
