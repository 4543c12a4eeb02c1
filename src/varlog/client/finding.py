"""From a time to a position, by bisection: timestamps never decrease from one position to the next.

What holds no entry was given its position at some time too, so it serves as well as an entry does. What was lost tells
no time, nor does what a reader filled: the next position that has one speaks for it, so that whoever reads from the
answer on is told of the loss.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from varlog import errors
from varlog.client.archives import Archives
from varlog.core.messages import Tail

TimeAt = Callable[[int, int, float], Awaitable[int | None]]
"""The time of a position of the log, or of the next one that has a time below another; by a deadline."""


async def find_time(timestamp: int, tail: Tail, time_at: TimeAt, archives: Archives, deadline: float) -> int:
    """The first position whose time is not before `timestamp`; the one after the tail if there is none."""
    first = low = tail.trim + 1
    high = tail.hwm + 1
    while low < high:
        middle = (low + high) // 2
        try:
            is_late = await _is_late(timestamp, middle, high, time_at, deadline)
        except errors.Trimmed as trimmed:  # meanwhile
            first = trimmed.first
            low, high = max(low, first), max(high, first)
            continue
        low, high = (low, middle) if is_late else (middle + 1, high)
    return low if low > first else await _find_in_archive(timestamp, first, archives, deadline)


async def _is_late(timestamp: int, position: int, high: int, time_at: TimeAt, deadline: float) -> bool:
    """Whether the first position from `position` on that has a time is that late; `high` is."""
    while position < high:
        try:
            time = await time_at(position, high, deadline)
        except errors.Lost as lost:
            position = lost.end
        else:
            return time is None or time >= timestamp
    return True


async def _find_in_archive(timestamp: int, first: int, archives: Archives, deadline: float) -> int:
    """All of the log is that late, from `first` on: was some of what was trimmed so too?"""
    archive = await archives.attached(first - 1, deadline) if first > 1 else None
    if archive is None or archive.begin >= first:
        return first
    found = await archives.in_thread(lambda: archive.find_time(timestamp), deadline, archive.uri)
    if found < archive.end:
        return min(found, first)
    if archive.end < first:
        raise errors.Trimmed(first, archive.end, archive.uri)
    return first
