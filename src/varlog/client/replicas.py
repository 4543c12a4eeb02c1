"""Reading one replica: what a chosen node holds of a log stream, as it holds it.

`log.scan` asks whichever replica answers, because all of them hold the same. Whoever wants to know whether that is so
has to ask each of them. `scan_replica` reads [begin, end) of a log stream from one node and from nobody else, and gives
the stored batches as they come off the wire: nothing is merged, nothing is verified, nothing is passed over.

One answer is held while the next one is under way, each of about `limits.CLIENT_SCAN_BYTES`, so memory is bounded
whatever the range. A connection that breaks is waited for, and the question asked again, within the deadline of each
answer.

A replica of a chain is asked in the topic's epoch, wherever it stands in the chain. When that passes, the next one is
looked for in the metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from copy import copy
from typing import Any, Final

from varlog import errors, limits
from varlog.client.arguments import check_timeout
from varlog.client.session import Session
from varlog.core.address import node_address
from varlog.core.messages import ChainPart, ChainRead, Scan, ScanReply, StoredLine
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID, StreamStatus

_AGAIN: Final = frozenset({errors.Busy.code})


async def scan_replica(
    session: Session, snid: int, lsid: int, begin: int, end: int, *, timeout: float
) -> AsyncIterator[Sequence[StoredLine]]:
    """The batches that a node's replica of a log stream has in [begin, end), some at a time, in the order it gives
    them; one that the range cuts into comes as a whole. `timeout` is for each answer.

    `NotYet` if the replica does not know of all of the range, `Trimmed` if it is trimmed, `Corrupt` or whatever else
    the node says of it; `Unreachable` or `DeadlineExceeded` if it says nothing.
    """
    if not 0 < begin <= end:
        raise errors.InvalidArgument(f"a range is [begin, end) from 1 on, not [{begin}, {end})")
    stream = session.routing.stream(LogStreamID(lsid))
    kind = _ChainScan if stream is not None and stream.status is StreamStatus.CHAINED else _ReplicaScan
    scan = kind(session, StorageNodeID(snid), LogStreamID(lsid), begin, end, check_timeout(timeout))
    try:
        while (found := await scan.next()) is not None:
            if found:
                yield found
    finally:
        scan.close()


class _ReplicaScan:
    """A participant of the session that keeps one question under way until everything is answered."""

    wants_metadata = False

    def __init__(
        self, session: Session, snid: StorageNodeID, lsid: LogStreamID, begin: int, end: int, timeout: float
    ) -> None:
        self._session = session
        self._snid = snid
        self._lsid = lsid
        self._next = begin
        self._end = end
        self._timeout = timeout
        self._question: Scan | ChainRead | None = None
        self._busy = False
        self._answer: asyncio.Future[tuple[tuple[StoredLine, ...], int]] | None = None
        """The batches, and up to where that is all there is."""
        self._new_request: Callable[[], int]
        session.enroll(self._take_part, self._abandon)
        self._ask()

    def _take_part(self, new_request: Callable[[], int]) -> _ReplicaScan:
        self._new_request = new_request
        return self

    async def next(self) -> Sequence[StoredLine] | None:
        """The next answer's batches; None when there is nothing more to ask for."""
        if self._answer is None:
            return None
        try:
            async with asyncio.timeout(self._timeout):
                batches, end = await self._answer
        except TimeoutError:
            raise self._late() from None
        self._next = end
        self._ask()
        return [line for line in batches if line[0] < self._end]

    def close(self) -> None:
        """Ask no more."""
        self._question = None
        self._session.dismiss(self)

    def _ask(self) -> None:
        self._question = self._answer = None
        if self._next < self._end:
            self._answer = self._session.loop.create_future()
            self._question = self._build(self._new_request())
            self._send()

    def _build(self, request: int) -> Scan | ChainRead:
        return Scan(request, self._lsid, GLSN(self._next), limits.CLIENT_SCAN_BYTES, wait=True)

    def _send(self) -> None:
        self._busy = False
        if self._question is not None:
            self._session.send_now(node_address(self._snid), self._question)
            self._session.stir()

    def _fail(self, error: errors.VarlogError) -> None:
        self._question = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
            self._answer.exception()  # whoever asks for it is told all the same; nobody has to

    def _late(self) -> errors.VarlogError:
        link = self._session.node(self._snid)
        if link is None:
            return errors.UnknownNode(f"there is no storage node {self._snid}, or nobody has said where it is")
        if not link.connected:
            why = link.error or "not connected"
            return errors.Unreachable(f"storage node {self._snid} at {link.address}: {why}; check that it runs")
        what = f"storage node {self._snid} has not given position {self._next} of log stream {self._lsid}"
        return errors.DeadlineExceeded(f"{what} within {self._timeout:g} s")

    # The participant

    @property
    def outstanding(self) -> int:
        return self._question is not None

    def on_reply(self, reply: Any, _now: float) -> None:
        question = self._question
        if not isinstance(reply, ScanReply) or question is None or reply.request != question.request:
            return
        if reply.code in _AGAIN:
            self._busy = True
        elif reply.code == errors.Trimmed.code:
            self._fail(errors.Trimmed(reply.first))
        elif reply.code == errors.NotYet.code:
            known = f"storage node {self._snid} knows log stream {self._lsid} only up to position {reply.complete_to}"
            self._fail(errors.NotYet(known))
        elif reply.code:
            self._fail(errors.VarlogError.of(reply.code, reply.detail))
        elif reply.complete_to < self._next:
            self._fail(errors.ProtocolError(f"an answer up to {reply.complete_to} from {self._next} on"))
        else:
            self._settle(reply.batches, reply.complete_to + 1)

    def _settle(self, batches: tuple[StoredLine, ...], end: int) -> None:
        if self._answer is not None and not self._answer.done():
            self._question = None
            self._answer.set_result((batches, end))

    def on_metadata(self, now: float) -> None:
        """It asks one node, wherever that is."""

    def on_connected(self, snid: StorageNodeID, _now: float) -> None:
        if snid == self._snid:
            self._send()

    def on_disconnected(self, snid: StorageNodeID, now: float) -> None:
        """It is asked again when it is back, or too late."""

    def tick(self, _now: float) -> None:
        if self._busy:
            self._send()

    def _abandon(self, error: errors.VarlogError) -> None:
        self._fail(copy(error))


class _ChainScan(_ReplicaScan):
    """The same of a replica of a chain."""

    def _build(self, request: int) -> Scan | ChainRead:
        stream = self._session.routing.stream(self._lsid)
        epoch = stream.epoch if stream is not None else Epoch(0)
        return ChainRead(request, self._lsid, epoch, GLSN(self._next), limits.CLIENT_SCAN_BYTES)

    def on_reply(self, reply: Any, _now: float) -> None:
        question = self._question
        if not isinstance(reply, ChainPart) or question is None or reply.request != question.request:
            return
        if reply.code in _AGAIN:
            self._busy = True
        elif reply.code == errors.StaleEpoch.code:
            self.wants_metadata = True
        elif reply.code == errors.Trimmed.code:
            self._fail(errors.Trimmed(reply.first))
        elif reply.code:
            self._fail(errors.VarlogError.of(reply.code, reply.detail))
        else:
            end = reply.batches[-1][0] + reply.batches[-1][2] if reply.batches else 0
            self._settle(reply.batches, end if self._next < end < reply.end else self._end)

    def on_metadata(self, _now: float) -> None:
        """There may be another epoch."""
        if self.wants_metadata and self._question is not None:
            self._question = self._build(self._new_request())
            self._send()
        self.wants_metadata = False
