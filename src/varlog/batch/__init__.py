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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from varlog import limits
from varlog.batch.extensions import decode_extensions, encode_extensions
from varlog.batch.header import (
    CHECKED_FROM,
    HEADER,
    HEADER_BYTES,
    KNOWN_CODECS,
    KNOWN_FLAGS,
    MAGIC,
    PADDING,
    PAIR,
    PROLOGUE,
    VERSION,
    BatchFlag,
    BatchHeader,
    Buffer,
    Codec,
    check_header,
    padded,
    parse,
    peek_header,
)
from varlog.batch.plain import (
    SMALL_BYTES,
    encode_marked_single,
    encode_single,
    plain_extensions,
    plain_header,
    verify_plain,
    verify_singles,
)
from varlog.errors import (
    BatchTooLarge,
    ChecksumMismatch,
    EmptyBatch,
    EntryTooLarge,
    InvalidArgument,
    MalformedBatch,
    UnknownCodec,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "HEADER",
    "HEADER_BYTES",
    "MAGIC",
    "VERSION",
    "BatchFlag",
    "BatchHeader",
    "Buffer",
    "Codec",
    "RecordBatch",
    "decode",
    "encode",
    "encode_extensions",
    "encode_marked_single",
    "encode_single",
    "entry_of",
    "peek_header",
    "verify",
    "verify_all",
]

_SINGLE_FROM: Final = HEADER_BYTES + PAIR.size
"""Where the only entry of a plain batch begins."""


class RecordBatch:
    """A decoded batch: a sequence of entries over the bytes it was decoded from, which must not change meanwhile."""

    __slots__ = ("_body", "_data_from", "extensions", "header")

    def __init__(self, header: BatchHeader, extensions: Mapping[int, bytes], body: memoryview) -> None:
        self.header = header
        self.extensions = extensions
        self._body = body
        self._data_from = padded(4 * (header.count + 1))

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
        begin, end = PAIR.unpack_from(self._body, 4 * (index % count))
        return bytes(self._body[self._data_from + begin : self._data_from + end])

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.to_list())

    def __repr__(self) -> str:
        h = self.header
        return f"<RecordBatch of {h.count}, writer {h.writer_id} sequence {h.sequence}, {h.length} bytes>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, and what is sent to other processes, have bytes of their own."""
        return _reopen, (self.header, dict(self.extensions), bytes(self._body))

    def to_list(self) -> list[bytes]:
        """The entries, copied."""
        offsets = struct.unpack_from(f"<{self.header.count + 1}i", self._body)
        data = bytes(self._body[self._data_from :])
        return [data[begin:end] for begin, end in pairwise(offsets)]

    def to_arrow(self) -> pa.BinaryArray:
        """The entries as a `pyarrow.BinaryArray` over the batch's own bytes; they live as long as the array."""
        return _arrow().binary_array(self._body, self.header.count, self._data_from)

    @staticmethod
    def join(parts: Iterable[tuple[RecordBatch, int, int]]) -> pa.BinaryArray:
        """One column of entries of several batches, copied: of each the batch, the first of them, and how many."""
        return _arrow().joined_array([(it._body, it._data_from, first, count) for it, first, count in parts])


def _reopen(header: BatchHeader, extensions: Mapping[int, bytes], body: bytes) -> RecordBatch:
    return RecordBatch(header, extensions, memoryview(body))


def encode(
    entries: Sequence[Buffer] | pa.Array | pa.ChunkedArray,
    *,
    writer_id: int = 0,
    sequence: int = 0,
    timestamp: int = 0,
    codec: int = Codec.NONE,
    flags: int = 0,
    extensions: Mapping[int, bytes] | bytes | None = None,
) -> bytes:
    """Pack entries into a record batch.

    `entries` are bytes-like objects, or a `pyarrow` array of type binary or large_binary without nulls. A body that
    zstd does not make smaller is left as it is. Extensions that many batches have may be given as `encode_extensions`
    made them.
    """
    if type(entries) is list and len(entries) == 1 and not (codec or flags or extensions):
        single = encode_single(entries[0], writer_id, sequence, timestamp)
        if single is not None:
            return single
    if codec not in KNOWN_CODECS:
        raise UnknownCodec(f"codec {codec} is none of {', '.join(f'{c.value} ({c.name})' for c in Codec)}")
    extension_bytes = extensions or b""
    if not isinstance(extension_bytes, bytes):
        extension_bytes = encode_extensions(extension_bytes, HEADER_BYTES)
    header_bytes = HEADER_BYTES + len(extension_bytes)
    offsets, data = _arrow().parts_of(entries) if _is_arrow(entries) else _sequence_parts(entries)
    count = len(offsets) // 4 - 1
    data_bytes = PAIR.unpack_from(offsets, 4 * count - 4)[1]
    body = [offsets, PADDING[len(offsets) % 8], *data, PADDING[data_bytes % 8]]
    body_bytes = padded(len(offsets)) + padded(data_bytes)
    if header_bytes + body_bytes > limits.MAX_BATCH_BYTES:
        raise BatchTooLarge(f"a batch of {header_bytes + body_bytes} bytes, at most {limits.MAX_BATCH_BYTES} are taken")
    stored = body_bytes
    if codec == Codec.ZSTD:
        from varlog.batch.zstd import compress  # noqa: PLC0415

        frame = compress(b"".join(body))
        if padded(len(frame)) < body_bytes:
            stored = padded(len(frame))
            body = [frame, PADDING[len(frame) % 8]]
        else:
            codec = Codec.NONE
    try:
        header = HEADER.pack(
            MAGIC, 0, header_bytes + stored, VERSION, codec, flags, count, header_bytes, 0,
            writer_id, sequence, timestamp, body_bytes, 0,
        )  # fmt: skip
    except struct.error as e:
        raise InvalidArgument(f"writer id, sequence, timestamp or flags do not fit the batch header: {e}") from None
    if flags & ~KNOWN_FLAGS:
        raise InvalidArgument(f"flags {flags:#x} include unknown ones")
    checked = b"".join([header[CHECKED_FROM:], extension_bytes, *body])
    return PROLOGUE.pack(MAGIC, crc32c(checked)) + checked


