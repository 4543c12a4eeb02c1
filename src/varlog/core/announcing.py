"""Who is told what of a cut: every node the ranges of its own replicas, and the high watermarks of their topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from varlog.core.messages import Range
from varlog.core.metastate import Cut, Stream
from varlog.types import LogStreamID, StorageNodeID, TopicID

Hwm = tuple[int, int, int]


def parts_of(
    cut: Cut, streams: Mapping[LogStreamID, Stream], hosts: Mapping[TopicID, Set[StorageNodeID]]
) -> Iterator[tuple[StorageNodeID, tuple[Hwm, ...], tuple[Range, ...]]]:
    """The nodes, first those that have clients waiting, and what each is told. `hosts` are the nodes of a topic."""
    if len(cut.ranges) == 1:
        stream = streams[LogStreamID(cut.ranges[0][0])]
        if hosts[stream.tpid] == set(stream.replicas):  # all are told all of it
            yield stream.primary, cut.hwms, cut.ranges
            for snid in stream.replicas:
                if snid != stream.primary:
                    yield snid, cut.hwms, cut.ranges
            return
    ranges_of: dict[tuple[StorageNodeID, ...], list[Range]] = {}
    primaries = set()
    for line in cut.ranges:
        stream = streams[LogStreamID(line[0])]
        ranges_of.setdefault(stream.replicas, []).append(line)
        primaries.add(stream.primary)
    hwms_of: dict[StorageNodeID, list[Hwm]] = {}
    for hwm in cut.hwms:
        for snid in hosts[TopicID(hwm[0])]:
            hwms_of.setdefault(snid, []).append(hwm)
    for snid in sorted(hwms_of, key=lambda snid: (snid not in primaries, snid)):
        ranges = [line for replicas, lines in ranges_of.items() if snid in replicas for line in lines]
        yield snid, tuple(hwms_of[snid]), tuple(ranges)
