"""The operating system's files, with a note of every read."""

from __future__ import annotations

import os
from typing import NamedTuple

from varlog.storage.files import OSFile, OSFileSystem


class Read(NamedTuple):
    """What one call gave."""

    name: str
    offset: int
    length: int


class CountingFile(OSFile):
    def __init__(self, path: str, reads: list[Read]) -> None:
        super().__init__(os.open(path, os.O_RDWR))
        self._name = os.path.basename(path)
        self._reads = reads

    def pread(self, length: int, offset: int) -> bytes:
        data = super().pread(length, offset)
        self._reads.append(Read(self._name, offset, len(data)))
        return data


class CountingFileSystem(OSFileSystem):
    def __init__(self) -> None:
        self.reads: list[Read] = []

    def open(self, path: str) -> OSFile:
        return CountingFile(path, self.reads)
