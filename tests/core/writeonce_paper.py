"""A write-once log on paper: what a replica of a chain asks of its storage, in lists, for tests of the core.

It is also what the real one is compared with, so it is written to be seen through, not to be fast: every record is
kept, and what is there follows from going through them. A test says when records become durable (`make_durable`), and
what a crash leaves (`restarted`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

from varlog import errors
from varlog.batch import BatchHeader
from varlog.core.writeoncelog import Held, WriteOnceLog
from varlog.storage.format import batch_check
from varlog.storage.reader import StoredBatch
from varlog.types import GLSN, LLSN, Epoch, Version


class _Write(NamedTuple):
    glsn: GLSN
    held: Held
    epoch: Epoch
    batch: bytes
    number: int
    """Which record it was."""

    @property
    def end(self) -> GLSN:
        return GLSN(self.glsn + self.held.count)


class _Promise(NamedTuple):
    epoch: Epoch
    wipe: GLSN | None


class _Trim(NamedTuple):
    glsn: GLSN


class PaperWriteOnceLog(WriteOnceLog):
    """See the module's text."""

    def __init__(self, *, synced: bool = True) -> None:
        self._synced = synced
        self._epoch = Epoch(0)
        self._end = GLSN(1)
        self._time = 0
        self._trim = GLSN(0)
        self._durable = 0
        self._records: list[_Write | _Promise | _Trim] = []
        self._earlier: list[_Write | _Promise | _Trim] = []
        """What it held already when it was opened."""
        self._writes: list[_Write] = []
        """What is there, by position."""

    # What the core asks

    @property
    def synced(self) -> bool:
        return self._synced

    @property
    def epoch(self) -> Epoch:
        return self._epoch

    @property
    def end(self) -> GLSN:
        return self._end

    @property
    def time(self) -> int:
        return self._time

    @property
    def trim(self) -> GLSN:
        return self._trim

    @property
    def staged(self) -> int:
        return len(self._records)

    @property
    def durable(self) -> int:
        return self._durable

    def held(self, glsn: GLSN, end: GLSN) -> Held | None:
        first = next(iter(self._beyond(glsn)), None)
        return first.held if first is not None and first.glsn < end else None

    def digest(self, glsn: GLSN, most: int) -> Sequence[Held]:
        return [write.held for write in self._beyond(glsn)[:most]]

    def runs(self, glsn: GLSN, most: int) -> tuple[Sequence[tuple[int, int]], GLSN]:
        found: list[tuple[int, int]] = []
        for write in self._beyond(glsn):
            if found and found[-1][1] == write.glsn:
                found[-1] = (found[-1][0], write.end)
            elif len(found) < most:
                found.append((write.glsn, write.end))
            else:
                return found, GLSN(found[-1][1])
        return found, self._end

    def stage_writes(
        self,
        epoch: Epoch,
        glsns: Sequence[int],
        times: Sequence[int],
        batches: Sequence[bytes | memoryview],
        headers: Sequence[BatchHeader],
    ) -> None:
        for glsn, time, batch, header in zip(map(GLSN, glsns), times, batches, headers, strict=True):
            there = self.held(glsn, GLSN(glsn + header.count))
            if there is not None or glsn + header.count <= self._trim + 1:
                raise errors.ConsistencyViolation(f"a batch at {glsn}, where {there} is, trimmed up to {self._trim}")
            held = Held(glsn, header.count, time, batch_check(batch))
            self._apply(_Write(glsn, held, epoch, bytes(batch), self.staged + 1))

    def stage_epoch(self, epoch: Epoch, wipe: GLSN | None = None) -> None:
        if epoch < self._epoch:
            raise errors.ConsistencyViolation(f"epoch {epoch} after epoch {self._epoch} was promised")
        self._apply(_Promise(epoch, wipe))

    def stage_trim(self, glsn: GLSN) -> None:
        if glsn > self._trim:
            self._apply(_Trim(glsn))

    # What a node asks

    def read(self, glsn: GLSN, max_bytes: int) -> list[StoredBatch]:
        """The durable batches that end beyond a position, at least one if there is one."""
        if glsn <= self._trim:
            raise errors.Trimmed(self._trim + 1)
        found: list[StoredBatch] = []
        for write in self._beyond(glsn):
            if write.number <= self._durable and max_bytes > 0:
                found.append(_stored(write))
                max_bytes -= len(write.batch)
        return found

    # What a test says

    def make_durable(self, records: int | None = None) -> None:
        """The first so many records, all if not said, have become durable."""
        self._durable = max(self._durable, self.staged if records is None else records)

    def restarted(self, records: int | None = None) -> PaperWriteOnceLog:
        """The log as it is opened again after a crash that left so many records, or those that are durable."""
        after = PaperWriteOnceLog(synced=self._synced)
        for record in [*self._earlier, *self._records[: self._durable if records is None else records]]:
            after._apply(record._replace(number=0) if isinstance(record, _Write) else record)
        after._earlier, after._records = after._records, []
        return after

    def _apply(self, record: _Write | _Promise | _Trim) -> None:
        self._records.append(record)
        if isinstance(record, _Write):
            insort(self._writes, record)
            self._epoch = max(self._epoch, record.epoch)
            self._end = max(self._end, record.end)
            self._time = max(self._time, record.held.time)
        elif isinstance(record, _Promise):
            self._epoch = max(self._epoch, record.epoch)
            if record.wipe is not None:
                wipe = record.wipe
                self._writes = [write for write in self._writes if write.end <= wipe]
                self._end = min(self._end, wipe)
        else:
            self._trim = record.glsn
            self._writes = [write for write in self._writes if write.end > record.glsn + 1]

    def _beyond(self, glsn: GLSN) -> list[_Write]:
        """What ends beyond a position, in order."""
        at = bisect_left(self._writes, glsn, key=lambda write: write.glsn)
        if at and self._writes[at - 1].end > glsn:
            at -= 1
        return self._writes[at:]


def _stored(write: _Write) -> StoredBatch:
    return StoredBatch(
        write.glsn,
        LLSN(write.glsn),
        write.held.count,
        write.epoch,
        Version(0),
        write.held.time,
        memoryview(write.batch),
    )
