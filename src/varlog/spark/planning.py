"""From what a query asks for to the ranges that its tasks read; in a process of the driver.

A partition is a range of consecutive positions, over all log streams. Ranges are cut to about equal lengths, so that
each is about as much as one task should read; entries are sampled for that, because the log knows positions and not
sizes. Where an archive has the entries, ranges are cut where its files begin. Tasks are numbered, and by their numbers
they spread over the replicas.

What is asked for is held against what is there: the log from its first position on, and its archive, if one is
attached. What lies beyond the tail is refused; what is no longer there ends the query with `DataLoss`, or is left out
if the query says so. The latest position is the one before the first transaction that is not decided yet, unless what
is not committed is to be read as well: what a query reads is decided before it is planned.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from varlog import errors, limits
from varlog.spark.options import EARLIEST, LATEST, Options, Start

if TYPE_CHECKING:
    import varlog

SAMPLES: Final = 16
ROUNDS: Final = 4
"""How often an estimate is made anew for the range that followed from the one before."""

_log: Final = logging.getLogger(__name__)


class Range(NamedTuple):
    """What one task reads: [begin, end)."""

    begin: int
    end: int
    affinity: int = 0


class Extent(NamedTuple):
    """What there is of a topic: the live log [first, end), and an archive's [archived[0], archived[-1])."""

    first: int
    end: int
    archived: tuple[int, ...] = ()
    """Where its files begin, and where the last one ends."""
    archived_mean: float = 0.0
    """How large an entry is there, on average."""

    @property
    def earliest(self) -> int:
        return min(self.first, self.archived[0]) if self.archived else self.first

    def missing(self, begin: int, end: int) -> list[tuple[int, int]]:
        """What of [begin, end) is neither in the log nor in the archive."""
        if not self.archived:
            gaps = [(begin, self.first)]
        else:
            gaps = [(begin, min(self.archived[0], self.first)), (max(begin, self.archived[-1]), self.first)]
        return [(low, min(high, end)) for low, high in gaps if low < min(high, end)]


async def latest_of(log: varlog.Log, options: Options) -> int:
    """Up to where a query goes that names no end."""
    return (await log.tail() if options.uncommitted else await log.stable()) + 1


async def extent_of(log: varlog.Log) -> Extent:
    """What there is now. The archive is looked at last: it may have grown since, and the log been trimmed behind it."""
    end = await log.tail() + 1
    first = await log.first()
    if not log.topic.archive:
        return Extent(first, end)
    from varlog.archive import Archive  # noqa: PLC0415  # it needs a library of its own

    archive = await asyncio.to_thread(Archive.open, log.topic.archive)
    mean = sum(file.bytes for file in archive.ranges) / max(1, sum(file.rows for file in archive.ranges))
    return Extent(first, end, (*(file.begin for file in archive.ranges), archive.end), mean)


def check_log_streams(log: varlog.Log, options: Options) -> None:
    """Whether the topic has the log streams that are asked for."""
    known = {int(stream.lsid) for stream in log.log_streams}
    if options.log_streams is not None and not options.log_streams <= known:
        raise errors.BadOption(
            f"option logStreams = '{','.join(map(str, sorted(options.log_streams)))}'; "
            f"allowed are those of topic {log.name!r}: {', '.join(map(str, sorted(known)))}"
        )


async def resolve(log: varlog.Log, extent: Extent, start: Start, options: Options) -> int:
    """The position that an option means."""
    if start.timestamp is not None:
        return min(await log.find_time(start.timestamp), extent.end)
    if start.position == EARLIEST:
        return extent.earliest
    if start.position == LATEST or start.position is None:
        return min(await latest_of(log, options), extent.end)
    return start.position


async def range_of(log: varlog.Log, extent: Extent, options: Options) -> tuple[int, int]:
    """The range that a batch query asks for."""
    begin = await resolve(log, extent, options.start, options)
    end = await resolve(log, extent, options.end, options)
    if options.end.timestamp is not None:
        end = min(end, max(begin, await latest_of(log, options)))
    for name, position in (("startingOffsets", begin), ("endingOffsets", end)):
        if position > extent.end:
            raise errors.BadOption(
                f"option {name} = '{position}': the log ends before {extent.end}; allowed is up to {extent.end}"
            )
    if begin > end:
        raise errors.BadOption(
            f"the query begins at {begin} (startingOffsets or startingTimestamp) and ends before {end} "
            "(endingOffsets or endingTimestamp); allowed is an end that is not before the beginning"
        )
    return begin, end


