"""Appends: from a call to a machine of the core, and from its outcome back to the call.

`Appends` is what the two orderings have in common; what is the sequencer's is in `chains`. In the other one `Pool` has
one writer for each log stream that takes appends and gives them work in turn. A writer whose log stream is avoided, or
that gets no answers, is passed over as long as another one is well, and so is one that had to leave its log stream
until it is back there (M6, M11); what such a writer has under way it goes on with.

Everything under way counts against the client's `Room`, in bytes and number, until its outcome is known, also when the
caller no longer waits for it.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from varlog import batch, errors, limits
from varlog.client.arguments import check_codec, check_whole, check_window
from varlog.client.diagnosis import explain
from varlog.client.entries import AppendResult
from varlog.client.room import Room
from varlog.client.session import Session
from varlog.core.address import Address, node_address
from varlog.core.appending import Outcome, Rejected, Writer, WriterOptions
from varlog.core.content import Fill
from varlog.core.messages import GetInfo, Message
from varlog.core.routing import takes_appends
from varlog.types import GLSN, LogStreamID, StorageNodeID, TopicID, WriterID

if TYPE_CHECKING:
    import pyarrow as pa

    Entries: TypeAlias = Sequence[batch.Buffer] | pa.Array | pa.ChunkedArray

WINDOW: Final = limits.DEDUP_SEQUENCES_PER_WRITER
SILENT_SECONDS: Final = 1.0
"""If a writer has heard nothing for so long, its replicas are asked how they are."""
ANSWER_SECONDS: Final = 0.4
"""A node that takes longer to say how it is counts as unreachable."""
SAME_MOMENT: Final = 0.02

Given: TypeAlias = tuple[asyncio.Future[AppendResult], int]
"""What a lane is given as an append's id: who waits for its result, and how many bytes it has."""


def new_writer_id() -> WriterID:
    """One that nobody else has."""
    return WriterID(secrets.randbits(63) + 1)


def timestamp() -> int:
    """The wall clock, in microseconds."""
    return time.time_ns() // 1000


def _unknown(why: errors.VarlogError) -> errors.Unknown:
    """What is told of an append that was sent and not answered, when it ends because of something else."""
    unknown = errors.Unknown(f"the append may have happened, or may yet: {why}")
    unknown.__cause__ = why
    return unknown


class Lane(Protocol):
    """What takes appends, one after another, and sees to them."""

    @property
    def wants_metadata(self) -> bool: ...

    def append(self, id_: Any, entries: Any, deadline: float, now: float) -> None: ...


