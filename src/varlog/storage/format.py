"""The bytes of a log stream's files: the only place where they are made and taken apart.

A *segment* is a header of 64 bytes followed by *frames*, one after another. A frame is a header of 64 bytes and a body
whose length is a multiple of 8, so nothing is ever padded between them:

    offset  0  magic          u32
            4  crc            u32   crc32c of the 56 bytes that follow, seeded with the frame's offset in the file
            8  prev           u32   `crc` of the frame before it; of the segment header for the first one
           12  kind           u8    see `FrameKind`
           13  reserved       u8 and u16, 0
           16  length         u32   of the body
           20  count          u32   entries of a batch
           24  check          u32   crc32c of the body; of a batch its own checksum, which covers it
           28  synced         u32   how far this file was known to be synced when the frame was laid out
           32  llsn           u64
           40  epoch          u64
           48  prev_sequence  u64
           56  nonce          u64   the segment's

The seed and the nonce tie a frame to its place: bytes copied from another segment or another offset, or a payload made
to look like a frame, are no frame. The chain of `prev` ties it to what comes before: a frame of an earlier life of the
file is no frame either. Segments are chained too: each names the nonce of the one before it.

The first frame is a CONTEXT, the state at the segment's beginning, so replay needs nothing but the segment itself. A
closed segment ends with an INDEX frame and a *footer* of 152 bytes, and nothing after it.

The segments of a *write-once* log (the sequencer ordering; the header says so) are made in the same way. `llsn` of a
batch's frame is its position and `prev_sequence` its time, positions come in any order and are the index; of the state
`end` is the end of the positions, `version` counts the records, `hwm` is the greatest time, and the rest is 0; but in a
footer `committed_end` and `local_hwm` are the bounds of the widest gap between two batches of the segment.

Beside the segments lie two small files: `synced`, the mark (how far the newest segment is synced), and `lwm`, the trim
record. A *base* lies in no file: it is what a replica is told that begins in the middle of a log. The layouts are the
structs below. Every number is little-endian.

What must always hold:

- A `decode_` function returns None for bytes that are not what was written; it raises nothing but `UnsupportedFormat`,
  and that only for bytes whose checksum says that a newer release meant them so.
- Every bit of a frame, header, footer and record is covered by a checksum or compared with its one legal value.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from varlog import batch as record_batch
from varlog.batch import BatchHeader
from varlog.errors import UnsupportedFormat
from varlog.storage.files import Buffer
from varlog.types import (
    GLSN,
    LLSN,
    ClusterID,
    CommitContext,
    Epoch,
    LogStreamID,
    LogStreamIdentity,
    Ordering,
    Sequence,
    StorageNodeID,
    TopicID,
    Version,
    WriterID,
)

FORMAT: Final = 1

_SEGMENT_MAGIC: Final = b"VLSG"
_FOOTER_MAGIC: Final = b"VLSF"
_TRIM_MAGIC: Final = b"VLLW"
_MARK_MAGIC: Final = b"VLSY"
_BASE_MAGIC: Final = b"VLBA"
FRAME_MAGIC: Final = b"\xb3VF\x8e"
_FRAME_MAGIC_NUMBER: Final = int.from_bytes(FRAME_MAGIC, "little")

# Whatever is checked as a whole begins with a magic and a crc32c of all that follows, then the format, so that any
# release can tell damage from a format it does not know.
_START: Final = Struct("<4sI")
_FRAME_START: Final = Struct("<II")
_FORMAT: Final = Struct("<I")
_SEGMENT: Final = Struct("<4sIIIIIIIQQQQ")
_FRAME: Final = Struct("<IIIBBHIIIIQQQQ")
_FRAME_REST: Final = Struct("<IBBHIIIIQQQQ")
_FOOTER: Final = Struct("<4sIIIIIIIQQQQQIIQQQQQQQQQ")
_TRIM: Final = Struct("<4sIIIIIIIQQQQQQQQ")
_MARK: Final = Struct("<4sIIIQQ")
_BASE: Final = Struct("<4sIIIQQQQQQQQ")
_COMMIT: Final = Struct("<QQQQQQQQ")
_MEMBERS: Final = Struct("<II")
_CONTEXT: Final = Struct("<QQQQQQQ")
_INDEX: Final = Struct("<QQ")
_BATCH_START: Final = Struct("<II")
_BATCH_FRAME: Final = Struct(_FRAME.format + _BATCH_START.format[1:])

SEGMENT_HEADER_BYTES: Final = _SEGMENT.size
FRAME_HEADER_BYTES: Final = _FRAME.size
FOOTER_BYTES: Final = _FOOTER.size
MARK_BYTES: Final = _MARK.size
COMMIT_BODY_BYTES: Final = _COMMIT.size
COMMIT_FIELDS: Final = 8
ALIGNMENT: Final = 8
POSITION_COLUMNS: Final = "QQIIII"
"""Of a write-once log's index: position, time, count, checksum, offset, size."""

