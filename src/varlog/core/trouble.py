"""Trouble: what a client's machines complain of when a topic that a sequencer orders does not work in its epoch.

Who meets a failure says so, as often as it meets it, and goes on trying. Whether that leads to a reconfiguration (S7)
is decided in one place, by whoever is complained to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from varlog import errors
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

_GRACE: Final = {errors.Unreachable.code: GONE_SECONDS, errors.StaleEpoch.code: AHEAD_SECONDS}
_NO_TROUBLE: Final = frozenset({errors.Busy.code, errors.Trimmed.code})


class Complaints:
    """Of one machine that reads from replicas: it complains of those that have failed for long enough."""

    def __init__(self, complain: Complain) -> None:
        self._complain = complain
        self._since: dict[StorageNodeID, float] = {}

    def worked(self, snid: StorageNodeID) -> None:
        """It answered as it should."""
        if self._since:
            self._since.pop(snid, None)

    def clear(self) -> None:
        """What went wrong in one epoch says nothing of the next."""
        self._since.clear()

    def failed(self, snid: StorageNodeID, code: int, epoch: Epoch, seen: Epoch, now: float) -> None:
        """It answered with an error in an epoch, or not at all. `seen` is the epoch it told; 0 if none."""
        if code in _NO_TROUBLE:
            return
        since = self._since.setdefault(snid, now)
        if now - since < _GRACE.get(code, 0.0):
            return
        if code == errors.StaleEpoch.code and seen > epoch:
            self._complain(Trouble(epoch, seen=seen))
        else:
            self._complain(Trouble(epoch, frozenset({snid})))
