"""The record batch: the unit of everything.

A client packs entries into a record batch once. The same bytes cross the wire, lie on disk, go to the backups, reach
the reader and become an Arrow column; nobody in between takes them apart or writes them anew. What a server decides
about a batch (its LLSN, its epoch) stands in the storage frame around it, never in it.

Layout, little-endian, every part padded with zeros to a multiple of 8:

    offset  0  magic          u32
            4  crc32c         u32   over all that follows, to the end of the batch
            8  length         u32   of the whole batch
           12  version        u8    of this format
           13  codec          u8    of the body: see `Codec`
           14  flags          u16   see `BatchFlag`
           16  count          u32   entries, at least 1
           20  header_bytes   u16   56 + extensions: where the body begins
           22  reserved       u16   0
           24  writer_id      u64   who wrote it, and
           32  sequence       u64   where it stands among all that writer wrote: a retry carries the same two
           40  timestamp      i64   the writer's clock, microseconds; data, not order
           48  body_bytes     u32   length of the body before compression
           52  reserved       u32   0
           56  extensions           each: tag u16 (from 1, ascending), length u16, bytes
               body                 offsets int32[count + 1] from 0, then the entries' bytes one after another

The body is Arrow's own layout of a binary column, so a column over it copies nothing. With zstd the body is one zstd
frame that declares its content size. A reader skips extensions it does not know; it refuses versions, flags and codecs
it does not know.

What must always hold:

- Whatever bytes come in, `peek_header`, `verify` and `decode` return or raise a `VarlogError`, nothing else, and take
  no memory for a length before it was held against `varlog.limits`.
- A batch that passed `verify` has its writer's bytes, and every entry lies inside of it.
- The work per entry is done in C.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum, IntFlag
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zstandard
from crc32c import crc32c

from varlog import limits
from varlog.errors import (
    BatchTooLarge,
    ChecksumMismatch,
    EmptyBatch,
    EntryTooLarge,
    InvalidArgument,
    MalformedBatch,
    UnknownCodec,
    UnsupportedFormat,
)

Buffer = bytes | bytearray | memoryview

MAGIC: Final = int.from_bytes(b"VLRB", "little")
VERSION: Final = 1
HEADER: Final = struct.Struct("<IIIBBHIHHQQqII")
HEADER_BYTES: Final = HEADER.size

_CHECKED_FROM = 8
_PROLOGUE: Final = struct.Struct("<II")
_EXTENSION: Final = struct.Struct("<HH")
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_OFFSET_TYPES: Final[Mapping[pa.DataType, np.dtype[np.signedinteger]]] = {
    pa.binary(): np.dtype(np.int32),
    pa.large_binary(): np.dtype(np.int64),
}
_PADDING: Final = tuple(bytes(-length % 8) for length in range(8))


class Codec(IntEnum):
    """How the body is compressed."""

    NONE = 0
    ZSTD = 1


class BatchFlag(IntFlag):
    """What a batch is, when it is not a writer's data."""

    JUNK = 1
    CONTROL = 2


_KNOWN_FLAGS = int(BatchFlag.JUNK | BatchFlag.CONTROL)
_KNOWN_CODECS = frozenset(int(codec) for codec in Codec)


class BatchHeader(NamedTuple):
    """The fixed part of a batch's header, as it stands there."""

    length: int
    version: int
    codec: int
    flags: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses here
    header_bytes: int
    writer_id: int
    sequence: int
    timestamp: int
    body_bytes: int


