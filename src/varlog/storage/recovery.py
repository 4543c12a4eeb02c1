"""Recovery: from the files of a log stream to its state, whatever ended the process before.

First everything is looked at and nothing is changed (`Recovery.inspect`): the trim record, the footers of the closed
segments, and the newest segment frame by frame. Replaying its frames over the context it begins with gives the state:
that of the last whole commit, with the whole batches after it as uncommitted. A commit whose entries are not all there
is dropped (B10).

Where the frames of the newest segment end before its file does, rule 15 decides. If anything proves that the file was
once synced beyond that place (a later frame, the mark), it is corruption: reported, nothing is touched, what lies below
is served. Else it is a torn tail, or an unfinished close: it is cut. Everything else about the files is whole by
construction (`logfiles`), so any other damage is corruption too, and so are bytes that the disk does not give back.

Then, if nothing is corrupt, the files are made good (`Recovery.repair`), in an order that allows a crash at any point:

- The trim record is published again before leftovers below it may be deleted, and a newest segment that holds nothing
  and is not proven to have its name durably is made anew: the sync of the directory may have failed, and a record or a
  name that is in the page cache alone would be built upon. A disk that has no room for the record keeps the leftovers.
- For the same reason, bytes of the newest segment beyond the last proof of a sync are written again, and synced.
- The tail is cut. If that takes away a synced footer, the mark goes back first.

What must always hold: nothing that was reported durable is cut; nothing is invented; opening again changes nothing.

`SegmentRecovery` does all of it that is the same for a write-once log; what the records mean is for `Recovery`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from varlog import limits
from varlog.errors import Corrupt, NoSuchReplica, WrongIdentity, WrongOrdering
from varlog.storage import format as fmt
from varlog.storage import trim
from varlog.storage.directory import is_full, readable
from varlog.storage.files import File, FileSystem
from varlog.storage.format import Context, Footer, FrameKind, LogBase, Mark, TrimRecord
from varlog.storage.logfiles import CONDEMNED_NAME, MARK_NAME, TRIM_NAME, UNFINISHED, publish
from varlog.storage.reader import LogReader
from varlog.storage.replay import Replay, SegmentReplay, UncommittedBatch, uncommitted_batch
from varlog.storage.scan import FrameScan, Remains, remains
from varlog.storage.segment import NO_FLOOR, Segment, SegmentFile, parse_segment_name
from varlog.storage.state import EMPTY, LogState
from varlog.types import FIRST_LLSN, GLSN, LLSN, Epoch, LogStreamIdentity, Ordering, StorageNodeID, Version

NO_GLSN: Final = GLSN(0)

ReplayT = TypeVar("ReplayT", bound=SegmentReplay)
SegmentT = TypeVar("SegmentT", bound=SegmentFile[Any])


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found: the LogStreamContext (B8) and what its owner needs to go on. By default: an empty log."""

    committed_llsn_end: LLSN = EMPTY.committed_end
    """Where what is not committed begins."""
    uncommitted_llsn_end: LLSN = EMPTY.end
    global_hwm: GLSN = EMPTY.hwm
    local_lwm: GLSN = NO_GLSN
    """The GLSN of the first committed entry that is kept; 0 if there is none."""
    local_hwm: GLSN = EMPTY.local_hwm
    """The GLSN of the last committed entry, kept or trimmed; 0 if there never was one."""
    version: Version = EMPTY.version
    epoch: Epoch = EMPTY.epoch
    """The highest one promised."""
    running_set: tuple[StorageNodeID, ...] = EMPTY.members.replicas
    primary: StorageNodeID = EMPTY.members.primary
    trim_glsn: GLSN = NO_GLSN
    """The last position trimmed,"""
    trim_llsn: LLSN = FIRST_LLSN
    """the first entry kept."""
    uncommitted: list[UncommittedBatch] = field(default_factory=list, repr=False)
    dedup_snapshot: bytes | None = field(default=None, repr=False)
    dedup_tail: list[tuple[Any, ...]] = field(default_factory=list, repr=False)
    """What the deduplication table missed since the snapshot, in log order: ("batch", llsn, count, writer_id,
    sequence), ("commit", CommitContext) or ("truncate", llsn_end)."""
    torn_tail: bool = False
    """Bytes of a write that was never reported stood at the end, and were cut."""
    dropped_commit: bool = False
    """A commit was found whose entries are not all there, and dropped (B10)."""
    corruption: Corrupt | None = None
    """If set, the rest is what is known for sure to have been, and the replica must be repaired."""

    @classmethod
    def at(cls, base: LogBase) -> Recovered:
        """Of a log that begins with a base."""
        return cls(
            base.llsn, base.llsn, base.hwm, NO_GLSN, base.local_hwm, base.version, base.epoch,
            trim_glsn=base.trim_glsn, trim_llsn=base.trim_llsn, dedup_snapshot=base.snapshot or None,
        )  # fmt: skip


