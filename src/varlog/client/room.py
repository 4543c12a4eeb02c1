"""Room: how much may be under way at once, given to whoever asks in the order they ask.

A taker that fits and finds nobody waiting takes at once. Otherwise it waits in line; what is given back goes to the
head of the line, so a large one is not overtaken for ever by small ones. One that is larger than all of the room gets
it when it is empty.

Whoever is cancelled while waiting leaves the line, and gives back what it was handed in the same moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from copy import copy

from varlog import errors


class Room:
    """See the module's text. Counted in bytes and in items."""

    def __init__(self, most_bytes: int, most_items: int) -> None:
        self._most_bytes = most_bytes
        self._most_items = most_items
        self.bytes = 0
        self.items = 0
        self._line: deque[tuple[asyncio.Future[None], int]] = deque()
        self._closed: errors.VarlogError | None = None

    def try_take(self, size: int) -> bool:
        """Take at once; False if that is not possible."""
        items, total = self.items, self.bytes + size
        if items >= self._most_items or (total > self._most_bytes and items) or self._line or self._closed is not None:
            return False
        self.bytes = total
        self.items = items + 1
        return True

    async def take(self, size: int, deadline: float) -> None:
        """Wait for room and take it; raises `DeadlineExceeded` if there is none in time."""
        if self.try_take(size):
            return
        if self._closed is not None:
            raise copy(self._closed)
        waiting = asyncio.get_running_loop().create_future()
        self._line.append((waiting, size))
        try:
            async with asyncio.timeout_at(deadline):
                await waiting
        except BaseException as error:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self.give_back(size)  # it was handed over in the moment of being cancelled
            else:
                waiting.cancel()
                self._serve()  # others may fit where this one did not
            if isinstance(error, TimeoutError):
                raise errors.DeadlineExceeded(
                    f"nothing was sent: {self.items} appends with {self.bytes} bytes were under way all the time; "
                    "slow down, or allow more time"
                ) from None
            raise

    def give_back(self, size: int) -> None:
        self.bytes -= size
        self.items -= 1
        if self._line:
            self._serve()

    def _serve(self) -> None:
        while self._line:
            waiting, size = self._line[0]
            if not waiting.done():
                if self.items >= self._most_items or (self.bytes + size > self._most_bytes and self.items):
                    return
                self.bytes += size
                self.items += 1
                waiting.set_result(None)
            self._line.popleft()

    def close(self, error: errors.VarlogError) -> None:
        """Nobody gets room any more; whoever waits is told why."""
        self._closed = error
        for waiting, _ in self._line:
            if not waiting.done():
                waiting.set_exception(copy(error))
        self._line.clear()
