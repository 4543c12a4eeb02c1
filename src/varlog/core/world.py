"""What the manager knows: the world as it is seen now, and the memory of since when it has been so.

A `World` is one look at the cluster: the metadata, and of every registered node its last answer and how long it has
been silent. A value like any other: whoever looks fills it in, `varlog.core.manager` decides on it, `diagnosing` tells
people of it.

What a node says of a log stream is held against the metadata only if it was asked after the metadata had shown the log
stream as it is now. In an older answer a replica that has done as it was told since would seem to have fallen behind,
and be sealed again. What is older is good enough for a request that the replica checks itself (`World.recent`).

`Memory` remembers what a single look cannot show: since when something has been as it is, and which backups were too
slow for their primary. It is soft. Nothing that is safe depends on it: a manager that starts anew, or a second one,
begins with an empty memory and waits longer at most. It follows from the worlds it was shown and from nothing else,
and holds no more than the present world has subjects for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum, auto
from typing import Final, NamedTuple

from varlog.core.gaps import last_known
from varlog.core.messages import ChainCopied, Info, Metadata, NodeInfo, ReplicaInfo, StreamInfo, TopicInfo
from varlog.types import Epoch, LogStreamID, ReplicaState, StorageNodeID, StreamStatus, TopicID

DEAD_AFTER: Final = 1.0
"""A node that has not answered for so long is taken for dead,"""
CLOSED_DEAD_AFTER: Final = 0.5
"""or for so long if its connection is closed as well."""
CUT_OFF_AFTER: Final = 2.0
"""A node whose reports the metadata repository has not answered for so long is cut off from it."""
HEARD_AFTER: Final = 1.0
"""A manager that has not heard from the metadata repository for so long says nothing of others who have not, and holds
nothing against those whom it has not heard either, or could not tell what to do."""

SUSPECT_SECONDS: Final = 10.0
"""A node that has let a log stream down stays out of its set for so long, and twice as long each time more,"""
MISSED_SECONDS: Final = 2.0
"""or for so long if all it did was to come too late when it was to join,"""
SUSPECT_SECONDS_MOST: Final = 300.0
"""but not longer than this;"""
TRUST_AFTER: Final = 600.0
"""and when nothing has come up against it for so long, what was before is forgotten."""
UNSEAL_PATIENCE: Final = 1.0
"""How long a replica may take to run when it is told to; then its log stream is sealed again, to go on without it."""
STORE_PATIENCE: Final = 2.0
"""How long a replica may take to store what others have stored."""
STUCK_AFTER: Final = 30.0
"""A replica that copies, and has not got on for so long, is left alone for a while."""
HOSTED_LATELY: Final = 10.0
"""For how long it is known that a node had a replica outside of the set: one that is made anew is away meanwhile."""
STARTED_LATELY: Final = 10.0
"""A backup whose node has been up for less was not slow when its primary missed it, but away."""


class NodeView(NamedTuple):
    """One registered storage node, as the manager sees it."""

    snid: StorageNodeID
    info: Info | None = None
    """Its last answer, however old."""
    is_current: bool = False
    """The answer may be held against the metadata, of log streams that have not changed since it was asked for."""
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


class Refusal(NamedTuple):
    """A node was to have a replica, and has made none."""

    lsid: LogStreamID
    snid: StorageNodeID
    why: str
    """What the node says of it."""


_NO_REPLICAS: Final[Mapping[StorageNodeID, ReplicaInfo]] = {}
_NOBODY: Final[frozenset[StorageNodeID]] = frozenset()


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
        changed: Mapping[LogStreamID, int] | None = None,
        replies: Iterable[tuple[StorageNodeID, ReplicaInfo]] = (),
        copies: Iterable[ChainCopied] = (),
        refusals: Iterable[Refusal] = (),
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
        self._changed = changed or {}
        """The last number that was given to a request when the metadata showed each log stream as it is now."""
        self._answers: dict[StorageNodeID, Info] = {}
        """What can be held against the metadata, of the nodes that answer."""
        self._replicas: dict[LogStreamID, dict[StorageNodeID, ReplicaInfo]] = {}
        for snid, view in self.views.items():
            if (answer := view.answer) is not None:
                self._answers[snid] = answer
                for replica in answer.replicas:
                    if self._is_after_change(answer, replica.lsid):
                        self._replicas.setdefault(replica.lsid, {})[snid] = replica
        for snid, replica in replies:
            if not self.is_dead(snid):
                self._replicas.setdefault(replica.lsid, {})[snid] = replica
        self._copies = {(copied.lsid, copied.snid): copied for copied in copies}
        """What replicas that copy the tail of a chain have told of that."""
        self._refusals: dict[LogStreamID, dict[StorageNodeID, str]] = {}
        for lsid, snid, why in refusals:
            self._refusals.setdefault(lsid, {})[snid] = why

    @classmethod
    def of(cls, metadata: Metadata, infos: Mapping[StorageNodeID, Info], now: float = 0.0) -> World:
        """A world in which these nodes have just answered, and the others do not; for how long, nobody has seen."""
        silent = [NodeView(node.snid, None, False, math.inf, False) for node in metadata.nodes]
        answers = [NodeView(snid, info, True) for snid, info in infos.items()]
        return cls(now, metadata, [*silent, *answers])

    def replicas(self, lsid: LogStreamID) -> Mapping[StorageNodeID, ReplicaInfo]:
        """The replicas of a log stream, in its set or out of it, on the nodes that answer."""
        return self._replicas.get(lsid, _NO_REPLICAS)

    def replica(self, snid: StorageNodeID, lsid: LogStreamID) -> ReplicaInfo | None:
        """What a node that answers says of its replica of a log stream."""
        return self._replicas.get(lsid, _NO_REPLICAS).get(snid)

    def refusals(self, lsid: LogStreamID) -> Mapping[StorageNodeID, str]:
        """Who was asked of late to make a replica of a log stream and could not, and why; whoever has one has made it
        since."""
        refused = self._refusals.get(lsid)
        return {snid: why for snid, why in refused.items() if snid not in self.replicas(lsid)} if refused else {}

    def recent(self, snid: StorageNodeID, lsid: LogStreamID) -> ReplicaInfo | None:
        """The same, or what a node that is not dead said last, though its log stream has changed since."""
        view = self.views.get(snid)
        if (known := self.replica(snid, lsid)) is not None or view is None or view.info is None or view.is_dead:
            return known
        return next((replica for replica in view.info.replicas if replica.lsid == lsid), None)

    def knows(self, snid: StorageNodeID, lsid: LogStreamID) -> bool:
        """Whether a node has said what it has of a log stream, or that it has nothing of it."""
        answer = self._answers.get(snid)
        return snid in self.replicas(lsid) or (answer is not None and self._is_after_change(answer, lsid))

    def copied(self, snid: StorageNodeID, lsid: LogStreamID) -> ChainCopied | None:
        """How far a replica is that copies the tail of a chain, if it has told so since the chain is as it is."""
        replica = self.replica(snid, lsid)
        return self._copies.get((lsid, snid)) if replica is not None and replica.source else None

    def reached(self, snid: StorageNodeID, lsid: LogStreamID) -> int:
        """Up to where a replica outside of the set has what those in it have, as far as can be told."""
        copied = self.copied(snid, lsid)
        return copied.copied if copied is not None else self.replicas(lsid)[snid].committed_end

    def _is_after_change(self, info: Info, lsid: LogStreamID) -> bool:
        return info.request > self._changed.get(lsid, -1)

    def answer(self, snid: StorageNodeID) -> Info | None:
        """What a node says of itself, if it answers, and that can be held against the metadata."""
        return self._answers.get(snid)

    def answers(self, snid: StorageNodeID) -> bool:
        return snid in self._answers

    def is_dead(self, snid: StorageNodeID) -> bool:
        view = self.views.get(snid)
        return view is None or view.is_dead

    def hangs(self, snid: StorageNodeID) -> bool:
        """Whether a node is taken for dead though its connection is open."""
        view = self.views.get(snid)
        return view is not None and view.is_dead and view.is_connected

    def is_identified(self, snid: StorageNodeID) -> bool:
        """Whether a node that answers is who it was (B11). One that never was given a secret need not prove it."""
        answer = self._answers.get(snid)
        return answer is not None and (answer.is_identified or self.nodes[snid].generation == 0)

    def later(self, stream: StreamInfo) -> dict[StorageNodeID, Epoch]:
        """Who has seen an epoch of a log stream that the metadata does not know of, and which."""
        known = self.replicas(stream.lsid)
        return {
            snid: replica.epoch
            for snid, replica in known.items()
            if replica.epoch != stream.epoch and last_known(replica.epoch, stream.epoch, stream.skipped) < replica.epoch
        }

    def late(self, stream: StreamInfo) -> list[StorageNodeID]:
        """Who keeps a log stream that is being unsealed from running: its backups, and when all of them run its
        primary, which is told last."""
        known = self.replicas(stream.lsid)
        late = [
            snid
            for snid in stream.replicas
            if snid not in known or (known[snid].state, known[snid].epoch) != (ReplicaState.RUNNING, stream.epoch)
        ]
        return [snid for snid in late if snid != stream.primary] or late

    def is_leaving(self, stream: StreamInfo, snid: StorageNodeID) -> bool:
        """Whether an operator wants a node out of the set."""
        node = self.nodes.get(snid)
        return snid == stream.leaving or (node is not None and node.is_draining)

    def factor(self, stream: StreamInfo) -> int:
        """How many replicas a log stream is to have."""
        topic = self.topics.get(stream.tpid)
        return (topic.replication_factor if topic is not None else 0) or len(stream.replicas)

    def least(self, stream: StreamInfo) -> int:
        """How many it cannot do without."""
        topic = self.topics.get(stream.tpid)
        return max(1, topic.min_replicas if topic is not None else 1)


class Sight(IntEnum):  # an integer, as the memory looks up nothing as often as these
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
    STILL = auto()
    """(log stream, committed end): it runs, and nothing is committed."""
    STALLED = auto()
    """(log stream, committed end): the same, though all its replicas have stored more."""
    STORES_NOTHING = auto()
    """(log stream, node, committed end): the same, as this replica has stored nothing more, though another one has."""
    LEAVING = auto()
    """(log stream): an operator wants a node out of its set."""
    WHOLE = auto()
    """(log stream, epoch): it runs on as many replicas as it is to have, all of them sound and in step."""
    SHORT = auto()
    """(log stream): it has fewer replicas than it is to have."""
    UNHEALTHY = auto()
    """(log stream, node): the replica has failed, or is corrupt."""
    MISSING = auto()
    """(log stream, node): a node of the set answers, and has no replica."""
    BEHIND = auto()
    """(log stream, node, committed end): a sound replica outside of the set lacks something; dated anew whenever it
    gets on."""
    UNPROJECTED = auto()
    """(log stream): it is registered, and no position goes there."""
    FOLLOWS = auto()
    """(log stream, node): a replica outside of a chain copies its tail."""
    AHEAD = auto()
    """(log stream, epoch): a replica has promised an epoch that the metadata does not know of; of a chain, one that is
    greater than the projection's."""


