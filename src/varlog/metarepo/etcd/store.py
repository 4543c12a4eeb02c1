"""The metadata store on etcd: `MetadataStore` over etcd's HTTP gateway.

etcd's semantics are those of the interface, so a request here is one request there. What this adds is the honesty about
failures (`_failed_write`): `StoreUnavailable` only if no member can have taken the write, and `OutcomeUnknown` for
everything else; and the upkeep: etcd keeps every revision of every key until it is told to forget, so whoever writes
has it forget what is further back than `limits.WATCH_HISTORY_REVISIONS` and `WATCH_HISTORY_BYTES` (`_History`).

Two things are etcd's and not the cluster's. The revision counts all changes of that etcd, so with several clusters in
one it may rise by more than one from write to write. And history is forgotten for all of them at once: a watch of
another cluster that is far behind is told `Compacted`, and reads anew.

Everything belongs to the event loop it was opened in. Callbacks come from tasks of the store, never from inside a call;
what they raise goes to the loop's exception handler. After `close` nothing is answered or told any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from varlog import limits
from varlog.core.store import (
    CLUSTER_KEY,
    LEADER_KEY,
    Committed,
    Compare,
    KeyValue,
    Lease,
    LeaseID,
    LeaseOutcome,
    Put,
    ReadOutcome,
    ReadResult,
    Remaining,
    RemainingOutcome,
    Txn,
    TxnOutcome,
    WatchNotice,
    check_ttl,
    check_txn,
    decode_owner,
    encode_owner,
)
from varlog.errors import (
    Busy,
    EtcdRefused,
    InvalidArgument,
    LeaseNotFound,
    LimitExceeded,
    OutcomeUnknown,
    StoreUnavailable,
    WrongIdentity,
)
from varlog.metarepo.etcd import gateway
from varlog.metarepo.etcd.address import EtcdAddress, EtcdOptions
from varlog.metarepo.etcd.endpoints import LONG, Endpoints, NotSent, Unanswered
from varlog.metarepo.etcd.gateway import COMPACTED, LEASE_NOT_FOUND, MALFORMED, EtcdRefusal, Keys
from varlog.metarepo.etcd.watching import EtcdWatch
from varlog.types import ClusterID

T = TypeVar("T")

_Failure = NotSent | Unanswered | EtcdRefusal | Exception
_FAILURES = (NotSent, Unanswered, EtcdRefusal, *MALFORMED)


class EtcdHealth(NamedTuple):
    """How the store is reached, as of the last requests."""

    endpoints: tuple[str, ...]
    endpoint: str
    """The one that is spoken to."""
    version: str
    leads: bool
    """It is etcd's leader."""
    round_trip: float
    """Seconds that the last request took."""
    database_bytes: int
    used_bytes: int
    error: str
    """Why a member was left last; empty if none ever was."""


