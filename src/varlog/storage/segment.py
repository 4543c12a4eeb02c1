"""Segments: what one is called, what is known of it, and how the next frame of the newest one is laid out.

`Segment` is a segment as readers see it. `ActiveSegment` lays out the frames of the newest one: every decision (offset,
chain, mark) is made here, in memory, when a record is staged; writing only carries the bytes. `Segment`s stand in a
tuple in file order, and looking one up is a bisection, because `end`, `committed_end`, `glsn_end` and
`version` never decrease along it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from varlog import limits
from varlog.batch import BatchHeader
from varlog.storage import format as fmt
from varlog.storage.files import Buffer
from varlog.storage.format import Context, Footer, FrameKind, SegmentHeader
from varlog.storage.index import SegmentIndex
from varlog.types import GLSN, LLSN, CommitContext, Epoch, LogStreamIdentity

NO_FLOOR: Final = LLSN((1 << 64) - 1)
"""The floor of a segment without a seal record."""

_NAME: Final = re.compile(r"(\d{10})-(\d{20})\.seg")
_BATCH: Final = int(FrameKind.BATCH)


def segment_name(seq: int, first_llsn: LLSN) -> str:
    return f"{seq:010d}-{first_llsn:020d}.seg"


def parse_segment_name(name: str) -> tuple[int, LLSN] | None:
    """(seq, first LLSN) if `name` is that of a segment."""
    found = _NAME.fullmatch(name)
    return None if found is None else (int(found[1]), LLSN(int(found[2])))


class Segment:
    """What readers need to know of a segment."""

    __slots__ = ("committed_end", "end", "glsn_end", "index", "index_offset", "name", "nonce", "seq",
                 "version")  # fmt: skip

    def __init__(self, seq: int, name: str, nonce: int, end: LLSN, context: Context) -> None:
        """A segment whose batches end at `end`, with the state at its end."""
        self.seq = seq
        self.name = name
        self.nonce = nonce
        self.end = end
        """Batches of this segment at or above it are void, or there are none."""
        self.committed_end = context.committed_end
        """The commits up to this segment's end committed LLSNs below it,"""
        self.glsn_end = GLSN(context.local_hwm + 1)
        """gave GLSNs below it,"""
        self.version = context.version
        """and this is the version of the last of them."""
        self.index: SegmentIndex | None = None
        """None if it is to be read from the file, at `index_offset`."""
        self.index_offset = 0

    @classmethod
    def closed(cls, name: str, footer: Footer) -> Segment:
        segment = cls(footer.seq, name, footer.nonce, footer.end, footer.context)
        segment.index_offset = footer.index_offset
        return segment


