"""Segments: what one is called, what is known of it, and how the next frame of the newest one is laid out.

`Segment` is a segment as readers see it. `ActiveSegment` lays out the frames of the newest one: every decision (offset,
chain, mark) is made here, in memory, when a record is staged; writing only carries the bytes. `Segment`s stand in a
tuple in file order, and looking one up is a bisection, because `end`, `committed_end`, `glsn_end` and
`version` never decrease along it.

`SegmentFile` and `Layout` are what they have in common with the segments of a write-once log (`positions`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar, Final, Generic, TypeVar

from crc32c import crc32c

from varlog import limits
from varlog.batch import BatchHeader
from varlog.storage import format as fmt
from varlog.storage.files import Buffer
from varlog.storage.format import Context, Footer, FrameKind, SegmentHeader
from varlog.storage.index import SegmentIndex
from varlog.types import GLSN, LLSN, CommitContext, Epoch, LogStreamIdentity, Ordering

Index = TypeVar("Index")
AnyLayout = TypeVar("AnyLayout", bound="Layout")

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


class SegmentFile(Generic[Index]):
    """What whoever looks something up in a segment needs to know of its file."""

    __slots__ = ("end", "index", "index_offset", "name", "nonce", "seq")

    def __init__(self, seq: int, name: str, nonce: int, end: LLSN) -> None:
        self.seq = seq
        self.name = name
        self.nonce = nonce
        self.end = end
        """Batches of this segment at or above it are void, or there are none."""
        self.index: Index | None = None
        """None if it is to be read from the file, at `index_offset`."""
        self.index_offset = 0


class Segment(SegmentFile[SegmentIndex]):
    """What readers need to know of a segment."""

    __slots__ = ("committed_end", "glsn_end", "version")

    def __init__(self, seq: int, name: str, nonce: int, end: LLSN, context: Context) -> None:
        """A segment whose batches end at `end`, with the state at its end."""
        super().__init__(seq, name, nonce, end)
        self.committed_end = context.committed_end
        """The commits up to this segment's end committed LLSNs below it,"""
        self.glsn_end = GLSN(context.local_hwm + 1)
        """gave GLSNs below it,"""
        self.version = context.version
        """and this is the version of the last of them."""

    @classmethod
    def closed(cls, name: str, footer: Footer) -> Segment:
        segment = cls(footer.seq, name, footer.nonce, footer.end, footer.context)
        segment.index_offset = footer.index_offset
        return segment


class Layout(ABC):
    """The newest segment of any log: where its next frame goes, and what that is chained to."""

    __slots__ = ("_header", "chain", "floor", "name", "nonce", "offset", "records", "seq", "synced")

    ordering: ClassVar[Ordering]
    segment: SegmentFile[Any]
    """This segment as readers see it."""

    def __init__(self, header: SegmentHeader, _context: Context) -> None:
        """A segment that holds its header and nothing else, and the state it begins with."""
        self._header = header
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

    @classmethod
    def start(
        cls: type[AnyLayout],
        identity: LogStreamIdentity,
        seq: int,
        nonce: int,
        prev_nonce: int,
        context: Context,
        snapshot: bytes,
    ) -> tuple[AnyLayout, bytes]:
        """A new segment and the bytes it begins with: its header and the state at its beginning."""
        encoded = fmt.encode_segment_header(identity, cls.ordering, seq, context.end, nonce, prev_nonce)
        header = fmt.decode_segment_header(encoded)
        assert header is not None
        active = cls(header, context)
        head = encoded + active.frame(FrameKind.CONTEXT, fmt.encode_context(context, snapshot))
        # The head is synced before the file gets its name, so before any frame is written behind it.
        active.synced = active.offset
        return active, head

    @abstractmethod
    def closing(self, context: Context) -> bytes:
        """The INDEX frame and the footer."""

    def frame(self, kind: FrameKind, body: bytes = b"", llsn: int = 0, epoch: int = 0) -> bytes:
        """A whole frame of any kind but a batch's."""
        header, self.chain = fmt.encode_frame_header(
            self.offset, self.chain, kind, len(body), 0, crc32c(body), self.synced, llsn, epoch, 0, self.nonce
        )
        self.offset += len(header) + len(body)
        return header + body

    def _ending(self, index: bytes, begin: LLSN, end: LLSN, context: Context) -> bytes:
        index_offset = self.segment.index_offset = self.offset
        frame = self.frame(FrameKind.INDEX, index)
        footer = Footer(*self._header[:6], index_offset, self.chain, begin, end, self.floor, context)
        return frame + fmt.encode_footer(footer)

    def is_full(self, segment_bytes: int) -> bool:
        """Whether the next record goes to the next segment. The number of records bounds what opening has to scan."""
        return self.offset >= segment_bytes or self.records >= limits.SEGMENT_RECORDS


class ActiveSegment(Layout):
    """The newest segment, as it is laid out. See the module's text."""

    __slots__ = ("_begin", "index", "segment")

    ordering = Ordering.COMMIT
    segment: Segment

    def __init__(self, header: SegmentHeader, context: Context) -> None:
        super().__init__(header, context)
        self._begin = context.end
        self.index = SegmentIndex()
        self.segment = Segment(self.seq, self.name, self.nonce, context.end, context)
        self.segment.index = self.index

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
        llsns = list(accumulate([header[4] for header in headers], initial=llsn))
        end = llsns.pop()
        run = zip(llsns, prev_sequences, batches, headers, strict=True)
        frames, offsets, self.chain = fmt.encode_batch_frames(
            self.offset, self.chain, self.synced, epoch, self.nonce, run
        )
        sizes = [fmt.FRAME_HEADER_BYTES + len(batch) for batch in batches]
        self.index.add_batches(llsns, offsets, sizes)
        self.offset = offsets[-1] + sizes[-1]
        self.records += len(sizes)
        self.segment.end = LLSN(end)
        return frames

    def closing(self, context: Context) -> bytes:
        return self._ending(self.index.encode(), self._begin, self.segment.end, context)

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
