"""Reads at the tail are done at once, older ones in threads; what waits is bounded, and stopping waits for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.core.replica import Replica
from tests.daemon.small import SECONDS, run, until
from tests.storagenode.gated import GatedFileSystem
from varlog import batch, errors, limits
from varlog.core.messages import Scan
from varlog.core.storagenode import ReadPlan
from varlog.storage.log import LogStreamStorage
from varlog.storagenode.reading import TAIL_ENTRIES, Plan, Reading, Result
from varlog.types import (
    GLSN,
    LLSN,
    ClusterID,
    CommitContext,
    Epoch,
    LogStreamID,
    LogStreamIdentity,
    Sequence,
    StorageNodeID,
    TopicID,
    Version,
)

IDENTITY = LogStreamIdentity(ClusterID(1), StorageNodeID(2), TopicID(3), LogStreamID(4))
ENTRIES = 2 * TAIL_ENTRIES


class Shelf:
    """A log of two batches, the first of which is older than the tail, and what was read of it."""

    def __init__(self, path: Path) -> None:
        self.fs = GatedFileSystem()
        self.storage = LogStreamStorage.create(self.fs, str(path / "log"), IDENTITY)
        packed = batch.encode([b"x"] * TAIL_ENTRIES, writer_id=1, sequence=1)
        for begin in (1, TAIL_ENTRIES + 1):
            self.storage.stage_batch(LLSN(begin), Epoch(2), Sequence(0), packed, batch.verify(packed))
        self._write()
        self.storage.stage_commit(
            CommitContext(Version(9), Epoch(2), GLSN(ENTRIES), GLSN(0), LLSN(1), GLSN(1), ENTRIES, 0)
        )
        self._write()
        self.results: list[tuple[int, Result]] = []
        self.reading = Reading(asyncio.get_running_loop(), self._on_read)
        self._executor = Replica().executor

    def _on_read(self, plan: Plan, result: Result) -> None:
        assert isinstance(plan, ReadPlan)
        self.results.append((plan.scan.request, result))

    def _write(self) -> None:
        group = self.storage.take()
        assert group is not None
        self.storage.write(group)
        self.storage.sync(group)
        self.storage.finish(group)

    def ask(self, request: int, begin: int) -> None:
        scan = Scan(request, IDENTITY.lsid, GLSN(begin), 1 << 20, False)
        self.reading.submit(ReadPlan("client", scan, self._executor, GLSN(ENTRIES + 1), GLSN(ENTRIES)), self.storage)

    def found(self) -> dict[int, Any]:
        """How many batches each request got, or which error."""
        return {
            request: type(result) if isinstance(result, errors.VarlogError) else len(result)
            for request, result in self.results
        }


def test_the_tail_is_read_at_once_and_the_past_by_a_thread(tmp_path: Path) -> None:
    async def main() -> None:
        shelf = Shelf(tmp_path)
        shelf.fs.reads.close()
        shelf.ask(1, 1)
        shelf.ask(2, TAIL_ENTRIES + 1)
        assert shelf.found() == {2: 1}
        await until(lambda: shelf.fs.reads.waiting == 1)
        assert shelf.reading.is_busy(shelf.storage)
        shelf.fs.reads.open()
        await until(lambda: len(shelf.results) == 2)
        assert shelf.found() == {1: 2, 2: 1}
        assert not shelf.reading.is_busy(shelf.storage)
        assert shelf.reading.waiting == 0
        await shelf.reading.stop()

    run(main())


def test_what_waits_for_a_thread_is_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        shelf = Shelf(tmp_path)
        shelf.fs.reads.close()
        for request in range(limits.MAX_READS_UNDER_WAY + 2):
            shelf.ask(request, 1)
        assert list(shelf.found().values()) == [errors.Busy] * 2, "who comes too late is told at once"
        shelf.fs.reads.open()
        await until(lambda: len(shelf.results) == limits.MAX_READS_UNDER_WAY + 2)
        assert list(shelf.found().values()).count(2) == limits.MAX_READS_UNDER_WAY
        await shelf.reading.stop()

    run(main())


def test_stopping_waits_for_reads_that_have_begun_and_does_no_others(tmp_path: Path) -> None:
    async def main() -> None:
        shelf = Shelf(tmp_path)
        shelf.fs.reads.close()
        for request in range(10):
            shelf.ask(request, 1)
        await until(lambda: shelf.fs.reads.waiting == 2)
        stopping = asyncio.ensure_future(shelf.reading.stop())
        done, _ = await asyncio.wait({stopping}, timeout=0)
        assert not done
        shelf.fs.reads.open()
        await stopping
        found = list(shelf.found().values())
        assert sorted(map(str, found)) == sorted(map(str, [2] * 2 + [errors.Busy] * 8))
        shelf.storage.close()

    run(main())


def test_errors_of_the_disk_are_the_readers_to_know(tmp_path: Path) -> None:
    async def main() -> None:
        shelf = Shelf(tmp_path)
        shelf.storage.stage_trim(LLSN(11), GLSN(10), Version(9), Epoch(2))
        shelf.ask(1, 1)
        await until(lambda: bool(shelf.results))
        assert shelf.found() == {1: errors.Trimmed}
        await shelf.reading.stop()

    run(main())


def test_a_mistake_in_a_thread_is_not_kept_where_nobody_looks(tmp_path: Path) -> None:
    """It surfaces in the loop, where it ends a daemon; and who reads is answered."""
    strays: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: strays.append(context["exception"]))
        shelf = Shelf(tmp_path)
        shelf.storage._reader = None  # type: ignore[assignment]
        shelf.ask(1, 1)
        await until(lambda: bool(shelf.results))
        assert shelf.found() == {1: errors.Poisoned}
        assert shelf.reading.waiting == 0
        await shelf.reading.stop()

    asyncio.run(asyncio.wait_for(main(), SECONDS))
    assert [type(stray) for stray in strays] == [AttributeError]


@pytest.mark.parametrize("most", [1, 100, 1 << 20])
def test_a_read_is_as_large_as_was_asked_for_but_a_batch_at_least(tmp_path: Path, most: int) -> None:
    async def main() -> None:
        shelf = Shelf(tmp_path)
        scan = Scan(1, IDENTITY.lsid, GLSN(1), most, False)
        plan = ReadPlan("client", scan, Replica().executor, GLSN(ENTRIES + 1), GLSN(ENTRIES))
        shelf.reading.submit(plan, shelf.storage)
        await until(lambda: bool(shelf.results))
        assert shelf.found() == {1: 2 if most == 1 << 20 else 1}
        await shelf.reading.stop()

    run(main())
