"""The tagged extensions between a batch's header and its body.

Each is a tag (from 1, ascending), a length, and so many bytes, padded with zeros to a multiple of 8. A reader is given
all of them and skips what it does not know.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from varlog import limits
from varlog.errors import InvalidArgument, MalformedBatch

_HEAD: Final = struct.Struct("<HH")


def encode_extensions(extensions: Mapping[int, bytes], header_bytes: int) -> bytes:
    """The extensions as they stand behind a header of so many bytes."""
    parts: list[bytes] = []
    size = header_bytes
    for tag, value in sorted(extensions.items()):
        length = _HEAD.size + len(value)
        size += length + -length % 8
        if size > limits.MAX_BATCH_HEADER_BYTES:
            raise InvalidArgument(f"extensions make the header longer than {limits.MAX_BATCH_HEADER_BYTES} bytes")
        if not 0 < tag <= 0xFFFF:
            raise InvalidArgument(f"extension tag {tag} is not in 1..65535")
        parts += (_HEAD.pack(tag, len(value)), value, bytes(-length % 8))
    return b"".join(parts)


def decode_extensions(view: memoryview) -> Mapping[int, bytes]:
    """All extensions, by tag; `view` is what they fill, a multiple of 8 bytes."""
    extensions: dict[int, bytes] = {}
    at, last = 0, 0
    while at < len(view):
        tag, length = _HEAD.unpack_from(view, at)
        begin = at + _HEAD.size
        at = begin + length + -(begin + length) % 8
        if tag <= last or at > len(view) or any(view[begin + length : at]):
            raise MalformedBatch(f"extension {tag} is out of order, too long, or not padded with zeros")
        extensions[tag] = bytes(view[begin : begin + length])
        last = tag
    return extensions
