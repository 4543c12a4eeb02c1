"""Waiting for what does not tell by itself: another process's doing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

SECONDS: Final = 30.0
"""How long anything may take that a test waits for."""
LOOK_SECONDS: Final = 0.05


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = SECONDS) -> None:
    """Look again and again until the condition holds."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await pause(LOOK_SECONDS)


async def pause(seconds: float) -> None:
    """Let time pass: between two looks, or for as long as a fault lasts."""
    if seconds <= 0:
        return
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, passed.set)
    await passed.wait()
