"""A topic that a sequencer orders, as a client uses it: the machines of the core, and what is asked of them.

`Chains` pushes batches, `ChainWriter` gets appends their positions; `ChainReads`, `Prefix` and every subscription read,
and `Mending` fills what they found missing. All of them complain to one `Reconfiguring` when something does not work.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from copy import copy
from typing import Any, Final

from msgspec.structs import replace

from varlog import batch, errors
from varlog.client.reconfiguring import Reconfiguring
from varlog.client.session import Session
from varlog.client.writing import Appends, Given, Lane, new_writer_id, timestamp
from varlog.core.address import Address
from varlog.core.chainprefix import Prefix
from varlog.core.chainpushing import Chains
from varlog.core.chainreads import ChainReads
from varlog.core.chainwriting import ChainWriter
from varlog.core.filling import Filled
from varlog.core.mending import Mending
from varlog.core.messages import GetTail, Message, Peek, Peeked, Tail, TopicInfo
from varlog.core.projection import Projection
from varlog.core.reconfiguring import Change, reconfigure
from varlog.core.trouble import SILENT_SECONDS, Trouble
from varlog.types import GLSN, Epoch, StorageNodeID

LOOK_AGAIN: Final = 0.05
"""While the topic does not work in its epoch."""


class ChainTopic:
    """See the module's text."""

    def __init__(self, session: Session, topic: TopicInfo, fill_after: float) -> None:
        self.session = session
        self.tpid = topic.tpid
        self.name = topic.name
        self.fill_after = fill_after
        self._settling: dict[asyncio.Future[None], tuple[Epoch, GLSN]] = {}
        """Who waits for a position that was the last one given out, in which epoch."""
        self.reconfiguring = Reconfiguring(session, topic.tpid)
        self.complain = complain = self.reconfiguring.complain
        tpid, routing, send = topic.tpid, session.routing, self._ask
        self.chains = session.enroll(lambda new: Chains(tpid, routing, new, self._send, complain), _nothing)
        self.appends = ChainAppends(self)
        self.mending = session.enroll(
            lambda new: Mending(tpid, routing, new, send, self.chains.fill, complain, session.fail), _nothing
        )
        self.mend = mend = self.mending.mend
        self.prefix = session.enroll(
            lambda new: Prefix(
                tpid, routing, new, send, mend, complain, fill_after=fill_after, wake_at=self._wake_prefix_at
            ),
            self._abandon_reaches,
        )
        self.reads = session.enroll(lambda new: ChainReads(tpid, routing, new, send, complain), self._abandon_reads)
        session.enroll(lambda _: self, _nothing)

    def _abandon_reaches(self, error: errors.VarlogError) -> None:
        self.prefix.abandon(error)

    def _wake_prefix_at(self, at: float) -> None:
        self.session.loop.call_at(at, self._wake_prefix)

    def _wake_prefix(self) -> None:
        if self.session.closed is None:
            self.prefix.tick(self.session.loop.time())

    def _abandon_reads(self, error: errors.VarlogError) -> None:
        self.reads.abandon(error)

    def _send(self, address: Address, message: Message) -> bool:
        return self.appends.send(address, message)

    def _ask(self, address: Address, message: Message) -> None:
        self.session.send_now(address, message)

    async def close(self) -> None:
        """Give up what is under way."""
        await self.reconfiguring.close()

    # Takes part in the session for its own sake

    wants_metadata = False

    @property
    def outstanding(self) -> int:
        return 0

    def on_metadata(self, _now: float) -> None:
        if self.session.routing.topic(self.tpid) is None:
            self.session.fail(errors.UnknownTopic(f"topic {self.name!r} was removed"))
        for waiting, (epoch, glsn) in self._settling.items():
            if self._has_passed(epoch, glsn) and not waiting.done():
                waiting.set_exception(errors.StaleEpoch(f"position {glsn} of epoch {epoch} never happened"))

    def _has_passed(self, epoch: Epoch, glsn: GLSN) -> bool:
        """Whether a position that was given out in an epoch never happened: a later one begins before it."""
        known = self.session.routing.projection(self.tpid)
        return known is not None and known.epoch > epoch and known.start <= glsn

    def on_reply(self, reply: Any, now: float) -> None:
        """It asks nothing itself."""

    def on_connected(self, snid: StorageNodeID, now: float) -> None:
        """Its machines are told."""

    def on_disconnected(self, snid: StorageNodeID, now: float) -> None:
        """Its machines are told."""

    def tick(self, now: float) -> None:
        """Nothing here takes time."""

    # Epochs

    async def projection(self, deadline: float) -> Projection:
        """The present one, as far as is known; waits for the first (S8)."""
        while (known := self.session.routing.projection(self.tpid)) is None:
            await self._look_again(deadline, "topic has no projection yet: a manager makes it when its nodes answer")
        return known

    async def _look_again(self, deadline: float, why: str) -> None:
        """Wait a little, and read the metadata anew."""
        loop = self.session.loop
        if loop.time() >= deadline:
            raise copy(self.reconfiguring.error) or errors.DeadlineExceeded(why)
        await asyncio.sleep(min(LOOK_AGAIN, max(0.0, deadline - loop.time())))
        await self.session.refreshed(deadline)

    async def seal(self, deadline: float) -> Epoch:
        """End the present epoch and begin another; returns it. What is under way goes on in that one."""
        projection = await self.projection(deadline)
        change = Change(projection.epoch)
        conversation = reconfigure(self.session.asking.new_request, self.tpid, change)
        try:
            async with asyncio.timeout_at(deadline):
                epoch = await self.reconfiguring.carry(conversation)
                await self.session.refreshed(deadline)
        except TimeoutError:
            raise errors.Unknown(
                "the topic was not reconfigured in time; it may have been: look at its epoch"
            ) from None
        return Epoch(epoch)

    # Positions

    async def peek(self, deadline: float) -> tuple[Epoch, GLSN]:
        """The largest position that was given out, and the epoch in which that is sure (rule 20)."""
        peeked, _ = await self._confirmed(deadline)
        return peeked.epoch, peeked.glsn

    async def _confirmed(self, deadline: float) -> tuple[Peeked, Tail]:
        while True:
            projection = await self.projection(deadline)
            peeked = await self._peek(projection, deadline)
            if peeked is not None:
                tail = await self.ask_tail(deadline)
                if tail.epoch == peeked.epoch:
                    return peeked, tail
            await self._look_again(deadline, f"the sequencer at {projection.sequencer} did not answer in time")

    async def _peek(self, projection: Projection, deadline: float) -> Peeked | None:
        """What the sequencer says; None if it should be asked again."""
        link, now = self.session.sequencer(projection.sequencer), self.session.loop.time()
        until = min(deadline, now + SILENT_SECONDS)
        try:
            answer = await self.session.asking.ask(
                lambda request: Peek(request, self.tpid, projection.epoch), until, of=link, whatever=True
            )
        except (errors.Unreachable, errors.DeadlineExceeded):
            answer = None
        if isinstance(answer, Peeked) and answer.code == 0 and answer.epoch == projection.epoch:
            return answer
        if answer is None or getattr(answer, "code", 0) == errors.NotSequencer.code:
            self.complain(Trouble(projection.epoch, sequencers=frozenset({projection.sequencer})))
        return None

    async def ask_tail(self, deadline: float) -> Tail:
        """What the metadata repository says of the topic: where it is trimmed, and its epoch."""
        answer = await self.session.asking.ask(lambda request: GetTail(request, self.tpid), deadline)
        assert isinstance(answer, Tail)
        self.session.routing.note_trim(self.tpid, answer.trim)
        return answer

    async def settled(self, deadline: float) -> Tail:
        """The last position that had been given out, when everything up to it is written or junk (rule 24); and what
        else the metadata repository said when it confirmed that."""
        while True:
            peeked, tail = await self._confirmed(deadline)
            try:
                await self._reach(peeked.epoch, peeked.glsn, deadline)
            except errors.StaleEpoch:
                continue  # nobody may ever be given that position again
            return replace(tail, hwm=peeked.glsn)

    async def _reach(self, epoch: Epoch, glsn: GLSN, deadline: float) -> None:
        """Wait until everything is written up to a position that was given out in an epoch."""
        if self._has_passed(epoch, glsn):
            raise errors.StaleEpoch(f"position {glsn} of epoch {epoch} never happened")
        reached: asyncio.Future[None] = self.session.loop.create_future()

        def done(error: errors.VarlogError | None) -> None:
            if error is not None and not reached.done():
                reached.set_exception(copy(error))
            elif not reached.done():
                reached.set_result(None)

        self._settling[reached] = epoch, glsn
        reach = self.prefix.reach(glsn, done, self.session.loop.time())
        self.session.stir()
        try:
            async with asyncio.timeout_at(deadline):
                await reached
        except TimeoutError:
            why = self.reconfiguring.error or "somebody has not written it yet, and it is filled after the interval"
            raise errors.DeadlineExceeded(
                f"up to {self.prefix.verified} everything is written, up to {glsn} it is given out: {why}"
            ) from None
        finally:
            del self._settling[reached]
            self.prefix.forget(reach)

    async def fill(self, glsn: int, count: int, deadline: float) -> None:
        """See `Log.fill`."""
        epoch, peeked = await self.peek(deadline)
        if glsn + count - 1 > peeked:
            raise errors.Unwritten(f"only positions up to {peeked} were given out; {glsn + count - 1} is beyond")
        if glsn <= (trim := self.session.routing.trim(self.tpid)):
            raise errors.Trimmed(trim + 1)
        done: asyncio.Future[Filled | errors.VarlogError] = self.session.loop.create_future()
        self.chains.fill(
            GLSN(glsn),
            count,
            epoch,
            deadline,
            lambda outcome: None if done.done() else done.set_result(outcome),
            self.session.loop.time(),
        )
        self.session.stir()
        outcome = await done
        if isinstance(outcome, errors.DeadlineExceeded):
            raise errors.Unknown(f"positions from {glsn} on may be filled, or may yet: {self.appends.explain()}")
        if isinstance(outcome, errors.VarlogError):
            raise copy(outcome)
        values = [at for at, header in outcome.found if not header.flags & batch.BatchFlag.JUNK]
        if values:
            raise errors.Written(f"position {max(glsn, values[0])} holds an entry, and keeps it; it was not filled")


