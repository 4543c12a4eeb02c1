"""Where replicas go: the nodes that have fewest, then those with most room, and on them the volume likewise. And which
of them is the primary: the one whose node has fewest.

A node takes new replicas if it answers, has its secret (B11) and is not being drained. How many it may have is for the
metadata repository and the node to say (M2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq
from functools import cached_property
from typing import NamedTuple

from varlog import errors, limits
from varlog.core.conversing import find_node
from varlog.core.messages import Info, Metadata, StreamInfo
from varlog.types import LogStreamID, Ordering, StorageNodeID, StreamStatus


class Place(NamedTuple):
    """Where a replica goes."""

    snid: StorageNodeID
    volume: str


def place(
    metadata: Metadata,
    infos: Mapping[StorageNodeID, Info],
    factor: int,
    nodes: Seq[StorageNodeID] = (),
    without: Collection[StorageNodeID] = (),
) -> list[Place]:
    """Nodes and volumes for so many replicas of a log stream, on `nodes` if any are named, on none of `without`."""
    load = Counter(snid for stream in metadata.streams for snid in {*stream.replicas, stream.joining})
    for snid in nodes:
        check_willing(metadata, infos, snid)
    draining = {node.snid: node.is_draining for node in metadata.nodes}
    willing = [
        snid
        for snid, info in infos.items()
        if not draining.get(snid, True) and info.is_identified and snid not in without
    ]

    def least_loaded(snid: StorageNodeID) -> tuple[int, int, int]:
        return load[snid], -sum(volume.free_bytes for volume in infos[snid].volumes), snid

    chosen = list(nodes) or sorted(willing, key=least_loaded)[:factor]
    if len(chosen) < factor:
        raise errors.Unreachable(
            f"{factor} storage nodes are needed and {len(willing)} of {len(metadata.nodes)} registered ones answer and "
            "may take a replica"
        )
    return [Place(snid, _volume(infos[snid])) for snid in chosen]


def check_willing(metadata: Metadata, infos: Mapping[StorageNodeID, Info], snid: StorageNodeID) -> None:
    """Refuse a node that cannot take a replica."""
    node = find_node(metadata, snid)
    if snid not in infos:
        raise errors.Unreachable(f"storage node {snid} does not answer")
    if node.is_draining:
        raise errors.Conflict(f"storage node {snid} is being drained; let it have replicas again first")
    if not infos[snid].is_identified:
        raise errors.Conflict(f"storage node {snid} has lost its disks and is not part of the cluster again yet")


def _volume(info: Info) -> str:
    """The one with room that has fewest replicas."""
    load = Counter(replica.volume for replica in info.replicas)
    full = limits.SEGMENT_BYTES
    volumes = sorted(info.volumes, key=lambda v: (v.free_bytes < full, load[v.path], -v.free_bytes))
    return volumes[0].path if volumes else ""


class Primaries:
    """Primaries, spread over the nodes: a log stream without one gets the one of its replicas whose node has fewest.

    Those without one are gone through in the order of their numbers, whichever of them is asked for. So log streams
    that are all unsealed at once, as after a power loss, do not crowd on one node, and two managers agree.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._load: Counter[StorageNodeID] = Counter()

    def choose(self, stream: StreamInfo) -> StorageNodeID:
        """The primary of a log stream among these replicas of it, which need not be those of the metadata."""
        planned = self._plan.get(stream.lsid)
        if planned is not None:
            self._load[planned] -= 1
        self._plan[stream.lsid] = chosen = self._least(stream, planned)
        return chosen

    @cached_property
    def _plan(self) -> dict[LogStreamID, StorageNodeID]:
        chained = {topic.tpid for topic in self._metadata.topics if topic.ordering is Ordering.SEQUENCER}
        streams = [it for it in self._metadata.streams if it.replicas and it.tpid not in chained]
        plan = {it.lsid: it.primary for it in streams if it.status in (StreamStatus.UNSEALING, StreamStatus.RUNNING)}
        self._load.update(plan.values())
        for stream in sorted(streams, key=lambda stream: stream.lsid):
            if stream.lsid not in plan:
                plan[stream.lsid] = self._least(stream)
        return plan

    def _least(self, stream: StreamInfo, rather: StorageNodeID | None = None) -> StorageNodeID:
        """Whose node has fewest; it has one more from now on."""
        rather = rather or stream.replicas[stream.lsid % len(stream.replicas)]
        least = min(stream.replicas, key=lambda snid: (self._load[snid], snid != rather, snid))
        self._load[least] += 1
        return least
