"""Reconfiguration: how a topic that a sequencer orders gets its next projection, by whoever finds that it needs one (S6
to S8, rules 20, 22).

A client that meets a failure, and the manager for chains that are to gain or lose a member, hold the same conversation:

1. Read the metadata. If there is a later projection than the one that failed, that is the answer.
2. Find a sequencer: the present one if it still runs, else another. Before the seal, so that a topic whose sequencer is
   gone, and has no other, can still be read.
3. Ask who is there, of every chain. If there are too few to go on with, nothing is sealed, for the same reason.
4. Seal those in the next epoch, and those that are to join. Who takes the seal is kept, in the chain's order; who does
   not is left out. A replica that knows a greater epoch says that somebody else is at it: pause, look again, and if
   there is nothing new go above it, for that one may have died in between.
5. Let those that join copy the tail, which is sealed, to its end.
6. Propose: positions go on after all that any kept replica has. What is kept has every acknowledged entry, since only
   what every replica of a chain has is acknowledged; what lies beyond was never acknowledged, and never happened.

Whoever was overtaken takes the winner's projection. Nothing is remembered outside of the conversation: one that ends in
the middle leaves replicas of a greater epoch than the projection's, which the next one goes above.

What must always hold: a replica is kept only if it took the seal of the very epoch that is proposed; a chain loses
members or gains one at its tail; a position that is given out again was not on any replica that is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Set
from collections.abc import Sequence as Seq
from typing import Final, NamedTuple

from msgspec.structs import replace

from varlog import errors, limits
from varlog.core.address import METADATA_REPOSITORY, node_address, sequencer_address
from varlog.core.conversing import Answer, Conversation, Requests, one
from varlog.core.messages import (
    ChainCopied,
    ChainCopy,
    ChainSeal,
    ChainSealed,
    Decided,
    GetInfo,
    GetMetadata,
    Info,
    Metadata,
    Peek,
    Peeked,
    ProposeProjection,
    SequencerInfo,
    TopicInfo,
)
from varlog.core.projection import NEVER, Chain, Projection, Stripe, check
from varlog.types import GLSN, Epoch, LogStreamID, Ordering, StorageNodeID, StreamStatus, TopicID

PAUSE: Final[Requests] = ()
"""In place of requests: wait for a moment, each proposer for another one, so that not all try again at once."""

_ATTEMPTS: Final = 8
_COPY_LOOKS: Final = 40
"""How often, a pause apart, it is looked whether a replica that joins has copied the rest: appends wait meanwhile."""
_REFUSED: Final = frozenset(
    error.code
    for error in (
        errors.InvalidArgument,
        errors.LimitExceeded,
        errors.UnknownTopic,
        errors.UnknownNode,
        errors.UnknownLogStream,
        errors.WrongOrdering,
    )
)
"""What the metadata repository will say of a proposal however often it is made."""

Place = tuple[LogStreamID, StorageNodeID]
"""A replica: of a log stream, on a node."""


class Change(NamedTuple):
    """Why there is to be another projection, and what is wanted of it."""

    failed: Epoch | None = None
    """The epoch that does not work: any later one will do. None: whatever there is, make another one."""
    seen: Epoch = Epoch(0)
    """The greatest epoch that a replica has told."""
    suspects: frozenset[StorageNodeID] = frozenset()
    """Nodes that do not answer. They are asked only if too few others of a chain are left, and leavers only if nobody
    is."""
    sequencers: frozenset[str] = frozenset()
    """Where sequencers do not answer."""
    joiners: tuple[Place, ...] = ()
    leavers: frozenset[Place] = frozenset()


def reconfigure(new_request: Callable[[], int], tpid: TopicID, change: Change) -> Conversation:
    """The conversation. Returns the epoch of the projection in force: the one proposed, or another's that is later."""
    return _Reconfiguration(new_request, tpid, change).run()


def find_sequencer(
    new_request: Callable[[], int], metadata: Metadata, topic: TopicInfo | None = None
) -> Generator[Requests, Seq[Answer], SequencerInfo]:
    """Who would give out positions of a topic, or of one that is to be made. Unreachable if no sequencer answers."""
    tpid, projection = (topic.tpid, topic.projection) if topic is not None else (TopicID(0), None)
    return _Reconfiguration(new_request, tpid, Change()).find_sequencer(metadata.sequencers, projection)


class _Overtaken(Exception):
    """A replica knows as great an epoch: somebody else is at it, or died while at it."""