Key = tuple[Sight, *tuple[int, ...]]

_UNTOLD: Final = frozenset({Sight.UNSEALING, Sight.STORES_NOTHING, Sight.BEHIND})
"""What replicas are given some time for. It does not run while the metadata repository is away: nobody tells them."""


def sights(world: World) -> Iterator[Key]:
    """All that is worth a date in a world."""
    for snid, view in world.views.items():
        if view.is_dead:
            yield Sight.SILENT, snid
        elif (answer := world.answer(snid)) is not None:
            if not world.is_identified(snid):
                yield Sight.UNIDENTIFIED, snid
            if answer.unanswered >= CUT_OFF_AFTER and world.metadata_silent < HEARD_AFTER:
                yield Sight.CUT_OFF, snid
    for stream in world.metadata.streams:
        yield from _sights_of_status(world, stream)
        yield from _sights_of_replicas(world, stream)
        if stream.status is not StreamStatus.CHAINED and (later := world.later(stream)):
            yield Sight.AHEAD, stream.lsid, max(later.values())


def _sights_of_status(world: World, stream: StreamInfo) -> Iterator[Key]:
    match stream.status:
        case StreamStatus.RUNNING:
            yield from _sights_of_running(world, stream)
        case StreamStatus.CREATING:
            yield Sight.CREATING, stream.lsid
        case StreamStatus.ABORTED:
            yield Sight.ABORTED, stream.lsid
        case StreamStatus.SEALED:
            yield Sight.SEALED, stream.lsid, stream.epoch
        case StreamStatus.UNSEALING:
            yield Sight.UNSEALING, stream.lsid, stream.epoch
        case StreamStatus.CHAINED:
            yield from _sights_of_chain(world, stream)