_BIG_ENDIAN: Final = sys.byteorder == "big"


class FrameKind(IntEnum):
    """What a frame holds."""

    CONTEXT = 1
    BATCH = 2
    COMMIT = 3
    SEAL = 4
    UNSEAL = 5
    INDEX = 6


_BATCH: Final = int(FrameKind.BATCH)
_KINDS: Final = frozenset(int(kind) for kind in FrameKind)
_ORDERINGS: Final = frozenset(int(ordering) for ordering in Ordering)


class SegmentHeader(NamedTuple):
    identity: LogStreamIdentity
    ordering: Ordering
    seq: int
    first_llsn: LLSN
    nonce: int
    prev_nonce: int
    """Of the segment before; 0 for the first one."""
    crc: int
    """Where the chain of frames begins."""


class FrameHeader(NamedTuple):
    crc: int
    prev: int
    kind: int
    length: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses here
    check: int
    synced: int
    llsn: LLSN
    epoch: Epoch
    prev_sequence: int
    nonce: int


class Members(NamedTuple):
    """Who runs a log stream in an epoch; nobody yet if `replicas` is empty."""

    replicas: tuple[StorageNodeID, ...] = ()
    primary: StorageNodeID = StorageNodeID(0)


class Context(NamedTuple):
    """The LogStreamContext (B8) at a position of the log."""

    committed_end: LLSN
    end: LLSN
    """The end of what is stored, committed or not."""
    version: Version
    hwm: GLSN
    local_hwm: GLSN
    epoch: Epoch
    """The highest one promised."""
    members: Members


class Footer(NamedTuple):
    identity: LogStreamIdentity
    ordering: Ordering
    seq: int
    first_llsn: LLSN
    nonce: int
    prev_nonce: int
    index_offset: int
    index_crc: int
    begin: LLSN
    """The segment's batches that live have LLSNs in [begin, end)."""
    end: LLSN
    floor: LLSN
    """The lowest seal point in this segment: batches at or above it in *earlier* segments are void."""
    context: Context
    """At the segment's end, without the members."""


class TrimRecord(NamedTuple):
    """The low-watermark record (rule 14): what is trimmed, and where the log was then."""

    identity: LogStreamIdentity
    llsn: LLSN
    """The first entry kept."""
    glsn: GLSN
    """The last position trimmed."""
    version: Version
    epoch: Epoch
    hwm: GLSN
    committed_end: LLSN
    first_seq: int
    """The first segment kept; whatever lies before it is a leftover."""
    snapshot: bytes
    """The deduplication table as of this record."""


class LogBase(NamedTuple):
    """What a replica is told that begins in the middle of a log: the state there, all before it being trimmed."""

    llsn: LLSN
    """Where it begins: the end of a commit, and the committed end there."""
    trim_llsn: LLSN
    trim_glsn: GLSN
    version: Version
    epoch: Epoch
    hwm: GLSN
    local_hwm: GLSN
    snapshot: bytes
    """The deduplication table as of `llsn`."""


class Mark(NamedTuple):
    """The segment `seq` was synced up to `offset`, and every segment before it as a whole."""

    seq: int
    offset: int


