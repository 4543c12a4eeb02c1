"""Copying: what copies between replicas need of a node (M9; `varlog.core.syncing` decides).

Parts of the log for a replica elsewhere are read in one thread for the whole node, one after another: however many copy
from it, those who append and read get their turn. What waits for the thread is bounded. Copies that replicas here make
want to go on at a certain time; a timer sees to that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from varlog import errors, limits
from varlog.core.replicalog import CopiedPart
from varlog.core.syncing import FetchPlan, Syncing
from varlog.storage.log import LogStreamStorage
from varlog.storagenode.hosting import Hosting
from varlog.storagenode.replicas import Replicas

Result = CopiedPart | errors.VarlogError
Finished = Callable[[FetchPlan, Result], None]


class Copying:
    """See the module's text. `finished(plan, result)` is called on the event loop, once for every plan; `go_on` when it
    is time for a copy to go on."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        syncing: Syncing,
        replicas: Replicas,
        hosting: Hosting,
        finished: Finished,
        go_on: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._syncing = syncing
        self._replicas = replicas
        self._hosting = hosting
        self._finished = finished
        self._go_on = go_on
        self._thread: ThreadPoolExecutor | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        """There once it is stopping; done when no part is being read any more."""
        self._under_way: Counter[LogStreamStorage] = Counter()

    def is_busy(self, storage: LogStreamStorage) -> bool:
        """Whether the thread reads from it, or is about to."""
        return storage in self._under_way

    def attend(self) -> None:
        """Do what the core asks for by now."""
        syncing = self._syncing
        if syncing.fetches:
            fetches, syncing.fetches = syncing.fetches, []
            for plan in fetches:
                self._read(plan)
        if syncing.restarts:
            restarts, syncing.restarts = syncing.restarts, []
            for restart in restarts:
                self._hosting.start_anew(restart)
        due = syncing.due
        if due is not None and self._timer is None:
            self._timer = self._loop.call_at(due, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._go_on()

    def _read(self, plan: FetchPlan) -> None:
        lsid = plan.executor.lsid
        replica = self._replicas.get(lsid)
        if replica is None or self._hosting.is_leaving(lsid):
            self._finished(plan, errors.UnknownLogStream(f"log stream {lsid} was removed from this node"))
        elif self._under_way.total() >= limits.MAX_READS_UNDER_WAY or self._idle is not None:
            self._finished(plan, errors.Busy(f"{self._under_way.total()} parts are being read already"))
        else:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "varlog-copies")
            self._under_way[replica.storage] += 1
            self._thread.submit(self._in_thread, plan, replica.storage)

    def _in_thread(self, plan: FetchPlan, storage: LogStreamStorage) -> None:
        fetch = plan.fetch
        result: Result
        try:
            if self._idle is not None:
                result = errors.Busy("the node is stopping")
            else:
                fold = plan.executor.dedup.fold
                result = storage.copy_from(fetch.llsn_begin, fetch.after, fetch.max_bytes, fold)
        except errors.VarlogError as error:
            result = error
        except OSError as error:
            result = errors.Poisoned(f"reading failed: {error}")
        self._loop.call_soon_threadsafe(self._from_thread, plan, storage, result)

    def _from_thread(self, plan: FetchPlan, storage: LogStreamStorage, result: Result) -> None:
        self._under_way[storage] -= 1
        if not self._under_way[storage]:
            del self._under_way[storage]
        if self._idle is not None and not self._under_way:
            self._idle.set_result(None)
        self._finished(plan, result)

    async def stop(self) -> None:
        """Wait for the part that the thread has begun; the others are not read."""
        if self._timer is not None:
            self._timer.cancel()
        self._idle = self._loop.create_future()
        if self._under_way:
            await self._idle
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