async def partitions_of(log: varlog.Log, extent: Extent, begin: int, end: int, options: Options) -> list[Range]:
    """What tasks read of [begin, end)."""
    pieces = [(begin, end)]
    for low, high in extent.missing(begin, end):
        archive = f", and its archive has {extent.archived[0]} to {extent.archived[-1] - 1}" if extent.archived else ""
        loss = errors.DataLoss(low, high, f"the log of topic {log.name!r} now begins at {extent.first}{archive}")
        if options.fail_on_data_loss:
            raise loss
        _log.warning("passing over a loss: %s", loss)
        pieces = [part for piece in pieces for part in _without(piece, low, high)]
    most, at_least = options.max_records, options.min_partitions
    if not most:
        live = [(max(low, extent.first), high) for low, high in pieces if high > extent.first]
        mean = max([1.0, extent.archived_mean, *[await mean_bytes(log, *piece) for piece in live]])
        most = min(limits.SPARK_PARTITION_ROWS, max(1, int(limits.SPARK_PARTITION_BYTES / mean)))
        shares = int(sum(high - low for low, high in pieces) * mean / limits.SPARK_SHARE_BYTES)
        at_least = at_least or min(limits.SPARK_PARTITIONS, shares)
    return split(pieces, most, at_least, extent.archived)


def _without(piece: tuple[int, int], low: int, high: int) -> list[tuple[int, int]]:
    begin, end = piece
    return [part for part in ((begin, min(end, low)), (max(begin, high), end)) if part[0] < part[1]]


def split(pieces: Sequence[tuple[int, int]], most: int, at_least: int, edges: Sequence[int] = ()) -> list[Range]:
    """Cut pieces into ranges of at most `most` positions, at least `at_least` of them if there are as many positions.

    A cut that falls near one of the `edges` is made there.
    """
    total = sum(end - begin for begin, end in pieces)
    cuts: list[tuple[int, int]] = []
    for begin, end in pieces:
        length = end - begin
        count = min(length, max(-(-length // most), -(-at_least * length // total), 1))
        reach = length // count // 2
        points = [begin]
        for number in range(1, count):
            point = begin + number * length // count
            points.append(_near(point, edges, max(points[-1] + 1, point - reach), min(end - 1, point + reach)))
        cuts += _cut([*points, end], most, edges)
    return [Range(begin, end, number) for number, (begin, end) in enumerate(cuts)]


def _near(point: int, edges: Sequence[int], low: int, high: int) -> int:
    """The edge in [low, high] that is nearest to a point; the point itself if there is none."""
    within = edges[bisect_left(edges, low) : bisect_right(edges, high)]
    return min(within, key=lambda edge: abs(edge - point)) if within else max(point, low)


def _cut(points: Sequence[int], most: int, edges: Sequence[int]) -> list[tuple[int, int]]:
    """The ranges between the points; one that has become too long, because of edges, is cut in two."""
    ranges: list[tuple[int, int]] = []
    for begin, end in pairwise(points):
        if end - begin <= most:
            ranges.append((begin, end))
        else:
            middle = _near((begin + end) // 2, edges, max(begin + 1, end - most), min(end - 1, begin + most))
            ranges += [(begin, middle), (middle, end)]
    return ranges


async def mean_bytes(log: varlog.Log, begin: int, end: int) -> float:
    """About how large an entry of [begin, end) is, at least 1."""
    step = max(1, (end - begin) // SAMPLES)
    sizes = await asyncio.gather(*(_bytes_at(log, position) for position in range(begin, end, step)[:SAMPLES]))
    return max(1.0, sum(sizes) / max(1, len(sizes)))


async def _bytes_at(log: varlog.Log, position: int) -> int:
    try:
        return len((await log.read(position, uncommitted=True)).data)
    except (errors.Filled, errors.Trimmed, errors.Lost):
        return 0


async def end_within(log: varlog.Log, begin: int, end: int, most_bytes: int) -> int:
    """Up to where [begin, end) has about as many bytes; at least one entry."""
    for _ in range(ROUNDS):
        fits = begin + max(1, int(most_bytes / await mean_bytes(log, begin, end)))
        if fits >= end:
            break
        end = fits
    return end
