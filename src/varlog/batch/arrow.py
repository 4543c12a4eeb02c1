"""A batch's entries as an Arrow column, and a column's entries into a batch; neither copies a payload by itself.

A batch's body has Arrow's own layout, so a column over it is three views. Those of several batches become one column by
copying each payload once, and with a few calls for each batch: batches may be small, and many. The other way, a column
may be sliced, chunked, or have 64-bit offsets, and is only as good as the bytes that it was read from: it is validated
in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from varlog import limits
from varlog.errors import BatchTooLarge, EmptyBatch, EntryTooLarge, InvalidArgument

_OFFSET_TYPES: Final[Mapping[pa.DataType, np.dtype[np.signedinteger]]] = {
    pa.binary(): np.dtype(np.int32),
    pa.large_binary(): np.dtype(np.int64),
}
_MAX_OFFSET: Final = (1 << 31) - 1


def is_column(entries: object) -> bool:
    return isinstance(entries, pa.Array | pa.ChunkedArray)


def binary_array(body: memoryview, count: int, data_from: int) -> pa.BinaryArray:
    """The column over a batch's body; the body lives as long as the column."""
    buffer = pa.py_buffer(body)
    columns = [None, buffer.slice(0, data_from), buffer.slice(data_from)]
    return pa.BinaryArray.from_buffers(pa.binary(), count, columns, null_count=0)


def joined_array(parts: Sequence[tuple[memoryview, int, int, int]]) -> pa.BinaryArray:
    """One column of entries of several batches. Of each: its body, where the data begins in it, the first of the
    entries, and how many they are."""
    total = sum(count for _, _, _, count in parts)
    joined = np.zeros(total + 1, "<i4")
    data: list[memoryview] = []
    at, end = 1, 0
    for body, data_from, first, count in parts:
        offsets = np.frombuffer(body, "<i4", count + 1, 4 * first)
        low, high = int(offsets[0]), int(offsets[count])
        if end + high - low > _MAX_OFFSET:
            raise BatchTooLarge(f"entries of more than {_MAX_OFFSET} bytes for one column")
        np.add(offsets[1:], end - low, out=joined[at : at + count])
        data.append(body[data_from + low : data_from + high])
        at += count
        end += high - low
    buffers = [None, pa.py_buffer(joined), pa.py_buffer(b"".join(data))]
    return pa.BinaryArray.from_buffers(pa.binary(), total, buffers, null_count=0)


def parts_of(array: pa.Array | pa.ChunkedArray) -> tuple[bytes, list[memoryview]]:
    """The offsets and the bytes of a binary column's entries; the bytes are the column's own."""
    if array.type not in _OFFSET_TYPES:
        raise InvalidArgument(f"a column of type {array.type}; cast it to binary")
    dtype = _OFFSET_TYPES[array.type]
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as e:
        raise InvalidArgument(f"the column contradicts itself: {e}") from None
    if array.null_count:
        raise InvalidArgument(f"{array.null_count} entries are null; an entry is bytes, of which there may be none")
    if len(array) == 0:
        raise EmptyBatch("a batch needs at least one entry")
    sizes: list[npt.NDArray[np.int64]] = []
    data: list[memoryview] = []
    for chunk in array.chunks if isinstance(array, pa.ChunkedArray) else [array]:
        if len(chunk):
            _, offset_buffer, data_buffer = chunk.buffers()
            offsets = np.frombuffer(offset_buffer, dtype, len(chunk) + 1, chunk.offset * dtype.itemsize)
            sizes.append(np.diff(offsets).astype(np.int64, copy=False))
            data.append(memoryview(data_buffer)[offsets[0] : offsets[-1]])
    return _offsets(np.concatenate(sizes)), data


def _offsets(sizes: npt.NDArray[np.int64]) -> bytes:
    if len(sizes) > limits.MAX_BATCH_ENTRIES:
        raise BatchTooLarge(f"{len(sizes)} entries, at most {limits.MAX_BATCH_ENTRIES} make a batch")
    total = int(sizes.sum())
    if total > limits.MAX_ENTRY_BYTES and (largest := int(sizes.max())) > limits.MAX_ENTRY_BYTES:
        raise EntryTooLarge(f"an entry of {largest} bytes, at most {limits.MAX_ENTRY_BYTES} are taken")
    if total > limits.MAX_BATCH_BYTES:
        raise BatchTooLarge(f"entries of {total} bytes; a batch has at most {limits.MAX_BATCH_BYTES}")
    offsets = np.zeros(len(sizes) + 1, dtype="<i4")
    np.cumsum(sizes, out=offsets[1:])
    return offsets.tobytes()
