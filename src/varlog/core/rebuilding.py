"""Rebuilding: metadata made anew of what the storage nodes hold, when all of it is lost.

The order is on their disks: a commit context says which GLSNs the entries of a log stream have, and which positions its
cut gave in all. So each log stream is taken to the end of its last commit context on any disk, and every position up to
the highest that any of them knows of is accounted for. Log streams are SEALED there, in an epoch above all that any
replica has promised, and the version is far above all that anybody has seen: then the manager brings the replicas to
that end, by the commit contexts that some of them lack or by copies, and lets them run again.

Nothing is guessed:

- A batch beyond the last commit context may have had positions, or not. It is listed (`Loose`), and counts for nothing.
- A position that some cut gave, and that no commit context names the entry of, may belong to one of those, or to a node
  that is missing. It is declared lost, and only if that is wanted: readers then get an error there, and never silence.
- Where two nodes contradict each other, nothing is made.
- What storage nodes do not know is taken from an older backup if there is one: names, archives, wanted replicas, the
  register of transactions. And nothing that it knows of is passed over: a node that ran a log stream then, and of which
  nobody has told since, is asked for; no epoch or position falls below the backup's.

Topics that a sequencer orders have no commit contexts: see `chainrebuilding`.

What must always hold of the result: every entry with a commit context on some disk has the position it had; no position
that is named by one is given again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import deepcopy
from typing import Final, NamedTuple

import msgspec

from varlog import errors, limits
from varlog.core.chainrebuilding import Returned, bring_back
from varlog.core.metastate import Checkpoint, MetadataState, Node, Stream, Topic
from varlog.core.surveys import NodeSurvey, ReplicaSurvey, Stored
from varlog.types import (
    FIRST_EPOCH,
    GLSN,
    LLSN,
    CommitContext,
    Epoch,
    LogStreamID,
    Ordering,
    StorageNodeID,
    StreamStatus,
    TopicID,
    Version,
)

VERSIONS_SKIPPED: Final = 1 << 20
"""More than can have been decided since the last commit context that is on a disk: a node that others are told of late,
or a client that was there before, never meets a version twice."""
IDS_SKIPPED: Final = 1000
"""Of topics and log streams: what is left of removed ones on a node that is away is not taken for another."""
MOST_TOLD: Final = 5
Found = dict[LogStreamID, dict[StorageNodeID, ReplicaSurvey]]


class Loose(msgspec.Struct, frozen=True):
    """Batches on one node's disk that no commit context names."""

    node: StorageNodeID
    log_stream: LogStreamID
    llsn_begin: LLSN
    llsn_end: LLSN
    epoch: Epoch
    batches: int
    bytes: int


class RebuiltTopic(msgspec.Struct, frozen=True):
    """What became of one topic."""

    id: TopicID
    name: str
    log_streams: int
    first: GLSN
    last: GLSN
    lost: tuple[tuple[GLSN, GLSN], ...]
    """Positions [begin, end) that are declared lost."""
    uncertain: int
    """So many positions from `last` + 1 on may have been given before, to what is listed as loose."""


class Rebuilt(NamedTuple):
    """The result."""

    checkpoint: Checkpoint
    topics: list[RebuiltTopic]
    loose: list[Loose]
    remarks: list[str]
    """What an operator should know besides."""


class Wishes(NamedTuple):
    """What an operator knows or wants."""

    names: Mapping[TopicID, str] = {}
    known: MetadataState | None = None
    """Of an older backup."""
    without: AbstractSet[StorageNodeID] = frozenset()
    """Nodes that are gone for good."""
    declare_lost: bool = False


