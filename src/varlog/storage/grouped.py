"""GroupedLog: a replica's log on disk, as far as it does not matter what its records mean.

Records go in in three movements, so that the simulator can put time between them and production a thread:

1. *Staging*, on the owner's thread, in log order: memory only. The record's place is decided, its frame is laid out,
   the state and the index follow.
2. *Writing* (`take`, `write`, `sync`), one group at a time, by whoever does the writing.
3. `finish`, on the owner's thread again: what the group held is durable now, and its owner may say so.

When a record fills the segment, staging it also stages the roll: index and footer of this one, head of the next.

What must always hold:

- Nothing is reported durable that a crash could take away.
- The first failed write or sync is the last one (M8): the storage is `poisoned`, and says so from then on.
- A corrupt replica is never written: staging does nothing, `take` says why.

Beside all that, whoever does the writing deletes what trims have left (`delete_doomed`), a few files now and then. It
goes on where nothing more can be written: on a full disk, room comes of it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

from varlog import limits
from varlog.errors import AlreadyExists, Corrupt, InvalidArgument, NoSuchReplica, Poisoned
from varlog.storage import format as fmt
from varlog.storage.directory import error_of, lock_directory, open_or_create, typed_errors
from varlog.storage.files import File, FileSystem, Lock
from varlog.storage.format import Context, FrameKind, TrimRecord
from varlog.storage.group import CloseSegment, StartSegment, Trim, WriteGroup
from varlog.storage.logfiles import CONDEMNED_NAME, MARK_NAME, LogFiles, publish
from varlog.storage.options import StorageOptions
from varlog.storage.recovery import SegmentRecovery
from varlog.storage.replay import SegmentReplay
from varlog.storage.residents import Residents
from varlog.storage.scrub import Pace, at_once, scrub
from varlog.storage.segment import Layout, SegmentFile, parse_segment_name
from varlog.storage.state import State
from varlog.types import FIRST_LLSN, Epoch, LogStreamIdentity, Version

_MAX_U64: Final = (1 << 64) - 1

ActiveT = TypeVar("ActiveT", bound=Layout)
SegmentT = TypeVar("SegmentT", bound=SegmentFile[Any])
Self = TypeVar("Self", bound="GroupedLog[Any, Any]")


class GroupedLog(ABC, Generic[ActiveT, SegmentT]):
    """See the module's text."""

    _layout: type[ActiveT]
    _replay: type[SegmentReplay]
    _reader: Residents[Any]
    _state: State

    def __init__(
        self, fs: FileSystem, path: str, identity: LogStreamIdentity, options: StorageOptions, lock: Lock
    ) -> None:
        self._fs = fs
        self._path = path
        self._identity = identity
        self._options = options
        self._segment_bytes = options.segment_bytes
        self._directory_lock = lock
        self._files: LogFiles | None = None
        self._active: ActiveT | None = None
        self._runs = True
        """False: what it stores was copied from another replica, and will not soon be read."""
        self._segments: tuple[SegmentT, ...] = ()
        self._lock = threading.Lock()
        """Between staging and `take`, which may be on different threads."""
        self._filling = WriteGroup(Version(0), FIRST_LLSN, 0, 0)
        self._full: deque[WriteGroup] = deque()
        self._taken: WriteGroup | None = None
        self._written: tuple[int, int | None] = 0, None
        """The newest segment's number, and how far it is in its file; None if it is closed."""
        self.poisoned = False
        self.corruption: Corrupt | None = None
        """Why nothing more is written to this log."""

    # Opening and closing

    @classmethod
    def _made(
        cls: type[Self], fs: FileSystem, path: str, identity: LogStreamIdentity, options: StorageOptions | None
    ) -> tuple[Self, list[str]]:
        """One in a directory that holds no log, and what the directory holds. AlreadyExists if it does."""
        with typed_errors(path):
            fs.mkdir(path)
        storage = cls(fs, path, identity, options or StorageOptions(), lock_directory(fs, path))
        with storage._abandoned_on_error():
            names = fs.listdir(path)
            if any(name == MARK_NAME or parse_segment_name(name) is not None for name in names):
                raise AlreadyExists(f"{path} holds a log stream already; nothing was changed")
        return storage, names

    @classmethod
    def open(
        cls: type[Self], fs: FileSystem, path: str, identity: LogStreamIdentity, options: StorageOptions | None = None
    ) -> Self:
        """Open a log and recover its state. Damage found is told by `corruption`, not raised."""
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

    @abstractmethod
    def _recover(self) -> None:
        """Find out what there is, and go on with it."""

    def _go_on_after(self, recovery: SegmentRecovery[Any, Any]) -> None:
        """Make the files good and write on where they end; not if they are corrupt."""
        self.corruption = recovery.corruption
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
            files = self._go_on_with(*found, mark_file)
            (files.doom if recovery.is_trim_durable else files.leave)(recovery.leftovers)
        else:
            mark_file.close()
            self._start_anew(*recovery.beginning)

    def _start_anew(self, context: Context, snapshot: bytes) -> None:
        active, head = self._layout.start(self._identity, 1, self._new_nonce(), 0, context, snapshot)
        file = publish(self._fs, self._path, active.name, head, self._options.segment_bytes)
        try:
            mark_file = open_or_create(self._fs, f"{self._path}/{MARK_NAME}")
        except BaseException:
            file.close()
            raise
        self._segments = (self._segment_of(active),)
        files = self._go_on_with(active, file, mark_file)
        files.sync(active.offset)
        files.mark()

    def _go_on_with(self, active: ActiveT, file: File, mark_file: File) -> LogFiles:
        self._active = active
        self._filling = WriteGroup(self._state.version, self._state.end, active.seq, active.offset)
        self._written = active.seq, active.offset
        self._files = LogFiles(self._fs, self._path, active.seq, file, mark_file, self._options.segment_bytes)
        return self._files

    def close(self) -> None:
        """Write and sync everything staged, then let go of the files. A poisoned or corrupt log is only let go of."""
        try:
            if not self.poisoned and self.corruption is None:
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

    @abstractmethod
    def _segment_of(self, active: ActiveT) -> SegmentT:
        """The newest segment, as readers see it."""

    def _snapshot(self) -> bytes:
        """What the owner wants to find again at the head of a segment."""
        return b""

    def _stage_frame(
        self, active: ActiveT, kind: FrameKind, body: bytes, llsn: int, epoch: Epoch
    ) -> WriteGroup:  # fmt: skip
        size = fmt.FRAME_HEADER_BYTES + len(body)
        group = self._group_for(size)
        offset = active.offset
        group.add_frames(offset, (active.frame(kind, body, llsn, epoch),), size)
        return group

    def _stage_record_of_trim(self, record: TrimRecord, doomed: tuple[SegmentT, ...]) -> WriteGroup:
        """Written in the same group as what was staged before it, and after that was synced."""
        data = fmt.encode_trim(record)
        group = self._group_for(len(data))
        group.add_step(Trim(data, [segment.name for segment in doomed]), len(data))
        group.needs_sync = True
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

    def _staged(self, active: ActiveT, group: WriteGroup) -> None:
        """A record is laid out; close its segment if that has filled it, and note where the group ends now."""
        if active.is_full(self._segment_bytes):
            active = self._roll(active, group)
        state = self._state
        group.version = state.version
        group.written_end = state.end
        group.seq = active.seq
        group.offset = active.offset

    def _roll(self, active: ActiveT, group: WriteGroup) -> ActiveT:
        context = self._state.context()
        offset = active.offset
        data = active.closing(context)
        group.add_step(CloseSegment(active.segment, offset, data, not self._runs), len(data))
        following, head = self._layout.start(
            self._identity, active.seq + 1, self._new_nonce(), active.nonce, context, self._snapshot()
        )
        group.add_step(StartSegment(following.seq, following.name, head), len(head))
        self._active = following
        self._segments = (*self._segments, self._segment_of(following))
        return following

    @property
    def urgent_bytes(self) -> int | None:
        """How much `take` would give that somebody waits for; None if nobody does."""
        if self._full:
            return self._full[0].size
        return self._filling.size if self._filling.needs_sync else None

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
            self._finished(group)
            if group.synced and self._options.sync and self._active is not None and self._active.seq == group.seq:
                self._active.synced = group.offset
            for step in group.steps:
                if isinstance(step, CloseSegment):
                    # From now on it can be read from the file.
                    step.segment.index = None

    @abstractmethod
    def _finished(self, group: WriteGroup) -> None:
        """What a group that is written means for who reads and who waits."""

    # Deleting

    @property
    def doomed(self) -> int:
        """How many files `delete_doomed` has to delete."""
        return self._files.doomed if self._files is not None else 0

    def delete_doomed(self) -> None:
        """Delete a few files that trims have left, in any thread, by one at a time, also while groups are written. An
        OSError does no harm to the log: what is left is tried again after the next trim, or when it is opened anew."""
        files = self._files
        if files is not None:
            for _ in range(min(files.doomed, limits.DELETIONS_AT_ONCE)):
                self._reader.forget(files.delete_next())

    # Damage

    def condemn(self, found: Corrupt) -> None:
        """Remember damage that a read or scrub has found, so that the replica is not taken for sound when it is opened
        again: opening does not look into closed segments (rule 15)."""
        if self._fs.exists(f"{self._path}/{CONDEMNED_NAME}"):
            return
        try:
            publish(self._fs, self._path, CONDEMNED_NAME, f"{found.offset} {found.segment}".encode()).close()
        except OSError:
            self.poisoned = True  # what cannot even be written down is not written on

    def scrub(self, pace: Pace = at_once) -> Iterator[Corrupt]:
        """Read and check every byte of every file written so far, no faster than `pace`; yields what is damaged."""
        if self.corruption is not None:
            yield self.corruption
        yield from scrub(self._fs, self._path, self._identity, *self._written, self._replay, pace)


AnyLog = GroupedLog[Any, Any]
"""Of either ordering: all that whoever does the writing needs to know."""
