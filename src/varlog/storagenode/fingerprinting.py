"""Fingerprinting: answers who wants to compare a replica with others.

A fingerprint reads up to some megabytes and hashes them (`varlog.core.fingerprints`), in one thread for the whole node:
a comparison of everything takes its time, and must not take it from those who append and read. What waits for the
thread is bounded. Damage that is met on the way is told to the node as well as to who asked, as that of any read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from varlog import errors, limits
from varlog.core.address import Address, Send
from varlog.core.fingerprints import Held, fingerprint, written_fingerprint
from varlog.core.messages import Fingerprint, GetFingerprint
from varlog.storage.grouped import AnyLog
from varlog.storagenode.replicas import AnyReplica, ChainedReplica
from varlog.types import GLSN, StorageNodeID

Result = Held | errors.VarlogError
Released = Callable[[AnyLog, errors.Corrupt | None], None]


class Fingerprinting:
    """See the module's text. `released(storage, damage)` is called when a fingerprint of it is done."""

    def __init__(self, loop: asyncio.AbstractEventLoop, snid: StorageNodeID, send: Send, released: Released) -> None:
        self._loop = loop
        self._snid = snid
        self._send = send
        self._released = released
        self._thread: ThreadPoolExecutor | None = None
        self._idle: asyncio.Future[None] | None = None
        """There once it is stopping; done when no fingerprint is under way any more."""
        self._under_way: Counter[AnyLog] = Counter()

    def is_busy(self, storage: AnyLog) -> bool:
        """Whether the thread reads from it, or is about to."""
        return storage in self._under_way

    def answer(self, source: Address, asked: GetFingerprint, replica: AnyReplica | None) -> None:
        """Answer, now or when it is made."""
        try:
            found = self._check(asked, replica)
        except errors.VarlogError as error:
            self._tell(source, asked, error)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "varlog-fingerprints")
        self._under_way[found.storage] += 1
        self._thread.submit(self._in_thread, source, asked, found, found.executor.trim_glsn)

    def _check(self, asked: GetFingerprint, replica: AnyReplica | None) -> AnyReplica:
        if replica is None:
            raise errors.UnknownLogStream(f"log stream {asked.lsid} has no replica on node {self._snid}")
        if not 1 <= asked.glsn_begin < asked.glsn_end:
            raise errors.InvalidArgument(f"[{asked.glsn_begin}, {asked.glsn_end}) is no range of positions")
        hwm = replica.executor.global_hwm
        if asked.glsn_end > hwm + 1 and not isinstance(replica, ChainedReplica):  # what one of those lacks is not there
            raise errors.NotYet(f"this replica is complete up to {hwm}")
        if self._under_way.total() >= limits.MAX_FINGERPRINTS or self._idle is not None:
            raise errors.Busy(f"{self._under_way.total()} fingerprints are being made already")
        return replica

    def _in_thread(self, source: Address, asked: GetFingerprint, replica: AnyReplica, trim: GLSN) -> None:
        result: Result
        try:
            if self._idle is not None:
                result = errors.Busy("the node is stopping")
            elif isinstance(replica, ChainedReplica):
                result = written_fingerprint(replica.storage, trim, asked.glsn_begin, asked.glsn_end)
            else:
                result = fingerprint(replica.storage, trim, asked.glsn_begin, asked.glsn_end)
        except errors.VarlogError as error:
            result = error
        except OSError as error:
            result = errors.Poisoned(f"reading failed: {error}")
        self._loop.call_soon_threadsafe(self._from_thread, source, asked, replica.storage, result)

    def _from_thread(self, source: Address, asked: GetFingerprint, storage: AnyLog, result: Result) -> None:
        self._under_way[storage] -= 1
        if not self._under_way[storage]:
            del self._under_way[storage]
        if self._idle is not None and not self._under_way:
            self._idle.set_result(None)
        self._tell(source, asked, result)
        self._released(storage, result if isinstance(result, errors.Corrupt) else None)

    def _tell(self, source: Address, asked: GetFingerprint, result: Result) -> None:
        request, lsid = asked.request, asked.lsid
        if isinstance(result, Held):
            self._send(source, result.answer(request, lsid, self._snid))
        else:
            detail = str(result)[: limits.MAX_DETAIL]
            self._send(source, Fingerprint(request, lsid, result.code, self._snid, detail=detail))

    async def stop(self) -> None:
        """Wait for the one that the thread has begun; the others are not made."""
        self._idle = self._loop.create_future()
        if self._under_way:
            await self._idle
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
