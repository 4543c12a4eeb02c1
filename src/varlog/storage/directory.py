"""The directory of a log stream: whose it is while it is open, and what its errors mean.

What cannot be read is damaged, and is found in another replica (`readable`); what cannot be written may be writable
later (`typed_errors`). A process that lacks something itself, or is not allowed, learns nothing of the bytes.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from varlog.errors import Corrupt, DirectoryLocked, DiskFull, NotWritable, Poisoned, VarlogError
from varlog.storage.files import File, FileSystem, Lock
from varlog.storage.logfiles import LOCK_NAME

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_NO_DAMAGE = (*_SHORT, errno.EACCES, errno.EPERM, errno.EROFS)


def lock_directory(fs: FileSystem, path: str) -> Lock:
    """Make the directory this process's own until the lock is released."""
    if not fs.is_writable_directory(path):
        raise NotWritable(f"{path} is not a directory that can be written")
    with typed_errors(path):
        try:
            return fs.lock(f"{path}/{LOCK_NAME}")
        except BlockingIOError:
            raise DirectoryLocked(f"{path} is open already, in this process or another one; stop that first") from None


@contextmanager
def typed_errors(path: str) -> Iterator[None]:
    """Turn what the operating system says about changing files into what its caller can act on."""
    try:
        yield
    except OSError as e:
        raise error_of(path, e) from e


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Take what cannot be read of a file for damaged: waiting does not bring it back, and who needs it copies it."""
    try:
        yield
    except OSError as e:
        if e.errno in _NO_DAMAGE:
            raise
        raise Corrupt(f"unreadable bytes ({e})", segment=name, offset=0) from e


def is_shortage(error: VarlogError) -> bool:
    """Whether it was this process that lacked files or memory; then it would have met any directory."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _SHORT


def error_of(path: str, e: Exception) -> VarlogError:
    number = e.errno if isinstance(e, OSError) else None
    if is_full(e):
        return DiskFull(f"{path}: {e}")
    if number in _NOT_ALLOWED:
        return NotWritable(f"{path}: {e}")
    return Poisoned(f"{path}: {e}; nothing more is written until it is opened anew")


def is_full(e: Exception) -> bool:
    return isinstance(e, OSError) and e.errno in _NO_SPACE


def open_or_create(fs: FileSystem, path: str) -> File:
    return fs.open(path) if fs.exists(path) else fs.create(path)
