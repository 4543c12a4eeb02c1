"""Reconfiguring: when this client's machines complain that a topic does not work in its epoch, see to another (S7).

Who complains is believed, and goes on complaining as long as it has reason to. One conversation (`core.reconfiguring`)
is under way at a time. It begins after a random pause and with a look at the metadata, so that of many clients that
meet the same failure one does the work, and the others find it done. When it is over the metadata is read anew, and
everybody takes part in the next epoch. One that fails is told to nobody but those who ask why nothing goes on: there
will be the next complaint.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from varlog import errors
from varlog.client.session import Session
from varlog.core.address import METADATA_REPOSITORY, Address, node_address, sequencer_address
from varlog.core.conversing import Answer, Conversation
from varlog.core.messages import GetMetadata, Message, NodeInfo
from varlog.core.reconfiguring import Change, reconfigure
from varlog.core.trouble import Trouble
from varlog.types import Epoch, StorageNodeID, TopicID
from varlog.wire.link import Link

_log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 0.1
"""The longest pause, before a conversation and within it."""
ANSWER_SECONDS: Final = 1.0
"""What an answer is waited for,"""
CONNECT_SECONDS: Final = 0.3
"""and a connection, where the last attempt failed."""
METADATA_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 0.25
"""Between two conversations, if the first came to nothing."""


class Reconfiguring:
    """See the module's text. Of one topic."""

    def __init__(self, session: Session, tpid: TopicID) -> None:
        self._session = session
        self._tpid = tpid
        self._trouble = Trouble(Epoch(0))
        """All that was complained of in an epoch."""
        self._task: asyncio.Task[None] | None = None
        self._failed: tuple[Epoch, errors.VarlogError] | None = None
        """The epoch in which the last conversation came to nothing, and why."""

    @property
    def error(self) -> errors.VarlogError | None:
        """Why the topic does not work, if nobody has mended it."""
        projection = self._session.routing.projection(self._tpid)
        if self._failed is None or (projection is not None and projection.epoch > self._failed[0]):
            return None
        return self._failed[1]

    def complain(self, trouble: Trouble) -> None:
        """Something does not work; see that it does."""
        projection = self._session.routing.projection(self._tpid)
        if self._session.closed is not None or (projection is not None and projection.epoch > trouble.epoch):
            return
        if trouble.epoch > self._trouble.epoch:
            self._trouble = Trouble(trouble.epoch)
        known = self._trouble
        self._trouble = Trouble(
            known.epoch,
            known.nodes | trouble.nodes,
            known.sequencers | trouble.sequencers,
            max(known.seen, trouble.seen),
        )
        if self._task is None:
            self._task = self._session.loop.create_task(self._run(), name=f"reconfiguration of topic {self._tpid}")

    async def _run(self) -> None:
        try:
            await self._pause()
            known = self._trouble
            change = Change(known.epoch, known.seen, known.nodes, known.sequencers)
            # What was complained of is tried once: if it is still so afterwards, somebody will say so.
            self._trouble = Trouble(known.epoch, seen=known.seen)
            epoch = await self.carry(reconfigure(self._session.asking.new_request, self._tpid, change))
            _log.info("topic %d goes on in epoch %d, after %s", self._tpid, epoch, known)
            await self._session.refreshed(self._session.loop.time() + METADATA_SECONDS)
            self._failed = None
        except errors.VarlogError as error:
            if str(error) != str(self.error):
                _log.warning("topic %d could not be reconfigured: %s", self._tpid, error)
            self._failed = (self._trouble.epoch, error)
            await asyncio.sleep(AGAIN_SECONDS)
        finally:
            self._task = None

    async def close(self) -> None:
        """Give up what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def carry(self, conversation: Conversation) -> int:
        """Carry a conversation to its end; what it returns, or raises."""
        answers: Sequence[Answer] | None = None
        try:
            while True:
                requests = conversation.send(answers)  # type: ignore[arg-type]  # the first one is None
                if not requests:
                    await self._pause()
                answers = await asyncio.gather(*(self._ask(address, message) for address, message in requests))
        except StopIteration as stop:
            value: int = stop.value
            return value
        finally:
            conversation.close()

    async def _pause(self) -> None:
        await asyncio.sleep(random.uniform(0, PAUSE_SECONDS))

    async def _ask(self, address: Address, message: Message) -> Answer:
        """The answer to a request, or why there is none."""
        session = self._session
        now = session.loop.time()
        try:
            if isinstance(message, GetMetadata):
                await session.refreshed(now + METADATA_SECONDS)
                assert session.metadata is not None, "it was just refreshed"
                return session.metadata
            link, seconds = None, METADATA_SECONDS
            if address != METADATA_REPOSITORY:
                link = self._link(address)
                seconds = ANSWER_SECONDS if link.connected or link.error is None else CONNECT_SECONDS
            return await session.asking.ask(
                lambda request: replace(message, request=request), now + seconds, of=link, whatever=True
            )
        except errors.VarlogError as error:
            return error

    def _link(self, address: Address) -> Link:
        location = address.removeprefix(sequencer_address(""))
        if location != address:
            return self._session.sequencer(location)
        snid = next((node.snid for node in self._nodes() if node_address(node.snid) == address), StorageNodeID(0))
        link = self._session.node(snid)
        if link is None:
            raise errors.UnknownNode(f"nobody has said where {address} is")
        return link

    def _nodes(self) -> Sequence[NodeInfo]:
        return self._session.metadata.nodes if self._session.metadata is not None else ()