class RecordBatch:
    """A decoded batch: a sequence of entries over the bytes it was decoded from, which must not change meanwhile."""

    __slots__ = ("_body", "_data", "_offsets", "extensions", "header")

    def __init__(self, header: BatchHeader, extensions: Mapping[int, bytes], body: memoryview) -> None:
        self.header = header
        self.extensions = extensions
        self._body = body
        self._offsets = _offsets_of(body, header.count)
        self._data = body[_padded(4 * (header.count + 1)) :]

    @property
    def count(self) -> int:
        return self.header.count

    @property
    def writer_id(self) -> int:
        return self.header.writer_id

    @property
    def sequence(self) -> int:
        return self.header.sequence

    @property
    def timestamp(self) -> int:
        return self.header.timestamp

    @property
    def flags(self) -> int:
        return self.header.flags

    def __len__(self) -> int:
        return self.header.count

    def __getitem__(self, index: int) -> bytes:
        count = self.header.count
        if not -count <= index < count:
            raise IndexError(f"entry {index} of a batch of {count}")
        index %= count
        return bytes(self._data[self._offsets[index] : self._offsets[index + 1]])

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.to_list())

    def __repr__(self) -> str:
        h = self.header
        return f"<RecordBatch of {h.count}, writer {h.writer_id} sequence {h.sequence}, {h.length} bytes>"

    def to_list(self) -> list[bytes]:
        """The entries, copied."""
        offsets = self._offsets.tolist()
        data = bytes(self._data)
        return [data[begin:end] for begin, end in pairwise(offsets)]

    def to_arrow(self) -> pa.BinaryArray:
        """The entries as a `pyarrow.BinaryArray` over the batch's own bytes; they live as long as the array."""
        body = pa.py_buffer(self._body)
        data_from = len(self._body) - len(self._data)
        columns = [None, body.slice(0, data_from), body.slice(data_from)]
        return pa.BinaryArray.from_buffers(pa.binary(), self.header.count, columns, null_count=0)


def encode(
    entries: Sequence[Buffer] | pa.Array | pa.ChunkedArray,
    *,
    writer_id: int = 0,
    sequence: int = 0,
    timestamp: int = 0,
    codec: int = Codec.NONE,
    flags: int = 0,
    extensions: Mapping[int, bytes] | None = None,
) -> bytes:
    """Pack entries into a record batch.

    `entries` are bytes-like objects, or a `pyarrow` array of type binary or large_binary without nulls. A body that
    zstd does not make smaller is left as it is.
    """
    if codec not in _KNOWN_CODECS:
        raise UnknownCodec(f"codec {codec} is none of {', '.join(f'{c.value} ({c.name})' for c in Codec)}")
    extension_bytes = _encode_extensions(extensions) if extensions else b""
    header_bytes = HEADER_BYTES + len(extension_bytes)
    if isinstance(entries, pa.Array | pa.ChunkedArray):
        sizes, parts = _arrow_parts(entries)
    else:
        sizes, parts = _sequence_parts(entries)
    count = len(sizes)
    data_bytes = _check_sizes(sizes, header_bytes)

    offsets = np.zeros(count + 1 + (count + 1) % 2, dtype="<i4")
    np.cumsum(sizes, out=offsets[1 : count + 1])
    body = [offsets.data, *parts, _PADDING[data_bytes % 8]]
    body_bytes = offsets.nbytes + _padded(data_bytes)
    stored = body_bytes
    if codec == Codec.ZSTD:
        frame = zstandard.ZstdCompressor().compress(b"".join(body))
        if _padded(len(frame)) < body_bytes:
            stored = _padded(len(frame))
            body = [frame, _PADDING[len(frame) % 8]]
        else:
            codec = Codec.NONE
    length = header_bytes + stored
    try:
        header = HEADER.pack(
            MAGIC, 0, length, VERSION, codec, flags, count, header_bytes, 0,
            writer_id, sequence, timestamp, body_bytes, 0,
        )  # fmt: skip
    except struct.error as e:
        raise InvalidArgument(f"writer id, sequence, timestamp or flags do not fit the batch header: {e}") from None
    if flags & ~_KNOWN_FLAGS:
        raise InvalidArgument(f"flags {flags:#x} include unknown ones")
    checked = b"".join([header[_CHECKED_FROM:], extension_bytes, *body])
    return _PROLOGUE.pack(MAGIC, crc32c(checked)) + checked


def peek_header(buf: Buffer) -> BatchHeader:
    """Read the header at the start of `buf`, which may hold less than the batch, or more.

    Magic, version, lengths and limits are checked; that the bytes are undamaged is not.
    """
    header, reserved = _parse(buf)
    _check_header(header, reserved)
    return header


