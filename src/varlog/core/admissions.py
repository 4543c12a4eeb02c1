"""Which process is which storage node at present (B11).

A node that was registered with a proof takes part only after it has proven who it is, through the connection on which
it did so and in the start it did so in; what else claims to be that node is not listened to. This is what a leader
knows of its own connections: a new leader has everybody prove themselves again.
"""

from __future__ import annotations

from typing import Final

from varlog import errors
from varlog.core.address import Address
from varlog.types import StorageNodeID

ALIVE_SECONDS: Final = 2.0
"""A node that is connected and was heard so lately is there; it reports every second."""


class _Admission:
    __slots__ = ("boot", "heard", "source")

    def __init__(self, source: Address, boot: int, heard: float) -> None:
        self.source = source
        self.boot = boot
        self.heard = heard


class Admissions:
    """See the module's text."""

    def __init__(self) -> None:
        self._of_node: dict[StorageNodeID, _Admission] = {}

    def admit(self, snid: StorageNodeID, source: Address, boot: int, now: float) -> None:
        """A node has proven who it is."""
        self._of_node[snid] = _Admission(source, boot, now)

    def forget(self, snid: StorageNodeID) -> None:
        """It has to do so again."""
        self._of_node.pop(snid, None)

    def forget_all(self) -> None:
        self._of_node.clear()

    def on_closed(self, source: Address) -> None:
        """A connection has ended: the node that was admitted through it may be so through another."""
        for snid in [snid for snid, admission in self._of_node.items() if admission.source == source]:
            del self._of_node[snid]

    def check_alone(self, snid: StorageNodeID, source: Address, boot: int, place: str, now: float) -> None:
        """Refuse a second process of a node while the first is there: it has been started from a copy of its volumes,
        and would be taken for it. The same start through another connection is the same process; and one that ended
        without a word is waited for no longer than `ALIVE_SECONDS`, of a clock that may be set back."""
        admission = self._of_node.get(snid)
        if admission is None or source == admission.source or boot == admission.boot:
            return
        if 0 <= now - admission.heard < ALIVE_SECONDS:
            raise errors.Busy(f"storage node {snid} is running already, at {place}")

    def hears(self, snid: StorageNodeID, source: Address, boot: int, now: float) -> bool:
        """Whether what comes from there is of the node that was admitted."""
        admission = self._of_node.get(snid)
        if admission is None or admission.source != source or admission.boot != boot:
            return False
        admission.heard = now
        return True