# What begins with a magic, a checksum and a format


def _checked(buf: Buffer) -> bytes:
    """`buf` with its checksum filled in."""
    rest = bytes(memoryview(buf)[_START.size :])
    return _START.pack(bytes(buf[:4]), crc32c(rest)) + rest


def _is_whole(buf: Buffer, magic: bytes, what: str) -> bool:
    """True if the checksum holds; raises if it holds for a format that is newer than this release."""
    view = memoryview(buf)
    found, crc = _START.unpack_from(view)
    if found != magic or crc32c(view[_START.size :]) != crc:
        return False
    written: int = _FORMAT.unpack_from(view, _START.size)[0]
    if written > FORMAT:
        raise UnsupportedFormat(f"{what} has format {written}; this release reads up to {FORMAT}: upgrade it first")
    return written == FORMAT


def encode_segment_header(
    identity: LogStreamIdentity, ordering: Ordering, seq: int, first_llsn: LLSN, nonce: int, prev_nonce: int
) -> bytes:
    return _checked(_SEGMENT.pack(_SEGMENT_MAGIC, 0, FORMAT, *identity, ordering, seq, first_llsn, nonce, prev_nonce))


def decode_segment_header(buf: Buffer) -> SegmentHeader | None:
    if len(buf) != SEGMENT_HEADER_BYTES or not _is_whole(buf, _SEGMENT_MAGIC, "a segment"):
        return None
    _, crc, _, cid, snid, tpid, lsid, ordering, seq, first_llsn, nonce, prev_nonce = _SEGMENT.unpack(buf)
    if ordering not in _ORDERINGS:
        return None
    identity = _identity(cid, snid, tpid, lsid)
    return SegmentHeader(identity, Ordering(ordering), seq, LLSN(first_llsn), nonce, prev_nonce, crc)


def encode_footer(footer: Footer) -> bytes:
    context = footer.context
    return _checked(
        _FOOTER.pack(
            _FOOTER_MAGIC, 0, FORMAT, *footer.identity, footer.ordering, footer.seq, footer.first_llsn, footer.nonce,
            footer.prev_nonce, footer.index_offset, footer.index_crc, 0, footer.begin, footer.end, footer.floor,
            context.committed_end, context.end, context.version, context.hwm, context.local_hwm, context.epoch,
        )
    )  # fmt: skip


def decode_footer(buf: Buffer) -> Footer | None:
    if len(buf) != FOOTER_BYTES or not _is_whole(buf, _FOOTER_MAGIC, "a segment"):
        return None
    (_, _, _, cid, snid, tpid, lsid, ordering, seq, first_llsn, nonce, prev_nonce, index_offset, index_crc,
     reserved, begin, end, floor, committed_end, context_end, version, hwm, local_hwm,
     epoch) = _FOOTER.unpack(buf)  # fmt: skip
    if reserved or ordering not in _ORDERINGS:
        return None
    context = Context(
        LLSN(committed_end), LLSN(context_end), Version(version), GLSN(hwm), GLSN(local_hwm), Epoch(epoch), Members()
    )
    identity = _identity(cid, snid, tpid, lsid)
    return Footer(
        identity, Ordering(ordering), seq, LLSN(first_llsn), nonce, prev_nonce, index_offset, index_crc, LLSN(begin),
        LLSN(end), LLSN(floor), context,
    )  # fmt: skip


def encode_trim(record: TrimRecord) -> bytes:
    head = _TRIM.pack(
        _TRIM_MAGIC, 0, FORMAT, *record.identity, 0, record.llsn, record.glsn, record.version, record.epoch, record.hwm,
        record.committed_end, record.first_seq, len(record.snapshot),
    )  # fmt: skip
    return _checked(head + record.snapshot)


