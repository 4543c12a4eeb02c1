"""Scrubbing: every replica is read through from time to time, so that damage is found while another copy is sound.

Bytes that nobody reads can rot for years, and on every replica in turn. A *pass* reads every byte of every replica of
the node, one replica after another, in one thread; the next one begins a week after this one began. A pass is slow on
purpose: it reads no more than so many megabytes in a second, and uses no more than half a percent of a core, so those
who append do not notice it, and a cluster that is idle stays so. At the usual 8 MB/s a terabyte takes a day and a half.
After a start the first pass waits for some minutes, on each node for others, so that the replicas of a log stream are
not all read at once; and each pass begins with another replica, as a node may be restarted before it is through. An
operator who waits for a pass gets one at once, or has the one that is under way hurry, at the cost of those who append.

The first finding is enough: the replica is condemned, and the manager replaces it by a copy of another one. A replica
whose files are to be closed is let go of at once (`vacate`).
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import Final

from varlog.core.messages import Scrub, ScrubState
from varlog.daemon import logs
from varlog.errors import Corrupt
from varlog.storage.grouped import AnyLog
from varlog.storagenode.replicas import Replicas
from varlog.types import LogStreamID, StorageNodeID

FIRST_SECONDS: Final = 600.0
SPREAD_SECONDS: Final = 60.0
SPREAD_NODES: Final = 60
EVERY_SECONDS: Final = 7 * 86400.0
CPU_SHARE: Final = 0.005
MEGABYTE: Final = 1_000_000
HURRIED_RATE: Final = 200.0 * MEGABYTE
HURRIED_CPU_SHARE: Final = 0.25
"""While somebody waits for the pass."""
STRIDE_BYTES: Final = 128 * 1024
"""What is read between two pauses: so little that the event loop waits for no more than some milliseconds of it."""

Released = Callable[[AnyLog, Corrupt | None], None]


class _Interrupted(Exception):
    """The walk is to end here."""


class Pace:
    """How fast a pass goes. It is called by the thread that reads; `interrupt` and `hurry` by any other."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._cpu_share = CPU_SHARE
        self._is_interrupted = False
        self._woken = threading.Event()
        """By who interrupts, or is in a hurry."""
        self._read = 0
        self._wall = self._cpu = -1.0
        self.bytes = 0

    def interrupt(self) -> None:
        self._is_interrupted = True
        self._woken.set()

    def hurry(self) -> None:
        self._rate = max(self._rate, HURRIED_RATE)
        self._cpu_share = HURRIED_CPU_SHARE
        self._woken.set()

    def __call__(self, size: int) -> None:
        """So many bytes were read: wait until that is no more than may be."""
        self._read += size
        self.bytes += size
        if self._read < STRIDE_BYTES and self._wall >= 0:
            return
        if self._wall >= 0:
            spent = time.monotonic() - self._wall
            owed = max(self._read / self._rate, (time.thread_time() - self._cpu) / self._cpu_share) - spent
            self._woken.wait(max(0.0, owed))
        self._woken.clear()
        if self._is_interrupted:
            raise _Interrupted
        self._read = 0
        self._wall, self._cpu = time.monotonic(), time.thread_time()


class Scrubbing:
    """See the module's text. `released(storage, damage)` is called when a replica has been read, or was let go of."""

    def __init__(
        self, snid: StorageNodeID, replicas: Replicas, megabytes_per_second: float, released: Released
    ) -> None:
        self._replicas = replicas
        self._rate = megabytes_per_second * MEGABYTE
        self._released = released
        self._first = FIRST_SECONDS + SPREAD_SECONDS * (snid % SPREAD_NODES)
        self._loop = asyncio.get_running_loop()
        self._log = logs.get().bind(snid=snid)
        self._snid = snid
        self._waiting: asyncio.Task[None] | None = None
        """For the next pass."""
        self._wanted = asyncio.Event()
        """Somebody waits for a pass."""
        self._left: int | None = None
        """How many replicas are yet to be read; None between two passes."""
        self._damaged: list[LogStreamID] = []
        """What this pass has found, or the last one."""
        self._reading: tuple[AnyLog, Pace] | None = None
        self._is_stopping = False
        self._bytes = 0
        """Of replicas that were read through."""
        self.passes = 0

    @property
    def bytes(self) -> int:
        """Read so far, by all passes."""
        return self._bytes + (self._reading[1].bytes if self._reading is not None else 0)

    def start(self) -> None:
        """Begin to wait for the first pass; a rate of 0 means that none begins by itself."""
        self._waiting = self._loop.create_task(self._live())

    def answer(self, asked: Scrub) -> ScrubState:
        """How far it is; if that is asked for, a pass begins or hurries first."""
        if asked.begin:
            self._wanted.set()
            if self._reading is not None:
                self._reading[1].hurry()
        is_under_way = self._left is not None or self._wanted.is_set()
        left = len(self._replicas) if self._left is None and is_under_way else self._left or 0
        return ScrubState(asked.request, self._snid, self.passes, is_under_way, left, self.bytes, tuple(self._damaged))

    def vacate(self, storage: AnyLog) -> bool:
        """Let go of a replica's files; False if they are still in use, and `released` is yet to be called."""
        if self._reading is None or self._reading[0] is not storage:
            return True
        self._reading[1].interrupt()
        return False

    async def stop(self) -> None:
        """Let go of everything."""
        self._is_stopping = True
        if self._waiting is None:
            return
        if self._reading is not None:
            self._reading[1].interrupt()
        else:
            self._waiting.cancel()
        await asyncio.gather(self._waiting, return_exceptions=True)

    async def _live(self) -> None:
        due = self._loop.time() + self._first
        while not self._is_stopping:
            try:
                async with asyncio.timeout_at(due if self._rate > 0 else None):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            due = self._loop.time() + EVERY_SECONDS
            await self.go_through()

    async def go_through(self) -> None:
        """One pass over all replicas that are sound as far as is known."""
        self._log.info("scrubbing begins", replicas=len(self._replicas))
        self._damaged.clear()
        replicas = list(self._replicas)
        for at, replica in enumerate(random.sample(replicas, len(replicas))):
            self._left = len(replicas) - at
            is_there = self._replicas.get(replica.executor.lsid) is replica
            is_due = is_there and replica.executor.healthy and not self._is_stopping
            if is_due and await self._read(replica.storage) is not None:
                self._damaged.append(replica.executor.lsid)
        self._left = None
        self._wanted.clear()
        if not self._is_stopping:
            self.passes += 1
            self._log.info("scrubbing ended", passes=self.passes)

    async def _read(self, storage: AnyLog) -> Corrupt | None:
        pace = Pace(self._rate)
        if self._wanted.is_set():
            pace.hurry()
        done: asyncio.Future[Corrupt | None] = self._loop.create_future()
        self._reading = storage, pace
        threading.Thread(target=self._in_thread, args=(storage, pace, done), name="varlog-scrub", daemon=True).start()
        damage: Corrupt | None = None
        try:
            damage = await done
        except OSError as error:
            self._log.warning("a replica could not be scrubbed", error=str(error))
        finally:
            self._reading = None
            self._bytes += pace.bytes
        self._released(storage, damage)
        return damage

    def _in_thread(self, storage: AnyLog, pace: Pace, done: asyncio.Future[Corrupt | None]) -> None:
        try:
            damage = next(storage.scrub(pace), None)
        except _Interrupted:
            self._loop.call_soon_threadsafe(done.set_result, None)
        except Exception as mistake:
            self._loop.call_soon_threadsafe(done.set_exception, mistake)
        else:
            self._loop.call_soon_threadsafe(done.set_result, damage)