class EtcdStore:
    """See the module's text."""

    def __init__(self, address: EtcdAddress, endpoints: Endpoints) -> None:
        """Use `open`."""
        self.address = address
        self.pending = 0
        """Requests not yet answered, compactions among them."""
        self._endpoints = endpoints
        self._keys = Keys(address.prefix)
        self._history = _History()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @classmethod
    async def open(cls, address: EtcdAddress, options: EtcdOptions | None = None, *, any_version: bool = False) -> Self:
        """Raises UnsuitableEtcd, EtcdRefused, InvalidArgument, SecretUnusable, or StoreUnavailable if no member of a
        working etcd is reached. `any_version` takes also an etcd that is known to lose data."""
        options = options or EtcdOptions()
        options.check(address)
        endpoints = Endpoints(address, options, any_version=any_version)
        store = cls(address, endpoints)
        try:
            await endpoints.greet()
            await endpoints.login()
            await endpoints.call("/v3/kv/txn", store._keys.read((LEADER_KEY,)))
        except EtcdRefusal as e:
            await store.close()
            if e.not_permitted:
                raise EtcdRefused(f"etcd does not let us use the keys under {address.prefix}/: {e}") from None
            raise StoreUnavailable(f"etcd cannot be used: {e}") from None
        except (NotSent, Unanswered) as e:
            await store.close()
            raise StoreUnavailable(f"no etcd that works is reached at {address}: {e}") from None
        except BaseException:
            await store.close()
            raise
        store._start(store._look_after())
        return store

    async def close(self) -> None:
        """End everything. What is under way may still take effect."""
        self._closed = True
        await asyncio.sleep(0)  # what has been asked for has begun then, and can be ended
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._endpoints.close()

    async def owner(self) -> ClusterID | None:
        """The cluster whose metadata this is, if one has claimed it. Raises StoreUnavailable."""
        outcome = await self._read(self._keys.read((CLUSTER_KEY,)))
        if not isinstance(outcome, ReadResult):
            raise outcome
        found = outcome.kvs.get(CLUSTER_KEY)
        return None if found is None else decode_owner(found.value)

    async def claim(self, cid: ClusterID) -> None:
        """Nobody else's metadata is to be here from now on. Raises WrongIdentity if another cluster's is, and
        StoreUnavailable, OutcomeUnknown or LimitExceeded if it could not be claimed: try again."""
        owner = await self.owner()
        if owner is None:
            put = Put(CLUSTER_KEY, encode_owner(cid))
            outcome = await self._txn(Txn((Compare(CLUSTER_KEY, 0),), (put,)))
            owner = await self.owner()
            if owner is None and isinstance(outcome, Exception):
                raise outcome
        if owner != cid:
            raise WrongIdentity(f"{self.address} is of cluster {owner}, not {cid}")

    def health(self) -> EtcdHealth:
        endpoints = self._endpoints
        status = endpoints.status
        return EtcdHealth(
            self.address.endpoints,
            endpoints.name,
            status.version if status else "",
            status is not None and status.leads,
            endpoints.round_trip,
            status.database_bytes if status else 0,
            status.used_bytes if status else 0,
            endpoints.error,
        )

    # The store

    @property
    def max_value_bytes(self) -> int:
        return limits.ETCD_VALUE_BYTES

    def txn(self, txn: Txn, done: Callable[[TxnOutcome], None]) -> None:
        check_txn(txn, self.max_value_bytes)
        self._request(self._txn(txn), done)

    def read(self, keys: Sequence[str], done: Callable[[ReadOutcome], None]) -> None:
        if len(keys) > limits.METADATA_TXN_OPERATIONS:
            raise InvalidArgument(f"at most {limits.METADATA_TXN_OPERATIONS} keys are read at once")
        self._request(self._read(self._keys.read(keys)), done)

    def read_prefix(self, prefix: str, done: Callable[[ReadOutcome], None]) -> None:
        self._request(self._read_prefix(prefix), done)

    def watch(self, prefix: str, after_revision: int, notify: Callable[[WatchNotice], None]) -> EtcdWatch:
        watch = EtcdWatch(self._endpoints, self._keys, prefix, after_revision, notify)
        if not self._closed:
            watch.end = self._start(watch.follow()).cancel
        return watch

    def lease_grant(self, ttl: int, done: Callable[[LeaseOutcome], None]) -> None:
        check_ttl(ttl)
        self._request(self._lease_grant(ttl), done)

    def lease_keep_alive(self, lease: LeaseID, done: Callable[[LeaseOutcome], None]) -> None:
        self._request(self._lease_keep_alive(lease), done)

    def lease_remaining(self, lease: LeaseID, done: Callable[[RemainingOutcome], None]) -> None:
        self._request(self._lease_remaining(lease), done)

    def lease_revoke(self, lease: LeaseID, done: Callable[[LeaseOutcome], None]) -> None:
        self._request(self._lease_revoke(lease), done)

    # Tasks

    def _request(self, work: Coroutine[Any, Any, T], done: Callable[[T], None]) -> None:
        if self._closed:
            work.close()
            return
        if self.pending >= limits.ETCD_REQUESTS:
            work.close()
            raise Busy("too many requests to etcd are under way")
        self.pending += 1
        self._start(self._answer(work, done))

    async def _answer(self, work: Coroutine[Any, Any, T], done: Callable[[T], None]) -> None:
        try:
            outcome = await work
        finally:
            self.pending -= 1
        if not self._closed:
            done(outcome)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_ended)
        return task

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "a callback of the metadata store failed", "exception": error, "task": task}
            self._loop.call_exception_handler(context)

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(limits.ETCD_LOOK_SECONDS)
            await self._endpoints.look()

    # What is asked of etcd

    async def _txn(self, txn: Txn) -> TxnOutcome:
        try:
            outcome = self._keys.txn_outcome(await self._endpoints.call("/v3/kv/txn", self._keys.txn(txn)))
        except _FAILURES as e:
            return _failed_write(e)
        if type(outcome) is Committed and (txn.puts or txn.deletes):
            self._note(outcome.revision, txn)
        return outcome

    def _note(self, revision: int, txn: Txn) -> None:
        size = sum([len(put.key) + len(put.value) for put in txn.puts])
        forgotten = self._history.note(revision, size)
        if forgotten is not None and not self._closed:
            self.pending += 1
            self._start(self._compact(forgotten))

    async def _compact(self, revision: int) -> None:
        """Nothing depends on it but etcd's size: if it fails, the next one does it all."""
        try:
            await self._endpoints.call("/v3/kv/compaction", gateway.encode({"revision": revision}))
        except _FAILURES as e:
            if not (isinstance(e, EtcdRefusal) and e.words == COMPACTED):
                self._endpoints.error = f"history could not be compacted: {e}"
        finally:
            self.pending -= 1

    async def _read(self, body: bytes) -> ReadOutcome:
        try:
            return self._keys.read_outcome(await self._endpoints.call("/v3/kv/txn", body))
        except _FAILURES as e:
            return _failed_read(e)

    async def _read_prefix(self, prefix: str) -> ReadOutcome:
        start, end = self._keys.span(prefix)
        kvs: dict[str, KeyValue] = {}
        revision = 0
        try:
            async with asyncio.timeout(limits.ETCD_READ_SECONDS):
                while True:
                    body = self._keys.page(start, end, revision, limits.ETCD_PAGE_KEYS)
                    page = self._keys.page_outcome(await self._endpoints.call("/v3/kv/range", body, LONG), revision)
                    revision = page.revision
                    kvs |= {kv.key: kv for kv in page.kvs}
                    if page.after is None:
                        return ReadResult(revision, kvs)
                    start = page.after
        except TimeoutError:
            return StoreUnavailable(f"reading everything under {prefix!r} from etcd took too long; try again")
        except _FAILURES as e:
            return _failed_read(e)

    async def _lease_grant(self, ttl: int) -> LeaseOutcome:
        try:
            told = gateway.decode_granted(await self._endpoints.call("/v3/lease/grant", gateway.encode({"TTL": ttl})))
        except _FAILURES as e:
            return _failed_lease(e)
        return Lease(LeaseID(told.id), told.ttl)

    async def _lease_keep_alive(self, lease: LeaseID) -> LeaseOutcome:
        try:
            answer = await self._endpoints.call("/v3/lease/keepalive", gateway.encode({"ID": lease}))
            told = gateway.decode_kept_alive(answer)
        except _FAILURES as e:
            return _failed_lease(e)
        return Lease(lease, told.ttl) if told.ttl > 0 else _no_lease(lease)

    async def _lease_remaining(self, lease: LeaseID) -> RemainingOutcome:
        try:
            answer = await self._endpoints.call("/v3/lease/timetolive", gateway.encode({"ID": lease}))
            told = gateway.decode_granted(answer)
        except _FAILURES as e:
            return _no_lease(lease) if _says_no_lease(e) else _failed_read(e)
        return Remaining(lease, told.granted, told.ttl) if told.granted and told.ttl >= 0 else _no_lease(lease)

    async def _lease_revoke(self, lease: LeaseID) -> LeaseOutcome:
        """etcd does not say what it revoked, so that is asked for first."""
        found = await self._lease_remaining(lease)
        if not isinstance(found, Remaining):
            return found
        try:
            await self._endpoints.call("/v3/lease/revoke", gateway.encode({"ID": lease}))
        except _FAILURES as e:
            return _failed_lease(e)
        return Lease(lease, found.granted)


