"""What the manager knows: the world as it is seen now, and the memory of since when it has been so.

A `World` is one look at the cluster: the metadata, and of every registered node its last answer and how long it has
been silent. A value like any other: whoever looks fills it in, `varlog.core.manager` decides on it, `diagnosing` tells
people of it.

`Memory` remembers what a single look cannot show: since when something has been as it is, and which backups were too
slow for their primary. It is soft. Nothing that is safe depends on it: a manager that starts anew, or a second one,
begins with an empty memory and waits longer at most. It follows from the worlds it was shown and from nothing else,
and holds no more than the present world has subjects for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from varlog.core.messages import Info, Metadata, NodeInfo, ReplicaInfo, StreamInfo, TopicInfo
from varlog.types import LogStreamID, ReplicaState, StorageNodeID, StreamStatus, TopicID

DEAD_AFTER: Final = 1.0
"""A node that has not answered for so long is taken for dead,"""
CLOSED_DEAD_AFTER: Final = 0.5
"""or for so long if its connection is closed as well."""
CUT_OFF_AFTER: Final = 2.0
"""A node whose reports the metadata repository has not answered for so long is cut off from it."""
HEARD_AFTER: Final = 1.0
"""A manager that has not heard from the metadata repository for so long says nothing of others who have not."""

SUSPECT_SECONDS: Final = 10.0
"""A backup that was too slow for its primary stays outside of the set for so long, and twice as long each time more,"""
SUSPECT_SECONDS_MOST: Final = 300.0
"""but not longer than this;"""
TRUST_AFTER: Final = 600.0
"""and when it has been in step for so long, what was before is forgotten."""
STARTED_LATELY: Final = 10.0
"""A backup whose node has been up for less was not slow when its primary missed it, but away."""


class NodeView(NamedTuple):
    """One registered storage node, as the manager sees it."""

    snid: StorageNodeID
    info: Info | None = None
    """Its last answer, however old."""
    is_current: bool = False
    """The answer was asked for after the metadata of this world had arrived. Only such an answer is held against the
    metadata: in an older one a replica that has done as it was told since would seem to have fallen behind."""
    silent: float = 0.0
    """Seconds since it last answered, or since the manager first knew of it."""
    is_connected: bool = True

    @property
    def is_dead(self) -> bool:
        return self.silent >= (DEAD_AFTER if self.is_connected else CLOSED_DEAD_AFTER)

    @property
    def answer(self) -> Info | None:
        """What it says of itself, if that can be held against the metadata."""
        return self.info if self.is_current and not self.is_dead else None


class World:
    """One look at the cluster."""

    def __init__(
        self,
        now: float,
        metadata: Metadata,
        views: Iterable[NodeView] = (),
        *,
        metadata_silent: float = 0.0,
        making: frozenset[LogStreamID] = frozenset(),
    ) -> None:
        self.now = now
        self.metadata = metadata
        self.metadata_silent = metadata_silent
        """Seconds since the metadata repository last answered."""
        self.making = making
        """The log streams that this manager is about to make."""
        seen = {view.snid: view for view in views}
        self.nodes: dict[StorageNodeID, NodeInfo] = {node.snid: node for node in metadata.nodes}
        self.views: dict[StorageNodeID, NodeView] = {
            snid: seen.get(snid) or NodeView(snid, is_connected=False) for snid in self.nodes
        }
        self.topics: dict[TopicID, TopicInfo] = {topic.tpid: topic for topic in metadata.topics}
        self._hosted: dict[StorageNodeID, dict[LogStreamID, ReplicaInfo]] = {
            snid: {replica.lsid: replica for replica in view.answer.replicas} if view.answer is not None else {}
            for snid, view in self.views.items()
        }

    @classmethod
    def of(cls, metadata: Metadata, infos: Mapping[StorageNodeID, Info], now: float = 0.0) -> World:
        """A world in which these nodes have just answered, and the others have been silent for long."""
        silent = [NodeView(node.snid, None, False, DEAD_AFTER, False) for node in metadata.nodes]
        answers = [NodeView(snid, info, True) for snid, info in infos.items()]
        return cls(now, metadata, [*silent, *answers])

    def replica(self, snid: StorageNodeID, lsid: LogStreamID) -> ReplicaInfo | None:
        """What a node that answers says of its replica of a log stream."""
        return self._hosted.get(snid, {}).get(lsid)

    def answers(self, snid: StorageNodeID) -> bool:
        view = self.views.get(snid)
        return view is not None and view.answer is not None

    def is_dead(self, snid: StorageNodeID) -> bool:
        view = self.views.get(snid)
        return view is None or view.is_dead

    def is_identified(self, snid: StorageNodeID) -> bool:
        """Whether a node that answers is who it was (B11). One that never was given a secret need not prove it."""
        view, node = self.views.get(snid), self.nodes.get(snid)
        if view is None or node is None or view.answer is None:
            return False
        return view.answer.is_identified or node.generation == 0

    def hosts(self, lsid: LogStreamID) -> list[StorageNodeID]:
        """The nodes that answer and have a replica of a log stream, in the set or out of it."""
        return [snid for snid, replicas in self._hosted.items() if lsid in replicas]

    def factor(self, stream: StreamInfo) -> int:
        """How many replicas a log stream is to have."""
        topic = self.topics.get(stream.tpid)
        return (topic.replication_factor if topic is not None else 0) or len(stream.replicas)

    def least(self, stream: StreamInfo) -> int:
        """How many it cannot do without."""
        topic = self.topics.get(stream.tpid)
        return max(1, topic.min_replicas if topic is not None else 1)


class Sight(Enum):
    """What the memory dates. The numbers are what it is seen of."""

    SILENT = auto()
    """(node): it is taken for dead."""
    UNIDENTIFIED = auto()
    """(node): it answers, and cannot prove who it is: its disks were lost (B11)."""
    CUT_OFF = auto()
    """(node): it answers, but its reports to the metadata repository are not answered."""
    CREATING = auto()
    """(log stream)"""
    ABORTED = auto()
    """(log stream)"""
    SEALED = auto()
    """(log stream, epoch)"""
    UNSEALING = auto()
    """(log stream, epoch)"""
    SHORT = auto()
    """(log stream): it has fewer replicas than it is to have."""
    STALLED = auto()
    """(log stream, committed end): all replicas of a running log stream have stored more, and no cut commits it."""
    UNHEALTHY = auto()
    """(log stream, node): the replica has failed, or is corrupt."""
    MISSING = auto()
    """(log stream, node): a node of the set answers, and has no replica."""
    COPYING = auto()
    """(log stream, node, committed end): the replica copies from another; dated anew whenever it gets on."""


Key = tuple[Sight, *tuple[int, ...]]


class Suspicion(NamedTuple):
    """A backup was too slow for its primary."""

    times: int
    epoch: int
    """In which it was so last."""
    until: float
    """It is not taken into the set before."""


class Memory:
    """See the module's text."""

    def __init__(self) -> None:
        self._since: dict[Key, float] = {}
        self._boots: dict[StorageNodeID, tuple[int, float]] = {}
        self._suspicions: dict[tuple[LogStreamID, StorageNodeID], Suspicion] = {}

    def observe(self, world: World) -> None:
        """Look at a world. What is in it and was not before is dated now; what is no more is forgotten."""
        self._since = {key: self._since.get(key, world.now) for key in sights(world)}
        self._observe_boots(world)
        self._observe_suspects(world)

    def seconds(self, now: float, sight: Sight, *numbers: int) -> float | None:
        """For how long something has been so; None if it is not."""
        since = self._since.get((sight, *numbers))
        return None if since is None else now - since

    def has_lasted(self, seconds: float, now: float, sight: Sight, *numbers: int) -> bool:
        """Whether something has been so for that long."""
        lasted = self.seconds(now, sight, *numbers)
        return lasted is not None and lasted >= seconds

    def suspicion(self, lsid: LogStreamID, snid: StorageNodeID) -> Suspicion | None:
        """What is held against a backup of a log stream."""
        return self._suspicions.get((lsid, snid))

    def is_suspect(self, now: float, lsid: LogStreamID, snid: StorageNodeID) -> bool:
        """Whether a node is to stay out of a log stream's set for now, if others suffice."""
        suspicion = self._suspicions.get((lsid, snid))
        return suspicion is not None and now < suspicion.until

    def _observe_boots(self, world: World) -> None:
        boots = {}
        for snid, view in world.views.items():
            before = self._boots.get(snid)
            if view.info is not None and (before is None or before[0] != view.info.boot):
                before = view.info.boot, world.now
            if before is not None:
                boots[snid] = before
        self._boots = boots

    def _observe_suspects(self, world: World) -> None:
        for stream in world.metadata.streams:
            for accuser in stream.replicas:
                replica = world.replica(accuser, stream.lsid)
                if replica is not None and replica.suspect in stream.replicas:
                    self._suspect(world.now, stream.lsid, replica.suspect, replica.epoch)
        present = {stream.lsid: stream for stream in world.metadata.streams}
        self._suspicions = {
            (lsid, snid): suspicion
            for (lsid, snid), suspicion in self._suspicions.items()
            if lsid in present and snid in world.nodes and world.now < suspicion.until + TRUST_AFTER
        }

    def _suspect(self, now: float, lsid: LogStreamID, snid: StorageNodeID, epoch: int) -> None:
        before = self._suspicions.get((lsid, snid))
        _, started = self._boots.get(snid, (0, now))
        if now - started < STARTED_LATELY or (before is not None and before.epoch >= epoch):
            return
        times = before.times + 1 if before is not None else 1
        seconds = min(SUSPECT_SECONDS * 2 ** (times - 1), SUSPECT_SECONDS_MOST)
        self._suspicions[lsid, snid] = Suspicion(times, epoch, now + seconds)


