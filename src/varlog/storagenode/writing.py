"""Writing: carries what the replicas stage to their disks, in the event loop's own thread or in a writer's.

A group that is small goes to disk right here, in the event loop. On a disk that syncs in a fraction of a millisecond,
two hops between threads cost as much as the sync they would hide, and what arrives meanwhile waits in the sockets and
makes up the next group. A large group, or any on a disk that has lately been slow, goes to the volume's writer thread
(`GroupCommitWriter`), and the loop serves others meanwhile.

There is one group of a replica under way at a time. Before the loop waits for the disk, what was sent to others is
handed to the kernel, and where several replicas have something to write the loop looks at its sockets in between.

Files that a trim has left are deleted beside all that, in another thread: some of one replica at a time, so that they
are in nobody's way for long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from varlog.daemon import logs
from varlog.errors import VarlogError
from varlog.storage.group import WriteGroup
from varlog.storage.grouped import AnyLog
from varlog.storage.writer import GroupCommitWriter, write_next

INLINE_BYTES: Final = 256 * 1024
INLINE_SECONDS: Final = 0.002
"""A disk that takes longer than this, on the average of late, is left to the thread."""
_SMOOTHING: Final = 0.2

Finished = Callable[[AnyLog, WriteGroup | None, VarlogError | None], None]
"""As `varlog.storage.writer.Done`, on the event loop; (storage, None, None) also when files of it were deleted."""


class VolumeWriting:
    """The writing on one volume."""

    def __init__(self, loop: asyncio.AbstractEventLoop, finished: Finished) -> None:
        self._loop = loop
        self._finished = finished
        self._thread: GroupCommitWriter | None = None
        self._busy: set[AnyLog] = set()
        self._idle: asyncio.Future[None] | None = None
        """There once it is stopping; done when no group is under way any more."""
        self._unmarked: dict[AnyLog, None] = {}
        """Synced, and not marked as synced."""
        self._clearing: AnyLog | None = None
        """Of it files are being deleted."""
        self._seconds = 0.0
        """How long a small group took lately."""

    def is_busy(self, storage: AnyLog) -> bool:
        return storage in self._busy or storage is self._clearing

    def submit(self, storage: AnyLog, *, at_once: bool) -> None:
        """Write what is staged and waited for, if no group of it is under way; `at_once` or in the loop's next turn."""
        if storage in self._busy or storage.poisoned or storage.corruption is not None:
            return
        self._busy.add(storage)
        if at_once:
            self._begin(storage)
        else:
            self._loop.call_soon(self._begin, storage)

    def _begin(self, storage: AnyLog) -> None:
        if self._idle is not None:
            self._busy.discard(storage)  # closing the storage writes what is staged
            self._check_idle(self._idle)
            return
        if self._seconds > INLINE_SECONDS or (storage.urgent_bytes or 0) > INLINE_BYTES:
            if self._thread is None:
                self._thread = GroupCommitWriter()
            self._thread.submit(storage, self._on_thread)
            return
        began = time.perf_counter()
        group, error = write_next(storage, mark=False)
        self._seconds += _SMOOTHING * (time.perf_counter() - began - self._seconds)
        self._end(storage, group, error)

    def _on_thread(self, storage: AnyLog, group: WriteGroup | None, error: VarlogError | None) -> None:
        self._loop.call_soon_threadsafe(self._from_thread, storage, group, error)

    def _from_thread(self, storage: AnyLog, group: WriteGroup | None, error: VarlogError | None) -> None:
        # The thread is for a disk that is slow; whether it still is can only be found out by trying.
        self._seconds *= 1 - _SMOOTHING
        self._end(storage, group, error)

    def _end(self, storage: AnyLog, group: WriteGroup | None, error: VarlogError | None) -> None:
        if group is not None and error is None:
            storage.finish(group)
            self._unmarked[storage] = None
        self._busy.discard(storage)
        if self._idle is not None:
            self._check_idle(self._idle)
        self._finished(storage, group, error)

    def _check_idle(self, idle: asyncio.Future[None]) -> None:
        if not self._busy and self._clearing is None and not idle.done():
            idle.set_result(None)

    def mark(self) -> None:
        """Write down how far the logs are synced: now and then, because nobody waits for it."""
        for storage in self._unmarked.keys() - self._busy:
            del self._unmarked[storage]
            try:
                storage.mark()
            except VarlogError as error:
                self._finished(storage, None, error)

    def clear(self, storage: AnyLog) -> None:
        """Delete some of what trims have left of a log, unless that is being done on this volume: also now and then."""
        if self._clearing is None and self._idle is None:
            self._clearing = storage
            self._loop.run_in_executor(None, storage.delete_doomed).add_done_callback(self._cleared)

    def _cleared(self, cleared: asyncio.Future[None]) -> None:
        storage, self._clearing = self._clearing, None
        assert storage is not None, "it was being cleared"
        if self._idle is not None:
            self._check_idle(self._idle)
        try:
            cleared.result()
        except OSError as error:
            logs.get().error("files of trimmed entries could not be deleted", error=str(error))
        self._finished(storage, None, None)

    async def stop(self) -> None:
        """Begin nothing more and wait for what is under way; the storages can be closed then."""
        self._idle = self._loop.create_future()
        self._check_idle(self._idle)
        await self._idle
        if self._thread is not None:
            self._thread.stop()
            self._thread = None