class _History:
    """What this store has written, as far as etcd still knows it: when to have it forget, and up to where.

    A little more than has to be kept is: what is kept is cut in steps of a quarter of it.
    """

    def __init__(self) -> None:
        self._written: deque[tuple[int, int]] = deque()
        self._bytes = 0

    def note(self, revision: int, size: int) -> int | None:
        """A write; returns the last revision that is to be forgotten now, if any is."""
        self._written.append((revision, size))
        self._bytes += size
        revisions, bound = limits.WATCH_HISTORY_REVISIONS, limits.WATCH_HISTORY_BYTES
        if len(self._written) <= revisions + (revisions >> 2) - 1 and self._bytes <= bound + (bound >> 2):
            return None
        last = None
        while len(self._written) > revisions or self._bytes > bound:
            last, size = self._written.popleft()
            self._bytes -= size
        return last


def _no_lease(lease: LeaseID) -> LeaseNotFound:
    return LeaseNotFound(f"there is no lease {lease}")


def _says_no_lease(e: _Failure) -> bool:
    return isinstance(e, EtcdRefusal) and e.words == LEASE_NOT_FOUND


def _failed_read(e: _Failure) -> StoreUnavailable:
    return StoreUnavailable(f"etcd did not answer the read: {e}")


def _failed_write(e: _Failure) -> StoreUnavailable | OutcomeUnknown | LeaseNotFound | LimitExceeded:
    if _says_no_lease(e):
        return LeaseNotFound("there is no such lease to put a key under")
    if isinstance(e, EtcdRefusal) and e.too_much:
        return LimitExceeded(f"etcd has no room for the write: {e}; see its --quota-backend-bytes, --max-request-bytes")
    if isinstance(e, NotSent) or (isinstance(e, EtcdRefusal) and e.nothing_happened):
        return StoreUnavailable(f"etcd did not take the write: {e}")
    return OutcomeUnknown(f"etcd may or may not have taken the write: {e}")


def _failed_lease(e: _Failure) -> StoreUnavailable | OutcomeUnknown | LeaseNotFound:
    failed = _failed_write(e)
    return StoreUnavailable(str(failed)) if isinstance(failed, LimitExceeded) else failed
