"""What commands print: for people on a terminal, as aligned text in a pipe, as JSON for scripts.

Results go to standard output, everything else (progress, hints, questions, errors) to standard error. With `--json`
standard output carries JSON objects, one to a line, and nothing else. All output is UTF-8, whatever the locale says,
and is written and flushed piece by piece, so that a reader at the other end of a pipe sees it at once.

A reader that goes away (`varlog tail | head`) is no error: `BrokenPipeError` ends the command quietly, see
`varlog.cli.main`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import msgspec

_WIDEST: Final = 10_000
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


class Column(NamedTuple):
    """One column of a table."""

    title: str
    right: bool = False
    """Numbers stand to the right."""


class Output:
    """Where one command prints to."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.is_terminal = sys.stdout.isatty() and not json

    def write(self, data: bytes) -> None:
        """Write a result as it is."""
        if not data:
            return
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except OSError as error:
            error.filename = "standard output"  # not a disk of the cluster's
            raise

    def line(self, text: str = "") -> None:
        """A line for people; scripts do not see it."""
        if not self.json:
            self.write(text.encode("utf-8", "replace") + b"\n")

    def record(self, record: Any) -> None:
        """An object for scripts; people do not see it."""
        if self.json:
            self.write(msgspec.json.encode(record) + b"\n")

    def note(self, text: str) -> None:
        """Something to know besides the result."""
        if not self.json:
            sys.stderr.write(text + "\n")

    def table(self, columns: Sequence[Column | str], rows: Iterable[Sequence[object]]) -> None:
        """A table for people: drawn on a terminal, else aligned columns of text."""
        if self.json:
            return
        heads = [column if isinstance(column, Column) else Column(column) for column in columns]
        cells = [[str(cell) for cell in row] for row in rows]
        if self.is_terminal:
            self._drawn(heads, cells)
        else:
            self.write(_aligned(heads, cells).encode("utf-8", "replace"))

    def _drawn(self, heads: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
        from rich import box  # noqa: PLC0415  # takes a while to import, and pipes need none of it
        from rich.console import Console  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold cyan")
        for head in heads:
            table.add_column(head.title, justify="right" if head.right else "left", no_wrap=True)
        for row in cells:
            table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
        console = Console(highlight=False)
        # A row that is too long for the terminal is broken by the terminal: cells cut to pieces are hard to read.
        unbounded = console.options.update(max_width=_WIDEST)
        console.width = max(console.width, console.measure(table, options=unbounded).maximum)
        console.print(table)


_STYLES: Final = {
    "RUNNING": "green",
    "ok": "green",
    "SEALED": "yellow",
    "SEALING": "yellow",
    "UNSEALING": "yellow",
    "CREATING": "yellow",
    "ABORTED": "red",
    "does not answer": "bold red",
}
"""Words that say how something is, wherever they stand alone in a cell."""


def _aligned(heads: Sequence[Column], cells: Sequence[Sequence[str]]) -> str:
    rows = [[head.title for head in heads], *cells]
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    lines = []
    for row in rows:
        parts = [
            cell.rjust(width) if head.right else cell.ljust(width)
            for head, cell, width in zip(heads, row, widths, strict=True)
        ]
        lines.append("  ".join(parts).rstrip() + "\n")
    return "".join(lines)


def size_of(count: float) -> str:
    """A number of bytes for people: 1.5 MB."""
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"


def duration_of(seconds: float) -> str:
    """A time for people: 1.5 s, 12 s, 3 min, 2 h 5 min, 4 d 3 h."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    hours, days = minutes // 60, minutes // 1440
    if minutes < 60:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{days} d {hours % 24} h"


async def confirmed(question: str) -> bool:
    """Ask on the terminal before something is destroyed, also if nothing else goes there; whoever runs a script, which
    has no terminal to type at, is not asked. The answer is waited for by the event loop, so that Ctrl-C ends it."""
    from varlog.cli.inputs import lines_of  # noqa: PLC0415  # who is shown the list of commands need not wait for it

    if not sys.stdin.isatty():
        return True
    _ask(f"{question} [y/N] ")
    answer, *_ = await anext(lines_of(sys.stdin.fileno()), [b""])
    return answer.strip().lower() in {b"y", b"yes"}


def _ask(question: str) -> None:
    with ExitStack() as stack:
        asked = sys.stderr if sys.stderr.isatty() else stack.enter_context(open("/dev/tty", "w", encoding="utf-8"))
        asked.write(question)
        asked.flush()


def discard_stdout() -> None:
    """Let what is still buffered go nowhere: its reader is gone, and the interpreter flushes once more when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