def verify(buf: Buffer) -> BatchHeader:
    """Check all of a batch: checksum, structure, and that every entry lies inside. `buf` is that batch and no more."""
    header, _, _ = _open_verified(buf)
    return header


def decode(buf: Buffer, *, verified: bool = False) -> RecordBatch:
    """Open a batch for reading, without copying. `verified` promises that `verify` accepted these very bytes before."""
    header, extensions, body = _open_trusted(buf) if verified else _open_verified(buf)
    return RecordBatch(header, extensions, body)


def _open_verified(buf: Buffer) -> tuple[BatchHeader, Mapping[int, bytes], memoryview]:
    view = _as_view(buf)
    header, reserved = _parse(view)
    _check_length(header, view)
    stated = int.from_bytes(view[4:_CHECKED_FROM], "little")
    actual = crc32c(view[_CHECKED_FROM:])
    if actual != stated:
        raise ChecksumMismatch(f"the batch says crc32c {stated:#010x}, its bytes have {actual:#010x}")
    # Only now can an odd field be believed to be what the writer wrote, and not what a disk or a wire made of it.
    _check_header(header, reserved)
    extensions = _decode_extensions(header, view)
    body = _body_of(header, view)
    _check_body(header, body)
    return header, extensions, body


def _open_trusted(buf: Buffer) -> tuple[BatchHeader, Mapping[int, bytes], memoryview]:
    view = _as_view(buf)
    header = peek_header(view)
    _check_length(header, view)
    return header, _decode_extensions(header, view), _body_of(header, view)


# Sizes


def _padded(length: int) -> int:
    return length + -length % 8


def _check_sizes(sizes: npt.NDArray[np.int64], header_bytes: int) -> int:
    """Hold what is to be encoded against the limits; returns the bytes of all entries."""
    count = len(sizes)
    if count > limits.MAX_BATCH_ENTRIES:
        raise BatchTooLarge(f"{count} entries, at most {limits.MAX_BATCH_ENTRIES} make a batch")
    data_bytes = int(sizes.sum())
    if data_bytes > limits.MAX_ENTRY_BYTES and (largest := int(sizes.max())) > limits.MAX_ENTRY_BYTES:
        raise EntryTooLarge(f"an entry of {largest} bytes, at most {limits.MAX_ENTRY_BYTES} are taken")
    length = header_bytes + _padded(4 * (count + 1)) + _padded(data_bytes)
    if length > limits.MAX_BATCH_BYTES:
        raise BatchTooLarge(f"a batch of {length} bytes, at most {limits.MAX_BATCH_BYTES} are taken")
    return data_bytes


# Entries in


def _sequence_parts(entries: Sequence[Buffer]) -> tuple[npt.NDArray[np.int64], Sequence[Buffer]]:
    """The sizes and the bytes of plain entries."""
    try:
        count = len(entries)
        if count == 0:
            raise EmptyBatch("a batch needs at least one entry")
        if count > limits.MAX_BATCH_ENTRIES:
            raise BatchTooLarge(f"{count} entries, at most {limits.MAX_BATCH_ENTRIES} make a batch")
        if set(map(type, entries)) != {bytes}:
            # The length of a memoryview counts its items, which need not be bytes.
            entries = [memoryview(entry).tobytes() for entry in entries]
    except TypeError as e:
        raise InvalidArgument(f"entries are a sequence of bytes-like objects or a pyarrow array: {e}") from None
    return np.fromiter(map(len, entries), np.int64, count), entries


