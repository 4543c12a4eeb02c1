"""What a reader gets and a writer is told: entries, batches of them, and the result of an append.

Entries come in the batches they were appended in, or in the part of one that was asked for. A batch is cheap until it
is looked into; its entries are made in C, all at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from varlog import batch
from varlog.core.appending import Committed
from varlog.core.merging import Chunk
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, Version

if TYPE_CHECKING:
    import pyarrow as pa


class Entry(NamedTuple):
    """One entry of the log."""

    glsn: GLSN
    data: bytes
    llsn: LLSN
    log_stream: LogStreamID
    timestamp: int
    """When it got its position, by the metadata repository's clock: microseconds since 1970, never decreasing."""


AppendResult = Committed
"""What an append returns: where the batch is, and what the acknowledgement meant."""

new_entry = partial(tuple.__new__, Entry)
"""From a plain tuple."""


class EntryBatch:
    """Consecutive entries of one log stream, from `glsn` on, as they were appended."""

    __slots__ = ("_batch", "_skip", "count", "epoch", "glsn", "llsn", "log_stream", "time", "version")

    def __init__(self, chunk: Chunk, opened: batch.RecordBatch) -> None:
        glsn, lsid, skip, count, stored = chunk
        _, llsn, _, epoch, version, time, _ = stored
        self.glsn = glsn
        self.count = count
        self.log_stream = lsid
        self.llsn = LLSN(llsn + skip)
        self.epoch = Epoch(epoch)
        self.version = Version(version)
        """Of the metadata repository's decision that gave them their positions."""
        self.time = time
        """When that was, by its clock: microseconds since 1970, never decreasing."""
        self._skip = skip
        self._batch = opened

    @property
    def end(self) -> GLSN:
        """The first position after it."""
        return GLSN(self.glsn + self.count)

    @property
    def writer_timestamp(self) -> int:
        """When the writer made the batch, by the writer's clock, in microseconds since 1970."""
        return self._batch.header.timestamp

    def payloads(self) -> list[bytes]:
        """What the entries hold, in order."""
        payloads = self._batch.to_list()
        return payloads if len(payloads) == self.count else payloads[self._skip : self._skip + self.count]

    @property
    def nbytes(self) -> int:
        """How large the batch is that they were appended in."""
        return self._batch.header.body_bytes

    def column(self) -> pa.BinaryArray:
        """What the entries hold as an Arrow column over the batch's own bytes."""
        return self._batch.to_arrow().slice(self._skip, self.count)

    @staticmethod
    def join(batches: Iterable[EntryBatch]) -> pa.BinaryArray:
        """What the entries of several batches hold as one Arrow column; copied, once."""
        return batch.RecordBatch.join((it._batch, it._skip, it.count) for it in batches)

    def to_arrow(self) -> pa.RecordBatch:
        """The entries as columns glsn, llsn, log_stream, timestamp and payload; payloads are not copied."""
        from varlog.client.columns import record_batch  # noqa: PLC0415  # pyarrow is large

        return record_batch(self, self.column())

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Entry]:
        glsns = range(self.glsn, self.glsn + self.count)
        llsns = range(self.llsn, self.llsn + self.count)
        rows = zip(glsns, self.payloads(), llsns, repeat(self.log_stream), repeat(self.time), strict=False)
        return map(new_entry, rows)

    def __repr__(self) -> str:
        return f"<EntryBatch of {self.count} from {self.glsn} on, log stream {self.log_stream}>"
