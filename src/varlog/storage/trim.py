"""Trim (L5, rule 14): what is deleted, and the record that outlives it.

Entries below a point are refused from the moment the trim is staged; their files go later, and only as whole segments:
those before the newest one whose batches all lie below the commit that has the point in it, so that a copy of what is
kept can begin with a whole commit. The record says which segment is the first one kept. Whatever lies before that is
still to be deleted, or comes back from a deletion that was not synced.
"""

from __future__ import annotations

from typing import Any, TypeVar

from varlog.errors import Corrupt, WrongIdentity
from varlog.storage import format as fmt
from varlog.storage.directory import readable
from varlog.storage.files import FileSystem
from varlog.storage.format import TrimRecord
from varlog.storage.logfiles import TRIM_NAME
from varlog.storage.segment import SegmentFile
from varlog.types import LLSN, LogStreamIdentity

SegmentT = TypeVar("SegmentT", bound=SegmentFile[Any])


def split(segments: tuple[SegmentT, ...], llsn: LLSN) -> tuple[tuple[SegmentT, ...], tuple[SegmentT, ...]]:
    """(to be deleted, to be kept) when nothing below `llsn` is wanted. The newest segment is always kept."""
    first = 0
    while first < len(segments) - 1 and segments[first].end <= llsn:
        first += 1
    return segments[:first], segments[first:]


def read_record(fs: FileSystem, directory: str, identity: LogStreamIdentity) -> TrimRecord | None:
    """The trim record, None if nothing was ever trimmed; it was published whole, so it is whole or damaged."""
    path = f"{directory}/{TRIM_NAME}"
    if not fs.exists(path):
        return None
    with readable(TRIM_NAME):
        file = fs.open(path)
        try:
            record = fmt.decode_trim(file.pread(file.size(), 0))
        finally:
            file.close()
    if record is None:
        raise Corrupt("a damaged trim record", segment=TRIM_NAME, offset=0)
    if record.identity != identity:
        raise WrongIdentity(f"{path} belongs to {record.identity}, not to {identity}; nothing was changed")
    return record
