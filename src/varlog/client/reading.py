"""Reads: scans and subscriptions, from the core's `Subscription` to an iterator that somebody awaits.

`Feed` stands between the two. The core delivers as replicas answer; what is delivered and not yet taken is held here,
and beyond a limit the core is paused, so a slow reader stops the reading and holds no more than that.

A batch is verified when it is taken, after the next ones have been asked for: the replica reads while the client
verifies. If one is not what its writer made, reading begins again at its position, from another replica.

Positions that were filled hold nothing, and are passed over: they count as read, and nobody is handed them. So are
verdicts on transactions, and what belongs to a transaction that did not commit. One that is not decided yet holds the
reader up (`verdicts`); what is read ahead meanwhile is looked through for its verdict.

`Batches` is what a caller has in hand. It reads from the log as long as that has the next position, and otherwise from
the archive, if the topic has one (`archives`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from copy import copy
from itertools import takewhile
from typing import Final, Protocol

from varlog import batch, errors, limits
from varlog.client.archives import Archives
from varlog.client.entries import Entry, EntryBatch, new_entry
from varlog.client.session import Session
from varlog.client.streaming import Chained, Streaming
from varlog.client.verdicts import Holding, Verdicts
from varlog.core.chainreads import ChainReads, Found
from varlog.core.committed import Judgement
from varlog.core.merging import Chunk
from varlog.types import GLSN, TopicID

_PASSED: Final = int(batch.BatchFlag.JUNK | batch.BatchFlag.CONTROL)


class Feed(Streaming):
    """See the module's text. A participant of the session until it is closed."""

    def __init__(
        self,
        session: Session,
        tpid: TopicID,
        begin: int,
        end: int | None,
        reply_bytes: int = limits.CLIENT_SCAN_BYTES,
        affinity: int | None = None,
        *,
        with_fill: bool = False,
        chained: Chained | None = None,
        verdicts: Verdicts | None = None,
    ) -> None:
        super().__init__(session, tpid, end, reply_bytes, affinity, chained)
        self._with_fill = with_fill
        """Also what holds no entry is wanted, for the sake of its position."""
        self._verdicts_of = verdicts
        """Of the topic; without it, what is not committed is handed over, too."""
        self._holding: Holding | None = None
        """There once a batch was met that is not plain."""
        self._is_held = False
        """What comes next is of a transaction that is not decided."""
        self._is_paused = False
        self.position = GLSN(begin)
        """Everything below was taken or passed over."""
        self.filled = 0
        """How many positions were passed over."""
        self._chunks: deque[Chunk] = deque()
        self._held = 0
        self._error: errors.VarlogError | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._begun_at = GLSN(begin)
        self._enroll(self._begun_at)

    # The participant

    def _deliver(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._held += len(chunk.stored[6])
        if self._held > limits.CLIENT_READ_AHEAD_BYTES:
            self._is_paused = True
            self._core.pause()
        if self._is_held and self._holding is not None:
            self._holding.go_on()
        self._wake()

    def _on_end(self, error: errors.VarlogError | None) -> None:
        self._ended = True
        self._error = error
        self._session.dismiss(self)
        if self._is_held and self._holding is not None:
            self._holding.go_on()
        self._wake()

    def _abandon(self, error: errors.VarlogError) -> None:
        if not self._ended or self._is_held:
            self._chunks.clear()
            self._is_held = False
            self._on_end(error)
        if self._holding is not None:
            self._holding.close()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # The reader

    def close(self) -> None:
        """Read no more."""
        self._abandon(errors.Closed("the subscription was closed"))

    def take(self) -> EntryBatch | None:
        """The next batch, if it is there; None also after one that was passed over."""
        if not self._chunks or self._is_held:
            return None
        chunk = self._chunks.popleft()
        data = chunk.stored[6]
        self._held -= len(data)
        try:
            opened = batch.decode(data)
            if opened.header.count != chunk.stored[2]:
                raise errors.MalformedBatch("a batch has not as many entries as its log stream says")
        except errors.VarlogError as error:
            self._begin_again(chunk.glsn, error)
            return None
        shown = True
        if opened.header.flags and not self._with_fill:
            judgement = self._judge(chunk, opened)
            if judgement is Judgement.HOLD:
                self._hold(chunk)
                return None
            shown = judgement is Judgement.SHOW
        if self._held <= limits.CLIENT_READ_AHEAD_BYTES // 2 and not self._ended:
            self._is_paused = False
            self._core.resume(self._session.loop.time())
        self.position = GLSN(chunk.glsn + chunk.count)
        if not shown:
            self.filled += chunk.count
            return None
        return EntryBatch(chunk, opened)

    def _judge(self, chunk: Chunk, opened: batch.RecordBatch) -> Judgement:
        """What to do with a batch that is not plain."""
        if self._verdicts_of is None:
            return Judgement.PASS if opened.header.flags & _PASSED else Judgement.SHOW
        if self._holding is None:
            self._holding = Holding(self._verdicts_of, self._begun_at, self, self._on_news)
        return self._holding.committed.judge(chunk, opened, self._session.loop.time())

    def _hold(self, chunk: Chunk) -> None:
        """Wait until the transaction is decided that a chunk is of; what was read behind it may say so."""
        assert self._holding is not None
        self._chunks.appendleft(chunk)
        self._held += len(chunk.stored[6])
        self._is_held = True
        self._holding.begin()

    def ahead(self, position: int) -> list[Chunk]:
        """What was read ahead and ends beyond a position."""
        found = list(takewhile(lambda chunk: chunk.glsn + chunk.count > position, reversed(self._chunks)))
        found.reverse()
        return found

    @property
    def reads_on(self) -> bool:
        """Whether what comes behind that is being read anyway."""
        return not self._ended and not self._is_paused

    def _on_news(self, error: errors.VarlogError | None) -> None:
        """What was held is decided, or cannot be."""
        self._is_held = False
        if error is not None:
            self._ended = False
            self._abandon(error)
        self._wake()

    def _begin_again(self, glsn: GLSN, error: errors.VarlogError) -> None:
        """Read a position, and all that follows it, from other replicas; if none has it sound, that is the end."""
        self._chunks.clear()
        self._held = 0
        self._is_paused = False
        if self._holding is not None:  # what was seen of what follows may have been damaged, too
            self._holding.close()
            self._holding = None
        self._begun_at = glsn
        self._enroll_again(glsn, error)

    async def next(self, timeout: float | None) -> EntryBatch | None:
        """The next batch, waited for; None at the end."""
        now = self._session.now()
        deadline = None if timeout is None else now + timeout
        while (found := self.take()) is None:
            if self._chunks and not self._is_held:
                continue
            if self._ended and not self._is_held:
                if self._error is not None:
                    raise copy(self._error)
                return None
            self._waiting = self._session.loop.create_future()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._waiting
            except TimeoutError:
                raise self._late(timeout) from None
            finally:
                self._waiting = None
        return found

    def _late(self, timeout: float | None) -> errors.VarlogError:
        if self._is_held and self._holding is not None:
            return self._holding.explain()
        return errors.DeadlineExceeded(
            f"no replica brought position {self._core.next} in time ({timeout:.3g} s): it is not written yet, or nodes "
            "are down, see `varlog status`"
        )


async def read_at_tail(
    session: Session, reads: ChainReads, glsn: int, now: float, deadline: float, *, uncommitted: bool
) -> Entry | None:
    """One entry of a topic that a sequencer orders; None if it is of a transaction, which may have to be committed.
    Raises `Filled` where there is none, `Unwritten` and `Trimmed`."""
    waiting: asyncio.Future[Found] = session.loop.create_future()

    def done(found: Found | errors.VarlogError) -> None:
        if waiting.done():
            return
        if isinstance(found, Found):
            waiting.set_result(found)
        else:
            waiting.set_exception(copy(found))

    single = reads.read(GLSN(glsn), deadline, done, now)
    if session.ticker is None:
        session.stir()
    if not single.request:
        session.refresh()  # nobody is asked before there is a projection
    try:
        lsid, stored = await waiting
    except BaseException:
        reads.forget(single)
        raise
    header, data = batch.entry_of(stored[6], glsn - stored[0], stored[2])
    if header[3]:
        if header[3] & _PASSED:
            raise filled(glsn)
        if not uncommitted:
            return None
    return new_entry((glsn, data, glsn, lsid, stored[5]))


def filled(glsn: int) -> errors.Filled:
    """What is said of a position that holds no entry."""
    return errors.Filled(
        f"position {glsn} was filled: it holds no entry, or one of a transaction that was not committed, and readers "
        "pass over it"
    )


class Source(Protocol):
    """Where batches come from: the log's replicas, or its archive."""

    position: GLSN
    filled: int

    def take(self) -> EntryBatch | None: ...

    async def next(self, timeout: float | None) -> EntryBatch | None: ...

    def close(self) -> None: ...


class Batches:
    """An async iterator of batches, in GLSN order without a gap; ends at its end position.

    Every position from the beginning up to `position` was delivered, but for those that hold no entry, or one that was
    not committed: `filled` tells how many these are.

    Where the log was trimmed, and has an archive, it goes on there, at the very position; where that ends, in the log
    again. That is so from the beginning on or in the middle, when a trim overtakes it.

    Several tasks may share it: each batch goes to one of them.
    """

    def __init__(
        self,
        begin: int,
        find_end: Callable[[], Awaitable[int | None]],
        live: Callable[[int, int | None], Source],
        archives: Archives,
        timeout: float | None,
    ) -> None:
        self._begin = begin
        self._end: int | None = None
        self._find_end = find_end
        self._live = live
        self._archives = archives
        self._timeout = timeout
        self._source: Source | None = None
        self._passed = 0
        """Positions that earlier sources passed over."""
        self._whole = False
        self._closed = False
        self._turn = asyncio.Lock()

    def whole(self) -> Batches:
        """The same, with what comes from an archive as it lies there: many entries of several log streams at a time,
        the fastest way to their columns. `log_stream`, `llsn` and `time` of such a batch are 0; its rows have them."""
        self._whole = True
        return self

    @property
    def position(self) -> int:
        """The first position that is not dealt with yet."""
        return self._begin if self._source is None else self._source.position

    @property
    def filled(self) -> int:
        """How many positions were passed over so far, because they hold no entry that is committed."""
        return self._passed if self._source is None else self._passed + self._source.filled

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> EntryBatch:
        source = self._source
        found = source.take() if source is not None else None
        if found is None and (found := await self._next()) is None:
            raise StopAsyncIteration
        return found

    async def several(self) -> list[EntryBatch]:
        """The next batch, waited for, and those behind it that are there already; none at the end."""
        found = [following for following in (await anext(self, None),) if following is not None]
        while found and self._source is not None and (following := self._source.take()) is not None:
            found.append(following)
        return found

    async def _next(self) -> EntryBatch | None:
        loop = asyncio.get_running_loop()
        deadline = None if self._timeout is None else loop.time() + self._timeout
        async with self._turn:  # a source has one that waits for it
            return await self._wait_for_next(loop, deadline)

    async def _wait_for_next(self, loop: asyncio.AbstractEventLoop, deadline: float | None) -> EntryBatch | None:
        source = self._source
        if source is None:
            self._end = await self._find_end()
            source = self._go_on_with(self._live(self._begin, self._end))
        while True:
            try:
                found = await source.next(None if deadline is None else max(0.0, deadline - loop.time()))
            except errors.Trimmed as trimmed:
                archived = await self._archives.feed(source.position, self._end, trimmed, deadline, whole=self._whole)
                source = self._go_on_with(archived)
                continue
            if found is not None or (self._end is not None and source.position >= self._end):
                return found
            source = self._go_on_with(self._live(source.position, self._end))

    def _go_on_with(self, source: Source) -> Source:
        if self._source is not None:
            self._passed += self._source.filled
            self._source.close()
        self._source = source
        if self._closed:
            source.close()
        return source

    async def aclose(self) -> None:
        """Read no more."""
        self.close()

    def close(self) -> None:
        self._closed = True
        if self._source is not None:
            self._source.close()

    def __del__(self) -> None:
        self.close()


class Subscription:
    """An async iterator of entries, in GLSN order without a gap, that waits for more at the tail.

    It survives restarts and reconfigurations. It ends at its end position if it has one; with `Trimmed` if neither the
    log nor an archive has the next position; with `Lost` if every copy of it is gone; with `Closed` if it or its log is
    closed. `batches()` gives the same entries as batches, which is faster; use one or the other. Several tasks may
    share it: each entry goes to one of them.

    >>> import asyncio, tempfile, varlog
    >>> async def main() -> None:
    ...     with tempfile.TemporaryDirectory() as path:
    ...         async with varlog.embedded(path) as log:
    ...             await log.append_batch([b"one", b"two", b"three"])
    ...             async for entry in log.subscribe(2, end=4):
    ...                 print(entry.glsn, entry.data)
    >>> asyncio.run(main())
    2 b'two'
    3 b'three'
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._entries: Iterator[Entry] = iter(())
        self._turn = asyncio.Lock()

    def batches(self) -> Batches:
        """The same as batches."""
        return self._batches

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Entry:
        for entry in self._entries:
            return entry
        async with self._turn:
            while True:
                for entry in self._entries:  # another task may have fetched some meanwhile
                    return entry
                self._entries = iter(await self._batches.__anext__())

    async def aclose(self) -> None:
        """Read no more."""
        self._batches.close()

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._batches.close()