class _Reconfiguration:
    """See the module's text."""

    def __init__(self, new_request: Callable[[], int], tpid: TopicID, change: Change) -> None:
        self._request = new_request
        self._tpid = tpid
        self._called = str(tpid)
        """What people call the topic, once that is known."""
        self._change = change
        self._failed = change.failed
        self._seen = change.seen
        self._reasons: dict[Place, str] = {}
        """Why replicas are not there, or did not take the seal."""

    def run(self) -> Conversation:
        for attempt in range(_ATTEMPTS):
            if attempt:
                yield PAUSE
            try:
                epoch = yield from self._attempt()
            except _Overtaken:
                continue
            if epoch is not None:
                return epoch
        raise errors.Busy(f"topic {self._called} is being reconfigured by others; try again shortly")

    def _attempt(self) -> Generator[Requests, Seq[Answer], Epoch | None]:
        """The epoch in force; None if that is not known."""
        metadata = one(Metadata, (yield [(METADATA_REPOSITORY, GetMetadata(self._request()))]))
        topic = self._topic(metadata)
        base = topic.projection.epoch if topic.projection is not None else Epoch(0)
        if self._failed is not None and base > self._failed:
            return base
        chains = _chains(metadata, topic)
        sequencer = yield from self.find_sequencer(metadata.sequencers, topic.projection)
        epoch = Epoch(max(base, self._seen) + 1)
        members = yield from self._find_members(topic, chains)
        sealed = yield from self._seal(epoch, chains, members, topic.projection)
        kept = {lsid: tuple(snid for snid in chain.nodes if (lsid, snid) in sealed) for lsid, chain in chains.items()}
        joined = yield from self._join(epoch, kept, sealed)
        projection = _build(metadata, topic, sequencer, epoch, kept, joined, sealed)
        propose = ProposeProjection(self._request(), self._tpid, base, projection)
        (answer,) = yield [(METADATA_REPOSITORY, propose)]
        if isinstance(answer, Decided) and answer.code == 0:
            return epoch
        if isinstance(answer, Decided) and answer.code in _REFUSED:
            raise errors.VarlogError.of(answer.code, answer.detail)
        self._failed = base  # somebody else was first, or nobody knows: the metadata will tell
        return None

    def _topic(self, metadata: Metadata) -> TopicInfo:
        topic = next((topic for topic in metadata.topics if topic.tpid == self._tpid), None)
        if topic is None:
            raise errors.UnknownTopic(f"there is no topic {self._called} any more")
        self._called = repr(topic.name)
        if topic.ordering is not Ordering.SEQUENCER:
            raise errors.WrongOrdering(f"topic {topic.name!r} has no projection: its positions come from commits")
        return topic

    # Who gives out positions

    def find_sequencer(
        self, registered: Seq[SequencerInfo], projection: Projection | None
    ) -> Generator[Requests, Seq[Answer], SequencerInfo]:
        """One that answers: the present one if it is still the same, else any other; last those that are suspected."""
        suspects = self._change.sequencers
        if projection is not None and projection.sequencer not in suspects:
            for info in (yield from self._ask_sequencers([projection.sequencer])):
                if info.boot == projection.boot:
                    return info
        addresses = [info.address for info in registered]
        for some in ([a for a in addresses if a not in suspects], [a for a in addresses if a in suspects]):
            found = yield from self._ask_sequencers(some)
            if found:
                return found[self._tpid % len(found)]
        known = ", ".join(addresses) or "none was ever registered"
        raise errors.Unreachable(f"no sequencer answers ({known}); start one with `vsq start`")

    def _ask_sequencers(self, addresses: Iterable[str]) -> Generator[Requests, Seq[Answer], list[SequencerInfo]]:
        asked = list(addresses)
        if not asked:
            return []
        answers = yield [(sequencer_address(a), Peek(self._request(), self._tpid, Epoch(0))) for a in asked]
        return [
            SequencerInfo(address, answer.boot)
            for address, answer in zip(asked, answers, strict=True)
            if isinstance(answer, Peeked) and answer.boot
        ]

    # Who is there

    def _find_members(
        self, topic: TopicInfo, chains: Mapping[LogStreamID, Chain]
    ) -> Generator[Requests, Seq[Answer], set[Place]]:
        """The replicas to go on with, as many as every chain needs."""
        members = [(lsid, snid) for lsid, chain in chains.items() for snid in chain.nodes]
        leavers = [place for place in members if place in self._change.leavers]
        stayers = [place for place in members if place not in self._change.leavers]
        suspects = [place for place in stayers if place[1] in self._change.suspects]
        least = {lsid: max(1, topic.min_replicas - len(self._joiners(chain))) for lsid, chain in chains.items()}
        there = yield from self._ask_members([place for place in stayers if place not in suspects])
        there |= yield from self._ask_members([p for p in suspects if _count(there, p[0]) < least[p[0]]])
        there |= yield from self._ask_members([place for place in leavers if not _count(there, place[0])])
        for lsid, chain in chains.items():
            if not _count(there, lsid):
                raise self._nobody(chain)
            if _count(there, lsid) < least[lsid]:
                raise _too_few(lsid, _count(there, lsid), topic)
        return there

    def _joiners(self, chain: Chain) -> list[Place]:
        return [place for place in self._change.joiners if place[0] == chain.lsid and place[1] not in chain.nodes]

    def _ask_members(self, places: Seq[Place]) -> Generator[Requests, Seq[Answer], set[Place]]:
        """Those of them that answer, and are sound."""
        if not places:
            return set()
        nodes = sorted({snid for _, snid in places})
        answers = yield [(node_address(snid), GetInfo(self._request())) for snid in nodes]
        told = dict(zip(nodes, answers, strict=True))
        there = set()
        for lsid, snid in places:
            answer = told[snid]
            replicas = answer.replicas if isinstance(answer, Info) else ()
            replica = next((replica for replica in replicas if replica.lsid == lsid), None)
            if replica is not None and replica.healthy:
                there.add((lsid, snid))
            elif replica is not None:
                self._reasons[lsid, snid] = str(errors.VarlogError.of(replica.fault, ""))
            else:
                self._reasons[lsid, snid] = "it has no replica" if isinstance(answer, Info) else _reason(answer)
        return there

    def _nobody(self, chain: Chain) -> errors.Unreachable:
        why = "; ".join(f"node {snid}: {self._reasons.get((chain.lsid, snid), 'no answer')}" for snid in chain.nodes)
        return errors.Unreachable(f"log stream {chain.lsid} has no replica that can go on ({why}); start one of them")

    # Who is kept

    def _seal(
        self, epoch: Epoch, chains: Mapping[LogStreamID, Chain], members: Set[Place], old: Projection | None
    ) -> Generator[Requests, Seq[Answer], dict[Place, ChainSealed]]:
        """The replicas that took the seal: at least one of every chain."""
        joiners = {place for chain in chains.values() for place in self._joiners(chain)}
        bases = {chain.lsid: old.epoch for chain in old.chains} if old is not None else {}
        seals = {
            (lsid, snid): ChainSeal(0, lsid, epoch, old.epoch if old is not None else Epoch(0), joins=True)
            if (lsid, snid) in joiners
            else ChainSeal(0, lsid, epoch, bases.get(lsid, Epoch(0)))
            for lsid, snid in sorted(members | joiners)
        }
        sealed = yield from self._seal_these(seals)
        for lsid, chain in chains.items():
            if not any((lsid, snid) in sealed for snid in chain.nodes):
                raise self._nobody(chain)
        return sealed

    def _seal_these(
        self, seals: Mapping[Place, ChainSeal]
    ) -> Generator[Requests, Seq[Answer], dict[Place, ChainSealed]]:
        answers = yield [(node_address(place[1]), replace(seals[place], request=self._request())) for place in seals]
        sealed: dict[Place, ChainSealed] = {}
        is_overtaken = False
        for (place, seal), answer in zip(seals.items(), answers, strict=True):
            if isinstance(answer, ChainSealed):
                self._seen = max(self._seen, answer.epoch)
                if answer.code == 0 and answer.epoch == seal.epoch:
                    sealed[place] = answer
                else:
                    is_overtaken |= answer.code == errors.StaleEpoch.code
            self._reasons[place] = _reason(answer)
        if is_overtaken:
            raise _Overtaken
        return sealed

    # Who joins

    def _join(
        self,
        epoch: Epoch,
        kept: Mapping[LogStreamID, tuple[StorageNodeID, ...]],
        sealed: Mapping[Place, ChainSealed],
    ) -> Generator[Requests, Seq[Answer], dict[LogStreamID, list[StorageNodeID]]]:
        """Those that have become copies of their chain's tail. Who takes too long is left out."""
        joined: dict[LogStreamID, list[StorageNodeID]] = {}
        waiting = [place for place in self._change.joiners if place in sealed and place[1] not in kept[place[0]]]
        for look in range(_COPY_LOOKS):
            if not waiting:
                break
            if look:
                yield PAUSE
            requests = []
            for lsid, snid in waiting:
                source = kept[lsid][-1]
                end = sealed[lsid, source].end
                requests.append((node_address(snid), ChainCopy(self._request(), lsid, epoch, source, end)))
            copying = []
            for place, answer in zip(waiting, (yield requests), strict=True):
                if isinstance(answer, ChainCopied) and answer.code == 0:
                    if answer.is_complete:
                        joined.setdefault(place[0], []).append(place[1])
                    else:
                        copying.append(place)
            waiting = copying
        return joined


