"""The clients of the demo: writers that append without pause, readers that follow, and what all of them note.

Every client has a connection of its own and goes on whatever happens to the daemons. What is written is in
`varlog.demo.events`; no two entries are equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import varlog
from varlog import errors
from varlog.demo.events import event
from varlog.demo.proof import Record, Sent

WINDOW: Final = 32
"""Entries of one writer under way at once."""
PATIENCE: Final = 40.0
"""Longer than any daemon is down."""


class Clients:
    """Writers and readers of one run."""

    def __init__(self, cluster: Path) -> None:
        self.record = Record()
        self.acknowledged = 0
        """Entries."""
        self.greatest = 0
        """Position that any writer was told."""
        self.pause = 0.0
        """Seconds that a writer waits after each entry."""
        self._sent = 0
        self._latest = 0
        """Number of the youngest acknowledged entry, counted over all writers as they send."""
        self._cluster = cluster
        self._stopping = False
        self._writing: list[asyncio.Task[None]] = []
        self._reading: list[asyncio.Task[None]] = []

    def mark(self) -> Callable[[], bool]:
        """Whether an entry that is sent from now on has been acknowledged; what is under way by now does not count."""
        sent = self._sent
        return lambda: self._latest > sent

    def start(self, *, writers: int, readers: int) -> None:
        for number in range(1, writers + 1):
            self._writing.append(asyncio.create_task(self._write(number)))
        for _ in range(readers):
            self._reading.append(asyncio.create_task(self._read()))

    async def stop(self) -> int:
        """Let writers finish what they have under way, and readers come to the end of the log; returns that."""
        self._stopping = True
        await asyncio.gather(*self._writing)
        async with varlog.connect(self._cluster) as log:
            tail = await log.tail()
        while not self._have_read(tail):  # noqa: ASYNC110  # they come by themselves
            await asyncio.sleep(0.01)
        await self.cancel()
        return tail

    def _have_read(self, tail: int) -> bool:
        """Whether every reader has come so far, or one has failed."""
        complete = all(len(seen) >= tail for seen in self.record.read)
        return complete or any(task.done() for task in self._reading)

    async def cancel(self) -> None:
        """End whatever still goes on; raises what made one of them fail."""
        tasks = [*self._writing, *self._reading]
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def _write(self, writer: int) -> None:
        all_sent = self.record.sent.setdefault(f"writer {writer}", [])
        async with varlog.connect(self._cluster) as log, log.appender(window=WINDOW, timeout=PATIENCE) as appender:
            for number in count(1):
                if self._stopping:
                    break
                sent = Sent(event(writer, number), self.greatest)
                all_sent.append(sent)
                self._sent += 1
                note = partial(self._note, sent, self._sent)
                future = await appender.append(sent.data)
                future.add_done_callback(note)
                if self.pause:
                    await asyncio.sleep(self.pause)

    def _note(self, sent: Sent, number: int, done: asyncio.Future[varlog.AppendResult]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            sent.position = done.result().glsn
            self.acknowledged += 1
            self._latest = max(self._latest, number)
            self.greatest = max(self.greatest, sent.position)
        elif isinstance(error, errors.VarlogError):
            sent.rejected = error.happened is False

    async def _read(self) -> None:
        seen: list[tuple[int, bytes]] = []
        self.record.read.append(seen)
        async with varlog.connect(self._cluster) as log:
            async for batch in log.subscribe().batches():
                seen += [(entry.glsn, entry.data) for entry in batch]
