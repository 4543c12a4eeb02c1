"""ChainSubscription: the client's half of reading a topic that a sequencer orders, without I/O.

Each log stream is read at its chain's tail (S4), one read under way on every one that the merge could be waiting for.
Which positions a log stream has is said by the projection, so it is complete up to its first position that is not
written. Junk is delivered like anything else; whoever takes it passes over it (rule 24).

At the end of the log the tails are waited for, and nobody else is asked anything. A position that is missing below
others is a hole: it is waited for, and then mended (`frontiers`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from varlog import errors, limits
from varlog.core.address import Send
from varlog.core.delivering import Deliver, Delivery, OnEnd
from varlog.core.frontiers import Frontier, Frontiers, Mend
from varlog.core.merging import GlsnMerge
from varlog.core.messages import ChainPart, StoredLine
from varlog.core.projection import NEVER, Projection
from varlog.core.routing import Routing
from varlog.core.trouble import Complain
from varlog.types import GLSN, LogStreamID, TopicID

_LITTLE: Final = 1


class ChainSubscription(Delivery, Frontiers):
    """See the module's text."""

    def __init__(
        self,
        tpid: TopicID,
        begin: GLSN,
        end: GLSN | None,
        routing: Routing,
        new_request: Callable[[], int],
        send: Send,
        deliver: Deliver,
        on_end: OnEnd,
        mend: Mend,
        complain: Complain,
        *,
        fill_after: float = limits.FILL_AFTER_SECONDS,
        wake_at: Callable[[float], None] | None = None,
        reply_bytes: int = limits.SCAN_REPLY_BYTES,
        verdicts: bool = False,
    ) -> None:
        Delivery.__init__(self, tpid, begin, end, routing, deliver, on_end)
        Frontiers.__init__(self, tpid, routing, new_request, send, mend, complain, fill_after, wake_at)
        self._reply_bytes = reply_bytes
        """How much one read brings, and how much is held of a log stream that is ahead of the others."""
        self._verdicts = verdicts
        self._stuck: dict[LogStreamID, GLSN] = {}
        """Where a read found a hole. What lies beyond it need not be told again before that is gone."""

    @property
    def outstanding(self) -> int:
        """How many reads are under way."""
        return sum(frontier.question is not None for frontier in self._frontiers.values())

    def _begin(self) -> GLSN:
        return self._merge.next

    def _until(self) -> GLSN:
        return NEVER if self._end is None else self._end

    def _restripe(self, projection: Projection) -> None:
        super()._restripe(projection)
        self._merge = GlsnMerge(self._merge.next)
        for lsid, frontier in self._frontiers.items():
            self._merge.add(lsid)
            self._merge.offer(lsid, (), GLSN(frontier.position - 1))

    # Questions and answers

    def _go_on(self, now: float) -> None:
        if self._paused or self._projection is None:
            return
        until = self._until()
        for lsid, frontier in self._frontiers.items():
            position = frontier.position
            if frontier.question is not None or now < frontier.not_before or position >= until:
                continue
            if self._merge.buffered_bytes(lsid) < self._reply_bytes:
                self._read(frontier, _LITTLE if self._stuck.get(lsid) == position else self._reply_bytes, now)

    def _on_looked(self, frontier: Frontier, upto: GLSN) -> None:
        """What is missing is mended; only what is read counts."""

    def _on_trimmed(self, first: GLSN, now: float) -> None:
        if first > self._merge.next:
            self._finish(errors.Trimmed(first), now)

    def _on_part(self, frontier: Frontier, part: ChainPart, now: float) -> None:
        self._take(frontier, part.batches)
        end = part.batches[-1][0] + part.batches[-1][2] if part.batches else 0
        self._saw_written(part.end, now)
        upto = NEVER if end >= part.end else GLSN(end)
        frontier.is_unwritten = upto > frontier.position
        if not frontier.is_unwritten or frontier.position >= self._highest:
            frontier.gaps = [gap for gap in frontier.gaps if gap.begin >= frontier.position]
            return
        if part.end > frontier.position:
            self._stuck[frontier.lsid] = frontier.position
        self._examine(frontier, [(line[0], line[0] + line[2]) for line in part.batches], upto, now)

    def _take(self, frontier: Frontier, batches: tuple[StoredLine, ...]) -> None:
        """Hand on to the merge what follows without a hole."""
        assert self._projection is not None
        own_from, lsid, position = self._projection.own_from, frontier.lsid, frontier.position
        block_end = self._projection.block_end(position) if batches else position
        taken = 0
        for line in batches:
            end = line[0] + line[2]
            if line[0] > position:
                break
            taken += 1
            if position < end < block_end:
                position = GLSN(end)
            elif end >= block_end:
                position = own_from(lsid, GLSN(end))
                block_end = self._projection.block_end(position)
        frontier.position = position
        self._merge.offer(lsid, batches[:taken], GLSN(position - 1))
