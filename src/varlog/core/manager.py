"""The manager's decisions: the world in, the next steps and a sentence for each out (M4).

`reconcile` looks at what the metadata repository says of a log stream and what its replicas say of themselves, and
names the requests that bring the two together. It keeps no state and remembers no answer: the next look at the world
shows what has happened, and every request may be repeated. So two managers at once, or one that dies between two
steps, do no harm.

What it does here is the restart flow: a replica that has restarted, or sealed itself, is not RUNNING (B7), so the log
stream is sealed; once all its replicas are back and have applied every cut up to the seal (rule 8), it is unsealed,
backups first, primary last (rule 3), and at the end the metadata repository counts it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from varlog.core.address import METADATA_REPOSITORY, Address, node_address
from varlog.core.messages import (
    Info,
    Message,
    Metadata,
    ReplicaInfo,
    RunStream,
    Seal,
    SealStream,
    StreamInfo,
    Unseal,
    UnsealStream,
)
from varlog.types import GLSN, Epoch, LogStreamID, ReplicaState, StorageNodeID, StreamStatus

ChoosePrimary = Callable[[StreamInfo], StorageNodeID]


class Step(NamedTuple):
    """One request to send, and why."""

    address: Address
    message: Message
    sentence: str


def spread_primaries(stream: StreamInfo) -> StorageNodeID:
    """Primaries go round over the replicas, so that no node has them all."""
    return stream.replicas[stream.lsid % len(stream.replicas)]


def reconcile(
    metadata: Metadata,
    infos: Mapping[StorageNodeID, Info],
    request: Callable[[], int],
    choose_primary: ChoosePrimary = spread_primaries,
) -> list[Step]:
    """The next steps for every log stream. `infos` holds the nodes that answered lately."""
    steps: list[Step] = []
    hosted = {snid: {replica.lsid: replica for replica in info.replicas} for snid, info in infos.items()}
    trims = {topic.tpid: topic.trim for topic in metadata.topics}
    for stream in metadata.streams:
        replicas = _replicas(stream, hosted)
        if stream.status is StreamStatus.RUNNING:
            steps.extend(_watch(stream, replicas, request))
        elif stream.status is StreamStatus.SEALED:
            steps.extend(_complete(stream, replicas, request, trims[stream.tpid], choose_primary))
        elif stream.status is StreamStatus.UNSEALING:
            steps.extend(_unseal(stream, replicas, request, trims[stream.tpid]))
    return steps


def _replicas(
    stream: StreamInfo, hosted: Mapping[StorageNodeID, Mapping[LogStreamID, ReplicaInfo]]
) -> dict[StorageNodeID, ReplicaInfo]:
    """The replicas of the set that are known, in the order of the set."""
    return {snid: hosted[snid][stream.lsid] for snid in stream.replicas if stream.lsid in hosted.get(snid, ())}


def _watch(
    stream: StreamInfo, replicas: Mapping[StorageNodeID, ReplicaInfo], request: Callable[[], int]
) -> Iterator[Step]:
    """A running log stream with a replica that does not run is sealed (M6-M8)."""
    for snid, replica in replicas.items():
        if replica.epoch > stream.epoch:
            return  # our metadata is old
        if replica.state is not ReplicaState.RUNNING or replica.epoch != stream.epoch or not replica.healthy:
            what = replica.state.name if replica.healthy else "in need of repair"
            why = f"log stream {stream.lsid}: sealing epoch {stream.epoch} because node {snid} is {what}"
            yield Step(METADATA_REPOSITORY, SealStream(request(), stream.lsid, stream.epoch), why)
            return


def _complete(
    stream: StreamInfo,
    replicas: Mapping[StorageNodeID, ReplicaInfo],
    request: Callable[[], int],
    trim: GLSN,
    choose_primary: ChoosePrimary,
) -> Iterator[Step]:
    """A sealed log stream: tell every replica the seal point, and when all have reached it, begin to unseal."""
    ready = 0
    for snid, replica in replicas.items():
        sealed = replica.epoch == stream.epoch and replica.state is ReplicaState.SEALED
        if sealed and replica.healthy:
            ready += 1
        elif not sealed and replica.healthy and replica.epoch <= stream.epoch:
            why = f"log stream {stream.lsid}: node {snid} is to seal at LLSN {stream.llsn_end}"
            seal = Seal(request(), stream.lsid, stream.epoch, stream.llsn_end, trim)
            yield Step(node_address(snid), seal, why)
    if ready == len(stream.replicas):
        primary = choose_primary(stream)
        why = f"log stream {stream.lsid}: all {ready} replicas are sealed at LLSN {stream.llsn_end}; unsealing"
        unseal = UnsealStream(request(), stream.lsid, stream.epoch, stream.replicas, primary)
        yield Step(METADATA_REPOSITORY, unseal, why)


def _unseal(
    stream: StreamInfo, replicas: Mapping[StorageNodeID, ReplicaInfo], request: Callable[[], int], trim: GLSN
) -> Iterator[Step]:
    """An unsealing log stream: backups first, primary last; one that cannot follow makes it seal again."""
    waiting = []
    for snid, replica in replicas.items():
        running = replica.state is ReplicaState.RUNNING
        if replica.epoch > stream.epoch:
            return  # our metadata is old
        if not replica.healthy or (replica.epoch == stream.epoch and not running):
            why = f"log stream {stream.lsid}: sealing epoch {stream.epoch} again because node {snid} fell out of it"
            yield Step(METADATA_REPOSITORY, SealStream(request(), stream.lsid, stream.epoch), why)
            return
        if replica.epoch == stream.epoch:
            continue
        if replica.state is ReplicaState.SEALED and replica.epoch == stream.epoch - 1:
            waiting.append(snid)
        else:
            why = f"log stream {stream.lsid}: node {snid} is to seal at LLSN {stream.llsn_end} before it can run"
            seal = Seal(request(), stream.lsid, Epoch(stream.epoch - 1), stream.llsn_end, trim)
            yield Step(node_address(snid), seal, why)
            return
    if len(replicas) < len(stream.replicas):
        return
    backups = [snid for snid in waiting if snid != stream.primary]
    for snid in backups or waiting:
        role = "primary" if snid == stream.primary else "backup"
        why = f"log stream {stream.lsid}: node {snid} is to run as {role} in epoch {stream.epoch}"
        unseal = Unseal(request(), stream.lsid, stream.epoch, stream.replicas, stream.primary, trim)
        yield Step(node_address(snid), unseal, why)
    if not waiting:
        why = f"log stream {stream.lsid}: all replicas run in epoch {stream.epoch}"
        yield Step(METADATA_REPOSITORY, RunStream(request(), stream.lsid, stream.epoch), why)
