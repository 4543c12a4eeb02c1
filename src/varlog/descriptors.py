"""How many files and connections this process may have open, and who gets them.

Where nobody has said otherwise a process may have 1024, and as many as it is allowed if it asks: `raise_limit` does.
Whatever the limit is, a part of it is for segments that are read (`for_segments`), so that the rest is there for
connections and for what is written. A read that finds no descriptor can be tried again; a write that finds none fails
its replica.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

from varlog import limits

_SHARE: Final = 4
_FEWEST: Final = 16


def raise_limit() -> None:
    """Ask for as many as there may be, for this process and its children; where that is refused it stays as it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, limits.DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def for_segments() -> int:
    """How many segments may be kept open for reading."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = limits.DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return min(limits.OPEN_SEGMENTS, max(_FEWEST, allowed // _SHARE))
