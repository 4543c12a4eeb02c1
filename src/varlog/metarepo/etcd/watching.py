"""One watch on etcd: a stream that is opened anew wherever etcd is reached, from where its owner was told last.

What always holds: changes are told in the order of their revisions, each once, those of one transaction together; a
stream that breaks costs time and nothing else; a watch that etcd's history no longer reaches back to is told so, ends,
and says nothing more. After `cancel` nothing is told, also if it is called by the one who is being told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from varlog import limits
from varlog.core.store import WatchEvents, WatchNotice
from varlog.errors import Compacted
from varlog.metarepo.etcd.endpoints import Endpoints, NotSent, Unanswered
from varlog.metarepo.etcd.gateway import MALFORMED, EtcdRefusal, Keys, Watched, WatchedEvent, watch_message

_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0


class EtcdWatch:
    """See the module's text. `follow` is run by the store, as a task of its own."""

    def __init__(
        self, endpoints: Endpoints, keys: Keys, prefix: str, told: int, notify: Callable[[WatchNotice], None]
    ) -> None:
        self.prefix = prefix
        self.told = told
        """Changes up to this revision are not told (again)."""
        self.ended = False
        self.end: Callable[[], object] = lambda: None
        """Ends the task."""
        self._endpoints = endpoints
        self._keys = keys
        self._notify = notify
        self._pause = _PAUSE

    def cancel(self) -> None:
        self.ended = True
        self.end()

    async def follow(self) -> None:
        while not self.ended:
            try:
                await self._follow_stream()
            except EtcdRefusal:
                await self._ask_something()
                await self._wait()
            except (Unanswered, *MALFORMED):
                await self._wait()

    async def _ask_something(self) -> None:
        """etcd has ended the watch. If it no longer knows who we are, a request makes that good."""
        with suppress(NotSent, Unanswered, EtcdRefusal):
            await self._endpoints.call("/v3/kv/txn", self._keys.read(()))

    async def _wait(self) -> None:
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    async def _follow_stream(self) -> None:
        buffer = bytearray()
        held: list[WatchedEvent] = []
        async with self._endpoints.stream("/v3/watch", self._keys.watch(self.prefix, self.told)) as content:
            async for part in content.iter_any():
                buffer += part
                while (end := buffer.find(b"\n")) >= 0:
                    message = watch_message(bytes(buffer[:end]))
                    del buffer[: end + 1]
                    held = self._take(message, held)
                    if self.ended:
                        return
                if len(buffer) > limits.ETCD_REPLY_BYTES:
                    raise Unanswered("a watch is told more at once than it may be")
        raise Unanswered("the watch ended")

    def _take(self, message: Watched, held: list[WatchedEvent]) -> list[WatchedEvent]:
        """Tell what is complete; returns what is not: the last transaction, if its message is but a fragment."""
        if message.compact_revision:
            self.ended = True
            self._notify(Compacted(f"changes up to revision {message.compact_revision} are forgotten; read anew"))
            return []
        if message.canceled:
            raise EtcdRefusal(message.cancel_reason or "etcd ended the watch")
        self._pause = _PAUSE
        events = held + message.events
        incomplete: list[WatchedEvent] = []
        if message.fragment and events:
            last = events[-1].kv.mod_revision
            incomplete = [event for event in events if event.kv.mod_revision == last]
            events = events[: len(events) - len(incomplete)]
        for changes in self._keys.changes(events):
            self._tell(changes)
        return incomplete

    def _tell(self, changes: WatchEvents) -> None:
        if changes.revision > self.told and not self.ended:
            self.told = changes.revision
            self._notify(changes)
