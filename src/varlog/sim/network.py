"""A simulated network: messages that are late, lost, repeated, overtaken, or stopped at a partition.

Processes attach to addresses; `send` carries a message to whoever is attached when it was sent. Messages are handed
over as the objects they are, so they must be immutable. A message to a dead process, or to one that was killed after
the sending, is gone: its connection died with it. A message of a sender that died meanwhile still arrives.

The rates of the faults are the network's `Conditions`, which may be changed at any time. Each message draws its own
delay; a link keeps the order of sending, as a connection does, except for those messages that `reorder` lets go on
their own. Partitions stop messages between processes, in one direction or both; a message is stopped if there is a
partition when it is sent or when it would arrive.

Whatever happens to a message is counted by `NetworkFault` in the world's counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from varlog.sim.process import Process
from varlog.sim.world import World

Receive = Callable[[str, Any], None]
"""Called with the sender's name and the message."""


class NetworkFault(Enum):
    """What may happen to a message."""

    LOST = "message lost"
    DUPLICATED = "message duplicated"
    OVERTAKEN = "message overtaken by a later one"
    STALLED = "message stalled"
    STOPPED_ONE_WAY = "message stopped by a one-way partition"
    STOPPED_TWO_WAY = "message stopped by a two-way partition"


@dataclass(frozen=True)
class Conditions:
    """How bad the network is. Times in seconds, rates from 0 to 1 per message."""

    min_delay: float = 0.0001
    mean_delay: float = 0.0005
    """Of the part of the delay that varies."""
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    stall: float = 0.0
    """Rate of messages delayed by up to `stall_seconds` more."""
    stall_seconds: float = 0.0
    """A duplicate, too, is up to so much later than the message it repeats."""


class Network:
    """Carries messages between the processes of one world."""

    def __init__(self, world: World, conditions: Conditions | None = None) -> None:
        self.conditions = conditions or Conditions()
        self.sent = 0
        self.delivered = 0
        self._world = world
        self._rng = world.rng("network")
        self._endpoints: dict[str, tuple[Process, Receive]] = {}
        self._blocked: dict[tuple[Process, Process], NetworkFault] = {}
        self._last_arrival: dict[tuple[Process, Process], float] = {}

    def attach(self, address: str, process: Process, receive: Receive) -> None:
        """Let messages to `address` go to this process from now on."""
        self._endpoints[address] = (process, receive)

    def send(self, source: Process, address: str, message: object) -> None:
        """Send and forget. The dead send nothing."""
        if not source.alive:
            return
        world = self._world
        self.sent += 1
        endpoint = self._endpoints.get(address)
        if endpoint is None or not endpoint[0].alive:
            if world.tracing:
                world.note("sent to nobody", source, address, message)
            return
        target, receive = endpoint
        if world.tracing:
            world.note("send", source, "->", address, message)
        if self._is_stopped(source, target, message):
            return
        rng, conditions = self._rng, self.conditions
        if conditions.loss and rng.random() < conditions.loss:
            world.count(NetworkFault.LOST, source, "->", address, message)
            return
        self._schedule(source, target, receive, message)
        if conditions.duplicate and rng.random() < conditions.duplicate:
            world.count(NetworkFault.DUPLICATED, source, "->", address, message)
            self._schedule(source, target, receive, message, late=rng.random() * conditions.stall_seconds)

    def partition(self, some: Iterable[Process], others: Iterable[Process], *, one_way: bool = False) -> None:
        """Stop what `some` send to `others`, and the other way round unless `one_way`."""
        fault = NetworkFault.STOPPED_ONE_WAY if one_way else NetworkFault.STOPPED_TWO_WAY
        others = list(others)
        for a in some:
            for b in others:
                self._blocked[a, b] = fault
                if not one_way:
                    self._blocked[b, a] = fault

    def isolate(self, process: Process) -> None:
        """Cut one process off from every other."""
        self.partition([process], [other for other in self._world.processes.values() if other is not process])

    def heal(self) -> None:
        """End all partitions."""
        self._blocked.clear()

    def _is_stopped(self, source: Process, target: Process, message: object) -> bool:
        fault = self._blocked.get((source, target)) if self._blocked else None
        if fault is not None:
            self._world.count(fault, source, "->", target.name, message)
        return fault is not None

    def _schedule(self, source: Process, target: Process, receive: Receive, message: object, late: float = 0.0) -> None:
        rng, conditions, now = self._rng, self.conditions, self._world.now
        delay = conditions.min_delay + rng.expovariate(1.0) * conditions.mean_delay
        if conditions.stall and rng.random() < conditions.stall:
            delay += rng.random() * conditions.stall_seconds
            self._world.count(NetworkFault.STALLED, source, "->", target.name, message)
        if late:  # a copy that went another way
            self._world.at(delay + late, self._arrive, source, target, receive, message, owner=target)
            return
        link = (source, target)
        last = self._last_arrival.get(link, 0.0)
        if now + delay >= last:
            self._last_arrival[link] = now + delay
        elif conditions.reorder and rng.random() < conditions.reorder:
            self._world.count(NetworkFault.OVERTAKEN, source, "->", target.name, message)
        else:
            delay = last - now
        self._world.at(delay, self._arrive, source, target, receive, message, owner=target)

    def _arrive(self, source: Process, target: Process, receive: Receive, message: object) -> None:
        if self._is_stopped(source, target, message):
            return
        self.delivered += 1
        receive(source.name, message)
