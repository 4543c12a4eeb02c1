"""What every message is, and the plain tuples inside them."""

from __future__ import annotations

import msgspec

Range = tuple[int, int, int, int, int]
ReportLine = tuple[int, int, int, int, int, bool]
StoredLine = tuple[int, int, int, int, int, int, bytes | memoryview]


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Anything sent between processes."""
