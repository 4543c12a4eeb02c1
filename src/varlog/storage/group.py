"""WriteGroup: what one round of writing carries to disk.

A group is filled while records are staged and then only carried out: its steps name every file, offset and byte. Steps
are done in order. What a group holds is durable when all steps are done and, if `needs_sync`, the sync after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from varlog.storage.files import Buffer
from varlog.storage.segment import SegmentFile
from varlog.types import LLSN, Epoch, Version


class AppendFrames(NamedTuple):
    """Frames for the active file, one after another from `offset`."""

    offset: int
    buffers: list[Buffer]


class CloseSegment(NamedTuple):
    """The active file gets its index and footer at `offset` and ends there, synced."""

    segment: SegmentFile[Any]
    offset: int
    data: bytes
    is_copy: bool
    """What it holds was copied: the memory it takes is better used for what others append and read."""


class StartSegment(NamedTuple):
    """A new file becomes the active one: it has its head and its name durably before anything is appended to it."""

    seq: int
    name: str
    head: bytes


class Trim(NamedTuple):
    """What stands before is synced, then the trim record is written, then files may be deleted."""

    record: bytes
    victims: Sequence[str]


Step = AppendFrames | CloseSegment | StartSegment | Trim


class WriteGroup:
    """See the module's text. The fields are for its owner, who learns from them what became durable."""

    __slots__ = (
        "epoch_records",
        "flush",
        "last_epoch",
        "last_llsn_end",
        "needs_sync",
        "offset",
        "records",
        "seq",
        "size",
        "steps",
        "synced",
        "version",
        "written_end",
    )

    def __init__(self, version: Version, written_end: LLSN, seq: int, offset: int) -> None:
        """An empty group after all that was staged before; the arguments are as of its end."""
        self.steps: list[Step] = []
        self.size = 0
        self.needs_sync = False
        """False if the group holds nothing but commit contexts: they need no sync of their own."""
        self.flush = False
        """It is to be written and synced even if it is empty."""
        self.last_llsn_end: LLSN | None = None
        """The end of the last batch in it that is not void; None if there is no batch in it."""
        self.last_epoch: Epoch | None = None
        """The epoch of the last batch in it."""
        self.epoch_records: list[Epoch] = []
        """The epochs of the seal and unseal records in it."""
        self.records = 0
        """How many records of a write-once log are in it."""
        self.version = version
        """Of the last commit context in it or in any group before it."""
        self.written_end = written_end
        """The end of what is stored once it is written."""
        self.seq = seq
        self.offset = offset
        """Where the active segment ends once it is written."""
        self.synced = False
        """Set when it was synced."""

    def add_frames(self, offset: int, buffers: Sequence[Buffer], size: int) -> None:
        steps = self.steps
        if steps and type(last := steps[-1]) is AppendFrames:
            last.buffers.extend(buffers)
        else:
            steps.append(AppendFrames(offset, list(buffers)))
        self.size += size

    def add_step(self, step: CloseSegment | StartSegment | Trim, size: int) -> None:
        self.steps.append(step)
        self.size += size
