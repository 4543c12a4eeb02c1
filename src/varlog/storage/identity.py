"""Whose log a directory holds, and in which ordering, as its own files say it.

The path of a log stream names its cluster, storage node and log stream, not its topic; and a path can be a copy. Every
segment begins with all of it, and no segment has its name before its head is whole.
"""

from __future__ import annotations

from varlog.errors import Corrupt
from varlog.storage import format as fmt
from varlog.storage.directory import readable
from varlog.storage.files import FileSystem
from varlog.storage.format import SegmentHeader
from varlog.storage.segment import parse_segment_name
from varlog.types import LogStreamIdentity, Ordering


def identify(fs: FileSystem, path: str) -> LogStreamIdentity | None:
    """The identity in the newest segment whose head can be read; None if there is no segment. `Corrupt` if there are
    segments and none says whose they are."""
    header = _newest_header(fs, path)
    return header.identity if header is not None else None


def ordering_of(fs: FileSystem, path: str) -> Ordering | None:
    """The ordering, told by the same segment."""
    header = _newest_header(fs, path)
    return header.ordering if header is not None else None


def _newest_header(fs: FileSystem, path: str) -> SegmentHeader | None:
    with readable(path.rpartition("/")[2]):
        names = [name for name in fs.listdir(path) if parse_segment_name(name) is not None]
    why: Corrupt | None = None
    for name in reversed(names):
        try:
            header = _header(fs, path, name)
        except Corrupt as unreadable:
            why = why or unreadable
            continue
        if header is not None:
            return header
    if names:
        raise why or Corrupt("no segment says whose it is", segment=names[-1], offset=0)
    return None


def _header(fs: FileSystem, path: str, name: str) -> SegmentHeader | None:
    with readable(name):
        file = fs.open(f"{path}/{name}")
        try:
            return fmt.decode_segment_header(file.pread(fmt.SEGMENT_HEADER_BYTES, 0))
        finally:
            file.close()
