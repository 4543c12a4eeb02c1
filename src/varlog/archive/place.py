"""Where an archive is, or another table of ours: a directory, or a prefix of an object store.

It is named by a path or by a URI. Data files go through `pyarrow.fs`, the table's log through `deltalake`; both
reach object stores by themselves, so `Place` only says what each of them is to be told, and knows what a local disk
needs besides: nothing is durable there before file and directory were synced, and a file appears under its name whole
or not at all because it is renamed when it is done. An object store gives both by itself: an object is there, durably,
once its upload was completed.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from varlog.errors import DiskFull, InvalidArgument, NotWritable
from varlog.storage.files import OSFileSystem

DATA: Final = "data"
"""Under it are the data files."""
LOG: Final = "_delta_log"

_UNUSABLE: Final = re.compile(r"[%\\\0-\x1f\x7f]")
"""deltalake takes %41 in a path for an A, and a backslash for a slash."""
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
_NUMBER: Final = re.compile(r"\[?(?:os error|errno) (\d+)\]?", re.IGNORECASE)
"""How pyarrow and deltalake quote the operating system."""


def resolve(uri: str) -> str:
    """The one form in which the place of an archive is stored and compared: an absolute path, or a URI."""
    scheme, separator, _ = uri.partition("://")
    if not separator:
        if not uri:
            raise InvalidArgument("name the place of the archive: a path, or a URI")
        return _checked(os.path.abspath(uri))
    if scheme.lower() == "file":
        parts = urlsplit(uri)
        if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/") or parts.query or parts.fragment:
            raise InvalidArgument(f"{uri}: a file URI is file:///absolute/path")
        return _checked(os.path.abspath(unquote(parts.path)))
    return uri.rstrip("/")


def _checked(path: str) -> str:
    if _UNUSABLE.search(path):
        raise InvalidArgument(f"{path!r}: the path of an archive has no percent sign, backslash or control character")
    return path


class Place:
    """The place of one archive, or of what else `what` says. Paths in it are relative."""

    def __init__(self, uri: str, filesystem: Any, root: str, *, is_local: bool, what: str = "archive") -> None:
        self.uri = uri
        """As `resolve` gives it; also what deltalake is told."""
        self.filesystem = filesystem
        self.is_local = is_local
        self._root = root
        self._what = what

    @classmethod
    def of(cls, uri: str, what: str = "archive") -> Place:
        """The place that is meant by a path or a URI."""
        resolved = resolve(uri)
        if "://" not in resolved:
            return cls(resolved, fs.LocalFileSystem(), resolved, is_local=True, what=what)
        try:
            filesystem, root = fs.FileSystem.from_uri(resolved)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidArgument(f"{uri}: {error}; use a path, or a URI such as s3://bucket/prefix") from None
        return cls(resolved, filesystem, root, is_local=False, what=what)

    def path(self, relative: str) -> str:
        """A path in it as the file system knows it."""
        return f"{self._root}/{relative}"

    def make(self) -> None:
        """Make its directories, durably."""
        with self.typed_errors():
            if self.is_local:
                OSFileSystem().mkdir(self.path(DATA))
                OSFileSystem().mkdir(self.path(LOG))
            else:
                self.filesystem.create_dir(self.path(DATA), recursive=True)

    def sync(self, relative: Iterable[str]) -> None:
        """Make files durable that are complete, and their names."""
        if not self.is_local:
            return
        with self.typed_errors():
            directories = set()
            for path in map(self.path, relative):
                directories.add(os.path.dirname(path))
                _sync_file(path)
            for directory in directories:
                OSFileSystem().sync_dir(directory)

    def sync_log(self, synced: set[str]) -> set[str]:
        """Make the table's log durable, all of it but the files that are known to be; those that are so now."""
        if not self.is_local:
            return synced
        names = {info.base_name for info in self.listed(LOG)}
        fresh = {name for name in names - synced if name.endswith((".json", ".parquet"))}
        if fresh:
            # The pointer to the newest checkpoint is the one file of a table that changes.
            self.sync(f"{LOG}/{name}" for name in sorted(fresh | (names & {"_last_checkpoint"})))
        return names

    def rename(self, source: str, target: str) -> None:
        """Give a complete and durable file its name, durably."""
        os.rename(self.path(source), self.path(target))
        OSFileSystem().sync_dir(os.path.dirname(self.path(target)))

    def listed(self, directory: str) -> list[Any]:
        """What is directly in a directory: `pyarrow.fs.FileInfo`s."""
        selector = fs.FileSelector(self.path(directory), allow_not_found=True)
        return [info for info in self.filesystem.get_file_info(selector) if info.type == fs.FileType.File]

    def size(self, relative: str) -> int | None:
        """How large a file is; None if there is none."""
        info = self.filesystem.get_file_info(self.path(relative))
        return int(info.size) if info.type == fs.FileType.File else None

    def open(self, relative: str) -> Any:
        """A file to read: a `pyarrow.NativeFile`."""
        return self.filesystem.open_input_file(self.path(relative))

    def remove(self, relative: str) -> None:
        """Delete a file that is in nobody's way any more; one that is gone is fine."""
        try:
            self.filesystem.delete_file(self.path(relative))
        except FileNotFoundError:
            return

    @contextmanager
    def typed_errors(self) -> Iterator[None]:
        """Turn what is said about changing files into what a caller can act on."""
        try:
            yield
        except OSError as error:
            raise self.error_of(error) from error

    def error_of(self, error: Exception) -> Exception:
        """The same of one error; what is not known stays what it is."""
        number = error.errno if isinstance(error, OSError) else None
        if number is None and (found := _NUMBER.search(str(error))):
            number = int(found[1])
        first_line = str(error).partition("\n")[0]
        if number in _NO_SPACE:
            return DiskFull(f"no space is left for the {self._what} at {self.uri}: {first_line}; free some, then go on")
        if number in _NOT_ALLOWED:
            return NotWritable(f"the {self._what} at {self.uri} cannot be written: {first_line}")
        return error


def _sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
