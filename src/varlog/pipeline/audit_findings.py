"""What an audit can find: the kinds of faults, and where one is.

A finding names the copy it is in (a node's replica, or the archive, or the topic as a whole), the log stream, and the
positions [begin, end) that are concerned, so that somebody can go and look.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

ARCHIVE: Final = 0
"""The archive, where copies are told apart by the ids of their nodes."""
TOPIC: Final = -1
"""No copy in particular: what all of them together say of the topic."""
SHOWN: Final = 1000
"""So many findings are told one by one; of more there is a count."""


class Fault(StrEnum):
    """What is wrong."""

    MISSING = "missing"
    """Entries that others have are not there."""
    EXTRA = "extra"
    """There are entries that others do not have."""
    SWAPPED = "swapped"
    """Entries stand in each other's places."""
    CHANGED = "changed"
    """An entry is not what it is elsewhere."""
    DUPLICATED = "duplicated"
    """Entries are there once more, in the place of others or beside them."""
    SHORT = "short"
    """A replica ends before its log stream does."""
    GAP = "gap"
    """The archive lacks positions that it says it has, or that nobody else has any more."""
    DAMAGED = "damaged"
    """Bytes that are not what was written."""
    DISORDER = "disorder"
    """Positions or times that do not ascend."""
    LLSN = "llsn"
    """LLSNs with a hole, or others than elsewhere."""
    CHAIN = "chain"
    """Commits that do not follow each other, or are others than elsewhere."""
    DIFFERS = "differs"
    """Something else is not the same as elsewhere."""
    NOWHERE = "nowhere"
    """Positions that no log stream has."""
    TWICE = "twice"
    """Positions that are there more than once."""
    TRANSACTION = "transaction"
    """A committed transaction is not whole, or its fate is not the first verdict on it."""
    FOREIGN = "foreign"
    """It belongs to another topic or cluster."""
    UNREAD = "unread"
    """It could not be read: nothing is known of it."""
    TRIMMED = "trimmed"
    """It was trimmed while it was being read: nothing is wrong."""


class Finding(msgspec.Struct, frozen=True, order=True):
    """One fault and where it is."""

    begin: int
    end: int
    log_stream: int
    """0 if it is about all of them."""
    copy: int
    """The node, or `ARCHIVE`, or `TOPIC`."""
    fault: Fault
    detail: str

    @property
    def where(self) -> str:
        """The copy, for people."""
        if self.copy == TOPIC:
            return "the topic"
        return "the archive" if self.copy == ARCHIVE else f"node {self.copy}"

    @property
    def positions(self) -> str:
        """The positions, for people."""
        if self.end <= self.begin:
            return f"from GLSN {self.begin} on" if self.begin else "everywhere"
        return f"GLSN {self.begin}" if self.end == self.begin + 1 else f"GLSN {self.begin} to {self.end - 1}"


def spans_of(positions: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending positions as [begin, end)."""
    spans: list[tuple[int, int]] = []
    for at in positions:
        if spans and spans[-1][1] == at:
            spans[-1] = (spans[-1][0], at + 1)
        else:
            spans.append((at, at + 1))
    return spans