class Appends(ABC):
    """The appends of one client on one topic that are under way, whichever lane has them."""

    def __init__(self, session: Session, tpid: TopicID, name: str) -> None:
        self.session = session
        self.tpid = tpid
        self.name = name
        self.room = Room(limits.CLIENT_BYTES_IN_FLIGHT, limits.CLIENT_APPENDS_IN_FLIGHT)
        self.tail = GLSN(0)
        """The greatest position that this client was told of."""
        self._create_future = session.loop.create_future
        self._explained: tuple[float, errors.VarlogError | None] = (0.0, None)

    @abstractmethod
    def lane(self, window: int, codec: batch.Codec, abandon: Callable[[errors.VarlogError], None]) -> Lane:
        """One more, for as many batches at once. `abandon` is called with why, when everything under way ends."""

    @abstractmethod
    def retire(self, lane: Lane) -> None:
        """One that has nothing under way is not needed any more."""

    @abstractmethod
    def _given_up(self) -> list[tuple[Given, bool]]:
        """Give up everything under way; returns what was given to the lanes, and whether it may have happened."""

    @abstractmethod
    def _find_reason(self) -> errors.VarlogError:
        """Why nothing is appended."""

    def send(self, address: Address, message: Message) -> bool:
        """Send to whoever has to do with an append."""
        # An append that is alone need not wait for others that would be sent together with it.
        send = self.session.send_now if self.room.items == 1 else self.session.send
        return send(address, message)

    async def take(self, room: Room, size: int, deadline: float) -> None:
        """Wait for room; if there is none in time, say also why what takes it up does not come forward."""
        try:
            await room.take(size, deadline)
        except errors.DeadlineExceeded as error:
            why = self.explain()
            if isinstance(why, errors.DeadlineExceeded):
                raise
            raise errors.VarlogError.of(why.code, f"{error}: {why}") from None

    def submit(self, lane: Lane, entries: Any, size: int, deadline: float, now: float) -> asyncio.Future[AppendResult]:
        """Begin an append for which room was taken. Entries that no log would take raise at once."""
        future = self._create_future()
        try:
            lane.append((future, size), entries, deadline, now)
        except BaseException:
            self.room.give_back(size)
            raise
        session = self.session
        if lane.wants_metadata:
            session.refresh()
        elif session.ticker is None:
            session.stir()
        return future

    def _settle(self, append: Given, outcome: Outcome) -> None:
        future, size = append
        self.room.give_back(size)
        if type(outcome) is AppendResult:
            if outcome[0] + outcome[1] > self.tail:
                self.tail = GLSN(outcome[0] + outcome[1] - 1)
            if not future.done():
                future.set_result(outcome)
        elif not future.done():
            future.set_exception(self._failure(outcome))

    def _failure(self, outcome: Outcome) -> errors.VarlogError:
        if isinstance(outcome, Rejected) and outcome.code != errors.DeadlineExceeded.code:
            return errors.VarlogError.of(outcome.code, "")
        why = self.explain()
        if isinstance(outcome, Rejected):
            return errors.VarlogError.of(why.code, f"nothing was appended in time: {why}")
        return _unknown(why)

    def explain(self) -> errors.VarlogError:
        """Why nothing is appended. Found once for all that fail in the same moment."""
        at, why = self._explained
        now = self.session.loop.time()
        if why is None or now - at > SAME_MOMENT:
            why = self._find_reason()
            self._explained = (now, why)
        return why

    def abandon(self, error: errors.VarlogError) -> None:
        """Nobody will tell what became of what is under way."""
        for (future, size), is_possible in self._given_up():
            self.room.give_back(size)
            if not future.done():
                is_told = error.happened is None or not is_possible
                future.set_exception(copy(error) if is_told else _unknown(error))


class StreamAppends(Appends):
    """Of a topic whose log streams order what they commit: a lane is a writer of the core."""

    def __init__(self, session: Session, tpid: TopicID, name: str) -> None:
        super().__init__(session, tpid, name)
        self._writers: set[Writer] = set()
        self._investigated = 0.0
        self._questioned: dict[StorageNodeID, float] = {}
        """When nodes were asked how they are: the first time since they last said."""

    def lane(self, window: int, codec: batch.Codec, abandon: Callable[[errors.VarlogError], None]) -> Writer:
        return self.writer(WriterOptions(window=window, codec=codec), abandon)

    def writer(self, options: WriterOptions, abandon: Callable[[errors.VarlogError], None]) -> Writer:
        """One more writer, enrolled in the session."""
        session = self.session
        writer = session.enroll(
            lambda new_request: Writer(
                self.tpid,
                session.routing,
                new_writer_id,
                new_request,
                timestamp,
                self.send,
                self._settle,
                options,
            ),
            abandon,
        )
        self._writers.add(writer)
        return writer

    def retire(self, lane: Lane) -> None:
        assert isinstance(lane, Writer), "it has no other lanes"
        self._writers.discard(lane)
        self.session.dismiss(lane)

    def _given_up(self) -> list[tuple[Given, bool]]:
        return [given for writer in self._writers for given in writer.abandon()]

    def _find_reason(self) -> errors.VarlogError:
        session = self.session
        if (silent := session.repositories_silent()) is not None:
            return silent
        infos = {snid: info for snid, (_, info) in session.infos.items()}
        return explain(self.tpid, session.routing, infos, self._unreached, session.manager_missing())

    def _unreached(self, snid: StorageNodeID) -> str | None:
        link = self.session.node(snid)
        if link is None:
            return "no address is known for it"
        if not link.connected and link.error is not None:
            return str(link.error)
        asked, silence = self._questioned.get(snid, 0.0), 0.0
        if asked > self._heard(snid):
            silence = self.session.loop.time() - asked
        return f"it has not answered for {silence:.1f} s" if silence >= ANSWER_SECONDS else None

    def _heard(self, snid: StorageNodeID) -> float:
        """When a node last said how it is."""
        return self.session.infos[snid][0] if snid in self.session.infos else 0.0

    def investigate(self, now: float) -> None:
        """Ask the replicas how they are, now and then, if a writer gets nowhere; if that goes on, look for the manager,
        who should do something about it."""
        session = self.session
        stuck = any(writer.has_nowhere or writer.silence(now) >= SILENT_SECONDS for writer in self._writers)
        if not stuck:
            if self._investigated:
                session.leave_manager()
                self._questioned.clear()
            self._investigated = 0.0
        elif now - self._investigated >= SILENT_SECONDS:
            if self._investigated:
                session.manager()
            self._investigated = now
            for snid in {snid for stream in session.routing.streams(self.tpid) for snid in stream.replicas}:
                if self._questioned.get(snid, 0.0) <= self._heard(snid):
                    self._questioned[snid] = now
                session.send(node_address(snid), GetInfo(session.asking.new_request()))


