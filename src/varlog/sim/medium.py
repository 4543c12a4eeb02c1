"""What a simulated disk is made of: file contents, operations on them, and what a crash may leave of each.

Three things live here because the disk (`varlog.sim.disk`) and the enumeration of crash states (`varlog.sim.crash`)
must agree on them:

- `Content`: the bytes of one file. Space that was reserved and never written costs nothing.
- The operations: what a program did to files and names, in order. Files are named by a number that a rename does not
  change, directory entries by path.
- `outcomes`: what a power loss may leave of one operation that was not synced. A write is absent, whole, cut at any
  multiple of a sector, or zeros. Anything else (a name, a size) is absent or whole.

Cuts fall on multiples of 512 bytes *of the file*, because that is where sectors end. A write that is found as zeros
does not harm bytes it did not change: a sector holds its old or its new content, and where both are equal nothing can
have happened to it. So rewriting the bytes that are there already is always safe, as it is on a real disk.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

SECTOR_BYTES: Final = 512


class Content:
    """The bytes of a file. Bytes from `len(data)` up to `size` are zeros that take no memory."""

    __slots__ = ("data", "size")

    def __init__(self, data: bytes | bytearray = b"", size: int | None = None) -> None:
        self.data = bytearray(data)
        self.size = len(self.data) if size is None else size

    def copy(self) -> Content:
        return Content(self.data, self.size)

    def key(self) -> tuple[int, bytes]:
        """Equal for contents that no reader can tell apart."""
        return self.size, bytes(self.data).rstrip(b"\0")

    def read(self, length: int, offset: int) -> bytes:
        end = min(offset + length, self.size)
        if offset >= end:
            return b""
        found = bytes(memoryview(self.data)[offset:end])
        return found if len(found) == end - offset else found + bytes(end - offset - len(found))

    def write(self, offset: int, data: bytes) -> None:
        if not data:
            return
        end = offset + len(data)
        if offset > len(self.data):
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset:end] = data
        if end > self.size:
            self.size = end

    def truncate(self, size: int) -> None:
        del self.data[size:]
        self.size = size

    def allocate(self, size: int) -> None:
        if size > self.size:
            self.size = size


class Write(NamedTuple):
    file: int
    offset: int
    data: bytes


class Truncate(NamedTuple):
    file: int
    size: int


class Allocate(NamedTuple):
    file: int
    size: int


class SyncFile(NamedTuple):
    file: int


class SyncFailed(NamedTuple):
    """A failed sync of a file, or of a directory by its path: what was unsynced before it has had its chance.

    No later sync makes it durable.
    """

    target: int | str


class SetNames(NamedTuple):
    """Names change what they stand for, all in one step: a create or unlink sets one name, a rename two."""

    sets: tuple[tuple[str, NameTarget], ...]

    def is_in(self, directory: str) -> bool:
        """Whether a sync of that directory makes the change durable."""
        return any(parent(path) == directory for path, _ in self.sets)


class SyncDir(NamedTuple):
    path: str


class Note(NamedTuple):
    """Not an operation: something the test wants to know to have happened before a crash."""

    what: object


class NameKind(Enum):
    """What a name may stand for besides a file, which is a number."""

    DIRECTORY = "directory"
    NOTHING = "nothing"


NameTarget = int | NameKind
FileOperation = Write | Truncate | Allocate
Operation = FileOperation | SetNames | SyncFile | SyncFailed | SyncDir | Note


class Survival(Enum):
    """What a power loss left of an unsynced operation."""

    ABSENT = "absent"
    WHOLE = "whole"
    CUT = "cut"
    ZEROS = "zeros"


class Outcome(NamedTuple):
    survival: Survival
    cut: int = 0
    """How many bytes of a cut write are there."""


ABSENT: Final = Outcome(Survival.ABSENT)
WHOLE: Final = Outcome(Survival.WHOLE)
ZEROS: Final = Outcome(Survival.ZEROS)


def cuts(write: Write) -> range:
    """How many bytes of a write there may be when it was cut: up to each sector's end inside of it."""
    first = SECTOR_BYTES - write.offset % SECTOR_BYTES
    return range(first, len(write.data), SECTOR_BYTES)


def outcomes(operation: FileOperation | SetNames) -> list[Outcome]:
    """Everything a power loss may leave of an unsynced operation."""
    if isinstance(operation, Write):
        return [ABSENT, WHOLE, ZEROS, *(Outcome(Survival.CUT, n) for n in cuts(operation))]
    return [ABSENT, WHOLE]


def draw_outcome(operation: FileOperation | SetNames, rng: random.Random) -> Outcome:
    """One of `outcomes`, each kind equally likely."""
    if not isinstance(operation, Write):
        return WHOLE if rng.random() < 0.5 else ABSENT
    possible = cuts(operation)
    kind = rng.randrange(4 if possible else 3)
    if kind == 3:
        return Outcome(Survival.CUT, rng.choice(possible))
    return (ABSENT, WHOLE, ZEROS)[kind]


def apply(content: Content, operation: FileOperation, outcome: Outcome = WHOLE) -> None:
    """Do to `content` what is left of the operation."""
    survival = outcome.survival
    if survival is Survival.ABSENT:
        return
    if isinstance(operation, Write):
        if survival is Survival.WHOLE:
            content.write(operation.offset, operation.data)
        elif survival is Survival.CUT:
            content.write(operation.offset, operation.data[: outcome.cut])
        else:
            content.write(operation.offset, _zeroed(content, operation))
    elif isinstance(operation, Truncate):
        content.truncate(operation.size)
    else:
        content.allocate(operation.size)


def _zeroed(content: Content, write: Write) -> bytes:
    """Zeros for a write, except where it would have changed nothing."""
    there = content.read(len(write.data), write.offset)
    if there == write.data:
        return there
    kept = bytes(old if old == new else 0 for old, new in zip(there, write.data, strict=False))
    return kept + bytes(len(write.data) - len(kept))


def parent(path: str) -> str:
    """The directory a clean path is in."""
    return path.rpartition("/")[0] or "/"


class FileImage(NamedTuple):
    data: bytes
    size: int


@dataclass(frozen=True)
class Image:
    """What lies on a disk after a power loss: directories and files by path. `/` is always there."""

    directories: frozenset[str] = frozenset()
    files: Mapping[str, FileImage] = field(default_factory=dict)