def rebuild(surveys: Sequence[NodeSurvey], wishes: Wishes) -> Rebuilt:
    """See the module's text."""
    nodes = _nodes(surveys)
    remarks: list[str] = []
    found = _replicas(surveys)
    chains = {lsid: replicas for lsid, replicas in found.items() if _is_chain(lsid, replicas)}
    streams = [_Stream(lsid, replicas) for lsid, replicas in sorted(found.items()) if lsid not in chains]
    ran = [stream for stream in streams if stream.epoch]
    remarks += [f"log stream {s.lsid} never ran, and is left out" for s in streams if not s.epoch]
    _check_all_there(ran, nodes.keys(), wishes)
    for stream in ran:
        remarks += stream.remarks(nodes.keys())
    state = MetadataState(nodes={snid: _node(survey, wishes.known) for snid, survey in nodes.items()})
    state.version = _version(ran, wishes.known)
    state.sequencers = dict(wishes.known.sequencers) if wishes.known is not None else {}
    state.time = max((stream.last.time for stream in ran if stream.last is not None), default=0)
    held = {stream.lsid: commits for stream in ran if (commits := stream.held())}
    _add_counters(state, found, wishes.known)
    returned = bring_back(chains, wishes.known, nodes.keys(), wishes.without)
    topics = _topics(ran, returned, wishes, state)
    remarks += [one.remark for one in returned if one.remark]
    remarks += _forgotten(state, wishes.known, returned)
    remarks += _add_registers(state, wishes.known)
    return Rebuilt(Checkpoint(state, held), topics, [one for stream in ran for one in stream.loose()], remarks)


def loose_of(survey: NodeSurvey) -> list[Loose]:
    """What one node has beyond its own commit contexts."""
    return [one for replica in survey.replicas for one in _loose(survey.snid, replica, replica.committed_end)]


# Nodes


def _nodes(surveys: Sequence[NodeSurvey]) -> dict[StorageNodeID, NodeSurvey]:
    found: dict[StorageNodeID, NodeSurvey] = {}
    for survey in surveys:
        if survey.snid in found:
            raise errors.SurveysDisagree(
                f"storage node {survey.snid} was surveyed twice; give its last survey alone, taken where it will start"
            )
        found[survey.snid] = survey
    if len({survey.cid for survey in surveys}) > 1:
        raise errors.SurveysDisagree("these are nodes of different clusters")
    return found


def _node(survey: NodeSurvey, known: MetadataState | None) -> Node:
    """Where it is, it says itself when it starts."""
    before = known.nodes.get(survey.snid) if known is not None else None
    node = Node(before.address if before is not None else "", survey.volumes)
    node.generation, node.boot = survey.generation, survey.boot
    node.proof, node.next_proof = survey.proof, survey.next_proof
    return node


def _replicas(surveys: Iterable[NodeSurvey]) -> Found:
    found: Found = {}
    for survey in surveys:
        for replica in survey.replicas:
            found.setdefault(replica.lsid, {})[survey.snid] = replica
    return found


def _is_chain(lsid: LogStreamID, replicas: Mapping[StorageNodeID, ReplicaSurvey]) -> bool:
    """Whether a sequencer orders a log stream."""
    orderings = {replica.ordering for replica in replicas.values()}
    if len(orderings) > 1:
        raise errors.SurveysDisagree(f"log stream {lsid} is ordered by commits and by a sequencer on different nodes")
    return orderings == {Ordering.SEQUENCER}


def _check_all_there(streams: Sequence[_Stream], surveyed: Collection[StorageNodeID], wishes: Wishes) -> None:
    """A node that ran a log stream may hold commit contexts that nobody else does, and later epochs."""
    ran_on = {stream.lsid: (stream.epoch, stream.ran_on) for stream in streams}
    for before in wishes.known.streams.values() if wishes.known is not None else ():
        if before.status is not StreamStatus.CHAINED and before.epoch >= ran_on.get(before.lsid, (0, frozenset()))[0]:
            ran_on[before.lsid] = (before.epoch, frozenset(before.replicas))
    missing: dict[StorageNodeID, list[LogStreamID]] = {}
    for lsid, (_, snids) in sorted(ran_on.items()):
        for snid in snids.difference(surveyed, wishes.without):
            missing.setdefault(snid, []).append(lsid)
    if missing:
        told = "; ".join(
            f"storage node {snid}, log streams {_listed(lsids)}" for snid, lsids in sorted(missing.items())
        )
        raise errors.SurveysIncomplete(
            f"not surveyed, though log streams ran there: {told}; survey these nodes too, or say with --without "
            "that one is gone for good: what only it holds is lost then"
        )
    nobodys = [stream.lsid for stream in streams if not ran_on[stream.lsid][1]]
    if nobodys and not wishes.without:
        raise errors.SurveysIncomplete(
            f"no node that was surveyed ever ran log streams {_listed(nobodys)}, and others may have: survey those, "
            "or say with --without which node is not there any more: what only it holds is lost then"
        )


# Log streams


