"""Reading: does the reads that the core has allowed.

What was appended lately is in memory, and a subscriber at the tail waits for it: such reads are done at once, in the
event loop, and kept short. Anything older may have to come from the disk and goes to a thread. What waits for the
thread is bounded: beyond that a reader is told to try again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NoReturn

from varlog import errors, limits
from varlog.core.chaincontext import ChainReadPlan
from varlog.core.messages import StoredLine
from varlog.core.storagenode import ReadPlan
from varlog.storage.grouped import AnyLog
from varlog.storage.log import LogStreamStorage
from varlog.storage.writeonce import WriteOnceStorage

TAIL_ENTRIES: Final = 4096
TAIL_BYTES: Final = 256 * 1024
THREADS: Final = 2

Plan = ReadPlan | ChainReadPlan
Storage = LogStreamStorage | WriteOnceStorage
Result = list[StoredLine] | errors.VarlogError
Finished = Callable[[Plan, Result], None]


class Reading:
    """See the module's text. `finished(plan, result)` is called on the event loop, once for every plan."""

    def __init__(self, loop: asyncio.AbstractEventLoop, finished: Finished) -> None:
        self._loop = loop
        self._finished = finished
        self._threads: ThreadPoolExecutor | None = None
        self._idle: asyncio.Future[None] | None = None
        """There once it is stopping; done when no read is under way any more."""
        self._under_way: Counter[AnyLog] = Counter()
        self.waiting = 0

    def is_busy(self, storage: AnyLog) -> bool:
        """Whether a thread reads from it, or is about to."""
        return storage in self._under_way

    def submit(self, plan: Plan, storage: Storage) -> None:
        if _distance(plan) < TAIL_ENTRIES:
            self._finished(plan, read(plan, storage, TAIL_BYTES))
        elif self.waiting >= limits.MAX_READS_UNDER_WAY:
            self._finished(plan, errors.Busy(f"{self.waiting} reads are under way"))
        else:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS, "varlog-reader")
            self.waiting += 1
            self._under_way[storage] += 1
            self._threads.submit(self._in_thread, plan, storage)

    def _in_thread(self, plan: Plan, storage: Storage) -> None:
        result: Result
        try:
            if self._idle is not None:
                result = errors.Busy("the node is stopping")
            else:
                result = read(plan, storage, limits.SCAN_REPLY_BYTES)
        except Exception as mistake:
            self._loop.call_soon_threadsafe(_raise, mistake)  # or it would be kept where nobody looks
            result = errors.Poisoned(f"reading failed: {mistake!r}")
        self._loop.call_soon_threadsafe(self._from_thread, plan, storage, result)

    def _from_thread(self, plan: Plan, storage: Storage, result: Result) -> None:
        self.waiting -= 1
        self._under_way[storage] -= 1
        if not self._under_way[storage]:
            del self._under_way[storage]
        if self._idle is not None and not self.waiting:
            self._idle.set_result(None)
        self._finished(plan, result)

    async def stop(self) -> None:
        """Wait for the reads that threads have begun; those they have not begun are not done."""
        self._idle = self._loop.create_future()
        if self.waiting:
            await self._idle
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None


def _raise(mistake: Exception) -> NoReturn:
    raise mistake


def _distance(plan: Plan) -> int:
    """How many positions there are from the one that is asked for to the end."""
    if isinstance(plan, ChainReadPlan):
        return plan.end - plan.glsn
    return plan.last_glsn - plan.scan.glsn_begin


def read(plan: Plan, storage: Storage, most: int) -> Result:
    """The batches of a plan, at least one if there is one, about `most` bytes of them."""
    try:
        if isinstance(plan, ChainReadPlan):
            assert isinstance(storage, WriteOnceStorage)
            return storage.read(plan.glsn, min(plan.max_bytes, most), verdicts=plan.verdicts)  # type: ignore[return-value]
        assert isinstance(storage, LogStreamStorage)
        scan, most = plan.scan, min(plan.scan.max_bytes, most)
        return storage.read(scan.glsn_begin, plan.glsn_end, most, verdicts=scan.verdicts)  # type: ignore[return-value]
    except errors.VarlogError as error:
        return error
    except OSError as error:
        return errors.Poisoned(f"reading failed: {error}")