def _arrow_parts(array: pa.Array | pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], Sequence[Buffer]]:
    """The sizes and the bytes of a binary column; the bytes are the column's own."""
    if array.type not in _OFFSET_TYPES:
        raise InvalidArgument(f"a column of type {array.type}; cast it to binary")
    dtype = _OFFSET_TYPES[array.type]
    try:
        # A column read from a file or another process is only as good as its bytes.
        array.validate(full=True)
    except pa.ArrowInvalid as e:
        raise InvalidArgument(f"the column contradicts itself: {e}") from None
    if array.null_count:
        raise InvalidArgument(f"{array.null_count} entries are null; an entry is bytes, of which there may be none")
    if len(array) == 0:
        raise EmptyBatch("a batch needs at least one entry")
    sizes: list[npt.NDArray[np.int64]] = []
    parts: list[Buffer] = []
    for chunk in array.chunks if isinstance(array, pa.ChunkedArray) else [array]:
        if len(chunk):
            _, offset_buffer, data_buffer = chunk.buffers()
            offsets = np.frombuffer(offset_buffer, dtype, len(chunk) + 1, chunk.offset * dtype.itemsize)
            sizes.append(np.diff(offsets).astype(np.int64, copy=False))
            parts.append(memoryview(data_buffer)[offsets[0] : offsets[-1]])
    return np.concatenate(sizes), parts


# Header


def _as_view(buf: Buffer) -> memoryview:
    view = memoryview(buf)
    if view.itemsize != 1 or view.ndim != 1 or not view.c_contiguous:
        raise InvalidArgument("a batch is read from contiguous bytes")
    return view


def _parse(buf: Buffer) -> tuple[BatchHeader, int]:
    """Take the header apart; what is needed to know its extent is checked, and no more."""
    if len(buf) < HEADER_BYTES:
        raise MalformedBatch(f"{len(buf)} bytes are less than a batch header ({HEADER_BYTES})")
    (magic, _, length, version, codec, flags, count, header_bytes, reserved, writer_id, sequence, timestamp, body_bytes,
     reserved_too) = HEADER.unpack_from(buf)  # fmt: skip
    if magic != MAGIC:
        raise MalformedBatch(f"magic {magic:#010x} is not that of a record batch")
    if version != VERSION:
        raise UnsupportedFormat(f"a batch of format version {version}; this release reads version {VERSION}")
    if length > limits.MAX_BATCH_BYTES:
        raise BatchTooLarge(f"a batch of {length} bytes, at most {limits.MAX_BATCH_BYTES} are taken")
    if length % 8 or length < HEADER_BYTES:
        raise MalformedBatch(f"a batch cannot be {length} bytes long")
    header = BatchHeader(
        length, version, codec, flags, count, header_bytes, writer_id, sequence, timestamp, body_bytes
    )  # fmt: skip
    return header, reserved | reserved_too


def _check_length(header: BatchHeader, view: memoryview) -> None:
    if header.length != len(view):
        raise MalformedBatch(f"a batch of {header.length} bytes in {len(view)}")


def _check_header(header: BatchHeader, reserved: int) -> None:
    """Check what the fields say of each other and of the limits."""
    if header.codec not in _KNOWN_CODECS:
        raise UnknownCodec(f"the batch is compressed by codec {header.codec}, unknown to this release")
    if header.flags & ~_KNOWN_FLAGS:
        raise UnsupportedFormat(f"the batch has flags {header.flags:#x}, some unknown to this release")
    if reserved:
        raise MalformedBatch("reserved bytes of the header are not zero")
    if header.count == 0:
        raise EmptyBatch("the batch has no entries")
    if header.count > limits.MAX_BATCH_ENTRIES:
        raise BatchTooLarge(f"{header.count} entries, at most {limits.MAX_BATCH_ENTRIES} make a batch")
    if header.body_bytes > limits.MAX_BATCH_BYTES:
        raise BatchTooLarge(f"a body of {header.body_bytes} bytes, at most {limits.MAX_BATCH_BYTES} are taken")
    header_bytes = header.header_bytes
    if header_bytes % 8 or not HEADER_BYTES <= header_bytes <= min(header.length, limits.MAX_BATCH_HEADER_BYTES):
        raise MalformedBatch(f"a batch header cannot be {header_bytes} bytes long")
    if header.body_bytes % 8 or header.body_bytes < _padded(4 * (header.count + 1)):
        raise MalformedBatch(f"{header.body_bytes} bytes cannot hold {header.count} entries")
    if header.codec == Codec.NONE and header_bytes + header.body_bytes != header.length:
        raise MalformedBatch("header and body do not add up to the batch's length")


