"""Transactions: entries that become visible together, or not at all.

    async with log.transaction("import") as transaction:
        await transaction.append(b"one")
        await transaction.append_batch([b"two", b"three"])

What is written in a transaction is in the log at once, at positions of its own, on any log streams; readers see it when
the COMMIT is in the log, and never if another verdict came first (`varlog.core.transacting` has the procedures). Here
they are run with a client's connections, and the appends of one *part* are counted: what this object wrote. Several
writers can share a transaction by beginning it with the same name, number and token; each has its own part, and whoever
commits says which parts count.

What must always hold: a part is counted in only when every append of it was acknowledged, so what a COMMIT counts is in
the log before it. A commit that cannot be found out about is `Unknown`, and asking again tells; it is never guessed.
What the register is told is told in the background, a bounded number at a time: if that is lost, whoever meets the
transaction next finds out from the log. What nobody can end any more, because its begin or its block was left before,
is aborted there, too: readers would wait for it until it expires.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeGuard, TypeVar

from msgspec.structs import replace

from varlog import batch, errors, limits
from varlog.batch.transactions import MARK_TAG, Mark, VerdictKind, encode_mark, encode_verdict
from varlog.client.arguments import check_count, check_text, check_timeout, check_whole
from varlog.client.entries import AppendResult
from varlog.client.writing import Appender, checked, prepared
from varlog.core import transacting
from varlog.core.content import Fill, Tagged
from varlog.core.fates import Fate
from varlog.core.messages import (
    BeginTransaction,
    Begun,
    EndTransaction,
    ForgetTransactions,
    GetTransactions,
    OpenTransaction,
)
from varlog.core.messages import Transactions as Register
from varlog.core.transacting import Ask, Effect, Look, Part, Peek, Procedure, Pronounce
from varlog.types import GLSN, Ordering, TransactionID

if TYPE_CHECKING:
    from varlog.client.log import Log
    from varlog.client.writing import Entries

_T = TypeVar("_T")

_MARKED: Final = int(batch.BatchFlag.TRANSACTION)
_CONTROL: Final = int(batch.BatchFlag.CONTROL)
_LOOKING_SHARE: Final = 0.2
_LOOKING_SECONDS: Final = 1.0
"""What is kept of a call's time for looking what became of a verdict, if its append takes up all the rest."""
_AFTERWARDS_SECONDS: Final = 10.0
"""What is done in the background may take so long, and closing waits for it for so long:"""
_CLOSING_SECONDS: Final = 1.0


class TransactionResult(NamedTuple):
    """A transaction that was committed."""

    glsn: GLSN
    """Where its commit is; its entries are before that."""
    entries: int


