"""Residents: files of segments that are read stay open, and their indexes in memory, while they are used.

Indexes and open files of closed segments are kept for the `limits.RESIDENT_SEGMENT_INDEXES` segments used last, so
memory is bounded whatever the log's size. What somebody is using is closed only after its use. Any thread may ask.

Over many logs that is more than a process may have open, and who reads what is old must not take the descriptors of
who appends. So logs share an `OpenFiles`: beyond its bound the segment used longest ago is closed, whosever it is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Generic

from varlog import limits
from varlog.errors import Corrupt
from varlog.storage import format as fmt
from varlog.storage.files import Buffer, File, FileSystem
from varlog.storage.format import FrameKind
from varlog.storage.segment import Index, SegmentFile, parse_segment_name


class Resident(Generic[Index]):
    """A segment's open file and index, and how many use them now."""

    __slots__ = ("evicted", "file", "index", "residents", "seq", "users")

    def __init__(self, file: File, seq: int, residents: OrderedDict[int, Resident[Index]]) -> None:
        self.file = file
        self.seq = seq
        self.residents = residents
        """Those of its log, by number, in the order of their last use."""
        self.index: Index | None = None
        self.users = 0
        self.evicted = False


class OpenFiles:
    """The residents of all logs that share it, in the order of their last use, and how many there may be."""

    def __init__(self, most: int = limits.OPEN_SEGMENTS) -> None:
        self._most = most
        self._order: OrderedDict[Resident[Any], None] = OrderedDict()
        self.lock = threading.Lock()
        """Held by whoever looks at residents or changes them."""

    def __len__(self) -> int:
        return len(self._order)

    def add(self, resident: Resident[Any]) -> None:
        self._order[resident] = None
        resident.residents[resident.seq] = resident

    def touch(self, resident: Resident[Any]) -> None:
        """It is used."""
        self._order.move_to_end(resident)
        resident.residents.move_to_end(resident.seq)

    def evict(self, resident: Resident[Any]) -> None:
        del self._order[resident], resident.residents[resident.seq]
        resident.evicted = True

    def surplus(self) -> Resident[Any] | None:
        """The one used longest ago, if there are too many."""
        return next(iter(self._order)) if len(self._order) > self._most else None


class Residents(Generic[Index]):
    """See the module's text."""

    def __init__(
        self, fs: FileSystem, directory: str, open_files: OpenFiles, decode: Callable[[Buffer], Index | None]
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._open_files = open_files
        self._decode = decode
        self._lock = open_files.lock
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
                self._open_files.touch(resident)
                resident.users += 1
                return resident
        try:
            file = self._fs.open(f"{self._directory}/{segment.name}")
        except FileNotFoundError as e:
            raise Corrupt("a segment is missing", segment=segment.name, offset=0) from e
        with self._lock:
            resident = self._residents.get(segment.seq)
            if resident is None:
                resident = Resident(file, segment.seq, self._residents)
                self._open_files.add(resident)
            else:
                file.close()
            resident.users += 1
            evicted = self._evict(limits.RESIDENT_SEGMENT_INDEXES)
            while (surplus := self._open_files.surplus()) is not None:
                self._open_files.evict(surplus)
                evicted.append(surplus)
            unused = _unused(evicted)
        _close_all(unused)
        return resident

    def _evict(self, keep: int) -> list[Resident[Any]]:
        """Forget the segments of this log used longest ago."""
        evicted = list(islice(self._residents.values(), max(0, len(self._residents) - keep)))
        for resident in evicted:
            self._open_files.evict(resident)
        return evicted

    def forget(self, name: str) -> None:
        """A segment was deleted; the room it took is free only when nobody has it open."""
        parsed = parse_segment_name(name)
        unused: list[Resident[Any]] = []
        with self._lock:
            resident = self._residents.get(parsed[0]) if parsed is not None else None
            if resident is not None:
                self._open_files.evict(resident)
                unused = _unused([resident])
        _close_all(unused)

    @property
    def residents(self) -> int:
        """How many segments have their file open, and perhaps their index in memory."""
        return len(self._residents)

    def close(self) -> None:
        with self._lock:
            unused = _unused(self._evict(0))
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


def _unused(evicted: list[Resident[Any]]) -> list[Resident[Any]]:
    """Those to be closed; each of the others by who uses it last."""
    return [resident for resident in evicted if resident.users == 0]


def _close_all(residents: list[Resident[Any]]) -> None:
    for resident in residents:
        resident.file.close()
