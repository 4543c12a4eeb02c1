"""Verdicts: what became of transactions, found in the log for whoever has to know.

A `VerdictFeed` reads nothing but verdicts, from a position on, in order. Who ends a transaction asks for its fate up to
a position (`Verdicts.fate`); stretches of the log that were looked through for that are kept a while, so that the next
question goes on where the last one ended. Who knows where a verdict is can read it (`Verdicts.at`). A reader that has
met a transaction which is not decided is held by it (`Holding`): it looks for the verdict, and if nobody pronounces one
in time, has it expire. How long it has held anybody is remembered from one reader to the next, and after a while the
register is asked how old it is: many short reads do not wait any longer than a long one.

A topic without transactions never has any of this at work.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import copy
from typing import Final, Protocol

from varlog import errors, limits
from varlog.batch import BatchFlag
from varlog.batch.transactions import Verdict, encode_verdict
from varlog.client.entries import AppendResult
from varlog.client.session import Session
from varlog.client.streaming import Chained, Streaming
from varlog.core.committed import PRONOUNCE_AGAIN, Committed, Held
from varlog.core.content import Tagged
from varlog.core.fates import Fate, Fates, Key, verdict_of
from varlog.core.merging import Chunk
from varlog.core.messages import Transactions
from varlog.types import GLSN, TopicID, TransactionID

KEPT_STRETCHES: Final = 4
"""That nobody looks through at the moment."""
LINGER: Final = 0.02
"""Who has just looked in vain will look again soon: so long a stretch goes on growing by itself."""

ASK_AFTER: Final = 1.0
"""Who has been held for so many seconds asks the register how old the transaction is."""
KEPT_WAITS: Final = 1024

News = Callable[[errors.VarlogError | None], None]


class Append(Protocol):
    def __call__(self, entries: Tagged, size: int, timeout: float | None) -> Awaitable[AppendResult]: ...


class AskTail(Protocol):
    def __call__(self, *, timeout: float | None) -> Awaitable[int]: ...


class VerdictFeed(Streaming):
    """Hands every chunk to `take`, at once and in order; one that raises is brought again, by another replica.
    `stopped` is told why it ended, a little later; nothing if it was closed. Both are told who tells them."""

    def __init__(
        self,
        session: Session,
        tpid: TopicID,
        begin: int,
        end: int | None,
        chained: Chained | None,
        take: Callable[[VerdictFeed, Chunk], None],
        stopped: Callable[[VerdictFeed, errors.VarlogError | None], None],
    ) -> None:
        super().__init__(session, tpid, end, limits.CLIENT_SCAN_BYTES, None, chained, verdicts=True)
        self.position = GLSN(begin)
        self.end = self._end
        self._take = take
        self._stopped = stopped
        self._is_paused = False
        self._is_damaged = False
        self._enroll(self.position)

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def outstanding(self) -> int:
        return not self._ended and not self._is_paused

    def pause(self) -> None:
        """Read no more until `resume`."""
        self._is_paused = True
        self._core.pause()

    def resume(self) -> None:
        """Go on."""
        if self._is_paused and not self._ended:
            self._is_paused = False
            self._core.resume(self._session.loop.time())
            self._session.stir()

    def close(self) -> None:
        """Read no more."""
        if not self._ended:
            self._core.pause()
            self._ended = True
            self._session.dismiss(self)

    def _deliver(self, chunk: Chunk) -> None:
        if self._ended or self._is_damaged:
            return
        before, self.position = self.position, GLSN(chunk.glsn + chunk.count)
        try:
            self._take(self, chunk)
        except errors.VarlogError as error:
            self.position = before
            self._is_damaged = True
            self._session.loop.call_soon(self._begin_again, error)

    def _begin_again(self, error: errors.VarlogError) -> None:
        self._is_damaged = False
        if not self._ended and self._enroll_again(self.position, error) and self._is_paused:
            self._core.pause()

    def _on_end(self, error: errors.VarlogError | None) -> None:
        if not self._ended:
            self._ended = True
            self._session.dismiss(self)
            self._session.loop.call_soon(self._stopped, self, error)

    def _abandon(self, error: errors.VarlogError) -> None:
        self._on_end(error)


class _Stretch:
    """Verdicts from a position on, as far as somebody has looked."""

    def __init__(self, verdicts: Verdicts, begin: int) -> None:
        self.fates = Fates(begin)
        self.error: errors.VarlogError | None = None
        self._verdicts = verdicts
        self._waiting: dict[asyncio.Future[Fate | None], tuple[Key, int]] = {}
        self._feed = verdicts.feed(begin, None, self._on_chunk, self._on_stopped)

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    def leads_to(self, after: int) -> bool:
        """Whether it has all that comes after a position, or is just there."""
        return self.error is None and self.fates.begin <= after + 1 <= self.fates.position

    async def find(self, key: Key, upto: int) -> Fate | None:
        """The fate of a transaction that it leads to; None if there is no verdict up to a position."""
        self.fates.watch(*key)
        found = self.fates.fate(*key)
        waiting: asyncio.Future[Fate | None] = self._verdicts.loop.create_future()
        try:
            if found is None and self.fates.position <= upto:
                self._waiting[waiting] = key, upto
                self._feed.resume()
                found = await waiting
        finally:
            self._waiting.pop(waiting, None)
            if not any(key == other for other, _ in self._waiting.values()):
                self.fates.forget(*key)
            self._rest(0.0 if found is not None else LINGER)
        return found

    def close(self) -> None:
        self._feed.close()

    def _rest(self, linger: float) -> None:
        """Read no more than somebody waits for."""
        if not linger:
            self._pause()
        else:
            self._verdicts.loop.call_later(linger, self._pause)

    def _pause(self) -> None:
        if not self._waiting and not self._feed.ended:
            self._feed.pause()

    def _on_chunk(self, _feed: VerdictFeed, chunk: Chunk) -> None:
        self.fates.on_chunk(chunk)
        for waiting, (key, upto) in self._waiting.items():
            found = self.fates.fate(*key)
            if (found is not None or self.fates.position > upto) and not waiting.done():
                waiting.set_result(found)

    def _on_stopped(self, _feed: VerdictFeed, error: errors.VarlogError | None) -> None:
        if isinstance(error, errors.Lost):  # verdicts with it
            self.fates.pass_to(error.end)
            try:
                self._feed = self._verdicts.feed(self.fates.position, None, self._on_chunk, self._on_stopped)
                return
            except errors.VarlogError as refusal:
                error = refusal
        self.error = error if error is not None else errors.Closed("the log was closed")
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(copy(self.error))


class Wait:
    """How long a transaction holds up this client's readers."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.is_asked = False
        """Whether the register was asked how old it is."""


