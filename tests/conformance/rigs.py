"""Where the conformance suite runs: a log as an application has it, whichever ordering it has and whatever carries it.

`LogUnderTest` is all that the suite asks of a log. `Connected` is one over the public client, for clusters in this
process and of real processes. Each test has a topic of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import varlog
from varlog.client.log import Log
from varlog.oneprocess import EmbeddedCluster
from varlog.processes import LocalCluster

T = TypeVar("T")
SECONDS = 30.0
STREAMS = 2
BLOCK = 8
"""Small, so that a few entries go to both log streams."""

Found = tuple[int, bytes]
"""A position, and the entry there."""


class TransactionUnderTest(Protocol):
    """What an application does with a transaction."""

    def append(self, *entries: bytes) -> int:
        """Append entries as one batch; the position of the first."""

    def commit(self) -> int:
        """The position of the commit."""

    def abort(self) -> None: ...


class LogUnderTest(Protocol):
    """What an application does with a log. Positions are GLSNs; a range leaves out its end."""

    def append(self, *entries: bytes) -> int:
        """Append entries as one batch; the position of the first."""

    def append_all(self, entries: list[bytes]) -> list[int]:
        """Append entries in a pipeline, one after another; their positions."""

    def append_fill(self, count: int) -> int: ...

    def read(self, glsn: int) -> bytes: ...

    def scan(self, begin: int, end: int | None = None) -> list[Found]: ...

    def follow(self, begin: int, count: int) -> list[Found]:
        """Subscribe, and take so many entries."""

    def tail(self) -> int: ...

    def first(self) -> int: ...

    def trim(self, glsn: int) -> int: ...

    def begin(self, name: str, number: int | None = None) -> TransactionUnderTest: ...

    def committed(self, begin: int, end: int) -> list[Found]:
        """What a reader of a range sees of committed transactions, and of what is in none."""

    def another(self) -> LogUnderTest:
        """The same log through another client."""


class Place(Protocol):
    """A cluster that makes logs."""

    def new_log(self) -> LogUnderTest: ...

    def remove_logs(self) -> None:
        """Delete those it has made: each has files of some size."""


class Loop:
    """An event loop in a thread of its own, for tests that are plain functions."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, SECONDS), self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Connected:
    """A log through the public client."""

    def __init__(self, place: ClientPlace, topic: str) -> None:
        self._place = place
        self._topic = topic
        self._run = place.loop.run
        self._log: Log = self._run(place.connect(topic))

    def append(self, *entries: bytes) -> int:
        if len(entries) == 1:
            return self._run(self._log.append(entries[0])).glsn
        return self._run(self._log.append_batch(entries)).glsn

    def append_all(self, entries: list[bytes]) -> list[int]:
        async def pipelined() -> list[int]:
            async with self._log.appender() as appender:
                pending = [await appender.append(entry) for entry in entries]
            return [(await each).glsn for each in pending]

        return self._run(pipelined())

    def append_fill(self, count: int) -> int:
        return self._run(self._log.append_fill(count)).glsn

    def read(self, glsn: int) -> bytes:
        return self._run(self._log.read(glsn)).data

    def scan(self, begin: int, end: int | None = None) -> list[Found]:
        async def all_of_it() -> list[Found]:
            return [(entry.glsn, entry.data) async for batch in self._log.scan(begin, end) for entry in batch]

        return self._run(all_of_it())

    def follow(self, begin: int, count: int) -> list[Found]:
        async def some() -> list[Found]:
            found: list[Found] = []
            async with self._log.subscribe(begin) as subscription:
                while len(found) < count:
                    entry = await anext(subscription)
                    found.append((entry.glsn, entry.data))
            return found

        return self._run(some())

    def tail(self) -> int:
        return self._run(self._log.tail())

    def first(self) -> int:
        return self._run(self._log.first())

    def trim(self, glsn: int) -> int:
        return self._run(self._log.trim(glsn))

    def begin(self, name: str, number: int | None = None) -> ConnectedTransaction:
        return ConnectedTransaction(self._run, self._run(self._log.begin(name, number=number)))

    def committed(self, begin: int, end: int) -> list[Found]:
        return self.scan(begin, end)

    def another(self) -> Connected:
        return Connected(self._place, self._topic)


class ConnectedTransaction:
    """A transaction through the public client."""

    def __init__(self, run: Callable[[Coroutine[Any, Any, Any]], Any], transaction: varlog.Transaction) -> None:
        self._run = run
        self._transaction = transaction

    def append(self, *entries: bytes) -> int:
        result: varlog.AppendResult = self._run(self._transaction.append_batch(entries))
        return result.glsn

    def commit(self) -> int:
        result: varlog.TransactionResult = self._run(self._transaction.commit())
        return result.glsn

    def abort(self) -> None:
        self._run(self._transaction.abort())


class ClientPlace:
    """A cluster that clients connect to."""

    def __init__(self, loop: Loop, path: Path, ordering: str) -> None:
        self.loop = loop
        self._path = path
        self._ordering = ordering
        self._numbers = itertools.count(1)
        self._topics: list[str] = []
        self._logs: list[Log] = []

    async def connect(self, topic: str) -> Log:
        log = await varlog.connect(self._path, topic=topic, timeout=SECONDS)
        self._logs.append(log)
        return log

    def new_log(self) -> Connected:
        topic = f"topic-{next(self._numbers)}"
        self.loop.run(self._add(topic))
        self._topics.append(topic)
        return Connected(self, topic)

    def remove_logs(self) -> None:
        async def remove_all() -> None:
            await self._close_all()
            async with varlog.admin(self._path, timeout=SECONDS) as operator:
                while self._topics:
                    await operator.remove_topic(self._topics.pop())

        self.loop.run(remove_all())

    async def _add(self, topic: str) -> None:
        block = BLOCK if self._ordering == "sequencer" else 0
        async with varlog.admin(self._path, timeout=SECONDS) as operator:
            await operator.add_topic(topic, streams=STREAMS, ordering=self._ordering, block=block)

    async def _close_all(self) -> None:
        while self._logs:
            await self._logs.pop().close()

    def close(self) -> None:
        self.loop.run(self._close_all())


@contextmanager
def embedded(path: Path, ordering: str) -> Iterator[Place]:
    """Everything in one process."""
    loop = Loop()
    cluster = loop.run(EmbeddedCluster.start(path))
    place = ClientPlace(loop, path, ordering)
    try:
        yield place
    finally:
        place.close()
        loop.run(cluster.stop())
        loop.close()


@contextmanager
def processes(path: Path, ordering: str) -> Iterator[Place]:
    """Real processes."""
    loop = Loop()
    cluster = LocalCluster(path)
    loop.run(cluster.__aenter__())
    place = ClientPlace(loop, path, ordering)
    try:
        yield place
    finally:
        place.close()
        loop.run(cluster.__aexit__(None, None, None))
        loop.close()
