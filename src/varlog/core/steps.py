"""What the manager's decisions are made of: steps, and the words they are explained in.

A `Step` is one request and a sentence that says why, to whoever reads the log, the doctor's findings or the dashboard.
In a topic that a sequencer orders it may be a whole reconfiguration. `Situation` is what every decision is made on. It
is handed from one module of the manager to the next (`watching`, `resuming`, `repairing`, `chainrepair`, `collecting`),
none of which keeps anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from varlog import errors
from varlog.core.address import METADATA_REPOSITORY, Address
from varlog.core.gaps import last_known
from varlog.core.messages import Message, ReplicaInfo, SealStream, StreamInfo
from varlog.core.reconfiguring import Change
from varlog.core.world import Memory, Sight, World
from varlog.types import Epoch, LogStreamID, StorageNodeID, TopicID

ChoosePrimary = Callable[[StreamInfo], StorageNodeID]

CUT_OFF_PATIENCE: Final = 1.0
"""How long a node may seem cut off from the metadata repository: one that has just come back is seen so as well."""
REPLACE_AFTER: Final = 30.0
"""How long a node that is away is waited for before a spare takes its place."""
COLLECT_AFTER: Final = 30.0
"""How long something must have been of no use before it is cleared away: a log stream that is not made to the end, a
replica outside of a set that is whole."""
COPIES_AT_ONCE: Final = 2
"""Of learners, to one node and from one node."""


class Reconfigure(NamedTuple):
    """A conversation to hold (`reconfiguring`), with many: one at a time of a topic."""

    tpid: TopicID
    change: Change


class Step(NamedTuple):
    """One request to send, and why; or, without a message, a topic to reconfigure, or what there is to wait for."""

    address: Address
    message: Message | None
    sentence: str
    reconfigure: Reconfigure | None = None

    @property
    def subject(self) -> str:
        """Whom it is about: "log stream 3", "node 2"."""
        return self.sentence.partition(":")[0]

    @property
    def key(self) -> tuple[Address, Message | str | tuple[str, Reconfigure]]:
        """What makes two steps the same, though one was decided later and knows of more seconds."""
        if self.reconfigure is not None:
            return self.address, (self.subject, self.reconfigure)
        if self.message is None:
            return self.address, self.subject
        return self.address, msgspec.structs.replace(self.message, request=0)


def wait(subject: str, why: str) -> Step:
    """Nothing can be done at present."""
    return Step("", None, f"{subject}: {why}")


class Situation:
    """A world, the memory of those before, and what is needed to make requests."""

    def __init__(
        self,
        world: World,
        memory: Memory,
        request: Callable[[], int],
        choose_primary: ChoosePrimary,
        replace_after: float = REPLACE_AFTER,
        collect_after: float = COLLECT_AFTER,
    ) -> None:
        self.world = world
        self.memory = memory
        self.request = request
        self.choose_primary = choose_primary
        self.replace_after = replace_after
        self.collect_after = collect_after
        self._targets: Counter[StorageNodeID] = Counter()
        self._sources: Counter[StorageNodeID] = Counter()
        for stream in world.metadata.streams:
            for snid, replica in world.replicas(stream.lsid).items():
                if replica.source:
                    copied = world.copied(snid, stream.lsid)
                    if copied is None or not copied.is_complete:
                        self.begin_copy(snid, replica.source)

    # Copies: only so many at once

    def begin_copy(self, target: StorageNodeID, source: StorageNodeID) -> None:
        self._targets[target] += 1
        self._sources[source] += 1

    def takes_copies(self, target: StorageNodeID) -> bool:
        return self._targets[target] < COPIES_AT_ONCE

    def gives_copies(self, source: StorageNodeID) -> bool:
        return self._sources[source] < COPIES_AT_ONCE

    def by_copies(self, sources: Iterable[StorageNodeID]) -> list[StorageNodeID]:
        """Sources, those first that give fewest copies."""
        return sorted(sources, key=lambda snid: (self._sources[snid], snid))

    # Replicas

    def fault(self, stream: StreamInfo, snid: StorageNodeID) -> str:
        """Why a node cannot have a part in a log stream as things are, in a clause; empty if nothing is known. To wait
        does not help against any of it."""
        world = self.world
        answer = world.answer(snid)
        if answer is None:
            view = world.views.get(snid)
            if view is None:
                return f"node {snid} is not registered"
            return f"node {snid} has not answered for {view.silent:.1f} s" if view.is_dead else ""
        if not world.is_identified(snid):
            return f"node {snid} has lost its disks"
        if self.is_cut_off(snid):
            return f"node {snid} has had no answer from the metadata repository for {answer.unanswered:.1f} s"
        replica = world.replica(snid, stream.lsid)
        if replica is None:
            return f"node {snid} has no replica of it" if world.knows(snid, stream.lsid) else ""
        return "" if replica.healthy else f"the replica on node {snid} {failure(replica)}"

    def is_cut_off(self, snid: StorageNodeID) -> bool:
        """Whether a node answers, but not to the metadata repository."""
        return self.memory.has_lasted(CUT_OFF_PATIENCE, self.world.now, Sight.CUT_OFF, snid)

    def is_leaving(self, stream: StreamInfo, snid: StorageNodeID) -> bool:
        """Whether an operator wants a node out of the set."""
        return self.world.is_leaving(stream, snid)

    def is_suspect(self, lsid: LogStreamID, snid: StorageNodeID) -> bool:
        return self.memory.is_suspect(self.world.now, lsid, snid)

    # Steps

    def seal(self, stream: StreamInfo, why: str) -> Step:
        """Ask the metadata repository for a seal."""
        sentence = f"{name(stream)}: sealing at GLSN {stream.last_glsn} {why}"
        return Step(METADATA_REPOSITORY, SealStream(self.request(), stream.lsid, stream.epoch), sentence)


def name(stream: StreamInfo) -> str:
    return f"log stream {stream.lsid}"


def is_corrupt(replica: ReplicaInfo) -> bool:
    """Whether what a replica holds is damaged; if it has only failed to write, that is as good as it was."""
    return not replica.healthy and replica.fault == errors.Corrupt.code


def failure(replica: ReplicaInfo) -> str:
    """What is wrong with a replica that is not healthy."""
    if is_corrupt(replica):
        return "is corrupt"
    kind = errors.VarlogError.registry.get(replica.fault)
    return f"has failed ({kind.__name__})" if kind is not None else "has failed"


def replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"


def seen_later(later: Mapping[StorageNodeID, Epoch], stream: StreamInfo) -> str:
    """That nodes have seen epochs that the metadata does not know of (`World.later`), in a clause."""
    has, latest = "has" if len(later) == 1 else "have", max(later.values())
    known = last_known(latest, stream.epoch, stream.skipped)
    return (
        f"{nodes(sorted(later))} {has} seen epoch {latest} of it, and the metadata is at epoch {known}: it was "
        "restored from an older state"
    )


def nodes(snids: Iterable[StorageNodeID]) -> str:
    """Nodes in a sentence: "node 1", "nodes 1, 3", "no node"."""
    listed = [str(snid) for snid in snids]
    if not listed:
        return "no node"
    return f"node {listed[0]}" if len(listed) == 1 else f"nodes {', '.join(listed)}"
