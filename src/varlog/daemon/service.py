"""The life of a daemon, from exec to exit code.

`run(main, config)` sets up the logs, asks for all the descriptors there are, makes the event loop (uvloop where it is
installed), and runs `main(service)`. That coroutine lets itself be watched (`service.expose`), starts what the daemon
is made of, calls `service.ready(address)`, waits for `service.stop`, closes what it has started and returns.

- SIGTERM, SIGINT or SIGHUP (the terminal it was started from is gone) requests the stop. A second one ends the process
  at once, also when the loop is stuck: all that is on disk is made for being killed.
- An exception that nobody caught, in a callback or a thread too, ends the daemon: a state machine that was interrupted
  half-way must not go on. Errors of the operating system and typed errors that do not mean danger are logged instead,
  if they surface in a callback: they belong to one connection.
- The exit code says what to do about it, see `Exit`. A typed error is one line; only the unexpected has a traceback.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from enum import IntEnum
from typing import Any, Final, Generic, TypeVar

from varlog import descriptors, errors, limits, memory
from varlog.daemon import logs
from varlog.daemon.config import DaemonConfig
from varlog.daemon.http import Endpoint, Health
from varlog.daemon.metrics import Metrics
from varlog.errors import VarlogError

C = TypeVar("C", bound=DaemonConfig)


class Exit(IntEnum):
    """What a daemon's exit code tells its supervisor."""

    OK = 0
    """It was asked to stop, and has."""
    UNEXPECTED = 1
    """A mistake in the program; the log has the traceback. Restart it."""
    USAGE = 2
    """A flag or the config file is wrong. A restart does not help."""
    ENVIRONMENT = 3
    """A volume, port, permission or peer is not as it should be. Put it right, or restart it later."""
    PROTECTED = 4
    """It stopped to protect data: something is not consistent or not sound. Look before restarting it."""


_EXITS: Final[tuple[tuple[type[BaseException], Exit], ...]] = (
    (errors.BadConfig, Exit.USAGE),
    (errors.InvalidArgument, Exit.USAGE),
    (errors.ConsistencyViolation, Exit.PROTECTED),
    (errors.Corrupt, Exit.PROTECTED),
    (errors.Poisoned, Exit.PROTECTED),
    (errors.WrongIdentity, Exit.PROTECTED),
    (errors.MalformedSnapshot, Exit.PROTECTED),
    (errors.MalformedMetadata, Exit.PROTECTED),
    (VarlogError, Exit.ENVIRONMENT),
    (OSError, Exit.ENVIRONMENT),
)
_GRAVEST_FIRST: Final = (Exit.PROTECTED, Exit.UNEXPECTED, Exit.USAGE, Exit.ENVIRONMENT)

YOUNG_OBJECTS: Final = 50_000
"""Appends that queue up are thousands of live objects that make no cycles. At the default of 700 new ones the collector
looks through them 35 times while a queue of 8192 fills; from here on, not once."""
SWITCH_SECONDS: Final = 0.0005
"""How long a thread that comes back from fdatasync waits for a busy event loop to hand over the interpreter. With the
default, 5 ms, a small write and sync took 5 to 10 ms beside a loop that is never idle; with this 0.7 ms, and the loop
does 7 % less. With 0.1 ms it is 0.3 ms and 20 %."""


def exit_code(error: BaseException) -> Exit:
    """What the process ends with if this error ends it."""
    return next((code for kind, code in _EXITS if isinstance(error, kind)), Exit.UNEXPECTED)


