"""Staging: how an executor's records get into its log, and its batches into the deduplication table with them.

Batches cost most where they are many and small. So those that come together are held back until the executor is told to
stage them, and then staged together. Whatever else is staged comes after what was held back, so the order of the log is
the order of the calls.

A segment that begins carries the deduplication table as of its beginning. So no batch beyond a segment's end is in the
table when that end is staged: batches are held back only as far as they fit before it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from varlog.batch import BatchHeader
from varlog.core.dedup import DedupTable
from varlog.core.replicalog import ReplicaLog
from varlog.types import GLSN, LLSN, CommitContext, Epoch, Sequence, StorageNodeID, Version


class Staging:
    """See the module's text."""

    def __init__(self, log: ReplicaLog, dedup: DedupTable) -> None:
        self._log = log
        self._dedup = dedup
        self._begin = LLSN(0)
        self._epoch = Epoch(0)
        self._prev_sequences: list[Sequence] = []
        self._batches: list[bytes | memoryview] = []
        self._headers: list[BatchHeader] = []
        self._batches_left = self._bytes_left = self._each = 0
        """How many more can be held back; none where nothing is."""

    def batch(
        self, llsn: LLSN, epoch: Epoch, prev_sequence: Sequence, batch: bytes | memoryview, header: BatchHeader
    ) -> None:
        """A batch that came alone: nothing is gained by holding it back."""
        if self._batches:
            self.flush()
        self._dedup.add(header.writer_id, header.sequence, llsn, header.count)
        self._log.stage_batch(llsn, epoch, prev_sequence, batch, header)

    def run(
        self,
        llsn: LLSN,
        epoch: Epoch,
        prev_sequences: Seq[Sequence],
        batches: Seq[bytes | memoryview],
        headers: Seq[BatchHeader],
    ) -> None:
        """Batches that follow one another."""
        count, size = len(batches), sum(map(len, batches))
        if count > self._batches_left or size + count * self._each > self._bytes_left:
            self.flush()
            self._begin, self._epoch = llsn, epoch
            self._batches_left, self._bytes_left, self._each = self._log.run_room
        if count <= self._batches_left and size + count * self._each <= self._bytes_left:
            self._dedup.add_all(llsn, headers)
            self._batches_left -= count
            self._bytes_left -= size + count * self._each
            self._prev_sequences += prev_sequences
            self._batches += batches
            self._headers += headers
            return
        self._batches_left = 0
        for prev_sequence, batch, header in zip(prev_sequences, batches, headers, strict=True):
            self.batch(llsn, epoch, prev_sequence, batch, header)
            llsn = LLSN(llsn + header.count)

    def flush(self) -> None:
        """Stage what was held back."""
        if self._batches:
            self._batches_left = 0
            self._log.stage_batches(self._begin, self._epoch, self._prev_sequences, self._batches, self._headers)
            self._prev_sequences, self._batches, self._headers = [], [], []

    def commit(self, cc: CommitContext) -> None:
        if self._batches:
            self.flush()
        self._log.stage_commit(cc)

    def seal(self, epoch: Epoch, llsn_end: LLSN) -> None:
        self.flush()
        self._log.stage_seal(epoch, llsn_end)

    def unseal(self, epoch: Epoch, replicas: Seq[StorageNodeID], primary: StorageNodeID) -> None:
        self.flush()
        self._log.stage_unseal(epoch, replicas, primary)

    def trim(self, glsn: GLSN, version: Version, epoch: Epoch) -> None:
        self.flush()
        self._log.stage_trim(self._log.llsn_after(glsn), glsn, version, epoch)

    def flush_commits(self) -> None:
        self.flush()
        self._log.flush_commits()
