"""Copying: what copies between replicas need of a node (M9; `varlog.core.syncing` decides).

Parts of the log for a replica elsewhere are read in one thread for the whole node, one after another: however many copy
from it, those who append and read get their turn. What waits for the thread is bounded. When a part was given, the one
after it is read already: who copies a long log asks for it next, and need not wait for the thread then.

Copies that replicas here make, those of chains too (`varlog.core.chaincopying`), want to go on at a certain time; a
timer sees to that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from varlog import batch, errors, limits
from varlog.core.chainnode import ChainNode
from varlog.core.replicalog import CopiedPart
from varlog.core.syncing import FetchPlan, Syncing
from varlog.storage.grouped import AnyLog
from varlog.storage.log import LogStreamStorage
from varlog.storagenode.hosting import Hosting
from varlog.storagenode.replicas import Replicas
from varlog.types import LLSN

Result = CopiedPart | errors.VarlogError
Finished = Callable[[FetchPlan, Result], None]


class _Ahead(NamedTuple):
    """A part that was read before anybody asked for it."""

    plan: FetchPlan
    """As it will be asked for, but for the number."""
    part: CopiedPart


_Done = Callable[[FetchPlan, LogStreamStorage, Result], None]


def _same(wanted: FetchPlan, had: FetchPlan) -> bool:
    """Whether two plans ask for the same part."""
    one, other = wanted.fetch, had.fetch
    return wanted.executor is had.executor and (one.llsn_begin, one.after) == (other.llsn_begin, other.after)


class Copying:
    """See the module's text. `finished(plan, result)` is called on the event loop, once for every plan; `go_on` when it
    is time for a copy to go on."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        syncing: Syncing,
        chains: ChainNode,
        replicas: Replicas,
        hosting: Hosting,
        finished: Finished,
        go_on: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._syncing = syncing
        self._chains = chains
        self._replicas = replicas
        self._hosting = hosting
        self._finished = finished
        self._go_on = go_on
        self._thread: ThreadPoolExecutor | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        """There once it is stopping; done when no part is being read any more."""
        self._under_way: Counter[AnyLog] = Counter()
        self._ahead: _Ahead | None = None
        self._reading_ahead: FetchPlan | None = None
        self._awaited: FetchPlan | None = None
        """Who has asked for that meanwhile."""

    def is_busy(self, storage: AnyLog) -> bool:
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
        due = min([due for due in (syncing.due, self._chains.copying.due) if due is not None], default=None)
        if due is not None and self._timer is None:
            self._timer = self._loop.call_at(due, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._go_on()

    def _read(self, plan: FetchPlan) -> None:
        lsid = plan.executor.lsid
        replica = self._replicas.committed(lsid)
        if replica is None or self._hosting.is_leaving(lsid):
            self._finished(plan, errors.UnknownLogStream(f"log stream {lsid} was removed from this node"))
        elif self._under_way.total() >= limits.MAX_READS_UNDER_WAY or self._idle is not None:
            self._finished(plan, errors.Busy(f"{self._under_way.total()} parts are being read already"))
        elif self._awaited is None and self._reading_ahead is not None and _same(plan, self._reading_ahead):
            self._awaited = plan
        elif self._ahead is not None and _same(plan, self._ahead.plan):
            self._give(plan, replica.storage, self._ahead.part)
        else:
            self._submit(plan, replica.storage, self._from_thread)

    def _give(self, plan: FetchPlan, storage: LogStreamStorage, result: Result) -> None:
        """Hand a part over, and read what follows it, unless it is short: then there is not much left."""
        self._ahead = None
        self._finished(plan, result)
        if isinstance(result, errors.VarlogError) or sum(map(len, result.batches)) < limits.COPY_PART_BYTES // 2:
            return
        is_leaving = self._hosting.is_leaving(plan.executor.lsid)
        if is_leaving or self._reading_ahead is not None or self._idle is not None:
            return
        end = LLSN(result.llsn + sum(batch.peek_header(content).count for content in result.batches))
        after = result.commits[-1].version if result.commits else plan.fetch.after
        following = msgspec.structs.replace(plan.fetch, llsn_begin=end, after=after)
        self._reading_ahead = plan._replace(fetch=following)
        self._submit(self._reading_ahead, storage, self._on_ahead)

    def _submit(self, plan: FetchPlan, storage: LogStreamStorage, done: _Done) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "varlog-copies")
        self._under_way[storage] += 1
        self._thread.submit(self._in_thread, plan, storage, done)

    def _in_thread(self, plan: FetchPlan, storage: LogStreamStorage, done: _Done) -> None:
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
        self._loop.call_soon_threadsafe(done, plan, storage, result)

    def _from_thread(self, plan: FetchPlan, storage: LogStreamStorage, result: Result) -> None:
        self._release(storage)
        self._give(plan, storage, result)

    def _on_ahead(self, plan: FetchPlan, storage: LogStreamStorage, result: Result) -> None:
        self._release(storage)
        self._reading_ahead = None
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            self._give(awaited, storage, result)
        elif self._hosting.is_leaving(plan.executor.lsid):
            self._hosting.go_on(plan.executor.lsid)
        elif not isinstance(result, errors.VarlogError):  # who asks for what cannot be read will be told then
            self._ahead = _Ahead(plan, result)

    def _release(self, storage: LogStreamStorage) -> None:
        self._under_way[storage] -= 1
        if not self._under_way[storage]:
            del self._under_way[storage]
        if self._idle is not None and not self._under_way:
            self._idle.set_result(None)

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
