"""The client without asyncio, for scripts and notebooks.

    import varlog.sync

    with varlog.sync.connect("varlog-data") as log:
        result = log.append(b"hello")
        for entry in log.subscribe(result.glsn):
            print(entry.glsn, entry.data)

A thin wrapper: one event loop in one background thread does the work for all clients of the process, and every method
here hands a coroutine of the asynchronous client to it and waits. It runs while a client is open. Methods may be called
from any thread; an interrupt (Ctrl-C) cancels the call that is waited for. A process that is forked connects anew.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from varlog import client, limits
from varlog.background import Use as _Use
from varlog.background import background as _background
from varlog.batch import Buffer, Codec
from varlog.client.administering import LostRange
from varlog.client.entries import AppendResult, Entry, EntryBatch
from varlog.client.log import DEFAULT_TIMEOUT, DEFAULT_WINDOW
from varlog.client.reading import Batches as _Batches
from varlog.client.transactions import TransactionResult
from varlog.client.writing import Appender as _Appender
from varlog.core.fates import Fate
from varlog.core.messages import (
    CommittedName,
    Diagnosis,
    Info,
    Metadata,
    NodeInfo,
    OpenTransaction,
    ScrubState,
    StreamInfo,
    TopicInfo,
)
from varlog.core.transacting import Part
from varlog.wire.tls import TlsFiles

if TYPE_CHECKING:
    from varlog.client.writing import Entries

_T = TypeVar("_T")
_C = TypeVar("_C", bound="_Client")


class _Client:
    """Something of the asynchronous client, used from outside of its loop."""

    def __init__(self, background: _Use, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._background = background
        self._close = close
        self._is_open = True

    def close(self) -> None:
        """End what is under way with `Closed`, and all connections; not those of the process that this one was forked
        from."""
        if self._is_open and not self._background.is_inherited:
            self._is_open = False
            try:
                self._background.run(self._close)
            finally:
                self._background.release()


def _connected(kind: Callable[[_Use, _T], _C], make: Callable[[], Coroutine[Any, Any, _T]]) -> _C:
    use = _background.acquire()
    try:
        return kind(use, use.run(make))
    except BaseException:
        use.release()
        raise


class Batches:
    """An iterator of batches, in GLSN order without a gap. Several threads may share it: each batch goes to one of
    them."""

    def __init__(self, background: _Use, batches: _Batches) -> None:
        self._background = background
        self._batches = batches
        self._ready: deque[EntryBatch] = deque()
        self._reading = asyncio.Lock()
        self._turn = threading.Lock()

    def __iter__(self) -> Iterator[EntryBatch]:
        return self

    def __next__(self) -> EntryBatch:
        with self._turn:  # nobody else takes what this thread has waited for
            if not self._ready:
                self._background.run(self._read)
            if not self._ready:
                raise StopIteration
            return self._ready.popleft()

    async def _read(self) -> None:
        """In the loop's thread, so that nothing is lost if the one that waits for it is interrupted meanwhile."""
        async with self._reading:  # the read that was interrupted may not have ended yet
            if not self._ready:
                self._ready.extend(await self._batches.several())

    @property
    def position(self) -> int:
        """Every position below was delivered, or passed over because it holds no entry."""
        try:
            return self._ready[0].glsn
        except IndexError:  # also if another thread takes the last one just now
            return self._batches.position

    @property
    def filled(self) -> int:
        """How many positions were passed over; counted when they are read, which may be some batches ahead."""
        return self._batches.filled

    def whole(self) -> Batches:
        """The same, with what comes from an archive as it lies there; see `varlog.client.Batches.whole`."""
        self._batches.whole()
        return self

    def close(self) -> None:
        """Read no more."""
        self._background.tell(self._batches.close)

    def __del__(self) -> None:
        self.close()


