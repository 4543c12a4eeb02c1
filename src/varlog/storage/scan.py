"""Walking the frames of a segment from its file, in large reads.

`FrameScan` follows the chain from the first frame on and stops at the first place where no whole frame stands: `offset`
is that place. `later_frames` looks beyond it for frame headers that are whole all the same; they prove what was there
(rule 15). A frame header is tied to its file and its offset, so no payload can pass for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from varlog import limits
from varlog.storage import format as fmt
from varlog.storage.files import File
from varlog.storage.format import FrameHeader, FrameKind

_ZEROS = bytes(limits.READ_CHUNK_BYTES)


class Frame(NamedTuple):
    offset: int
    header: FrameHeader
    body: memoryview

    @property
    def end(self) -> int:
        return self.offset + fmt.FRAME_HEADER_BYTES + self.header.length


class Window:
    """A file, seen through large reads."""

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self._size = size
        self._view = memoryview(b"")
        self._from = 0

    def view(self, offset: int, length: int) -> memoryview:
        """`length` bytes from `offset`, or as many as there are."""
        at = offset - self._from
        if at < 0 or at + length > len(self._view):
            if offset + length > self._size:
                length = max(0, self._size - offset)
            wanted = min(max(length, limits.READ_CHUNK_BYTES), self._size - offset)
            self._view = memoryview(self._file.pread(wanted, offset) if length else b"")
            self._from = offset
            at = 0
        return self._view[at : at + length]


class FrameScan:
    """Iterates over the whole frames of a chain; `offset` and `chain` are where it has come to."""

    def __init__(self, file: File, size: int, nonce: int, offset: int, chain: int) -> None:
        self._window = Window(file, size)
        self._nonce = nonce
        self._size = size
        self.offset = offset
        self.chain = chain

    def __iter__(self) -> Iterator[Frame]:
        while (frame := self._frame()) is not None:
            self.chain = frame.header.crc
            self.offset = frame.end
            yield frame

    def _frame(self) -> Frame | None:
        offset = self.offset
        header = fmt.decode_frame_header(self._window.view(offset, fmt.FRAME_HEADER_BYTES), 0, offset)
        if header is None or header.nonce != self._nonce or header.prev != self.chain:
            return None
        size = fmt.FRAME_HEADER_BYTES + header.length
        if offset + size > self._size:
            return None
        body = self._window.view(offset, size)[fmt.FRAME_HEADER_BYTES :]
        return Frame(offset, header, body) if fmt.is_body_whole(header, body) else None


def later_frames(file: File, size: int, nonce: int, begin: int) -> Iterator[tuple[int, FrameHeader]]:
    """Every whole frame header of this segment at or after `begin`, whether or not its body is whole."""
    for offset, data in _written_chunks(file, size, begin):
        view = memoryview(data)
        at = data.find(fmt.FRAME_MAGIC)
        while at >= 0:
            if at % fmt.ALIGNMENT == 0:
                header = fmt.decode_frame_header(view, at, offset + at)
                if header is not None and header.nonce == nonce:
                    yield offset + at, header
            at = data.find(fmt.FRAME_MAGIC, at + 1)


class Remains(NamedTuple):
    """What stands beyond the last whole frame of a chain."""

    zero: bool
    """Nothing: the space was never written."""
    synced: int
    """A frame says that the file was synced up to here."""
    commit: tuple[int, FrameHeader] | None
    """The first commit."""


def remains(file: File, size: int, nonce: int, begin: int) -> Remains:
    """What stands at or after `begin`, where no whole frame of the chain does."""
    if not any(True for _ in _written_chunks(file, size, begin)):
        return Remains(True, 0, None)
    synced = 0
    commit = None
    for offset, header in later_frames(file, size, nonce, begin):
        synced = max(synced, header.synced)
        if header.kind == FrameKind.COMMIT and commit is None:
            commit = offset, header
    return Remains(False, synced, commit)


def _written_chunks(file: File, size: int, begin: int) -> Iterator[tuple[int, bytes]]:
    """The file from `begin` on in chunks that overlap by what a header needs; chunks of zeros are left out."""
    offset = begin
    while offset < size:
        data = file.pread(min(limits.READ_CHUNK_BYTES, size - offset), offset)
        if data != _ZEROS[: len(data)]:
            yield offset, data
        if offset + len(data) >= size or len(data) < fmt.FRAME_HEADER_BYTES:
            return
        offset += len(data) - fmt.FRAME_HEADER_BYTES + fmt.ALIGNMENT
