"""Surveying: what the volumes of a stopped node hold, told without changing anything (`core.surveys`).

The node's lock is taken, which says that it is stopped. Every replica is looked at as at a start (`storage.recovery`),
but nothing is made good. Of the node's secret only the proof is told.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack

from varlog import errors, limits
from varlog.core.identity import boot_of, proof_of
from varlog.core.proving import Held
from varlog.core.surveys import NodeSurvey, ReplicaSurvey, Stored
from varlog.storage.directory import lock_directory, typed_errors
from varlog.storage.files import FileSystem
from varlog.storage.identity import identify, ordering_of
from varlog.storage.reader import LogReader
from varlog.storage.recovery import Recovered, Recovery
from varlog.storage.residents import OpenFiles
from varlog.storage.segment import Segment
from varlog.storage.writeonce import WriteOnceRecovery
from varlog.storagenode import identity
from varlog.storagenode.replicas import REMOVED_NAME
from varlog.storagenode.volumes import numbers, read_starts
from varlog.types import (
    GLSN,
    LLSN,
    ClusterID,
    CommitContext,
    LogStreamID,
    LogStreamIdentity,
    Ordering,
    StorageNodeID,
    Version,
)


def survey(fs: FileSystem, volumes: Sequence[str], cid: int | None, snid: int | None, time: int) -> NodeSurvey:
    """Survey the one node on these volumes; which one has to be said only if there are several."""
    paths = [os.path.abspath(volume) for volume in volumes]
    node = _find(fs, paths, cid, snid)
    with ExitStack() as locks:
        homes = {path: f"{path}/cid={node[0]}/snid={node[1]}" for path in paths}
        there = {path: home for path, home in homes.items() if fs.exists(home)}
        for home in there.values():
            locks.callback(lock_directory(fs, home).release)
        held, successor = _secrets(fs, node, list(there.values()))
        starts = max(read_starts(fs, home) for home in there.values())
        replicas: dict[LogStreamID, ReplicaSurvey] = {}
        for path, home in there.items():
            for number in numbers(fs, home, "lsid="):
                if (found := _replica(fs, node, LogStreamID(number), path, home)) is not None:
                    if number in replicas:
                        raise errors.WrongIdentity(f"log stream {number} is on two volumes; a replica is on one")
                    replicas[LogStreamID(number)] = found
    generation = held.generation if held is not None else 0
    return NodeSurvey(
        *node, time, tuple(paths), generation, _proof(node[1], held), _proof(node[1], successor),
        boot_of(generation, starts), tuple(replicas.values()),
    )  # fmt: skip


def _find(fs: FileSystem, paths: Sequence[str], cid: int | None, snid: int | None) -> tuple[ClusterID, StorageNodeID]:
    for path in paths:
        if not fs.is_writable_directory(path):
            raise errors.NotWritable(f"volume {path} is not an existing directory that can be written")
    found = {
        (ClusterID(cluster), StorageNodeID(node))
        for path in paths
        for cluster in numbers(fs, path, "cid=")
        for node in numbers(fs, f"{path}/cid={cluster}", "snid=")
        if cid in (None, cluster) and snid in (None, node)
    }
    if not found:
        raise errors.NoSuchReplica(f"there is no storage node's data in {', '.join(paths)}")
    if len(found) > 1:
        told = ", ".join(f"storage node {node} of cluster {cluster}" for cluster, node in sorted(found))
        raise errors.InvalidArgument(f"the volumes hold data of several: {told}; say with --snid, --cid which one")
    return found.pop()


def _secrets(
    fs: FileSystem, node: tuple[ClusterID, StorageNodeID], homes: Sequence[str]
) -> tuple[Held | None, Held | None]:
    """The secret that the node will show when it starts, and the one that it is about to change to."""
    found = {home: content for home in homes if (content := identity.read(fs, home)) is not None}
    for home, content in found.items():
        if (content.cid, content.snid) != node:
            raise errors.WrongIdentity(
                f"{home} is the data of storage node {content.snid} of cluster {content.cid}: it was copied or renamed"
            )
    if not any(content.held is not None for content in found.values()):
        return None, None
    held = identity.agreed(found)
    return held, next((content.next for content in found.values() if content.next not in (None, held)), None)


def _proof(snid: StorageNodeID, held: Held | None) -> str:
    return proof_of(snid, held.secret) if held is not None else ""


def _replica(
    fs: FileSystem, node: tuple[ClusterID, StorageNodeID], lsid: LogStreamID, volume: str, home: str
) -> ReplicaSurvey | None:
    """None if there is no log stream: its making or its removal was interrupted."""
    path = f"{home}/lsid={lsid}"
    with typed_errors(path):
        if fs.exists(f"{path}/{REMOVED_NAME}"):
            return None
        found = identify(fs, path)
    if found is None:
        return None
    wanted = LogStreamIdentity(*node, found.tpid, lsid)
    if ordering_of(fs, path) is Ordering.SEQUENCER:
        return _chained(fs, wanted, volume, path)
    reader = LogReader(fs, path, OpenFiles())
    try:
        with typed_errors(path):
            recovery = Recovery(fs, path, wanted, reader, 0)
            state = recovery.inspect()
            damage = str(state.corruption or "")
            try:
                commits = _last_commits(reader, recovery.segments, state)
            except errors.Corrupt as corrupt:
                commits, damage = (), damage or str(corrupt)
    finally:
        reader.close()
    uncommitted = tuple(Stored(b.llsn, b.count, b.epoch, b.size) for b in state.uncommitted)
    return ReplicaSurvey(
        lsid, found.tpid, volume, state.epoch, state.running_set, state.primary, state.version,
        state.committed_llsn_end, state.global_hwm, state.local_hwm, state.trim_glsn, state.trim_llsn, commits,
        uncommitted, damage,
    )  # fmt: skip


def _chained(fs: FileSystem, identity: LogStreamIdentity, volume: str, path: str) -> ReplicaSurvey:
    """Of a log stream that a sequencer orders."""
    with typed_errors(path):
        recovery = WriteOnceRecovery(fs, path, identity, 0)
        recovery.look()
        damage = recovery.corruption or recovery.condemned()
    state, last = recovery.state, GLSN(recovery.state.end - 1)
    trim = recovery.trim.glsn if recovery.trim is not None else GLSN(0)
    return ReplicaSurvey(
        identity.lsid, identity.tpid, volume, state.epoch, (), StorageNodeID(0), Version(0), LLSN(state.end), last,
        last, trim, LLSN(trim + 1), (), (), str(damage or ""), Ordering.SEQUENCER,
    )  # fmt: skip


def _last_commits(reader: LogReader, segments: Sequence[Segment], state: Recovered) -> tuple[CommitContext, ...]:
    """The last commit contexts, read from the segments that hold them and no others."""
    first, count = len(segments), 0
    while first and count < limits.SURVEY_COMMITS:
        first -= 1
        count += reader.index(segments[first]).commits
    last = list(reader.commits_after_version(tuple(segments[first:]), Version(0)))[-limits.SURVEY_COMMITS :]
    return tuple(cc for cc in last if cc.llsn_end <= state.committed_llsn_end)
