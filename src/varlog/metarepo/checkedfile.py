"""Files that are carried from one machine to another and may be needed years later: backups and surveys of metadata.

A file is two lines of JSON, so that any tool can look into it. The first says what it is, in which format, and the
length and CRC32C of the second, which is what it holds. A file gets its name when it is whole and durable, and never
takes that of another one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from crc32c import crc32c

from varlog import errors, limits
from varlog.storage.directory import typed_errors
from varlog.storage.files import FileSystem
from varlog.storage.logfiles import publish

FORMAT: Final = 1

_T = TypeVar("_T")


class _Header(msgspec.Struct, frozen=True):
    varlog: str
    """What the file is."""
    format: int
    bytes: int
    crc32c: int


def write(fs: FileSystem, path: Path, kind: str, content: msgspec.Struct) -> int:
    """Make a file of that content; how large it is. Refuses a name that is taken."""
    name = os.path.abspath(path)
    if fs.exists(name):
        raise errors.AlreadyExists(f"{path} exists already; choose another name, or move it away")
    body = msgspec.json.encode(content)
    header = msgspec.json.encode(_Header(kind, FORMAT, len(body), crc32c(body)))
    data = header + b"\n" + body + b"\n"
    with typed_errors(name):
        try:
            publish(fs, os.path.dirname(name), os.path.basename(name), data).close()
        except FileNotFoundError as e:
            raise errors.NotWritable(f"there is no directory {os.path.dirname(name)}") from e
    return len(data)


def read(fs: FileSystem, path: Path, kind: str, holds: type[_T]) -> _T:
    """What a file holds, if it is of that kind and whole."""
    try:
        file = fs.open(os.path.abspath(path))
        try:
            size = file.size()
            if size > limits.METADATA_STORE_BYTES:
                raise errors.BadBackup(f"{path} has {size} bytes; no {kind} has so many")
            data = file.pread(size, 0)
        finally:
            file.close()
    except OSError as e:
        raise errors.BadBackup(f"{path} cannot be read: {e.strerror}") from e
    return _decode(data, f"{path}", kind, holds)


def _decode(data: bytes, path: str, kind: str, holds: type[_T]) -> _T:
    first, _, rest = data.partition(b"\n")
    try:
        header = msgspec.json.decode(first, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise errors.BadBackup(f"{path} is no {kind}") from None
    if header.varlog != kind:
        raise errors.BadBackup(f"{path} is no {kind}: it is a {header.varlog}")
    if header.format > FORMAT:
        raise errors.UnsupportedFormat(f"{path} has format {header.format}; this release reads up to {FORMAT}")
    body = rest[: header.bytes]
    if len(body) != header.bytes or crc32c(body) != header.crc32c:
        raise errors.BadBackup(f"{path} is damaged: it is not what was written; take another copy of it")
    try:
        return msgspec.json.decode(body, type=holds)
    except (ValueError, RecursionError) as e:
        raise errors.BadBackup(f"{path} does not hold what a {kind} does: {e}") from None