class _Stream:
    """What all replicas of a log stream say together."""

    def __init__(self, lsid: LogStreamID, replicas: dict[StorageNodeID, ReplicaSurvey]) -> None:
        self.lsid = lsid
        self.replicas = replicas
        tpids = {replica.tpid for replica in replicas.values()}
        if len(tpids) > 1:
            raise errors.SurveysDisagree(f"log stream {lsid} is of topics {_listed(sorted(tpids))} on different nodes")
        self.tpid = tpids.pop()
        self.epoch = max(replica.epoch for replica in replicas.values())
        self.ran_on = frozenset(snid for replica in replicas.values() for snid in replica.replicas)
        """Who ran it, as far as anybody here knows. A replica that only copies promises later epochs than it ever ran
        in, so an epoch does not tell whose set was the last."""
        ran = [replica for replica in replicas.values() if replica.replicas] or [*replicas.values()]
        self.latest = max(ran, key=lambda replica: (replica.epoch, replica.version, replica.committed_end))
        self.longest = max(replicas.values(), key=lambda replica: (replica.committed_end, replica.damage == ""))
        self.chain = self._chain()
        self.last = self.chain[-1] if self.chain else None
        self.trim = max(replica.trim_glsn for replica in replicas.values())

    def _chain(self) -> list[CommitContext]:
        """The commit contexts that are known, up to the end; those only from which on one follows the other."""
        found: dict[LLSN, tuple[CommitContext, StorageNodeID]] = {}
        for snid, replica in sorted(self.replicas.items()):
            for cc in replica.commits:
                known, other = found.setdefault(cc.llsn_begin, (cc, snid))
                if known != cc:
                    self._disagree(other, snid, cc.llsn_begin)
        chain: list[CommitContext] = []
        for begin in sorted(found, reverse=True):
            cc, snid = found[begin]
            if chain and cc.llsn_end > chain[-1].llsn_begin:
                self._disagree(snid, found[chain[-1].llsn_begin][1], chain[-1].llsn_begin)
            if chain and cc.llsn_end < chain[-1].llsn_begin:
                break
            chain.append(cc)
        chain.reverse()
        longest = self.longest
        if chain and (chain[-1].llsn_end, chain[-1].version) != (longest.committed_end, longest.version):
            raise errors.SurveysDisagree(f"log stream {self.lsid} ends at {longest.committed_end}, and at {chain[-1]}")
        return chain

    def _disagree(self, one: StorageNodeID, other: StorageNodeID, llsn: LLSN) -> None:
        raise errors.SurveysDisagree(
            f"log stream {self.lsid}: storage nodes {one} and {other} have different commit contexts from LLSN {llsn} "
            "on; they are not replicas of one log"
        )

    @property
    def end(self) -> LLSN:
        return self.longest.committed_end

    @property
    def is_whole(self) -> bool:
        """Whether every commit context is known of what is not trimmed."""
        begin = self.chain[0].llsn_begin if self.chain else self.end
        return any(begin <= replica.trim_llsn for replica in self.replicas.values())

    @property
    def members(self) -> tuple[StorageNodeID, ...]:
        """Who of those it ran with has a replica; everybody who has one, if none of them does."""
        return tuple(snid for snid in self.latest.replicas if snid in self.replicas) or tuple(sorted(self.replicas))

    def sealed(self, version: Version, before: Stream | None) -> Stream:
        """Its metadata: sealed where its last commit context ends, above the epoch that it was known to be in."""
        members = self.members
        primary = self.latest.primary if self.latest.primary in members else members[0]
        latest = self.epoch if before is None else max(self.epoch, before.epoch)
        epoch = Epoch(latest + (1 if latest % 2 == 0 else 2))
        volumes = {snid: self.replicas[snid].volume for snid in members}
        return Stream(
            self.lsid, self.tpid, StreamStatus.SEALED, epoch, members, primary, self.end, self.longest.last_glsn,
            version, volumes,
        )  # fmt: skip

    def held(self) -> list[CommitContext]:
        """What replicas that are behind need in order to commit what they have stored (rule 8)."""
        least = min(replica.committed_end for replica in self.replicas.values())
        lacking = [cc for cc in self.chain if cc.llsn_begin >= least]
        return lacking[-(limits.MAX_CUTS_HELD // 2) :]

    def loose(self) -> list[Loose]:
        """What lies beyond the end."""
        return [one for snid, replica in sorted(self.replicas.items()) for one in _loose(snid, replica, self.end)]

    @property
    def uncertain(self) -> int:
        """How many entries beyond the end can have been committed at most: a cut takes what all of a set have."""
        sound = [replica for snid in self.members if not (replica := self.replicas[snid]).damage]
        ends = [max([0, *(batch.end - self.end for batch in replica.uncommitted)]) for replica in sound]
        return min(ends, default=0)

    def remarks(self, surveyed: Collection[StorageNodeID]) -> list[str]:
        told = [
            f"log stream {self.lsid}: the replica on storage node {snid} is damaged ({replica.damage})"
            for snid, replica in sorted(self.replicas.items())
            if replica.damage
        ]
        gone = sorted(snid for snid in self.ran_on if snid in surveyed and snid not in self.replicas)
        if gone:
            told.append(
                f"log stream {self.lsid} ran on storage nodes {_listed(gone)} too, which have no replica of it: a disk "
                "was lost or left out of the survey, or the log stream was removed"
            )
        if self.longest.damage:
            told.append(f"log stream {self.lsid}: only a damaged replica has it up to LLSN {self.end}")
        return told


def _loose(snid: StorageNodeID, replica: ReplicaSurvey, end: LLSN) -> Iterator[Loose]:
    for run in _runs(batch for batch in replica.uncommitted if batch.end > end):
        size = sum(batch.bytes for batch in run)
        yield Loose(snid, replica.lsid, run[0].llsn, run[-1].end, run[0].epoch, len(run), size)


def _runs(batches: Iterable[Stored]) -> list[list[Stored]]:
    """Batches that follow one another in one epoch."""
    runs: list[list[Stored]] = []
    for batch in batches:
        if runs and (runs[-1][-1].end, runs[-1][-1].epoch) == (batch.llsn, batch.epoch):
            runs[-1].append(batch)
        else:
            runs.append([batch])
    return runs


# Topics


def _topics(
    streams: Sequence[_Stream], returned: Sequence[Returned], wishes: Wishes, state: MetadataState
) -> list[RebuiltTopic]:
    of_topic: dict[TopicID, list[_Stream]] = {}
    for stream in streams:
        of_topic.setdefault(stream.tpid, []).append(stream)
        before = wishes.known.streams.get(stream.lsid) if wishes.known is not None else None
        state.streams[stream.lsid] = stream.sealed(state.version, before)
    sequenced = {one.tpid for one in returned}
    if both := sorted(sequenced.intersection(of_topic)):
        raise errors.SurveysDisagree(f"topics {_listed(both)} are ordered by commits and by a sequencer")
    if unknown := wishes.names.keys() - of_topic.keys() - sequenced:
        raise errors.InvalidArgument(f"no storage node holds anything of topic {_listed(sorted(unknown))}")
    told = [_topic(tpid, ours, wishes, state) for tpid, ours in sorted(of_topic.items())]
    told += [_sequenced(one, one.topic, wishes, state) for one in returned if one.topic is not None]
    if (lost := [one.remark for one in returned if one.is_lost]) and not wishes.declare_lost:
        raise errors.SurveysIncomplete(
            f"{'; '.join(lost)}; with --declare-lost the rest is brought back, and what the nodes have of this stays "
            "on their disks"
        )
    names = [topic.name for topic in told]
    if len(set(names)) < len(names):
        raise errors.InvalidArgument(f"two topics would have one name: {', '.join(names)}")
    return told


def _topic(tpid: TopicID, streams: list[_Stream], wishes: Wishes, state: MetadataState) -> RebuiltTopic:
    trim = max(stream.trim for stream in streams)
    hwm = max(trim, *(GLSN(max(s.longest.hwm, s.longest.last_glsn)) for s in streams))
    hwm = max([hwm, *(replica.hwm for stream in streams for replica in stream.replicas.values())])
    before = wishes.known.topics.get(tpid) if wishes.known is not None else None
    hwm = max(hwm, before.hwm if before is not None else GLSN(0))
    lost, missing = _missing(tpid, streams, trim, hwm)
    uncertain = sum(stream.uncertain for stream in streams)
    if not wishes.without:  # else the missing ones may be of a log stream that nobody here knows of
        uncertain = max(0, uncertain - missing)
    topic = state.topics[tpid] = _named(tpid, streams, wishes)
    if lost and not wishes.declare_lost:
        raise errors.SurveysIncomplete(
            f"topic {topic.name!r}: positions {_spans(lost)} were given, and no disk has all commit contexts that say "
            "to what; with --declare-lost readers get an error where one is missing"
        )
    if uncertain and wishes.declare_lost:
        lost.append((GLSN(hwm + 1), GLSN(hwm + uncertain + 1)))
        hwm, uncertain = GLSN(hwm + uncertain), 0
    topic.hwm, topic.trim = hwm, trim
    if lost:
        _add_lost(tpid, lost, state)
    return RebuiltTopic(tpid, topic.name, len(streams), GLSN(trim + 1), hwm, tuple(_joined(lost)), uncertain)


def _sequenced(one: Returned, topic: Topic, wishes: Wishes, state: MetadataState) -> RebuiltTopic:
    topic.name = wishes.names.get(one.tpid, topic.name)
    state.topics[topic.tpid] = topic
    for stream in one.streams:
        stream.touched = state.version
        state.streams[stream.lsid] = stream
    return RebuiltTopic(topic.tpid, topic.name, len(one.streams), GLSN(topic.trim + 1), topic.hwm, (), 0)


def _named(tpid: TopicID, streams: Iterable[_Stream], wishes: Wishes) -> Topic:
    """What storage nodes do not know of it, as far as somebody else does."""
    known = wishes.known.topics.get(tpid) if wishes.known is not None else None
    factor = max(len(stream.latest.replicas) for stream in streams) or 1
    name = wishes.names.get(tpid) or (known.name if known is not None else f"topic-{tpid}")
    if len(name) > limits.MAX_TOPIC_NAME:
        raise errors.InvalidArgument(f"a topic's name has at most {limits.MAX_TOPIC_NAME} characters")
    if known is None:
        return Topic(tpid, name, factor, min(2, factor))
    return Topic(tpid, name, known.replication_factor, known.min_replicas, archive=known.archive)


def _missing(tpid: TopicID, streams: Sequence[_Stream], trim: GLSN, hwm: GLSN) -> tuple[list[tuple[GLSN, GLSN]], int]:
    """The positions in (trim, hwm] that no commit context names, as spans, and how many they are at least. Where not
    every commit context is known, the entries are counted instead, and the spans are wider."""
    _check_cuts(tpid, streams)
    window = trim
    for stream in streams:
        if not stream.is_whole:
            if not stream.chain:
                raise errors.SurveysIncomplete(f"log stream {stream.lsid}: no commit context of it can be read")
            window = max(window, GLSN(stream.chain[0].glsn_begin - 1))
    named = sorted((cc.glsn_begin, cc.glsn_end, stream.lsid) for stream in streams for cc in stream.chain)
    missing: list[tuple[GLSN, GLSN]] = []
    at, before = window, LogStreamID(0)
    for begin, end, lsid in named:
        if end - 1 <= window:
            continue
        if begin <= at and begin > window:
            raise errors.SurveysDisagree(f"topic {tpid}: log streams {before} and {lsid} both have position {begin}")
        if begin > at + 1:
            missing.append((GLSN(at + 1), begin))
        at, before = GLSN(end - 1), lsid
    if at < hwm:
        missing.append((GLSN(at + 1), GLSN(hwm + 1)))
    count = sum(end - begin for begin, end in missing)
    if window > trim and (below := _missing_below(tpid, streams, trim, window)) is not None:
        missing.append((GLSN(trim + 1), GLSN(window + 1)))
        count += below
    return sorted(missing), count


def _check_cuts(tpid: TopicID, streams: Iterable[_Stream]) -> None:
    """One version of a topic is one cut, whoever tells of it."""
    cuts: dict[Version, tuple[tuple[int, ...], LogStreamID]] = {}
    for stream in streams:
        for cc in stream.chain:
            cut, other = cuts.setdefault(cc.version, ((cc.prev_hwm, cc.hwm, cc.time), stream.lsid))
            if cut != (cc.prev_hwm, cc.hwm, cc.time):
                raise errors.SurveysDisagree(
                    f"topic {tpid}: log streams {other} and {stream.lsid} tell different things of version {cc.version}"
                )


def _missing_below(tpid: TopicID, streams: Iterable[_Stream], trim: GLSN, window: GLSN) -> int | None:
    """How many positions in (trim, window] have no entry, though it is not known which; 0 if that cannot be counted,
    None if all have one."""
    entries = 0
    for stream in streams:
        begins = [replica.trim_llsn for replica in stream.replicas.values() if replica.trim_glsn == trim]
        if not begins:  # the trim has not reached it
            return 0
        later = next((cc for cc in stream.chain if cc.glsn_end > window + 1), None)
        end = stream.end if later is None else later.llsn_begin + max(0, window + 1 - later.glsn_begin)
        entries += max(0, end - min(begins))
    if entries > window - trim:
        raise errors.SurveysDisagree(f"topic {tpid} has {entries} entries for {window - trim} positions up to {window}")
    return window - trim - entries or None


def _add_lost(tpid: TopicID, lost: Sequence[tuple[GLSN, GLSN]], state: MetadataState) -> None:
    """A log stream of its own stands for what nobody has: whose it was is not known. It is never to run."""
    lsid = state.next_lsid
    state.next_lsid = LogStreamID(lsid + 1)
    count = sum(end - begin for begin, end in lost)
    stream = Stream(lsid, tpid, StreamStatus.SEALED, FIRST_EPOCH, touched=state.version, is_held=True)
    stream.llsn_end, stream.last_glsn = LLSN(count + 1), GLSN(lost[-1][1] - 1)
    stream.lost_begin = lost[0][0]
    state.streams[lsid] = stream


# What is not of one topic


def _version(streams: Iterable[_Stream], known: MetadataState | None) -> Version:
    seen = [replica.version for stream in streams for replica in stream.replicas.values()]
    return Version(max([0, *seen, known.version if known is not None else 0]) + VERSIONS_SKIPPED)


def _add_counters(state: MetadataState, found: Found, known: MetadataState | None) -> None:
    next_tpid, next_lsid = (known.next_tpid, known.next_lsid) if known is not None else (1, 1)
    tpids = [replica.tpid for replicas in found.values() for replica in replicas.values()]
    state.next_tpid = TopicID(max([*tpids, next_tpid]) + IDS_SKIPPED)
    state.next_lsid = LogStreamID(max([*found, next_lsid]) + IDS_SKIPPED)


def _forgotten(state: MetadataState, known: MetadataState | None, returned: Iterable[Returned]) -> list[str]:
    if known is None:
        return []
    there = {*state.topics, *(one.tpid for one in returned)}
    topics = [topic.name for tpid, topic in sorted(known.topics.items()) if tpid not in there]
    streams = [
        lsid
        for lsid, stream in sorted(known.streams.items())
        if lsid not in state.streams and stream.replicas and stream.tpid in state.topics
    ]
    return [
        *(f"topic {name!r} is in the backup, and no storage node holds anything of it: left out" for name in topics),
        *(f"log stream {lsid} is in the backup, and no storage node has a replica of it: left out" for lsid in streams),
    ]


def _add_registers(state: MetadataState, known: MetadataState | None) -> list[str]:
    """What became of a transaction is in the log, but under which name and number it was is not. One that begins before
    the trim point has ended since the backup: nothing is trimmed of one that is open."""
    if known is None:
        return []
    state.registers = {tpid: deepcopy(register) for tpid, register in known.registers.items() if tpid in state.topics}
    for tpid, register in state.registers.items():
        for attempt in [one for one in register.open.values() if one.after < state.topics[tpid].trim]:
            register.end(attempt.txid, False, attempt.after)
    return [
        f"topic {state.topics[tpid].name!r}: what was committed under the names of transactions is known up to the "
        "backup; what was since is written again if it is replayed"
        for tpid, register in sorted(state.registers.items())
        if register.names or register.open
    ]


def _spans(spans: Sequence[tuple[GLSN, GLSN]]) -> str:
    told = [f"{begin} to {end - 1}" if end - begin > 1 else f"{begin}" for begin, end in spans[:MOST_TOLD]]
    more = len(spans) - MOST_TOLD
    return ", ".join(told) + (f" and {more} more places" if more > 0 else "")


def _joined(spans: Iterable[tuple[GLSN, GLSN]]) -> list[tuple[GLSN, GLSN]]:
    joined: list[tuple[GLSN, GLSN]] = []
    for begin, end in spans:
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))
