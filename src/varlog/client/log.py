"""`connect` and `Log`: what an application uses of a topic.

    async with varlog.connect("varlog-data") as log:
        result = await log.append(b"hello")
        entry = await log.read(result.glsn)

Every call has a deadline. A call ends with its result or with an error of `varlog.errors`, which knows whether what was
asked for may have happened (`happened`). Calls may be cancelled at any await: what a cancelled append had begun happens
once or not at all, and everything else goes on undisturbed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from varlog import batch, errors, limits
from varlog.client.archives import Archives
from varlog.client.arguments import (
    check_affinity,
    check_end,
    check_fill_after,
    check_position,
    check_text,
    check_timeout,
    check_timestamp,
)
from varlog.client.chains import ChainAppends, ChainTopic
from varlog.client.connecting import Connecting, open_session
from varlog.client.entries import AppendResult, Entry
from varlog.client.finding import find_time
from varlog.client.reading import Batches, Feed, Subscription, filled, read_at_tail
from varlog.client.session import Session
from varlog.client.stability import settled_to
from varlog.client.transactions import Transaction, Transactions
from varlog.client.verdicts import Verdicts
from varlog.client.writing import Appender, Appends, Pool, StreamAppends, checked, fill, prepared
from varlog.core.fates import Fate
from varlog.core.messages import (
    CommittedName,
    Decided,
    GetTail,
    Metadata,
    OpenTransaction,
    StreamInfo,
    Tail,
    TopicInfo,
    TrimTopic,
)
from varlog.types import GLSN, Ordering
from varlog.wire.tls import TlsFiles

if TYPE_CHECKING:
    from varlog.client.writing import Entries

DEFAULT_TIMEOUT: Final = 10.0
DEFAULT_WINDOW: Final = 256


class Log:
    """One topic of a cluster. Made by `connect`; close it, or use it as an async context manager."""

    def __init__(
        self, session: Session, topic: TopicInfo, timeout: float, fill_after: float = limits.FILL_AFTER_SECONDS
    ) -> None:
        self._session = session
        self._name = topic.name
        self._tpid = topic.tpid
        self._timeout = timeout
        self._time = session.now
        self._chained = ChainTopic(session, topic, fill_after) if topic.ordering is Ordering.SEQUENCER else None
        self._archives = Archives(session, topic.tpid, topic.name, timeout)
        self._ended: errors.VarlogError | None = None
        self._appends: Appends
        self._pool: Pool | ChainAppends
        self._stable = 0
        """The greatest that was told."""
        self._transactions = Transactions(self)
        self._verdicts = Verdicts(
            session, topic.tpid, self._chained, self.tail, self._append, self._transactions.register, timeout
        )
        self._fate = self._verdicts.fate
        if self._chained is not None:
            self._appends = self._pool = self._chained.appends
            self._pool.on_end = self._abandon
        else:
            self._appends = appends = StreamAppends(session, topic.tpid, topic.name)
            self._pool = session.enroll(lambda _: Pool(appends), self._abandon)

    # Appending

    async def append(self, data: batch.Buffer, *, timeout: float | None = None) -> AppendResult:
        """Append one entry and wait until it is durable on all replicas and has its position."""
        if type(data) is not bytes:
            data = checked(data)
        size = len(data)
        now = self._time()
        deadline = now + (self._timeout if timeout is None else check_timeout(timeout))
        appends = self._appends
        if not appends.room.try_take(size):
            await appends.take(appends.room, size, deadline)
            now = self._time()
        return await appends.submit(self._pool.next(), [data], size, deadline, now)

    async def append_batch(self, entries: Entries, *, timeout: float | None = None) -> AppendResult:
        """Append entries together: they get consecutive positions, all of them or none.

        `entries` are a sequence of bytes, or an Arrow array of type binary or large_binary without nulls.

        >>> import asyncio, tempfile, varlog
        >>> async def main() -> None:
        ...     with tempfile.TemporaryDirectory() as path:
        ...         async with varlog.embedded(path) as log:
        ...             result = await log.append_batch([b"one", b"two", b"three"])
        ...             print(result.glsn, result.count, result.end)
        >>> asyncio.run(main())
        1 3 4
        """
        return await self._append(*prepared(entries), timeout)

    async def append_fill(self, count: int, *, timeout: float | None = None) -> AppendResult:
        """Append `count` consecutive positions that hold nothing, all of them or none: readers pass over them.

        This is for who writes a log anew and has nothing for some of its positions. One call fills at most
        `limits.MAX_BATCH_ENTRIES`.

        >>> import asyncio, tempfile, varlog
        >>> async def main() -> None:
        ...     with tempfile.TemporaryDirectory() as path:
        ...         async with varlog.embedded(path) as log:
        ...             await log.append(b"one")
        ...             await log.append_fill(98)
        ...             await log.append(b"hundred")
        ...             print([(entry.glsn, entry.data) async for entry in log.subscribe(end=101)])
        >>> asyncio.run(main())
        [(1, b'one'), (100, b'hundred')]
        """
        return await self._append(fill(count), 0, timeout)

    async def _append(self, entries: Any, size: int, timeout: float | None) -> AppendResult:
        now = self._time()
        deadline = now + (self._timeout if timeout is None else check_timeout(timeout))
        appends = self._appends
        if not appends.room.try_take(size):
            await appends.take(appends.room, size, deadline)
            now = self._time()
        return await appends.submit(self._pool.next(), entries, size, deadline, now)

    def appender(
        self,
        *,
        window: int = DEFAULT_WINDOW,
        codec: batch.Codec = batch.Codec.NONE,
        timeout: float | None = None,
    ) -> Appender:
        """Append in a pipeline: up to `window` batches are under way at once, in the order they were sent.

        `codec` compresses batches; `timeout` is for each of them.
        """
        return Appender(self._appends, window, codec, self._timeout if timeout is None else check_timeout(timeout))

    # Transactions

    async def begin(
        self,
        name: str,
        *,
        number: int | None = None,
        token: str | None = None,
        expires: float = limits.TRANSACTION_SECONDS,
        timeout: float | None = None,
    ) -> Transaction:
        """Begin a transaction, and end every earlier one of the same name that is open: it cannot commit any more.

        With a `number`, which grows from one to the next, a name is exactly-once: what was committed under this number
        or a greater one raises `AlreadyCommitted`. Who begins with the same name, number and `token` shares the
        transaction. After `expires` seconds anybody may end it.
        """
        return await self._transactions.begin(name, number, token, expires, self._deadline(timeout))

    @asynccontextmanager
    async def transaction(
        self, name: str, *, number: int | None = None, expires: float = limits.TRANSACTION_SECONDS
    ) -> AsyncIterator[Transaction]:
        """The same as a block: it commits at its end, or aborts if the block raises.

        >>> import asyncio, tempfile, varlog
        >>> async def main() -> None:
        ...     with tempfile.TemporaryDirectory() as path:
        ...         async with varlog.embedded(path) as log:
        ...             async with log.transaction("import") as transaction:
        ...                 await transaction.append_batch([b"one", b"two"])
        ...                 await transaction.append(b"three")
        ...             print([batch.payloads() async for batch in log.scan()])
        >>> asyncio.run(main())
        [[b'one', b'two'], [b'three']]
        """
        transaction = await self.begin(name, number=number, expires=expires)
        try:
            yield transaction
        except BaseException as error:
            await transaction.leave_block(error)
            raise
        await transaction.leave_block(None)

    async def transactions(self, *, timeout: float | None = None) -> list[OpenTransaction]:
        """The transactions of the topic that are not known to have ended."""
        return list((await self._transactions.register(self._deadline(timeout))).open)

    async def end_transaction(self, txid: int, reason: str = "", *, timeout: float | None = None) -> Fate | None:
        """Abort somebody's transaction. Returns what became of it, as the log has it: it may have been committed just
        before. None if it was trimmed since."""
        return await self._transactions.end(txid, reason, self._deadline(timeout))

    async def transaction_names(self, *, timeout: float | None = None) -> list[CommittedName]:
        """The numbers that were last committed, by name."""
        return list((await self._transactions.register(self._deadline(timeout), names=True)).names)

    async def forget_transactions(self, name: str, *, timeout: float | None = None) -> None:
        """Forget which number was last committed under a name: its numbers begin anew."""
        await self._transactions.forget(name, self._deadline(timeout))

    # Reading

    async def read(self, glsn: int, *, timeout: float | None = None, uncommitted: bool = False) -> Entry:
        """The entry at a position.

        Raises `Unwritten` beyond the tail, `Trimmed` below the first position that is left, unless an archive has it,
        `Filled` where there is no entry, or one of a transaction that was not committed; `Lost` where every copy is
        gone and an operator has said so. An entry of a transaction that is not decided yet is waited for, at most until
        `TransactionOpen`; with `uncommitted` it is returned whatever becomes of it.
        """
        glsn = check_position("glsn", glsn)
        limit = self._timeout if timeout is None else check_timeout(timeout)
        begun = self._time()
        if self._chained is not None:
            try:
                entry = await read_at_tail(
                    self._session, self._chained.reads, glsn, begun, begun + limit, uncommitted=uncommitted
                )
            except errors.Trimmed:  # the archive may have it
                entry = None
            if entry is not None:
                return entry
        elif glsn > self._known_tail and glsn > (tail := await self.tail(timeout=limit)):
            raise errors.Unwritten(f"nothing is written at {glsn} yet: the tail is {tail}")
        left = max(0.0, begun + limit - self._time())
        batches = self._batches(glsn, glsn + 1, left, reply_bytes=1, uncommitted=uncommitted)
        try:
            found = await anext(batches, None)
        finally:
            batches.close()
        if found is None:
            raise filled(glsn)
        return next(iter(found))

    @property
    def _known_tail(self) -> int:
        topic = self._session.routing.topic(self._tpid)
        return max(self._appends.tail, topic.hwm if topic is not None else 0)

    def scan(
        self,
        begin: int = 1,
        end: int | None = None,
        *,
        timeout: float | None = None,
        affinity: int | None = None,
        uncommitted: bool = False,
    ) -> Batches:
        """The entries from `begin` up to `end` (exclusive) as batches; without `end`, up to the present tail, or to
        where the first transaction began that is not decided yet (`stable`).

        `timeout` is how long to wait for the next batch. Where the log has lost entries it ends with `Lost`, which says
        where to go on. `affinity` says which replica of each log stream is asked first: several readers with numbers
        that follow each other spread over the replicas. Without it that is left to chance.

        What is committed is read, and nothing else: an entry of a transaction that is not decided yet is waited for, at
        most until `TransactionOpen`. With `uncommitted`, all that was written is read, up to the tail; of what is
        archived, no more than was committed is left.

        >>> import asyncio, tempfile, varlog
        >>> async def main() -> None:
        ...     with tempfile.TemporaryDirectory() as path:
        ...         async with varlog.embedded(path) as log:
        ...             await log.append_batch([b"one", b"two"])
        ...             await log.append(b"three")
        ...             print([batch.payloads() async for batch in log.scan()])
        >>> asyncio.run(main())
        [[b'one', b'two'], [b'three']]
        """
        begin, end = check_position("begin", begin), check_end(end)
        limit = self._timeout if timeout is None else check_timeout(timeout)
        affinity = check_affinity(affinity)

        async def find_tail() -> int:
            return await (self.tail if uncommitted else self.stable)(timeout=limit) + 1

        find_end = find_tail if end is None else None
        return self._batches(begin, end, limit, affinity=affinity, find_end=find_end, uncommitted=uncommitted)

    def subscribe(self, begin: int = 1, *, end: int | None = None, uncommitted: bool = False) -> Subscription:
        """The entries from `begin` on, one after another as they are written; up to `end` (exclusive) if given.

        A gap that nothing can fill is never passed over in silence: it ends with `Lost`, whose `end` is where to
        subscribe again. Where a transaction is not decided yet, it waits; one that nobody decides expires. With
        `uncommitted` it waits for none, and gives everything that was written.
        """
        begin, end = check_position("begin", begin), check_end(end)
        return Subscription(self._batches(begin, end, None, uncommitted=uncommitted))

    async def find_time(self, timestamp: int, *, timeout: float | None = None) -> int:
        """The first position whose timestamp is not before `timestamp`, in microseconds since 1970; the one after the
        tail if there is none. Every entry from there on is as late or later.

        Of what was trimmed only an archive can tell. Without one, the answer is never below `first()`.

        >>> import asyncio, tempfile, varlog
        >>> async def main() -> None:
        ...     with tempfile.TemporaryDirectory() as path:
        ...         async with varlog.embedded(path) as log:
        ...             for number in range(100):
        ...                 await log.append(b"%d" % number)
        ...             noted = await log.read(42)
        ...             print(await log.find_time(noted.timestamp))
        >>> asyncio.run(main())
        42
        """
        timestamp = check_timestamp(timestamp)
        deadline = self._deadline(timeout)
        hwm = await self.tail(timeout=timeout)
        tail = replace(await self._ask_tail(timeout), hwm=GLSN(hwm))
        return await find_time(timestamp, tail, self._time_at, self._archives, deadline)

    async def _time_at(self, glsn: int, end: int, deadline: float) -> int | None:
        """The time of a position, or of the first after it that has one; None if there is none before `end`."""
        for begin, stop, most in ((glsn, glsn + 1, 1), (glsn + 1, end, limits.CLIENT_SCAN_BYTES)):
            feed = self._feed(begin, stop, reply_bytes=most, with_fill=True)
            try:
                while (found := await feed.next(max(0.0, deadline - self._time()))) is not None:
                    if found.time:
                        return found.time
            finally:
                feed.close()
        return None

    async def tail(self, *, timeout: float | None = None) -> int:
        """The last position that is written; the one before `first()` if none is, which is 0 unless the topic was made
        to begin later. Every append acknowledged before the call is counted.

        Where a sequencer orders the topic, that is the last position it had given out, and the call waits until
        everything up to there is written; what nobody writes is filled after the interval (`connect(fill_after=)`)."""
        return (await self._settled_tail(timeout)).hwm

    async def _settled_tail(self, timeout: float | None) -> Tail:
        if self._chained is None:
            return await self._ask_tail(timeout)
        tail = await self._chained.settled(self._deadline(timeout))
        self._appends.tail = max(self._appends.tail, tail.hwm)
        return tail

    async def stable(self, *, timeout: float | None = None) -> int:
        """The last position up to which everything is decided: the tail, or where the first transaction began that is
        not decided yet. What is up to there, is read the same by everybody, for ever. It never goes back."""
        deadline = self._deadline(timeout)
        tail = await self._settled_tail(timeout)
        stable: int = tail.hwm
        if tail.transactions:
            stable = await settled_to(stable, self._transactions, self._fate, deadline)
        self._stable = max(self._stable, stable)
        return self._stable

    async def first(self, *, timeout: float | None = None) -> int:
        """The first position that is not trimmed; it is written if it is not beyond the tail. See `earliest` for what
        an archive has."""
        return (await self._ask_tail(timeout)).trim + 1

    async def earliest(self, *, timeout: float | None = None) -> int:
        """The position from which on everything can be read: `first()`, or where the topic's archive begins if that
        reaches up to the log."""
        deadline = self._deadline(timeout)
        first = await self.first(timeout=timeout)
        archive = await self._archives.attached(first - 1, deadline) if first > 1 else None
        return archive.begin if archive is not None and archive.begin < first <= archive.end else first

    async def _ask_tail(self, timeout: float | None) -> Tail:
        answer = await self._session.asking.ask(lambda request: GetTail(request, self._tpid), self._deadline(timeout))
        assert isinstance(answer, Tail)
        self._appends.tail = max(self._appends.tail, answer.hwm)
        self._session.routing.note_trim(self._tpid, answer.trim)
        return answer

    # Housekeeping

    async def trim(self, glsn: int, *, timeout: float | None = None) -> int:
        """Delete every entry up to `glsn`, included; returns up to where the log is trimmed now. At most the tail, and
        nothing of a transaction that is open: `TransactionOpen`."""
        glsn = check_position("glsn", glsn)
        deadline = self._deadline(timeout)
        if self._chained is not None and glsn > self._appends.tail and glsn > (tail := await self._settled(deadline)):
            raise errors.InvalidArgument(f"{glsn} is beyond the tail, which is {tail}: nothing is there to be trimmed")
        try:
            answer = await self._ask_trim(glsn, deadline)
        except errors.TransactionOpen:  # unless it has ended, or expired
            await self._transactions.clear(glsn, deadline)
            answer = await self._ask_trim(glsn, deadline)
        self._session.routing.note_trim(self._tpid, GLSN(answer.value))
        return answer.value

    async def _ask_trim(self, glsn: int, deadline: float) -> Decided:
        answer = await self._session.asking.ask(
            lambda request: TrimTopic(request, self._tpid, GLSN(glsn)), deadline, changes=True
        )
        assert isinstance(answer, Decided)
        return answer

    # What only a sequencer's topic has

    async def fill(self, glsn: int, count: int = 1, *, timeout: float | None = None) -> None:
        """Write junk at positions that were given out and that nobody writes: readers pass over them. All of them are
        on every replica then; one that holds an entry keeps it, and is completed if it was half-written: `Written`.

        Readers do this by themselves, after the interval (`connect(fill_after=)`). Who writes at such a position just
        now, slowly, loses it and gets another one. Positions that were not given out are refused: `Unwritten`.
        """
        glsn = check_position("glsn", glsn)
        count = fill(count).count
        await self._sequenced("fill").fill(glsn, count, self._deadline(timeout))

    async def peek(self, *, timeout: float | None = None) -> int:
        """The last position that the sequencer has given out. What is there may not be written yet: see `tail`."""
        _, glsn = await self._sequenced("peek").peek(self._deadline(timeout))
        return glsn

    async def seal(self, *, timeout: float | None = None) -> int:
        """End the topic's epoch and begin the next one, with all replicas that answer; returns it. Appends and reads
        go on in that one by themselves. Clients do this when they meet a failure; it may be done at any time."""
        return await self._sequenced("seal").seal(self._deadline(timeout))

    def _sequenced(self, call: str) -> ChainTopic:
        if self._chained is None:
            raise errors.WrongOrdering(
                f"{call}() is for topics that a sequencer orders; in topic {self._name!r} commits make the order"
            )
        return self._chained

    async def _settled(self, deadline: float) -> int:
        return await self.tail(timeout=max(1e-3, deadline - self._time()))

    # The client's state

    async def refresh(self, *, timeout: float | None = None) -> None:
        """Read the cluster's metadata anew."""
        await self._session.refreshed(self._deadline(timeout))

    @property
    def name(self) -> str:
        return self._name

    @property
    def metadata(self) -> Metadata:
        """What is known of the cluster; it may be old, see `refresh`."""
        assert self._session.metadata is not None, "a log is made when metadata is there"
        return self._session.metadata

    @property
    def topic(self) -> TopicInfo:
        """What is known of this topic."""
        for topic in self.metadata.topics:
            if topic.tpid == self._tpid:
                return topic
        raise errors.UnknownTopic(f"topic {self._name!r} was removed")

    @property
    def log_streams(self) -> list[StreamInfo]:
        """What is known of its log streams."""
        return self._session.routing.streams(self._tpid)

    async def close(self) -> None:
        """End what is under way with `Closed`, and all connections."""
        self._time()
        try:
            await self._transactions.close()
        finally:
            await self._session.close()
        if self._chained is not None:
            await self._chained.close()

    def _abandon(self, error: errors.VarlogError) -> None:
        self._ended = error
        self._appends.room.close(error)
        self._appends.abandon(error)
        self._archives.abandon(error)

    def _batches(
        self,
        begin: int,
        end: int | None,
        timeout: float | None,
        *,
        find_end: Callable[[], Awaitable[int]] | None = None,
        reply_bytes: int = limits.CLIENT_SCAN_BYTES,
        affinity: int | None = None,
        uncommitted: bool = False,
    ) -> Batches:
        async def until() -> int | None:
            found = end if find_end is None else await find_end()
            return None if found is None else max(begin, found)

        def live(begin: int, end: int | None) -> Feed:
            return self._feed(begin, end, reply_bytes=reply_bytes, affinity=affinity, uncommitted=uncommitted)

        return Batches(begin, until, live, self._archives, timeout)

    def _feed(
        self,
        begin: int,
        end: int | None,
        *,
        reply_bytes: int,
        affinity: int | None = None,
        with_fill: bool = False,
        uncommitted: bool = False,
    ) -> Feed:
        self._time()
        if self._ended is not None:
            raise copy(self._ended)
        return Feed(
            self._session,
            self._tpid,
            begin,
            end,
            reply_bytes,
            affinity,
            with_fill=with_fill,
            chained=self._chained,
            verdicts=None if uncommitted else self._verdicts,
        )

    def _deadline(self, timeout: float | None) -> float:
        return self._time() + (self._timeout if timeout is None else check_timeout(timeout))

    async def __aenter__(self) -> Log:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Log {self._name!r} at {', '.join(self._session.cluster.addresses)}>"


