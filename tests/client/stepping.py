"""Cancelling a call at any one of its awaits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from functools import partial
from typing import Any


class _CancelledAt:
    """Awaits some work; at its n-th suspension the task is cancelled, before or just after what it waits for is done.

    After: the cancellation arrives together with the result, which is the moment that is easiest to get wrong.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], at: int, *, late: bool) -> None:
        self._work = work
        self._at = at
        self._late = late
        self.suspensions = 0

    def __await__(self) -> Generator[Any, None, Any]:
        inner = self._work.__await__()
        go_on: Callable[[], Any] = partial(next, inner)
        while True:
            try:
                waited = go_on()
            except StopIteration as stop:
                return stop.value
            if self.suspensions == self._at:
                self._cancel(waited)
            self.suspensions += 1
            try:
                yield waited
                go_on = partial(next, inner)
            except BaseException as error:
                go_on = partial(inner.throw, error)

    def _cancel(self, waited: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._late and isinstance(waited, asyncio.Future):
            waited.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()


async def cancelled_at_every_await(call: Callable[[], Coroutine[Any, Any, Any]]) -> AsyncIterator[bool]:
    """Make the call again and again, each time cancelled at the next of its awaits; yields after each whether it was
    cancelled. Ends when it runs through."""
    for late in (False, True):
        at = 0
        while True:
            stepping = _CancelledAt(call(), at, late=late)
            task = asyncio.ensure_future(_run(stepping))
            await asyncio.wait([task])
            yield task.cancelled()
            if not task.cancelled():
                task.result()
            if stepping.suspensions <= at:
                break
            at += 1


async def _run(stepping: _CancelledAt) -> Any:
    return await stepping