class Verdicts:
    """See the module's text. Of one client's topic."""

    def __init__(
        self,
        session: Session,
        tpid: TopicID,
        chained: Chained | None,
        tail: AskTail,
        append: Append,
        register: Callable[[float], Awaitable[Transactions]],
        timeout: float,
    ) -> None:
        self.loop = session.loop
        self.timeout = timeout
        self._session = session
        self._tpid = tpid
        self._chained = chained
        self.tail = tail
        self._append = append
        self._register = register
        self._waits: OrderedDict[Key, Wait] = OrderedDict()
        self._stretches: list[_Stretch] = []

    def feed(
        self,
        begin: int,
        end: int | None,
        take: Callable[[VerdictFeed, Chunk], None],
        stopped: Callable[[VerdictFeed, errors.VarlogError | None], None],
    ) -> VerdictFeed:
        return VerdictFeed(self._session, self._tpid, begin, end, self._chained, take, stopped)

    async def pronounce(self, verdict: Verdict, timeout: float | None) -> GLSN:
        """Append a verdict; returns where it is, which says nothing of whether it is the first."""
        entry = encode_verdict(verdict)
        appended = await self._append(Tagged([entry], int(BatchFlag.CONTROL)), len(entry), timeout)
        return appended.glsn

    async def fate(self, txid: TransactionID, after: GLSN, upto: int | None, deadline: float) -> Fate | None:
        """The first verdict on a transaction; None if there is none up to a position, or up to a tail asked for now.
        Raises `Trimmed` if not all of that can be read any more."""
        if upto is None:
            upto = await self.tail(timeout=max(1e-3, deadline - self.loop.time()))
        stretch = self._stretch(after)
        try:
            async with asyncio.timeout_at(deadline):
                return await stretch.find((txid, after), upto)
        except TimeoutError:
            raise errors.DeadlineExceeded(
                f"verdicts on transaction {txid} were read up to {stretch.fates.position - 1}, not up to {upto}, in "
                "time; see `varlog status` for nodes that are down"
            ) from None

    async def at(self, glsn: int, deadline: float) -> Verdict | None:
        """The verdict that is at a position; None if there is none. Raises `Trimmed` if it can no longer be read."""
        found: asyncio.Future[Verdict | None] = self.loop.create_future()

        def take(_feed: VerdictFeed, chunk: Chunk) -> None:
            if not found.done():
                found.set_result(verdict_of(chunk.stored[6]))

        def stopped(_feed: VerdictFeed, error: errors.VarlogError | None) -> None:
            if not found.done():
                found.set_exception(copy(error) if error is not None else errors.Closed("the log was closed"))

        feed = self.feed(glsn, glsn + 1, take, stopped)
        try:
            async with asyncio.timeout_at(deadline):
                return await found
        except TimeoutError:
            raise errors.DeadlineExceeded(
                f"the verdict at {glsn} was not read in time; see `varlog status` for nodes that are down"
            ) from None
        finally:
            feed.close()

    def wait(self, key: Key, since: float) -> Wait:
        """From when on a transaction has held a reader; what is said now, if it is the first."""
        wait = self._waits.setdefault(key, Wait(since))
        self._waits.move_to_end(key)
        if len(self._waits) > KEPT_WAITS:
            self._waits.popitem(last=False)
        return wait

    async def age(self, held: Held) -> float:
        """How many seconds ago a transaction was begun. One that the register does not know is over."""
        register = await self._register(self.loop.time() + self.timeout)
        return next((one.age / 1e3 for one in register.open if one.txid == held.mark.txid), held.expiry)

    def _stretch(self, after: int) -> _Stretch:
        kept = [stretch for stretch in self._stretches if stretch.error is None]
        found = max((s for s in kept if s.leads_to(after)), key=lambda s: s.fates.position, default=None)
        if found is None:
            found = _Stretch(self, after + 1)
        else:
            kept.remove(found)
        idle = [stretch for stretch in kept if stretch.is_idle]
        for stretch in idle[: max(0, len(idle) - KEPT_STRETCHES + 1)]:
            stretch.close()
            kept.remove(stretch)
        self._stretches = [*kept, found]
        return found


