"""The header of a record batch: its fields, and what they may say of each other and of the limits.

The layout is the table at the head of `varlog.batch`. Parsing checks what is needed to know how far the batch reaches;
the other checks come after the checksum, when an odd field can be believed to be what the writer wrote.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

from varlog import limits, types
from varlog.errors import BatchTooLarge, EmptyBatch, MalformedBatch, UnknownCodec, UnsupportedFormat

Buffer = bytes | bytearray | memoryview

MAGIC: Final = int.from_bytes(b"VLRB", "little")
VERSION: Final = 1
HEADER: Final = struct.Struct("<IIIBBHIHHQQqII")
HEADER_BYTES: Final = HEADER.size
CHECKED_FROM: Final = 8
"""Where the bytes begin that the checksum covers."""
PROLOGUE: Final = struct.Struct("<II")
PADDING: Final = tuple(bytes(-length % 8) for length in range(8))
PAIR: Final = struct.Struct("<2i")


class Codec(IntEnum):
    """How the body is compressed."""

    NONE = 0
    ZSTD = 1


class BatchFlag(IntFlag):
    """What a batch is, when it is not plain data."""

    JUNK = 1
    CONTROL = 2
    TRANSACTION = 4
    """It is data, of a transaction."""


KNOWN_FLAGS = int(BatchFlag.JUNK | BatchFlag.CONTROL | BatchFlag.TRANSACTION)
KNOWN_CODECS = frozenset(int(codec) for codec in Codec)


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


def padded(length: int) -> int:
    """The next multiple of 8."""
    return length + -length % 8


def peek_header(buf: Buffer) -> BatchHeader:
    """Read the header at the start of `buf`, which may hold less than the batch, or more.

    Magic, version, lengths and limits are checked; that the bytes are undamaged is not.
    """
    header, reserved = parse(buf)
    check_header(header, reserved)
    return header


def parse(buf: Buffer) -> tuple[BatchHeader, int]:
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


def check_header(header: BatchHeader, reserved: int) -> None:
    """Check what the fields say of each other and of the limits."""
    if header.codec not in KNOWN_CODECS:
        raise UnknownCodec(f"the batch is compressed by codec {header.codec}, unknown to this release")
    if header.flags & ~KNOWN_FLAGS:
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
    if header.body_bytes % 8 or header.body_bytes < padded(4 * (header.count + 1)):
        raise MalformedBatch(f"{header.body_bytes} bytes cannot hold {header.count} entries")
    if header.codec == Codec.NONE and header_bytes + header.body_bytes != header.length:
        raise MalformedBatch("header and body do not add up to the batch's length")