class Stop:
    """The request to stop; once made it stays."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason = ""

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def request(self, reason: str) -> None:
        self.reason = self.reason or reason
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


class Service(Generic[C]):
    """What a daemon's main coroutine is handed. It lives on the event loop that runs it."""

    def __init__(self, config: C) -> None:
        self.config = config
        self.log = logs.get()
        self.metrics = Metrics(config.program, config.cluster)
        self.stop = Stop()
        self._stops = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as it is under nohup, which means it
            self._stops.append(signal.SIGHUP)
        self._ready = False
        self._endpoint: Endpoint | None = None
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def expose(self, health: Callable[[], Health]) -> None:
        """Serve `metrics` and the daemon's health, if the config says where, until it ends. `health` is asked while the
        daemon is ready and not stopping; before and after, the answer is that."""

        def state() -> Health:
            if self.stop.requested:
                return Health("stopping", {"reason": self.stop.reason})
            return health() if self._ready else Health("starting", {})

        if self.config.http is not None:
            self._endpoint = await Endpoint.start(self.config.http, self.config.program, self.metrics.render, state)

    def ready(self, address: str) -> None:
        """The daemon serves at that address now: say so to whoever waits for it."""
        self._ready = True
        http = self._endpoint.address if self._endpoint is not None else None
        self.log.info("ready", address=address, http=http)
        if self.config.ready_fd is not None:
            _tell_descriptor(self.config.ready_fd, f"{address}\n{http}" if http is not None else address)
        _notify_supervisor("READY=1")
        asyncio.get_running_loop().call_soon(_settle_memory)

    def fail(self, error: BaseException) -> None:
        """End the daemon because of this error; only the first one counts. To be called on the loop's thread."""
        if not self._failure.done():
            self._failure.set_exception(error)

    async def live(self, main: Callable[[Service[C]], Awaitable[None]]) -> None:
        """Run `main` until it returns, or something fails."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_stray)
        threading.excepthook = lambda raised: loop.call_soon_threadsafe(
            self.fail, raised.exc_value or raised.exc_type()
        )
        for number in self._stops:
            loop.add_signal_handler(number, self._on_signal, number)
        running = asyncio.ensure_future(main(self))
        await asyncio.wait({running, self._failure}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            running.cancel()
            _, stuck = await asyncio.wait({running}, timeout=limits.STOP_SECONDS)
            if stuck:
                self.log.critical("closing takes too long", seconds=limits.STOP_SECONDS)
                os._exit(_explain(self._failure.exception() or TimeoutError()))
        if self._endpoint is not None:
            await self._endpoint.close()
        if not self._failure.cancel():  # it has failed; that `main` may have failed as well is a consequence
            self.log.debug("main ended", task=repr(running))
            self._failure.result()
        running.result()

    def _on_signal(self, number: signal.Signals) -> None:
        for again in self._stops:
            asyncio.get_running_loop().remove_signal_handler(again)
            signal.signal(again, signal.SIG_DFL)
        self.log.info("stopping", reason=number.name)
        _notify_supervisor("STOPPING=1")
        self.stop.request(number.name)

    def _on_stray(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception that surfaced in a callback, or in a task nobody awaits."""
        error = context.get("exception")
        if error is None or exit_code(error) is Exit.ENVIRONMENT:
            self.log.error("stray error", what=context.get("message"), error=_named(error) if error else None)
        else:
            self.fail(error)


def run(main: Callable[[Service[C]], Awaitable[None]], config: C, *, writer_thread: bool = False) -> int:
    """Live until stopped; returns the exit code. `writer_thread` says that threads of this process write to disk."""
    logs.configure(config.log_level, config.log_format, program=config.program, cluster=config.cluster)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # or asyncio would make a KeyboardInterrupt of it
    descriptors.raise_limit()
    if writer_thread:
        sys.setswitchinterval(SWITCH_SECONDS)

    async def live() -> None:
        _check_descriptor(config.ready_fd)
        await Service(config).live(main)

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(live())
    except BaseException as error:
        return _explain(error)
    logs.get().info("stopped")
    return Exit.OK


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop  # noqa: PLC0415  # it is not there on every platform
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _explain(error: BaseException) -> Exit:
    """Log why the daemon ends: the gravest of what went wrong, in a line if it is a known kind of error."""
    gravest = min(_leaves(error), key=lambda leaf: _GRAVEST_FIRST.index(exit_code(leaf)))
    code = exit_code(gravest)
    trace = gravest if code is Exit.UNEXPECTED else None
    logs.get().critical("ended", error=_named(gravest), exit_code=int(code), exc_info=trace)
    return code


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _settle_memory() -> None:
    """What starting has made stays, so the collector need not look at it: it would stop the loop for 4 ms each time."""
    memory.keep()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)


def _check_descriptor(number: int | None) -> None:
    try:
        if number is not None:
            os.fstat(number)
    except OSError:
        raise errors.BadConfig(
            f"--ready-fd is {number}: it is not open; hand it over from the parent process"
        ) from None


def _tell_descriptor(number: int, text: str) -> None:
    try:
        os.write(number, f"{text}\n".encode())
        if number > 2:
            os.close(number)
    except OSError as error:
        logs.get().warning("whoever waits for it to be ready could not be told", error=_named(error))


def _notify_supervisor(state: str) -> None:
    """The protocol of systemd's `Type=notify`: one datagram to the socket it names."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notified:
        try:
            notified.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)
        except OSError as error:
            logs.get().warning("the supervisor could not be told", state=state, error=_named(error))
