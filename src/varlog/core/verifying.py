"""Verification: are the replicas of a topic equal, and is every position there exactly once?

It is a conversation, as those of `registration`: `run` yields questions, all to be asked at once, is sent their answers
in the same order, or an error in place of one that stays out; at the end `copies`, `faults`, `density` and `verdict`
tell what was found. Whoever runs it carries the messages.

Every log stream is walked from the trim point to the end that the metadata repository listed at the beginning, so that
appends may go on meanwhile. All replicas are asked for the fingerprint of the same range; equal ones give equal answers
and stop at the same place (`fingerprints`). Where they differ the range is halved until the first differing position is
found; then those that are outvoted are left behind, and the others go on. Members of the set have the greater say.

A replica outside the set is compared as far as it goes: what it lacks beyond is no fault. A member that lacks something
or cannot be asked makes the verification *incomplete*; a difference, damage, or a position that is missing or there
twice makes the topic *inconsistent*.

A topic that a sequencer orders is walked to its tail, which whoever begins the verification has to know: up to there
every position is written, on every member of its chain. Beyond it a head may have what its tail lacks. What a replica
outside of a chain has says nothing: it serves nobody before it has become a copy.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from collections.abc import Sequence as Seq
from enum import StrEnum
from heapq import heapify, heappop, heapreplace
from typing import Final, NamedTuple

from varlog import errors
from varlog.core.fingerprints import Density
from varlog.core.messages import Fingerprint, Info, Metadata, ReplicaInfo, StreamInfo, TopicInfo
from varlog.types import GLSN, LogStreamID, Ordering, StorageNodeID, StreamStatus

_NOT_THERE: Final = (StreamStatus.CREATING, StreamStatus.ABORTED)
_BROKEN: Final = frozenset({errors.Corrupt.code, errors.ConsistencyViolation.code, errors.Poisoned.code})


class Question(NamedTuple):
    """What [begin, end) of a log stream is on a node."""

    snid: StorageNodeID
    lsid: LogStreamID
    begin: GLSN
    end: GLSN


Answer = Fingerprint | errors.VarlogError
Asking = Generator[Seq[Question], Seq[Answer], None]


class Role(StrEnum):
    PRIMARY = "primary"
    BACKUP = "backup"
    OUTSIDE = "outside"
    """It is not in the set: it was taken out of it, or is on its way in."""
    HEAD = "head"
    MIDDLE = "middle"
    TAIL = "tail"
    """Of a chain."""


class Finding(StrEnum):
    """What was found of one replica."""

    EQUAL = "equal"
    ALONE = "alone"
    """It is whole, and some of it has no other copy to compare with."""
    BEHIND = "behind"
    SILENT = "silent"
    """It could not be asked."""
    MISSING = "missing"
    """Its node has no such replica."""
    DIFFERS = "differs"
    DAMAGED = "damaged"


class Verdict(StrEnum):
    CONSISTENT = "consistent"
    INCOMPLETE = "incomplete"
    """Nothing wrong was found, but not everything could be compared."""
    INCONSISTENT = "inconsistent"


_WRONG: Final = (Finding.DIFFERS, Finding.DAMAGED)
_UNSURE: Final = (Finding.BEHIND, Finding.SILENT, Finding.MISSING)


class Copy:
    """One replica, and what was found of it."""

    def __init__(self, lsid: LogStreamID, snid: StorageNodeID, role: Role) -> None:
        self.lsid = lsid
        self.snid = snid
        self.role = role
        self.end = 0
        """It has every position of its log stream below this."""
        self.entries = 0
        """So many were looked at,"""
        self.confirmed = 0
        """and so many of them are the same on another node."""
        self.finding: Finding | None = None
        """None while it takes part."""
        self.detail = ""

    @property
    def is_member(self) -> bool:
        return self.role is not Role.OUTSIDE

    def leave(self, finding: Finding, detail: str) -> None:
        self.finding, self.detail = finding, detail


class _Walk:
    """One log stream: how far it has been compared, and who takes part."""

    def __init__(self, stream: StreamInfo, begin: int, end: int, copies: list[Copy]) -> None:
        self.stream = stream
        self.lsid = stream.lsid
        self.cursor = begin
        self.end = end
        self.copies = copies
        self.llsn_end = 0
        """Of what has been compared; 0 if nothing."""
        self.version = 0
        """Of its last commit, which may go on,"""
        self.hwm = 0
        """and the high watermark it raised."""

    @property
    def is_done(self) -> bool:
        return self.cursor >= self.end

    def taking_part(self) -> list[Copy]:
        return [copy for copy in self.copies if copy.finding is None and copy.end > self.cursor]


class Verification:
    """See the module's text. `infos` holds the nodes that answered, `silent` why the others did not. `topic.hwm` is the
    tail of a topic that a sequencer orders."""

    def __init__(
        self, metadata: Metadata, topic: TopicInfo, infos: Mapping[int, Info], silent: Mapping[int, str]
    ) -> None:
        self.topic = topic
        streams = [s for s in metadata.streams if s.tpid == topic.tpid and s.status not in _NOT_THERE]
        hosted: dict[LogStreamID, dict[int, ReplicaInfo]] = {}
        for snid, info in infos.items():
            for replica in info.replicas:
                hosted.setdefault(replica.lsid, {})[snid] = replica
        self._walks = []
        for stream in _chained(topic, streams):
            is_chain = stream.status is StreamStatus.CHAINED
            end = topic.hwm + 1 if is_chain else _end(stream)
            copies = _copies(stream, end, hosted.get(stream.lsid, {}), infos, silent)
            if is_chain:
                copies = [copy for copy in copies if copy.is_member]
            self._walks.append(_Walk(stream, topic.trim + 1, end, copies))
        lost = [(s.lost_begin, s.lost_end) for s in streams if s.lost_end > s.lost_begin]
        self.density = Density(GLSN(topic.trim + 1), [walk.lsid for walk in self._walks], lost)
        self.faults: list[str] = []
        """What is wrong with a log stream as a whole."""
        self.unread: dict[LogStreamID, int] = {}
        """Log streams of which nobody could tell what they hold, and from which position on."""

    @property
    def copies(self) -> list[Copy]:
        return [copy for walk in self._walks for copy in walk.copies]

    @property
    def total(self) -> int:
        """Positions to walk over,"""
        return sum(max(0, walk.end - self.topic.trim - 1) for walk in self._walks)

    @property
    def done(self) -> int:
        """and walked over so far."""
        return sum(max(0, min(walk.cursor, walk.end) - self.topic.trim - 1) for walk in self._walks)

    @property
    def verdict(self) -> Verdict:
        copies, density = self.copies, self.density
        if self.faults or density.missing or density.twice or any(copy.finding in _WRONG for copy in copies):
            return Verdict.INCONSISTENT
        unsure = any(copy.finding in _UNSURE and copy.is_member for copy in copies)
        return Verdict.INCOMPLETE if unsure or self.unread else Verdict.CONSISTENT

    def run(self) -> Asking:
        """The conversation. The log stream that is furthest behind goes next, so that little has to be remembered."""
        waiting = [(walk.cursor, walk.lsid, walk) for walk in self._walks]
        heapify(waiting)
        while waiting:
            walk = waiting[0][2]
            if walk.is_done or not walk.taking_part():
                heappop(waiting)
                self._finish(walk)
            else:
                yield from self._step(walk)
                heapreplace(waiting, (walk.cursor, walk.lsid, walk))
        self.density.end(self.topic.hwm + 1)

    def _step(self, walk: _Walk) -> Asking:
        """The next range, on all replicas that reach into it and end alike."""
        copies = walk.taking_part()
        begin, end = walk.cursor, min(copy.end for copy in copies)
        answers = yield from self._ask(copies, begin, end)
        if not answers or self._trimmed(walk, answers):
            return
        if len(_parties(answers)) > 1:
            yield from self._narrow(walk, answers, end)
        else:
            self._accept(walk, answers, end)

    def _ask(
        self, copies: Seq[Copy], begin: int, end: int
    ) -> Generator[Seq[Question], Seq[Answer], dict[Copy, Fingerprint]]:
        """Who has no answer takes no part any more."""
        questions = [Question(copy.snid, copy.lsid, GLSN(begin), GLSN(end)) for copy in copies]
        answers: dict[Copy, Fingerprint] = {}
        for copy, answer in zip(copies, (yield questions), strict=True):
            if isinstance(answer, Fingerprint):
                answers[copy] = answer
            elif answer.code in _BROKEN:
                copy.leave(Finding.DAMAGED, str(answer))
            elif answer.code == errors.UnknownLogStream.code:
                copy.leave(Finding.MISSING, "it was taken off its node meanwhile")
            else:
                copy.leave(Finding.SILENT, str(answer))
        return answers

    def _trimmed(self, walk: _Walk, answers: Mapping[Copy, Fingerprint]) -> bool:
        """Whether the log now begins beyond where it was asked for; then it is walked from there."""
        begin = max(answer.trim for answer in answers.values()) + 1
        if begin <= walk.cursor:
            return False
        walk.cursor, walk.llsn_end = begin, 0
        self.density.trim(begin)
        return True

    def _accept(self, walk: _Walk, answers: Mapping[Copy, Fingerprint], end: int) -> None:
        """All say the same; it must also go on where the range before ended."""
        found = next(iter(answers.values()))
        if found.llsn_begin:
            if walk.llsn_end and found.llsn_begin != walk.llsn_end:
                self.faults.append(f"log stream {walk.lsid}: LLSN {found.llsn_begin} follows on {walk.llsn_end - 1}")
            if found.first_version != walk.version and found.prev_hwm < walk.hwm:
                self.faults.append(f"log stream {walk.lsid}: its commits go back at GLSN {walk.cursor}")
            walk.llsn_end, walk.version, walk.hwm = found.llsn_end, found.last_version, found.hwm
        entries = sum(end - begin for begin, end in found.spans)
        for copy in answers:
            copy.entries += entries
            if len(answers) > 1:
                copy.confirmed += entries
        walk.cursor = found.next_glsn or end
        self.density.add(walk.lsid, found.spans, walk.cursor)

    def _narrow(self, walk: _Walk, answers: dict[Copy, Fingerprint], end: int) -> Asking:
        """Find the first position at which they differ, and go on with those that have the greater say."""
        low, high = walk.cursor, min(answer.next_glsn or end for answer in answers.values())
        while high - low > 1:
            middle = (low + high) // 2
            answers = yield from self._ask(list(answers), low, middle)
            if len(answers) < 2 or any(answer.trim >= low for answer in answers.values()):
                return  # who is left begins again
            if len(_parties(answers)) > 1:
                high = middle
            else:
                low = middle
        answers = yield from self._ask(list(answers), low, high)
        parties = _parties(answers)
        if len(parties) < 2:
            return
        winners, *others = sorted(parties, key=_weight, reverse=True)
        undecided = _weight(winners)[:2] == _weight(others[0])[:2]
        names = ", ".join(str(copy.snid) for copy in winners)
        for copy in (copy for party in others for copy in party):
            has = "" if answers[copy].batches else ", it has nothing there"
            which = "; which of them is right cannot be told from these" if undecided else ""
            copy.leave(Finding.DIFFERS, f"from GLSN {low} on it differs from node {names}{has}{which}")

    def _finish(self, walk: _Walk) -> None:
        lsid, stream = walk.lsid, walk.stream
        if walk.is_done:
            self.density.add(lsid, (), max(self.topic.hwm + 1, walk.cursor))
            is_lost = stream.lost_end > stream.lost_begin
            if walk.llsn_end and walk.llsn_end != stream.llsn_end and not is_lost:
                end = f"ends at LLSN {walk.llsn_end - 1}, the metadata repository says {stream.llsn_end - 1}"
                self.faults.append(f"log stream {lsid} {end}")
        else:
            self.unread[lsid] = walk.cursor
        for copy in walk.copies:
            if copy.finding is not None:
                continue
            lacking = walk.end - copy.end
            if copy.is_member and lacking > 0:
                copy.leave(Finding.BEHIND, f"it has nothing of its log stream from GLSN {copy.end} on yet")
            elif copy.confirmed < copy.entries:
                copy.leave(Finding.ALONE, f"{copy.entries - copy.confirmed} entries have no other copy to compare with")
            else:
                copy.leave(Finding.EQUAL, f"as far as it goes, to GLSN {copy.end - 1}" if lacking > 0 else "")


def _parties(answers: Mapping[Copy, Fingerprint]) -> list[list[Copy]]:
    """Those that say the same."""
    parties: dict[tuple[object, ...], list[Copy]] = {}
    for copy, a in answers.items():
        held = (a.next_glsn, a.llsn_begin, a.llsn_end, a.batches, a.commits, a.content, a.chain, a.spans)
        parties.setdefault(held, []).append(copy)
    return list(parties.values())


def _weight(party: Seq[Copy]) -> tuple[int, int, bool]:
    """Members of the set count most; of two equal parties the one with the primary, or the head, goes on."""
    members = sum(copy.is_member for copy in party)
    return members, len(party), any(copy.role in (Role.PRIMARY, Role.HEAD) for copy in party)


def _chained(topic: TopicInfo, streams: Seq[StreamInfo]) -> Seq[StreamInfo]:
    """Of a topic that a sequencer orders, the log streams that positions lie in."""
    if topic.ordering is not Ordering.SEQUENCER:
        return streams
    known = {chain.lsid for chain in topic.projection.chains} if topic.projection is not None else set()
    return [stream for stream in streams if stream.lsid in known]


def _role(stream: StreamInfo, snid: StorageNodeID) -> Role:
    if snid not in stream.replicas:
        return Role.OUTSIDE
    if stream.status is not StreamStatus.CHAINED:
        return Role.PRIMARY if snid == stream.primary else Role.BACKUP
    if snid == stream.replicas[0]:
        return Role.HEAD
    return Role.TAIL if snid == stream.replicas[-1] else Role.MIDDLE


def _copies(
    stream: StreamInfo,
    end: int,
    hosted: Mapping[int, ReplicaInfo],
    infos: Mapping[int, Info],
    silent: Mapping[int, str],
) -> list[Copy]:
    """Every replica of a log stream that is in its set, or that a node tells of."""
    copies = []
    outside = sorted(snid for snid in hosted if snid not in stream.replicas)
    for snid in (*stream.replicas, *map(StorageNodeID, outside)):
        copy = Copy(stream.lsid, snid, _role(stream, snid))
        copies.append(copy)
        replica = hosted.get(snid)
        if replica is None and snid in infos:
            copy.leave(Finding.MISSING, "its node has no such replica")
        elif replica is None:
            copy.leave(Finding.SILENT, silent.get(snid, "its node is not known"))
        elif not replica.healthy and replica.fault == errors.Corrupt.code:
            copy.leave(Finding.DAMAGED, "damage was found before, and it was not repaired yet")
        else:
            copy.end = end if stream.status is StreamStatus.CHAINED else min(replica.local_hwm + 1, end)
    return copies


def _end(stream: StreamInfo) -> int:
    """Where what a log stream should have ends."""
    return stream.lost_begin if stream.lost_end > stream.lost_begin else stream.last_glsn + 1