def verify(buf: Buffer) -> BatchHeader:
    """Check all of a batch: checksum, structure, and that every entry lies inside. `buf` is that batch and no more."""
    return verify_singles((buf,), _verify_other)[0]


def verify_all(bufs: Iterable[Buffer]) -> list[BatchHeader]:
    """As `verify` of one after another, in less time."""
    return verify_singles(bufs, _verify_other)


def _verify_other(buf: Buffer) -> BatchHeader:
    view = _as_view(buf)
    return verify_plain(view) or _open_verified(view)[0]


def decode(buf: Buffer, *, verified: bool = False) -> RecordBatch:
    """Open a batch for reading, without copying. `verified` promises that `verify` accepted these very bytes before."""
    view = _as_view(buf)
    if verified:
        return RecordBatch(*_open_trusted(view))
    header = verify_plain(view)
    if header is not None:
        return RecordBatch(header, plain_extensions(header, view), view[header[5] :])
    return RecordBatch(*_open_verified(view))


def _no_header(_buf: Buffer) -> None: ...


def entry_of(buf: Buffer, number: int, count: int) -> tuple[BatchHeader, bytes]:
    """The header of a batch that must have so many entries, and one of them; all of it is verified."""
    if count == 1 and len(buf) <= SMALL_BYTES:
        copied = bytes(buf)
        (header,) = verify_singles((copied,), _no_header)
        if header is not None:
            return header, copied[_SINGLE_FROM : _SINGLE_FROM + PAIR.unpack_from(copied, HEADER_BYTES)[1]]
    opened = decode(buf)
    if opened.header.count != count:
        raise MalformedBatch(f"a batch of {opened.header.count} entries where there should be {count}")
    return opened.header, opened[number]


def _open_verified(view: memoryview) -> tuple[BatchHeader, Mapping[int, bytes], memoryview]:
    header, reserved = parse(view)
    _check_length(header, view)
    stated = int.from_bytes(view[4:CHECKED_FROM], "little")
    actual = crc32c(view[CHECKED_FROM:])
    if actual != stated:
        raise ChecksumMismatch(f"the batch says crc32c {stated:#010x}, its bytes have {actual:#010x}")
    # Only now can an odd field be believed to be what the writer wrote, and not what a disk or a wire made of it.
    check_header(header, reserved)
    extensions = decode_extensions(view[HEADER_BYTES : header.header_bytes])
    body = _body_of(header, view)
    _check_body(header, body)
    return header, extensions, body


def _open_trusted(view: memoryview) -> tuple[BatchHeader, Mapping[int, bytes], memoryview]:
    plain = plain_header(view)
    if plain is not None:
        return plain, plain_extensions(plain, view), view[plain[5] :]
    header = peek_header(view)
    _check_length(header, view)
    return header, decode_extensions(view[HEADER_BYTES : header.header_bytes]), _body_of(header, view)


def _as_view(buf: Buffer) -> memoryview:
    view = memoryview(buf)
    if view.itemsize != 1 or view.ndim != 1 or not view.c_contiguous:
        raise InvalidArgument("a batch is read from contiguous bytes")
    return view


def _check_length(header: BatchHeader, view: memoryview) -> None:
    if header.length != len(view):
        raise MalformedBatch(f"a batch of {header.length} bytes in {len(view)}")


# Entries in


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
    data_from = padded(offsets_end)
    data_end = data_from + int(offsets[-1])
    if offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
        raise MalformedBatch("offsets do not begin at 0 or go backwards")
    if padded(data_end) != header.body_bytes:
        raise MalformedBatch(f"entries of {int(offsets[-1])} bytes do not fill a body of {header.body_bytes}")
    if any(body[offsets_end:data_from]) or any(body[data_end:]):
        raise MalformedBatch("padding is not zero")
    if data_end > limits.MAX_ENTRY_BYTES and (largest := int(np.diff(offsets).max())) > limits.MAX_ENTRY_BYTES:
        raise EntryTooLarge(f"an entry of {largest} bytes, at most {limits.MAX_ENTRY_BYTES} are taken")
