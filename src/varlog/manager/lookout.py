"""Lookout: what the manager has heard, of whom, and when; and the world that follows from it.

Everything is asked for with a growing number. An answer of a node counts as current only if it was asked for after the
newest metadata had arrived: held against newer metadata, a replica that has just done what it was told would seem to
have fallen behind.
"""

from __future__ import annotations

from collections.abc import Callable

from varlog.core.messages import Info, Metadata
from varlog.core.world import NodeView, World
from varlog.types import LogStreamID, StorageNodeID


class Lookout:
    """See the module's text."""

    def __init__(self) -> None:
        self.metadata: Metadata | None = None
        self.infos: dict[StorageNodeID, Info] = {}
        """The last answer of every registered node."""
        self._asked_before = 0
        """The last number that was given when the metadata arrived."""
        self._metadata_heard = 0.0
        self._heard: dict[StorageNodeID, float] = {}
        self._awaited: set[StorageNodeID] = set()

    def on_metadata(self, metadata: Metadata, request: int, now: float) -> None:
        """The latest of the one connection there is; after a reconnect it counts also if it is older (rule 5).
        `request` is the last number given."""
        self.metadata = metadata
        self._asked_before = request
        self._metadata_heard = now
        registered = {node.snid for node in metadata.nodes}
        self.infos = {snid: info for snid, info in self.infos.items() if snid in registered}
        self._heard = {snid: self._heard.get(snid, now) for snid in registered}
        self._awaited &= registered

    def on_asked(self, snid: StorageNodeID) -> None:
        """A node has been asked how it is."""
        self._awaited.add(snid)

    def on_info(self, info: Info, now: float) -> bool:
        """A node has answered. False if it has answered a later question already, or is not registered."""
        before = self.infos.get(info.snid)
        if info.snid not in self._heard or (before is not None and info.request <= before.request):
            return False
        self.infos[info.snid] = info
        self._heard[info.snid] = now
        self._awaited.discard(info.snid)
        return True

    def on_closed(self, snid: StorageNodeID) -> None:
        """Nothing comes any more of what a node was asked."""
        self._awaited.discard(snid)

    @property
    def has_all_answers(self) -> bool:
        return not self._awaited

    def silence(self, now: float) -> float:
        """For how long the node that has been silent for longest among those that were asked has been so."""
        return max((now - self._heard[snid] for snid in self._awaited if snid in self._heard), default=0.0)

    def metadata_silence(self, now: float) -> float:
        return now - self._metadata_heard

    def excuse(self, seconds: float) -> None:
        """The manager itself did not listen for so long: nobody else is to blame for that silence."""
        self._metadata_heard += seconds
        self._heard = {snid: heard + seconds for snid, heard in self._heard.items()}

    def fresh_infos(self, within: float, now: float) -> dict[StorageNodeID, Info]:
        """The answers of the nodes that have answered lately."""
        return {snid: info for snid, info in self.infos.items() if now - self._heard[snid] < within}

    def world(
        self, now: float, is_connected: Callable[[StorageNodeID], bool], making: frozenset[LogStreamID]
    ) -> World | None:
        """The world as it is known now; None before any metadata."""
        if self.metadata is None:
            return None
        views = []
        for snid, heard in self._heard.items():
            info = self.infos.get(snid)
            is_current = info is not None and info.request > self._asked_before
            views.append(NodeView(snid, info, is_current, max(0.0, now - heard), is_connected(snid)))
        return World(now, self.metadata, views, metadata_silent=now - self._metadata_heard, making=making)
