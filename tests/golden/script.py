"""Golden scripts: text files of commands, and below each the trace it is expected to leave.

    # A line that begins with a hash is for the reader.
    append w1 a b
    ----
    w1 -> sn/1  Append ls 1 epoch 2: [a b], 1 after 0

A command is one line; `----` follows, then the trace, then an empty line. `replay` gives the text back with the trace
that the commands left now, so that comparing the two is the test, and writing the new one is the rewrite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

RULER = "----"


def replay(text: str, execute: Callable[[str], list[str]]) -> str:
    """The script with what its commands leave now. `execute` does one command and tells the lines of its trace."""
    return "\n".join(_replayed(text.splitlines(), execute)).rstrip("\n") + "\n"


def _replayed(lines: list[str], execute: Callable[[str], list[str]]) -> Iterator[str]:
    rest = iter(lines)
    for line in rest:
        yield line
        if not line or line.startswith("#"):
            continue
        trace = execute(line)
        blank = [told for told in trace if not told.strip()]
        assert not blank, "an empty line ends a trace"
        yield RULER
        yield from trace
        _skip_expected(line, rest)
        yield ""


def _skip_expected(command: str, rest: Iterator[str]) -> None:
    ruler = next(rest, RULER)
    if not ruler:
        return  # a new command, without a trace yet
    assert ruler == RULER, f"{command!r} is followed by {ruler!r}; a trace begins with {RULER}"
    for expected in rest:
        if not expected:
            return
