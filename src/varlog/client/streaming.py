"""Streaming: a subscription of the core as a participant of the session.

Which core it is depends on what orders the topic: both have the same calls. What is done with the chunks it brings is
said by the classes made of this one.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from varlog import errors, limits
from varlog.client.session import Session
from varlog.core import subscribing
from varlog.core.address import Address
from varlog.core.branches import ignore
from varlog.core.chainreading import ChainSubscription
from varlog.core.chainreads import ChainReads
from varlog.core.frontiers import Mend
from varlog.core.merging import Chunk
from varlog.core.messages import Message
from varlog.core.trouble import Complain
from varlog.types import GLSN, StorageNodeID, TopicID


class Chained(Protocol):
    """What reads of a topic that a sequencer orders share with the rest of its client."""

    @property
    def reads(self) -> ChainReads: ...

    @property
    def mend(self) -> Mend: ...

    @property
    def complain(self) -> Complain: ...

    @property
    def fill_after(self) -> float:
        """How long a hole is waited for before it is filled."""


class Streaming(ABC):
    """See the module's text. It takes part from `_enroll` on, until it ends."""

    def __init__(
        self,
        session: Session,
        tpid: TopicID,
        end: int | None,
        reply_bytes: int,
        affinity: int | None,
        chained: Chained | None,
        *,
        verdicts: bool = False,
    ) -> None:
        self._session = session
        self._tpid = tpid
        self._end = None if end is None else GLSN(end)
        self._reply_bytes = reply_bytes
        self._affinity = random.randrange(limits.MAX_REPLICAS) if affinity is None else affinity
        self._chained = chained
        """Of a topic that a sequencer orders."""
        self._verdicts = verdicts
        """Nothing else is wanted."""
        self._damaged_at = (0, 0)
        self._ended = False

    def _enroll(self, begin: GLSN) -> None:
        def make(new_request: Callable[[], int]) -> Streaming:
            self._core = self._make_core(begin, new_request)
            self.on_reply = self._core.on_reply
            self.on_metadata = self._core.on_metadata
            self.on_connected = self._core.on_connected
            self.on_disconnected = self._core.on_disconnected
            self.tick = self._core.tick
            return self

        self._session.enroll(make, self._abandon)

    def _make_core(self, begin: GLSN, new_request: Callable[[], int]) -> subscribing.Subscription | ChainSubscription:
        if self._chained is not None:
            return ChainSubscription(
                self._tpid,
                begin,
                self._end,
                self._session.routing,
                new_request,
                self._send,
                self._deliver,
                self._on_end,
                self._chained.mend,
                self._chained.complain,
                fill_after=self._chained.fill_after,
                wake_at=self._wake_at,
                reply_bytes=self._reply_bytes,
                verdicts=self._verdicts,
            )
        return subscribing.Subscription(
            self._tpid,
            begin,
            self._end,
            self._session.routing,
            new_request,
            self._send,
            self._deliver,
            self._on_end,
            ignore,
            affinity=self._affinity,
            reply_bytes=self._reply_bytes,
            verdicts=self._verdicts,
        )

    def _enroll_again(self, glsn: GLSN, error: errors.VarlogError) -> bool:
        """Read a position, and all that follows it, from other replicas; if none has it sound, that is the end, and
        False."""
        at, times = self._damaged_at
        self._damaged_at = (glsn, times + 1 if at == glsn else 1)
        self._session.dismiss(self)
        self._ended = False
        self._affinity += 1
        if self._damaged_at[1] > limits.MAX_REPLICAS:
            self._on_end(error)
            return False
        self._enroll(glsn)
        return True

    @abstractmethod
    def _deliver(self, chunk: Chunk) -> None: ...

    @abstractmethod
    def _on_end(self, error: errors.VarlogError | None) -> None: ...

    @abstractmethod
    def _abandon(self, error: errors.VarlogError) -> None: ...

    # The participant

    on_reply: Callable[[Any, float], None]
    on_metadata: Callable[[float], None]
    on_connected: Callable[[StorageNodeID, float], None]
    on_disconnected: Callable[[StorageNodeID, float], None]
    tick: Callable[[float], None]

    @property
    def wants_metadata(self) -> bool:
        return self._core.wants_metadata and not self._ended

    @property
    def outstanding(self) -> int:
        return not self._ended

    def _send(self, address: Address, message: Message) -> None:
        self._session.send_now(address, message)  # if it was not sent, the core is told when it can be

    def _wake_at(self, at: float) -> None:
        """The core has something to do then, and not only at the next tick."""
        self._session.loop.call_at(at, self._on_time)

    def _on_time(self) -> None:
        if not self._ended:
            self._core.tick(self._session.loop.time())
            if self._core.wants_metadata:
                self._session.refresh()
