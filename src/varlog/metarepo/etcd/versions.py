"""Which versions of etcd may be trusted with metadata.

3.5.0 to 3.5.2 can become inconsistent when killed under load; 3.5.3 to 3.5.5, and whatever is before 3.4.22, when
killed while they defragment.
"""

from __future__ import annotations

import re
from typing import Final

from varlog.errors import UnsuitableEtcd

_NUMBER: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def is_sound(version: str) -> bool:
    match = _NUMBER.match(version)
    if match is None:
        return False
    major, minor, patch = map(int, match.groups())
    return (major, minor, patch) >= (3, 5, 6) or ((major, minor) == (3, 4) and patch >= 22)


def check(version: str, where: str) -> None:
    """Raises UnsuitableEtcd."""
    if not is_sound(version):
        raise UnsuitableEtcd(
            f"the etcd at {where} is of version {version[:40]}, which can lose what it has acknowledged; "
            f"use 3.4.22 or later, or 3.5.6 or later"
        )
