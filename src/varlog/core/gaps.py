"""Gaps in what is counted up: a restored backup goes on far above where it was (`restoring`), and whatever lies between
was given out by metadata that is gone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

EPOCHS_SKIPPED: Final = 1 << 10
"""More than a log stream goes through in a second; so many are left out for each one since the backup."""


def last_known(number: int, latest: int, gaps: Iterable[tuple[int, int]]) -> int:
    """The last number up to this one that was given out, as far as is known. `gaps` are where the counting came from
    and went to."""
    if number > latest:
        return latest
    for before, after in gaps:
        if before < number < after:
            return before
    return number
