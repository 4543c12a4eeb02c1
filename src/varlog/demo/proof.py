"""The proof at the end of the demo: what writers were told, held against what readers saw.

`Record` is all that clients noted. Each check is a function over it that yields a sentence for what it finds wrong; no
sentence at all is the proof. The checks know nothing of how the log works inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

SHOWN: Final = 3
"""So many findings of one check are told."""


@dataclass(slots=True)
class Sent:
    """One entry that a writer sent."""

    data: bytes
    floor: int
    """The greatest position that anybody had been told when it was sent."""
    position: int = 0
    """What its writer was told; 0 if it has not heard, or never will."""
    rejected: bool = False
    """Its writer was told that it did not happen."""


@dataclass
class Record:
    """What clients noted."""

    sent: dict[str, list[Sent]] = field(default_factory=dict)
    """Of each writer, in the order it was sent."""
    read: list[list[tuple[int, bytes]]] = field(default_factory=list)
    """Of each reader: positions and entries as they came."""

    @property
    def entries(self) -> dict[bytes, int]:
        """Where the first reader found each entry."""
        return {data: position for position, data in self.read[0]}


def no_hole(record: Record) -> Iterator[str]:
    """Positions begin at 1 and leave nothing out."""
    for number, seen in enumerate(record.read, 1):
        for expected, (position, _) in enumerate(seen, 1):
            if position != expected:
                yield f"reader {number} saw {position} where {expected} comes next"
                break


def one_order(record: Record) -> Iterator[str]:
    """Every reader saw the same entries at the same positions."""
    first, *others = record.read
    for number, seen in enumerate(others, 2):
        if len(seen) != len(first):
            yield f"reader 1 saw {len(first)} entries, reader {number} {len(seen)}"
        for (position, data), (other_position, other) in zip(first, seen, strict=False):
            if (position, data) != (other_position, other):
                yield f"reader 1 saw {data!r} at {position}, reader {number} saw {other!r} at {other_position}"
                break


def nothing_lost(record: Record) -> Iterator[str]:
    """Every acknowledged entry is there, where its writer was told."""
    entries = record.entries
    for sent in _all(record):
        if sent.position and entries.get(sent.data) != sent.position:
            found = entries.get(sent.data, "nowhere")
            yield f"{sent.data!r} was acknowledged at {sent.position} and is at {found}"


def exactly_once(record: Record) -> Iterator[str]:
    """No entry is there twice, and none that nobody sent or that was rejected."""
    allowed = {sent.data for sent in _all(record) if not sent.rejected}
    seen: dict[bytes, int] = {}
    for position, data in record.read[0]:
        if data in seen:
            yield f"{data!r} is at {seen[data]} and again at {position}"
        elif data not in allowed:
            yield f"{data!r} is at {position}, and no writer has sent it"
        seen[data] = position


def writers_order(record: Record) -> Iterator[str]:
    """Each writer's entries are in the order it sent them."""
    entries = record.entries
    for writer, all_sent in record.sent.items():
        before = 0
        for sent in all_sent:
            position = entries.get(sent.data, 0)
            if position and position < before:
                yield f"{sent.data!r} of {writer} is at {position}, before an earlier one at {before}"
            before = position or before


def real_time(record: Record) -> Iterator[str]:
    """What was acknowledged to anybody before an entry was sent stands before it."""
    for sent in _all(record):
        if sent.position and sent.position <= sent.floor:
            yield f"{sent.data!r} is at {sent.position}, and {sent.floor} was told before it was sent"


def _all(record: Record) -> Iterator[Sent]:
    for all_sent in record.sent.values():
        yield from all_sent


CHECKS: Final[tuple[Callable[[Record], Iterator[str]], ...]] = (
    no_hole,
    one_order,
    nothing_lost,
    exactly_once,
    writers_order,
    real_time,
)


def judge(record: Record) -> Iterator[tuple[str, list[str]]]:
    """Each check in a sentence, and what it found wrong: its first findings."""
    for check in CHECKS:
        yield (check.__doc__ or "").rstrip("."), list(islice(check(record), SHOWN))