def connect(
    cluster: str | Path | None = None,
    *,
    topic: str | None = None,
    cid: int | None = None,
    secret_file: str | Path | None = None,
    tls: TlsFiles | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    fill_after: float = limits.FILL_AFTER_SECONDS,
) -> Connecting[Log]:
    """Connect to a topic of a cluster: `async with varlog.connect(...) as log`, or `log = await varlog.connect(...)`.

    `cluster` is the path of a cluster file or of the directory that holds one, or "host:port[,host:port]" of metadata
    repositories (then `secret_file` has to be given, and `tls` if the cluster uses TLS). Without it `$VARLOG_CLUSTER`
    is used, or else `./varlog-data`. `topic` is "log" unless the cluster file names another. `timeout` is for
    connecting, and for every call that is not given its own. `fill_after` is for topics that a sequencer orders: so
    many seconds this client's readers wait for a position that was given out and is not written, before they fill it.

    >>> import asyncio, tempfile, varlog
    >>> async def main() -> None:
    ...     with tempfile.TemporaryDirectory() as path:
    ...         async with varlog.embedded(path), varlog.connect(path, timeout=5) as log:
    ...             result = await log.append(b"hello")
    ...             print(result.glsn, result.replicas, (await log.read(result.glsn)).data)
    >>> asyncio.run(main())
    1 3 b'hello'
    """
    limit, interval = check_timeout(timeout), check_fill_after(fill_after)
    name = check_text("topic", topic) if topic is not None else None

    async def make() -> Log:
        session = await open_session(cluster, cid, secret_file, limit, tls)
        try:
            found = _find_topic(session, session.cluster.topic if name is None else name)
            return Log(session, found, limit, interval)
        except BaseException:
            await session.close()
            raise

    return Connecting(make)


def _find_topic(session: Session, name: str) -> TopicInfo:
    topics = {topic.name: topic for topic in session.metadata.topics} if session.metadata is not None else {}
    if name not in topics:
        known = ", ".join(map(repr, topics)) or "none at all"
        raise errors.UnknownTopic(f"there is no topic {name!r}; the cluster has {known}")
    return topics[name]
