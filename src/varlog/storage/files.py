"""The file seam: the few operations the system asks of a disk.

Storage and the metadata journal see files only through these two interfaces. `OSFileSystem` is the real thing;
`varlog.sim.disk` stands in for it in the simulator and forgets what was not synced.

What the callers rely on, and an implementation must give:

- a write is not durable before `File.fdatasync` returned; a failed `fdatasync` makes nothing durable, ever;
- a created, renamed or removed name is not durable before `FileSystem.sync_dir` of its directory returned;
- errors are `OSError` with an errno (ENOSPC, EIO, ...), raised before or after any part of the operation took place.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

Buffer = bytes | bytearray | memoryview

_IOV_MAX = 1024
_FEW = 8
_SMALL = 512
"""More buffers than a few, that are smaller than this on average, are copied together for less than the kernel takes to
gather them."""


class File(Protocol):
    """An open file. Positions are explicit; there is no cursor."""

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all buffers one after another from `offset`."""

    def fdatasync(self) -> None: ...

    def allocate(self, size: int) -> None:
        """Reserve space so that the file is at least `size` bytes; new bytes read as zeros."""

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def forget(self) -> None:
        """What is synced will hardly be read soon: it need not be kept in memory."""

    def close(self) -> None: ...


class FileSystem(Protocol):
    """Names and directories. Paths are plain strings with `/`."""

    def open(self, path: str) -> File: ...

    def create(self, path: str) -> File:
        """Create a new file; FileExistsError if the name is taken."""

    def exists(self, path: str) -> bool: ...

    def is_writable_directory(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def mkdir(self, path: str) -> None:
        """Make a directory and its missing parents, durably; an existing one is fine."""

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source` in one step."""

    def unlink(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def lock(self, path: str) -> Lock:
        """Take an exclusive lock that ends with the process; BlockingIOError if it is held."""


class Lock(Protocol):
    def release(self) -> None: ...


class OSFile:
    """A file of the operating system."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pread(self, length: int, offset: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        have = len(data)
        while have < length and (more := os.pread(self._fd, length - have, offset + have)):
            parts.append(more)
            have += len(more)
        return b"".join(parts)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        if len(buffers) <= _FEW:
            self._write(buffers, offset)
            return
        if sum(map(len, buffers)) < _SMALL * len(buffers):
            buffers = [b"".join(buffers)]
        for start in range(0, len(buffers), _IOV_MAX):
            offset += self._write(buffers[start : start + _IOV_MAX], offset)

    def _write(self, buffers: Sequence[Buffer], offset: int) -> int:
        """As many as the kernel gathers in one call; how many bytes they have."""
        wanted = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers, offset)
        if written < wanted:
            self._write_rest(b"".join(buffers)[written:], offset + written)
        return wanted

    def _write_rest(self, rest: bytes, offset: int) -> None:
        view = memoryview(rest)
        while view:
            written = os.pwrite(self._fd, view, offset)
            if written == 0:
                raise OSError(errno.EIO, "the file takes no more bytes")
            view = view[written:]
            offset += written

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def allocate(self, size: int) -> None:
        if size <= self.size():
            return
        try:
            os.posix_fallocate(self._fd, 0, size)
        except OSError as e:
            if e.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            os.ftruncate(self._fd, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def forget(self) -> None:
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._fd)


class OSLock:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        os.close(self._fd)


class OSFileSystem:
    """The operating system's files."""

    def open(self, path: str) -> OSFile:
        return OSFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def create(self, path: str) -> OSFile:
        return OSFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_writable_directory(self, path: str) -> bool:
        return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def mkdir(self, path: str) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        if parent and parent != path:
            self.mkdir(parent)
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
        self.sync_dir(parent or ".")

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> OSLock:
        # Whoever can open the file can lock it, also for reading only: nobody but its owner may.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_mode & 0o077:
                with suppress(OSError):  # the file is another user's, or the file system has no modes
                    os.fchmod(fd, 0o600)
        except BaseException:
            os.close(fd)
            raise
        return OSLock(fd)
