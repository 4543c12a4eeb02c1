"""What an executor asks of its storage: a log to stage records in, what recovery found in it, and parts of it for those
who copy it.

`varlog.storage` implements them; the core knows them only by these interfaces.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, Protocol

from varlog.batch import BatchHeader
from varlog.types import (
    GLSN,
    LLSN,
    CommitContext,
    Epoch,
    Room,
    Sequence,
    StorageNodeID,
    Version,
    WriterID,
)


class ReplicaLog(Protocol):
    """Where an executor stages its records. Staging is memory only; the order of the calls is the order on disk."""

    @property
    def synced(self) -> bool:
        """Whether what is told to be durable is synced; False for a node that was told not to."""

    def stage_batch(
        self, llsn: LLSN, epoch: Epoch, prev_sequence: Sequence, batch: bytes | memoryview, header: BatchHeader
    ) -> None: ...

    @property
    def run_room(self) -> Room:
        """What `stage_batches` takes now; taking a group never makes it less."""

    def stage_batches(
        self,
        llsn: LLSN,
        epoch: Epoch,
        prev_sequences: Seq[int],
        batches: Seq[bytes | memoryview],
        headers: Seq[BatchHeader],
    ) -> None:
        """Batches that follow one another."""

    def stage_commit(self, cc: CommitContext) -> None: ...

    def stage_seal(self, epoch: Epoch, llsn_end: LLSN) -> None: ...

    def stage_unseal(self, epoch: Epoch, replicas: Seq[StorageNodeID], primary: StorageNodeID) -> None: ...

    def stage_trim(self, llsn: LLSN, glsn: GLSN, version: Version, epoch: Epoch) -> None: ...

    def flush_commits(self) -> None:
        """Sync the commit contexts staged so far, though nothing waits for them."""

    def llsn_after(self, glsn: GLSN) -> LLSN:
        """The LLSN of the first committed entry whose GLSN is greater, or the committed end."""


class CopiedPart(Protocol):
    """What a replica's log gives to one that copies it: committed batches, and the commit contexts that end within."""

    @property
    def llsn(self) -> LLSN:
        """Where it begins."""

    @property
    def epochs(self) -> tuple[Epoch, ...]: ...
    @property
    def prev_sequences(self) -> tuple[Sequence, ...]: ...
    @property
    def batches(self) -> tuple[memoryview, ...]: ...
    @property
    def commits(self) -> tuple[CommitContext, ...]: ...
    @property
    def base(self) -> bytes:
        """In place of all that, if the log begins later than where the copy ends: what to begin with instead."""


class StoredBatch(Protocol):
    """An uncommitted batch that recovery found."""

    @property
    def llsn(self) -> LLSN: ...
    @property
    def count(self) -> int: ...
    @property
    def epoch(self) -> Epoch: ...
    @property
    def writer_id(self) -> WriterID: ...
    @property
    def sequence(self) -> Sequence: ...
    @property
    def prev_sequence(self) -> Sequence: ...
    @property
    def size(self) -> int: ...


class Context(Protocol):
    """What a replica's storage recovered (B8, B10)."""

    @property
    def committed_llsn_end(self) -> LLSN: ...
    @property
    def uncommitted_llsn_end(self) -> LLSN: ...
    @property
    def global_hwm(self) -> GLSN: ...
    @property
    def local_hwm(self) -> GLSN: ...
    @property
    def trim_glsn(self) -> GLSN: ...
    @property
    def version(self) -> Version: ...
    @property
    def epoch(self) -> Epoch: ...
    @property
    def running_set(self) -> tuple[StorageNodeID, ...]: ...
    @property
    def primary(self) -> StorageNodeID: ...
    @property
    def uncommitted(self) -> Seq[StoredBatch]: ...
    @property
    def dedup_snapshot(self) -> bytes | None: ...
    @property
    def dedup_tail(self) -> Seq[tuple[Any, ...]]: ...
