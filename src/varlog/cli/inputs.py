"""What `append` reads: standard input and files, as lines or as a whole, with bounded memory.

Standard input may be a pipe that stays silent for hours. It is waited for by the event loop, not by a thread, so that
Ctrl-C ends the wait. A regular file is always ready and is simply read.

Lines come in the groups in which they arrive: whatever is complete when a read returns is one group. So a line is
never held back to fill a batch, and under load batches are large by themselves.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Final

from varlog import limits
from varlog.errors import EntryTooLarge

READ_BYTES: Final = 256 * limits.KIB
"""At most this much is read at once, so a batch is about this large."""


async def chunks_of(descriptor: int) -> AsyncIterator[bytes]:
    """The bytes of a file, a pipe or a terminal, as they come, up to its end."""
    while True:
        await _readable(descriptor)
        chunk = os.read(descriptor, READ_BYTES)
        if not chunk:
            return
        yield chunk


async def _readable(descriptor: int) -> None:
    """Wait until a read does not block. Watched only while waiting: the event loop would spin on unread data."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # a regular file cannot be waited for, and need not be
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def lines_of(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Its lines without their newlines, in groups as they come. What follows the last newline is a line too."""
    begun: list[bytes] = []
    begun_bytes = 0
    async for chunk in chunks_of(descriptor):
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*begun, lines[0]])
            begun, begun_bytes = [], 0
            yield lines
        if rest:
            begun.append(rest)
            begun_bytes += len(rest)
        if begun_bytes > limits.MAX_ENTRY_BYTES:
            raise _too_large("a line")
    if begun:
        yield [b"".join(begun)]


async def whole(descriptor: int, name: str) -> bytes:
    """All of it, as one entry."""
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks_of(descriptor):
        parts.append(chunk)
        size += len(chunk)
        if size > limits.MAX_ENTRY_BYTES:
            raise _too_large(name)
    return b"".join(parts)


def _too_large(what: str) -> EntryTooLarge:
    return EntryTooLarge(
        f"{what} is longer than an entry may be ({limits.MAX_ENTRY_BYTES:,} bytes); nothing of it was appended"
    )