class ActiveSegment:
    """The newest segment, as it is laid out. See the module's text."""

    __slots__ = ("_begin", "_header", "chain", "floor", "index", "name", "nonce", "offset", "records", "segment", "seq",
                 "synced")  # fmt: skip

    def __init__(self, header: SegmentHeader, context: Context) -> None:
        """A segment that holds its header and nothing else; `context` is the state it begins with."""
        self._header = header
        self._begin = context.end
        self.seq = header.seq
        self.name = segment_name(header.seq, header.first_llsn)
        self.nonce = header.nonce
        self.offset = fmt.SEGMENT_HEADER_BYTES
        self.chain = header.crc
        self.records = 0
        """How many batches, commits, seals and unseals it holds."""
        self.synced = 0
        """The file is known to be synced up to here; every frame repeats it (rule 15)."""
        self.floor = NO_FLOOR
        self.index = SegmentIndex()
        self.segment = Segment(self.seq, self.name, self.nonce, context.end, context)
        self.segment.index = self.index

    @classmethod
    def start(
        cls, identity: LogStreamIdentity, seq: int, nonce: int, prev_nonce: int, context: Context, snapshot: bytes
    ) -> tuple[ActiveSegment, bytes]:
        """A new segment and the bytes it begins with: its header and the state at its beginning."""
        encoded = fmt.encode_segment_header(identity, seq, context.end, nonce, prev_nonce)
        header = fmt.decode_segment_header(encoded)
        assert header is not None
        active = cls(header, context)
        head = encoded + active.frame(FrameKind.CONTEXT, fmt.encode_context(context, snapshot))
        # The head is synced before the file gets its name, so before any frame is written behind it.
        active.synced = active.offset
        return active, head

    def batch_frame(
        self, llsn: LLSN, epoch: Epoch, prev_sequence: int, count: int, length: int, batch: Buffer
    ) -> bytes:  # fmt: skip
        """The header of a batch's frame; the batch is its body as it is."""
        offset = self.offset
        header, self.chain = fmt.encode_frame_header(
            offset, self.chain, _BATCH, length, count, fmt.batch_check(batch), self.synced, llsn, epoch, prev_sequence,
            self.nonce,
        )  # fmt: skip
        size = fmt.FRAME_HEADER_BYTES + length
        self.offset = offset + size
        self.added_batch(llsn, count, offset, size)
        return header

    def batch_frames(
        self, llsn: LLSN, epoch: Epoch, prev_sequences: Sequence[int], batches: Sequence[Buffer],
        headers: Sequence[BatchHeader],
    ) -> list[Buffer]:  # fmt: skip
        """The frames of several batches, one after another."""
        run = zip(prev_sequences, batches, headers, strict=True)
        frames, offsets, llsns, self.chain = fmt.encode_batch_frames(
            self.offset, self.chain, self.synced, llsn, epoch, self.nonce, run
        )
        sizes = [fmt.FRAME_HEADER_BYTES + len(batch) for batch in batches]
        self.index.add_batches(llsns, offsets, sizes)
        self.offset = offsets[-1] + sizes[-1]
        self.records += len(sizes)
        self.segment.end = LLSN(llsns[-1] + headers[-1].count)
        return frames

    def frame(self, kind: FrameKind, body: bytes = b"", llsn: int = 0, epoch: int = 0) -> bytes:
        """A whole frame of any other kind."""
        header, self.chain = fmt.encode_frame_header(
            self.offset, self.chain, kind, len(body), 0, crc32c(body), self.synced, llsn, epoch, 0, self.nonce
        )
        self.offset += len(header) + len(body)
        return header + body

    def closing(self, context: Context) -> bytes:
        """The INDEX frame and the footer."""
        self.segment.index_offset = self.offset
        frame = self.frame(FrameKind.INDEX, self.index.encode())
        footer = Footer(
            *self._header[:5], self.segment.index_offset, self.chain, self._begin, self.segment.end, self.floor, context
        )
        return frame + fmt.encode_footer(footer)

    def is_full(self, segment_bytes: int) -> bool:
        """Whether the next record goes to the next segment. The number of records bounds what opening has to scan."""
        return self.offset >= segment_bytes or self.records >= limits.SEGMENT_RECORDS

    # What the records do to the index; the same when they are staged and when they are replayed.

    def added_batch(self, llsn: LLSN, count: int, offset: int, size: int) -> None:
        self.records += 1
        self.index.add_batch(llsn, offset, size)
        self.segment.end = LLSN(llsn + count)

    def added_commit(self, cc: CommitContext) -> None:
        self.records += 1
        self.index.add_commit(cc)
        segment = self.segment
        count = cc.count
        segment.committed_end = LLSN(cc.llsn_begin + count)
        segment.glsn_end = GLSN(cc.glsn_begin + count)
        segment.version = cc.version

    def added_seal(self, llsn_end: LLSN) -> None:
        self.records += 1
        self.index.drop_from(llsn_end)
        self.floor = min(self.floor, llsn_end)
        self._begin = min(self._begin, llsn_end)
        self.segment.end = min(self.segment.end, llsn_end)

    def added_unseal(self) -> None:
        self.records += 1
