"""A replica becomes a copy of the tail of a chain, which has what every member has (rule 22).

The replica does the work. It is asked with `ChainCopy`, and asked again: the first time begins a copy, further times
keep it going and are told how far it is. A copy goes through the positions in order, from the trim point on, a page at
a time: it asks the source for a digest of what it has there, holds that against what is here, voids everything from the
first thing on that the source does not have, durably, and then reads what is missing. So every copy begins with a
comparison, whatever was copied before; and what is missing below, because the source was given it late, is found by the
next one. Of a replica that was compared as a whole, and has stayed outside since, all that it has is the chain's: what
a tail has, every later tail has. Then positions are enough to be compared, which takes a fraction of the time.

There are two kinds of copy. One *follows* a source that is being written, in the epoch of its projection, until its lag
is small; what is copied then is not copied while the chain is sealed. Where it has nothing itself any more it just
reads on. The *final* one is of a source that is sealed, by a replica that was sealed in the same epoch as one that
joins. It ends at the source's end, and then the replica is a copy.

A request that comes late must not wipe a member. So a final copy is made once, by a replica that joins, which one that
was restarted does not know of itself any more; and one that follows is made only in an epoch that is not smaller than
the replica's, and that it has taken no write in: a chain has the same members as long as it has the same epoch.

What must always hold: a replica that copies is outside; nothing is stored over what is there; a copy is complete only
when all of it is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from itertools import count
from typing import Final, NamedTuple

from varlog import batch, errors, limits
from varlog.batch import BatchHeader
from varlog.core.address import Address, Send, node_address
from varlog.core.branches import ChainBranch, Observe
from varlog.core.chaincontext import check_of
from varlog.core.chainreplica import ChainReplica
from varlog.core.messages import (
    ChainCopied,
    ChainCopy,
    ChainPart,
    ChainRead,
    Digest,
    DigestLine,
    GetDigest,
    StoredLine,
)
from varlog.core.projection import NEVER
from varlog.types import GLSN, LogStreamID, StorageNodeID

RENEW_WITHIN: Final = 5.0
"""A copy that nobody asks about for so long is given up."""
SOURCE_SILENT: Final = 2.0
"""So is one whose source gives nothing for so long."""
ASK_AGAIN: Final = 0.5
"""A question or its answer may have been lost."""
FOLLOW_AGAIN: Final = 0.02
"""How long a copy waits that has caught up, or was refused, before it asks again."""


Span = tuple[int, int]
"""Positions [begin, end)."""


class _Gap(NamedTuple):
    """Positions [begin, end) that are written at the source and missing here, and of how many batches at least."""

    begin: int
    end: int
    batches: int


class Copy:
    """The copy that one replica makes."""

    def __init__(
        self,
        replica: ChainReplica,
        message: ChainCopy,
        requests: Iterator[int],
        send: Send,
        observe: Observe,
        now: float,
    ) -> None:
        self.replica = replica
        self.source = message.source
        self.epoch = message.epoch
        self.end = message.end
        """Where a final copy ends; 0 of one that follows."""
        self.renewed = now
        self.failure = ""
        """Why it has ended without being complete."""
        self.trouble = ""
        """What the source said last instead of giving something."""
        self.at = GLSN(replica.log.trim + 1)
        """Below this all is compared, and copied or asked for,"""
        self.verified = GLSN(0)
        """and below this nothing was missing; 0 until something was."""
        self._by_runs = bool(message.end) and replica.is_chains
        """Only positions are compared."""
        self._gaps: deque[_Gap] = deque()
        """Of the last page, yet to be read."""
        self._has_all = False
        """The source had nothing more when it last answered, and what is here was compared to its end."""
        self._requests = requests
        self._request = 0
        self._is_asking = False
        self._asked = 0.0
        self._silent_since: float | None = None
        self._not_before = 0.0
        self._send = send
        self._observe = observe

    @property
    def is_complete(self) -> bool:
        """All that the source had when it last answered is here, and durable."""
        log = self.replica.log
        return self._has_all and not self._gaps and not self.failure and log.durable >= log.staged

    @property
    def copied(self) -> GLSN:
        return GLSN(self._gaps[0].begin) if self._gaps else self.at

    @property
    def due(self) -> float | None:
        """When it wants to ask, if nothing happens before."""
        if self._is_asking or self.failure or self.replica.unsynced_bytes >= limits.COPY_AHEAD_BYTES:
            return None
        if self.end and self._has_all and not self._gaps:
            return None  # all of it is here and will be durable soon
        return self._not_before

    def ask_again(self) -> None:
        """What was asked may be lost."""
        self._is_asking = False

    def tick(self, now: float) -> None:
        if now - self.renewed > RENEW_WITHIN:
            self.failure = f"nobody has asked about it for {RENEW_WITHIN:.0f} s"
        elif self._silent_since is not None and now - self._silent_since > SOURCE_SILENT:
            self.failure = self.trouble or f"node {self.source} has not answered for {SOURCE_SILENT:.0f} s"
        elif self._is_asking and now - self._asked > ASK_AGAIN:
            self._is_asking = False

    def advance(self, now: float) -> None:
        """Ask for what comes next, if it is time."""
        if not self.replica.healthy:
            self.failure = "the replica has failed"
        elif self.epoch != self.replica.epoch:
            self.failure = f"the replica is in epoch {self.replica.epoch} now"
        elif (due := self.due) is not None and due <= now:
            self._ask(now)

    def _ask(self, now: float) -> None:
        self._request = next(self._requests)
        self._is_asking, self._asked = True, now
        if self._silent_since is None:
            self._silent_since = now
        lsid = self.replica.lsid
        question: ChainRead | GetDigest
        if self._gaps:
            gap = self._gaps[0]
            size = limits.COPY_PART_BYTES if gap.batches > 1 else 1
            question = ChainRead(self._request, lsid, self.epoch, GLSN(gap.begin), size)
        elif self.end or self.replica.end > self.at:
            question = GetDigest(self._request, lsid, self.epoch, self.at, self._by_runs)
        else:
            self.replica.is_chains = True  # all that is here was compared, and what follows is copied
            question = ChainRead(self._request, lsid, self.epoch, self.at, limits.COPY_PART_BYTES)
        self._send(node_address(self.source), question)

    def _is_answer(self, message: Digest | ChainPart, now: float) -> bool:
        """Whether it is one that can be used."""
        if not self._is_asking or message.request != self._request:
            return False
        self._is_asking = False
        if isinstance(message, ChainPart) and message.code == errors.Trimmed.code and message.first > self.copied:
            self._skip(message.first)
            return False
        if message.code:
            refused = errors.VarlogError.of(message.code, message.detail)
            self._not_before = now + FOLLOW_AGAIN
            self.trouble = f"node {self.source}: {refused}"
            if not refused.retriable:
                self.failure = self.trouble
            return False
        self._silent_since = None
        self.trouble = ""
        return True

    def _skip(self, first: GLSN) -> None:
        """The source's log begins there now."""
        self.replica.trim(GLSN(first - 1))
        self.at = GLSN(max(self.at, first))
        self._close_gaps(first)

    # Comparing

    def on_digest(self, message: Digest, now: float) -> None:
        if not self._is_answer(message, now):
            return
        if message.trim >= self.at:
            self._skip(GLSN(message.trim + 1))
        source_end = NEVER if message.end >= message.last else message.end
        self.replica.source_end = message.last
        page_end = self._compare_runs(message, source_end) if self._by_runs else self._compare(message, source_end)
        self._has_all = page_end == NEVER
        self.at = GLSN(max(self.at, message.end, self.end) if self._has_all else page_end)
        if self._has_all:
            self._not_before = now + FOLLOW_AGAIN if not self._gaps and not self.end else 0.0

    def _compare(self, message: Digest, source_end: int) -> int:
        """Hold what is here against a page of the source; returns how far that goes."""
        own = self.replica.log.digest(self.at, limits.CHAIN_DIGEST_BATCHES)
        own_end = NEVER if len(own) < limits.CHAIN_DIGEST_BATCHES else own[-1].glsn + own[-1].count
        page_end = min(source_end, own_end)
        here = [held for held in own if held[0] < page_end]
        there = [line for line in message.lines if self.at - line[1] < line[0] < page_end]
        if here != there:
            self._reconcile(here, there)
        return page_end

    def _compare_runs(self, message: Digest, source_end: int) -> int:
        """The same of positions. Whoever has something that the source does not have is no copy, whatever it thinks of
        itself, and compares anew."""
        log = self.replica.log
        own, told = log.runs(self.at, limits.CHAIN_DIGEST_LINES)
        page_end = min(source_end, NEVER if told >= log.end else told)
        here = _clipped(own, self.at, page_end)
        there = _clipped([(begin, begin + count) for begin, count, *_ in message.lines], self.at, page_end)
        if _without(here, there):
            self._by_runs = self.replica.is_chains = False
            self.at = GLSN(log.trim + 1)
            return self.at
        missing = _without(there, here)
        if missing:
            self._observe(ChainBranch.RULE22_HOLE_COPIED)
            self.verified = self.verified or GLSN(missing[0][0])
        self._gaps.extend(_Gap(begin, end, end - begin) for begin, end in missing)
        return page_end

    def _reconcile(self, here: Seq[DigestLine], there: Seq[DigestLine]) -> None:
        """Void what the source does not have, and all beyond; note what is missing."""
        theirs = set(there)
        strange = next((line[0] for line in here if line not in theirs), 0)
        if strange:
            self._observe(ChainBranch.RULE22_WIPED)
            self.replica.promise(self.epoch, GLSN(strange))
            here = [line for line in here if line[0] + line[1] <= strange]
        ours = set(here)
        gaps: list[_Gap] = []
        is_open = False
        for line in there:
            if line in ours:
                is_open = False
                continue
            begin, _, batches = gaps.pop() if is_open else (line[0], 0, 0)
            gaps.append(_Gap(begin, line[0] + line[1], batches + 1))
            is_open = True
        if gaps and ours and max(ours)[0] > gaps[0].begin:
            self._observe(ChainBranch.RULE22_HOLE_COPIED)
        self._gaps.extend(gaps)
        if not self.verified:
            self.verified = GLSN(min([gap.begin for gap in gaps[:1]] + [strange] * bool(strange), default=0))

    # Copying

    def on_part(self, message: ChainPart, now: float) -> None:
        if not self._is_answer(message, now):
            return
        lines = message.batches
        if self._gaps:  # what lies beyond the page is yet to be compared
            lines = tuple(line for line in lines if line[0] < self.at)
        try:
            self._take(lines)
        except errors.Corrupt:
            raise
        except errors.VarlogError as error:
            self.failure = f"node {self.source} gave what cannot be taken: {error}"
            return
        self.replica.source_end = message.end
        reached = lines[-1][0] + lines[-1][2] if lines else 0
        if self._gaps:
            begin = self._gaps[0].begin
            if reached <= begin:
                self.failure = f"node {self.source} does not give what its digest has at {begin}"
            self._close_gaps(reached)
            return
        self.verified = self.verified or self.at
        self._has_all = not lines or reached >= message.end
        self.at = GLSN(max(self.at, reached))
        if self._has_all:
            self._not_before = now + FOLLOW_AGAIN

    def _close_gaps(self, reached: int) -> None:
        """Nothing is missing any more below a position."""
        while self._gaps and self._gaps[0].end <= reached:
            self._gaps.popleft()
        if self._gaps and self._gaps[0].begin < reached:
            self._gaps[0] = self._gaps[0]._replace(begin=reached)

    def _take(self, lines: Seq[StoredLine]) -> None:
        """Store what is not here."""
        log = self.replica.log
        new: list[StoredLine] = []
        headers: list[BatchHeader] = []
        reach = 0
        for line in lines:
            glsn, _, entries, epoch, _, time, content = line
            header = batch.verify(content)
            is_batch = header.count == entries and 1 <= glsn <= NEVER - entries and 0 <= time <= NEVER
            if not is_batch or glsn < reach or not 1 <= epoch <= self.epoch:
                raise errors.InvalidArgument(f"{entries} entries at {glsn}, where {reach} was reached, epoch {epoch}")
            reach = glsn + entries
            held = log.held(GLSN(glsn), GLSN(reach)) if glsn < log.end else None
            if held is not None and held != (glsn, entries, time, check_of(content)):
                raise errors.InvalidArgument(f"{entries} entries at {glsn}, but here is {held}")
            if held is None and reach > log.trim + 1:
                new.append(line)
                headers.append(header)
        self.replica.store_copied(new, headers)


