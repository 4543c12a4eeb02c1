"""A batch's body as a zstd frame, and back.

What comes in may be anything. Memory is taken only for a size within the limits that the batch's header and the frame
state alike; a frame is followed by zero padding and by nothing else.
"""

from __future__ import annotations

from typing import Final

import zstandard

from varlog import limits
from varlog.errors import MalformedBatch

_MAGIC: Final = b"\x28\xb5\x2f\xfd"


def compress(body: bytes) -> bytes:
    """One frame that declares its content size."""
    return zstandard.ZstdCompressor().compress(body)


def decompress(stored: memoryview, body_bytes: int) -> memoryview:
    """The body of `body_bytes` out of its padded frame."""
    try:
        frame = zstandard.get_frame_parameters(stored)
        if frame.content_size != body_bytes or frame.window_size > limits.MAX_BATCH_BYTES:
            raise MalformedBatch("the zstd frame's declared size is not the batch's")
        end = _frame_end(stored, frame.has_checksum)
        if end + -end % 8 != len(stored) or any(stored[end:]):
            raise MalformedBatch("the zstd frame is not followed by zero padding alone")
        return memoryview(zstandard.ZstdDecompressor().decompress(stored[:end], allow_extra_data=False))
    except zstandard.ZstdError as e:
        raise MalformedBatch(f"the zstd frame cannot be read: {e}") from None


def _frame_end(stored: memoryview, has_checksum: bool) -> int:
    """Where the frame ends and padding begins: zstd frames may end in zeros, so only its block headers tell."""
    if bytes(stored[:4]) != _MAGIC:
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
