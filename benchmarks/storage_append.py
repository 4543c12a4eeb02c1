"""storage-append: storing verified batches, synced, against writing the same bytes to a plain file.

The storage is driven as in production: its owner lays batches out while the writer's thread writes and syncs the group
before; groups form by themselves, segments roll, every group is committed (which takes no sync of its own).
The limit takes the same batches in the same groups, and does nothing but write each group at the end of one plain file
and sync it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter

from benchmarks.harness import Row, against_limit, in_turns
from benchmarks.one_replica import MB, Arrived, Replica, make_batches
from varlog.errors import VarlogError
from varlog.storage.group import WriteGroup
from varlog.storage.grouped import AnyLog
from varlog.storage.writer import GroupCommitWriter

BATCHES = 2000
UNDER_WAY = 16
ARRIVING = 8
"""So many batches arrive while a group is being written."""

Ready = SimpleQueue[tuple[WriteGroup | None, VarlogError | None]]


class Appending:
    """One round after another; the plain file follows the groups of the round before."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._batches: list[Arrived] = make_batches(64)
        self._groups: list[list[bytes]] = []

    def _batch(self, number: int) -> Arrived:
        return self._batches[number % len(self._batches)]

    def store(self) -> float:
        """MB/s of batches into a log."""
        path = self._directory / "log"
        replica = Replica.create(path)
        replica.write()
        writer = GroupCommitWriter()
        begin = perf_counter()
        counts = self._append_all(replica, writer)
        elapsed = perf_counter() - begin
        writer.stop()
        replica.storage.close()
        shutil.rmtree(path)
        numbers = iter(range(BATCHES))
        self._groups = [[self._batch(next(numbers)).data for _ in range(count)] for count in counts]
        return self._megabytes() / elapsed

    def _append_all(self, replica: Replica, writer: GroupCommitWriter) -> list[int]:
        """Append every batch; how many there were in each group."""
        ready: Ready = SimpleQueue()

        def done(_: AnyLog, group: WriteGroup | None, error: VarlogError | None) -> None:
            ready.put((group, error))

        counts: list[int] = []
        staged = durable = 0

        def arrive() -> None:
            nonlocal staged
            end = min(BATCHES, staged + ARRIVING, durable + UNDER_WAY)
            while staged < end:
                replica.stage(self._batch(staged))
                staged += 1

        arrive()
        while durable < BATCHES:
            writer.submit(replica.storage, done)
            arrive()
            group, error = ready.get()
            assert group is not None
            assert error is None
            counts.append(replica.finish(group))
            durable += counts[-1]
        return [count for count in counts if count]

    def write_plainly(self) -> float:
        """MB/s of the same groups into a plain file."""
        path = self._directory / "plain"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        begin = perf_counter()
        for group in self._groups:
            os.writev(fd, group)
            os.fdatasync(fd)
        elapsed = perf_counter() - begin
        os.close(fd)
        path.unlink()
        return self._megabytes() / elapsed

    def _megabytes(self) -> float:
        return sum(len(self._batch(number).data) for number in range(BATCHES)) / MB


def measure(directory: Path) -> list[Row]:
    appending = Appending(directory)
    rounds = in_turns(9, appending.store, appending.write_plainly)
    return [against_limit("storage-append", "MB/s", rounds, "plain file", ">=", 0.8)]
