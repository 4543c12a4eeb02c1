"""The embedded metadata store: one process, one directory, every answer after an fsync (rule 16).

A directory holds `journal` (see `journalfile`), `synced` (its mark) and `lock`. Requests are decided and applied to the
keyspace when they come in, one after another, and staged; what was staged is written and synced as one group; then the
group's requests are answered, in order, and the watches told. So the keyspace runs ahead of the disk, but nobody
outside sees a state that is not on it: also a read and a failed compare are answered only after everything staged
before them is synced.

The owner drives it. `wake` is called when there is work and no group is under way; then, again and again:

    group = journal.take()      owner's thread; None: nothing to do
    journal.write(group)        any thread
    journal.sync(group)         any thread
    journal.finish(group)       owner's thread; answers

Everything but `write` and `sync` belongs to the owner's thread. `tick` hands in the time, by which leases end.

What must always hold:

- One process has the directory: the lock is taken before anything is read.
- Every start raises the term, durably, before `open` returns, in the same step in which it writes the whole state to a
  new file: what a torn or half-synced old file held is on the disk for certain before anyone is told of it.
- A file is put in place whole: written under another name, synced, renamed, and the directory synced. When a file has
  grown by as much as its snapshot took, and no less than `compact_bytes`, the next group does the same again.
- The first failed write or sync stops the journal for good. Requests of that group have an unknown outcome, all later
  ones and all reads are refused: a state that may or may not be on the disk is shown to nobody.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from varlog import limits
from varlog.core.keyspace import Change, Contents, Keyspace, Watches
from varlog.core.store import (
    LEADER_KEY,
    Committed,
    CompareFailed,
    LeaderRecord,
    Lease,
    LeaseID,
    LeaseOutcome,
    Put,
    ReadOutcome,
    ReadResult,
    Remaining,
    RemainingOutcome,
    Txn,
    TxnOutcome,
    Watch,
    WatchEvents,
    WatchNotice,
    check_ttl,
    check_txn,
    decode_leader,
    encode_leader,
)
from varlog.errors import (
    Busy,
    DirectoryLocked,
    DiskFull,
    JournalCorrupt,
    LeaseNotFound,
    LimitExceeded,
    NotWritable,
    OutcomeUnknown,
    StoreUnavailable,
    VarlogError,
)
from varlog.metarepo.journalfile import (
    Loaded,
    Mark,
    Position,
    change_frame,
    decode_mark,
    encode_change,
    encode_mark,
    load,
    new_file,
)
from varlog.storage.files import File, FileSystem, Lock
from varlog.tuples import new_tuple
from varlog.types import ClusterID, Term

_NOT_WRITABLE: Final = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST}
_FULL: Final = {errno.ENOSPC, errno.EDQUOT}


def _random_nonce() -> int:
    return int.from_bytes(os.urandom(8), "little")


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """How a journal is kept."""

    compact_bytes: int = limits.JOURNAL_COMPACT_BYTES
    """A file grows by at least this much before it is written anew."""
    nonce: Callable[[], int] = _random_nonce
    """Draws the 64-bit number that tells one file's bytes from another's."""


_DEFAULTS: Final = JournalOptions()

_Answer = Committed | CompareFailed | ReadResult | Lease | Remaining | StoreUnavailable | LeaseNotFound | LimitExceeded


class _Request(NamedTuple):
    """A staged request: what it comes to once everything up to it is synced."""

    answer: _Answer
    done: Callable[[Any], None] | None
    body: bytes | None = None
    """The encoded change; None if it changes nothing."""
    revision: int = 0
    events: WatchEvents | None = None


@dataclass(slots=True)
class JournalGroup:
    """What is written and synced as one."""

    requests: list[_Request]
    at: Position
    end: Position
    """Where the file ends once the group is written."""
    frames: list[bytes] = field(default_factory=list)
    contents: Contents | None = None
    """The state after this group, if it goes into a new file instead of the frames."""

    @property
    def needs_sync(self) -> bool:
        return bool(self.frames) or self.contents is not None


class Journal:
    """A `MetadataStore` on a local directory."""

    def __init__(
        self, fs: FileSystem, path: str, cid: ClusterID, options: JournalOptions, lock: Lock, keyspace: Keyspace
    ) -> None:
        """Use `open`."""
        self.wake: Callable[[], None] = _nothing
        self.failed: OSError | None = None
        """Why the journal has stopped."""
        self.was_torn = False
        """The file ended in a torn write when it was opened."""
        self._fs = fs
        self._path = path
        self._cid = cid
        self._options = options
        self._lock = lock
        self._keyspace = keyspace
        self._watches = Watches(keyspace.revision)
        self._deadlines: dict[LeaseID, float | None] = {lease.id: None for lease in keyspace.leases()}
        self._now = 0.0
        self._staged: list[_Request] = []
        self._under_way: JournalGroup | None = None
        self._unmarked: Position | None = None
        """The file is synced up to here, and the mark does not say so yet."""
        self._file, self._end = self._put_in_place(keyspace.contents())
        self._snapshot_end = self._end.offset
        try:
            self._mark_file = self._open_mark()
            self._write_mark(self._end)
        except OSError:
            self._file.close()
            raise

    @classmethod
    def open(cls, fs: FileSystem, path: str, cid: ClusterID, options: JournalOptions = _DEFAULTS) -> Journal:
        """Open the journal in a directory, making it if there is none, and take the lead: the term is raised.

        Raises NotWritable, DirectoryLocked, WrongIdentity, UnsupportedFormat, JournalCorrupt, DiskFull, or
        StoreUnavailable for any other fault of the disk. The directory then holds the state it held before.
        """
        try:
            fs.mkdir(path)
            if not fs.is_writable_directory(path):
                raise NotWritable(f"{path} is not a directory that can be written")
            lock = fs.lock(f"{path}/lock")
        except BlockingIOError as e:
            raise DirectoryLocked(f"{path} is open already, in this process or another one; stop that first") from e
        except OSError as e:
            raise _typed(e, path) from e
        try:
            keyspace, torn = _load(fs, path, cid)
            leader = LeaderRecord(Term(_term(keyspace) + 1))
            keyspace.apply(Change(puts=(Put(LEADER_KEY, encode_leader(leader)),)))
            journal = cls(fs, path, cid, options, lock, keyspace)
            journal.was_torn = torn
            return journal
        except OSError as e:
            lock.release()
            raise _typed(e, path) from e
        except VarlogError:
            lock.release()
            raise

    @property
    def term(self) -> Term:
        """The leadership this start took."""
        return _term(self._keyspace)

    @property
    def max_value_bytes(self) -> int:
        return limits.METADATA_VALUE_BYTES

    # The store: requests are staged

    def txn(self, txn: Txn, done: Callable[[TxnOutcome], None]) -> None:
        check_txn(txn, self.max_value_bytes)
        self._check_room()
        decided = self._keyspace.decide(txn)
        if type(decided) is not Change:
            self._stage(_Request(decided, done))  # type: ignore[arg-type]
        elif decided.puts or decided.deletes:
            self._stage_change(decided, None, done)
        else:
            self._stage(_Request(Committed(self._keyspace.revision), done))

    def read(self, keys: Sequence[str], done: Callable[[ReadOutcome], None]) -> None:
        self._check_room()
        self._stage(_Request(self._keyspace.select(keys), done))

    def read_prefix(self, prefix: str, done: Callable[[ReadOutcome], None]) -> None:
        self._check_room()
        self._stage(_Request(self._keyspace.select_prefix(prefix), done))

    def watch(self, prefix: str, after_revision: int, notify: Callable[[WatchNotice], None]) -> Watch:
        self._check_room()
        watch = self._watches.add(prefix, after_revision, notify)
        self._stage(_Request(Committed(self._keyspace.revision), None))
        return watch

    def lease_grant(self, ttl: int, done: Callable[[LeaseOutcome], None]) -> None:
        check_ttl(ttl)
        self._check_room()
        change = self._keyspace.decide_grant(ttl)
        (lease,) = change.granted
        self._deadlines[lease.id] = None
        self._stage_change(change, lease, done)

    def lease_keep_alive(self, lease: LeaseID, done: Callable[[LeaseOutcome], None]) -> None:
        self._check_room()
        found = self._keyspace.lease(lease)
        if lease in self._deadlines:
            self._deadlines[lease] = None
        self._stage(_Request(found, done))

    def lease_remaining(self, lease: LeaseID, done: Callable[[RemainingOutcome], None]) -> None:
        self._check_room()
        found = self._keyspace.lease(lease)
        if not isinstance(found, Lease):
            self._stage(_Request(found, done))
            return
        deadline = self._deadlines[lease]
        remaining = found.ttl if deadline is None else max(0, int(deadline - self._now))
        self._stage(_Request(Remaining(lease, found.ttl, remaining), done))

    def lease_revoke(self, lease: LeaseID, done: Callable[[LeaseOutcome], None]) -> None:
        self._check_room()
        found = self._keyspace.lease(lease)
        if isinstance(found, Lease):
            self._revoke(found, done)
        else:
            self._stage(_Request(found, done))

    def tick(self, now: float) -> None:
        """The time, in seconds of a clock that never goes back.

        A lease's time begins at the first tick after its grant, keep-alive or the journal's start, so that it lives no
        shorter than it should, however far apart the ticks are.
        """
        if self.failed is not None:
            return
        self._now = now
        for lease in self._keyspace.leases() if self._deadlines else ():
            deadline = self._deadlines[lease.id]
            if deadline is None:
                self._deadlines[lease.id] = now + lease.ttl
            elif deadline <= now:
                self._revoke(lease, None)

    def _revoke(self, lease: Lease, done: Callable[[LeaseOutcome], None] | None) -> None:
        change = self._keyspace.decide_revoke(lease.id)
        assert isinstance(change, Change)
        del self._deadlines[lease.id]
        self._stage_change(change, lease, done)

    def _check_room(self) -> None:
        if len(self._staged) >= limits.MAX_STAGED_REQUESTS:
            raise Busy("the metadata journal has as many requests waiting as it takes")

    def _stage_change(self, change: Change, answer: Lease | None, done: Callable[[Any], None] | None) -> None:
        events = self._keyspace.apply(change)
        revision = self._keyspace.revision
        told = answer or new_tuple(Committed, (revision,))
        self._stage(new_tuple(_Request, (told, done, encode_change(change), revision, events)))

    def _stage(self, request: _Request) -> None:
        self._staged.append(request)
        if len(self._staged) == 1 and self._under_way is None:
            self.wake()

    # Driving

    def take(self) -> JournalGroup | None:
        """All that is staged, laid out; None if there is nothing, or a group is still under way."""
        if not self._staged or self._under_way is not None:
            return None
        group = JournalGroup(self._staged, self._end, self._end)
        self._staged = []
        self._under_way = group
        if self.failed is None:
            self._lay_out(group)
        return group

    def _lay_out(self, group: JournalGroup) -> None:
        at = group.at
        synced = at.offset
        for request in group.requests:
            if request.body is not None:
                frame, at = change_frame(at, request.body, request.revision, synced)
                group.frames.append(frame)
        if group.frames and at.offset - self._snapshot_end > max(self._options.compact_bytes, self._snapshot_end):
            group.frames.clear()
            group.contents = self._keyspace.contents()
        else:
            group.end = at

    def write(self, group: JournalGroup) -> None:
        """Write a group. A fault of the disk is not raised: it stops the journal, and `finish` says so."""
        try:
            if group.contents is not None:
                replaced = self._file
                self._file, group.end = self._put_in_place(group.contents)
                replaced.close()
            elif group.frames:
                self._file.pwritev(group.frames, group.at.offset)
        except OSError as e:
            self.failed = e

    def sync(self, group: JournalGroup, *, mark: bool = True) -> None:
        """Sync a written group; faults as in `write`. Whoever has something more urgent to do first sees to the `mark`
        afterwards."""
        if self.failed is not None or not group.needs_sync:
            return
        try:
            if group.frames:
                self._file.fdatasync()
        except OSError as e:
            self.failed = e
            return
        self._unmarked = group.end
        if mark:
            self.mark()

    def mark(self) -> None:
        """Write down how far the file is synced, if that is not done; faults as in `write`."""
        if self._unmarked is None or self.failed is not None:
            return
        try:
            self._write_mark(self._unmarked)
            self._unmarked = None
        except OSError as e:
            self.failed = e

    def finish(self, group: JournalGroup) -> None:
        """Answer a group's requests and tell the watches."""
        assert group is self._under_way, "groups are finished one after another, as they were taken"
        self._under_way = None
        if self.failed is not None:
            self._refuse(group)
            return
        if group.contents is not None:
            self._snapshot_end = group.end.offset
        self._end = group.end
        for request in group.requests:
            if request.done is not None:
                request.done(request.answer)
        for request in group.requests:
            if request.events is not None:
                self._watches.record(request.events)
        self._watches.publish()

    def _refuse(self, group: JournalGroup) -> None:
        written = group.needs_sync
        for request in group.requests:
            if request.done is None:
                continue
            if written and request.body is not None:
                request.done(OutcomeUnknown(f"the metadata journal failed while writing this: {self.failed}"))
            else:
                request.done(StoreUnavailable(f"the metadata journal has stopped: {self.failed}; restart it"))

    def close(self) -> None:
        """Close the files and let go of the directory. No group is under way; what is staged is refused."""
        assert self._under_way is None, "a group is still under way"
        self.mark()
        failed, self.failed = self.failed, OSError(errno.EBADF, "it was closed")
        try:
            if failed is None:
                self._mark_file.fdatasync()
        finally:
            self._file.close()
            self._mark_file.close()
            self._lock.release()
            if (group := self.take()) is not None:
                self.finish(group)

    # Files

    def _put_in_place(self, contents: Contents) -> tuple[File, Position]:
        """Replace the journal by a new file that holds `contents`, in one step that a crash cannot split."""
        target, temporary = f"{self._path}/journal", f"{self._path}/journal.new"
        buffers, end = new_file(self._cid, self._options.nonce(), contents)
        if self._fs.exists(temporary):
            self._fs.unlink(temporary)
        file = self._fs.create(temporary)
        try:
            file.allocate(end.offset + max(self._options.compact_bytes, end.offset))
            file.pwritev(buffers, 0)
            file.fdatasync()
            self._fs.rename(temporary, target)
            self._fs.sync_dir(self._path)
        except OSError:
            file.close()
            with suppress(OSError):
                self._fs.unlink(temporary)
            raise
        return file, end

    def _open_mark(self) -> File:
        path = f"{self._path}/synced"
        if self._fs.exists(path):
            return self._fs.open(path)
        file = self._fs.create(path)
        self._fs.sync_dir(self._path)
        return file

    def _write_mark(self, end: Position) -> None:
        self._mark_file.pwritev([encode_mark(Mark(end.nonce, end.offset))], 0)


def _load(fs: FileSystem, path: str, cid: ClusterID) -> Loaded:
    journal, mark_path = f"{path}/journal", f"{path}/synced"
    mark = decode_mark(_read_file(fs, mark_path)) if (marked := fs.exists(mark_path)) else None
    if fs.exists(journal):
        return load(_read_file(fs, journal), mark, cid, journal)
    if marked:
        raise JournalCorrupt("the file is gone: no journal", segment=path, offset=0)
    return Loaded(Keyspace(), torn=False)


def _read_file(fs: FileSystem, path: str) -> bytes:
    file = fs.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def _term(keyspace: Keyspace) -> Term:
    leader = keyspace.get(LEADER_KEY)
    return Term(0) if leader is None else decode_leader(leader.value).term


def _typed(e: OSError, path: str) -> VarlogError:
    if e.errno in _FULL:
        return DiskFull(f"no space is left for the metadata journal in {path}")
    if e.errno in _NOT_WRITABLE:
        return NotWritable(f"{path} cannot be written: {e.strerror}")
    return StoreUnavailable(f"the disk failed the metadata journal in {path}: {e}")
