"""Real files on a disk that is full whenever a test says so.

While a marker file exists, nothing may grow: reserving space and writing beyond the end of a file fail with ENOSPC,
after as much of the write as fits into the file as it is. Space that was reserved before can be written, and files can
be made, renamed and removed, as on a real disk that is full. Removing the marker frees space.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from varlog.storage.files import Buffer, OSFile, OSFileSystem


class FillableFile(OSFile):
    def __init__(self, fd: int, marker: str) -> None:
        super().__init__(fd)
        self._marker = marker

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        room = self.size() - offset
        if sum(map(len, buffers)) > room and self._is_full:
            super().pwritev([b"".join(buffers)[: max(0, room)]], offset)
            raise OSError(errno.ENOSPC, "no space left")
        super().pwritev(buffers, offset)

    def allocate(self, size: int) -> None:
        if size > self.size() and self._is_full:
            raise OSError(errno.ENOSPC, "no space left")
        super().allocate(size)

    @property
    def _is_full(self) -> bool:
        return os.path.exists(self._marker)


class FillableFileSystem(OSFileSystem):
    """See the module's text."""

    def __init__(self, marker: str) -> None:
        self._marker = marker

    def open(self, path: str) -> FillableFile:
        return FillableFile(os.open(path, os.O_RDWR | os.O_CLOEXEC), self._marker)

    def create(self, path: str) -> FillableFile:
        return FillableFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), self._marker)
