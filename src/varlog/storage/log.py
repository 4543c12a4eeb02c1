"""LogStreamStorage: one replica's log on disk.

Records go in in three movements, so that the simulator can put time between them and production a thread:

1. *Staging* (`stage_batch`, `stage_commit`, ...), on the owner's thread, in log order: memory only. The record's place
   is decided, its frame is laid out, the state and the index follow.
2. *Writing* (`take`, `write`, `sync`), one group at a time, by whoever does the writing.
3. `finish`, on the owner's thread again: what the group held is durable now, and its owner may say so.

Reading (`read`, `read_llsn`, `commit_contexts`) may happen in any thread. Only what is committed is read, and only a
batch that is durable is ever committed, so readers and the writer never meet.

When a record fills the segment, staging it also stages the roll: index and footer of this one, head of the next. The
owner's deduplication table goes into the next head (`snapshot_source`); it must be as of *after* the record being
staged, so owners change their table before they stage.

What must always hold:

- Nothing is reported durable that a crash could take away.
- The first failed write or sync is the last one (M8): the storage is `poisoned`, and says so from then on.
- A corrupt replica is read, as far as it is sound, and never written: staging does nothing, `take` says why.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from varlog import limits
from varlog.batch import BatchHeader
from varlog.errors import (
    AlreadyExists,
    ConsistencyViolation,
    InvalidArgument,
    NoSuchReplica,
    Poisoned,
)
from varlog.storage import copying, trim
from varlog.storage import format as fmt
from varlog.storage.directory import error_of, lock_directory, open_or_create, typed_errors
from varlog.storage.files import Buffer, File, FileSystem, Lock
from varlog.storage.format import Context, FrameKind, LogBase, Members, TrimRecord
from varlog.storage.group import CloseSegment, StartSegment, Trim, WriteGroup
from varlog.storage.logfiles import MARK_NAME, TRIM_NAME, LogFiles, publish
from varlog.storage.options import StorageOptions
from varlog.storage.readable import ReadableLog
from varlog.storage.reader import StoredBatch
from varlog.storage.recovery import Recovered, Recovery
from varlog.storage.segment import ActiveSegment, parse_segment_name
from varlog.storage.state import EMPTY, LogState
from varlog.types import FIRST_LLSN, GLSN, LLSN, CommitContext, Epoch, LogStreamIdentity, Room, StorageNodeID, Version

__all__ = ["LogStreamStorage", "Recovered", "StorageOptions", "StoredBatch", "WriteGroup"]

_MAX_U64 = (1 << 64) - 1
_DELETION_BYTES = 1 * limits.MIB
"""Deleting a segment takes as long as writing about so much, and counts as that."""


def _no_snapshot() -> bytes:
    return b""


class LogStreamStorage(ReadableLog):
    """See the module's text. Made by `create` and `open`."""

    def __init__(
        self, fs: FileSystem, path: str, identity: LogStreamIdentity, options: StorageOptions, lock: Lock
    ) -> None:
        super().__init__(fs, path, identity)
        self._options = options
        self._segment_bytes = options.segment_bytes
        self._directory_lock = lock
        self._files: LogFiles | None = None
        self._active: ActiveSegment | None = None
        self._state = LogState(EMPTY)
        self._lock = threading.Lock()
        """Between staging and `take`, which may be on different threads."""
        self._filling = WriteGroup(Version(0), FIRST_LLSN, 0, 0)
        self._full: deque[WriteGroup] = deque()
        self._taken: WriteGroup | None = None
        self.durable_version = Version(0)
        """Of the last commit context known to be synced."""
        self.snapshot_source: Callable[[], bytes] = _no_snapshot
        """Asked for the deduplication table when a segment begins and when the log is trimmed."""

    # Opening and closing

    @classmethod
    def create(
        cls,
        fs: FileSystem,
        path: str,
        identity: LogStreamIdentity,
        options: StorageOptions | None = None,
        base: LogBase | None = None,
    ) -> LogStreamStorage:
        """Make the directory and a log in it that is empty, or begins with `base`. AlreadyExists if it holds one."""
        with typed_errors(path):
            fs.mkdir(path)
        storage = cls(fs, path, identity, options or StorageOptions(), lock_directory(fs, path))
        with storage._abandoned_on_error():
            names = fs.listdir(path)
            if any(name == MARK_NAME or parse_segment_name(name) is not None for name in names):
                raise AlreadyExists(f"{path} holds a log stream already; nothing was changed")
            storage._prepare(base, TRIM_NAME in names)
        return storage

    @classmethod
    def open(
        cls, fs: FileSystem, path: str, identity: LogStreamIdentity, options: StorageOptions | None = None
    ) -> LogStreamStorage:
        """Open a log and recover its state: see `recovered`. Damage found is reported there, not raised."""
        if not fs.exists(path):
            raise NoSuchReplica(f"there is no {path}")
        storage = cls(fs, path, identity, options or StorageOptions(), lock_directory(fs, path))
        with storage._abandoned_on_error():
            storage._recover()
        return storage

    @contextmanager
    def _abandoned_on_error(self) -> Iterator[None]:
        try:
            with typed_errors(self._path):
                yield
        except BaseException:
            self.abandon()
            raise

    def _prepare(self, base: LogBase | None, has_leftover: bool) -> None:
        """Begin a log. The record of what is trimmed comes first: what is found without a segment was never a log."""
        if base is not None:
            record = copying.trim_record(self._identity, base)
            publish(self._fs, self._path, TRIM_NAME, fmt.encode_trim(record)).close()
            self._begin_at(base)
        else:
            if has_leftover:
                self._fs.unlink(f"{self._path}/{TRIM_NAME}")
                self._fs.sync_dir(self._path)
            self.recovered = Recovered()
            self._start_anew(EMPTY, b"")

    def _begin_at(self, base: LogBase) -> None:
        context = copying.context_of(base)
        self._state = LogState(context)
        self._readable_end = base.llsn
        self.durable_version = base.version
        self._trim_llsn, self._trim_glsn = base.trim_llsn, base.trim_glsn
        self.recovered = Recovered.at(base)
        self._start_anew(context, base.snapshot)

    def _start_anew(self, context: Context, snapshot: bytes) -> None:
        active, head = ActiveSegment.start(self._identity, 1, self._new_nonce(), 0, context, snapshot)
        file = publish(self._fs, self._path, active.name, head, self._options.segment_bytes)
        try:
            mark_file = open_or_create(self._fs, f"{self._path}/{MARK_NAME}")
        except BaseException:
            file.close()
            raise
        self._segments = (active.segment,)
        files = self._go_on_with(active, file, mark_file)
        files.sync(active.offset)
        files.mark()

    def _go_on_with(self, active: ActiveSegment, file: File, mark_file: File) -> LogFiles:
        self._active = active
        self._filling = WriteGroup(self._state.version, self._state.end, active.seq, active.offset)
        self._written = active.seq, active.offset
        self._files = LogFiles(self._fs, self._path, active.seq, file, mark_file, self._options.segment_bytes)
        return self._files

    def _recover(self) -> None:
        recovery = Recovery(self._fs, self._path, self._identity, self._reader, self._options.segment_bytes)
        self.recovered = recovery.inspect()
        self._state = recovery.state
        self._segments = tuple(recovery.segments)
        self._readable_end = self._state.end
        self.durable_version = self._state.version
        if recovery.trim is not None:
            self._trim_llsn, self._trim_glsn = recovery.trim.llsn, recovery.trim.glsn
        if recovery.corruption is not None:
            self._written = recovery.last_closed, None
            return
        mark_file = open_or_create(self._fs, f"{self._path}/{MARK_NAME}")
        try:
            found = recovery.repair(mark_file)
        except BaseException:
            mark_file.close()
            raise
        if found is not None:
            self._go_on_with(*found, mark_file)
        else:
            mark_file.close()
            self._start_anew(*recovery.beginning)

    def close(self) -> None:
        """Write and sync everything staged, then let go of the files. A poisoned or corrupt log is only let go of."""
        try:
            if not self.poisoned and self.corruption is None:
                self.flush_commits()
                while (group := self.take()) is not None:
                    self.write(group)
                    self.sync(group)
                    self.finish(group)
                self._sync_whole()
        finally:
            self.abandon()

    def _sync_whole(self) -> None:
        files = self._open_files()
        try:
            files.sync(self._filling.offset)
            files.mark()
            files.sync_mark()
        except Exception as e:
            raise self._poison(e) from e

    def abandon(self) -> None:
        """Let go of files and lock, whatever state they are in."""
        self._reader.close()
        files, self._files = self._files, None
        if files is not None:
            files.close()
        self._directory_lock.release()

    def _new_nonce(self) -> int:
        return self._options.nonce() & _MAX_U64

    @property
    def synced(self) -> bool:
        """Whether what it reports durable is synced (`StorageOptions.sync`)."""
        return self._options.sync

    # Staging

    def stage_batch(self, llsn: LLSN, epoch: Epoch, prev_sequence: int, batch: Buffer, header: BatchHeader) -> None:
        """A verified batch. Its bytes are kept as they are, and must not change until the group is finished."""
        # The busiest way of all: for every batch on every replica. So what is done for any record is done here in line.
        length, count = header.length, header.count
        if len(batch) != length or (prev_sequence | epoch) >> 64:
            raise InvalidArgument(f"a batch of {len(batch)} bytes with header {header}, epoch {epoch}")
        with self._lock:
            active = self._active
            if active is None:
                return
            state = self._state
            state.batch(llsn, count, epoch)
            size = fmt.FRAME_HEADER_BYTES + length
            group = self._filling
            if group.size + size > limits.WRITE_GROUP_BYTES:
                group = self._group_for(size)
            offset = active.offset
            frame = active.batch_frame(llsn, epoch, prev_sequence, count, length, batch)
            group.add_frames(offset, (frame, batch), size)
            group.needs_sync = True
            group.last_llsn_end = group.written_end = state.end
            group.last_epoch = epoch
            group.offset = active.offset
            if active.offset >= self._segment_bytes or active.records >= limits.SEGMENT_RECORDS:
                self._staged(active, group)

    @property
    def run_room(self) -> Room:
        """What can be staged together before this segment, or the group that is filled, ends."""
        active = self._active
        if active is None:
            return Room(0, 0, 0)
        size = min(limits.WRITE_GROUP_BYTES - self._filling.size, self._segment_bytes - active.offset - 1)
        return Room(limits.SEGMENT_RECORDS - active.records - 1, size, fmt.FRAME_HEADER_BYTES)

    def stage_batches(
        self,
        llsn: LLSN,
        epoch: Epoch,
        prev_sequences: Sequence[int],
        batches: Sequence[Buffer],
        headers: Sequence[BatchHeader],
    ) -> None:
        """As `stage_batch` of one after another, for which there is `run_room`, in a fraction of the time."""
        lengths = [header[0] for header in headers]
        if list(map(len, batches)) != lengths or (max(prev_sequences) | epoch) >> 64 or min(prev_sequences) < 0:
            raise InvalidArgument(f"batches whose headers say {lengths}, epoch {epoch}")
        with self._lock:
            active = self._active
            if active is None:
                return
            most, room, each = self.run_room
            if len(lengths) > most or sum(lengths) + each * len(lengths) > room:
                raise InvalidArgument(f"{len(lengths)} batches of {sum(lengths)} bytes; there is no room for them")
            state, group, offset = self._state, self._filling, active.offset
            state.batches(llsn, [header[4] for header in headers], epoch)
            frames = active.batch_frames(llsn, epoch, prev_sequences, batches, headers)
            group.add_frames(offset, frames, active.offset - offset)
            group.needs_sync = True
            group.last_llsn_end = group.written_end = state.end
            group.last_epoch = epoch
            group.offset = active.offset

    def stage_commit(self, cc: CommitContext) -> None:
        """A cut whose entries are durable here. It needs no sync of its own (B9)."""
        try:
            body = fmt.encode_commit(cc)
        except struct.error as e:
            raise InvalidArgument(f"{cc}: {e}") from None
        with self._lock:
            active = self._active
            if active is None:
                return
            self._state.commit(cc)
            size = fmt.FRAME_HEADER_BYTES + fmt.COMMIT_BODY_BYTES
            group = self._filling
            if group.size + size > limits.WRITE_GROUP_BYTES:
                group = self._group_for(size)
            offset = active.offset
            group.add_frames(offset, (active.frame(FrameKind.COMMIT, body, cc.llsn_begin, cc.epoch),), size)
            active.added_commit(cc)
            group.version = cc.version
            group.offset = active.offset
            if active.offset >= self._segment_bytes or active.records >= limits.SEGMENT_RECORDS:
                self._staged(active, group)

    def stage_seal(self, epoch: Epoch, llsn_end: LLSN) -> None:
        """A promise of `epoch`, and the end of every batch before it at or above `llsn_end` (rule 6)."""
        if (epoch | llsn_end) >> 64:
            raise InvalidArgument(f"a seal of epoch {epoch} at LLSN {llsn_end}")
        with self._lock:
            active = self._active
            if active is None:
                return
            self._state.seal(epoch, llsn_end)
            group = self._stage_frame(active, FrameKind.SEAL, b"", llsn_end, epoch)
            group.needs_sync = True
            group.epoch_records.append(epoch)
            if group.last_llsn_end is not None:
                group.last_llsn_end = min(group.last_llsn_end, llsn_end)
            active.added_seal(llsn_end)
            for segment in self._segments[-2::-1]:
                if segment.end <= llsn_end:
                    break
                segment.end = llsn_end
            self._readable_end = min(self._readable_end, llsn_end)
            self._staged(active, group)

    def stage_unseal(self, epoch: Epoch, replicas: Sequence[StorageNodeID], primary: StorageNodeID) -> None:
        """The epoch this replica is about to run in, and with whom; durable before it accepts anything in it."""
        members = Members(tuple(replicas), primary)
        try:
            body = fmt.encode_members(members)
        except (struct.error, OverflowError) as e:
            raise InvalidArgument(f"{members}: {e}") from None
        if epoch >> 64:
            raise InvalidArgument(f"an unseal of epoch {epoch}")
        with self._lock:
            active = self._active
            if active is None:
                return
            self._state.unseal(epoch, members)
            group = self._stage_frame(active, FrameKind.UNSEAL, body, self._state.end, epoch)
            active.added_unseal()
            group.needs_sync = True
            group.epoch_records.append(epoch)
            self._staged(active, group)

    def stage_trim(self, llsn: LLSN, glsn: GLSN, version: Version, epoch: Epoch) -> None:
        """Everything below `llsn` and at or below `glsn` is trimmed, for readers at once; then files are deleted.

        The record is written in the same group, after all that was staged before it was synced."""
        if (glsn | version | epoch) >> 64:
            raise InvalidArgument(f"a trim up to GLSN {glsn}, version {version}, epoch {epoch}")
        with self._lock:
            state = self._state
            if llsn > state.committed_end:
                raise ConsistencyViolation(f"a trim up to LLSN {llsn}, but only {state.committed_end} is committed")
            if glsn <= self._trim_glsn:
                return
            self._trim_glsn = glsn
            self._trim_llsn = llsn = max(llsn, self._trim_llsn)
            if self._active is None:
                return
            doomed, kept = trim.split(self._segments, copying.first_llsn(self._reader, self._segments, llsn))
            self._segments = kept
            self._reader.forget(doomed)
            record = fmt.encode_trim(
                TrimRecord(
                    self._identity, llsn, glsn, version, epoch, state.hwm, state.committed_end, kept[0].seq,
                    self.snapshot_source(),
                )
            )  # fmt: skip
            group = self._group_for(len(record))
            size = len(record) + len(doomed) * _DELETION_BYTES
            group.add_step(Trim(record, [segment.name for segment in doomed]), size)
            group.needs_sync = True

    def _stage_frame(self, active: ActiveSegment, kind: FrameKind, body: bytes, llsn: LLSN, epoch: Epoch) -> WriteGroup:
        size = fmt.FRAME_HEADER_BYTES + len(body)
        group = self._group_for(size)
        offset = active.offset
        group.add_frames(offset, (active.frame(kind, body, llsn, epoch),), size)
        return group

    def _group_for(self, size: int) -> WriteGroup:
        """The group the next record goes to."""
        if self._filling.size and self._filling.size + size > limits.WRITE_GROUP_BYTES:
            self._full.append(self._filling)
            self._filling = self._new_group()
        return self._filling

    def _new_group(self) -> WriteGroup:
        before = self._filling
        return WriteGroup(before.version, before.written_end, before.seq, before.offset)

    def _staged(self, active: ActiveSegment, group: WriteGroup) -> None:
        """A record is laid out; close its segment if that has filled it, and note where the group ends now."""
        if active.is_full(self._segment_bytes):
            active = self._roll(active, group)
        state = self._state
        group.version = state.version
        group.written_end = state.end
        group.seq = active.seq
        group.offset = active.offset

    def _roll(self, active: ActiveSegment, group: WriteGroup) -> ActiveSegment:
        context = self._state.context()
        offset = active.offset
        group.add_step(CloseSegment(active.segment, offset, data := active.closing(context)), len(data))
        following, head = ActiveSegment.start(
            self._identity, active.seq + 1, self._new_nonce(), active.nonce, context, self.snapshot_source()
        )
        group.add_step(StartSegment(following.seq, following.name, head), len(head))
        self._active = following
        self._segments = (*self._segments, following.segment)
        return following

    @property
    def staged(self) -> bool:
        """Whether `take` has something to give."""
        filling = self._filling
        return bool(self._full or filling.steps or filling.flush)

    @property
    def urgent_bytes(self) -> int | None:
        """How much `take` would give that somebody waits for; None if nobody does: commit contexts alone can go with
        whatever follows them, and are flushed in the end."""
        if self._full:
            return self._full[0].size
        return self._filling.size if self._filling.needs_sync else None

    def flush_commits(self) -> None:
        """Let the next group be synced, so that every commit context staged so far becomes durable with it."""
        with self._lock:
            if self._active is not None and self._state.version > self.durable_version:
                self._filling.flush = True
                self._filling.needs_sync = True

    # Writing

    def take(self) -> WriteGroup | None:
        """Everything staged so far, up to `limits.WRITE_GROUP_BYTES` of whole records, at least one; None if nothing.

        The group before must be finished."""
        if self.poisoned:
            raise Poisoned(f"{self._path}: a write or sync failed before; open it anew")
        if self.corruption is not None:
            raise self.corruption
        with self._lock:
            if self._taken is not None:
                raise InvalidArgument("a group is taken only after the one before is finished")
            if self._full:
                self._taken = self._full.popleft()
            elif self._filling.steps or self._filling.flush:
                self._taken = self._filling
                self._filling = self._new_group()
            return self._taken

    def write(self, group: WriteGroup) -> None:
        """Carry out a group's steps."""
        files = self._open_files()
        try:
            files.write(group)
        except Exception as e:
            raise self._poison(e) from e

    def sync(self, group: WriteGroup, *, mark: bool = True) -> None:
        """Make a written group durable; with `StorageOptions.sync` off it counts as durable as it is. Whoever has
        something more urgent to do first sees to the `mark` afterwards."""
        if self._options.sync:
            files = self._open_files()
            try:
                files.sync(group.offset)
                if mark:
                    files.mark()
            except Exception as e:
                raise self._poison(e) from e
        group.synced = True

    def mark(self) -> None:
        """Write down how far the log is synced, if that is not done: by whoever does the writing."""
        if self._files is not None and not self.poisoned:
            try:
                self._files.mark()
            except Exception as e:
                raise self._poison(e) from e

    def _open_files(self) -> LogFiles:
        if self.poisoned or self._files is None:
            raise Poisoned(f"{self._path}: a write or sync failed before; open it anew")
        return self._files

    def _poison(self, fault: Exception) -> Exception:
        """Whatever the fault was, nobody knows now how much of the group is on disk."""
        self.poisoned = True
        return error_of(self._path, fault)

    def finish(self, group: WriteGroup) -> None:
        """A group was written and, if it needs it, synced: on the owner's thread."""
        with self._lock:
            if group is not self._taken:
                raise InvalidArgument("the group is not the one that was taken")
            self._taken = None
            self._written = group.seq, group.offset
            self._readable_end = group.written_end
            if group.synced:
                self.durable_version = group.version
                if self._options.sync and self._active is not None and self._active.seq == group.seq:
                    self._active.synced = group.offset
            for step in group.steps:
                if isinstance(step, CloseSegment):
                    # From now on it can be read from the file.
                    step.segment.index = None
