"""Residents: files of segments that are read stay open, and their indexes in memory, while they are used.

Indexes and open files of closed segments are kept for the `limits.RESIDENT_SEGMENT_INDEXES` segments used last, so
memory is bounded whatever the log's size. What somebody is using is closed only after its use. Any thread may ask.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic

from varlog import limits
from varlog.errors import Corrupt
from varlog.storage import format as fmt
from varlog.storage.files import Buffer, File, FileSystem
from varlog.storage.format import FrameKind
from varlog.storage.segment import Index, SegmentFile, parse_segment_name


class Resident(Generic[Index]):
    """A segment's open file and index, and how many use them now."""

    __slots__ = ("evicted", "file", "index", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.index: Index | None = None
        self.users = 0
        self.evicted = False


class Residents(Generic[Index]):
    """See the module's text."""

    def __init__(self, fs: FileSystem, directory: str, decode: Callable[[Buffer], Index | None]) -> None:
        self._fs = fs
        self._directory = directory
        self._decode = decode
        self._lock = threading.Lock()
        self._residents: OrderedDict[int, Resident[Index]] = OrderedDict()

    def index(self, segment: SegmentFile[Index]) -> Index:
        """The index of a segment, read from its file if it is not at hand."""
        index = segment.index
        if index is not None:
            return index
        with self.borrow(segment) as resident:
            if resident.index is None:
                resident.index = self._load_index(resident.file, segment)
            return resident.index

    def index_at_hand(self, segment: SegmentFile[Index]) -> Index | None:
        """The index of a closed segment, if it is in memory."""
        resident = self._residents.get(segment.seq)
        return resident.index if resident is not None else None

    @contextmanager
    def borrow(self, segment: SegmentFile[Index]) -> Iterator[Resident[Index]]:
        resident = self.take(segment)
        try:
            yield resident
        finally:
            self.give_back(resident)

    def give_back(self, resident: Resident[Index]) -> None:
        with self._lock:
            resident.users -= 1
            close = resident.evicted and resident.users == 0
        if close:
            resident.file.close()

    def take(self, segment: SegmentFile[Index]) -> Resident[Index]:
        """A segment's file, open until it is given back."""
        with self._lock:
            resident = self._residents.get(segment.seq)
            if resident is not None:
                self._residents.move_to_end(segment.seq)
                resident.users += 1
                return resident
        try:
            file = self._fs.open(f"{self._directory}/{segment.name}")
        except FileNotFoundError as e:
            raise Corrupt("a segment is missing", segment=segment.name, offset=0) from e
        with self._lock:
            resident = self._residents.get(segment.seq)
            if resident is None:
                resident = self._residents[segment.seq] = Resident(file)
            else:
                file.close()
            resident.users += 1
            unused = self._evict(limits.RESIDENT_SEGMENT_INDEXES)
        _close_all(unused)
        return resident

    def _evict(self, keep: int) -> list[Resident[Index]]:
        """Forget the segments used longest ago; returns those that nobody uses, to be closed."""
        unused: list[Resident[Index]] = []
        while len(self._residents) > keep:
            _, resident = self._residents.popitem(last=False)
            resident.evicted = True
            if resident.users == 0:
                unused.append(resident)
        return unused

    def forget(self, name: str) -> None:
        """A segment was deleted; the room it took is free only when nobody has it open."""
        unused: list[Resident[Index]] = []
        with self._lock:
            parsed = parse_segment_name(name)
            if parsed is not None and parsed[0] in self._residents:
                self._residents.move_to_end(parsed[0], last=False)
                unused = self._evict(len(self._residents) - 1)
        _close_all(unused)

    @property
    def residents(self) -> int:
        """How many segments have their file open, and perhaps their index in memory."""
        return len(self._residents)

    def close(self) -> None:
        with self._lock:
            unused = self._evict(0)
        _close_all(unused)

    def _load_index(self, file: File, segment: SegmentFile[Index]) -> Index:
        offset = segment.index_offset
        try:
            view = memoryview(file.pread(fmt.FRAME_HEADER_BYTES, offset))
            header = fmt.decode_frame_header(view, 0, offset)
            if header is not None and header.nonce == segment.nonce and header.kind == FrameKind.INDEX:
                body = memoryview(file.pread(header.length, offset + fmt.FRAME_HEADER_BYTES))
                if fmt.is_body_whole(header, body) and (index := self._decode(body)) is not None:
                    return index
        except OSError as e:
            raise Corrupt(f"an unreadable index ({e})", segment=segment.name, offset=offset) from e
        raise Corrupt("a damaged index", segment=segment.name, offset=offset)


def _close_all(residents: list[Resident[Any]]) -> None:
    for resident in residents:
        resident.file.close()
