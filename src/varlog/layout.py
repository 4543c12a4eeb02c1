"""One memory layout for processes of one program that share a machine.

A processor keeps what it has learnt of a program's branches by their addresses. The kernel gives every process
addresses of its own, at random; so where daemons take turns on a few cores, each finds only what another one has learnt
of the same interpreter somewhere else. Laid out alike they learn from each other: with five of them on two cores an
append that comes alone takes 6 to 10 % less time (docs/benchmarks.md).

The price is that addresses can be guessed, so this is for clusters that somebody tries out or measures on one machine
(`varlog.processes`). On machines of their own, daemons have nothing to learn from others.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_AS_IT_IS: Final = 0xFFFFFFFF
_ADDR_NO_RANDOMIZE: Final = 0x0040000
_REFUSED: Final = -1


@contextmanager
def shared() -> Iterator[None]:
    """Processes that this thread starts inside are laid out alike; where that is not permitted, as always."""
    personality = ctypes.CDLL(None).personality
    before = personality(_AS_IT_IS)
    if before == _REFUSED or personality(before | _ADDR_NO_RANDOMIZE) == _REFUSED:
        yield
        return
    try:
        yield
    finally:
        personality(before)