def sights(world: World) -> Iterator[Key]:
    """All that is worth a date in a world."""
    for snid, view in world.views.items():
        if view.is_dead:
            yield Sight.SILENT, snid
        elif view.answer is not None:
            if not world.is_identified(snid):
                yield Sight.UNIDENTIFIED, snid
            if view.answer.unanswered >= CUT_OFF_AFTER and world.metadata_silent < HEARD_AFTER:
                yield Sight.CUT_OFF, snid
    for stream in world.metadata.streams:
        yield from _sights_of_status(world, stream)
        yield from _sights_of_replicas(world, stream)


def _sights_of_status(world: World, stream: StreamInfo) -> Iterator[Key]:
    match stream.status:
        case StreamStatus.CREATING:
            yield Sight.CREATING, stream.lsid
        case StreamStatus.ABORTED:
            yield Sight.ABORTED, stream.lsid
        case StreamStatus.SEALED:
            yield Sight.SEALED, stream.lsid, stream.epoch
        case StreamStatus.UNSEALING:
            yield Sight.UNSEALING, stream.lsid, stream.epoch
        case StreamStatus.RUNNING:
            replicas = [world.replica(snid, stream.lsid) for snid in stream.replicas]
            stored = [replica.durable_end for replica in replicas if replica is not None]
            if len(stored) == len(replicas) and min(stored) > stream.llsn_end:
                yield Sight.STALLED, stream.lsid, stream.llsn_end


def _sights_of_replicas(world: World, stream: StreamInfo) -> Iterator[Key]:
    if stream.replicas and len(stream.replicas) < world.factor(stream):
        yield Sight.SHORT, stream.lsid
    for snid in stream.replicas:
        if world.answers(snid) and world.replica(snid, stream.lsid) is None:
            yield Sight.MISSING, stream.lsid, snid
    for snid in world.hosts(stream.lsid):
        replica = world.replica(snid, stream.lsid)
        if replica is None:
            continue
        if not replica.healthy:
            yield Sight.UNHEALTHY, stream.lsid, snid
        if replica.source and replica.state is ReplicaState.SEALING:
            yield Sight.COPYING, stream.lsid, snid, replica.committed_end
