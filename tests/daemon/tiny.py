"""A daemon that does nothing but what its first argument says; the others are flags of `vms start`.

Run as `python -m tests.daemon.tiny BEHAVIOUR ...` by the tests of its life cycle.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Awaitable, Callable

from varlog import errors, limits
from varlog.daemon import config, service
from varlog.daemon.http import Health

Tiny = service.Service[config.ManagerConfig]

RAISED: dict[str, Callable[[], BaseException]] = {
    "bad-config": lambda: errors.BadConfig("cluster is 0"),
    "not-writable": lambda: errors.NotWritable("/volume is not a directory"),
    "port-taken": lambda: errors.CannotListen("127.0.0.1:1 is taken"),
    "permission": lambda: PermissionError(13, "Permission denied", "/volume"),
    "inconsistent": lambda: errors.ConsistencyViolation("two answers"),
    "wrong-identity": lambda: errors.WrongIdentity("another node's volumes"),
    "poisoned": lambda: errors.Poisoned("fsync failed"),
    "journal": lambda: errors.JournalCorrupt("a frame is damaged", segment="journal", offset=64),
    "mistake": lambda: KeyError("no such thing"),
    "group": lambda: ExceptionGroup("several", [errors.NotWritable("/v"), ExceptionGroup("", [errors.Poisoned("p")])]),
}


async def obey(tiny: Tiny) -> None:
    """Serve until told to stop."""
    tiny.metrics.counter("varlog_tiny_things", "Things that were done.", lambda: 42)
    await tiny.expose(lambda: Health("ok", {"things": 42}))
    tiny.ready("127.0.0.1:1")
    await tiny.stop.wait()
    print("closed", flush=True)  # noqa: T201


async def linger(tiny: Tiny) -> None:
    """Take for ever to stop."""
    tiny.ready("127.0.0.1:1")
    await asyncio.Event().wait()


async def resist(tiny: Tiny) -> None:
    """Do not let go when something failed."""
    limits.STOP_SECONDS = 0  # type: ignore[misc]
    tiny.fail(errors.Poisoned("fsync failed"))
    try:
        await linger(tiny)
    finally:
        await asyncio.Event().wait()


async def hang(tiny: Tiny) -> None:
    """Block the loop once the stop was requested."""
    tiny.ready("127.0.0.1:1")
    await tiny.stop.wait()
    print("hangs", flush=True)  # noqa: T201
    threading.Event().wait()


async def settle(tiny: Tiny) -> None:
    """Tell what became of the garbage collector."""
    tiny.ready("127.0.0.1:1")
    turn = asyncio.Event()
    asyncio.get_running_loop().call_soon(turn.set)
    await turn.wait()
    young, *_ = gc.get_threshold()
    print(gc.get_freeze_count() > 1000, young, sys.getswitchinterval(), flush=True)  # noqa: T201


async def start_only(_tiny: Tiny) -> None:
    """End without being asked to."""


def in_main(error: BaseException) -> Callable[[Tiny], Awaitable[None]]:
    async def main(_tiny: Tiny) -> None:
        raise error

    return main


def in_callback(error: BaseException, then: Callable[[Tiny], Awaitable[None]]) -> Callable[[Tiny], Awaitable[None]]:
    """Raise where nobody catches, in a callback of the loop, and go on."""

    def callback() -> None:
        raise error

    async def main(tiny: Tiny) -> None:
        asyncio.get_running_loop().call_soon(callback)
        await then(tiny)

    return main


def in_thread(error: BaseException) -> Callable[[Tiny], Awaitable[None]]:
    def work() -> None:
        raise error

    async def main(tiny: Tiny) -> None:
        threading.Thread(target=work).start()
        await linger(tiny)

    return main


def behaviour(name: str) -> Callable[[Tiny], Awaitable[None]]:
    """What to do, by name: one of the coroutines above, or where to raise what."""
    plain = {"obey": obey, "linger": linger, "hang": hang, "settle": settle, "start-only": start_only, "resist": resist}
    if name in plain:
        return plain[name]
    where, _, what = name.partition(":")
    error = RAISED[what]()
    if where == "callback":
        return in_callback(error, linger)
    if where == "callback-obey":
        return in_callback(error, obey)
    return in_thread(error) if where == "thread" else in_main(error)


def main(name: str, *flags: str) -> int:
    given = dict(flag.split("=", 1) for flag in flags)
    loaded = config.load(config.ManagerConfig, {"secret_file": "unused", "http": "127.0.0.1:0", **given})
    return service.run(behaviour(name), loaded, writer_thread=name == "settle")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
