"""What every decision on nodes and replica sets asks of them: that they are there, have room, and have a size."""

from __future__ import annotations

from collections.abc import Iterable

from varlog import errors, limits
from varlog.core import identity
from varlog.core.metastate import MetadataState, Stream
from varlog.types import StorageNodeID


def load(state: MetadataState, snids: Iterable[StorageNodeID]) -> dict[StorageNodeID, int]:
    """How many log streams each of the nodes has, or is about to get."""
    loads = dict.fromkeys(snids, 0)
    for stream in state.streams.values():
        for snid in {*stream.replicas, stream.joining}:
            if snid in loads:
                loads[snid] += 1
    return loads


def check_set(state: MetadataState, replicas: tuple[StorageNodeID, ...]) -> None:
    if not 1 <= len(replicas) <= limits.MAX_REPLICAS or len(set(replicas)) != len(replicas):
        raise errors.InvalidArgument(f"a replica set has 1 to {limits.MAX_REPLICAS} different nodes, not {replicas}")
    for snid in replicas:
        if snid not in state.nodes:
            raise errors.UnknownNode(f"storage node {snid} is not registered")


def check_room(state: MetadataState, stream: Stream, joining: Iterable[StorageNodeID]) -> None:
    """The number of log streams per node is limited here too, not only by a careful manager (M2)."""
    for snid, count in load(state, joining).items():
        if count - (stream.joining == snid) >= limits.MAX_LOG_STREAMS_PER_NODE:
            raise errors.LimitExceeded(f"storage node {snid} has {count} log streams already")


def check_volumes(replicas: tuple[StorageNodeID, ...], volumes: tuple[str, ...]) -> None:
    if volumes:
        check_place("", volumes)
        if len(volumes) != len(replicas):
            raise errors.InvalidArgument(f"{len(volumes)} volumes for {len(replicas)} replicas")


def check_proof(proof: str, generation: int = 1) -> None:
    if not identity.is_secret(proof):
        raise errors.InvalidArgument("a proof of a storage node's secret has 64 hexadecimal digits")
    if not 1 <= generation <= identity.MAX_GENERATION:
        raise errors.InvalidArgument(f"a storage node's identities are numbered from 1, not {generation}")


def check_place(address: str, volumes: tuple[str, ...] = ()) -> None:
    """Metadata is kept and sent as a whole; no single part of it may be of any size."""
    if len(address) > limits.MAX_ADDRESS:
        raise errors.InvalidArgument(f"an address has at most {limits.MAX_ADDRESS} characters, not {len(address)}")
    if len(volumes) > limits.MAX_VOLUMES:
        raise errors.InvalidArgument(f"a storage node has at most {limits.MAX_VOLUMES} volumes, not {len(volumes)}")
    if max(map(len, volumes), default=0) > limits.MAX_VOLUME_PATH:
        raise errors.InvalidArgument(f"a volume's path has at most {limits.MAX_VOLUME_PATH} characters")