def decode_trim(buf: Buffer) -> TrimRecord | None:
    if len(buf) < _TRIM.size or not _is_whole(buf, _TRIM_MAGIC, "the trim record"):
        return None
    (_, _, _, cid, snid, tpid, lsid, reserved, llsn, glsn, version, epoch, hwm, committed_end, first_seq,
     length) = _TRIM.unpack_from(buf)  # fmt: skip
    if reserved or _TRIM.size + length != len(buf):
        return None
    return TrimRecord(
        _identity(cid, snid, tpid, lsid), LLSN(llsn), GLSN(glsn), Version(version), Epoch(epoch), GLSN(hwm),
        LLSN(committed_end), first_seq, bytes(memoryview(buf)[_TRIM.size :]),
    )  # fmt: skip


def encode_mark(mark: Mark) -> bytes:
    return _checked(_MARK.pack(_MARK_MAGIC, 0, FORMAT, 0, mark.seq, mark.offset))


def decode_mark(buf: Buffer) -> Mark | None:
    if len(buf) != MARK_BYTES or not _is_whole(buf, _MARK_MAGIC, "the mark of what is synced"):
        return None
    *_, reserved, seq, offset = _MARK.unpack(buf)
    return None if reserved else Mark(seq, offset)


def encode_base(base: LogBase) -> bytes:
    return _checked(_BASE.pack(_BASE_MAGIC, 0, FORMAT, 0, *base[:-1], len(base.snapshot)) + base.snapshot)


def decode_base(buf: Buffer) -> LogBase | None:
    if len(buf) < _BASE.size or not _is_whole(buf, _BASE_MAGIC, "what a log begins with"):
        return None
    _, _, _, reserved, llsn, trim_llsn, trim_glsn, version, epoch, hwm, local_hwm, length = _BASE.unpack_from(buf)
    if reserved or _BASE.size + length != len(buf):
        return None
    return LogBase(
        LLSN(llsn), LLSN(trim_llsn), GLSN(trim_glsn), Version(version), Epoch(epoch), GLSN(hwm), GLSN(local_hwm),
        bytes(memoryview(buf)[_BASE.size :]),
    )  # fmt: skip


def _identity(cid: int, snid: int, tpid: int, lsid: int) -> LogStreamIdentity:
    return LogStreamIdentity(ClusterID(cid), StorageNodeID(snid), TopicID(tpid), LogStreamID(lsid))


# Frames


def encode_frame_header(
    offset: int,
    prev: int,
    kind: int,
    length: int,
    count: int,
    check: int,
    synced: int,
    llsn: int,
    epoch: int,
    prev_sequence: int,
    nonce: int,
) -> tuple[bytes, int]:
    """The header of a frame that will stand at `offset`, and its crc, which the next frame repeats."""
    rest = _FRAME_REST.pack(prev, kind, 0, 0, length, count, check, synced, llsn, epoch, prev_sequence, nonce)
    crc = crc32c(rest, offset & 0xFFFFFFFF)
    return _FRAME_START.pack(_FRAME_MAGIC_NUMBER, crc) + rest, crc


def encode_batch_frames(
    offset: int,
    prev: int,
    synced: int,
    epoch: int,
    nonce: int,
    run: Iterable[tuple[int, int, Buffer, BatchHeader]],
) -> tuple[list[Buffer], list[int], int]:
    """The frames of batches that stand one after another from `offset` on, as headers and bodies in turn; where each
    begins; and the crc of the last header. A batch comes with its LLSN and its previous sequence."""
    frames: list[Buffer] = []
    offsets: list[int] = []
    pack_rest, pack_start, unpack_start = _FRAME_REST.pack, _FRAME_START.pack, _BATCH_START.unpack_from
    crc = prev
    for llsn, prev_sequence, batch, header in run:
        length = header[0]
        rest = pack_rest(
            crc, _BATCH, 0, 0, length, header[4], unpack_start(batch)[1], synced, llsn, epoch, prev_sequence, nonce
        )
        crc = crc32c(rest, offset & 0xFFFFFFFF)
        frames += (pack_start(_FRAME_MAGIC_NUMBER, crc) + rest, batch)
        offsets.append(offset)
        offset += FRAME_HEADER_BYTES + length
    return frames, offsets, crc


