"""Trouble: what a client's machines complain of when a topic that a sequencer orders does not work in its epoch.

Who meets a failure says so, as often as it meets it, and goes on trying. Whether that leads to a reconfiguration (S7)
is decided in one place, by whoever is complained to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from varlog.types import Epoch, StorageNodeID

SILENT_SECONDS: Final = 1.0
"""Who has not answered for so long has failed,"""
GONE_SECONDS: Final = 0.2
"""and so has who could not be reached for so long."""
AHEAD_SECONDS: Final = 0.3
"""A replica whose epoch is above the metadata's for so long was sealed by somebody who went no further (rule 22)."""


class Trouble(NamedTuple):
    """What failed, in an epoch of the topic's projection."""

    epoch: Epoch
    nodes: frozenset[StorageNodeID] = frozenset()
    sequencers: frozenset[str] = frozenset()
    """Where they listen."""
    seen: Epoch = Epoch(0)
    """The greatest epoch that a replica told, if it is above this one."""


Complain = Callable[[Trouble], None]