def _sights_of_running(world: World, stream: StreamInfo) -> Iterator[Key]:
    yield Sight.STILL, stream.lsid, stream.llsn_end
    known = world.replicas(stream.lsid)
    stored = {snid for snid, replica in known.items() if replica.durable_end > stream.llsn_end}
    if stored.issuperset(stream.replicas):
        yield Sight.STALLED, stream.lsid, stream.llsn_end
    elif not stored.isdisjoint(stream.replicas):
        for snid in stream.replicas:
            if snid in known and snid not in stored:
                yield Sight.STORES_NOTHING, stream.lsid, snid, stream.llsn_end
    if _is_whole(world, stream):
        yield Sight.WHOLE, stream.lsid, stream.epoch


def _sights_of_chain(world: World, stream: StreamInfo) -> Iterator[Key]:
    topic = world.topics.get(stream.tpid)
    projection = topic.projection if topic is not None else None
    if projection is None or stream.lsid not in projection.stripes[-1].lsids:
        yield Sight.UNPROJECTED, stream.lsid
    ahead = max((r.epoch for r in world.replicas(stream.lsid).values() if r.healthy), default=Epoch(0))
    if ahead > stream.epoch:
        yield Sight.AHEAD, stream.lsid, ahead
    for snid, replica in world.replicas(stream.lsid).items():
        if replica.source and snid not in stream.replicas:
            yield Sight.FOLLOWS, stream.lsid, snid
    if _is_whole(world, stream):
        yield Sight.WHOLE, stream.lsid, stream.epoch


