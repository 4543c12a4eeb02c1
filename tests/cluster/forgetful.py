"""Real files that forget, when their process is killed, what was not synced.

A killed process alone loses nothing: what it wrote is in the page cache. A machine that loses power loses it all the
same. `ForgetfulFileSystem` makes the one look like the other. It keeps in the memory of its process what was written
since the last `fdatasync`, and which names were made, changed and removed since the last `sync_dir`; those calls do it
to the real files. So a SIGKILL leaves in the directory exactly what was synced, while the process itself sees
everything it did.

A file that was made and whose name is not synced lies in a scratch directory meanwhile, so that its content can be
synced before its name is; the rename into place is the sync of the name. Scratch must be on the same file system, and
belongs to one process at a time; what it holds at a start is what an earlier process never synced.

Nothing is really synced, because nothing here survives a real loss of power and nothing needs to: a sync costs what the
writes cost. A lock is the operating system's, at once, because other processes must find it.

What always holds:

- at any moment the directory is what the syncs so far left, or, within a sync, a state between two of its steps, which
  a real disk could have been caught in as well;
- every handle of a file, and every later one, sees the same content.
"""

from __future__ import annotations

import errno
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from varlog.storage.files import Buffer, OSFile, OSFileSystem, OSLock


class _Inode:
    """A real file and what was done to it since its last sync."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.handles = 0
        self.changes = 0
        """How many changes of names that are not synced concern it."""
        self._file = OSFile(fd)
        self._lock = threading.Lock()
        self._durable = self._size = self._kept = self._file.size()
        """How long the real file is, how long it is seen to be, and up to where its bytes still count."""
        self._writes: list[tuple[int, bytes]] = []
        """What is not synced: (offset, bytes), ascending, without overlap."""

    @property
    def is_clean(self) -> bool:
        return not self._writes and self._durable == self._size == self._kept

    @property
    def is_nameless(self) -> bool:
        return os.fstat(self.fd).st_nlink == 0

    def size(self) -> int:
        return self._size

    def read(self, length: int, offset: int) -> bytes:
        with self._lock:
            end = min(offset + length, self._size)
            if offset >= end:
                return b""
            found = bytearray(end - offset)
            if offset < self._kept:
                real = self._file.pread(min(end, self._kept) - offset, offset)
                found[: len(real)] = real
            first = max(0, bisect_right(self._writes, offset, key=lambda write: write[0]) - 1)
            for start, data in self._writes[first:]:
                if start >= end:
                    break
                part = data[max(0, offset - start) : end - start]
                at = max(0, start - offset)
                found[at : at + len(part)] = part
            return bytes(found)

    def write(self, data: bytes, offset: int) -> None:
        if not data:
            return
        with self._lock:
            end = offset + len(data)
            if self._writes and offset < self._writes[-1][0] + len(self._writes[-1][1]):
                self._writes = [*_outside(self._writes, offset, end), (offset, data)]
                self._writes.sort()
            else:
                self._writes.append((offset, data))
            self._size = max(self._size, end)

    def truncate(self, size: int) -> None:
        with self._lock:
            self._writes = _outside(self._writes, size, max(size, self._size))
            self._kept = min(self._kept, size)
            self._size = size

    def allocate(self, size: int) -> None:
        with self._lock:
            self._size = max(self._size, size)

    def sync(self) -> None:
        with self._lock:
            if self._kept < self._durable:
                self._file.truncate(self._kept)
            for offset, data in self._writes:
                self._file.pwritev([data], offset)
            if self._file.size() != self._size:
                self._file.truncate(self._size)
            self._durable = self._kept = self._size
            self._writes = []


def _outside(writes: Sequence[tuple[int, bytes]], begin: int, end: int) -> list[tuple[int, bytes]]:
    """What is left of these writes when [begin, end) is taken out."""
    left = []
    for start, data in writes:
        stop = start + len(data)
        if start < begin:
            left.append((start, data[: begin - start]))
        if stop > end:
            left.append((max(start, end), data[max(0, end - start) :]))
    return left


class _Change(NamedTuple):
    """Something done to the names of a directory, that the sync of the directory will really do."""

    do: Callable[[], None]
    inodes: tuple[_Inode, ...]


class _Names:
    """What a directory's names are, where that differs from the real directory."""

    def __init__(self) -> None:
        self.changes: list[_Change] = []
        self.shown: dict[str, _Inode | None] = {}

    def change(self, do: Callable[[], None], *inodes: _Inode, **shown: _Inode | None) -> None:
        for inode in inodes:
            inode.changes += 1
        self.changes.append(_Change(do, inodes))
        self.shown.update(shown)


