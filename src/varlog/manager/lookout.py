"""Lookout: what the manager has heard, of whom, and when; and the world that follows from it.

Everything is asked for with a growing number, and of every log stream it is known how far the numbers were when the
metadata first showed it as it is: so it can be told whether an answer is from before or after that. A replica that
answers a Seal or an Unseal tells how it is, too; nobody has to be asked again for that. A node that makes no replica
where it is to make one is remembered for a moment: that is seen nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from varlog import errors
from varlog.core.messages import ChainCopied, Info, Metadata, ReplicaInfo, ReplicaReply, StreamInfo
from varlog.core.world import NodeView, Refusal, World
from varlog.types import LLSN, LogStreamID, ReplicaState, StorageNodeID

REFUSED_LATELY: Final = 2.0
"""For so long a refusal is part of the world: what follows from it is remembered for longer (`world.Memory`)."""


class Lookout:
    """See the module's text."""

    def __init__(self) -> None:
        self.metadata: Metadata | None = None
        self.infos: dict[StorageNodeID, Info] = {}
        """The last answer of every registered node."""
        self._changed: dict[LogStreamID, int] = {}
        """The last number that was given when the metadata showed each log stream as it is now."""
        self._replies: dict[tuple[StorageNodeID, LogStreamID], tuple[int, ReplicaInfo]] = {}
        """What replicas have answered since their nodes did, and the number of the request."""
        self._copies: dict[tuple[StorageNodeID, LogStreamID], ChainCopied] = {}
        """How far replicas are that copy the tail of a chain, as they told last."""
        self._refusals: dict[tuple[StorageNodeID, LogStreamID], tuple[float, str]] = {}
        """When nodes last made no replica where they were to make one, and why."""
        self._metadata_heard = 0.0
        self._heard: dict[StorageNodeID, float] = {}
        self._awaited: set[StorageNodeID] = set()

    def on_metadata(self, metadata: Metadata, request: int, now: float) -> bool:
        """The latest of the one connection there is; after a reconnect it counts also if it is older (rule 5).
        `request` is the last number given. True if a log stream is not as it was."""
        before = {stream.lsid: _shape(stream) for stream in self.metadata.streams} if self.metadata is not None else {}
        same = {stream.lsid for stream in metadata.streams if before.get(stream.lsid) == _shape(stream)}
        self._changed = {s.lsid: self._changed[s.lsid] if s.lsid in same else request for s in metadata.streams}
        self.metadata = metadata
        self._metadata_heard = now
        registered = {node.snid for node in metadata.nodes}
        self.infos = {snid: info for snid, info in self.infos.items() if snid in registered}
        self._heard = {snid: self._heard.get(snid, now) for snid in registered}
        self._awaited &= registered
        self._replies = {key: reply for key, reply in self._replies.items() if key[0] in registered}
        self._refusals = {
            key: refusal for key, refusal in self._refusals.items() if key[0] in registered and key[1] in self._changed
        }
        self._copies = {
            key: copied
            for key, copied in self._copies.items()
            if key[0] in registered and copied.request > self._changed.get(key[1], copied.request)
        }
        return len(same) < max(len(before), len(metadata.streams))

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
        self._replies = {
            key: reply for key, reply in self._replies.items() if key[0] != info.snid or reply[0] > info.request
        }
        for replica in info.replicas if self._refusals else ():
            self._refusals.pop((info.snid, replica.lsid), None)
        return True

    def on_reply(self, reply: ReplicaReply) -> bool:
        """A replica has done what it was told, or more. False if nothing follows from that."""
        info = self.infos.get(reply.snid)
        if reply.code or not reply.epoch or info is None or reply.request <= info.request:
            return False
        replica = next((replica for replica in info.replicas if replica.lsid == reply.lsid), None)
        if replica is None:
            return False
        known = msgspec.structs.replace(
            replica, epoch=reply.epoch, state=reply.state, committed_end=reply.committed_end,
            durable_end=LLSN(max(replica.durable_end, reply.committed_end)),
        )  # fmt: skip
        if reply.state is ReplicaState.RUNNING:
            known = msgspec.structs.replace(known, suspect=StorageNodeID(0), source=StorageNodeID(0))
        self._replies[reply.snid, reply.lsid] = (reply.request, known)
        return True

    def on_refused(self, reply: ReplicaReply, now: float) -> bool:
        """A node was to make a replica, and has not. True if that is news; one that is only busy will make it soon."""
        kind = errors.VarlogError.registry.get(reply.code)
        if kind is not None and kind.retriable:
            return False
        named = kind.__name__ if kind is not None else f"error {reply.code}"
        why = f"{named}: {reply.detail}" if reply.detail else named
        _, before = self._refusals.get((reply.snid, reply.lsid), (0.0, ""))
        self._refusals[reply.snid, reply.lsid] = now, why
        return why != before

    def on_copied(self, copied: ChainCopied) -> bool:
        """A replica has told how far it is with its copy of a chain's tail. False if it refused that."""
        if copied.code or copied.snid not in self._heard:
            return False
        self._copies[copied.snid, copied.lsid] = copied
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
            views.append(NodeView(snid, info, info is not None, max(0.0, now - heard), is_connected(snid)))
        replies = [
            (snid, replica)
            for (snid, lsid), (request, replica) in self._replies.items()
            if request > self._changed.get(lsid, request)
        ]
        refusals = [
            Refusal(lsid, snid, why)
            for (snid, lsid), (refused, why) in self._refusals.items()
            if now - refused < REFUSED_LATELY
        ]
        return World(
            now,
            self.metadata,
            views,
            metadata_silent=now - self._metadata_heard,
            making=making,
            changed=self._changed,
            replies=replies,
            copies=self._copies.values(),
            refusals=refusals,
        )


def _shape(stream: StreamInfo) -> tuple[object, ...]:
    """What replicas are held against."""
    return stream.epoch, stream.status, stream.replicas, stream.primary
