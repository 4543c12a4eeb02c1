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

The plain batch (no compression, no extensions, no flags, few entries) is the usual one and has a short way in and out
of its own, which takes a batch only if all is well with it; whatever else comes goes the long way, which says what is
wrong. numpy, pyarrow and zstandard are imported by the first batch that needs them: most processes never do.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum, IntFlag
from itertools import accumulate, pairwise
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from varlog import limits, types
from varlog.batch.extensions import decode_extensions, encode_extensions
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

if TYPE_CHECKING:
    import pyarrow as pa

Buffer = bytes | bytearray | memoryview

MAGIC: Final = int.from_bytes(b"VLRB", "little")
VERSION: Final = 1
HEADER: Final = struct.Struct("<IIIBBHIHHQQqII")
HEADER_BYTES: Final = HEADER.size

_CHECKED_FROM = 8
_PROLOGUE: Final = struct.Struct("<II")
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_PADDING: Final = tuple(bytes(-length % 8) for length in range(8))
_PAIR: Final = struct.Struct("<2i")

# Of a plain batch: version, codec and flags are one number; header_bytes and what is reserved another.
_PLAIN: Final = struct.Struct("<IIIIIIQQqII")
_SINGLE_CHECKED: Final = struct.Struct("<IIIIQQqIIii")
_SINGLE: Final = struct.Struct("<IIIIIIQQqIIii")
"""A plain header and the two offsets of one entry."""
_SMALL_BYTES: Final = 4096
"""Up to this a copy costs less than a view."""
_PLAIN_FORMAT: Final = VERSION
_PLAIN_BYTES: Final = limits.MAX_ENTRY_BYTES
"""No entry of a plain batch can be too large."""
_FEW: Final = 256
"""So many offsets are looked at faster as Python's numbers than as an array."""
_NO_EXTENSIONS: Final[Mapping[int, bytes]] = MappingProxyType({})
_new_tuple = tuple.__new__


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
    writer_id: types.WriterID
    sequence: types.Sequence
    timestamp: int
    body_bytes: int