def _is_whole(world: World, stream: StreamInfo) -> bool:
    if stream.joining or len(stream.replicas) < world.factor(stream):
        return False
    known = world.replicas(stream.lsid)
    for snid in stream.replicas:
        replica = known.get(snid)
        if replica is None or replica.state is not ReplicaState.RUNNING:
            return False
        if replica.epoch != stream.epoch or not replica.healthy:
            return False
    return True


def _sights_of_replicas(world: World, stream: StreamInfo) -> Iterator[Key]:
    if stream.replicas and len(stream.replicas) < world.factor(stream):
        yield Sight.SHORT, stream.lsid
    if any(world.is_leaving(stream, snid) for snid in stream.replicas):
        yield Sight.LEAVING, stream.lsid
    known = world.replicas(stream.lsid)
    for snid in stream.replicas:
        if snid not in known and world.knows(snid, stream.lsid):
            yield Sight.MISSING, stream.lsid, snid
    for snid, replica in known.items():
        if not replica.healthy:
            yield Sight.UNHEALTHY, stream.lsid, snid
        elif snid not in stream.replicas and _is_behind(world, stream, snid, replica):
            yield Sight.BEHIND, stream.lsid, snid, world.reached(snid, stream.lsid)


def _is_behind(world: World, stream: StreamInfo, snid: StorageNodeID, replica: ReplicaInfo) -> bool:
    if stream.status is not StreamStatus.CHAINED:
        return replica.committed_end < stream.llsn_end
    copied = world.copied(snid, stream.lsid)
    return copied is None or not copied.is_complete


class Suspicion(NamedTuple):
    """A node has let a log stream down lately, and stays out of its set for a while if others suffice."""

    why: str
    """What it did, in a clause that follows its name."""
    times: int
    epoch: Epoch
    """Of the log stream, when it did so last."""
    until: float


