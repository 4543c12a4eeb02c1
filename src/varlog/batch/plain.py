"""The plain batch's short way in and out.

A plain batch has no compression, no extensions, no flags and few entries, which is the usual kind; one of a transaction
that is plain but for its mark goes the same way, and so does a verdict. What is here takes one only if all is well with
it: whoever is told None goes the long way, which says what is wrong or takes what is here is too simple for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from crc32c import crc32c

from varlog import limits
from varlog.batch.header import (
    CHECKED_FROM,
    HEADER_BYTES,
    MAGIC,
    PADDING,
    PAIR,
    PROLOGUE,
    VERSION,
    BatchFlag,
    BatchHeader,
    Buffer,
    padded,
)
from varlog.batch.transactions import MARK_BYTES, MARK_TAG
from varlog.tuples import new_tuple

# Version, codec and flags are read as one number; header_bytes and what is reserved as another.
_PLAIN: Final = struct.Struct("<IIIIIIQQqII")
_CHECKED: Final = struct.Struct("<IIIIQQqII")
_SINGLE_CHECKED: Final = struct.Struct("<IIIIQQqIIii")
_SINGLE: Final = struct.Struct("<III12sQQqIQi")
"""A plain header and the two offsets of one entry: what is the same in all such batches is read as one."""
SMALL_BYTES: Final = 4096
"""Up to this a copy costs less than a view."""
_PLAIN_FORMAT: Final = VERSION
_SINGLE_FORMAT: Final = struct.pack("<III", _PLAIN_FORMAT, 1, HEADER_BYTES)
_EXTENSION: Final = struct.Struct("<HH32s4s")
_MARK: Final = (MARK_TAG, MARK_BYTES)
MARKED_BYTES: Final = HEADER_BYTES + _EXTENSION.size
"""The header of a batch that has a mark and no other extension."""
_MARKED_FORMAT: Final = VERSION | BatchFlag.TRANSACTION << 16
_FORMATS: Final = {
    VERSION | flags << 16: (flags, header_bytes)
    for flags, header_bytes in (
        (0, HEADER_BYTES),
        (int(BatchFlag.CONTROL), HEADER_BYTES),
        (int(BatchFlag.TRANSACTION), MARKED_BYTES),
    )
}
_PLAIN_BYTES: Final = limits.MAX_ENTRY_BYTES
"""No entry of a plain batch can be too large."""
_FEW: Final = 256
"""So many offsets are looked at faster as Python's numbers than as an array."""
_T = TypeVar("_T")
_NO_EXTENSIONS: Final[Mapping[int, bytes]] = MappingProxyType({})


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
    checked = b"".join((head, entry, PADDING[size % 8]))
    return PROLOGUE.pack(MAGIC, crc32c(checked)) + checked


def encode_marked_single(
    entry: Buffer, writer_id: int, sequence: int, timestamp: int, extension: bytes
) -> bytes | None:
    """The same of a transaction; `extension` is its mark, as `encode_extensions` made it."""
    if type(entry) is not bytes or len(entry) > limits.MAX_ENTRY_BYTES or len(extension) != _EXTENSION.size:
        return None
    size = len(entry)
    body_bytes = 8 + size + -size % 8
    try:
        head = _CHECKED.pack(
            MARKED_BYTES + body_bytes, _MARKED_FORMAT, 1, MARKED_BYTES, writer_id, sequence, timestamp, body_bytes, 0
        )
    except struct.error:
        return None
    checked = b"".join((head, extension, PAIR.pack(0, size), entry, PADDING[size % 8]))
    return PROLOGUE.pack(MAGIC, crc32c(checked)) + checked


def verify_singles(bufs: Iterable[Buffer], other: Callable[[Buffer], _T]) -> list[BatchHeader | _T]:
    """As `verify_plain` of each that is a small batch of one entry: what a writer that does not batch makes, by the
    thousand. What is none, or is not sound, `other` is asked about."""
    headers: list[BatchHeader | _T] = []
    unpack, data_from = _SINGLE.unpack_from, HEADER_BYTES + 8
    for buf in bufs:
        length = len(buf)
        if type(buf) is bytes and data_from <= length <= SMALL_BYTES:
            magic, stated, length_field, form, writer_id, sequence, timestamp, body_bytes, zeros, end = unpack(buf)
            data_end = data_from + end
            if (
                magic == MAGIC
                and form == _SINGLE_FORMAT
                and length_field == length
                and HEADER_BYTES + body_bytes == length
                and not zeros
                and end >= 0
                and data_end + -data_end % 8 == length
                and crc32c(buf[CHECKED_FROM:]) == stated
                and buf[data_end:] == PADDING[end % 8]
            ):
                header = (length, VERSION, 0, 0, 1, HEADER_BYTES, writer_id, sequence, timestamp, body_bytes)
                headers.append(new_tuple(BatchHeader, header))
                continue
        headers.append(other(buf))
    return headers


def plain_header(view: memoryview) -> BatchHeader | None:
    """The header of a plain batch, every field of which is as it should be; None says nothing about what it is
    instead."""
    length = len(view)
    if length < HEADER_BYTES + 8:
        return None
    (magic, _, length_field, plain_format, count, header_bytes, writer_id, sequence, timestamp, body_bytes,
     reserved) = _PLAIN.unpack_from(view)  # fmt: skip
    flags, expected = _FORMATS.get(plain_format, (0, 0))
    if (
        magic != MAGIC
        or header_bytes != expected
        or (header_bytes != HEADER_BYTES and not _is_marked(view))
        or reserved
        or not 0 < count <= _FEW
        or length_field != length
        or length > _PLAIN_BYTES
        or header_bytes + body_bytes != length
        or body_bytes < 4 * count + 4
        or body_bytes % 8
    ):
        return None
    header = (length, VERSION, 0, flags, count, header_bytes, writer_id, sequence, timestamp, body_bytes)
    return new_tuple(BatchHeader, header)


def _is_marked(view: memoryview) -> bool:
    if len(view) < MARKED_BYTES:
        return False
    tag, size, _, padding = _EXTENSION.unpack_from(view, HEADER_BYTES)
    return (tag, size) == _MARK and padding == PADDING[4]


def plain_extensions(header: BatchHeader, view: memoryview) -> Mapping[int, bytes]:
    """The extensions of a batch that went the short way."""
    if header[5] == HEADER_BYTES:
        return _NO_EXTENSIONS
    return {MARK_TAG: _EXTENSION.unpack_from(view, HEADER_BYTES)[2]}


def verify_plain(view: memoryview) -> BatchHeader | None:
    """The header of a plain batch that is sound in every respect; None says nothing about what it is instead."""
    header = plain_header(view)
    if header is None or crc32c(view[CHECKED_FROM:]) != PROLOGUE.unpack_from(view)[1]:
        return None
    count, body_from = header[4], header[5]
    if count == 1:
        begin, end = PAIR.unpack_from(view, body_from)
        data_from = body_from + 8
    else:
        offsets = struct.unpack_from(f"<{count + 1}i", view, body_from)
        begin, end = offsets[0], offsets[-1]
        data_from = body_from + padded(4 * count + 4)
        if sorted(offsets) != [*offsets] or (not count % 2 and view[data_from - 4 : data_from] != PADDING[4]):
            return None
    data_end = data_from + end
    if begin or end < 0 or data_end + -data_end % 8 != header[0] or view[data_end:] != PADDING[end % 8]:
        return None
    return header