class Subscription:
    """An iterator of entries that waits for more at the tail; see `varlog.client.Subscription`. Several threads may
    share it: each entry goes to one of them."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._entries: Iterator[Entry] = iter(())
        self._turn = threading.Lock()

    def batches(self) -> Batches:
        """The same as batches."""
        return self._batches

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        with self._turn:
            while True:
                for entry in self._entries:
                    return entry
                self._entries = iter(next(self._batches))

    def close(self) -> None:
        """Read no more."""
        self._batches.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Pending:
    """The result of an append that was sent and may not be decided yet."""

    def __init__(self, background: _Use, future: asyncio.Future[AppendResult]) -> None:
        self._background = background
        self._future = future

    def result(self) -> AppendResult:
        """Wait for it."""

        async def wait() -> AppendResult:
            return await asyncio.shield(self._future)

        return self._background.run(wait)


class Appender:
    """Appends on one log stream, pipelined; see `varlog.client.Appender`."""

    def __init__(self, background: _Use, appender: _Appender) -> None:
        self._background = background
        self._appender = appender

    def append(self, data: Buffer) -> Pending:
        """Send one entry as soon as there is room."""
        return Pending(self._background, self._background.run(lambda: self._appender.append(data)))

    def append_batch(self, entries: Entries) -> Pending:
        """Send one batch as soon as there is room."""
        return Pending(self._background, self._background.run(lambda: self._appender.append_batch(entries)))

    def append_fill(self, count: int) -> Pending:
        """Send positions that hold nothing as soon as there is room."""
        return Pending(self._background, self._background.run(lambda: self._appender.append_fill(count)))

    def flush(self) -> None:
        """Wait until all that was sent is decided; raises the first failure since the last flush."""
        self._background.run(self._appender.flush)

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self._background.run(lambda: self._appender.__aexit__(kind, error, traceback))


class Transaction:
    """One writer's share of a transaction; see `varlog.client.Transaction`."""

    def __init__(self, background: _Use, transaction: client.Transaction) -> None:
        self._background = background
        self._transaction = transaction

    @property
    def id(self) -> int:
        return self._transaction.id

    @property
    def name(self) -> str:
        return self._transaction.name

    @property
    def number(self) -> int | None:
        return self._transaction.number

    def append(self, data: Buffer, *, timeout: float | None = None) -> AppendResult:
        """Append one entry."""
        return self._background.run(lambda: self._transaction.append(data, timeout=timeout))

    def append_batch(self, entries: Entries, *, timeout: float | None = None) -> AppendResult:
        """Append entries together."""
        return self._background.run(lambda: self._transaction.append_batch(entries, timeout=timeout))

    def appender(
        self, *, window: int = DEFAULT_WINDOW, codec: Codec = Codec.NONE, timeout: float | None = None
    ) -> Appender:
        """Append in a pipeline."""

        async def make() -> _Appender:
            return self._transaction.appender(window=window, codec=codec, timeout=timeout)

        return Appender(self._background, self._background.run(make))

    def finish(self, *, timeout: float | None = None) -> Part:
        """Add nothing more, and wait until all of it is acknowledged: this writer's share, for who commits."""
        return self._background.run(lambda: self._transaction.finish(timeout=timeout))

    def commit(self, parts: Iterable[Part] | None = None, *, timeout: float | None = None) -> TransactionResult:
        """Make what was written visible: all of this writer's, and of other writers the parts that are given."""
        return self._background.run(lambda: self._transaction.commit(parts, timeout=timeout))

    def abort(self, reason: str = "", *, timeout: float | None = None) -> None:
        """Make sure that nothing of it is ever visible."""
        self._background.run(lambda: self._transaction.abort(reason, timeout=timeout))


