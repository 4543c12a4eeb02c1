"""One event loop in a thread of its own, for whoever calls the asynchronous client from outside: it runs while somebody
uses it, and is gone when nobody does.

A process that is forked has the objects of its parent and not the thread. It begins anew, in a new generation: what was
acquired before serves nobody there, says so, and leaves alone what the process has acquired itself.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from varlog import errors

_T = TypeVar("_T")


class Background:
    """The event loop and its thread, for as long as anyone uses them."""

    def __init__(self) -> None:
        self._lock: threading.RLock
        """A signal handler may call, too, while its thread is in here."""
        self._users: int
        self._loop: asyncio.AbstractEventLoop | None
        self._thread: threading.Thread
        self.generation = 0
        """How often it was begun anew."""
        self.forget()

    def acquire(self) -> Use:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="varlog", daemon=True)
                self._thread.start()
            return Use(self)

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self._loop is None:
                return
            loop, thread = self._loop, self._thread  # the next who acquires it has others
            self._loop = None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def forget(self) -> None:
        """In a process that was forked, which has no such thread: whoever needs one begins anew."""
        self._lock = threading.RLock()
        self._users = 0
        self._loop = None
        self.generation += 1

    def run(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Have the loop do it, and wait. What ends because the loop does raises `Closed`."""
        with self._lock:  # what is handed over is so before the loop is told to stop
            if self._loop is None:
                raise errors.Closed("the client was closed")
            future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise errors.Closed("the client was closed") from None
        except BaseException:
            future.cancel()
            raise

    def tell(self, call: Callable[[], object]) -> None:
        """Have the loop call it some time soon, if it still runs. Takes no lock: a destructor may come here at any
        moment, in any thread."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it was closed in this moment
                loop.call_soon_threadsafe(call)


class Use:
    """What somebody has who acquired the background, until it is released."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._generation = background.generation

    @property
    def is_inherited(self) -> bool:
        """Whether it was acquired by the process that this one was forked from."""
        return self._generation != self._background.generation

    def run(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """See `Background.run`; what is inherited raises `InvalidArgument`."""
        if self.is_inherited:
            raise errors.InvalidArgument(
                "this client belongs to the process that this one was forked from; connect once in each of them"
            )
        return self._background.run(work)

    def tell(self, call: Callable[[], object]) -> None:
        """See `Background.tell`; what is inherited tells nobody."""
        if not self.is_inherited:
            self._background.tell(call)

    def release(self) -> None:
        """Use it no more. What is inherited was never of use here."""
        if not self.is_inherited:
            self._background.release()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """The background thread."""
    loop.run_forever()
    for task in asyncio.all_tasks(loop):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            loop.run_until_complete(task)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


background: Final = Background()
"""The one of this process."""
os.register_at_fork(after_in_child=background.forget)
