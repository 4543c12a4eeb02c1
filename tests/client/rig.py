"""What the tests of the client share: a loop that forgives nothing, and waiting for what nobody tells of."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

SECONDS = 30.0


def run(main: Coroutine[Any, Any, None], seconds: float = SECONDS) -> None:
    """Run a test on a loop of its own. It fails if it hangs, leaves a task behind, or leaves an error unseen."""
    complaints: list[str] = []

    def complain(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(complain)
        await asyncio.wait_for(main, seconds)
        await turns(3)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"left behind: {left}"
        gc.collect()

    gc.freeze()  # what is there already is none of this test's, and long to look through
    with warnings.catch_warnings(), asyncio.Runner() as runner:
        try:
            runner.run(watched())
        except BaseException:
            warnings.simplefilter("ignore", ResourceWarning)  # what is left open would hide why the test failed
            raise
        finally:
            gc.unfreeze()
    assert not complaints, complaints


async def turns(count: int) -> None:
    """Let the loop go round a few times."""
    for _ in range(count):
        turned = asyncio.Event()
        asyncio.get_running_loop().call_soon(turned.set)
        await turned.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that nobody is told of."""
    while not condition():
        await pass_time(0.002)


async def pass_time(seconds: float) -> None:
    """Let time pass: between two looks, or in which something must not happen."""
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, passed.set)
    await passed.wait()
