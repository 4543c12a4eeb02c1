"""How a log stream is stored."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from varlog import limits
from varlog.errors import InvalidArgument
from varlog.storage.residents import OpenFiles


def _random_nonce() -> int:
    return int.from_bytes(os.urandom(8), "little")


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """What an owner may choose."""

    segment_bytes: int = limits.SEGMENT_BYTES
    """A segment is closed by the record that fills it."""
    sync: bool = True
    """False: groups are written and not synced; a power loss may take what was reported durable."""
    nonce: Callable[[], int] = _random_nonce
    """Where the 64-bit nonces of new segments come from."""
    open_files: OpenFiles = field(default_factory=OpenFiles)
    """What bounds the segments that are kept open for reading, together with all that have the same."""

    def __post_init__(self) -> None:
        if not 0 < self.segment_bytes <= limits.MAX_SEGMENT_BYTES:
            raise InvalidArgument(f"segments of {self.segment_bytes} bytes; 1 to {limits.MAX_SEGMENT_BYTES} are taken")
