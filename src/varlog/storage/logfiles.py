"""LogFiles: the side of a log stream's storage that touches the disk to change it.

One thread at a time carries out write groups here. Nothing is decided: groups say what to do.

A trim may leave thousands of files, and the file system takes some milliseconds to delete a large one. So a group only
puts them on a list, and they are deleted one by one by another thread (`delete_next`), beside the groups. No deletion
is waited for or synced: a name that comes back after a crash is a leftover that recovery finds.

The orders that make every crash recoverable:

- A file gets its name (`publish`: written under another name, synced, renamed, directory synced) only when it is whole.
  So no segment has a torn head and no trim record is torn.
- A segment is closed and synced before the next one is published, and a segment is published before any frame is
  written to it.
- The trim record is published after all that was staged before it is synced, and before any file is deleted.
- The mark is written some time after a sync has succeeded and says so. It is not waited for: any version of it that
  survives a crash is true. It lets damage in the last synced frames be told from a torn tail, when no later frame can
  tell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from varlog.storage import format as fmt
from varlog.storage.files import File, FileSystem
from varlog.storage.format import Mark
from varlog.storage.group import AppendFrames, CloseSegment, StartSegment, Trim, WriteGroup

LOCK_NAME = "lock"
MARK_NAME = "synced"
TRIM_NAME = "lwm"
CONDEMNED_NAME = "condemned"
"""Says that damage was found; a replica that has it is corrupt until it is repaired, whatever a later open looks at."""
UNFINISHED = ".tmp"
_ROOM_NAME = "room"


def publish(fs: FileSystem, directory: str, name: str, data: bytes, allocate: int = 0) -> File:
    """Make a file that is whole and durable from the moment it has its name; replaces one of the same name. What could
    only be begun is not left: on a disk that has just become full it may hold all that was free."""
    unfinished = f"{directory}/{name}{UNFINISHED}"
    if fs.exists(unfinished):
        fs.unlink(unfinished)
    file = fs.create(unfinished)
    try:
        file.allocate(allocate)
        file.pwritev([data], 0)
        file.fdatasync()
        fs.rename(unfinished, f"{directory}/{name}")
        fs.sync_dir(directory)
    except BaseException:
        file.close()
        with suppress(OSError):
            fs.unlink(unfinished)
        raise
    return file


def make_room(fs: FileSystem, directory: str, size: int) -> None:
    """Raise unless a file of that size can be made and be durable. Nothing is left of it, or what is left of any file
    that was only begun."""
    path = f"{directory}/{_ROOM_NAME}{UNFINISHED}"
    if fs.exists(path):
        fs.unlink(path)
    file = fs.create(path)
    try:
        file.allocate(size)
        file.pwritev([bytes(1)], 0)
        file.fdatasync()
    finally:
        file.close()
        fs.unlink(path)


class LogFiles:
    """See the module's text."""

    def __init__(
        self, fs: FileSystem, directory: str, seq: int, active: File, mark_file: File, segment_bytes: int
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._seq = seq
        self._file: File | None = active
        self._mark_file = mark_file
        self._segment_bytes = segment_bytes
        self._unmarked: int | None = None
        """The active file is synced up to here, and the mark does not say so yet."""
        self._doomed: deque[str] = deque()
        """Segments below the trim record, which is durable."""
        self._left: deque[str] = deque()
        """Others below it, for which the next record is waited for: it is not certain that this one is durable, or that
        they can be deleted."""

    @property
    def _active(self) -> File:
        assert self._file is not None, "a segment was closed and none started: the step between them failed"
        return self._file

    def write(self, group: WriteGroup) -> None:
        """Carry out the steps of a group."""
        for step in group.steps:
            if isinstance(step, AppendFrames):
                self._active.pwritev(step.buffers, step.offset)
            elif isinstance(step, CloseSegment):
                self._close(step)
            elif isinstance(step, StartSegment):
                self._start(step)
            else:
                self._trim(step)

    def _close(self, step: CloseSegment) -> None:
        file = self._active
        end = step.offset + len(step.data)
        file.pwritev([step.data], step.offset)
        file.truncate(end)
        file.fdatasync()
        self._mark(end)
        self._unmarked = None
        self._file = None
        if step.is_copy:
            file.forget()
        file.close()

    def _start(self, step: StartSegment) -> None:
        self._file = publish(self._fs, self._directory, step.name, step.head, self._segment_bytes)
        self._seq = step.seq
        self._mark(len(step.head))
        self._mark_file.fdatasync()

    def _trim(self, step: Trim) -> None:
        self._active.fdatasync()
        publish(self._fs, self._directory, TRIM_NAME, step.record).close()
        _move(self._left, self._doomed)
        self.doom(step.victims)

    def doom(self, names: Iterable[str]) -> None:
        """Segments are to be deleted, because they lie below a trim record that is durable."""
        self._doomed.extend(names)

    def leave(self, names: Iterable[str]) -> None:
        """They are to be deleted after the next trim."""
        self._left.extend(names)

    @property
    def doomed(self) -> int:
        """How many segments can be deleted now."""
        return len(self._doomed)

    def delete_next(self) -> str:
        """Delete one of these; which it was. If that is not possible all of them are left until the next trim."""
        name = self._doomed[0]
        try:
            with suppress(FileNotFoundError):  # somebody else was quicker, and the others should not wait for that
                self._fs.unlink(f"{self._directory}/{name}")
        except OSError:
            _move(self._doomed, self._left)
            raise
        self._doomed.popleft()
        return name

    def sync(self, offset: int) -> None:
        """Everything written to the active file, up to `offset`, becomes durable; `mark` says so."""
        self._active.fdatasync()
        self._unmarked = offset

    def mark(self) -> None:
        """Write down how far the active file is synced."""
        offset, self._unmarked = self._unmarked, None
        if offset is not None:
            self._mark(offset)

    def _mark(self, offset: int) -> None:
        self._mark_file.pwritev([fmt.encode_mark(Mark(self._seq, offset))], 0)

    def sync_mark(self) -> None:
        self._mark_file.fdatasync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._mark_file.close()


def _move(names: deque[str], to: deque[str]) -> None:
    """Name by name, because another thread may add some."""
    while names:
        to.append(names.popleft())