class RecordBatch:
    """A decoded batch: a sequence of entries over the bytes it was decoded from, which must not change meanwhile."""

    __slots__ = ("_body", "_data_from", "extensions", "header")

    def __init__(self, header: BatchHeader, extensions: Mapping[int, bytes], body: memoryview) -> None:
        self.header = header
        self.extensions = extensions
        self._body = body
        self._data_from = _padded(4 * (header.count + 1))

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
        begin, end = _PAIR.unpack_from(self._body, 4 * (index % count))
        return bytes(self._body[self._data_from + begin : self._data_from + end])

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.to_list())

    def __repr__(self) -> str:
        h = self.header
        return f"<RecordBatch of {h.count}, writer {h.writer_id} sequence {h.sequence}, {h.length} bytes>"

    def to_list(self) -> list[bytes]:
        """The entries, copied."""
        offsets = struct.unpack_from(f"<{self.header.count + 1}i", self._body)
        data = bytes(self._body[self._data_from :])
        return [data[begin:end] for begin, end in pairwise(offsets)]

    def to_arrow(self) -> pa.BinaryArray:
        """The entries as a `pyarrow.BinaryArray` over the batch's own bytes; they live as long as the array."""
        return _arrow().binary_array(self._body, self.header.count, self._data_from)


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
    if type(entries) is list and len(entries) == 1 and not (codec or flags or extensions):
        single = encode_single(entries[0], writer_id, sequence, timestamp)
        if single is not None:
            return single
    if codec not in _KNOWN_CODECS:
        raise UnknownCodec(f"codec {codec} is none of {', '.join(f'{c.value} ({c.name})' for c in Codec)}")
    extension_bytes = encode_extensions(extensions, HEADER_BYTES) if extensions else b""
    header_bytes = HEADER_BYTES + len(extension_bytes)
    offsets, data = _arrow().parts_of(entries) if _is_arrow(entries) else _sequence_parts(entries)
    count = len(offsets) // 4 - 1
    data_bytes = _PAIR.unpack_from(offsets, 4 * count - 4)[1]
    body = [offsets, _PADDING[len(offsets) % 8], *data, _PADDING[data_bytes % 8]]
    body_bytes = _padded(len(offsets)) + _padded(data_bytes)
    if header_bytes + body_bytes > limits.MAX_BATCH_BYTES:
        raise BatchTooLarge(f"a batch of {header_bytes + body_bytes} bytes, at most {limits.MAX_BATCH_BYTES} are taken")
    stored = body_bytes
    if codec == Codec.ZSTD:
        from varlog.batch.zstd import compress  # noqa: PLC0415

        frame = compress(b"".join(body))
        if _padded(len(frame)) < body_bytes:
            stored = _padded(len(frame))
            body = [frame, _PADDING[len(frame) % 8]]
        else:
            codec = Codec.NONE
    try:
        header = HEADER.pack(
            MAGIC, 0, header_bytes + stored, VERSION, codec, flags, count, header_bytes, 0,
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
    if type(buf) is bytes and len(buf) <= _SMALL_BYTES and (header := _verify_single(buf)) is not None:
        return header
    view = _as_view(buf)
    return _verify_plain(view) or _open_verified(view)[0]


def decode(buf: Buffer, *, verified: bool = False) -> RecordBatch:
    """Open a batch for reading, without copying. `verified` promises that `verify` accepted these very bytes before."""
    view = _as_view(buf)
    if verified:
        return RecordBatch(*_open_trusted(view))
    header = _verify_plain(view)
    if header is not None:
        return RecordBatch(header, _NO_EXTENSIONS, view[HEADER_BYTES:])
    return RecordBatch(*_open_verified(view))


def _open_verified(view: memoryview) -> tuple[BatchHeader, Mapping[int, bytes], memoryview]:
    header, reserved = _parse(view)
    _check_length(header, view)
    stated = int.from_bytes(view[4:_CHECKED_FROM], "little")
    actual = crc32c(view[_CHECKED_FROM:])
    if actual != stated:
        raise ChecksumMismatch(f"the batch says crc32c {stated:#010x}, its bytes have {actual:#010x}")
    # Only now can an odd field be believed to be what the writer wrote, and not what a disk or a wire made of it.
    _check_header(header, reserved)
    extensions = decode_extensions(view[HEADER_BYTES : header.header_bytes])
    body = _body_of(header, view)
    _check_body(header, body)
    return header, extensions, body


def _open_trusted(view: memoryview) -> tuple[BatchHeader, Mapping[int, bytes], memoryview]:
    plain = _plain_header(view)
    if plain is not None:
        return plain, _NO_EXTENSIONS, view[HEADER_BYTES:]
    header = peek_header(view)
    _check_length(header, view)
    return header, decode_extensions(view[HEADER_BYTES : header.header_bytes]), _body_of(header, view)


# The plain batch


def encode_single(entry: Buffer, writer_id: int, sequence: int, timestamp: int) -> bytes | None:
    """A plain batch of one entry, made quickly; None if only `encode` can make it, or say why it cannot be made."""
    if type(entry) is not bytes or len(entry) > limits.MAX_ENTRY_BYTES:
        return None
    size = len(entry)
    body_bytes = 8 + size + -size % 8
    try:
        head = _SINGLE_CHECKED.pack(
            HEADER_BYTES + body_bytes, _PLAIN_FORMAT, 1, HEADER_BYTES, writer_id, sequence, timestamp, body_bytes,
            0, 0, size,
        )  # fmt: skip
    except struct.error:
        return None
    checked = b"".join((head, entry, _PADDING[size % 8]))
    return _PROLOGUE.pack(MAGIC, crc32c(checked)) + checked


def _verify_single(buf: bytes) -> BatchHeader | None:
    """As `_verify_plain`, for a small batch of one entry: what a writer that does not batch makes, by the thousand."""
    length = len(buf)
    if length < HEADER_BYTES + 8:
        return None
    (magic, stated, length_field, plain_format, count, header_bytes, writer_id, sequence, timestamp, body_bytes,
     reserved, begin, end) = _SINGLE.unpack_from(buf)  # fmt: skip
    data_end = HEADER_BYTES + 8 + end
    if (
        magic != MAGIC
        or count != 1
        or length_field != length
        or plain_format != _PLAIN_FORMAT
        or header_bytes != HEADER_BYTES
        or HEADER_BYTES + body_bytes != length
        or reserved
        or begin
        or end < 0
        or data_end + -data_end % 8 != length
        or crc32c(buf[_CHECKED_FROM:]) != stated
        or buf[data_end:] != _PADDING[end % 8]
    ):
        return None
    header = (length, VERSION, 0, 0, 1, HEADER_BYTES, writer_id, sequence, timestamp, body_bytes)
    return _new_tuple(BatchHeader, header)


def _plain_header(view: memoryview) -> BatchHeader | None:
    """The header of a plain batch, every field of which is as it should be; None says nothing about what it is
    instead."""
    length = len(view)
    if length < HEADER_BYTES + 8:
        return None
    (magic, _, length_field, plain_format, count, header_bytes, writer_id, sequence, timestamp, body_bytes,
     reserved) = _PLAIN.unpack_from(view)  # fmt: skip
    if (
        magic != MAGIC
        or plain_format != _PLAIN_FORMAT
        or header_bytes != HEADER_BYTES
        or reserved
        or not 0 < count <= _FEW
        or length_field != length
        or length > _PLAIN_BYTES
        or HEADER_BYTES + body_bytes != length
        or body_bytes < 4 * count + 4
        or body_bytes % 8
    ):
        return None
    header = (length, VERSION, 0, 0, count, HEADER_BYTES, writer_id, sequence, timestamp, body_bytes)
    return _new_tuple(BatchHeader, header)


def _verify_plain(view: memoryview) -> BatchHeader | None:
    """The header of a plain batch that is sound in every respect; None says nothing about what it is instead."""
    header = _plain_header(view)
    if header is None or crc32c(view[_CHECKED_FROM:]) != _PROLOGUE.unpack_from(view)[1]:
        return None
    count = header[4]
    if count == 1:
        begin, end = _PAIR.unpack_from(view, HEADER_BYTES)
        data_from = HEADER_BYTES + 8
    else:
        offsets = struct.unpack_from(f"<{count + 1}i", view, HEADER_BYTES)
        begin, end = offsets[0], offsets[-1]
        data_from = HEADER_BYTES + _padded(4 * count + 4)
        if sorted(offsets) != [*offsets] or (not count % 2 and view[data_from - 4 : data_from] != _PADDING[4]):
            return None
    data_end = data_from + end
    if begin or end < 0 or data_end + -data_end % 8 != header[0] or view[data_end:] != _PADDING[end % 8]:
        return None
    return header


# Entries in


def _padded(length: int) -> int:
    return length + -length % 8


def _is_arrow(entries: object) -> bool:
    """Whether it is a column; if nobody imported pyarrow it cannot be one."""
    return type(entries) is not list and "pyarrow" in sys.modules and _arrow().is_column(entries)


def _arrow() -> ModuleType:
    from varlog.batch import arrow  # noqa: PLC0415

    return arrow


def _sequence_parts(entries: Sequence[Buffer]) -> tuple[bytes, Sequence[Buffer]]:
    """The offsets and the bytes of plain entries."""
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
    offsets = list(accumulate(map(len, entries), initial=0))
    total = offsets[-1]
    if total > limits.MAX_ENTRY_BYTES and (largest := max(map(len, entries))) > limits.MAX_ENTRY_BYTES:
        raise EntryTooLarge(f"an entry of {largest} bytes, at most {limits.MAX_ENTRY_BYTES} are taken")
    if total > limits.MAX_BATCH_BYTES:
        raise BatchTooLarge(f"entries of {total} bytes; a batch has at most {limits.MAX_BATCH_BYTES}")
    return struct.pack(f"<{count + 1}i", *offsets), entries


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


# Body


def _body_of(header: BatchHeader, view: memoryview) -> memoryview:
    body = view[header.header_bytes :]
    if header.codec == Codec.NONE:
        return body
    from varlog.batch.zstd import decompress  # noqa: PLC0415

    return decompress(body, header.body_bytes)


def _check_body(header: BatchHeader, body: memoryview) -> None:
    """Every entry lies inside the data, in order, and all padding is zero."""
    import numpy as np  # noqa: PLC0415

    offsets = np.frombuffer(body, "<i4", header.count + 1)
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