class ChainCopying:
    """The copies that the replicas of a node make. See the module's text."""

    def __init__(self, send: Send, observe: Observe) -> None:
        self._send = send
        self._observe = observe
        self._requests = count(1)
        self._copies: dict[LogStreamID, Copy] = {}
        self._failures: dict[LogStreamID, str] = {}
        """Why the last copy ended, of those that ended too early."""

    def __bool__(self) -> bool:
        """Whether there is anything to be done, or to be waited for."""
        return bool(self._copies)

    @property
    def due(self) -> float | None:
        """When `advance` should be called, if nothing else happens before."""
        return min((due for copy in self._copies.values() if (due := copy.due) is not None), default=None)

    def on_copy(self, replica: ChainReplica, address: Address, message: ChainCopy, now: float) -> None:
        """Begin a copy, or go on with it; tell how far it is."""
        try:
            self._check(replica, message)
        except errors.VarlogError as error:
            self._reply(replica, address, message, error)
            return
        copy = self._copies.get(replica.lsid)
        asked = (message.epoch, message.source, message.end)
        if copy is not None and (copy.epoch, copy.source, copy.end) == asked:
            copy.renewed = now
        elif replica.completed != (message.epoch, message.end):
            self._begin(replica, message, now)
        self._reply(replica, address, message, None)

    def _check(self, replica: ChainReplica, message: ChainCopy) -> None:
        """Refuse what it must."""
        where = replica.where
        if message.source == replica.snid or not 1 <= message.epoch <= limits.MAX_EPOCH or message.end < 0:
            raise errors.InvalidArgument(f"{where} cannot be copied from itself, nor in epoch {message.epoch}")
        if not replica.healthy:
            detail = f"{where} has failed; it must be removed and added again"
            raise errors.VarlogError.of(replica.fault, detail)
        if message.end and replica.completed == (message.epoch, message.end) and replica.epoch == message.epoch:
            return
        if message.epoch < replica.epoch:
            self._observe(ChainBranch.RULE22_LATE_COPY_REFUSED)
            raise errors.StaleEpoch(f"{where} is in epoch {replica.epoch}; {message.epoch} has passed")
        if message.end and not (replica.joins and replica.epoch == message.epoch):
            self._observe(ChainBranch.RULE22_LATE_COPY_REFUSED)
            raise errors.Conflict(f"{where} was not sealed as one that joins in epoch {message.epoch}; seal it first")
        if not message.end and replica.written == message.epoch:
            self._observe(ChainBranch.RULE22_LATE_COPY_REFUSED)
            raise errors.Conflict(f"{where} is written in epoch {message.epoch}: it is a member of the chain")

    def _begin(self, replica: ChainReplica, message: ChainCopy, now: float) -> None:
        if not message.end:
            self._observe(ChainBranch.RULE22_FOLLOWING)
        if message.epoch > replica.epoch:
            replica.promise(message.epoch)
        replica.joins, replica.follows = bool(message.end), not message.end
        replica.source, replica.source_end = message.source, GLSN(0)
        copy = Copy(replica, message, self._requests, self._send, self._observe, now)
        if message.end:  # until it is complete, some of this may be its source's alone, and never the chain's
            replica.is_chains = False
        self._copies[replica.lsid] = copy
        copy.advance(now)

    def _reply(
        self, replica: ChainReplica, address: Address, message: ChainCopy, error: errors.VarlogError | None
    ) -> None:
        request, lsid, snid = message.request, replica.lsid, replica.snid
        copy = self._copies.get(lsid)
        if error is not None:
            detail = str(error)[: limits.MAX_DETAIL]
            self._send(address, ChainCopied(request, lsid, error.code, snid, detail=detail))
        elif copy is None:
            is_complete = replica.completed == (message.epoch, message.end)
            end = message.end if is_complete else GLSN(0)
            self._send(address, ChainCopied(request, lsid, 0, snid, is_complete, end, end, end))
        else:
            detail = (copy.trouble or self._failures.get(lsid, ""))[: limits.MAX_DETAIL]
            verified = copy.verified or copy.at
            progress = (copy.is_complete, verified, copy.copied, replica.source_end)
            self._send(address, ChainCopied(request, lsid, 0, snid, *progress, detail))

    def on_digest(self, replica: ChainReplica, message: Digest, now: float) -> None:
        if (copy := self._copies.get(replica.lsid)) is not None:
            try:
                copy.on_digest(message, now)
            except errors.Corrupt:
                replica.on_corrupt()

    def on_part(self, replica: ChainReplica, message: ChainPart, now: float) -> None:
        if (copy := self._copies.get(replica.lsid)) is not None:
            try:
                copy.on_part(message, now)
            except errors.Corrupt:
                replica.on_corrupt()

    def on_peer_connected(self, snid: StorageNodeID) -> None:
        """There is a new way to a source: what was sent the old way may be lost."""
        for copy in self._copies.values():
            if copy.source == snid:
                copy.ask_again()

    def tick(self, now: float) -> None:
        for copy in self._copies.values():
            copy.tick(now)
        self.advance(now)

    def advance(self, now: float) -> None:
        """Let every copy do what it can, and end those that are over."""
        for lsid, copy in list(self._copies.items()):
            replica = copy.replica
            if copy.end and copy.is_complete:
                self._observe(ChainBranch.RULE22_COPIED)
                replica.completed = (copy.epoch, copy.end)
                replica.joins = replica.is_chains = False
                self._failures.pop(lsid, None)
                self._end(lsid, replica)
                continue
            copy.advance(now)
            if copy.failure:
                self._observe(ChainBranch.RULE22_COPY_ABANDONED)
                self._failures[lsid] = copy.failure
                self._end(lsid, replica)

    def _end(self, lsid: LogStreamID, replica: ChainReplica) -> None:
        del self._copies[lsid]
        replica.source, replica.source_end = StorageNodeID(0), GLSN(0)

    def drop(self, lsid: LogStreamID) -> None:
        """The replica is served no more."""
        self._copies.pop(lsid, None)
        self._failures.pop(lsid, None)


def _clipped(spans: Seq[Span], begin: int, end: int) -> list[Span]:
    return [(max(first, begin), min(last, end)) for first, last in spans if last > begin and first < end]


def _without(spans: Seq[Span], others: Seq[Span]) -> list[Span]:
    """What of spans is in none of the others; both are in order."""
    left: list[Span] = []
    rest = deque(others)
    for begin, end in spans:
        at = begin
        while rest and rest[0][1] <= at:
            rest.popleft()
        for other_begin, other_end in rest:
            if other_begin >= end:
                break
            if at < other_begin:
                left.append((at, other_begin))
            at = max(at, other_end)
        if at < end:
            left.append((at, end))
    return left
