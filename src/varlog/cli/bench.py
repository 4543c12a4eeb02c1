"""`varlog bench`: how fast a cluster is, seen from here.

Appends are calls of the public client, so many at a time; the time of each is taken. What is read back is counted: a
figure for entries that are not there would be worth nothing.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter, validators

from varlog import limits
from varlog.cli.options import USUAL_CLUSTER, Cluster, Positive, Seconds, Whole
from varlog.cli.output import Column, Output
from varlog.daemon.service import loop_factory
from varlog.errors import ConsistencyViolation, UnknownTopic

if TYPE_CHECKING:
    from varlog import Admin, Log
    from varlog.core.messages import TopicInfo

MEGABYTE: Final = 1_000_000
_TICK: Final = 0.1

Size = Annotated[Whole, Parameter(validator=validators.Number(gte=0, lte=limits.MAX_ENTRY_BYTES), metavar="BYTES")]


class Measured(msgspec.Struct):
    """One direction."""

    entries: int
    seconds: float
    entries_per_second: float
    megabytes_per_second: float


class Appended(Measured):
    batches: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class Result(msgspec.Struct):
    size: int
    batch: int
    in_flight: int
    streams: int
    append: Appended
    read: Measured


def bench(
    *,
    size: Size = 100,
    batch: Positive = 100,
    in_flight: Positive = 64,
    seconds: Seconds = 5.0,
    streams: Positive = 1,
    at: Cluster = USUAL_CLUSTER,
) -> None:
    """Measure.

    Parameters
    ----------
    size
        Of an entry.
    batch
        Entries that are appended together.
    in_flight
        Batches under way at once.
    seconds
        How long to append.
    streams
        Log streams of the topic it makes.
    """

    async def measure() -> Result:
        measuring = asyncio.current_task()
        assert measuring is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, measuring.cancel)
        async with own_topic(at, streams) as log:
            append = await _append(at, log, [secrets.token_bytes(size)] * batch, in_flight, seconds)
            read = await _read(at, log, append.entries, size)
            return Result(size, batch, in_flight, streams, append, read)

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            result = runner.run(measure())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None  # SIGTERM ends it as Ctrl-C does
    at.output.record(result)
    _show(at.output, result)


@asynccontextmanager
async def own_topic(at: Cluster, streams: int) -> AsyncIterator[Log]:
    """A topic that is there for as long as this runs. Who is interrupted while it is made waits for that: what is still
    being made cannot be removed."""
    name = f"bench-{secrets.token_hex(4)}"
    async with at.admin() as admin:
        making = asyncio.ensure_future(admin.add_topic(name, streams=streams, timeout=at.patience))
        try:
            await asyncio.shield(making)
            async with at.connect(name) as log:
                yield log
        finally:
            await _remove(at, admin, name, making)


async def _remove(at: Cluster, admin: Admin, name: str, making: asyncio.Future[TopicInfo]) -> None:
    """Remove what was made, if it was; or say what may be left."""
    try:
        await asyncio.wait({making})
        with suppress(UnknownTopic):
            await admin.remove_topic(name, timeout=at.patience)
    except BaseException:
        at.output.note(f"topic {name!r} may be left behind; varlog topic remove {name} removes it")
        raise


async def _append(at: Cluster, log: Log, entries: list[bytes], in_flight: int, seconds: float) -> Appended:
    """Append the same entries again and again."""
    took: list[float] = []
    begun = perf_counter()

    async def one_after_another() -> None:
        while (before := perf_counter()) - begun < seconds:
            await log.append_batch(entries, timeout=at.patience)
            took.append(perf_counter() - before)

    with _progress(at.output, seconds):
        await asyncio.gather(*(one_after_another() for _ in range(in_flight)))
    elapsed = perf_counter() - begun
    took.sort()
    count = len(took) * len(entries)
    return Appended(
        entries=count,
        seconds=elapsed,
        entries_per_second=count / elapsed,
        megabytes_per_second=count * len(entries[0]) / elapsed / MEGABYTE,
        batches=len(took),
        p50_ms=took[len(took) // 2] * 1000,
        p99_ms=took[len(took) * 99 // 100] * 1000,
        max_ms=took[-1] * 1000,
    )


async def _read(at: Cluster, log: Log, count: int, size: int) -> Measured:
    """Read it all back, as batches."""
    found = 0
    begun = perf_counter()
    async for batch in log.scan(1, timeout=at.patience):
        found += sum(len(payload) == size for payload in batch.payloads())
    elapsed = perf_counter() - begun
    if found != count:
        raise ConsistencyViolation(f"{count} entries were acknowledged and {found} of them can be read")
    return Measured(
        entries=count,
        seconds=elapsed,
        entries_per_second=count / elapsed,
        megabytes_per_second=count * size / elapsed / MEGABYTE,
    )


@contextmanager
def _progress(output: Output, seconds: float) -> Iterator[None]:
    """A bar on the terminal that fills as time passes."""
    if output.json or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # noqa: PLC0415  # takes a while to import, and is for terminals alone
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("appending"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task("", total=seconds)

        async def advance() -> None:
            while True:
                await asyncio.sleep(_TICK)
                progress.update(task, advance=_TICK, refresh=True)

        advancing = asyncio.ensure_future(advance())
        try:
            yield
        finally:
            advancing.cancel()


def _show(output: Output, result: Result) -> None:
    append, read = result.append, result.read
    output.line(
        f"{result.size} bytes an entry, {result.batch} to a batch, {result.in_flight} in flight, "
        f"log streams: {result.streams}\n"
    )
    columns = ("", "entries", "seconds", "entries/s", "MB/s", "p50 ms", "p99 ms", "max ms")
    latencies = (f"{append.p50_ms:.2f}", f"{append.p99_ms:.2f}", f"{append.max_ms:.2f}")
    output.table(
        [Column(title, right=bool(title)) for title in columns],
        [("append", *_figures(append), *latencies), ("read", *_figures(read), "", "", "")],
    )


def _figures(measured: Measured) -> tuple[str, ...]:
    return (
        f"{measured.entries:,}",
        f"{measured.seconds:.2f}",
        f"{measured.entries_per_second:,.0f}",
        f"{measured.megabytes_per_second:.1f}",
    )
