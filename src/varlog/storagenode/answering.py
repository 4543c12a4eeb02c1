"""Answering: has the reads done that the core allows, so many per turn of the loop, and hands it what came of them.

It is the same for both orderings. A reader who asks for more than may wait is refused, and nobody else is.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

from varlog import errors, limits
from varlog.core.address import Address
from varlog.core.chaincontext import ChainReadPlan
from varlog.core.messages import ChainRead
from varlog.core.storagenode import ReadPlan, StorageNode
from varlog.daemon import logs
from varlog.storage.grouped import AnyLog
from varlog.storage.writeonce import WriteOnceStorage
from varlog.storagenode.hosting import Hosting
from varlog.storagenode.reading import Plan, Reading, Result
from varlog.storagenode.replicas import Replicas

READS_PER_TURN: Final = 64
TURN_SECONDS: Final = 0.005
"""Others get their turn of the loop after so many, or after so long: one that answers thousands of small batches takes
as long as hundreds that answer one."""

PlanT = TypeVar("PlanT", ReadPlan, ChainReadPlan)


class Answering:
    """See the module's text. `go_on` is called when there is more to do."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node: StorageNode,
        replicas: Replicas,
        hosting: Hosting,
        go_on: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._node = node
        self._replicas = replicas
        self._hosting = hosting
        self._go_on = go_on
        self._reading = Reading(loop, self._on_read)
        self._is_stopping = False
        self._log = logs.get().bind(snid=node.snid)

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._node.reads or self._node.chains.reads)

    def is_busy(self, storage: AnyLog) -> bool:
        """Whether a thread reads from it, or is about to."""
        return self._reading.is_busy(storage)

    def at_once(self, source: Address, message: ChainRead) -> bool:
        """Answer who waits for one position of a chain, if that is known to be quick; else it is a message like others
        (False)."""
        if message.max_bytes > 1 or (replica := self._node.chains.readable(message, self._loop.time())) is None:
            return False
        storage = replica.log
        assert isinstance(storage, WriteOnceStorage)
        try:
            found = storage.read_one(message.glsn)
        except (errors.VarlogError, OSError):
            return False  # the long way meets it too, and says so
        if found is None:
            return False
        replica.tell_one(source, message, found)
        return True

    def do_some(self) -> None:
        """So many, in the order they were asked for."""
        node, chains = self._node, self._node.chains
        plans, node.reads = node.reads, []
        node.reads = self._begin_some(plans) + node.reads
        if chains.reads:
            self.do_chained()
        if self:
            self._go_on()

    def do_chained(self) -> None:
        """So many of those of chains, of which a client often waits for one position: that need not wait for anything
        else."""
        chains = self._node.chains
        plans, chains.reads = chains.reads, []
        chains.reads = self._begin_some(plans) + chains.reads

    def _begin_some(self, plans: list[PlanT]) -> list[PlanT]:
        """As many as one turn is for, from the first on; those that are left."""
        if len(plans) > limits.MAX_WAITING_READS:
            plans = self._without_greedy(plans)
        until = time.perf_counter() + TURN_SECONDS
        for number, plan in enumerate(plans, 1):
            self._begin(plan)
            if number == READS_PER_TURN or time.perf_counter() > until:
                return plans[number:]
        return []

    def _without_greedy(self, plans: list[PlanT]) -> list[PlanT]:
        """More reads wait than may: who has asked for most of them is refused most of those."""
        (greedy, count), *_ = Counter(plan.source for plan in plans).most_common(1)
        kept, taken = [], 0
        for plan in plans:
            taken += plan.source == greedy
            if plan.source == greedy and taken > READS_PER_TURN:
                self._finish(plan, errors.Busy(f"{count} reads are waiting already"))
            else:
                kept.append(plan)
        return kept

    def _begin(self, plan: Plan) -> None:
        executor = plan.replica if isinstance(plan, ChainReadPlan) else plan.executor
        replica = self._replicas.get(executor.lsid)
        if replica is None:
            self._on_read(plan, [])
        elif replica.executor is not executor:  # what it knew is not what is there now
            self._finish(plan, errors.Busy(f"log stream {executor.lsid} was just opened anew; ask again"))
        else:
            self._reading.submit(plan, replica.storage)

    def _on_read(self, plan: Plan, result: Result) -> None:
        if self._is_stopping:
            return
        lsid = plan.replica.lsid if isinstance(plan, ChainReadPlan) else plan.executor.lsid
        replica = self._replicas.get(lsid)
        if replica is None or self._hosting.is_leaving(lsid):
            result = errors.UnknownLogStream(f"log stream {lsid} was removed from this node")
            self._hosting.go_on(lsid)
        elif isinstance(result, errors.Corrupt):
            self._log.error("damage found", lsid=lsid, error=str(result))
            replica.storage.condemn(result)
        self._finish(plan, result)
        if self or not isinstance(plan, ChainReadPlan):
            self._go_on()

    def _finish(self, plan: Plan, result: Result) -> None:
        if isinstance(plan, ChainReadPlan):
            self._node.chains.finish_read(plan, result)
        else:
            self._node.finish_scan(plan, result)

    def cease(self) -> None:
        """Answer nobody any more."""
        self._is_stopping = True

    async def stop(self) -> None:
        """Wait for the reads that threads have begun."""
        self.cease()
        await self._reading.stop()
