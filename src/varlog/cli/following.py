"""Waiting for what the manager does, and showing on a terminal how far it is.

The manager goes on without us: who waits only looks, a few times a second. It ends when the thing is done, after
`--timeout` if that was given, and otherwise when nothing at all has moved for a minute: then something is in the way,
and somebody should look at it rather than wait.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from varlog.cli import records
from varlog.cli.looking import Seen, see
from varlog.cli.options import Cluster, Flag
from varlog.cli.output import Output
from varlog.core.messages import StreamInfo
from varlog.errors import DeadlineExceeded

if TYPE_CHECKING:
    from varlog import Admin

LOOK_AGAIN: Final = 0.25
STALL_SECONDS: Final = 60.0

NoWait = Annotated[Flag, Parameter(help="Do not wait until it is done; the manager goes on with it by itself.")]
Show = Callable[[float, str], None]
"""Told how much of it is done, from 0 to 1, and what is being done."""


class Patience:
    """How long one waits."""

    def __init__(self, at: Cluster) -> None:
        self._limit = at.timeout
        self._begun = self._changed = monotonic()
        self._last: Hashable = None

    async def moment(self, state: Hashable, what: str) -> None:
        """Wait for a moment, or lose patience. `state` is what changes as it goes on, `what` is not done yet."""
        now = monotonic()
        if state != self._last:
            self._last, self._changed = state, now
        if self._limit is not None and now - self._begun > self._limit:
            raise DeadlineExceeded(f"{what}; the manager goes on with it")
        if now - self._changed > STALL_SECONDS:
            raise DeadlineExceeded(f"{what}, and nothing has moved for {STALL_SECONDS:g} s; see varlog doctor")
        await asyncio.sleep(LOOK_AGAIN)


async def follow(at: Cluster, admin: Admin, title: str, remaining: Callable[[Seen], list[StreamInfo]]) -> Seen:
    """Wait until nothing remains of the log streams that something is to be done with."""
    patience = Patience(at)
    total = 0
    with bar(at.output, title) as show:
        while True:
            seen = await see(at, admin)
            left = remaining(seen)
            if not left:
                return seen
            total = max(total, len(left))
            copied = sum(_share(seen, stream) for stream in left)
            show((total - len(left) + copied) / total, _doing(seen, left[0]))
            await patience.moment(_state_of(seen, left), f"{title}: {_told(left)} not done yet")


def _told(streams: list[StreamInfo]) -> str:
    ids = ", ".join(str(stream.lsid) for stream in streams)
    return f"log stream {ids} is" if len(streams) == 1 else f"log streams {ids} are"


def _state_of(seen: Seen, streams: list[StreamInfo]) -> Hashable:
    """What changes while something is being done."""
    copies = tuple(
        (snid, replica.lsid, replica.committed_end)
        for snid, info in sorted(seen.infos.items())
        for replica in info.replicas
        if replica.source
    )
    return tuple((stream.lsid, stream.epoch, stream.status, stream.replicas) for stream in streams), copies


def _share(seen: Seen, stream: StreamInfo) -> float:
    """How much of a log stream has been copied to the node that is to have it."""
    copies = [records.percent_of(copy) for copy in records.outsiders_of(stream, seen.infos) if copy.source]
    return max(copies, default=0) / 100


def _doing(seen: Seen, stream: StreamInfo) -> str:
    copies = [copy for copy in records.outsiders_of(stream, seen.infos) if copy.source]
    if not copies:
        return f"log stream {stream.lsid}"
    return f"log stream {stream.lsid}: copying from node {copies[0].source} to node {copies[0].node}"


@contextmanager
def bar(output: Output, title: str) -> Iterator[Show]:
    """A bar on the terminal; and whoever stops looking is told that it goes on."""
    if output.json or not sys.stderr.isatty():
        yield lambda _share, _text: None
        return
    from rich.console import Console  # noqa: PLC0415  # takes a while to import, and is for terminals alone
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    try:
        with Progress(
            *columns, TextColumn("{task.fields[text]}"), console=Console(stderr=True), transient=True
        ) as shown:
            task = shown.add_task(title, total=1.0, text="")
            yield lambda share, text: shown.update(task, completed=share, text=text)
    except asyncio.CancelledError:
        output.note(f"{title}: the manager goes on with it")
        raise