class Transactions:
    """The transactions of one client on one topic."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._session = log._session
        self._tpid = log._tpid
        self._tasks: set[asyncio.Task[Any]] = set()
        self._told = False
        """The register was told something whose answer nobody waits for."""

    # Beginning

    async def begin(
        self, name: str, number: int | None, token: str | None, expires: float, deadline: float
    ) -> Transaction:
        """See `Log.begin`."""
        _check_text("the name", name)
        _check_text("the token of an attempt", token if token is not None else "-")
        counted = _checked_number(number)
        expiry = _milliseconds(expires)
        asked_at, begun = self._session.loop.time(), _Noting()
        procedure = transacting.begin(
            self._tpid,
            Ordering.COMMIT if self.log._chained is None else Ordering.SEQUENCER,
            name,
            secrets.token_hex(16) if token is None else token,
            counted,
            expiry,
        )
        try:
            one = await self.run(procedure, deadline, begun)
        except errors.AlreadyCommitted:
            raise  # it was ended before this was told
        except BaseException:
            if token is None:  # nobody else can have it
                self._abort_begun(begun)
            raise
        return Transaction(self, one, asked_at + (one.expiry - one.age) / 1000)

    def _abort_begun(self, begun: _Noting) -> None:
        """Nobody takes what was begun, so nobody else ends it before it expires."""
        asked = begun.asked
        if begun.transaction is not None:
            self.abort_later(begun.transaction, "its begin failed")
        elif asked is not None:
            self.later(lambda: self._abort_asked(asked))

    async def _abort_asked(self, asked: BeginTransaction) -> None:
        """End what was begun, or may yet be, by a question whose answer nobody took: asked again, the register says
        which one it is."""
        answer = await self._do(Ask(asked), self._afterwards())
        if isinstance(answer, Begun) and answer.transaction is not None:
            await self.abort(answer.transaction, "nobody waited for its begin", self._afterwards())

    # Others' transactions

    async def register(self, deadline: float, *, names: bool = False) -> Register:
        """What the metadata repository knows of the topic's transactions."""
        message = await self._session.asking.ask(lambda request: GetTransactions(request, self._tpid, names), deadline)
        assert isinstance(message, Register)
        return message

    async def settle(self, one: OpenTransaction, reason: str, kind: VerdictKind, deadline: float) -> Fate | None:
        """What became of one, if need be by ending it; None if it has ended and is trimmed since."""
        return await self.run(transacting.settle(self._tpid, one, reason, kind), deadline)

    async def end(self, txid: int, reason: str, deadline: float) -> Fate | None:
        """See `Log.end_transaction`."""
        check_count("txid", txid)
        check_text("reason", reason)
        for one in (await self.register(deadline)).open:
            if one.txid == txid:
                return await self.settle(one, reason, VerdictKind.ABORT, deadline)
        raise errors.TransactionEnded(f"no transaction {txid} is open in topic {self.log.name!r}")

    async def clear(self, below: int, deadline: float) -> None:
        """Let the register know what has ended of all that began below a position, and end what has expired."""
        for one in (await self.register(deadline)).open:
            if one.after < below:
                if one.age >= one.expiry:
                    await self.settle(one, "it expired", VerdictKind.EXPIRE, deadline)
                elif (fate := await self.log._fate(one.txid, one.after, None, deadline)) is not None:
                    await self.run(transacting.tell(self._tpid, one.txid, fate), deadline)

    async def forget(self, name: str, deadline: float) -> None:
        """See `Log.forget_transactions`."""
        _check_text("the name", name)
        await self._session.asking.ask(
            lambda request: ForgetTransactions(request, self._tpid, name), deadline, changes=True
        )

    # Running procedures

    async def run(self, procedure: Procedure[_T], deadline: float, noting: _Noting | None = None) -> _T:
        """Do what a procedure wants done; what it returns, or raises."""
        answer: Any = None
        try:
            while True:
                effect = procedure.send(answer)
                if noting is not None:
                    noting.note_asked(effect)
                try:
                    answer = await self._do(effect, deadline)
                except errors.VarlogError as error:
                    answer = error
                if noting is not None:
                    noting.note(answer)
        except StopIteration as stop:
            value: _T = stop.value
            return value
        finally:
            procedure.close()

    async def _do(self, effect: Effect, deadline: float) -> Any:
        match effect:
            case Ask(message):
                return await self._session.asking.ask(
                    lambda request: replace(message, request=request),
                    deadline,
                    changes=isinstance(message, BeginTransaction),
                    whatever=True,
                )
            case Pronounce(verdict):
                return await self._pronounce(encode_verdict(verdict), deadline)
            case Look(txid, after, upto):
                return await self.log._fate(txid, after, upto, deadline)
            case Peek():
                return GLSN(await self.log.tail(timeout=max(1e-3, deadline - self._session.loop.time())))

    async def _pronounce(self, entry: bytes, deadline: float) -> GLSN:
        left = deadline - self._session.loop.time()
        allowed = left - min(_LOOKING_SECONDS, _LOOKING_SHARE * left)
        result = await self.log._append(Tagged([entry], _CONTROL), len(entry), max(1e-3, allowed))
        return result.glsn

    # Afterwards

    def later(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Do something in the background, and tell nobody what came of it."""
        if len(self._tasks) >= limits.MAX_TRANSACTION_TASKS or self._session.closed is not None:
            return

        async def quietly() -> None:
            with suppress(errors.VarlogError):
                await work()

        task = self._session.loop.create_task(quietly(), name="what became of a transaction")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def tell_later(self, one: OpenTransaction, fate: Fate) -> None:
        """Tell the register, and do not wait for the answer; only if nobody leads, try for a while."""
        asking = self._session.asking
        is_committed = transacting.is_commit(fate)
        self._told = True
        if not asking.tell_repository(
            EndTransaction(asking.new_request(), self._tpid, one.txid, is_committed, fate.glsn)
        ):
            self.later(lambda: self.run(transacting.tell(self._tpid, one.txid, fate), self._afterwards()))

    def settle_later(self, one: OpenTransaction) -> None:
        self.later(lambda: self.settle(one, "its owner gave it up", VerdictKind.ABORT, self._afterwards()))

    def abort_later(self, one: OpenTransaction, reason: str) -> None:
        self.later(lambda: self.abort(one, reason, self._afterwards()))

    async def abort(self, one: OpenTransaction, reason: str, deadline: float) -> None:
        if await self.run(transacting.abort(self._tpid, one, reason), deadline) is None:
            raise transacting.trimmed_since(one)

    def _afterwards(self) -> float:
        return self._session.loop.time() + _AFTERWARDS_SECONDS

    async def close(self) -> None:
        """Wait a little for what is under way in the background, and give up the rest."""
        if self._told:
            await asyncio.sleep(0)  # what is told in this turn of the loop is sent at its end
        if self._tasks and self._session.closed is None:
            await asyncio.wait(self._tasks, timeout=_CLOSING_SECONDS)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


class _Noting:
    """What a begin has asked for and what it got, for when it does not come to its end."""

    asked: BeginTransaction | None = None
    """What is asked of the register, as long as it may be done without an answer."""
    transaction: OpenTransaction | None = None

    def note_asked(self, effect: Effect) -> None:
        if isinstance(effect, Ask) and isinstance(effect.message, BeginTransaction):
            self.asked = effect.message

    def note(self, answer: Any) -> None:
        if isinstance(answer, Begun):
            self.asked = None
            self.transaction = answer.transaction if not answer.code else self.transaction
        elif isinstance(answer, errors.VarlogError) and answer.happened is False:
            self.asked = None


class Transaction:
    """One writer's share of a transaction. Made by `Log.begin` and `Log.transaction`.

    An append that was sent and did not succeed, or that was cancelled, ends it: it can only be aborted then.

    >>> import asyncio, tempfile, varlog
    >>> async def main() -> None:
    ...     with tempfile.TemporaryDirectory() as path:
    ...         async with varlog.embedded(path) as log:
    ...             transaction = await log.begin("orders", number=1)
    ...             await transaction.append(b"an order")
    ...             await transaction.append_batch([b"an item", b"another"])
    ...             result = await transaction.commit()
    ...             print(result.entries, [entry.data async for entry in log.subscribe(end=result.glsn)])
    ...             try:
    ...                 await log.begin("orders", number=1)
    ...             except varlog.errors.AlreadyCommitted as error:
    ...                 print(error.glsn == result.glsn)
    >>> asyncio.run(main())
    3 [b'an order', b'an item', b'another']
    True
    """

    def __init__(self, transactions: Transactions, one: OpenTransaction, expires_at: float) -> None:
        self._transactions = transactions
        self._log = log = transactions.log
        self._appends = log._appends
        self._time = log._time
        self._one = one
        self._expires_at = expires_at
        self._part = secrets.randbits(63) + 1
        mark = Mark(one.txid, one.after, self._part, one.expiry)
        self._extensions = batch.encode_extensions({MARK_TAG: encode_mark(mark)}, batch.HEADER_BYTES)
        self._bytes = self._entries = self._last = 0
        self._under_way = 0
        self._idle: list[asyncio.Future[None]] = []
        self._failed: errors.VarlogError | None = None
        """Why an append of it is not in the log, or may not be."""
        self._closed: errors.VarlogError | None = None
        """Why nothing can be added."""
        self._ending = asyncio.Lock()
        self._tried = False
        """Whether its commit may be in the log."""
        self._ended: TransactionResult | errors.VarlogError | None = None

    @property
    def id(self) -> TransactionID:
        return self._one.txid

    @property
    def name(self) -> str:
        return self._one.name

    @property
    def number(self) -> int | None:
        return self._one.number if self._one.number >= 0 else None

    # Writing

    async def append(self, data: batch.Buffer, *, timeout: float | None = None) -> AppendResult:
        """Append one entry, as `Log.append`."""
        if type(data) is not bytes:
            data = checked(data)
        return await self._append([data], len(data), timeout)

    async def append_batch(self, entries: Entries, *, timeout: float | None = None) -> AppendResult:
        """Append entries together, as `Log.append_batch`."""
        return await self._append(*prepared(entries), timeout)

    def appender(
        self, *, window: int = 256, codec: batch.Codec = batch.Codec.NONE, timeout: float | None = None
    ) -> Appender:
        """Append in a pipeline, as `Log.appender`."""
        seconds = self._log._timeout if timeout is None else check_timeout(timeout)
        return _TransactionAppender(self, self._appends, window, codec, seconds)

    async def _append(self, entries: Any, size: int, timeout: float | None) -> AppendResult:
        now = self._time()
        deadline = now + (self._log._timeout if timeout is None else check_timeout(timeout))
        content = self.enter(entries, size, now)
        try:
            appends = self._appends
            if not appends.room.try_take(size):
                await appends.take(appends.room, size, deadline)
                now = self._time()
            future = appends.submit(self._log._pool.next(), content, size, deadline, now)
        except BaseException:
            self.leave(size)
            raise
        try:
            result = await future
        except BaseException as error:
            self._fail(error if isinstance(error, errors.VarlogError) else _cancelled())
            raise
        else:
            self._count(result)
            return result
        finally:
            self._on_decided()

    def enter(self, entries: Any, size: int, now: float) -> Tagged:
        """What an append of it is to bring, which counts as under way from now on."""
        if self._closed is not None:
            raise copy(self._closed)
        if now >= self._expires_at:
            self._closed = self._expired()
            self._transactions.abort_later(self._one, "it expired")  # a commit waits until that is certain
            raise copy(self._closed)
        if self._bytes + size > limits.MAX_TRANSACTION_BYTES:
            raise errors.TransactionTooLarge(
                f"transaction {self.id} of {self.name!r} has {self._bytes} bytes of this writer; with {size} more it "
                f"would exceed {limits.MAX_TRANSACTION_BYTES}. Commit what it has, or abort it"
            )
        self._bytes += size
        self._under_way += 1
        return Tagged(entries, _MARKED, self._extensions)

    def leave(self, size: int) -> None:
        """An append was not sent."""
        self._bytes -= size
        self._on_decided()

    def on_done(self, future: asyncio.Future[AppendResult]) -> None:
        """An append that was sent, and for which nobody waits here, is decided, or given up."""
        if future.cancelled():
            self._fail(_cancelled())
        elif (error := future.exception()) is not None:
            assert isinstance(error, errors.VarlogError), "appends end with such errors"
            self._fail(error)
        else:
            self._count(future.result())
        self._on_decided()

    def _count(self, result: AppendResult) -> None:
        self._entries += result.count
        self._last = max(self._last, result.end - 1)

    def _fail(self, error: errors.VarlogError) -> None:
        self._failed = self._failed or error

    def _on_decided(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            for waiting in self._idle:
                if not waiting.done():
                    waiting.set_result(None)
            self._idle.clear()

    def _expired(self) -> errors.VarlogError:
        return errors.TransactionAborted(
            f"transaction {self.id} of {self.name!r} expired: it may take {self._one.expiry / 1000:g} s; begin another "
            "one, with more time (expires=) if need be"
        )

    # Ending

    async def finish(self, *, timeout: float | None = None) -> Part:
        """Add nothing more, and wait until all of it is acknowledged: this writer's share, for who commits. Raises what
        kept an append of it from the log, if anything did."""
        deadline = self._log._deadline(timeout)
        self._close(f"this share of transaction {self.id} of {self.name!r} is finished")
        await self._settled(deadline)
        if self._failed is not None:
            raise copy(self._failed)
        return Part(self._part, self._entries, self._last)

    def _close(self, why: str) -> None:
        if self._closed is None:
            self._closed = errors.TransactionEnded(f"{why}; nothing can be added to it")

    async def _settled(self, deadline: float) -> None:
        """Wait until nothing of it is under way."""
        while self._under_way:
            waiting = self._transactions._session.loop.create_future()
            self._idle.append(waiting)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiting
            except TimeoutError:
                raise errors.DeadlineExceeded(
                    f"{self._under_way} appends of transaction {self.id} are still under way; allow more time"
                ) from None

    async def commit(self, parts: Iterable[Part] | None = None, *, timeout: float | None = None) -> TransactionResult:
        """Make what was written visible: all of this writer's, and of other writers the `parts` that they `finish`ed.

        If it raises `Unknown`, call it again: it says what became of the commit. Until it can, it raises `Unknown`.
        """
        deadline = self._log._deadline(timeout)
        async with self._alone(deadline):
            if isinstance(self._ended, TransactionResult):
                return self._ended
            if self._ended is not None:
                raise copy(self._ended)
            counted = await self._counted(parts, deadline)
            again, self._tried = self._tried, True
            try:
                fate = await self._transactions.run(transacting.commit(self._one, counted, again=again), deadline)
            except (errors.TransactionAborted, errors.AlreadyCommitted) as error:
                self._ended = error
                self._transactions.settle_later(self._one)
                raise
            except errors.TransactionEnded as error:
                self._ended = error
                # Readers cannot see any more why it ended, and need not wait until it expires.
                self._transactions.abort_later(self._one, "it had ended, and was trimmed")
                raise
            except errors.VarlogError as error:
                self._tried = again or error.happened is not False
                raise
            self._ended = result = TransactionResult(fate.glsn, sum(part.entries for part in counted))
            self._transactions.tell_later(self._one, fate)
            return result

    async def _counted(self, parts: Iterable[Part] | None, deadline: float) -> Sequence[Part]:
        """What the commit counts in. If that is not all in the log, or it is too late, the transaction is aborted."""
        try:
            others = _checked_parts(() if parts is None else parts, self._one)
        except errors.VarlogError as refused:
            refused.happened = None if self._tried else False  # an earlier commit, with other parts, may be in the log
            raise
        self._close(f"transaction {self.id} of {self.name!r} is being committed")
        if self._time() >= self._expires_at and not self._tried:
            await self._refuse(self._expired(), deadline)
        await self._settled(deadline)
        if self._failed is not None:
            error = errors.TransactionAborted(
                f"an append of transaction {self.id} of {self.name!r} failed, so it is not committed: {self._failed}"
            )
            error.__cause__ = self._failed
            await self._refuse(error, deadline)
        own = Part(self._part, self._entries, self._last)
        return [own, *(part for part in others if part.part != own.part)]

    async def _refuse(self, error: errors.VarlogError, deadline: float) -> NoReturn:
        """It cannot be committed, and is aborted instead. As long as that does not succeed, others who have joined it
        may commit it, so it has not ended."""
        try:
            await self._transactions.abort(self._one, str(error), deadline)
        except (errors.AlreadyCommitted, errors.TransactionEnded) as found:  # by one of them, as far as can be known
            self._closed = self._ended = found
            raise
        except errors.VarlogError as failure:
            raise errors.Unknown(f"{error}; it could not be aborted: {failure}; ask again") from failure
        self._closed = self._ended = error
        raise error

    async def abort(self, reason: str = "", *, timeout: float | None = None) -> None:
        """Make sure that nothing of it is ever visible. Raises `AlreadyCommitted` if it was committed before, and
        `TransactionEnded` if it has ended and is trimmed since, so that nobody can tell how."""
        deadline = self._log._deadline(timeout)
        check_text("reason", reason)
        self._close(f"transaction {self.id} of {self.name!r} was aborted")
        async with self._alone(deadline):
            if isinstance(self._ended, TransactionResult):
                raise errors.TransactionEnded(
                    f"transaction {self.id} of {self.name!r} was committed at {self._ended.glsn}"
                )
            if self._ended is None:
                await self._transactions.abort(self._one, reason, deadline)
                self._ended = errors.TransactionEnded(f"transaction {self.id} of {self.name!r} was aborted")

    @asynccontextmanager
    async def _alone(self, deadline: float) -> AsyncIterator[None]:
        """One end at a time."""
        if not self._ending.locked():
            await self._ending.acquire()
        else:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._ending.acquire()
            except TimeoutError:
                raise errors.Unknown(
                    f"another commit or abort of transaction {self.id} of {self.name!r} is under way; ask again what "
                    "became of it"
                ) from None
        try:
            yield
        finally:
            self._ending.release()

    async def leave_block(self, error: BaseException | None) -> None:
        """The end of a block: commit, or abort if it failed, unless one or the other was tried in it."""
        if self._ended is None and error is None:
            await self._commit_block()
        elif self._ended is None and error is not None:
            await self._abort_block(error)

    async def _commit_block(self) -> None:
        try:
            await self.commit()
        except BaseException as error:
            self._abandon(error)
            raise

    async def _abort_block(self, error: BaseException) -> None:
        try:
            if isinstance(error, Exception) and not self._tried:  # who was cancelled does not wait
                with suppress(Exception):  # nothing takes the place of what the block raised
                    await self.abort(_reason(error))
        finally:
            self._abandon(error)

    def _abandon(self, error: BaseException) -> None:
        """A block is left, and readers need not wait until the transaction expires. One whose commit is unknown is left
        to whoever asks again, unless nobody does, because it was cancelled."""
        if self._ended is None and not (self._tried and isinstance(error, Exception)):
            self._close(f"transaction {self.id} of {self.name!r} was aborted")
            self._transactions.abort_later(self._one, _reason(error))

    def __repr__(self) -> str:
        return f"<Transaction {self.id} of {self.name!r}, number {self.number}>"


class _TransactionAppender(Appender):
    """Appends of a transaction, pipelined."""

    def __init__(self, transaction: Transaction, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._transaction = transaction

    async def _send(self, entries: Any, size: int) -> asyncio.Future[AppendResult]:
        if isinstance(entries, Fill):
            raise errors.InvalidArgument("a transaction has entries only; fill positions without it")
        content = self._transaction.enter(entries, size, self._transaction._time())
        try:
            future = await super()._send(content, size)
        except BaseException:
            self._transaction.leave(size)
            raise
        future.add_done_callback(self._transaction.on_done)
        return future


def _reason(error: BaseException) -> str:
    """What an error says, for people. How it says so is the application's code, which may fail."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def _cancelled() -> errors.Unknown:
    return errors.Unknown("an append was cancelled; it may have happened")


def _checked_parts(parts: object, one: OpenTransaction) -> list[Part]:
    if not isinstance(parts, Iterable):
        raise errors.InvalidArgument(f"parts are what `finish` has returned to each writer, in a list; not {parts!r}")
    found: dict[int, Part] = {}
    values: tuple[Any, ...]
    for given in parts:
        values = tuple(given) if isinstance(given, tuple | list) else ()
        if len(values) != 3 or not all(_is_whole(value) and 0 <= value < 1 << 64 for value in values):
            raise errors.InvalidArgument(f"{given!r} is no part of a transaction; `finish` returns one")
        part = Part(*values)
        if part.entries and part.last <= one.after:
            raise errors.InvalidArgument(f"{given!r} is a part of another transaction than {one.txid}")
        if found.setdefault(part.part, part) != part:
            raise errors.InvalidArgument(f"part {part.part} is counted twice, and differently")
    written = [part for part in found.values() if part.entries]
    if len(written) >= limits.MAX_TRANSACTION_PARTS:
        raise errors.TransactionTooLarge(
            f"{len(written)} parts; fewer than {limits.MAX_TRANSACTION_PARTS} can be committed beside one's own"
        )
    return written


def _check_text(what: str, text: object) -> None:
    most = limits.MAX_TRANSACTION_NAME
    if not isinstance(text, str) or not 1 <= len(text) <= most or not text.isprintable():
        raise errors.InvalidArgument(f"{what} of a transaction is a text of 1 to {most} printable characters")


def _is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a number that others understand: True is 1 in Python, and nowhere else."""
    return isinstance(value, int) and not isinstance(value, bool)


def _checked_number(number: object) -> int:
    """As it is sent: -1 stands for none."""
    most = limits.MAX_TRANSACTION_NUMBER
    return -1 if number is None else check_whole("number", number, f"a whole number from 0 to {most}", 0, most)


def _milliseconds(expires: Any) -> int:
    most = limits.MAX_TRANSACTION_SECONDS
    if not isinstance(expires, int | float) or isinstance(expires, bool) or not 0.001 <= expires <= most:
        raise errors.InvalidArgument(f"a transaction expires after 0.001 to {most:g} s, not {expires!r}")
    return round(expires * 1000)