class _Entry(NamedTuple):
    """A segment file, as its name says."""

    seq: int
    first_llsn: LLSN
    name: str


@dataclass(frozen=True, slots=True)
class _Newest(Generic[ReplayT]):
    """The newest segment, replayed up to where its frames end."""

    entry: _Entry
    replay: ReplayT
    end: int
    head_end: int
    proven: int
    """Synced at least up to here."""
    closed: bool
    """It has its index and footer; whatever is appended to it takes their place."""
    zero: bool
    """Nothing stands beyond the end."""

    @property
    def torn(self) -> bool:
        """It ends in bytes that are no whole frame."""
        return not self.closed and not self.zero


class SegmentRecovery(ABC, Generic[ReplayT, SegmentT]):
    """See the module's text."""

    _replays: type[ReplayT]

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        identity: LogStreamIdentity,
        segment_bytes: int,
        empty: Context,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._identity = identity
        self._segment_bytes = segment_bytes
        self._names = fs.listdir(directory)
        self._mark: Mark | None = None
        self._entries: list[_Entry] = []
        self.leftovers: list[str] = []
        """Segments below the trim record, to be deleted"""
        self.is_trim_durable = False
        """once it is certain that it is durable."""
        self._floors: list[LLSN] = []
        self._newest: _Newest[ReplayT] | None = None
        self._unproven: _Entry | None = None
        self.trim: TrimRecord | None = None
        self.corruption: Corrupt | None = None
        self.segments: list[SegmentT] = []
        self.beginning: tuple[Context, bytes] = (empty, b"")
        """What the log begins with if its only segment is made anew."""

    # Looking

    def look(self) -> None:
        """Find out what there is. Nothing is changed."""
        try:
            self._survey()
            for entry in self._entries[:-1]:
                self._read_footer(entry)
            self._read_newest()
            self._check_trim()
            self._apply_floors()
            with readable(self._directory.rpartition("/")[2]):
                self._look_further()
        except Corrupt as e:
            self.corruption = self.corruption or e
            self._apply_floors()

    @abstractmethod
    def _closed(self, name: str, footer: Footer) -> SegmentT:
        """A closed segment, of which its footer tells what there is to know."""

    @abstractmethod
    def _newest_segment(self, replay: ReplayT) -> SegmentT:
        """The newest one."""

    @abstractmethod
    def _come_to(self, context: Context | ReplayT) -> None:
        """The log's state is that at the end of a closed segment, or of the newest one."""

    @abstractmethod
    def _check_trim(self) -> None:
        """Hold what was found against the trim record, before which everything was synced."""

    @abstractmethod
    def _look_further(self) -> None:
        """What else is to be found out of a log that is whole so far."""

    def _cut_off(self, file: File, rest: Remains, replay: ReplayT) -> None:
        """What stands beyond the last whole frame."""

    def condemned(self) -> Corrupt | None:
        """What was found damaged before. The file's being there is what counts, whatever it says."""
        if CONDEMNED_NAME not in self._names:
            return None
        try:
            with self._open(CONDEMNED_NAME) as file:
                said = file.pread(limits.KIB, 0).decode(errors="replace").split(" ", 1)
        except Corrupt as unreadable:
            return unreadable
        offset, segment = said if len(said) == 2 and said[0].isdecimal() else ("0", CONDEMNED_NAME)
        return Corrupt("damage found earlier", segment=segment, offset=int(offset))

    @property
    def torn_tail(self) -> bool:
        """It ends in bytes of a write that was never reported."""
        return self.corruption is None and self._newest is not None and self._newest.torn

    @property
    def last_closed(self) -> int:
        """The number of the last segment that must be closed."""
        return self._entries[-1].seq - 1 if self._entries else 0

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    @contextmanager
    def _open(self, name: str) -> Iterator[File]:
        """A file to look at."""
        with readable(name):
            file = self._fs.open(self._path(name))
            try:
                yield file
            finally:
                file.close()

    def _survey(self) -> None:
        found = sorted(
            _Entry(*parsed, name) for name in self._names if (parsed := parse_segment_name(name)) is not None
        )
        self._mark = self._read_mark()
        self.trim = trim.read_record(self._fs, self._directory, self._identity)
        if not found and MARK_NAME not in self._names:  # a trim record alone is left of a log that was only begun
            raise NoSuchReplica(f"{self._directory} holds no log stream")
        first = self.trim.first_seq if self.trim is not None else 1
        for entry in found:
            if entry.seq < first:
                self.leftovers.append(entry.name)
            elif entry.seq == first + len(self._entries):
                self._entries.append(entry)
        expected = max(found[-1].seq if found else 0, self._mark.seq if self._mark is not None else 0)
        counted = len(self.leftovers) + len(self._entries)
        if not self._entries or counted != len(found) or expected != self._entries[-1].seq:
            for entry in self._entries[: expected - first]:
                self._read_footer(entry)
            missing = f"{first + len(self._entries):010d}-*.seg"
            raise Corrupt("a segment is missing or there twice", segment=missing, offset=0)

    def _read_mark(self) -> Mark | None:
        if MARK_NAME not in self._names:
            return None
        with self._open(MARK_NAME) as file:
            return fmt.decode_mark(file.pread(fmt.MARK_BYTES + 1, 0))

    def _read_footer(self, entry: _Entry) -> None:
        """A closed segment: its footer says all there is to know now."""
        with self._open(entry.name) as file:
            size = file.size()
            offset = max(0, size - fmt.FOOTER_BYTES)
            footer = fmt.decode_footer(file.pread(fmt.FOOTER_BYTES, offset))
        if footer is None or (footer.seq, footer.first_llsn) != entry[:2]:
            raise Corrupt("a damaged footer", segment=entry.name, offset=offset)
        self._check_identity(entry, footer.identity, footer.ordering)
        self._check_follows(entry, footer.prev_nonce)
        self.segments.append(self._closed(entry.name, footer))
        self._floors.append(footer.floor)
        self._come_to(footer.context)

    def _check_identity(self, entry: _Entry, found: LogStreamIdentity, ordering: Ordering) -> None:
        if found != self._identity:
            raise WrongIdentity(f"{entry.name} belongs to {found}, not to {self._identity}; nothing was changed")
        if ordering != self._replays.ordering:
            raise WrongOrdering(f"{entry.name} is of a log in the {ordering.name} ordering; nothing was changed")

    def _check_follows(self, entry: _Entry, prev_nonce: int) -> None:
        """A segment of this log, but of another life of it: one file was put back from a copy."""
        before = self.segments[-1] if self.segments else None
        if before is not None and before.seq == entry.seq - 1 and before.nonce != prev_nonce:
            raise Corrupt(f"a segment that does not follow {before.name}", segment=entry.name, offset=0)

    def _read_newest(self) -> None:
        newest = self._replay(self._entries[-1])
        if self._is_unproven(newest):
            self._unproven = self._entries.pop()
            if not self._entries:
                self._begin_anew(newest.replay)
                return
            self.segments.pop()
            self._floors.pop()
            newest = self._replay(self._entries[-1])
        self._newest = newest
        self._come_to(newest.replay)
        self.segments.append(self._newest_segment(newest.replay))
        self._floors.append(newest.replay.active.floor)
        if self.corruption is not None:
            raise self.corruption

    def _begin_anew(self, replay: ReplayT) -> None:
        """The only segment holds nothing but what the log begins with; what that is still counts."""
        self._come_to(replay)
        self.beginning = (replay.state.context(), replay.snapshot)

    def _is_unproven(self, newest: _Newest[ReplayT]) -> bool:
        """Whether the segment may have its name in the page cache alone; then it is empty, and is made anew."""
        named_durably = newest.proven >= newest.head_end or (
            self.trim is not None and self.trim.first_seq == newest.entry.seq > 1
        )
        return not named_durably and newest.end == newest.head_end and newest.zero

    def _replay(self, entry: _Entry) -> _Newest[ReplayT]:
        with self._open(entry.name) as file:
            return self._replay_file(entry, file)

    def _replay_file(self, entry: _Entry, file: File) -> _Newest[ReplayT]:
        size = file.size()
        header = fmt.decode_segment_header(file.pread(fmt.SEGMENT_HEADER_BYTES, 0))
        if header is None or (header.seq, header.first_llsn) != entry[:2]:
            raise Corrupt("a damaged segment header", segment=entry.name, offset=0)
        self._check_identity(entry, header.identity, header.ordering)
        self._check_follows(entry, header.prev_nonce)
        scan = FrameScan(file, size, header.nonce, fmt.SEGMENT_HEADER_BYTES, header.crc)
        first = next(iter(scan), None)
        found = fmt.decode_context(first.body) if first is not None and first.header.kind == FrameKind.CONTEXT else None
        if found is None:
            raise Corrupt("a damaged context", segment=entry.name, offset=fmt.SEGMENT_HEADER_BYTES)
        replay = self._replays(header, *found)
        head_end = scan.offset
        proven = self._mark.offset if self._mark is not None and self._mark.seq == entry.seq else 0
        end, chain = head_end, scan.chain
        closed = False
        for frame in scan:
            proven = max(proven, frame.header.synced)
            if frame.header.kind == FrameKind.INDEX:
                closed = _is_closed(file, size, frame.offset, frame.end)
                break
            if not replay.apply(frame):
                self.corruption = Corrupt("a frame that does not follow", segment=entry.name, offset=frame.offset)
                break
            end, chain = scan.offset, scan.chain
        rest = Remains(False, 0, None) if closed else remains(file, size, header.nonce, end)
        proven = max(proven, rest.synced)
        if not closed and proven > end and self.corruption is None:
            self.corruption = Corrupt("a damaged frame", segment=entry.name, offset=scan.offset)
        self._cut_off(file, rest, replay)
        replay.active.offset, replay.active.chain = end, chain
        return _Newest(entry, replay, end, head_end, proven, closed, rest.zero)

    def _apply_floors(self) -> None:
        """A seal voids batches of earlier segments too."""
        floor = NO_FLOOR
        for segment, own in zip(reversed(self.segments), reversed(self._floors), strict=True):
            segment.end = min(segment.end, floor)
            floor = min(floor, own)

    # Making good

    def repair(self, mark_file: File) -> tuple[Any, File] | None:
        """Make the files good; the segment to go on with and its file, None if one is to be made anew."""
        for name in self._names:
            if name.endswith(UNFINISHED):
                self._fs.unlink(self._path(name))
        if self.trim is not None and self.leftovers:
            self._publish_again(self.trim)
        newest = self._newest
        if newest is None:
            return None
        if self._unproven is not None:
            self._fs.unlink(self._path(self._unproven.name))
            self._fs.sync_dir(self._directory)
        file = self._fs.open(self._path(newest.entry.name))
        try:
            self._repair_tail(newest, file, mark_file)
        except BaseException:
            file.close()
            raise
        newest.replay.active.synced = newest.end
        return newest.replay.active, file

    def _publish_again(self, record: TrimRecord) -> None:
        try:
            publish(self._fs, self._directory, TRIM_NAME, fmt.encode_trim(record)).close()
            self.is_trim_durable = True
        except OSError as e:
            if not is_full(e):
                raise

    def _repair_tail(self, newest: _Newest[ReplayT], file: File, mark_file: File) -> None:
        end = newest.end
        mark = fmt.encode_mark(Mark(newest.entry.seq, end))
        if not newest.closed and newest.zero and newest.proven == end:
            mark_file.pwritev([mark], 0)
            return
        if newest.closed:
            # The footer is about to go: a mark that knows of it would make that look like damage.
            mark_file.pwritev([mark], 0)
            mark_file.fdatasync()
        file.truncate(end)
        file.allocate(self._segment_bytes)
        for offset in range(newest.proven, end, limits.READ_CHUNK_BYTES):
            file.pwritev([file.pread(min(limits.READ_CHUNK_BYTES, end - offset), offset)], offset)
        file.fdatasync()
        mark_file.pwritev([mark], 0)


