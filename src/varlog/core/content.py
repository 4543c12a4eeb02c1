"""What an append brings, and the batch that is made of it: plain entries mostly, or positions that hold nothing, or
entries that say something of a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Final

import msgspec

from varlog import batch
from varlog.types import Sequence, WriterID

_MARKED: Final = int(batch.BatchFlag.TRANSACTION)


class Fill(msgspec.Struct, frozen=True):
    """In place of entries: `count` positions that are to hold nothing. Readers pass over them."""

    count: int


class Tagged(msgspec.Struct, frozen=True):
    """In place of entries: such as make a batch that is not plain."""

    entries: Seq[bytes]
    flags: int
    extensions: Mapping[int, bytes] | bytes | None = None

    def __len__(self) -> int:
        return len(self.entries)


Content = Seq[bytes] | Fill | Tagged
"""What an append brings."""


def packed(content: Content, writer_id: WriterID, sequence: Sequence, timestamp: int, codec: batch.Codec) -> bytes:
    """The batch of an append."""
    if type(content) is list and len(content) == 1 and not codec:
        single = batch.encode_single(content[0], writer_id, sequence, timestamp)
        if single is not None:
            return single
    flags = 0
    extensions: Mapping[int, bytes] | bytes | None = None
    if isinstance(content, Fill):  # however many, compressed they are next to nothing
        content, codec, flags = [b""] * content.count, batch.Codec.ZSTD, int(batch.BatchFlag.JUNK)
    elif isinstance(content, Tagged):
        flags, extensions, content = content.flags, content.extensions, content.entries
        if type(extensions) is bytes and flags == _MARKED and type(content) is list and len(content) == 1 and not codec:
            single = batch.encode_marked_single(content[0], writer_id, sequence, timestamp, extensions)
            if single is not None:
                return single
    return batch.encode(
        content,
        writer_id=writer_id,
        sequence=sequence,
        timestamp=timestamp,
        codec=codec,
        flags=flags,
        extensions=extensions,
    )
