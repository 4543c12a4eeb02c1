"""Carrier: runs the conversations of `varlog.core.registration` and `operating`, carrying their messages.

All requests of one turn go out at once, each with a deadline; one that stays without an answer is answered with the
error that says why. A turn without requests is a pause.

Sequencers, and nodes that are not known by name yet, are asked so rarely that each question has its own connection.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

from varlog import errors
from varlog.core.address import Address, sequencer_address, unnamed_address
from varlog.core.conversing import Answer, Conversation
from varlog.core.messages import CreateStream, Decided, Info, Message
from varlog.manager.asking import ANSWER_SECONDS, Asking
from varlog.types import LogStreamID
from varlog.wire.connection import Connection
from varlog.wire.credentials import Credentials
from varlog.wire.hello import Identity, Role
from varlog.wire.link import dial

PAUSE_SECONDS: Final = 0.05
"""At least; and at most twice as long, so that not all who wait for each other do so for as long."""

Reach = Callable[[Address], Connection]
"""The connection to an address; raises Unreachable."""

_DIALLED: Final = {unnamed_address(""): Role.STORAGE_NODE, sequencer_address(""): Role.SEQUENCER}


class Carrier:
    """See the module's text."""

    def __init__(self, identity: Identity, credentials: Credentials, reach: Reach) -> None:
        self._identity = identity
        self._credentials = credentials
        self._reach = reach
        self.asking = Asking()
        self._making: dict[Conversation, set[LogStreamID]] = {}

    @property
    def making(self) -> frozenset[LogStreamID]:
        """The log streams that were given an id in a conversation that is not over."""
        return frozenset(lsid for lsids in self._making.values() for lsid in lsids)

    async def run(self, conversation: Conversation, seconds: float = ANSWER_SECONDS) -> int:
        """Carry a conversation to its end; what it returns, or raises. Every answer is waited for that long."""
        self._making[conversation] = set()
        answers: Sequence[Answer] | None = None
        try:
            while True:
                requests = conversation.send(answers)  # type: ignore[arg-type]  # the first one is None
                if not requests:
                    await asyncio.sleep(PAUSE_SECONDS * (1 + random.random()))
                answers = await asyncio.gather(*(self._ask(to, message, seconds) for to, message in requests))
                for (_, message), answer in zip(requests, answers, strict=True):
                    if isinstance(message, CreateStream) and isinstance(answer, Decided) and not answer.code:
                        self._making[conversation].add(LogStreamID(answer.value))
        except StopIteration as stop:
            value: int = stop.value
            return value
        finally:
            del self._making[conversation]

    async def _ask(self, address: Address, message: Message, seconds: float) -> Answer:
        """The answer to a request, or why there is none."""
        try:
            for start, role in _DIALLED.items():
                if address.startswith(start):
                    return await self._ask_once(address.removeprefix(start), role, message, seconds)
            return await self.asking.ask(self._reach(address), message, seconds)
        except errors.VarlogError as error:
            return error

    async def _ask_once(self, location: str, role: Role, message: Message, seconds: float) -> Message:
        """Over a connection that is there for this question."""
        asking = Asking()
        connection = await dial(location, self._identity, role, self._credentials, asking, timeout=seconds)
        try:
            answer = await asking.ask(connection, message, seconds)
            if isinstance(answer, Info):
                check_own(connection, answer)
            return answer
        finally:
            connection.close()


def check_own(connection: Connection, info: Info) -> None:
    """A node speaks for itself alone."""
    if info.snid != connection.peer.node_id:
        raise errors.ProtocolError(f"storage node {connection.peer.node_id} speaks for another one")