def _count(places: Set[Place], lsid: LogStreamID) -> int:
    return sum(place[0] == lsid for place in places)


def _too_few(lsid: LogStreamID, replicas: int, topic: TopicInfo) -> errors.Sealed:
    return errors.Sealed(
        f"log stream {lsid} has {replicas} of at least {topic.min_replicas} replicas: "
        "start the nodes that have the others"
    )


def _reason(answer: Answer) -> str:
    """Why a replica is not there, or did not take the seal."""
    code = getattr(answer, "code", 0)
    if isinstance(answer, errors.VarlogError) or not code:
        return str(answer)
    return str(errors.VarlogError.of(code, getattr(answer, "detail", "")))


def _chains(metadata: Metadata, topic: TopicInfo) -> dict[LogStreamID, Chain]:
    """The chains as they are: of the projection, and of log streams that were registered since."""
    chains = {chain.lsid: chain for chain in topic.projection.chains} if topic.projection is not None else {}
    for lsid in _registered(metadata, topic):
        stream = next(stream for stream in metadata.streams if stream.lsid == lsid)
        chains.setdefault(lsid, Chain(lsid, stream.replicas))
    if not chains:
        raise errors.UnknownLogStream(f"topic {topic.name!r} has no log stream; add one with `varlog stream add`")
    needed = {lsid for stripe in _stripes(metadata, topic, NEVER) for lsid in stripe.lsids}
    return {lsid: chain for lsid, chain in sorted(chains.items()) if lsid in needed}


