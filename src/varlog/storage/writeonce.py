"""WriteOnceStorage: one replica's log on disk, in the sequencer ordering (S3): a `core.writeoncelog.WriteOnceLog`.

Batches are staged at their positions, in whatever order they come, and then written in groups: see `grouped`, which
also says how, and what must always hold. Everything that is staged needs a sync. What is staged counts as there at
once (`held`, `digest`, `runs`); what is read (`read`, from any thread) is durable.

A log whose files are damaged as a whole is not looked into: what it lacks could be a promise that wiped what is still
there. One in which only a batch was found damaged (`condemn`) is read as far as it is sound.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from varlog import limits
from varlog.batch import BatchHeader
from varlog.core.projection import NEVER
from varlog.core.writeoncelog import Held
from varlog.errors import ConsistencyViolation, Corrupt, InvalidArgument, Trimmed
from varlog.storage import format as fmt
from varlog.storage import trim
from varlog.storage.files import Buffer, FileSystem, Lock
from varlog.storage.format import Context, Footer, FrameKind, TrimRecord
from varlog.storage.group import WriteGroup
from varlog.storage.grouped import GroupedLog
from varlog.storage.logfiles import TRIM_NAME
from varlog.storage.options import StorageOptions
from varlog.storage.positionreader import PositionReader
from varlog.storage.positions import Line
from varlog.storage.positionsegment import (
    EMPTY,
    ActivePositions,
    PositionReplay,
    PositionSegment,
    PositionState,
    extend_bounds,
    lay_bounds,
)
from varlog.storage.reader import StoredBatch
from varlog.storage.recovery import SegmentRecovery
from varlog.storage.segment import NO_FLOOR
from varlog.types import GLSN, LLSN, Epoch, LogStreamIdentity

_NOWHERE: Final = GLSN(0)


class WriteOnceRecovery(SegmentRecovery[PositionReplay, PositionSegment]):
    """From the files of a write-once log to its state."""

    _replays = PositionReplay

    def __init__(self, fs: FileSystem, directory: str, identity: LogStreamIdentity, segment_bytes: int) -> None:
        super().__init__(fs, directory, identity, segment_bytes, EMPTY)
        self.state = PositionState(EMPTY)

    def _closed(self, name: str, footer: Footer) -> PositionSegment:
        return PositionSegment.closed(name, footer)

    def _newest_segment(self, replay: PositionReplay) -> PositionSegment:
        return replay.active.segment

    def _come_to(self, context: Context | PositionReplay) -> None:
        self.state = context.state if isinstance(context, PositionReplay) else PositionState(context)

    def _check_trim(self) -> None:
        if self.trim is not None and self.trim.version > self.state.version:
            newest = self._entries[-1].name
            offset = self._newest.end if self._newest is not None else 0
            raise Corrupt("records are missing that were synced before a trim", segment=newest, offset=offset)

    def _look_further(self) -> None:
        lay_bounds(self.segments[:-1])


class WriteOnceStorage(GroupedLog[ActivePositions, PositionSegment]):
    """See the module's text. Made by `create` and `open`."""

    _layout = ActivePositions
    _replay = PositionReplay
    _state: PositionState

    def __init__(
        self, fs: FileSystem, path: str, identity: LogStreamIdentity, options: StorageOptions, lock: Lock
    ) -> None:
        super().__init__(fs, path, identity, options, lock)
        self._reader: PositionReader = PositionReader(fs, path, options.open_files, self._lock)
        self._state = PositionState(EMPTY)
        self._trim = _NOWHERE
        self._staged_records = self._durable_records = 0
        self._unsound: Corrupt | None = None
        """Why it cannot be told what is there."""
        self.torn_tail = False
        """When it was opened, bytes of a write that was never reported stood at its end, and were cut."""

    # Opening

    @classmethod
    def create(
        cls, fs: FileSystem, path: str, identity: LogStreamIdentity, options: StorageOptions | None = None
    ) -> WriteOnceStorage:
        """Make the directory and an empty log in it. AlreadyExists if it holds one."""
        storage, names = cls._made(fs, path, identity, options)
        with storage._abandoned_on_error():
            if TRIM_NAME in names:  # found without a segment: what is left of a log that was only begun
                fs.unlink(f"{path}/{TRIM_NAME}")
                fs.sync_dir(path)
            storage._start_anew(EMPTY, b"")
        return storage

    def _recover(self) -> None:
        recovery = WriteOnceRecovery(self._fs, self._path, self._identity, self._options.segment_bytes)
        recovery.look()
        self._unsound = recovery.corruption
        recovery.corruption = recovery.corruption or recovery.condemned()
        self._state = recovery.state
        self._segments = tuple(recovery.segments)
        self._trim = recovery.trim.glsn if recovery.trim is not None else _NOWHERE
        self.torn_tail = recovery.torn_tail
        self._go_on_after(recovery)

    def _segment_of(self, active: ActivePositions) -> PositionSegment:
        return active.segment

    # What is there

    @property
    def epoch(self) -> Epoch:
        return self._state.epoch

    @property
    def end(self) -> GLSN:
        return GLSN(self._state.end)

    @property
    def time(self) -> int:
        return self._state.time

    @property
    def trim(self) -> GLSN:
        return self._trim

    @property
    def staged(self) -> int:
        return self._staged_records

    @property
    def durable(self) -> int:
        return self._durable_records

    def held(self, glsn: GLSN, end: GLSN) -> Held | None:
        if self._unsound is not None:
            raise self._unsound
        if glsn >= self._state.end:
            return None
        line = self._first(glsn)
        return _held(line) if line is not None and line.glsn < end else None

    def _first(self, glsn: int) -> Line | None:
        """The first batch that ends beyond a position and is not trimmed."""
        glsn = max(glsn, self._trim + 1)
        active, segments = self._active, self._segments
        if active is not None and (len(segments) == 1 or segments[-2].reach <= glsn):
            # Most positions that are asked for lie behind all that closed segments hold.
            return active.index.line(active.index.first(glsn))
        found = self._reader.find(segments, glsn, 1)
        return found[0].line if found else None

    def digest(self, glsn: GLSN, most: int) -> Sequence[Held]:
        if self._unsound is not None:
            raise self._unsound
        found = self._reader.find(self._segments, max(glsn, self._trim + 1), most)
        return [_held(one.line) for one in found]

    def runs(self, glsn: GLSN, most: int) -> tuple[Sequence[tuple[int, int]], GLSN]:
        if self._unsound is not None:
            raise self._unsound
        found, told = self._reader.runs(self._segments, max(glsn, self._trim + 1), most)
        return found, self.end if told == NO_FLOOR else GLSN(told)

    def read_one(self, glsn: GLSN) -> StoredBatch | None:
        """The durable batch that has a position, if that is quickly done; else ask `read`, from any thread too."""
        if self._unsound is not None or self._active is None or glsn <= self._trim:
            return None
        return self._reader.read_one(self._segments, glsn, self._written)

    def read(self, glsn: GLSN, max_bytes: int, *, verdicts: bool = False) -> list[StoredBatch]:
        """The durable batches that end beyond a position, in order: at least one if there is one, about `max_bytes`.

        `Trimmed` if the position is, `Corrupt` if what stands there is damaged. For who wants `verdicts` only, others
        may be without their bytes."""
        if self._unsound is not None:
            raise self._unsound
        while True:
            segments = self._segments
            if glsn <= self._trim:
                raise Trimmed(self._trim + 1)
            try:
                if max_bytes <= 1 and (one := self.read_one(glsn)) is not None:
                    return [one]
                # What a log holds that is not written on stands in its files.
                written = self._written if self._active is not None else None
                read = self._reader.read_verdicts if verdicts else self._reader.read
                return read(segments, glsn, max_bytes, written)
            except Corrupt:
                if segments is self._segments:
                    raise  # else it may be that files were trimmed away meanwhile: look again

    # Staging

    def stage_writes(
        self,
        epoch: Epoch,
        glsns: Sequence[int],
        times: Sequence[int],
        batches: Sequence[Buffer],
        headers: Sequence[BatchHeader],
    ) -> None:
        if not glsns:
            return
        lengths = [header[0] for header in headers]
        ends = [glsn + header[4] for glsn, header in zip(glsns, headers, strict=True)]
        if list(map(len, batches)) != lengths or (max(times) | epoch) >> 64 or min(times) < 0:
            raise InvalidArgument(f"batches whose headers say {lengths}, times {times}, epoch {epoch}")
        if min(glsns) < 1 or max(ends) > NEVER:
            raise InvalidArgument(f"batches at positions {glsns}")
        active = self._active
        if active is None:
            return
        self._check_free(glsns, ends)
        count, size = len(ends), sum(lengths) + len(ends) * fmt.FRAME_HEADER_BYTES
        with self._lock:
            if (
                active.offset + size < self._segment_bytes
                and active.records + count < limits.SEGMENT_RECORDS
                and self._filling.size + size <= limits.WRITE_GROUP_BYTES
            ):
                self._stage_run(active, epoch, glsns, ends, times, batches, headers)
                return
            sizes = list(accumulate([fmt.FRAME_HEADER_BYTES + length for length in lengths], initial=0))
            at = 0
            while at < count:
                active = self._active or active
                upto = self._room_for(active, sizes, at)
                run = slice(at, upto)
                self._stage_run(active, epoch, glsns[run], ends[run], times[run], batches[run], headers[run])
                at = upto

    def _stage_run(
        self,
        active: ActivePositions,
        epoch: Epoch,
        glsns: Sequence[int],
        ends: Sequence[int],
        times: Sequence[int],
        batches: Sequence[Buffer],
        headers: Sequence[BatchHeader],
    ) -> None:
        """Batches that go to the active segment and to the group that is filled."""
        group, offset = self._filling, active.offset
        if min(glsns) <= self._trim:
            for glsn, end in zip(glsns, ends, strict=True):
                active.index.make_free(glsn, end)
        frames = active.batch_frames(epoch, glsns, times, batches, headers)
        group.add_frames(offset, frames, active.offset - offset)
        self._state.write(max(ends), max(times), epoch, len(ends))
        self._staged_as(active, group, len(ends))

    def _check_free(self, glsns: Sequence[int], ends: Sequence[int]) -> None:
        before, known = self._trim + 1, self._state.end
        for glsn, end in sorted(zip(glsns, ends, strict=True)):
            if end <= before or (glsn < before and before > self._trim + 1):
                raise ConsistencyViolation(f"a batch at [{glsn}, {end}), but [.., {before}) is written or trimmed")
            if glsn < known:
                there = self._first(glsn)
                if there is not None and there.glsn < end:
                    raise ConsistencyViolation(f"a batch at [{glsn}, {end}), where {there} is")
            before = end

    def _room_for(self, active: ActivePositions, sizes: list[int], at: int) -> int:
        """The end of the batches from number `at` on that go to the active segment, and to the group that is filled
        then; `sizes` are those of all that come before each."""
        group = self._group_for(sizes[at + 1] - sizes[at])
        filled = bisect_left(sizes, sizes[at] + self._segment_bytes - active.offset)
        fitting = bisect_right(sizes, sizes[at] + limits.WRITE_GROUP_BYTES - group.size) - 1
        return max(at + 1, min(filled, fitting, at + limits.SEGMENT_RECORDS - active.records, len(sizes) - 1))

    def stage_epoch(self, epoch: Epoch, wipe: GLSN | None = None) -> None:
        floor = NO_FLOOR if wipe is None else LLSN(wipe)
        if epoch >> 64 or floor < 1:
            raise InvalidArgument(f"a promise of epoch {epoch} that wipes from position {wipe} on")
        with self._lock:
            active = self._active
            if active is None:
                return
            self._state.promise(epoch, floor)
            group = self._stage_frame(active, FrameKind.SEAL, b"", floor, epoch)
            active.added_promise(floor)
            if wipe is not None:
                closed = self._segments[:-1]
                for segment in closed:
                    segment.end = min(segment.end, floor)
                lay_bounds(closed)
            self._staged_as(active, group, 1)

    def stage_trim(self, glsn: GLSN) -> None:
        if glsn >> 63:
            raise InvalidArgument(f"a trim up to position {glsn}")
        with self._lock:
            if glsn <= self._trim:
                return
            self._trim = glsn
            active = self._active
            if active is None:
                return
            doomed, self._segments = trim.split(self._segments, LLSN(glsn + 1))
            state = self._state
            record = TrimRecord(
                self._identity, LLSN(glsn + 1), glsn, state.version, state.epoch, GLSN(state.time), state.end,
                self._segments[0].seq, b"",
            )  # fmt: skip
            self._staged_as(active, self._stage_record_of_trim(record, doomed), 1)

    def _staged_as(self, active: ActivePositions, group: WriteGroup, records: int) -> None:
        """So many records were laid out at the end of the group that is filled."""
        self._staged_records += records
        group.records += records
        group.needs_sync = True
        self._staged(active, group)

    def _roll(self, active: ActivePositions, group: WriteGroup) -> ActivePositions:
        extend_bounds(self._segments[:-1], active.segment)
        return super()._roll(active, group)

    def _finished(self, group: WriteGroup) -> None:
        self._durable_records += group.records


def _held(line: Line) -> Held:
    return Held(GLSN(line.glsn), line.count, line.time, line.check)