class Reader(Protocol):
    """Who is held, and reads on as far as it may."""

    def ahead(self, position: int) -> list[Chunk]: ...

    @property
    def reads_on(self) -> bool: ...


class Holding:
    """What a reader is held by, and what is done that it may go on. `news` is called when it may, or with why it
    cannot."""

    def __init__(self, verdicts: Verdicts, begin: int, reader: Reader, news: News) -> None:
        self.committed = Committed(begin)
        self._topic = verdicts
        self._reader = reader
        self._news = news
        self._feed: VerdictFeed | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._progress = asyncio.Event()

    def explain(self) -> errors.TransactionOpen:
        """Why nothing comes."""
        held = self.committed.held
        assert held is not None, "asked only while it is"
        return errors.TransactionOpen(
            f"position {held.glsn} is of transaction {held.mark.txid}, which is not decided yet; it expires after "
            f"{held.expiry:g} s, unless it is committed or aborted (`varlog txn abort`) before"
        )

    def begin(self) -> None:
        """The reader is held."""
        if (held := self.committed.held) is not None:
            self._await(self._topic.wait(held.key, held.since))
        self.go_on()

    def _await(self, wait: Wait) -> None:
        """Come back when the transaction is due, or when it is time to ask whether it is."""
        self.committed.held_since(wait.since)
        due_at = self.committed.due_at()
        if due_at is not None and self._timer is None:
            at = due_at if wait.is_asked else min(due_at, wait.since + ASK_AFTER)
            self._timer = self._topic.loop.call_at(at, self._on_due, wait)

    def go_on(self) -> None:
        """Look through what was read ahead, and have more read; called whenever there may be something new."""
        self._progress.set()
        committed = self.committed
        if committed.held is None:
            return
        brings_more = self._look_ahead()
        look = committed.look
        if look is None:
            self._done()
            self._news(None)
            return
        if look.end is not None or not brings_more:
            self._read(look.begin, look.end)
        if (self._expiring is None or self._expiring.done()) and committed.wants_tail(self._topic.loop.time()):
            self._expiring = self._topic.loop.create_task(self._expire())

    def _look_ahead(self) -> bool:
        """Whether what is still wanted comes to the reader anyway."""
        look = self.committed.look
        if look is None or look.end is not None:
            return False
        try:
            for chunk in self._reader.ahead(look.begin):
                self.committed.on_chunk(chunk)
        except errors.VarlogError:
            return False  # it is damaged; the reader finds out when it comes there, and until then others bring it
        return self._reader.reads_on

    def _read(self, begin: GLSN, end: GLSN | None) -> None:
        feed = self._feed
        if feed is not None and not feed.ended and feed.end == end and feed.position == begin:
            feed.resume()
            return
        if feed is not None:
            feed.close()
            self._feed = None
        try:
            self._feed = self._topic.feed(begin, end, self._on_chunk, self._on_stopped)
        except errors.VarlogError as error:  # the client was closed, or has too much under way
            self._fail(error)

    def _fail(self, error: errors.VarlogError) -> None:
        self.close()
        self._news(error)

    def _on_chunk(self, feed: VerdictFeed, chunk: Chunk) -> None:
        if feed is self._feed and self.committed.held is not None:
            self.committed.on_chunk(chunk)
            self.go_on()

    def _on_stopped(self, feed: VerdictFeed, error: errors.VarlogError | None) -> None:
        if feed is not self._feed:
            return  # another one has taken its place
        committed = self.committed
        self._feed = None
        if isinstance(error, errors.Trimmed):
            committed.on_trimmed(error.first)
            if committed.trimmed is not None:
                self._fail(errors.Trimmed(committed.trimmed))
                return
        elif isinstance(error, errors.Lost):
            committed.on_lost(error.end)
        elif error is not None:
            self._fail(error)
            return
        self.go_on()

    # Expiry

    def _on_due(self, wait: Wait) -> None:
        self._timer = None
        held, loop = self.committed.held, self._topic.loop
        if held is not None and not wait.is_asked and not self.committed.is_due(loop.time()):
            wait.is_asked = True
            self._asking = loop.create_task(self._ask(wait, held))
        self.go_on()

    async def _ask(self, wait: Wait, held: Held) -> None:
        """Wait for what is left of the transaction's time, and not for all of it once more."""
        with suppress(errors.VarlogError):
            age = await self._topic.age(held)
            wait.since = min(wait.since, self._topic.loop.time() - age)
        self._asking = None
        self._await(wait)
        self.go_on()

    async def _expire(self) -> None:
        """Have what holds the reader expire, by a verdict, unless there is one."""
        committed, loop = self.committed, self._topic.loop
        held = committed.held
        while held is not None and self._is_held_by(held.key) and not committed.is_decided:
            self._progress.clear()
            try:
                if committed.wants_tail(loop.time()):
                    committed.on_tail(held.key, await self._topic.tail(timeout=self._topic.timeout))
                verdict = committed.wants_verdict(loop.time())
                if verdict is not None:
                    committed.on_pronounced(loop.time())
                    # What was looked through so far has no verdict; now all up to this one has to be.
                    committed.on_tail(held.key, await self._topic.pronounce(verdict, self._topic.timeout))
            except errors.VarlogError:
                pass  # it is tried again as long as somebody waits
            try:
                async with asyncio.timeout(PRONOUNCE_AGAIN):
                    await self._progress.wait()
            except TimeoutError:
                pass

    def _is_held_by(self, key: Key) -> bool:
        held = self.committed.held
        return held is not None and held.key == key

    def _done(self) -> None:
        if self._feed is not None:
            self._feed.pause()
        self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = self._expiring, self._asking
        self._expiring = self._asking = None
        for task in tasks:
            if task is not None and not self._topic.loop.is_closed():
                task.cancel()

    def close(self) -> None:
        """Nobody reads any more."""
        if self._feed is not None:
            self._feed.close()
        self._stop()