class ForgetfulFile:
    """An open file."""

    __slots__ = ("_files", "_inode")

    def __init__(self, files: ForgetfulFileSystem, inode: _Inode) -> None:
        self._files = files
        self._inode: _Inode | None = inode
        inode.handles += 1

    @property
    def _open(self) -> _Inode:
        if self._inode is None:
            raise OSError(errno.EBADF, "the file is closed")
        return self._inode

    def pread(self, length: int, offset: int) -> bytes:
        return self._open.read(length, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._open.write(b"".join(buffers), offset)

    def fdatasync(self) -> None:
        self._open.sync()

    def allocate(self, size: int) -> None:
        self._open.allocate(size)

    def truncate(self, size: int) -> None:
        self._open.truncate(size)

    def size(self) -> int:
        return self._open.size()

    def forget(self) -> None:
        """Nothing is kept twice."""

    def close(self) -> None:
        inode, self._inode = self._open, None
        self._files.closed(inode)


class ForgetfulFileSystem:
    """See the module's text."""

    def __init__(self, scratch: str) -> None:
        self._real = OSFileSystem()
        self._real.mkdir(scratch)
        for name in os.listdir(scratch):
            os.unlink(f"{scratch}/{name}")
        self._scratch = scratch
        self._numbers = count(1)
        self._lock = threading.RLock()
        self._names: dict[str, _Names] = {}
        """By directory; one without an entry is as it really is."""
        self._inodes: dict[tuple[int, int], _Inode] = {}
        """By device and number: the files that are open, unsynced, or have unsynced names."""

    # Files

    def open(self, path: str) -> ForgetfulFile:
        with self._lock:
            return ForgetfulFile(self, self._find(os.path.abspath(path)))

    def create(self, path: str) -> ForgetfulFile:
        path = os.path.abspath(path)
        directory, name = os.path.split(path)
        with self._lock:
            self._require_directory(directory)
            if self.exists(path):
                raise FileExistsError(errno.EEXIST, "the name is taken", path)
            unnamed = f"{self._scratch}/{next(self._numbers)}"
            inode = self._inode(os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            self._names_in(directory).change(lambda: os.rename(unnamed, path), inode, **{name: inode})
            return ForgetfulFile(self, inode)

    def closed(self, inode: _Inode) -> None:
        """A handle was given back."""
        with self._lock:
            inode.handles -= 1
            self._let_go(inode)

    # Names

    def exists(self, path: str) -> bool:
        directory, name = os.path.split(os.path.abspath(path))
        with self._lock:
            names = self._names.get(directory)
            if names is not None and name in names.shown:
                return names.shown[name] is not None
            return os.path.exists(path)

    def is_writable_directory(self, path: str) -> bool:
        return self._is_directory(os.path.abspath(path)) and self._real.is_writable_directory(path)

    def listdir(self, path: str) -> list[str]:
        path = os.path.abspath(path)
        with self._lock:
            self._require_directory(path)
            found = set(os.listdir(path))
            if path in self._names:
                for name, inode in self._names[path].shown.items():
                    (found.discard if inode is None else found.add)(name)
            return sorted(found)

    def mkdir(self, path: str) -> None:
        path = os.path.abspath(path)
        with self._lock:
            if self._is_directory(path):
                return
            if self.exists(path):
                raise FileExistsError(errno.EEXIST, "a file has that name", path)
            parent = os.path.dirname(path)
            self.mkdir(parent)
            self._apply(parent)
            os.mkdir(path)

    def rename(self, source: str, target: str) -> None:
        source, target = os.path.abspath(source), os.path.abspath(target)
        directory, name = os.path.split(target)
        with self._lock:
            inode = self._find(source)
            if os.path.dirname(source) != directory:
                raise OSError(errno.EXDEV, "names change within one directory here", target)
            if self._is_directory(target):
                raise IsADirectoryError(errno.EISDIR, "is a directory", target)
            replaced = self._find(target) if self.exists(target) else None
            concerned = (inode,) if replaced is None else (inode, replaced)
            shown = {os.path.basename(source): None, name: inode}
            self._names_in(directory).change(lambda: os.rename(source, target), *concerned, **shown)

    def unlink(self, path: str) -> None:
        path = os.path.abspath(path)
        directory, name = os.path.split(path)
        with self._lock:
            inode = self._find(path)
            self._names_in(directory).change(lambda: os.unlink(path), inode, **{name: None})

    def rmdir(self, path: str) -> None:
        path = os.path.abspath(path)
        parent, name = os.path.split(path)

        def remove() -> None:
            self._apply(path)
            os.rmdir(path)

        with self._lock:
            if self.listdir(path):
                raise OSError(errno.ENOTEMPTY, "the directory is not empty", path)
            self._names_in(parent).change(remove, **{name: None})

    def sync_dir(self, path: str) -> None:
        path = os.path.abspath(path)
        with self._lock:
            self._require_directory(path)
            self._apply(path)

    def lock(self, path: str) -> OSLock:
        return self._real.lock(path)

    # Inside

    def _names_in(self, directory: str) -> _Names:
        return self._names.setdefault(directory, _Names())

    def _apply(self, directory: str) -> None:
        """Do to the real directory what was done to it here."""
        names = self._names.pop(directory, None)
        for do, inodes in () if names is None else names.changes:
            do()
            for inode in inodes:
                inode.changes -= 1
                self._let_go(inode)

    def _is_directory(self, path: str) -> bool:
        parent, name = os.path.split(path)
        with self._lock:
            names = self._names.get(parent)
            return (names is None or name not in names.shown) and os.path.isdir(path)

    def _require_directory(self, path: str) -> None:
        if not self._is_directory(path):
            if self.exists(path):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)

    def _find(self, path: str) -> _Inode:
        directory, name = os.path.split(path)
        names = self._names.get(directory)
        if names is None or name not in names.shown:
            return self._inode(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        inode = names.shown[name]
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return inode

    def _inode(self, fd: int) -> _Inode:
        found = os.fstat(fd)
        key = found.st_dev, found.st_ino
        if key in self._inodes:
            os.close(fd)
        else:
            self._inodes[key] = _Inode(fd)
        return self._inodes[key]

    def _let_go(self, inode: _Inode) -> None:
        """Forget a file that is what it really is, or that nobody can reach any more."""
        if not inode.handles and not inode.changes and (inode.is_clean or inode.is_nameless):
            found = os.fstat(inode.fd)
            del self._inodes[found.st_dev, found.st_ino]
            os.close(inode.fd)