class _ChainLane:
    """Appends that are kept in order, with a codec of their own, between others."""

    def __init__(self, writer: ChainWriter, number: int, codec: batch.Codec) -> None:
        self._writer = writer
        self._number = number
        self._codec = codec

    @property
    def wants_metadata(self) -> bool:
        return self._writer.wants_metadata

    def append(self, id_: Any, entries: Any, deadline: float, now: float) -> None:
        self._writer.append(id_, entries, deadline, now, self._codec, self._number)


class ChainAppends(Appends):
    """Of a topic that a sequencer orders: one writer has them all."""

    def __init__(self, topic: ChainTopic) -> None:
        super().__init__(topic.session, topic.tpid, topic.name)
        self._topic = topic
        self._numbers = itertools.count(1)
        self._lanes: dict[Lane, Callable[[errors.VarlogError], None]] = {}
        self.on_end: Callable[[errors.VarlogError], None] = _nothing
        """Called with why, when everything under way ends."""
        session = topic.session
        self.writer = session.enroll(
            lambda new_request: ChainWriter(
                topic.tpid,
                topic.chains,
                new_writer_id(),
                new_request,
                timestamp,
                self.send,
                self._settle,
                topic.complain,
                self._soon,
            ),
            self._end,
        )
        session.sequencer_listeners.append(self.writer.on_sequencer)

    def _soon(self) -> None:
        loop = self.session.loop
        loop.call_soon(lambda: self.writer.flush(loop.time()))

    def next(self) -> Lane:
        """Where an append goes that is not of an appender."""
        return self.writer

    def lane(self, _window: int, codec: batch.Codec, abandon: Callable[[errors.VarlogError], None]) -> Lane:
        lane = _ChainLane(self.writer, next(self._numbers), codec)
        self._lanes[lane] = abandon
        return lane

    def retire(self, lane: Lane) -> None:
        self._lanes.pop(lane, None)

    def _end(self, error: errors.VarlogError) -> None:
        self.on_end(error)
        self._topic.chains.abandon(error)  # after its own appends were told: this is for fills
        for abandon in list(self._lanes.values()):
            abandon(copy(error))

    def _given_up(self) -> list[tuple[Given, bool]]:
        return self.writer.abandon()

    def _find_reason(self) -> errors.VarlogError:
        topic, session = self._topic, self.session
        if topic.chains.violation is not None:
            return topic.chains.violation
        if (silent := session.repositories_silent()) is not None:
            return silent
        if topic.reconfiguring.error is not None:
            return topic.reconfiguring.error
        projection = session.routing.projection(topic.tpid)
        if projection is None:
            return errors.Sealed(
                f"topic {topic.name!r} has no projection yet; a manager makes it when its nodes and a sequencer answer"
            )
        links = {f"the sequencer at {projection.sequencer}": session.sequencer(projection.sequencer)}
        for snid in {snid for chain in projection.chains for snid in chain.nodes}:
            if (link := session.node(snid)) is not None:
                links[f"storage node {snid}"] = link
        for who, link in links.items():
            if not link.connected and link.error is not None:
                return errors.Unreachable(f"{who} cannot be reached ({link.error}); start it")
        return errors.DeadlineExceeded("its log streams are slow; allow more time, or append less at once")


def _nothing(_error: errors.VarlogError) -> None:
    """What is under way is told of elsewhere."""
