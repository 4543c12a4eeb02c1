"""`NodeHost`: what simulated storage nodes of both orderings have in common.

A host does what a daemon does around the core: it opens the log streams it finds, hands messages in, carries staged
groups to the disk (the write after one delay, the sync after another) and tells the core when they are durable; makes
and removes replicas. It adds nothing to the protocol. When the process is killed everything in memory is gone; `start`
builds it anew from the disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Generic, TypeVar

from varlog import errors, limits
from varlog.core.address import METADATA_REPOSITORY
from varlog.core.branches import Branch, Observe
from varlog.core.chainreplica import ChainReplica
from varlog.core.executor import LogStreamExecutor
from varlog.core.identity import SECRET_BYTES
from varlog.core.messages import (
    AddLogStream,
    AdoptIdentity,
    Decided,
    GetInfo,
    Info,
    Message,
    RemoveLogStream,
    ReopenLogStream,
    ReplicaInfo,
    ReplicaReply,
)
from varlog.core.proving import Outcome, Prover
from varlog.core.storagenode import StorageNode
from varlog.sim.disk import SimDisk
from varlog.sim.network import Network
from varlog.sim.process import Process
from varlog.storage.group import WriteGroup
from varlog.storage.grouped import AnyLog
from varlog.storage.logfiles import make_room, publish
from varlog.storage.options import StorageOptions
from varlog.storagenode.identity import Secrets
from varlog.storagenode.replicas import ITS_OWN, UnopenedReplica
from varlog.types import (
    LLSN,
    ClusterID,
    Epoch,
    LogStreamID,
    LogStreamIdentity,
    ReplicaState,
    StorageNodeID,
    TopicID,
)

CID: Final = ClusterID(1)
TOPIC: Final = TopicID(1)
TICK: Final = 0.1
IDLE_TICK: Final = 0.5
ANNOUNCE_EVERY: Final = 0.5
"""There are no connections whose beginning would be the time for it."""
_VOLUME: Final = "/volume"
_REMOVED: Final = "removed"
"""In the directory of a replica that is being removed: what is left of it counts for nothing."""

S = TypeVar("S", bound=AnyLog)


class NodeHost(ABC, Generic[S]):
    """One storage node; see the module's text. What an ordering does in its own way is abstract, or said to be so."""

    sync_seconds: float
    """A disk slow enough that something is under way whenever a fault strikes."""

    def __init__(
        self,
        process: Process,
        network: Network,
        disk: SimDisk,
        snid: StorageNodeID,
        observe: Observe,
        options: StorageOptions,
    ) -> None:
        self.process = process
        self.disk = disk
        self.snid = snid
        self.storages: dict[LogStreamID, S] = {}
        self.frugal = False
        """See `varlog.sim.shape.Shape.frugal`."""
        self.stopped: errors.VarlogError | None = None
        """Why the node ended itself, if it did."""
        self._network = network
        self._observe = observe
        self._rng = process.world.rng(f"disk of {process.name}")
        self._options = replace(options, nonce=self._nonce)
        self._starts = 0
        self._requests = 0
        self._announced = 0.0
        self._busy: set[LogStreamID] = set()
        self._closings: dict[LogStreamID, Callable[[], None]] = {}
        """Replicas that are served no more, and what is done when they are closed."""
        self._unopened: dict[LogStreamID, UnopenedReplica] = {}
        """What is on the disk and could not be opened."""
        self._reopened: dict[LogStreamID, float] = {}
        """When replicas were last opened anew, or were to be."""
        self._wake: float | None = None
        self._is_active = True
        """Something has happened since the last tick, or nodes are not frugal."""
        self._next_tick = 0.0
        disk.mkdir(_VOLUME)
        network.attach(process.name, process, self._receive)

    def _nonce(self) -> int:
        return self._rng.getrandbits(64)

    def _random_bytes(self) -> bytes:
        return self._rng.randbytes(SECRET_BYTES)

    @property
    def _path(self) -> str:
        return f"{_VOLUME}/cid={CID}/snid={self.snid}"

    def _replica_path(self, lsid: LogStreamID) -> str:
        return f"{self._path}/lsid={lsid}"

    def _identity(self, lsid: LogStreamID) -> LogStreamIdentity:
        return LogStreamIdentity(CID, self.snid, TOPIC, lsid)

    # What an ordering does in its own way

    @abstractmethod
    def replica(self, lsid: LogStreamID) -> LogStreamExecutor | ChainReplica | None:
        """The one that is served."""

    @abstractmethod
    def _storage(self, lsid: LogStreamID) -> S:
        """What is on the disk."""

    @abstractmethod
    def _serve(self, storage: S, lsid: LogStreamID) -> None: ...

    @abstractmethod
    def _add(self, message: AddLogStream) -> ReplicaReply:
        """Make a replica, unless there is one; how that is answered."""

    @abstractmethod
    def _info(self, request: int) -> Info: ...

    @property
    def _unopened_infos(self) -> list[ReplicaInfo]:
        return [unopened.info() for unopened in self._unopened.values()]

    @abstractmethod
    def _settle(self) -> None:
        """After every event: do the reads, let copies go on, write what is staged."""

    @abstractmethod
    def _on_durable(self, lsid: LogStreamID, storage: S, group: WriteGroup) -> None: ...

    def _is_synced(self, group: WriteGroup) -> bool:  # noqa: ARG002  # an ordering may leave some as they are
        return True

    def _forget(self) -> None:
        """The process begins anew, and knows nothing."""

    def _opened(self) -> None:
        """At the start: what is on the disk is served."""

    def _gone(self, lsid: LogStreamID) -> None:
        """The files of a replica are about to be deleted."""

    # Life

    def start(self) -> None:
        """Open what is on the disk (B3) and begin to serve. The process is alive."""
        self._starts += 1
        self._busy.clear()
        self._closings.clear()
        self._unopened.clear()
        self._reopened.clear()
        self._wake = None
        self._is_active = True
        self.storages.clear()
        self._forget()
        try:
            self.disk.mkdir(self._path)
            secrets = Secrets.load(self.disk, CID, self.snid, [self._path], [])
            self._prover = Prover(self.snid, self._starts, secrets, self._random_bytes)
            self.node = StorageNode(self.snid, self._prover.boot, self._send, self._observe)
            for name in self.disk.listdir(self._path):
                if name.startswith("lsid="):
                    self._open_or_keep(LogStreamID(int(name.removeprefix("lsid="))))
            self._opened()
        except errors.VarlogError as error:
            self._stop(error)
            return
        self._tick()

    def lose_disk(self) -> None:
        """The process ends and the disk is gone; what is put in its place is empty. The count of starts goes with it,
        so that the number of the next start is an old one."""
        self.kill()
        self.disk = SimDisk()
        self.disk.mkdir(_VOLUME)
        self._starts = 0

    def _open(self, lsid: LogStreamID) -> None:
        if self.disk.exists(f"{self._replica_path(lsid)}/{_REMOVED}"):
            self._delete(lsid)
            return
        try:
            storage = self._storage(lsid)
        except errors.NoSuchReplica:
            return  # it was never made whole, so nobody was told of it
        self._serve(storage, lsid)

    def _open_or_keep(self, lsid: LogStreamID) -> None:
        """What cannot be opened concerns itself alone, and is tried again."""
        try:
            self._open(lsid)
        except ITS_OWN as error:
            self.process.world.trace("not opened", self.process, str(error))
            self._unopened[lsid] = UnopenedReplica(_VOLUME, lsid, error)
            self.process.at(limits.REOPEN_SECONDS, self._open_again, lsid)
        else:
            self._unopened.pop(lsid, None)

    def _open_again(self, lsid: LogStreamID) -> None:
        if lsid in self._unopened:
            self._open_or_keep(lsid)
            self._settle()

    def kill(self) -> None:
        """The process ends; what it wrote stays in the page cache."""
        self.process.kill()
        self.disk.kill()

    def _stop(self, error: errors.VarlogError) -> None:
        """The node ends itself, as a daemon does on an error it must not survive."""
        self.stopped = error
        self.process.world.trace("stopped", self.process, str(error))
        self.kill()

    def _send(self, address: str, message: Message) -> None:
        self._network.send(self.process, address, message)

    # Events

    def _receive(self, source: str, message: Message) -> None:
        self._guarded(lambda: self._handle(source, message))

    def _guarded(self, receive: Callable[[], None]) -> None:
        try:
            receive()
        except (errors.ConsistencyViolation, errors.WrongIdentity) as error:
            self._stop(error)
            return
        except errors.InvalidArgument as error:
            self.process.world.trace("stray message", self.process, str(error))
        self._settle()

    def _handle(self, source: str, message: Message) -> None:
        match message:
            case AddLogStream():
                self._add_log_stream(source, message)
            case RemoveLogStream():
                self._remove_log_stream(source, message)
            case ReopenLogStream():
                self._reopen_log_stream(source, message)
            case AdoptIdentity():
                self._send(source, self._prover.adopt(message))
                self.node.boot = self._prover.boot
                self._announce()
            case Decided():
                if self._prover.on_decided(message) is Outcome.PROVEN:
                    self._announce()
            case GetInfo(request):
                self._send(source, self._info(request))
            case _:
                if self.node.is_news(message):
                    self._stir()
                self.node.on_message(source, message, self.process.monotonic())

    def _announce(self) -> None:
        self._announced = self.process.monotonic()
        self._requests += 1
        self._send(METADATA_REPOSITORY, self._prover.announce(self._requests, "", ()))

    def _tick(self) -> None:
        now = self.process.monotonic()
        if now - self._announced >= ANNOUNCE_EVERY or self._announced == 0.0:
            self._announce()
        pause = TICK if self._is_active else IDLE_TICK
        self._is_active = not self.frugal
        self._clear()
        self.node.tick(now)
        self._settle()
        self._tick_in(pause)

    def _clear(self) -> None:
        """Delete some of what trims have left."""
        for lsid, storage in self.storages.items():
            if storage.doomed and lsid not in self._closings:
                storage.delete_doomed()

    def _tick_in(self, seconds: float) -> None:
        self._next_tick = due = self.process.monotonic() + seconds
        self.process.at(seconds, self._tick_if, due)

    def _tick_if(self, due: float) -> None:
        if due == self._next_tick:
            self._tick()

    def _stir(self) -> None:
        """Something happens again: time has to be looked at more often."""
        if not self._is_active:
            self._is_active = True
            if self._next_tick > self.process.monotonic() + TICK:
                self._tick_in(TICK)

    def _wake_at(self, due: float | None) -> None:
        """Settle again when a copy wants to go on."""
        if due is not None and (self._wake is None or due < self._wake):
            self._wake = due
            self.process.at(max(0.0, due - self.process.monotonic()), self._woken, due)

    def _woken(self, due: float) -> None:
        if self._wake == due:
            self._wake = None
        self._settle()

    # Replicas come and go

    def _add_log_stream(self, source: str, message: AddLogStream) -> None:
        lsid = message.lsid
        try:
            if lsid in self._closings:
                raise errors.Busy(f"log stream {lsid} is being removed from this node")
            if lsid in self._unopened:
                raise errors.AlreadyExists(f"log stream {lsid} has data on this node")
            reply = self._add(message)
        except errors.VarlogError as error:
            self._reply(source, message.request, lsid, error.code)
            return
        self._send(source, reply)

    def _remove_log_stream(self, source: str, message: RemoveLogStream) -> None:
        lsid, replica = message.lsid, self.replica(message.lsid)
        if lsid in self._unopened:
            self._remove_unopened(source, message)
        elif replica is None and lsid not in self._closings:
            self._reply(source, message.request, lsid, 0)
        elif replica is not None and message.new_only and replica.epoch > 0:
            self._reply(source, message.request, lsid, errors.AlreadyExists.code)
        elif replica is not None and ((message.failed_only and replica.healthy) or 0 < message.until < replica.epoch):
            # The request is about one that was not sound, or outside of the set, and is not so any more.
            self._reply(source, message.request, lsid, errors.Conflict.code)
        elif replica is not None:
            self._remove(lsid, lambda: self._reply(source, message.request, lsid, 0))

    def _remove_unopened(self, source: str, message: RemoveLogStream) -> None:
        """What it holds is not known, so nothing that is asked for on a condition is done. None is damaged here: whose
        it is need not be asked of the files, so damage is found when they are open."""
        request, lsid = message.request, message.lsid
        if message.new_only or message.failed_only or message.until:
            refusal = errors.AlreadyExists if message.new_only else errors.Conflict
            self._reply(source, request, lsid, refusal.code)
            return
        del self._unopened[lsid]
        self._delete_all(lsid, lambda: self._reply(source, request, lsid, 0))

    def _reopen_log_stream(self, source: str, message: ReopenLogStream) -> None:
        lsid, replica = message.lsid, self.replica(message.lsid)
        if lsid in self._unopened:  # it is tried again anyway
            self._reply(source, message.request, lsid, errors.Busy.code)
            return
        if replica is None or replica.healthy or replica.fault == errors.Corrupt.code:
            code = errors.NoSuchReplica.code if replica is None else replica.fault
            self._reply(source, message.request, lsid, code)
            return
        now = self.process.monotonic()
        if now - self._reopened.get(lsid, -limits.REOPEN_SECONDS) < limits.REOPEN_SECONDS:
            self._reply(source, message.request, lsid, errors.Busy.code)
            return
        self._reopened[lsid] = now
        try:
            make_room(self.disk, self._replica_path(lsid), self._options.segment_bytes)
        except OSError:
            self._reply(source, message.request, lsid, replica.fault)
            return
        self._close(lsid, lambda: self._open_anew(lsid, lambda: self._reply(source, message.request, lsid, 0)))

    def _open_anew(self, lsid: LogStreamID, then: Callable[[], None]) -> None:
        del self._closings[lsid]
        self._open_or_keep(lsid)
        if lsid not in self._unopened:
            self._observe(Branch.M8_REOPENED)
            then()

    def _reply(self, source: str, request: int, lsid: LogStreamID, code: int) -> None:
        self._send(source, self._reply_of(request, lsid, code))

    def _reply_of(self, request: int, lsid: LogStreamID, code: int) -> ReplicaReply:
        return ReplicaReply(request, lsid, code, self.snid, Epoch(0), ReplicaState.SEALING, LLSN(0))

    def _remove(self, lsid: LogStreamID, then: Callable[[], None]) -> None:
        """Serve a replica no more; delete it when no group of it is under way."""
        self._close(lsid, lambda: self._finish_removal(lsid, then))

    def _close(self, lsid: LogStreamID, then: Callable[[], None]) -> None:
        """Serve a replica no more; go on when no group of it is under way."""
        self.node.remove(lsid)
        self._closings[lsid] = then
        if lsid not in self._busy:
            self._finish_closing(lsid)

    def _finish_closing(self, lsid: LogStreamID) -> None:
        self.storages.pop(lsid).abandon()
        self._closings[lsid]()

    def _finish_removal(self, lsid: LogStreamID, then: Callable[[], None]) -> None:
        del self._closings[lsid]
        self._delete_all(lsid, then)

    def _delete_all(self, lsid: LogStreamID, then: Callable[[], None]) -> None:
        try:
            publish(self.disk, self._replica_path(lsid), _REMOVED, b"").close()
            self._delete(lsid)
        except (OSError, errors.VarlogError) as error:
            self.process.world.trace("not removed", self.process, str(error))
            return
        then()

    def _delete(self, lsid: LogStreamID) -> None:
        path = self._replica_path(lsid)
        self._gone(lsid)
        for name in self.disk.listdir(path):
            if name != _REMOVED:
                self.disk.unlink(f"{path}/{name}")
        self.disk.sync_dir(path)
        self.disk.unlink(f"{path}/{_REMOVED}")
        self.disk.rmdir(path)
        self.disk.sync_dir(self._path)

    # Disk

    def _delay(self, mean: float) -> float:
        return mean * self.disk.slowness * (0.5 + self._rng.random())

    def _write_next(self, lsid: LogStreamID, storage: S) -> None:
        group = storage.take()
        if group is not None:
            self._busy.add(lsid)
            self.process.at(self._delay(0.0002), self._write, lsid, storage, group)

    def _write(self, lsid: LogStreamID, storage: S, group: WriteGroup) -> None:
        try:
            storage.write(group)
        except errors.VarlogError as error:
            self._failed(lsid, error)
            return
        if self._is_synced(group):
            self.process.at(self._delay(self.sync_seconds), self._sync, lsid, storage, group)
        else:
            self._finish(lsid, storage, group)

    def _sync(self, lsid: LogStreamID, storage: S, group: WriteGroup) -> None:
        try:
            storage.sync(group)
        except errors.VarlogError as error:
            self._failed(lsid, error)
            return
        self._finish(lsid, storage, group)

    def _finish(self, lsid: LogStreamID, storage: S, group: WriteGroup) -> None:
        storage.finish(group)
        self._busy.discard(lsid)
        if lsid in self._closings:
            self._finish_closing(lsid)
        else:
            self._on_durable(lsid, storage, group)
        self._settle()

    def _failed(self, lsid: LogStreamID, error: errors.VarlogError) -> None:
        self._busy.discard(lsid)
        if lsid in self._closings:
            self._finish_closing(lsid)
        else:
            self.node.on_failed(lsid, error)
        self._settle()