class Pool:
    """See the module's text. Takes part in the session for its own sake."""

    wants_metadata = False

    def __init__(self, appends: StreamAppends) -> None:
        self._appends = appends
        self._session = appends.session
        self._writers: dict[LogStreamID | None, Writer] = {}
        """By the log stream that each is at home in; one may be at home nowhere, and go wherever it can."""
        self._usable: list[Writer] = []
        self._turn = 0

    @property
    def outstanding(self) -> int:
        return 0

    def next(self) -> Writer:
        """The writer whose turn it is."""
        usable = self._usable
        self._turn = turn = self._turn + 1
        return usable[turn % len(usable)]

    def on_reply(self, reply: Any, now: float) -> None:
        """It asks nothing itself."""

    def on_connected(self, _snid: StorageNodeID, now: float) -> None:
        self._judge(now)

    def on_disconnected(self, _snid: StorageNodeID, now: float) -> None:
        self._judge(now)

    def on_metadata(self, now: float) -> None:
        if self._session.routing.topic(self._appends.tpid) is None:
            self._session.fail(errors.UnknownTopic(f"topic {self._appends.name!r} was removed"))
            return
        streams = {stream.lsid: stream for stream in self._session.routing.streams(self._appends.tpid)}
        for lsid, stream in streams.items():
            if takes_appends(stream):
                self._writer_at(lsid)
        for home, writer in list(self._writers.items()):
            if home not in streams and len(self._writers) > 1 and not writer.outstanding:
                self._appends.retire(self._writers.pop(home))
        self._judge(now)

    def _writer_at(self, home: LogStreamID | None) -> Writer:
        if home not in self._writers:
            self._writers[home] = self._appends.writer(WriterOptions(window=WINDOW, home=home), lambda _: None)
        return self._writers[home]

    def tick(self, now: float) -> None:
        self._judge(now)
        self._appends.investigate(now)

    def _judge(self, now: float) -> None:
        """Who is given work: those with the least trouble at home. One that has none goes home with the next. Where all
        are stuck, what is new does not queue up behind them, but goes to the first log stream that takes it."""
        routing = self._session.routing
        free = [(home, writer) for home, writer in self._writers.items() if not writer.is_stuck(now)]
        troubles: dict[Writer, int] = {}
        for home, writer in free:
            stream = routing.stream(home) if home is not None else None
            if stream is not None and takes_appends(stream):
                is_away = writer.outstanding and writer.log_stream != home
                troubles[writer] = routing.trouble(stream, now) + is_away
        least = min(troubles.values(), default=0)
        well = [writer for writer, trouble in troubles.items() if trouble == least]
        self._usable = well or [writer for _, writer in free] or [self._writer_at(None)]


def checked(data: Any) -> bytes:
    """One entry as bytes that cannot change any more."""
    try:
        return memoryview(data).tobytes()
    except TypeError as error:
        raise errors.InvalidArgument(f"an entry is bytes: {error}") from None


def prepared(entries: Any) -> tuple[Any, int]:
    """Entries that cannot change any more, and about how many bytes they are."""
    if isinstance(entries, bytes | bytearray | memoryview | str):
        raise errors.InvalidArgument("a batch is a sequence of entries; use append() for a single one")
    nbytes = getattr(entries, "nbytes", None)
    if isinstance(nbytes, int) and hasattr(entries, "null_count"):
        return entries, nbytes  # an Arrow column
    try:
        entries = list(entries)
    except TypeError as error:
        raise errors.InvalidArgument(f"entries are a sequence of bytes or an Arrow column: {error}") from None
    if set(map(type, entries)) != {bytes}:
        entries = list(map(checked, entries))
    return entries, sum(map(len, entries))