def _encode_extensions(extensions: Mapping[int, bytes]) -> bytes:
    parts: list[bytes] = []
    size = HEADER_BYTES
    for tag, value in sorted(extensions.items()):
        size += _padded(_EXTENSION.size + len(value))
        if size > limits.MAX_BATCH_HEADER_BYTES:
            raise InvalidArgument(f"extensions make the header longer than {limits.MAX_BATCH_HEADER_BYTES} bytes")
        if not 0 < tag <= 0xFFFF:
            raise InvalidArgument(f"extension tag {tag} is not in 1..65535")
        parts += (_EXTENSION.pack(tag, len(value)), value, _PADDING[(_EXTENSION.size + len(value)) % 8])
    return b"".join(parts)


def _decode_extensions(header: BatchHeader, view: memoryview) -> Mapping[int, bytes]:
    extensions: dict[int, bytes] = {}
    at, end, last = HEADER_BYTES, header.header_bytes, 0
    while at < end:
        tag, length = _EXTENSION.unpack_from(view, at)
        begin = at + _EXTENSION.size
        at = _padded(begin + length)
        if tag <= last or at > end or any(view[begin + length : at]):
            raise MalformedBatch(f"extension {tag} is out of order, too long, or not padded with zeros")
        extensions[tag] = bytes(view[begin : begin + length])
        last = tag
    return extensions


# Body


def _body_of(header: BatchHeader, view: memoryview) -> memoryview:
    body = view[header.header_bytes :]
    return body if header.codec == Codec.NONE else _decompress(header, body)


def _decompress(header: BatchHeader, stored: memoryview) -> memoryview:
    """The body out of its zstd frame. Memory is taken only for a size within the limits, stated twice alike."""
    try:
        frame = zstandard.get_frame_parameters(stored)
        if frame.content_size != header.body_bytes or frame.window_size > limits.MAX_BATCH_BYTES:
            raise MalformedBatch("the zstd frame's declared size is not the batch's")
        end = _zstd_frame_end(stored, frame.has_checksum)
        if _padded(end) != len(stored) or any(stored[end:]):
            raise MalformedBatch("the zstd frame is not followed by zero padding alone")
        return memoryview(zstandard.ZstdDecompressor().decompress(stored[:end], allow_extra_data=False))
    except zstandard.ZstdError as e:
        raise MalformedBatch(f"the zstd frame cannot be read: {e}") from None


def _zstd_frame_end(stored: memoryview, has_checksum: bool) -> int:
    """Where the frame ends and padding begins: zstd frames may end in zeros, so only its block headers tell."""
    if stored[:4] != _ZSTD_MAGIC:
        raise MalformedBatch("the body is not a zstd frame")
    at = zstandard.frame_header_size(stored)
    last = 0
    while not last:
        if at + 3 > len(stored):
            raise MalformedBatch("the zstd frame is cut off")
        block = int.from_bytes(stored[at : at + 3], "little")
        last, kind, size = block & 1, block >> 1 & 3, block >> 3
        at += 3 + (1 if kind == 1 else size)
    return at + 4 * has_checksum


def _offsets_of(body: memoryview, count: int) -> npt.NDArray[np.int32]:
    return np.frombuffer(body, "<i4", count + 1)


def _check_body(header: BatchHeader, body: memoryview) -> None:
    """Every entry lies inside the data, in order, and all padding is zero."""
    offsets = _offsets_of(body, header.count)
    offsets_end = 4 * (header.count + 1)
    data_from = _padded(offsets_end)
    data_end = data_from + int(offsets[-1])
    if offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
        raise MalformedBatch("offsets do not begin at 0 or go backwards")
    if _padded(data_end) != header.body_bytes:
        raise MalformedBatch(f"entries of {int(offsets[-1])} bytes do not fill a body of {header.body_bytes}")
    if any(body[offsets_end:data_from]) or any(body[data_end:]):
        raise MalformedBatch("padding is not zero")
    if data_end > limits.MAX_ENTRY_BYTES and (largest := int(np.diff(offsets).max())) > limits.MAX_ENTRY_BYTES:
        raise EntryTooLarge(f"an entry of {largest} bytes, at most {limits.MAX_ENTRY_BYTES} are taken")
