"""A disk that does not give back what some of its files hold."""

from __future__ import annotations

import errno
import os

from varlog.sim.disk import SimDisk, SimFile
from varlog.sim.medium import Image


class _BadFile(SimFile):
    __slots__ = ("_error",)

    _error: int

    def pread(self, _length: int, _offset: int) -> bytes:
        raise OSError(self._error, os.strerror(self._error), self._path)


class BadSectors(SimDisk):
    """Reads of the files whose paths are in `bad` fail, with EIO unless another error is set."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: set[str] = set()
        self.error = errno.EIO

    @classmethod
    def under(cls, image: Image, *bad: str, error: int = errno.EIO) -> BadSectors:
        """A disk with that on it, of which some files have gone bad."""
        disk = cls.from_image(image)
        assert isinstance(disk, BadSectors)
        disk.bad, disk.error = {*bad}, error
        return disk

    def open(self, path: str) -> SimFile:
        file = super().open(path)
        if path not in self.bad:
            return file
        bad = _BadFile(self, file._inode, path, self.life)
        bad._error = self.error
        return bad
