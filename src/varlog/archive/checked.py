"""Parquet under checksums of our own: nothing of a file gets to Parquet's reader before it was found to be as written.

Parquet can check the bodies of pages and nothing else: neither their headers nor the footer, which has the counts, the
statistics and where everything is. One flipped bit there, and rows are missing without a word, or the library ends the
process. So who writes a file sums it up in parts, a row group each, and its footer for itself:

    PAR1, row group | row group | ... | magic, crc32c of what follows | footer, its length, PAR1

The sums of the parts are in the footer, as the metadata `varlog.crc32c`: for each part where it ends and its crc32c, in
JSON. That of the footer is in the eight bytes before it, where Parquet allows for anything, so any other reader takes
the file for what it is. No byte of a file is outside of all sums.

To open a file is to check its footer. A part is read as a whole when something of it is needed, checked, and held until
another one is; that is as much as Parquet would hold. Whether a file has sums is told by its name, which is not in the
file: damage cannot make it one of the older ones that have none. Of those Parquet reads what it will, and who reads
them does not believe their statistics and counts rows.
"""

from __future__ import annotations

import io
import json
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from crc32c import crc32c
from pyarrow import parquet

SUFFIX: Final = "-crc.parquet"
"""How the names of files end that have sums."""

_KEY: Final = "varlog.crc32c"
_MAGIC: Final = b"VLCF"
_MARK: Final = struct.Struct("<4sI")
"""Before a footer: magic, crc32c of all that follows."""
_END: Final = struct.Struct("<I4s")
"""After a footer: how long it is, and Parquet's magic."""
_TAIL_BYTES: Final = 64 << 10
"""What is read of a file's end at first; nearly every footer is shorter."""
_FOOTER_BYTES: Final = 64 << 20
"""A footer that says it is longer lies: it would be of more than a terabyte."""


class Damaged(pa.ArrowException):  # type: ignore[misc]  # pyarrow has no types
    """A file is not as it was written: what Parquet would say of it, if it knew."""


def is_checked(path: str) -> bool:
    """Whether the name of a file says that it has sums."""
    return path.endswith(SUFFIX)


# Writing


class _Sums(io.RawIOBase):
    """A stream that sums up what is written to it, and keeps what follows upon the last part for the end."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream
        self._at = 0
        self._crc = 0
        self._footer: list[bytes] | None = None
        self.parts: list[tuple[int, int]] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self._footer is None:
            self._stream.write(data)
            self._crc = crc32c(data, self._crc)
            self._at += len(data)
        else:
            self._footer.append(bytes(data))
        return len(data)

    def cut(self) -> None:
        """A part ends here."""
        self.parts.append((self._at, self._crc))
        self._crc = 0

    def hold(self) -> None:
        """What follows is the footer."""
        self._footer = []

    def finish(self) -> None:
        footer = b"".join(self._footer or ())
        self._stream.write(_MARK.pack(_MAGIC, crc32c(footer)) + footer)


@contextmanager
def writing(stream: Any, schema: pa.Schema, **options: Any) -> Iterator[Callable[[pa.Table], None]]:
    """What writes a row group of a new file; `options` are those of `ParquetWriter`. The file is whole afterwards."""
    sums = _Sums(stream)
    with parquet.ParquetWriter(sums, schema, **options) as writer:

        def write(group: pa.Table) -> None:
            writer.write_table(group, row_group_size=len(group))
            sums.cut()

        yield write
        if not sums.parts:
            sums.cut()  # without rows there is Parquet's magic still
        writer.add_key_value_metadata({_KEY: json.dumps(sums.parts)})
        sums.hold()
    sums.finish()


# Reading


class _Parts(io.RawIOBase):
    """A file as Parquet sees it: parts that were checked, and no footer, because that is known already."""

    def __init__(self, file: Any, parts: list[tuple[int, int]]) -> None:
        super().__init__()
        self._file = file
        self._crcs = [crc for _, crc in parts]
        self._cuts = [0, *(end for end, _ in parts)]
        self._at = 0
        self._held = -1
        self._data = memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._cuts[-1]}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> Any:
        """What is asked for, as far as it is in one part: no column of a row group is in two."""
        number = bisect_right(self._cuts, self._at) - 1
        if number >= len(self._crcs):
            return b""
        if number != self._held:
            self._load(number)
        begin = self._at - self._cuts[number]
        found = self._data[begin:] if size is None or size < 0 else self._data[begin : begin + size]
        self._at += len(found)
        return found

    def _load(self, number: int) -> None:
        self._held, self._data = -1, memoryview(b"")
        begin, end = self._cuts[number : number + 2]
        data = _read(self._file, begin, end)
        if crc32c(data) != self._crcs[number]:
            raise Damaged(f"the checksum of its bytes {begin} to {end - 1} is wrong")
        self._held, self._data = number, memoryview(data)


def parquet_of(file: Any, path: str) -> parquet.ParquetFile:
    """The Parquet in an open file of that name; `Damaged` now or in reading it if it is not as it was written. It is
    read by one thread."""
    if not is_checked(path):
        return parquet.ParquetFile(file, pre_buffer=False, page_checksum_verification=True)
    about = parquet.read_metadata(pa.BufferReader(_footer(file)))
    parts = json.loads(about.metadata[_KEY.encode()])
    return parquet.ParquetFile(_Parts(file, parts), metadata=about, pre_buffer=False)


def _footer(file: Any) -> bytes:
    """A file's end from its footer on, checked."""
    size = file.seek(0, io.SEEK_END)
    tail = _read(file, max(0, size - _TAIL_BYTES), size)
    if len(tail) < _MARK.size + _END.size:
        raise Damaged(f"it has {size} bytes only")
    length = _MARK.size + _END.unpack(tail[-_END.size :])[0] + _END.size
    if length > min(size, _FOOTER_BYTES):
        raise Damaged(f"a footer of {length} bytes cannot be")
    if length > len(tail):
        tail = _read(file, size - length, size)
    footer = tail[-length + _MARK.size :]
    if _MARK.unpack_from(tail, len(tail) - length) != (_MAGIC, crc32c(footer)):
        raise Damaged("the checksum of its footer is wrong")
    return footer


def _read(file: Any, begin: int, end: int) -> bytes:
    file.seek(begin)
    data: bytes = file.read(end - begin)
    if len(data) != end - begin:
        raise Damaged(f"it ends before byte {end}")
    return data


def batches_of(
    file: parquet.ParquetFile, group: int, max_rows: int, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """A row group, or these columns of it, in batches of at most so many rows; after the last one, all of its rows were
    there."""
    expected = file.metadata.row_group(group).num_rows
    found = 0
    if expected:
        for batch in file.iter_batches(max_rows, row_groups=[group], columns=columns, use_threads=False):
            found += len(batch)
            yield batch
    if found != expected:
        raise Damaged(f"row group {group} has {found} rows instead of {expected}")
