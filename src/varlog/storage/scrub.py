"""Scrub: read every byte of every file and say what is damaged.

What opening and reading take on trust is checked here: headers of closed segments, frames nobody reads any more, the
index and the footer against the frames they were made from. A finding does not end the walk: it goes on at the next
whole frame. It may run while the log is written and trimmed.

Who lets it run says how fast: `pace` is called with the bytes that were looked at, every frame or so. It may take its
time, and end the walk by raising something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from varlog.errors import Corrupt
from varlog.storage import format as fmt
from varlog.storage import trim
from varlog.storage.files import File, FileSystem
from varlog.storage.format import FrameKind, SegmentHeader
from varlog.storage.logfiles import MARK_NAME
from varlog.storage.replay import SegmentReplay
from varlog.storage.scan import FrameScan, later_frames
from varlog.storage.segment import parse_segment_name
from varlog.types import LogStreamIdentity

Pace = Callable[[int], None]
_LOOKS = 3


def at_once(_size: int) -> None:
    """As fast as it goes."""


def scrub(
    fs: FileSystem,
    directory: str,
    identity: LogStreamIdentity,
    newest: int,
    end: int | None,
    replay: type[SegmentReplay],
    pace: Pace = at_once,
) -> Iterator[Corrupt]:
    """Everything up to `end` of segment number `newest` (None if it is closed), and the records beside the segments."""
    names = fs.listdir(directory)  # before the record: what that keeps was not deleted yet
    segments = {parsed[0]: name for name in names if (parsed := parse_segment_name(name)) is not None}
    try:
        record = trim.read_record(fs, directory, identity)
        first = record.first_seq if record is not None else 1
    except Corrupt as e:
        yield e
        first = min(segments, default=newest)
    if not _is_mark_whole(fs, directory):
        yield Corrupt("a damaged mark", segment=MARK_NAME, offset=0)
    for seq in range(first, newest + 1):
        name = segments.get(seq)
        if name is None:
            yield Corrupt("a segment is missing", segment=f"{seq:010d}-*.seg", offset=0)
            continue
        try:
            file = fs.open(f"{directory}/{name}")
        except FileNotFoundError:
            continue  # trimmed meanwhile
        try:
            yield from _Walk(file, name, identity, end if seq == newest else None, replay, pace).findings()
        except OSError as e:
            yield Corrupt(f"unreadable bytes ({e})", segment=name, offset=0)
        finally:
            file.close()


def _is_mark_whole(fs: FileSystem, directory: str) -> bool:
    """It is written in place after each sync; one that is just being written may look damaged, but not every time."""
    path = f"{directory}/{MARK_NAME}"
    if not fs.exists(path):
        return True
    file = fs.open(path)
    try:
        return any(fmt.decode_mark(file.pread(fmt.MARK_BYTES + 1, 0)) is not None for _ in range(_LOOKS))
    finally:
        file.close()


class _Walk:
    """One segment: a closed one if `end` is None, else the newest up to `end`."""

    def __init__(
        self,
        file: File,
        name: str,
        identity: LogStreamIdentity,
        end: int | None,
        replay: type[SegmentReplay],
        pace: Pace,
    ) -> None:
        self._pace = pace
        self._file = file
        self._name = name
        self._identity = identity
        self._closed = end is None
        self._end = file.size() if end is None else end
        self._replays = replay
        self._replay: SegmentReplay | None = None
        """None once something is damaged: from there on frames are only checked one by one."""
        self._past_index = False

    def findings(self) -> Iterator[Corrupt]:
        header = fmt.decode_segment_header(self._file.pread(fmt.SEGMENT_HEADER_BYTES, 0))
        if header is None or (header.seq, header.first_llsn) != parse_segment_name(self._name):
            yield self._corrupt("a damaged segment header", 0)
            return
        if header.identity != self._identity or header.ordering != self._replays.ordering:
            yield self._corrupt(f"a segment of {header.identity}, in the {header.ordering.name} ordering", 0)
        offset, chain = fmt.SEGMENT_HEADER_BYTES, header.crc
        while True:
            scan = FrameScan(self._file, self._end, header.nonce, offset, chain)
            yield from self._walk(scan, header)
            if self._past_index or (scan.offset == self._end and not self._closed):
                return
            yield self._corrupt("a damaged frame", scan.offset)
            self._replay = None
            following = next(
                later_frames(self._file, self._end, header.nonce, scan.offset + fmt.ALIGNMENT), None
            )  # fmt: skip
            if following is None:
                return
            offset, chain = following[0], following[1].prev

    def _walk(self, scan: FrameScan, header: SegmentHeader) -> Iterator[Corrupt]:
        for frame in scan:
            self._pace(frame.end - frame.offset)
            kind = frame.header.kind
            if kind == FrameKind.CONTEXT and frame.offset == fmt.SEGMENT_HEADER_BYTES:
                found = fmt.decode_context(frame.body)
                if found is not None:
                    self._replay = self._replays(header, *found)
                else:
                    yield self._corrupt("a damaged context", frame.offset)
            elif kind == FrameKind.INDEX and self._closed:
                self._past_index = True
                yield from self._check_ending(frame.offset, frame.end, frame.header)
                return
            elif self._replay is not None:
                self._replay.active.offset, self._replay.active.chain = scan.offset, scan.chain
                if not self._replay.apply(frame):
                    yield self._corrupt("a frame that does not follow", frame.offset)
                    self._replay = None

    def _check_ending(self, index_offset: int, footer_offset: int, index: fmt.FrameHeader) -> Iterator[Corrupt]:
        """The index and the footer must be those that the frames before them give."""
        footer = fmt.decode_footer(self._file.pread(self._end - footer_offset, footer_offset))
        if footer is None:
            yield self._corrupt("a damaged footer", footer_offset)
        elif self._replay is not None:
            active = self._replay.active
            active.offset, active.chain, active.synced = index_offset, index.prev, index.synced
            ending = self._replay.ending(footer)
            if self._file.pread(len(ending), index_offset) != ending:
                yield self._corrupt("an index or footer that is not that of its frames", index_offset)

    def _corrupt(self, what: str, offset: int) -> Corrupt:
        return Corrupt(what, segment=self._name, offset=offset)
