"""`varlog append`: whatever a shell can produce becomes entries.

One part reads the input and sends batches through an appender; another one takes the acknowledgements in the order of
sending, counts and reports them. A failure stops the reading; what is under way by then is still waited for, so that
the last word says exactly how much is in the log.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter, validators

from varlog import limits
from varlog.cli.inputs import lines_of, whole
from varlog.cli.options import USUAL_TOPIC, Flag, Seconds, Topic, Whole, check_text
from varlog.cli.output import Output, discard_stdout, size_of
from varlog.errors import AlreadyCommitted, InvalidArgument, VarlogError

if TYPE_CHECKING:
    from varlog import Appender, AppendResult, Log

STDIN: Final = "-"
_UNACKNOWLEDGED: Final = 1024
_NOTEWORTHY_SECONDS: Final = 1.0
"""What takes no longer is told without its speed."""

Files = Annotated[
    tuple[str, ...], Parameter(negative=(), show_default=False, metavar="FILE", allow_leading_hyphen=True)
]
Batches = AsyncIterator[Sequence[bytes]]
Advance = Callable[[int, int], None]
"""Told how many more entries, of how many bytes, are in the log."""


async def append(
    *entries: str,
    file: Annotated[
        tuple[str, ...], Parameter(negative=(), show_default=False, metavar="FILE", allow_leading_hyphen=True)
    ] = (),
    lines: Flag = False,
    transaction: Annotated[str | None, Parameter(metavar="NAME", validator=check_text)] = None,
    number: Annotated[Whole | None, Parameter(metavar="N", validator=validators.Number(gte=0))] = None,
    expires: Seconds | None = None,
    at: Topic = USUAL_TOPIC,
) -> None:
    """Append entries.

    Parameters
    ----------
    entries
        Each is one entry. Put -- before them if one begins with a dash.
    file
        Append this file as one entry; may be given several times, - is standard input.
    lines
        Append every line of the files as an entry of its own.
    transaction
        Append all of it in a transaction of this name: readers see all of it or nothing.
    number
        Of the transaction: what was committed under this number, or a greater one, is not appended again.
    expires
        After so many seconds the transaction may be ended by others, if it is still open; 60 unless told otherwise.
    """
    if transaction is None and (number is not None or expires is not None):
        raise InvalidArgument("--number and --expires say something of a --transaction")
    if lines and entries and not file:
        meant = f"--file {quote(entries[0])} --lines"
        raise InvalidArgument(f"--lines is said of files, and none is named; did you mean {meant}?")
    for name in file:
        _check_readable(name)  # rather nothing at all than a part of it
    output = at.output
    async with at.log() as log:
        with _progress(output, entries, file) as advance:
            appending = _Appending(output, advance)
            batches = _batches(entries, file, log.topic.block, by_line=lines)
            if transaction is not None:
                seconds = limits.TRANSACTION_SECONDS if expires is None else expires
                told = await _transacted(log, transaction, number, seconds, appending, batches, at)
                output.line(told)
                return
            try:
                async with log.appender(timeout=at.patience) as appender:
                    await appending.run(appender, batches)
            except BaseException:
                if appending.entries:
                    output.note(f"varlog: {appending.told()}; then it ended early")
                raise
    output.line(appending.told())


async def _transacted(
    log: Log, name: str, number: int | None, expires: float, appending: _Appending, batches: Batches, at: Topic
) -> str:
    """Append all of it in a transaction, or nothing if that was done before; returns what came of it, in words."""
    output = at.output
    try:
        async with log.transaction(name, number=number, expires=expires) as transaction:
            async with transaction.appender(timeout=at.patience) as appender:
                await appending.run(appender, batches)
            result = await transaction.commit(timeout=at.patience)
    except AlreadyCommitted as error:
        output.record({"transaction": None, "commit": error.glsn, "entries": 0})
        return f"appended nothing: {error}"
    output.record({"transaction": transaction.id, "commit": result.glsn, "entries": result.entries})
    return f"{appending.told()}; committed at GLSN {result.glsn}"


def _check_readable(name: str) -> None:
    if name == STDIN:
        return
    if Path(name).is_dir():
        raise InvalidArgument(f"{name} is a directory; name files")
    if not os.access(name, os.R_OK):
        raise InvalidArgument(f"{name} is not there, or may not be read")


async def _batches(entries: Sequence[str], files: Sequence[str], block: int, *, by_line: bool) -> Batches:
    """What to append, as it comes; lines as many together as a block takes, if there are blocks."""
    if entries:
        yield [os.fsencode(entry) for entry in entries]
    elif not files:
        if sys.stdin.isatty():
            sys.stderr.write("every line is an entry; Ctrl-D ends\n")
        async for batch in lines_of(sys.stdin.fileno()):
            for part in _parts(batch, block):
                yield part
    for name in files:
        descriptor = sys.stdin.fileno() if name == STDIN else os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if by_line:
                async for batch in lines_of(descriptor):
                    for part in _parts(batch, block):
                        yield part
            else:
                yield [await whole(descriptor, name)]
        finally:
            if name != STDIN:
                os.close(descriptor)


def _parts(batch: list[bytes], block: int) -> Iterator[list[bytes]]:
    most = block or len(batch)
    for begin in range(0, len(batch), most):
        yield batch[begin : begin + most]


class _Appending:
    """Sends and counts."""

    def __init__(self, output: Output, advance: Advance) -> None:
        self._output = output
        self._advance = advance
        self._sent: asyncio.Queue[tuple[asyncio.Future[AppendResult], int] | None] = asyncio.Queue(_UNACKNOWLEDGED)
        self._begun = monotonic()
        self._failure: VarlogError | None = None
        self.entries = self._bytes = 0
        self._first = self._last = 0

    async def run(self, appender: Appender, batches: Batches) -> None:
        """Append all there is. Whatever ends it, everything that was sent is accounted for first."""
        sending = asyncio.ensure_future(self._send(appender, batches))
        acknowledging = asyncio.ensure_future(self._acknowledge(sending))
        try:
            await asyncio.wait([sending])
            await self._sent.put(None)
            await acknowledging
        finally:
            sending.cancel()
            acknowledging.cancel()
        if self._failure is not None:
            raise self._failure
        sending.result()

    async def _send(self, appender: Appender, batches: Batches) -> None:
        async for batch in batches:
            await self._sent.put((await appender.append_batch(batch), sum(map(len, batch))))

    async def _acknowledge(self, sending: asyncio.Future[None]) -> None:
        while (sent := await self._sent.get()) is not None:
            future, size = sent
            try:
                self._count(await future, size)
            except VarlogError as error:
                self._failure = self._failure or error
                sending.cancel()

    def _count(self, result: AppendResult, size: int) -> None:
        self.entries += result.count
        self._bytes += size
        self._first = self._first or result.glsn
        self._last = result.end - 1
        self._advance(result.count, size)
        try:
            self._output.record(result._asdict())
        except BrokenPipeError:  # nobody reads it any more; what is to be appended is appended all the same
            discard_stdout()

    def told(self) -> str:
        """How much is in the log, in words."""
        count = self.entries
        if not count:
            return "appended nothing"
        what = f"appended {count:,} {'entry' if count == 1 else 'entries'}"
        where = f"GLSN {self._first}" if count == 1 else f"GLSN {self._first} to {self._last}"
        between = self._last - self._first + 1 - count
        if between > 0:
            where += f", with {between:,} of others, or filled, between them"
        seconds = monotonic() - self._begun
        if seconds < _NOTEWORTHY_SECONDS:
            return f"{what}: {where}"
        return f"{what}: {where}; {count / seconds:,.0f} entries/s, {size_of(self._bytes / seconds)}/s"


@contextmanager
def _progress(output: Output, entries: Sequence[str], files: Sequence[str]) -> Iterator[Advance]:
    """A bar on the terminal while files are appended, a count while lines of a pipe are."""
    from_pipe = not entries and (not files or STDIN in files)
    if output.json or not sys.stderr.isatty() or (from_pipe and sys.stdin.isatty()) or not (files or from_pipe):
        yield lambda _entries, _size: None
        return
    from rich.console import Console  # noqa: PLC0415  # takes a while to import, and is for terminals alone
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

    total = None if from_pipe else sum(Path(name).stat().st_size for name in files)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TextColumn("{task.fields[entries]:,} entries"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total, entries=0)
        count = 0

        def advance(more: int, size: int) -> None:
            nonlocal count
            count += more
            progress.update(task, advance=size, entries=count)

        yield advance
