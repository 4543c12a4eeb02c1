"""Memory that is given back is kept for the next one who wants some.

Large pieces of memory come and go with every megabyte that is read or sent. By itself the C library returns them to the
kernel at once, which hands them out again page by page, cleared: for a process that moves a gigabyte that is a quarter
of a million faults, as much work as moving it. `keep` has the library hold on to some of what is free.

What always holds: what is kept and not used is bounded, by `KEPT_BYTES` for each thread that takes memory.
"""

from __future__ import annotations

import ctypes
from typing import Final

from varlog import limits

LARGEST_BYTES: Final = 8 * limits.MIB
"""What is larger than this is still the kernel's, piece by piece."""
KEPT_BYTES: Final = 32 * limits.MIB

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""The names of the settings for `mallopt`, of <malloc.h>."""


def keep() -> bool:
    """For this process, from now on; False if its C library has no such settings."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(
        mallopt(setting, size) == 1
        for setting, size in ((_MMAP_THRESHOLD, LARGEST_BYTES), (_TRIM_THRESHOLD, KEPT_BYTES))
    )
