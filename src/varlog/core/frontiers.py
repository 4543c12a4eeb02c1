"""Frontiers: how far the chains of a topic that a sequencer orders are written, and what is missing there.

A position is written when its chain's tail has it (S4). Of each log stream the *frontier* is the first of its positions
that was not seen written. What is seen unwritten while something above it is written, in whichever log stream, or is
known to have been given out, is a *gap*: somebody is about to write it, or has died before (S9). A gap is waited for as
long as the application says, and then handed to `mend`, which repairs or fills it (S5, `mending`). That the frontier is
still missing then is known, because a read waits there. Of what lies beyond, the tail is asked first. So many gaps are
mended after one interval, not after one each.

What is asked of a tail carries the projection's epoch. A tail of another epoch, or one that does not answer, is
complained of (`trouble`) and asked again when there is another projection, or when it is back. One that has nothing to
tell for long may be none any more, and not know it: then the metadata is read anew.

What must always hold: positions are dealt with in the projection's terms (S2), so when its stripes change all of them
are looked at anew, from the first one on that is not dealt with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from varlog import errors
from varlog.core.address import Send, node_address
from varlog.core.messages import ChainPart, ChainRead, Digest, GetDigest, Message
from varlog.core.projection import NEVER, Projection
from varlog.core.routing import Routing
from varlog.core.trouble import SILENT_SECONDS, Complain, Complaints
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID, TopicID

READ_TIMEOUT: Final = 6.0
"""Longer than a replica waits for something to tell."""
LOOK_EVERY: Final = 2.0
"""A tail that has not answered for so long is looked at: does it hang, or has it nothing to tell?"""
LOOK_SHARE: Final = 0.25
"""And one that has a gap, after this part of the time for which gaps are waited for."""
ASK_AGAIN: Final = 0.05
MEND_AGAIN: Final = 0.5
REFRESH_EVERY: Final = 0.25
MOST_GAPS: Final = 256
"""Of one log stream; what lies beyond is seen when these are gone."""

Mend = Callable[[GLSN, int, float], None]
"""(position, count, now): see that these positions, of one block, get written; called again while they are not."""


class Gap(NamedTuple):
    """Positions of one block that are missing, since when that is known, and when `mend` was last called for them."""

    begin: GLSN
    end: GLSN
    since: float
    mended: float = float("-inf")


class Question(NamedTuple):
    """To a tail."""

    request: int
    node: StorageNodeID
    since: float
    limit: float
    """So much later the node has failed if there is no answer."""


class Frontier:
    """Of one log stream."""

    __slots__ = (
        "gaps",
        "is_unwritten",
        "look",
        "looked",
        "lsid",
        "not_before",
        "position",
        "question",
        "seen",
    )

    def __init__(self, lsid: LogStreamID, position: GLSN, gaps: Iterable[Gap] = ()) -> None:
        self.lsid = lsid
        self.position = position
        self.gaps = list(gaps)
        self.is_unwritten = False
        """The tail said that nothing is written at the position."""
        self.question: Question | None = None
        self.look: Question | None = None
        """A second question, which is answered at once."""
        self.looked = self.not_before = float("-inf")
        self.seen = 0
        """How many writes the tail had taken when it answered last."""

    def forget(self) -> None:
        """What was asked will not be answered, or not by the same."""
        self.question = self.look = None
        self.seen = 0
        self.not_before = float("-inf")

    def answered(self, request: int) -> Question | None:
        """The question with that number, if it is under way; it no longer is."""
        for question in (self.question, self.look):
            if question is not None and question.request == request:
                if question is self.question:
                    self.question = None
                else:
                    self.look = None
                return question
        return None

    def note(self, missing: Iterable[tuple[GLSN, GLSN]], upto: GLSN, now: float) -> None:
        """Up to a position, this and nothing else is missing; of what was known before, it is known since then."""
        before = [gap for gap in self.gaps if gap.begin < upto]
        gaps: list[Gap] = []
        for begin, end in missing:
            at = begin
            for gap in before:
                if gap.begin < end and at < gap.end:
                    if at < gap.begin:
                        gaps.append(Gap(at, gap.begin, now))
                    gaps.append(Gap(max(at, gap.begin), min(end, gap.end), gap.since, gap.mended))
                    at = gaps[-1].end
            if at < end:
                gaps.append(Gap(at, end, now))
        self.gaps = gaps + [gap for gap in self.gaps if gap.begin >= upto]


def missing(
    projection: Projection, lsid: LogStreamID, begin: GLSN, end: GLSN, written: Iterable[tuple[int, int]]
) -> list[tuple[GLSN, GLSN]]:
    """What of a log stream's positions in [begin, end) is not in `written`, which is in order; each piece lies in one
    block."""
    found: list[tuple[GLSN, GLSN]] = []
    at = projection.own_from(lsid, begin)
    for from_, to in (*written, (end, end)):
        while at < min(from_, end):
            if len(found) == MOST_GAPS:
                return found
            piece = GLSN(min(from_, end, projection.block_end(at)))
            found.append((at, piece))
            at = projection.own_from(lsid, piece)
        if at < to:
            at = projection.own_from(lsid, GLSN(to))
    return found


class Frontiers(ABC):
    """See the module's text; what is done with what is found, is said by the classes made of it."""

    ended = False
    _verdicts = False
    """Nothing else is to be read; of everything else the tails tell only the positions."""

    def __init__(
        self,
        tpid: TopicID,
        routing: Routing,
        new_request: Callable[[], int],
        send: Send,
        mend: Mend,
        complain: Complain,
        fill_after: float,
        wake_at: Callable[[float], None] | None,
    ) -> None:
        self._tpid = tpid
        self._routing = routing
        self._new_request = new_request
        self._send = send
        self._mend = mend
        self._complaints = Complaints(complain)
        self._fill_after = fill_after
        self._wake_at = wake_at
        """Lets `tick` be called at a time."""
        self._waking: float | None = None
        self._projection: Projection | None = None
        self._tails: dict[LogStreamID, StorageNodeID] = {}
        self._frontiers: dict[LogStreamID, Frontier] = {}
        self._highest = GLSN(0)
        """What lies below was given out: something at or above it was."""
        self._refreshed = 0.0
        self.wants_metadata = True

    # What the classes made of it say

    @abstractmethod
    def _begin(self) -> GLSN:
        """What lies below is dealt with."""

    @abstractmethod
    def _until(self) -> GLSN:
        """What lies at or beyond is of no interest."""

    @abstractmethod
    def _on_part(self, frontier: Frontier, part: ChainPart, now: float) -> None: ...

    @abstractmethod
    def _on_looked(self, frontier: Frontier, upto: GLSN) -> None:
        """All that is missing below a position is among the gaps."""

    @abstractmethod
    def _on_trimmed(self, first: GLSN, now: float) -> None:
        """The log begins there."""

    @abstractmethod
    def _advance(self, now: float) -> None:
        """Go on with what is known, and ask for more."""

    # What is known of the cluster

    def on_metadata(self, now: float) -> None:
        """The routing has been renewed."""
        self.wants_metadata = False
        self._refreshed = now
        projection, known = self._routing.projection(self._tpid), self._projection
        if projection is None or self.ended:
            return
        if known is None or projection.epoch != known.epoch:
            self._projection = projection
            self._tails = {chain.lsid: chain.tail for chain in projection.chains}
            if known is None or projection.stripes != known.stripes:
                self._restripe(projection)
            for frontier in self._frontiers.values():
                frontier.forget()
            self._complaints.clear()
        self._advance(now)

    def _restripe(self, projection: Projection) -> None:
        begin, known = self._begin(), self._frontiers
        self._frontiers = {
            chain.lsid: Frontier(
                chain.lsid,
                projection.own_from(chain.lsid, begin),
                [g for g in known[chain.lsid].gaps if g.end <= projection.start] if chain.lsid in known else (),
            )
            for chain in projection.chains
        }

    def on_connected(self, snid: StorageNodeID, now: float) -> None:
        """There is a new connection to a node: what it was asked before may be lost."""
        frontiers = [frontier for lsid, frontier in self._frontiers.items() if self._tails[lsid] == snid]
        for frontier in frontiers:
            frontier.forget()
        if frontiers and not self.ended:
            self._advance(now)

    def on_disconnected(self, snid: StorageNodeID, now: float) -> None:
        """A node cannot be reached."""
        for frontier in self._asked(snid):
            self._fail(frontier, snid, errors.Unreachable.code, 0, now)

    def _asked(self, snid: StorageNodeID) -> list[Frontier]:
        return [f for f in self._frontiers.values() if any(q and q.node == snid for q in (f.question, f.look))]

    def _fail(self, frontier: Frontier, snid: StorageNodeID, code: int, seen: int, now: float) -> None:
        """A tail does not answer, or not as it should: look for another projection, and ask again a little later."""
        assert self._projection is not None
        frontier.forget()
        frontier.not_before = now + ASK_AGAIN
        self.wants_metadata = True
        self._complaints.failed(snid, code, self._projection.epoch, Epoch(seen), now)

    def tick(self, now: float) -> None:
        """Called a few times a second."""
        if self.ended:
            return
        for frontier in self._frontiers.values():
            late = next((q for q in (frontier.question, frontier.look) if q and now - q.since > q.limit), None)
            if late is not None:
                self._fail(frontier, late.node, errors.DeadlineExceeded.code, 0, now)
            elif now >= frontier.not_before:
                self._mend_frontier(frontier, now)
                if frontier.look is None and self._is_look_due(frontier, now):
                    self._look(frontier, now)
        self._advance(now)
        if self._projection is None and now - self._refreshed > REFRESH_EVERY:
            self.wants_metadata = True
        if self._waking is not None and now >= self._waking:
            self._waking = None
            self._wake(now)

    def _wake(self, now: float) -> None:
        """Have the next gap mended in time."""
        if self._wake_at is None:
            return
        dues = (gap.since + self._fill_after for frontier in self._frontiers.values() for gap in frontier.gaps)
        due = min((due for due in dues if due > now), default=None)
        if due is not None and (self._waking is None or due < self._waking):
            self._waking = due
            self._wake_at(due)

    def _mend_frontier(self, frontier: Frontier, now: float) -> None:
        first = frontier.gaps[0] if frontier.gaps else None
        if first is not None and frontier.is_unwritten and frontier.question and first.begin == frontier.position:
            self._mend_due(frontier, first.end, now)

    def _is_look_due(self, frontier: Frontier, now: float) -> bool:
        if frontier.question is not None and now - max(frontier.question.since, frontier.looked) >= LOOK_EVERY:
            return True
        if not frontier.gaps:
            return False
        # What goes missing while the first gap is waited for has its own interval, from when it is seen on.
        pause = self._fill_after * LOOK_SHARE
        is_time = now - frontier.gaps[0].since >= pause and now - frontier.looked >= pause
        return is_time or any(self._is_due(gap, now) for gap in frontier.gaps)

    def _is_due(self, gap: Gap, now: float) -> bool:
        has_waited = now - gap.since >= self._fill_after and now - gap.mended >= MEND_AGAIN
        return has_waited and gap.begin < self._until()

    # Questions and answers

    def _ask(self, frontier: Frontier, build: Callable[[int, Epoch], Message], now: float, limit: float) -> Question:
        assert self._projection is not None
        node = self._tails[frontier.lsid]
        question = Question(self._new_request(), node, now, limit)
        self._send(node_address(node), build(question.request, self._projection.epoch))
        return question

    def _read(self, frontier: Frontier, most: int, now: float) -> None:
        """Read at the frontier, as soon as there is anything."""
        lsid, position, seen, verdicts = frontier.lsid, frontier.position, frontier.seen, self._verdicts
        frontier.question = self._ask(
            frontier,
            lambda request, epoch: ChainRead(request, lsid, epoch, position, most, True, seen, verdicts),
            now,
            READ_TIMEOUT,
        )

    def _digest(self, frontier: Frontier, now: float) -> Question:
        """Ask what is written from the frontier on."""
        lsid, position = frontier.lsid, frontier.position
        return self._ask(
            frontier,
            lambda request, epoch: GetDigest(request, lsid, epoch, position, runs=True),
            now,
            SILENT_SECONDS,
        )

    def _look(self, frontier: Frontier, now: float) -> None:
        frontier.looked = now
        frontier.look = self._digest(frontier, now)
        # One that was left out of its chain while it could not be reached has not heard of it, and has nothing to tell.
        self.wants_metadata = True

    def on_reply(self, reply: ChainPart | Digest, now: float) -> None:
        """What a tail says."""
        frontier = self._frontiers.get(reply.lsid)
        question = frontier.answered(reply.request) if frontier is not None else None
        if self.ended or frontier is None or question is None:
            return
        if reply.code == 0:
            self._complaints.worked(question.node)
            if isinstance(reply, Digest):
                self._on_digest(frontier, reply, now)
            else:
                frontier.seen = reply.seen
                self._on_part(frontier, reply, now)
        elif reply.code == errors.Trimmed.code and isinstance(reply, ChainPart):
            self._on_trimmed(reply.first, now)
        else:
            self._fail(frontier, question.node, reply.code, reply.epoch, now)
        if not self.ended:
            self._advance(now)

    def _on_digest(self, frontier: Frontier, digest: Digest, now: float) -> None:
        if digest.trim >= frontier.position:
            self._on_trimmed(GLSN(digest.trim + 1), now)
            return
        self._saw_written(digest.last, now)
        upto = NEVER if digest.end >= digest.last else digest.end
        self._examine(frontier, [(line[0], line[0] + line[1]) for line in digest.lines], upto, now)

    def _saw_written(self, end: GLSN, now: float) -> None:
        """Something is written, or was given out, right below a position: what is missing below it is a gap now."""
        if end <= self._highest or self._projection is None:
            return
        self._highest = end
        end = min(end, self._until())
        for frontier in self._frontiers.values():
            if frontier.is_unwritten and not frontier.gaps and frontier.position < end:
                block_end = self._projection.block_end(frontier.position)
                frontier.gaps.append(Gap(frontier.position, min(end, block_end), now))
                self._wake(now)

    def _examine(self, frontier: Frontier, written: Iterable[tuple[int, int]], upto: GLSN, now: float) -> None:
        """The tail has told all that is written from the frontier up to a position; NEVER: all there is. What has been
        missing for long enough is mended."""
        assert self._projection is not None
        upto = min(upto, self._highest, self._until())
        found = missing(self._projection, frontier.lsid, frontier.position, upto, written)
        if len(found) == MOST_GAPS:
            upto = found[-1][1]
        frontier.note(found, upto, now)
        self._on_looked(frontier, upto)
        self._mend_due(frontier, upto, now)
        if found:
            self._wake(now)

    def _mend_due(self, frontier: Frontier, upto: GLSN, now: float) -> None:
        """Mend what begins below a position and has been missing for long enough."""
        for number, gap in enumerate(frontier.gaps):
            if gap.begin < upto and self._is_due(gap, now):
                frontier.gaps[number] = gap._replace(mended=now)
                self._mend(gap.begin, gap.end - gap.begin, now)