def decode_frame_header(view: memoryview, at: int, offset: int) -> FrameHeader | None:
    """The frame header at `view[at:]`, which stands at `offset` of its file. The caller compares nonce and chain."""
    if at + FRAME_HEADER_BYTES > len(view):
        return None
    (magic, crc, prev, kind, reserved, reserved_too, length, count, check, synced, llsn, epoch, prev_sequence,
     nonce) = _FRAME.unpack_from(view, at)  # fmt: skip
    if magic != _FRAME_MAGIC_NUMBER:
        return None
    if crc32c(view[at + 8 : at + FRAME_HEADER_BYTES], offset & 0xFFFFFFFF) != crc:
        return None
    if reserved or reserved_too or kind not in _KINDS or length % ALIGNMENT:
        return None
    return FrameHeader(crc, prev, kind, length, count, check, synced, llsn, epoch, prev_sequence, nonce)


def batch_of_frame(frame: bytes, offset: int, expected: tuple[int, ...]) -> tuple[int, memoryview] | None:
    """Epoch and batch of a frame at `offset` of its file, if it is whole, and has the count, check, LLSN, previous
    sequence and nonce that are expected: `decode_frame_header` and `is_body_whole` in one, for who reads one frame."""
    size = len(frame)
    if size < FRAME_HEADER_BYTES + record_batch.HEADER_BYTES or size % ALIGNMENT:
        return None
    (magic, crc, _, kind, reserved, reserved_too, length, count, check, _, llsn, epoch, prev_sequence, nonce,
     batch_magic, stated) = _BATCH_FRAME.unpack_from(frame)  # fmt: skip
    if (count, check, llsn, prev_sequence, nonce) != expected or stated != check:
        return None
    fixed = _FRAME_MAGIC_NUMBER, _BATCH, 0, 0, record_batch.MAGIC
    if (magic, kind, reserved, reserved_too, batch_magic) != fixed or length + FRAME_HEADER_BYTES != size:
        return None
    view = memoryview(frame)
    if crc32c(view[8:FRAME_HEADER_BYTES], offset & 0xFFFFFFFF) != crc or crc32c(view[_BATCH_FRAME.size :]) != check:
        return None
    return epoch, view[FRAME_HEADER_BYTES:]


def batch_check(batch: Buffer) -> int:
    """A batch's own checksum, as its writer put it there."""
    check: int = _BATCH_START.unpack_from(batch)[1]
    return check


def batch_origin(batch: Buffer) -> tuple[WriterID, Sequence]:
    """(writer id, sequence) of a batch that is whole."""
    fields = record_batch.HEADER.unpack_from(batch)
    return fields[9], fields[10]


def is_body_whole(header: FrameHeader, body: memoryview) -> bool:
    """Whether these are the bytes the frame was made for."""
    if len(body) != header.length:
        return False
    if header.kind != _BATCH:
        return crc32c(body) == header.check
    if len(body) < record_batch.HEADER_BYTES:
        return False
    return (
        _BATCH_START.unpack_from(body) == (record_batch.MAGIC, header.check)
        and crc32c(body[_BATCH_START.size :]) == header.check
    )


# Bodies


def encode_commit(cc: CommitContext) -> bytes:
    return _COMMIT.pack(*cc)


def decode_commit(body: Buffer) -> CommitContext | None:
    if len(body) != COMMIT_BODY_BYTES:
        return None
    version, epoch, hwm, prev_hwm, llsn_begin, glsn_begin, count, time = _COMMIT.unpack(body)
    return CommitContext(
        Version(version), Epoch(epoch), GLSN(hwm), GLSN(prev_hwm), LLSN(llsn_begin), GLSN(glsn_begin), count, time
    )


def encode_members(members: Members) -> bytes:
    ids = array("I", members.replicas)
    return _MEMBERS.pack(members.primary, len(ids)) + _padded(_array_bytes(ids))


def decode_members(body: Buffer) -> Members | None:
    found = _take_members(memoryview(body))
    return found[0] if found is not None and found[1] == len(body) else None