class Recovery(SegmentRecovery[Replay, Segment]):
    """Of a log in the commit ordering."""

    _replays = Replay

    def __init__(
        self, fs: FileSystem, directory: str, identity: LogStreamIdentity, reader: LogReader, segment_bytes: int
    ) -> None:
        super().__init__(fs, directory, identity, segment_bytes, EMPTY)
        self._reader = reader
        self._dropped_commit = False
        self._uncommitted_batches: list[UncommittedBatch] = []
        self._local_lwm = NO_GLSN
        self.state = LogState(EMPTY)

    def inspect(self) -> Recovered:
        """Find out what there is. Nothing is changed."""
        self.look()
        self.corruption = self.corruption or self.condemned()
        state, uncommitted = self.state, self._uncommitted_batches
        if self.corruption is not None:
            state.end = state.committed_end
            uncommitted = []
        snapshot, tail = self.beginning[1], list[tuple[Any, ...]]()
        if self._newest is not None:
            snapshot, tail = self._newest.replay.snapshot, self._newest.replay.dedup_tail
        return Recovered(
            committed_llsn_end=state.committed_end,
            uncommitted_llsn_end=state.end,
            global_hwm=state.hwm,
            local_lwm=self._local_lwm,
            local_hwm=state.local_hwm,
            version=state.version,
            epoch=state.epoch,
            running_set=state.members.replicas,
            primary=state.members.primary,
            trim_glsn=self.trim.glsn if self.trim is not None else NO_GLSN,
            trim_llsn=self.trim.llsn if self.trim is not None else FIRST_LLSN,
            uncommitted=uncommitted,
            dedup_snapshot=snapshot or None,
            dedup_tail=tail,
            torn_tail=self.torn_tail,
            dropped_commit=self._dropped_commit,
            corruption=self.corruption,
        )

    def _closed(self, name: str, footer: Footer) -> Segment:
        return Segment.closed(name, footer)

    def _newest_segment(self, replay: Replay) -> Segment:
        return replay.active.segment

    def _come_to(self, context: Context | Replay) -> None:
        self.state = context.state if isinstance(context, Replay) else LogState(context)

    def _cut_off(self, file: File, rest: Remains, replay: Replay) -> None:
        """B10: a commit is there and its entries are not. It counts for nothing but what it says of the one before."""
        if rest.commit is None:
            return
        state = replay.state
        offset, header = rest.commit
        body = memoryview(file.pread(header.length, offset + fmt.FRAME_HEADER_BYTES))
        cc = fmt.decode_commit(body) if fmt.is_body_whole(header, body) else None
        if cc is not None and cc.llsn_begin == state.committed_end:
            self._dropped_commit = True
            state.hwm = max(state.hwm, cc.prev_hwm)

    def _check_trim(self) -> None:
        first = self._entries[0] if self._entries else None
        if self.trim is None and first is not None and first.first_llsn > FIRST_LLSN:
            raise Corrupt("the record of the trim it began with is missing", segment=first.name, offset=0)
        if self.trim is not None and self.trim.committed_end > self.state.committed_end:
            newest = self._entries[-1].name
            offset = self._newest.end if self._newest is not None else 0
            raise Corrupt("commits are missing that were synced before a trim", segment=newest, offset=offset)

    def _look_further(self) -> None:
        self._uncommitted_batches = self._uncommitted()
        self._local_lwm = self._find_local_lwm()

    def _uncommitted(self) -> list[UncommittedBatch]:
        if self._newest is None:
            return []
        replay = self._newest.replay
        begin, end = self.state.committed_end, replay.carried_end
        carried = self._reader.read(tuple(self.segments), begin, end, limits.MAX_SEGMENT_BYTES)
        return [*(uncommitted_batch(*frame) for frame in carried), *replay.uncommitted]

    def _find_local_lwm(self) -> GLSN:
        llsn = self.trim.llsn if self.trim is not None else FIRST_LLSN
        if llsn >= self.state.committed_end:
            return NO_GLSN
        cc = next(self._reader.commits_from_llsn(tuple(self.segments), llsn))
        return GLSN(llsn - cc.llsn_begin + cc.glsn_begin)


def _is_closed(file: File, size: int, index_offset: int, footer_offset: int) -> bool:
    footer = fmt.decode_footer(file.pread(fmt.FOOTER_BYTES, footer_offset))
    return footer is not None and footer.index_offset == index_offset and footer_offset + fmt.FOOTER_BYTES == size
