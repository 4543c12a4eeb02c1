"""`varlog read`, `tail` and `subscribe`: entries on standard output.

A command that waits for entries also watches its output: when whoever reads it goes away, it ends at once and not only
when the next entry comes, so that `varlog tail -f | grep -m 1 ...` does what it says.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter, validators

from varlog.cli.options import USUAL_TOPIC, Flag, Position, Topic, Whole
from varlog.cli.payloads import Format, shown_alone, shown_in_list

if TYPE_CHECKING:
    from varlog import EntryBatch, Log

Shown = Annotated[Format, Parameter(name="--format")]
Uncommitted = Annotated[
    Flag, Parameter(help="Show also entries of transactions that are not decided yet, or were never committed.")
]

_LOOK_BACK: Final = 100_000
"""So many positions at most are looked through at once for the last entries."""


async def read(
    glsn: Position, /, *, uncommitted: Uncommitted = False, form: Shown = Format.TEXT, at: Topic = USUAL_TOPIC
) -> None:
    """Read one entry.

    Parameters
    ----------
    glsn
        The position of the entry.
    form
        How to show it; raw is its exact bytes.
    """
    async with at.log() as log:
        entry = await log.read(glsn, timeout=at.patience, uncommitted=uncommitted)
    at.output.write(shown_alone(entry, form, json=at.json))


async def tail(
    *,
    number: Annotated[Whole, Parameter(name=["--number", "-n"], validator=validators.Number(gte=0), metavar="N")] = 10,
    follow: Annotated[Flag, Parameter(name=["--follow", "-f"])] = False,
    long: Annotated[Flag, Parameter(name=["--long", "-l"])] = False,
    uncommitted: Uncommitted = False,
    form: Shown = Format.TEXT,
    at: Topic = USUAL_TOPIC,
) -> None:
    """Show the last entries.

    Parameters
    ----------
    number
        How many.
    follow
        Then wait for more, until interrupted.
    long
        Show also when each got its position, and its log stream and LLSN.
    form
        How to show them; raw is their bytes, each followed by a newline.
    """
    async with at.log() as log:
        last = await (log.tail if uncommitted else log.stable)(timeout=at.patience)
        begin = await _begin_of_last(log, number, last, at, uncommitted=uncommitted)
        if follow:
            await _while_read(_print(log.subscribe(begin, uncommitted=uncommitted).batches(), form, at, long=long))
        elif begin <= last:
            found = log.scan(begin, last + 1, timeout=at.patience, uncommitted=uncommitted)
            await _print(found, form, at, long=long)


async def _begin_of_last(log: Log, number: int, last: int, at: Topic, *, uncommitted: bool) -> int:
    """The position of the first of the last `number` entries up to `last`. Positions that hold none do not count."""
    begin, step = last + 1, number
    first = await log.first(timeout=at.patience)
    while number and begin > first:
        begin, end = max(1, begin - step), begin
        if begin < first:
            first = await log.earliest(timeout=at.patience)
            begin = max(begin, first)
        scan = log.scan(begin, end, timeout=at.patience, uncommitted=uncommitted)
        for glsn, count in reversed([(batch.glsn, len(batch)) async for batch in scan]):
            if count >= number:
                return glsn + count - number
            number -= count
        step = min(2 * step, _LOOK_BACK)
    return begin


async def subscribe(
    *,
    begin: Annotated[Position | None, Parameter(name="--from", metavar="GLSN")] = None,
    end: Annotated[Position | None, Parameter(name="--to", metavar="GLSN")] = None,
    long: Annotated[Flag, Parameter(name=["--long", "-l"])] = False,
    uncommitted: Uncommitted = False,
    form: Shown = Format.TEXT,
    at: Topic = USUAL_TOPIC,
) -> None:
    """Print entries as they come.

    Parameters
    ----------
    begin
        The first position; without it, where the log or its archive begins.
    end
        The last position; without it, it goes on until interrupted.
    long
        Show also when each got its position, and its log stream and LLSN.
    form
        How to show them; raw is their bytes, each followed by a newline.
    """
    async with at.log() as log:
        first = begin or await log.earliest(timeout=at.patience)
        subscription = log.subscribe(first, end=None if end is None else end + 1, uncommitted=uncommitted)
        await _while_read(_print(subscription.batches(), form, at, long=long))


async def _print(batches: AsyncIterator[EntryBatch], form: Format, at: Topic, *, long: bool) -> None:
    output = at.output
    async for batch in batches:
        output.write(shown_in_list(batch, form, json=at.json, long=long))


async def _while_read(work: Coroutine[Any, Any, None]) -> None:
    """Do it for as long as somebody reads what we print."""
    descriptor = sys.stdout.fileno()
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        await work
        return
    loop = asyncio.get_running_loop()
    working = asyncio.ensure_future(work)
    unread = False

    def stop() -> None:
        nonlocal unread
        unread = True
        loop.remove_reader(descriptor)
        working.cancel()

    # From this end of a pipe nothing can ever be read: the event loop calls only when the other end is closed.
    loop.add_reader(descriptor, stop)
    try:
        await working
    except asyncio.CancelledError:
        if unread:
            raise BrokenPipeError from None
        raise
    finally:
        loop.remove_reader(descriptor)
