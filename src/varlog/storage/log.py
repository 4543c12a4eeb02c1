"""LogStreamStorage: one replica's log on disk, in the commit ordering.

Records are staged in log order (`stage_batch`, `stage_commit`, ...) and then written in groups: see `grouped`, which
also says what must always hold.

Reading (`read`, `read_llsn`, `commit_contexts`) may happen in any thread. Only what is committed is read, and only a
batch that is durable is ever committed, so readers and the writer never meet. A corrupt replica is read as far as it is
sound.

The owner's deduplication table goes into the head of every segment (`snapshot_source`); it must be as of *after* the
record being staged, so owners change their table before they stage.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from varlog import limits
from varlog.batch import BatchHeader
from varlog.errors import ConsistencyViolation, InvalidArgument
from varlog.storage import copying, trim
from varlog.storage import format as fmt
from varlog.storage.files import Buffer, FileSystem, Lock
from varlog.storage.format import FrameKind, LogBase, Members, TrimRecord
from varlog.storage.group import WriteGroup
from varlog.storage.logfiles import TRIM_NAME, publish
from varlog.storage.options import StorageOptions
from varlog.storage.readable import ReadableLog
from varlog.storage.reader import StoredBatch
from varlog.storage.recovery import Recovered, Recovery
from varlog.storage.replay import Replay
from varlog.storage.state import EMPTY, LogState
from varlog.types import GLSN, LLSN, CommitContext, Epoch, LogStreamIdentity, Room, StorageNodeID, Version

__all__ = ["LogStreamStorage", "Recovered", "StorageOptions", "StoredBatch", "WriteGroup"]


def _no_snapshot() -> bytes:
    return b""


class LogStreamStorage(ReadableLog):
    """See the module's text. Made by `create` and `open`."""

    _replay = Replay
    _state: LogState

    def __init__(
        self, fs: FileSystem, path: str, identity: LogStreamIdentity, options: StorageOptions, lock: Lock
    ) -> None:
        super().__init__(fs, path, identity, options, lock)
        self._state = LogState(EMPTY)
        self._runs = False
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
        storage, names = cls._made(fs, path, identity, options)
        with storage._abandoned_on_error():
            storage._prepare(base, TRIM_NAME in names)
        return storage

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

    def _recover(self) -> None:
        recovery = Recovery(self._fs, self._path, self._identity, self._reader, self._options.segment_bytes)
        self.recovered = recovery.inspect()
        self._state = recovery.state
        self._segments = tuple(recovery.segments)
        self._readable_end = self._state.end
        self.durable_version = self._state.version
        if recovery.trim is not None:
            self._trim_llsn, self._trim_glsn = recovery.trim.llsn, recovery.trim.glsn
        self._go_on_after(recovery)

    def close(self) -> None:
        self.flush_commits()
        super().close()

    def _snapshot(self) -> bytes:
        return self.snapshot_source()

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
            self._runs = False
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
            self._runs = True
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
            record = TrimRecord(
                self._identity, llsn, glsn, version, epoch, state.hwm, state.committed_end, kept[0].seq,
                self.snapshot_source(),
            )  # fmt: skip
            self._stage_record_of_trim(record, doomed)

    @property
    def staged(self) -> bool:
        """Whether `take` has something to give."""
        filling = self._filling
        return bool(self._full or filling.steps or filling.flush)

    def flush_commits(self) -> None:
        """Let the next group be synced, so that every commit context staged so far becomes durable with it."""
        with self._lock:
            if self._active is not None and self._state.version > self.durable_version:
                self._filling.flush = True
                self._filling.needs_sync = True

    def _finished(self, group: WriteGroup) -> None:
        self._readable_end = group.written_end
        if group.synced:
            self.durable_version = group.version
