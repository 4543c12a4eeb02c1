"""Simulated operators: they ask the managers for this and that while things fail, and tidy up at the end.

What they ask for is drawn from the seed, and need not be possible: a refusal is an answer too. Two may ask two managers
for opposite things at the same moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from varlog.core.messages import (
    AddStream,
    DrainNode,
    HoldLogStream,
    Message,
    Metadata,
    MoveReplica,
    ReplaceNode,
    SyncLogStream,
)
from varlog.sim.managing import ManagerHost
from varlog.sim.world import World
from varlog.types import LogStreamID, StorageNodeID

TOPIC_NAME: Final = "log"
MEAN_SECONDS: Final = 3.0
"""How long a drain or a hold lasts, if nothing ends it before."""
_NOBODY: Final = StorageNodeID(0)


class Operators:
    """See the module's text."""

    def __init__(self, world: World, managers: Sequence[ManagerHost], snids: Sequence[StorageNodeID]) -> None:
        self._world = world
        self._managers = managers
        self._snids = snids
        self._rng = world.rng("operators")

    def work(self, times: int, seconds: float) -> None:
        """Ask for something that often within the next seconds."""
        for _ in range(times):
            self._world.at(self._rng.uniform(0.0, seconds), self._do_something)

    def tidy_up(self) -> None:
        """Take back every wish that keeps the cluster from being whole."""
        manager = next((manager for manager in self._managers if manager.leads), self._managers[0])
        if manager.metadata is not None:
            for message in _left_over(manager.metadata):
                self._ask(manager, message)

    def _do_something(self) -> None:
        alive = [manager for manager in self._managers if manager.process.alive and manager.metadata is not None]
        if not alive:
            return
        manager = self._rng.choice(alive)
        assert manager.metadata is not None
        message, undo = _draw(self._rng, manager.metadata, self._snids)
        self._ask(manager, message)
        if undo is not None:
            self._world.at(self._rng.expovariate(1.0 / MEAN_SECONDS), self._ask, manager, undo)

    def _ask(self, manager: ManagerHost, message: Message) -> None:
        if manager.process.alive:
            manager.operate(message)


def _draw(rng: Random, metadata: Metadata, snids: Sequence[StorageNodeID]) -> tuple[Message, Message | None]:
    """Some wish, and what ends it if it has to be ended."""
    snid, other = rng.choice(snids), rng.choice(snids)
    lsid = rng.choice([stream.lsid for stream in metadata.streams] or [LogStreamID(1)])
    replicas = next((stream.replicas for stream in metadata.streams if stream.lsid == lsid), ())
    member = rng.choice(replicas) if replicas else snid
    match rng.randrange(7):
        case 0:
            return DrainNode(0, snid), DrainNode(0, snid, undo=True)
        case 1:
            return ReplaceNode(0, snid, other), DrainNode(0, snid, undo=True)
        case 2:
            return MoveReplica(0, lsid, other, member), None
        case 3:
            return MoveReplica(0, lsid, rng.choice((other, _NOBODY)), rng.choice((member, _NOBODY))), None
        case 4:
            return HoldLogStream(0, lsid, seal=True), HoldLogStream(0, lsid, seal=False)
        case 5:
            return SyncLogStream(0, lsid, snid, rng.choice((other, _NOBODY))), None
        case _:
            return AddStream(0, TOPIC_NAME), None


def _left_over(metadata: Metadata) -> Iterator[Message]:
    for node in metadata.nodes:
        if node.is_draining:
            yield DrainNode(0, node.snid, undo=True)
    for stream in metadata.streams:
        if stream.is_held:
            yield HoldLogStream(0, stream.lsid, seal=False)
        if stream.joining or stream.leaving:
            yield MoveReplica(0, stream.lsid, _NOBODY, _NOBODY)