class Memory:
    """See the module's text."""

    def __init__(self) -> None:
        self._since: dict[Key, float] = {}
        self._boots: dict[StorageNodeID, tuple[int, float]] = {}
        self._suspicions: dict[tuple[LogStreamID, StorageNodeID], Suspicion] = {}
        self._joining: dict[LogStreamID, tuple[Epoch, frozenset[StorageNodeID]]] = {}
        """Who was told of the seal of an epoch and was not in the set: it was to join."""
        self._hosted: dict[LogStreamID, dict[StorageNodeID, float]] = {}
        """When replicas outside of their sets were last seen."""
        self._sets: dict[LogStreamID, tuple[StorageNodeID, ...]] = {}
        self._left: dict[LogStreamID, frozenset[StorageNodeID]] = {}
        """The sets as they were last seen, and who was in one before."""
        self._unheard = -math.inf
        """When the metadata repository was last seen not to answer."""

    def observe(self, world: World) -> None:
        """Look at a world. What is in it and was not before is dated now; what is no more is forgotten."""
        before, now = self._since, world.now
        is_unheard = world.metadata_silent >= HEARD_AFTER
        if is_unheard:
            self._unheard = now
        self._since = {
            key: now if is_unheard and key[0] in _UNTOLD else before.get(key, now)
            for key in sights(world)
            if self._counts(world, key)
        }
        self._observe_boots(world)
        streams = {stream.lsid: stream for stream in world.metadata.streams}
        for stream in streams.values():
            for snid, epoch, why in self._let_down(world, stream):
                self._suspect(world.now, stream.lsid, snid, epoch, why, SUSPECT_SECONDS)
            for snid, epoch in self._missed(stream):
                self._suspect(world.now, stream.lsid, snid, epoch, "was not ready when it was to join", MISSED_SECONDS)
        self._joining = dict(_joining(world))
        self._hosted = {lsid: hosts for lsid, stream in streams.items() if (hosts := self._hosts(world, stream))}
        self._observe_sets(world)
        self._suspicions = {
            (lsid, snid): suspicion
            for (lsid, snid), suspicion in self._suspicions.items()
            if lsid in streams and snid in world.nodes and world.now < suspicion.until + TRUST_AFTER
        }

    def seconds(self, now: float, sight: Sight, *numbers: int) -> float | None:
        """For how long something has been so; None if it is not."""
        since = self._since.get((sight, *numbers))
        return None if since is None else now - since

    def has_lasted(self, seconds: float, now: float, sight: Sight, *numbers: int) -> bool:
        """Whether something has been so for that long."""
        since = self._since.get((sight, *numbers))
        return since is not None and now - since >= seconds

    def suspicion(self, lsid: LogStreamID, snid: StorageNodeID) -> Suspicion | None:
        """What is held against a node, in one log stream."""
        return self._suspicions.get((lsid, snid))

    def is_suspect(self, now: float, lsid: LogStreamID, snid: StorageNodeID) -> bool:
        suspicion = self._suspicions.get((lsid, snid))
        return suspicion is not None and now < suspicion.until

    def hosted_lately(self, lsid: LogStreamID) -> Iterable[StorageNodeID]:
        """The nodes that have a replica of a log stream outside of its set, or had one a moment ago."""
        return self._hosted.get(lsid, {}).keys()

    def has_left(self, lsid: LogStreamID, snid: StorageNodeID) -> bool:
        """Whether a node was seen in the set of a log stream, and is outside of it now."""
        return snid in self._left.get(lsid, ())

    def _observe_sets(self, world: World) -> None:
        sets, left = {}, {}
        for stream in world.metadata.streams:
            sets[stream.lsid] = stream.replicas
            had_left, was = self._left.get(stream.lsid, _NOBODY), self._sets.get(stream.lsid, ())
            if had_left or was != stream.replicas:
                had_left = frozenset({*had_left, *was} & world.nodes.keys()) - {*stream.replicas}
            left[stream.lsid] = had_left
        self._sets, self._left = sets, left

    def _hosts(self, world: World, stream: StreamInfo) -> dict[StorageNodeID, float]:
        before = self._hosted.get(stream.lsid, {})
        outside = world.replicas(stream.lsid).keys() - stream.replicas
        if not before and not outside:
            return {}
        hosts = {snid: seen for snid, seen in before.items() if world.now - seen < HOSTED_LATELY}
        hosts.update(dict.fromkeys(outside, world.now))
        return {snid: seen for snid, seen in hosts.items() if snid in world.nodes and snid not in stream.replicas}

    def _counts(self, world: World, key: Key) -> bool:
        """Whether a sight is dated. Who was cut off from a metadata repository that was away may need as long again to
        find it."""
        if key[0] is Sight.CUT_OFF:
            return self._has_heard(CUT_OFF_AFTER, world)
        return key[0] is not Sight.BEHIND or self._is_blamed(world, key)

    def _has_heard(self, seconds: float, world: World) -> bool:
        """Whether the metadata repository has answered for so long: what came up against others since is theirs."""
        return world.now - self._unheard >= seconds

    def _is_blamed(self, world: World, key: Key) -> bool:
        """Whether a replica that is behind is blamed for it: not if it was not asked to copy, or is left alone for a
        while."""
        numbers = key[1:]
        lsid, snid = LogStreamID(numbers[0]), StorageNodeID(numbers[1])
        began = key in self._since or bool(world.replicas(lsid)[snid].source)
        return began and not self.is_suspect(world.now, lsid, snid)

    def _observe_boots(self, world: World) -> None:
        boots = {}
        for snid, view in world.views.items():
            before = self._boots.get(snid)
            if view.info is not None and (before is None or before[0] != view.info.boot):
                before = view.info.boot, world.now
            if before is not None:
                boots[snid] = before
        self._boots = boots

    def _let_down(self, world: World, stream: StreamInfo) -> Iterator[tuple[StorageNodeID, Epoch, str]]:
        """Who has let a log stream down, in the run that ends with which sealed epoch (0 if no run ends), and how."""
        known = world.replicas(stream.lsid)
        for snid in stream.replicas:
            replica = known.get(snid)
            if replica is not None and (suspect := replica.suspect) in stream.replicas:
                if not self._started_lately(world, suspect):
                    yield suspect, Epoch(replica.epoch | 1), "was too slow for its primary"
            elif stream.status is StreamStatus.RUNNING and self._hangs(world, snid):
                yield snid, Epoch(stream.epoch | 1), "stopped answering"
        yield from self._slow(world, stream)
        for snid, why in world.refusals(stream.lsid).items():
            yield snid, Epoch(0), f"made no replica of it ({why})"
        wanted = len(stream.replicas) < world.factor(stream) or stream.joining
        for snid in known.keys() - stream.replicas if wanted else ():
            reached = world.reached(snid, stream.lsid)
            if self.has_lasted(STUCK_AFTER, world.now, Sight.BEHIND, stream.lsid, snid, reached):
                yield snid, Epoch(0), f"copied nothing for {STUCK_AFTER:.0f} s"

    def _hangs(self, world: World, snid: StorageNodeID) -> bool:
        """It is silent, and not because the manager itself was cut off."""
        return world.hangs(snid) and self._has_heard(DEAD_AFTER, world)

    def _missed(self, stream: StreamInfo) -> Iterator[tuple[StorageNodeID, Epoch]]:
        """Who was to join with the last seal, and did not."""
        epoch, joining = self._joining.get(stream.lsid, (Epoch(0), frozenset()))
        if stream.epoch == epoch + 1:
            for snid in joining - {*stream.replicas}:
                yield snid, epoch

    def _slow(self, world: World, stream: StreamInfo) -> Iterator[tuple[StorageNodeID, Epoch, str]]:
        sealed = Epoch(stream.epoch | 1)
        if stream.status is StreamStatus.UNSEALING:
            if self.has_lasted(UNSEAL_PATIENCE, world.now, Sight.UNSEALING, stream.lsid, stream.epoch):
                for snid in world.late(stream):
                    yield snid, sealed, "did not run when it was told to"
        elif stream.status is StreamStatus.RUNNING:
            for snid in stream.replicas:
                if self.has_lasted(STORE_PATIENCE, world.now, Sight.STORES_NOTHING, stream.lsid, snid, stream.llsn_end):
                    yield snid, sealed, "stored nothing though others did"

    def _started_lately(self, world: World, snid: StorageNodeID) -> bool:
        """It was not slow when its primary missed it, but away."""
        _, since = self._boots.get(snid, (0, world.now))
        return world.now - since < STARTED_LATELY

    def _suspect(
        self, now: float, lsid: LogStreamID, snid: StorageNodeID, epoch: Epoch, why: str, seconds: float
    ) -> None:
        before = self._suspicions.get((lsid, snid))
        if before is None:
            before = Suspicion("", 0, Epoch(0), now)
        elif now < before.until or 0 < epoch <= before.epoch:
            return  # it is known of this already
        until = now + min(seconds * 2**before.times, SUSPECT_SECONDS_MOST)
        self._suspicions[lsid, snid] = Suspicion(why, before.times + 1, max(epoch, before.epoch), until)


def _joining(world: World) -> Iterator[tuple[LogStreamID, tuple[Epoch, frozenset[StorageNodeID]]]]:
    """Of every sealed log stream its epoch, and who outside of its set knows of the seal and has not reached it."""
    for stream in world.metadata.streams:
        if stream.status is StreamStatus.SEALED:
            known = world.replicas(stream.lsid)
            told = {snid for snid, replica in known.items() if replica.epoch == stream.epoch} - {*stream.replicas}
            late = frozenset(snid for snid in told if known[snid].state is ReplicaState.SEALING)
            yield stream.lsid, (stream.epoch, late)