def _take_members(view: memoryview) -> tuple[Members, int] | None:
    """The members at the start of `view`, and where they end."""
    if len(view) < _MEMBERS.size:
        return None
    primary, count = _MEMBERS.unpack_from(view)
    end = _MEMBERS.size + 4 * count
    padded_end = end + -end % ALIGNMENT
    if padded_end > len(view) or any(view[end:padded_end]):
        return None
    ids = _array("I", view[_MEMBERS.size : end])
    return Members(tuple(map(StorageNodeID, ids)), StorageNodeID(primary)), padded_end


def encode_context(context: Context, snapshot: bytes) -> bytes:
    """The body of a CONTEXT frame: the state, and the deduplication table as the owner wrote it."""
    numbers = _CONTEXT.pack(
        context.committed_end, context.end, context.version, context.hwm, context.local_hwm, context.epoch,
        len(snapshot),
    )  # fmt: skip
    return numbers + encode_members(context.members) + _padded(snapshot)


def decode_context(body: Buffer) -> tuple[Context, bytes] | None:
    view = memoryview(body)
    if len(view) < _CONTEXT.size:
        return None
    committed_end, end, version, hwm, local_hwm, epoch, length = _CONTEXT.unpack_from(view)
    found = _take_members(view[_CONTEXT.size :])
    if found is None:
        return None
    members, at = found
    at += _CONTEXT.size
    if at + length + -length % ALIGNMENT != len(view) or any(view[at + length :]):
        return None
    context = Context(
        LLSN(committed_end), LLSN(end), Version(version), GLSN(hwm), GLSN(local_hwm), Epoch(epoch), members
    )
    return context, bytes(view[at : at + length])


def encode_index(llsns: array[int], offsets: array[int], sizes: array[int], commits: array[int]) -> bytes:
    """The body of an INDEX frame: batches as (LLSN, offset, size), commits as `COMMIT_FIELDS` numbers each."""
    return b"".join(
        (
            _INDEX.pack(len(llsns), len(commits) // COMMIT_FIELDS),
            _array_bytes(llsns),
            _array_bytes(commits),
            _array_bytes(offsets),
            _array_bytes(sizes),
        )
    )


def decode_index(body: Buffer) -> tuple[array[int], array[int], array[int], array[int]] | None:
    view = memoryview(body)
    if len(view) < _INDEX.size:
        return None
    batches, commits = _INDEX.unpack_from(view)
    commits_at = _INDEX.size + 8 * batches
    offsets_at = commits_at + 8 * COMMIT_FIELDS * commits
    sizes_at = offsets_at + 4 * batches
    if sizes_at + 4 * batches != len(view):
        return None
    return (
        _array("Q", view[_INDEX.size : commits_at]),
        _array("I", view[offsets_at:sizes_at]),
        _array("I", view[sizes_at:]),
        _array("Q", view[commits_at:offsets_at]),
    )


def encode_positions(columns: Iterable[array[int]], count: int) -> bytes:
    """The body of an INDEX frame of a write-once log: batches as `POSITION_COLUMNS`, one column after another."""
    return _padded(b"".join([_INDEX.pack(count, 0), *map(_array_bytes, columns)]))


def decode_positions(body: Buffer) -> list[array[int]] | None:
    view = memoryview(body)
    if len(view) < _INDEX.size:
        return None
    count, reserved = _INDEX.unpack_from(view)
    at = _INDEX.size
    end = at + count * sum(array(code).itemsize for code in POSITION_COLUMNS)
    if reserved or end + -end % ALIGNMENT != len(view) or any(view[end:]):
        return None
    columns: list[array[int]] = []
    for code in POSITION_COLUMNS:
        size = count * array(code).itemsize
        columns.append(_array(code, view[at : at + size]))
        at += size
    return columns


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def _array_bytes(numbers: array[int]) -> bytes:
    if _BIG_ENDIAN:
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _array(typecode: str, data: memoryview) -> array[int]:
    numbers: array[int] = array(typecode)
    numbers.frombytes(data)
    if _BIG_ENDIAN:
        numbers.byteswap()
    return numbers