def fill(count: Any) -> Fill:
    """So many positions without an entry, as one batch."""
    count = check_whole("count", count, "a number of positions from 1 on", 1, math.inf)
    if count > limits.MAX_BATCH_ENTRIES:
        raise errors.BatchTooLarge(f"{count} positions to be filled, at most {limits.MAX_BATCH_ENTRIES} make a batch")
    return Fill(count)


class Appender:
    """Appends, pipelined: entries get their positions in the order they were sent.

    `append` waits for room in the window only, and returns a future of the result. Leave the `async with` block, or
    call `flush`, to wait for all of them; either raises the first failure of those that were sent since the last
    flush. A log stream that fails is left for another one, in the same order.

    On a topic that a sequencer orders, a position that this appender is slow to write may be filled by somebody else:
    what was to be there then comes behind what was sent after it.

    >>> import asyncio, tempfile, varlog
    >>> async def main() -> None:
    ...     with tempfile.TemporaryDirectory() as path:
    ...         async with varlog.embedded(path) as log:
    ...             async with log.appender(window=100) as appender:
    ...                 sent = [await appender.append(b"%d" % number) for number in range(1000)]
    ...             print(sent[-1].result().glsn)
    >>> asyncio.run(main())
    1000
    """

    def __init__(self, appends: Appends, window: int, codec: batch.Codec, timeout: float) -> None:
        self._appends = appends
        self._timeout = timeout
        self._now = appends.session.now
        self._now()
        window = check_window(window)
        self._lane = appends.lane(window, check_codec(codec), self._abandon)
        self._window = Room(limits.CLIENT_BYTES_IN_FLIGHT, window)
        self._under_way = 0
        self._failed: errors.VarlogError | None = None
        self._closed: errors.VarlogError | None = None
        self._idle: list[asyncio.Future[None]] = []

    async def append(self, data: batch.Buffer) -> asyncio.Future[AppendResult]:
        """Send one entry as soon as there is room."""
        if type(data) is not bytes:
            data = checked(data)
        return await self._send([data], len(data))

    async def append_batch(self, entries: Entries) -> asyncio.Future[AppendResult]:
        """Send one batch as soon as there is room."""
        return await self._send(*prepared(entries))

    async def append_fill(self, count: int) -> asyncio.Future[AppendResult]:
        """Send positions that hold nothing as soon as there is room; see `Log.append_fill`."""
        return await self._send(fill(count), 0)

    async def _send(self, entries: Any, size: int) -> asyncio.Future[AppendResult]:
        if self._closed is not None:
            raise copy(self._closed)
        deadline = self._now() + self._timeout
        if not self._window.try_take(size):
            await self._appends.take(self._window, size, deadline)
        try:
            room = self._appends.room
            if not room.try_take(size):
                await self._appends.take(room, size, deadline)
            now = self._now()
            future = self._appends.submit(self._lane, entries, size, now + self._timeout, now)
        except BaseException:
            self._window.give_back(size)
            raise
        self._under_way += 1
        future.add_done_callback(lambda done: self._on_done(done, size))
        return future

    def _on_done(self, future: asyncio.Future[AppendResult], size: int) -> None:
        self._window.give_back(size)
        self._under_way -= 1
        if not future.cancelled():
            error = future.exception()  # also tells asyncio that it was looked at
            if self._failed is None and isinstance(error, errors.VarlogError):
                self._failed = error
        if not self._under_way:
            for waiting in self._idle:
                if not waiting.done():
                    waiting.set_result(None)
            self._idle.clear()
            if self._closed is not None:
                self._appends.retire(self._lane)

    async def flush(self) -> None:
        """Wait until all that was sent is decided; raises the first failure since the last flush."""
        self._now()
        while self._under_way:
            waiting = self._appends.session.loop.create_future()
            self._idle.append(waiting)
            await waiting
        failed, self._failed = self._failed, None
        if failed is not None:
            raise copy(failed)

    def _abandon(self, error: errors.VarlogError) -> None:
        self._close(error)

    def _close(self, error: errors.VarlogError) -> None:
        if self._closed is None:
            self._closed = error
            self._window.close(error)
            if not self._under_way:
                self._appends.retire(self._lane)

    async def __aenter__(self) -> Appender:
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            self._close(errors.Closed("the appender was closed"))
