"""`varlog status --watch`: the status as it changes.

On a terminal it fills the screen and is drawn anew at each look; Ctrl-C gives the screen back as it was. Elsewhere each
look is printed after the one before, with `--json` as one object. A cluster that cannot be asked for a while is said to
be so, above what was seen last; the connection is made anew by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from varlog.cli import records
from varlog.cli.examining import examine
from varlog.cli.options import Cluster
from varlog.cli.output import Output, duration_of
from varlog.cli.status import (
    ClusterState,
    StreamState,
    doing_of,
    headline,
    node_row,
    percent,
    show,
    state_of,
    stream_row,
)
from varlog.core.world import Memory
from varlog.errors import VarlogError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from varlog import Admin

_STATUS_STYLES: Final = {"RUNNING": "green", "CHAINED": "green", "ABORTED": "red"}
_BAR_WIDTH: Final = 24
_PROBLEMS: Final = 6
_SENTENCES: Final = 5
_COPIES: Final = 8


class Look(NamedTuple):
    """One look: what was seen, or what was seen last and why there is nothing newer."""

    state: ClusterState | None
    error: str
    heard: dict[int, float]
    """When each node answered last."""
    time: float
    rates: dict[int, float]
    """Entries in a second, by topic,"""
    copied: dict[tuple[int, int], float]
    """and by log stream and node that copies it."""


async def watch_status(at: Cluster, seconds: float) -> None:
    """Until somebody ends it."""
    async with at.admin() as admin:
        looks = _Looks(at, admin)
        if at.output.is_terminal:
            await _draw(looks, seconds)
            return
        while True:
            _print(at.output, await looks.next())
            await asyncio.sleep(seconds)


def _print(output: Output, look: Look) -> None:
    if look.error:
        output.record({"error": look.error})
        output.line(f"the cluster cannot be asked: {look.error}")
    elif look.state is not None:
        output.record(look.state)
        if not output.json:
            show(output, look.state)
    output.line()


class _Looks:
    """Look after look."""

    def __init__(self, at: Cluster, admin: Admin) -> None:
        self._at = at
        self._admin = admin
        self._memory = Memory()
        self._last: Look | None = None

    async def next(self) -> Look:
        last = self._last
        try:
            state = state_of(await examine(self._at, self._admin, self._memory))
        except VarlogError as error:
            look = (
                last._replace(error=str(error), time=time.monotonic())
                if last is not None
                else Look(None, str(error), {}, time.monotonic(), {}, {})
            )
        else:
            now = time.monotonic()
            heard = dict(last.heard) if last is not None else {}
            heard.update({node.id: now for node in state.nodes if node.answers})
            look = Look(state, "", heard, now, _rates(_grown, last, state, now), _rates(_copied, last, state, now))
        self._last = look
        return look


def _rates(
    measure: Callable[[ClusterState], dict[Any, int]], last: Look | None, state: ClusterState, now: float
) -> dict[Any, float]:
    """How fast something grows, by what was seen before and now."""
    if last is None or last.state is None or now <= last.time:
        return {}
    before = measure(last.state)
    return {key: (value - before[key]) / (now - last.time) for key, value in measure(state).items() if key in before}


def _grown(state: ClusterState) -> dict[Any, int]:
    return {topic.id: topic.high_watermark for topic in state.topics}


def _copied(state: ClusterState) -> dict[Any, int]:
    return {(stream.id, copy.node): copy.copied for stream in state.streams for copy in stream.copies}


async def _draw(looks: _Looks, seconds: float) -> None:
    from rich.console import Console  # noqa: PLC0415  # takes a while to import, and pipes need none of it
    from rich.live import Live  # noqa: PLC0415

    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            look = await looks.next()
            live.update(screen(look, seconds, console.height), refresh=True)
            await asyncio.sleep(seconds)


def screen(look: Look, seconds: float, height: int) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    parts: list[RenderableType] = []
    state = look.state
    if state is None:
        return Text(f"the cluster cannot be asked: {look.error}", "bold red")
    clock = time.strftime("%H:%M:%S")
    parts.append(_line(headline(state), "bold green" if state.healthy and not look.error else "bold red"))
    parts.append(_line(f"{clock}, every {seconds:g} s; Ctrl-C ends", "dim"))
    if look.error:
        parts.append(Text(f"the cluster cannot be asked, this is what was seen last: {look.error}", "bold red"))
    parts.extend(_line(f"! {problem}", "yellow") for problem in state.problems[:_PROBLEMS])
    hidden = len(state.problems) - _PROBLEMS
    if hidden > 0:
        parts.append(Text(f"! and {hidden} more: varlog doctor", "yellow"))
    parts += [Text(), _nodes(look, state), Text(), _topics(look, state), Text()]
    bars = [_line(bar, "") for stream in state.streams for bar in _bars(look, stream)][:_COPIES]
    doing = [_line(sentence, "cyan") for sentence in doing_of(state)[:_SENTENCES]]
    used = len(parts) + len(state.nodes) + len(state.topics) + len(bars) + len(doing) + 8
    parts.append(_streams(state, max(3, height - used)))
    return Group(*parts, *bars, Text(), *doing)


def _line(text: str, style: str) -> Text:
    """One line of the screen, however long the text is; `varlog doctor` tells all of it."""
    from rich.text import Text  # noqa: PLC0415

    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _table(*heads: tuple[str, bool]) -> Table:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold cyan")
    for head, right in heads:
        table.add_column(head, justify="right" if right else "left", no_wrap=True)
    return table


def _nodes(look: Look, state: ClusterState) -> Table:
    from rich.text import Text  # noqa: PLC0415

    heads = (("node", True), ("address", False), ("state", False), ("heard", True), ("replicas", True), ("free", True))
    table = _table(*heads)
    for node in state.nodes:
        snid, address, _, replicas, free = node_row(node)
        style = "green" if node.state == "ok" else "yellow" if node.answers else "bold red"
        silent = look.time - look.heard[node.id] if node.id in look.heard else node.silent
        heard = "now" if node.answers else f"{duration_of(silent)} ago" if silent else "never"
        table.add_row(str(snid), str(address), Text(node.state, style), heard, str(replicas), str(free))
    return table


def _topics(look: Look, state: ClusterState) -> Table:
    table = _table(*((column.title, column.right) for column in records.TOPIC_COLUMNS), ("entries/s", True))
    for topic in state.topics:
        rate = look.rates.get(topic.id)
        table.add_row(*map(str, records.topic_row(topic)), f"{rate:,.0f}" if rate is not None else "")
    return table


def _streams(state: ClusterState, most: int) -> Table:
    """Those first that are not well, as many as fit."""
    from rich.text import Text  # noqa: PLC0415

    heads = (
        ("stream", True), ("topic", False), ("status", False), ("epoch", True), ("replicas", False), ("of", True),
        ("last GLSN", True), ("behind", True), ("waiting", True),
    )  # fmt: skip
    table = _table(*heads)
    for stream in sorted(state.streams, key=_is_well)[:most]:
        cells: list[str | Text] = [str(cell) for cell in stream_row(stream)]
        cells[2] = Text(stream.status, _STATUS_STYLES.get(stream.status, "yellow"))
        if len(stream.replicas) < stream.wanted:
            cells[4] = Text(str(cells[4]), "yellow")
        table.add_row(*cells)
    hidden = len(state.streams) - most
    if hidden > 0:
        table.add_row("", f"and {hidden} more")
    return table


def _is_well(stream: StreamState) -> bool:
    return stream.status in ("RUNNING", "CHAINED") and len(stream.replicas) >= stream.wanted and not stream.copies


def _bars(look: Look, stream: StreamState) -> Iterator[str]:
    """A bar for each copy that is under way."""
    for copy in stream.copies:
        done = percent(copy)
        filled = _BAR_WIDTH * done // 100
        rate = look.copied.get((stream.id, copy.node), 0.0)
        left = f", {duration_of((copy.of - copy.copied) / rate)} left" if rate > 0 and copy.copied < copy.of else ""
        bar = f"{'█' * filled}{'░' * (_BAR_WIDTH - filled)} {done:3d} %"
        yield f"{stream.id:6d}  {bar} to node {copy.node} from node {copy.source}{left}"
