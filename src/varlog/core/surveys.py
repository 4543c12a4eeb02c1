"""Surveys: what the volumes of a stopped storage node hold, as far as metadata can be made of it again.

A survey says who the node is, by the proof of its secret and not by the secret, and of every replica where it ends: its
topic, epoch and set, the last commit contexts, what is trimmed, and which batches lie beyond the last commit context.
It is taken by `storagenode.surveying`, carried to wherever metadata is rebuilt as a file, and judged by `rebuilding`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from varlog.types import (
    GLSN,
    LLSN,
    ClusterID,
    CommitContext,
    Epoch,
    LogStreamID,
    Ordering,
    StorageNodeID,
    TopicID,
    Version,
)

KIND: Final = "node survey"


class Stored(NamedTuple):
    """A whole batch that is on disk without a commit context."""

    llsn: LLSN
    entries: int
    epoch: Epoch
    bytes: int

    @property
    def end(self) -> LLSN:
        return LLSN(self.llsn + self.entries)


class ReplicaSurvey(msgspec.Struct, frozen=True):
    """One replica."""

    lsid: LogStreamID
    tpid: TopicID
    volume: str
    epoch: Epoch
    """The highest one promised; 0 of a log stream that never ran."""
    replicas: tuple[StorageNodeID, ...]
    """With whom it last ran."""
    primary: StorageNodeID
    version: Version
    """Of the last commit context."""
    committed_end: LLSN
    hwm: GLSN
    """Of the topic, as of the last commit context."""
    last_glsn: GLSN
    trim_glsn: GLSN
    trim_llsn: LLSN
    """The first entry kept."""
    commits: tuple[CommitContext, ...]
    """The last ones, oldest first, one beginning where the other ends."""
    uncommitted: tuple[Stored, ...]
    damage: str = ""
    """What is wrong with its files; then the rest is what is known for sure to have been."""
    ordering: Ordering = Ordering.COMMIT
    """With a sequencer LLSN is GLSN, and there are no commit contexts: it tells its epoch, end and trim point."""

    @property
    def is_whole(self) -> bool:
        """Whether every commit context is there of what is not trimmed."""
        begin = self.commits[0].llsn_begin if self.commits else self.committed_end
        return begin <= self.trim_llsn


class NodeSurvey(msgspec.Struct, frozen=True):
    """One storage node."""

    cid: ClusterID
    snid: StorageNodeID
    time: int
    """When it was surveyed, in seconds since 1970."""
    volumes: tuple[str, ...]
    generation: int
    proof: str
    """Of its secret (`core.identity`); empty of a node that was never given one."""
    next_proof: str
    boot: int
    """Of its last start."""
    replicas: tuple[ReplicaSurvey, ...]
