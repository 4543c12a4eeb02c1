"""A disk that takes as long as the test wants: its syncs, or its reads, wait at a gate.

Only threads wait there. The event loop's own thread never does: a test would stand still with it, and the code under
test is written so that it need not.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from varlog.storage.files import Buffer, File, OSFile, OSFileSystem


class Gate:
    """Open at first. Who arrives while it is closed is counted, and waits."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.waiting = 0

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def passage(self) -> None:
        if threading.current_thread() is threading.main_thread() or self._open.is_set():
            return
        self.waiting += 1
        self._open.wait()
        self.waiting -= 1


class GatedFile:
    def __init__(self, file: OSFile, gates: GatedFileSystem) -> None:
        self._file = file
        self._gates = gates

    def pread(self, length: int, offset: int) -> bytes:
        self._gates.reads.passage()
        return self._file.pread(length, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._file.pwritev(buffers, offset)

    def fdatasync(self) -> None:
        self._gates.syncs.passage()
        self._file.fdatasync()

    def allocate(self, size: int) -> None:
        self._file.allocate(size)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def size(self) -> int:
        return self._file.size()

    def forget(self) -> None:
        self._gates.forgotten += 1
        self._file.forget()

    def close(self) -> None:
        self._file.close()


class GatedFileSystem(OSFileSystem):
    """See the module's text."""

    def __init__(self) -> None:
        self.reads = Gate()
        self.syncs = Gate()
        self.deletions = Gate()
        self.forgotten = 0
        """How many files were not to be kept in memory."""

    def open(self, path: str) -> File:  # type: ignore[override]
        return GatedFile(super().open(path), self)

    def create(self, path: str) -> File:  # type: ignore[override]
        return GatedFile(super().create(path), self)

    def unlink(self, path: str) -> None:
        self.deletions.passage()
        super().unlink(path)