class Log(_Client):
    """One topic of a cluster; see `varlog.client.Log`, whose methods these are."""

    def __init__(self, background: _Use, log: client.Log) -> None:
        super().__init__(background, log.close)
        self._log = log

    def append(self, data: Buffer, *, timeout: float | None = None) -> AppendResult:
        """Append one entry and wait until it is durable on all replicas and has its position."""
        return self._background.run(lambda: self._log.append(data, timeout=timeout))

    def append_batch(self, entries: Entries, *, timeout: float | None = None) -> AppendResult:
        """Append entries together: they get consecutive positions, all of them or none."""
        return self._background.run(lambda: self._log.append_batch(entries, timeout=timeout))

    def append_fill(self, count: int, *, timeout: float | None = None) -> AppendResult:
        """Append `count` consecutive positions that hold nothing: readers pass over them."""
        return self._background.run(lambda: self._log.append_fill(count, timeout=timeout))

    def appender(
        self, *, window: int = DEFAULT_WINDOW, codec: Codec = Codec.NONE, timeout: float | None = None
    ) -> Appender:
        """Append in a pipeline: up to `window` batches are under way at once, in the order they were sent."""

        async def make() -> _Appender:
            return self._log.appender(window=window, codec=codec, timeout=timeout)

        return Appender(self._background, self._background.run(make))

    def begin(
        self,
        name: str,
        *,
        number: int | None = None,
        token: str | None = None,
        expires: float = limits.TRANSACTION_SECONDS,
        timeout: float | None = None,
    ) -> Transaction:
        """Begin a transaction, and end every earlier one of the same name that is open."""
        begun = self._background.run(
            lambda: self._log.begin(name, number=number, token=token, expires=expires, timeout=timeout)
        )
        return Transaction(self._background, begun)

    @contextmanager
    def transaction(
        self, name: str, *, number: int | None = None, expires: float = limits.TRANSACTION_SECONDS
    ) -> Iterator[Transaction]:
        """The same as a block: it commits at its end, or aborts if the block raises."""
        transaction = self.begin(name, number=number, expires=expires)
        inner = transaction._transaction
        try:
            yield transaction
        except BaseException as error:
            failure = error
            self._background.run(lambda: inner.leave_block(failure))
            raise
        self._background.run(lambda: inner.leave_block(None))

    def transactions(self, *, timeout: float | None = None) -> list[OpenTransaction]:
        """The transactions of the topic that are not known to have ended."""
        return self._background.run(lambda: self._log.transactions(timeout=timeout))

    def end_transaction(self, txid: int, reason: str = "", *, timeout: float | None = None) -> Fate | None:
        """Abort somebody's transaction; returns what became of it."""
        return self._background.run(lambda: self._log.end_transaction(txid, reason, timeout=timeout))

    def transaction_names(self, *, timeout: float | None = None) -> list[CommittedName]:
        """The numbers that were last committed, by name."""
        return self._background.run(lambda: self._log.transaction_names(timeout=timeout))

    def forget_transactions(self, name: str, *, timeout: float | None = None) -> None:
        """Forget which number was last committed under a name."""
        self._background.run(lambda: self._log.forget_transactions(name, timeout=timeout))

    def read(self, glsn: int, *, timeout: float | None = None, uncommitted: bool = False) -> Entry:
        """The entry at a position."""
        return self._background.run(lambda: self._log.read(glsn, timeout=timeout, uncommitted=uncommitted))

    def scan(
        self,
        begin: int = 1,
        end: int | None = None,
        *,
        timeout: float | None = None,
        affinity: int | None = None,
        uncommitted: bool = False,
    ) -> Batches:
        """The entries from `begin` up to `end` (exclusive) as batches; without `end`, up to `stable()`."""
        batches = self._log.scan(begin, end, timeout=timeout, affinity=affinity, uncommitted=uncommitted)
        return Batches(self._background, batches)

    def subscribe(self, begin: int = 1, *, end: int | None = None, uncommitted: bool = False) -> Subscription:
        """The entries from `begin` on, one after another as they are written; up to `end` (exclusive) if given."""
        batches = self._log.subscribe(begin, end=end, uncommitted=uncommitted).batches()
        return Subscription(Batches(self._background, batches))

    def find_time(self, timestamp: int, *, timeout: float | None = None) -> int:
        """The first position whose timestamp is not before that, in microseconds since 1970; else the one after the
        tail."""
        return self._background.run(lambda: self._log.find_time(timestamp, timeout=timeout))

    def tail(self, *, timeout: float | None = None) -> int:
        """The last position that is written; 0 if none is."""
        return self._background.run(lambda: self._log.tail(timeout=timeout))

    def stable(self, *, timeout: float | None = None) -> int:
        """The position up to which everything is decided: no transaction is open there."""
        return self._background.run(lambda: self._log.stable(timeout=timeout))

    def first(self, *, timeout: float | None = None) -> int:
        """The first position that is not trimmed."""
        return self._background.run(lambda: self._log.first(timeout=timeout))

    def earliest(self, *, timeout: float | None = None) -> int:
        """The position from which on everything can be read, in the archive or in the log."""
        return self._background.run(lambda: self._log.earliest(timeout=timeout))

    def trim(self, glsn: int, *, timeout: float | None = None) -> int:
        """Delete every entry up to `glsn`, included; returns up to where the log is trimmed now."""
        return self._background.run(lambda: self._log.trim(glsn, timeout=timeout))

    def fill(self, glsn: int, count: int = 1, *, timeout: float | None = None) -> None:
        """Write junk at positions that a sequencer gave out and that nobody writes: readers pass over them."""
        self._background.run(lambda: self._log.fill(glsn, count, timeout=timeout))

    def peek(self, *, timeout: float | None = None) -> int:
        """The last position that the sequencer has given out."""
        return self._background.run(lambda: self._log.peek(timeout=timeout))

    def seal(self, *, timeout: float | None = None) -> int:
        """End the epoch of a topic that a sequencer orders and begin the next one; returns it."""
        return self._background.run(lambda: self._log.seal(timeout=timeout))

    def refresh(self, *, timeout: float | None = None) -> None:
        """Read the cluster's metadata anew."""
        self._background.run(lambda: self._log.refresh(timeout=timeout))

    @property
    def name(self) -> str:
        return self._log.name

    @property
    def metadata(self) -> Metadata:
        """What is known of the cluster; it may be old, see `refresh`."""
        return self._log.metadata

    @property
    def topic(self) -> TopicInfo:
        """What is known of this topic."""
        return self._log.topic

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Admin(_Client):
    """Nodes, topics and log streams of a cluster; see `varlog.client.administering.Admin`, whose methods these are."""

    def __init__(self, background: _Use, admin: client.Admin) -> None:
        super().__init__(background, admin.close)
        self._admin = admin

    def add_node(self, address: str, *, timeout: float | None = None) -> int:
        """Register the storage node that listens at an address; returns its id."""
        return self._background.run(lambda: self._admin.add_node(address, timeout=timeout))

    def remove_node(self, snid: int, *, timeout: float | None = None) -> None:
        """Take out a node that has no replica of any log stream."""
        self._background.run(lambda: self._admin.remove_node(snid, timeout=timeout))

    def drain_node(self, snid: int, *, timeout: float | None = None) -> NodeInfo:
        """Let the manager take all replicas off a node; it is done when no log stream has the node among its
        `replicas`."""
        return self._background.run(lambda: self._admin.drain_node(snid, timeout=timeout))

    def undrain_node(self, snid: int, *, timeout: float | None = None) -> NodeInfo:
        """Let a node have replicas again."""
        return self._background.run(lambda: self._admin.undrain_node(snid, timeout=timeout))

    def replace_node(self, snid: int, by: int, *, timeout: float | None = None) -> list[StreamInfo]:
        """Let one node take the place of another; returns the log streams that move."""
        return self._background.run(lambda: self._admin.replace_node(snid, by, timeout=timeout))

    def scrub_node(self, snid: int, *, begin: bool = True, timeout: float | None = None) -> ScrubState:
        """Let a storage node read all its replicas through, now and not at leisure; returns how far it is."""
        return self._background.run(lambda: self._admin.scrub_node(snid, begin=begin, timeout=timeout))

    def nodes(self, *, timeout: float | None = None) -> list[NodeInfo]:
        """The registered storage nodes."""
        return self._background.run(lambda: self._admin.nodes(timeout=timeout))

    def node(self, snid: int, *, timeout: float | None = None) -> Info:
        """What a storage node says of itself, its volumes and its replicas."""
        return self._background.run(lambda: self._admin.node(snid, timeout=timeout))

    def add_topic(
        self,
        name: str,
        *,
        replication_factor: int = 0,
        min_replicas: int = 0,
        streams: int = 1,
        first: int = 1,
        ordering: str = "commit",
        block: int = 0,
        timeout: float | None = None,
    ) -> TopicInfo:
        """Make a topic and wait until its log streams run. 0 lets the manager choose. Its log begins at `first`;
        `ordering` is `commit` or `sequencer`."""
        return self._background.run(
            lambda: self._admin.add_topic(
                name,
                replication_factor=replication_factor,
                min_replicas=min_replicas,
                streams=streams,
                first=first,
                ordering=ordering,
                block=block,
                timeout=timeout,
            )
        )

    def remove_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a topic, its log streams and their data."""
        self._background.run(lambda: self._admin.remove_topic(name, timeout=timeout))

    def attach_archive(self, topic: str, uri: str, *, timeout: float | None = None) -> TopicInfo:
        """Let readers of a topic find what was trimmed in the archive at a path or URI."""
        return self._background.run(lambda: self._admin.attach_archive(topic, uri, timeout=timeout))

    def detach_archive(self, topic: str, *, timeout: float | None = None) -> TopicInfo:
        """Let readers of a topic find nothing of what was trimmed any more."""
        return self._background.run(lambda: self._admin.detach_archive(topic, timeout=timeout))

    def topics(self, *, timeout: float | None = None) -> list[TopicInfo]:
        return self._background.run(lambda: self._admin.topics(timeout=timeout))

    def add_stream(self, topic: str, *, nodes: Sequence[int] = (), timeout: float | None = None) -> StreamInfo:
        """Make one more log stream in a topic; waits until it runs."""
        return self._background.run(lambda: self._admin.add_stream(topic, nodes=nodes, timeout=timeout))

    def remove_stream(self, lsid: int, *, timeout: float | None = None) -> None:
        """Delete a log stream that holds no entry a reader could ask for."""
        self._background.run(lambda: self._admin.remove_stream(lsid, timeout=timeout))

    def seal_stream(self, lsid: int, *, timeout: float | None = None) -> StreamInfo:
        """Seal a log stream and keep it so, until `unseal_stream`."""
        return self._background.run(lambda: self._admin.seal_stream(lsid, timeout=timeout))

    def unseal_stream(self, lsid: int, *, timeout: float | None = None) -> StreamInfo:
        """Let a log stream that `seal_stream` sealed run again; waits until it does."""
        return self._background.run(lambda: self._admin.unseal_stream(lsid, timeout=timeout))

    def sync_stream(self, lsid: int, target: int, *, source: int = 0, timeout: float | None = None) -> int:
        """Let the replica on node `target` copy what it lacks; returns how far it is, in percent."""
        return self._background.run(lambda: self._admin.sync_stream(lsid, target, source=source, timeout=timeout))

    def move_replica(self, lsid: int, *, to: int = 0, away_from: int = 0, timeout: float | None = None) -> StreamInfo:
        """Let a log stream have a replica on node `to`, and none on node `away_from` any more."""
        return self._background.run(lambda: self._admin.move_replica(lsid, to=to, away_from=away_from, timeout=timeout))

    def declare_lost(
        self, lsid: int, *, gone: Sequence[int] = (), dry_run: bool = False, timeout: float | None = None
    ) -> LostRange:
        """Declare lost what no replica of a sealed log stream has any more, for good."""
        return self._background.run(lambda: self._admin.declare_lost(lsid, gone=gone, dry_run=dry_run, timeout=timeout))

    def streams(self, topic: str | None = None, *, timeout: float | None = None) -> list[StreamInfo]:
        """The log streams of a topic, or of all."""
        return self._background.run(lambda: self._admin.streams(topic, timeout=timeout))

    def diagnose(self, *, timeout: float | None = None) -> Diagnosis:
        """What the manager sees that is not as it should be; nothing if all is well."""
        return self._background.run(lambda: self._admin.diagnose(timeout=timeout))

    def metadata(self, *, timeout: float | None = None) -> Metadata:
        """The present state of the cluster, all of one version."""
        return self._background.run(lambda: self._admin.metadata(timeout=timeout))

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    cluster: str | Path | None = None,
    *,
    topic: str | None = None,
    cid: int | None = None,
    secret_file: str | Path | None = None,
    tls: TlsFiles | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    fill_after: float = limits.FILL_AFTER_SECONDS,
) -> Log:
    """Connect to a topic of a cluster; the arguments are those of `varlog.connect`."""

    async def make() -> client.Log:
        return await client.connect(
            cluster,
            topic=topic,
            cid=cid,
            secret_file=secret_file,
            tls=tls,
            timeout=timeout,
            fill_after=fill_after,
        )

    return _connected(Log, make)


def admin(
    cluster: str | Path | None = None,
    *,
    cid: int | None = None,
    secret_file: str | Path | None = None,
    tls: TlsFiles | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> Admin:
    """Connect to a cluster to administer it; the arguments are those of `varlog.connect`."""

    async def make() -> client.Admin:
        return await client.admin(cluster, cid=cid, secret_file=secret_file, tls=tls, timeout=timeout)

    return _connected(Admin, make)