def _registered(metadata: Metadata, topic: TopicInfo) -> tuple[LogStreamID, ...]:
    """The log streams that positions are to go to."""
    mine = (stream for stream in metadata.streams if stream.tpid == topic.tpid)
    return tuple(sorted(stream.lsid for stream in mine if stream.status is StreamStatus.CHAINED))


def _stripes(metadata: Metadata, topic: TopicInfo, start: GLSN) -> tuple[Stripe, ...]:
    """What is left of the stripes, and a new one from `start` on if the log streams are others."""
    stripes = list(topic.projection.stripes) if topic.projection is not None else []
    lsids = _registered(metadata, topic)
    if lsids and (not stripes or set(stripes[-1].lsids) != set(lsids)):
        if stripes and stripes[-1].begin >= start:  # nothing was ever written to it
            stripes.pop()
        stripes.append(Stripe(start, topic.block or limits.STRIPE_BLOCK, lsids))
    while len(stripes) > 1 and stripes[1].begin <= topic.trim + 1:
        stripes.pop(0)
    return tuple(stripes)


def _build(
    metadata: Metadata,
    topic: TopicInfo,
    sequencer: SequencerInfo,
    epoch: Epoch,
    kept: Mapping[LogStreamID, tuple[StorageNodeID, ...]],
    joined: Mapping[LogStreamID, Seq[StorageNodeID]],
    sealed: Mapping[Place, ChainSealed],
) -> Projection:
    """The projection to propose."""
    chains = [Chain(lsid, (*nodes, *joined.get(lsid, ()))) for lsid, nodes in kept.items()]
    for chain in chains:
        if len(chain.nodes) < topic.min_replicas:
            raise _too_few(chain.lsid, len(chain.nodes), topic)
    answers = [sealed[lsid, snid] for lsid, nodes in kept.items() for snid in nodes]
    old = topic.projection
    start = GLSN(max(topic.trim + 1, old.start if old is not None else 1, *(answer.end for answer in answers)))
    time = max(old.time if old is not None else 0, *(answer.time for answer in answers))
    stripes = _stripes(metadata, topic, start)
    lsids = {lsid for stripe in stripes for lsid in stripe.lsids}
    projection = Projection(
        epoch, sequencer.address, sequencer.boot, start, time, stripes, tuple(c for c in chains if c.lsid in lsids)
    )
    check(projection)
    return projection
