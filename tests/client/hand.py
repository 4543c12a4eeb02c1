"""A client's own hand on the wire: the messages of an append one by one, so that a test can stop between two of them as
a client does that dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from varlog import Log, batch
from varlog.core.address import Address, node_address, sequencer_address
from varlog.core.messages import ChainWrite, ChainWritten, Granted, Message, Next
from varlog.core.projection import Projection
from varlog.types import GLSN, StorageNodeID

_sequences = count(1)


class Hand:
    """Takes part in a log's session."""

    wants_metadata = False

    def __init__(self, log: Log) -> None:
        self._log = log
        self._session = log._session
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._sent: dict[int, tuple[Address, Message]] = {}
        self._session.enroll(self._take_part, lambda _error: None)

    def _take_part(self, new_request: Callable[[], int]) -> Hand:
        self._new_request = new_request
        return self

    @property
    def projection(self) -> Projection:
        found = self._session.routing.projection(self._log.topic.tpid)
        assert found is not None
        return found

    async def ask(self, address: Address, build: Callable[[int], Message]) -> Any:
        request = self._new_request()
        self._waiting[request] = self._session.loop.create_future()
        self._sent[request] = (address, build(request))
        self._session.send(*self._sent[request])
        self._session.stir()
        try:
            return await self._waiting[request]
        finally:
            del self._waiting[request], self._sent[request]

    async def grant(self, *counts: int) -> Granted:
        """Positions that nobody will write, unless the test does."""
        projection, tpid = self.projection, self._log.topic.tpid
        granted = await self.ask(
            sequencer_address(projection.sequencer),
            lambda request: Next(request, tpid, projection.epoch, counts),
        )
        assert isinstance(granted, Granted)
        assert granted.code == 0
        return granted

    async def write(self, granted: Granted, payload: bytes, replicas: int) -> None:
        """Write a batch at the first position granted, on so many replicas from the head on."""
        projection = self.projection
        lsid = projection.stream_of(GLSN(granted.glsns[0]))
        data = batch.encode([payload], writer_id=77, sequence=next(_sequences))
        for snid in projection.chain(lsid).nodes[:replicas]:
            written = await self.ask(
                node_address(snid),
                lambda request: ChainWrite(
                    request, lsid, projection.epoch, granted.glsns[:1], (granted.time,), (data,)
                ),
            )
            assert isinstance(written, ChainWritten)
            assert (written.code, written.refused) == (0, ())

    # The participant

    @property
    def outstanding(self) -> int:
        return len(self._waiting)

    def on_reply(self, reply: Any, _now: float) -> None:
        waiting = self._waiting.get(reply.request)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def on_metadata(self, now: float) -> None:
        """It stays with what it was told."""

    def on_connected(self, snid: StorageNodeID, now: float) -> None:
        """See `tick`."""

    def on_disconnected(self, snid: StorageNodeID, now: float) -> None:
        """See `tick`."""

    def tick(self, _now: float) -> None:
        """Nobody may have been connected yet."""
        for address, message in self._sent.values():
            self._session.send(address, message)
