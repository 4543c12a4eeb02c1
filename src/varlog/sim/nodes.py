"""Simulated storage nodes: the production core and storage on a simulated disk, in a simulated process.

The host does what a daemon does around the core: it opens the log streams it finds, hands messages in, carries staged
groups to the disk (the write after one delay, the sync after another) and tells the core when they are durable; reads
what others copy; makes replicas anew. It adds nothing to the protocol. When the process is killed everything in
memory is gone; `start` builds it anew from the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Final

from varlog import errors, limits
from varlog.batch import BatchHeader
from varlog.core.address import METADATA_REPOSITORY
from varlog.core.branches import Branch, Observe
from varlog.core.dedup import DedupTable
from varlog.core.executor import LogStreamExecutor
from varlog.core.identity import SECRET_BYTES
from varlog.core.messages import (
    AddLogStream,
    AdoptIdentity,
    Append,
    Decided,
    GetInfo,
    Info,
    Message,
    RemoveLogStream,
    ReopenLogStream,
    ReplicaReply,
    StoredLine,
)
from varlog.core.proving import Outcome, Prover
from varlog.core.replicalog import CopiedPart
from varlog.core.storagenode import ReadPlan, StorageNode
from varlog.core.syncing import FetchPlan, RestartPlan
from varlog.sim.disk import SimDisk
from varlog.sim.evidence import Durability, Frames
from varlog.sim.network import Network
from varlog.sim.process import Process
from varlog.storage.copying import base_of
from varlog.storage.format import LogBase
from varlog.storage.group import WriteGroup
from varlog.storage.log import LogStreamStorage, StorageOptions
from varlog.storage.logfiles import make_room, publish
from varlog.storagenode.identity import IDENTITY_NAME, Secrets
from varlog.types import (
    LLSN,
    ClusterID,
    Epoch,
    LogStreamID,
    LogStreamIdentity,
    ReplicaState,
    Room,
    Sequence,
    StorageNodeID,
    TopicID,
)

CID: Final = ClusterID(1)
TICK: Final = 0.1
SYNC_SECONDS: Final = 0.004
"""A disk slow enough that something is under way whenever a fault strikes."""
READ_SECONDS: Final = 0.00001
"""What a client sent within so short a time comes with one read."""
ANNOUNCE_EVERY: Final = 0.5
"""There are no connections whose beginning would be the time for it."""
_VOLUME: Final = "/volume"
_REMOVED: Final = "removed"
"""In the directory of a replica that is being removed: what is left of it counts for nothing."""


class RecordingLog:
    """A replica's log that notes every batch staged in it, for the checkers."""

    def __init__(self, storage: LogStreamStorage, lsid: LogStreamID, frames: Frames, where: str) -> None:
        self._lsid = lsid
        self._frames = frames
        self._where = where
        self.synced = storage.synced
        self._storage = storage
        self.stage_commit = storage.stage_commit
        self.stage_seal = storage.stage_seal
        self.stage_unseal = storage.stage_unseal
        self.stage_trim = storage.stage_trim
        self.flush_commits = storage.flush_commits
        self.llsn_after = storage.llsn_after

    def stage_batch(
        self, llsn: LLSN, epoch: Epoch, prev_sequence: Sequence, batch: bytes | memoryview, header: BatchHeader
    ) -> None:
        self._frames.saw(self._lsid, epoch, llsn, header.count, bytes(batch), self._where)
        self._storage.stage_batch(llsn, epoch, prev_sequence, batch, header)

    @property
    def run_room(self) -> Room:
        return self._storage.run_room

    def stage_batches(
        self,
        llsn: LLSN,
        epoch: Epoch,
        prev_sequences: Seq[int],
        batches: Seq[bytes | memoryview],
        headers: Seq[BatchHeader],
    ) -> None:
        at: int = llsn
        for batch, header in zip(batches, headers, strict=True):
            self._frames.saw(self._lsid, epoch, LLSN(at), header.count, bytes(batch), self._where)
            at += header.count
        self._storage.stage_batches(llsn, epoch, prev_sequences, batches, headers)


class StorageNodeHost:
    """One storage node."""

    def __init__(
        self,
        process: Process,
        network: Network,
        disk: SimDisk,
        snid: StorageNodeID,
        frames: Frames,
        durability: Durability,
        observe: Observe,
        options: StorageOptions,
        dedup: Callable[[], DedupTable],
    ) -> None:
        self.process = process
        self.disk = disk
        self.snid = snid
        self._network = network
        self._frames = frames
        self._durability = durability
        self._observe = observe
        self._rng = process.world.rng(f"disk of {process.name}")
        self._options = replace(options, nonce=self._nonce)
        self._dedup = dedup
        self._starts = 0
        self._requests = 0
        self._announced = 0.0
        self._busy: set[LogStreamID] = set()
        self._closings: dict[LogStreamID, Callable[[], None]] = {}
        """Replicas that are served no more, and what is done when they are closed."""
        self._reopened: dict[LogStreamID, float] = {}
        """Replicas that are served no more, and what follows when their files are not in use."""
        self._wake: float | None = None
        self._appends: list[Append] = []
        """Of the read that is under way, and"""
        self._appends_from = ""
        self.storages: dict[LogStreamID, LogStreamStorage] = {}
        self.stopped: errors.VarlogError | None = None
        """Why the node ended itself, if it did."""
        disk.mkdir(_VOLUME)
        network.attach(process.name, process, self._receive)

    def _nonce(self) -> int:
        return self._rng.getrandbits(64)

    @property
    def _path(self) -> str:
        return f"{_VOLUME}/cid={CID}/snid={self.snid}"

    # Life

    def start(self) -> None:
        """Open what is on the disk (B3) and begin to serve. The process is alive."""
        self._starts += 1
        self._busy.clear()
        self._closings.clear()
        self._reopened.clear()
        self._wake = None
        self._appends = []
        self.storages.clear()
        try:
            self.disk.mkdir(self._path)
            secrets = Secrets.load(self.disk, CID, self.snid, [self._path], [])
            self._prover = Prover(self.snid, self._starts, secrets, self._random_bytes)
            self.node = StorageNode(self.snid, self._prover.boot, self._send, self._observe)
            for name in self.disk.listdir(self._path):
                if name.startswith("lsid="):
                    self._open(LogStreamID(int(name.removeprefix("lsid="))))
        except errors.VarlogError as error:
            self._stop(error)
            return
        self._tick()

    def _random_bytes(self) -> bytes:
        return self._rng.randbytes(SECRET_BYTES)

    def lose_disk(self) -> None:
        """The process ends and the disk is gone; what is put in its place is empty. The count of starts goes with it,
        so that the number of the next start is an old one."""
        self.kill()
        self.disk = SimDisk()
        self.disk.mkdir(_VOLUME)
        self._starts = 0

    @property
    def has_identity(self) -> bool:
        return self.disk.exists(f"{self._path}/{IDENTITY_NAME}")

    def _open(self, lsid: LogStreamID) -> None:
        # A directory whose log stream was never created whole holds nothing anybody was told of.
        path = self._replica_path(lsid)
        if self.disk.exists(f"{path}/{_REMOVED}"):
            self._delete(path)
            return
        try:
            identity = LogStreamIdentity(CID, self.snid, TopicID(1), lsid)
            storage = LogStreamStorage.open(self.disk, path, identity, self._options)
        except errors.NoSuchReplica:
            return
        self._serve(storage, lsid)

    def _serve(self, storage: LogStreamStorage, lsid: LogStreamID) -> None:
        log = RecordingLog(storage, lsid, self._frames, self.process.name)
        executor = LogStreamExecutor(self.snid, TopicID(1), lsid, log, self._send, self._observe, self._dedup())
        storage.snapshot_source = executor.dedup.snapshot
        recovered = storage.recovered
        executor.recover(recovered, recovered.corruption)
        for b in recovered.uncommitted:
            self._durability.synced(lsid, b.epoch, b.llsn + b.count, self.process.name)
        if recovered.torn_tail:
            self._observe(Branch.RULE15_TORN_TAIL)
        if recovered.corruption is not None:
            self._observe(Branch.RULE15_CORRUPTION)
        if recovered.dropped_commit:
            self._observe(Branch.B10_PARTIAL_COMMIT)
        self.storages[lsid] = storage
        self.node.add(executor)

    def _replica_path(self, lsid: LogStreamID) -> str:
        return f"{self._path}/lsid={lsid}"

    def reopened(self, lsid: LogStreamID) -> LogStreamStorage:
        """What a node that is down has on its disk, looked at without touching it."""
        identity = LogStreamIdentity(CID, self.snid, TopicID(1), lsid)
        copy = SimDisk.from_image(self.disk.image())
        return LogStreamStorage.open(copy, self._replica_path(lsid), identity, self._options)

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
        if not isinstance(message, Append) or source != self._appends_from:
            self._take_appends()
        if not self.process.alive:
            return  # which what came before has ended
        if not isinstance(message, Append):
            self._guarded(lambda: self._handle(source, message))
            return
        if not self._appends:
            self._appends_from = source
            self.process.at(READ_SECONDS, self._take_appends)
        self._appends.append(message)

    def _take_appends(self) -> None:
        """What one read has brought of them is taken together, as the server does."""
        appends, self._appends = self._appends, []
        if appends:
            self._guarded(lambda: self.node.on_appends(self._appends_from, appends, self.process.monotonic()))

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
                replicas = tuple(e.info() for e in self.node.executors)
                identified = self._prover.is_identified
                unanswered = self.node.unanswered(self.process.monotonic())
                info = Info(
                    request, self.snid, self.node.boot, replicas, is_identified=identified, unanswered=unanswered
                )
                self._send(source, info)
            case _:
                self.node.on_message(source, message, self.process.monotonic())

    def _announce(self) -> None:
        self._announced = self.process.monotonic()
        self._requests += 1
        self._send(METADATA_REPOSITORY, self._prover.announce(self._requests, "", ()))

    # Replicas come and go

    def _add_log_stream(self, source: str, message: AddLogStream) -> None:
        lsid = message.lsid
        try:
            if lsid in self._closings:
                raise errors.Busy(f"log stream {lsid} is being removed from this node")
            if lsid not in self.storages:
                self._create(message.tpid, lsid, None)
        except errors.VarlogError as error:
            self._reply(source, message.request, lsid, error.code)
            return
        info = next(e for e in self.node.executors if e.lsid == lsid)
        reply = ReplicaReply(message.request, lsid, 0, self.snid, info.epoch, info.state, info.committed_end)
        self._send(source, reply)

    def _create(self, tpid: TopicID, lsid: LogStreamID, base: LogBase | None) -> None:
        identity = LogStreamIdentity(CID, self.snid, tpid, lsid)
        storage = LogStreamStorage.create(self.disk, self._replica_path(lsid), identity, self._options, base)
        self._serve(storage, lsid)

    def _remove_log_stream(self, source: str, message: RemoveLogStream) -> None:
        lsid = message.lsid
        executor = next((e for e in self.node.executors if e.lsid == lsid), None)
        if executor is None and lsid not in self._closings:
            self._reply(source, message.request, lsid, 0)
        elif executor is not None and message.new_only and executor.epoch > 0:
            self._reply(source, message.request, lsid, errors.AlreadyExists.code)
        elif executor is not None and self._is_kept(executor, message):
            self._reply(source, message.request, lsid, errors.Conflict.code)
        elif executor is not None:
            self._remove(lsid, lambda: self._reply(source, message.request, lsid, 0))

    def _reopen_log_stream(self, source: str, message: ReopenLogStream) -> None:
        lsid = message.lsid
        executor = next((e for e in self.node.executors if e.lsid == lsid), None)
        if executor is None or executor.healthy or executor.info().fault == errors.Corrupt.code:
            code = errors.NoSuchReplica.code if executor is None else executor.info().fault
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
            self._reply(source, message.request, lsid, executor.info().fault)
            return
        self._close(lsid, lambda: self._open_anew(lsid, lambda: self._reply(source, message.request, lsid, 0)))

    def _open_anew(self, lsid: LogStreamID, then: Callable[[], None]) -> None:
        """Until it can be opened its files are in the way of anything else."""
        try:
            self._open(lsid)
        except errors.VarlogError as error:
            self.process.world.trace("not opened", self.process, str(error))
            self.process.at(limits.REOPEN_SECONDS, self._open_anew, lsid, then)
            return
        del self._closings[lsid]
        self._observe(Branch.M8_REOPENED)
        then()

    @staticmethod
    def _is_kept(executor: LogStreamExecutor, message: RemoveLogStream) -> bool:
        """The request is about a replica that was not sound, or outside of the set, and is not so any more."""
        return (message.failed_only and executor.healthy) or 0 < message.until < executor.epoch

    def _reply(self, source: str, request: int, lsid: LogStreamID, code: int) -> None:
        self._send(source, ReplicaReply(request, lsid, code, self.snid, Epoch(0), ReplicaState.SEALING, LLSN(0)))

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
        path = self._replica_path(lsid)
        del self._closings[lsid]
        try:
            publish(self.disk, path, _REMOVED, b"").close()
            self._delete(path)
        except (OSError, errors.VarlogError) as error:
            self.process.world.trace("not removed", self.process, str(error))
            return
        then()

    def _delete(self, path: str) -> None:
        for name in self.disk.listdir(path):
            if name != _REMOVED:
                self.disk.unlink(f"{path}/{name}")
        self.disk.sync_dir(path)
        self.disk.unlink(f"{path}/{_REMOVED}")
        self.disk.rmdir(path)
        self.disk.sync_dir(self._path)

    def _restart(self, plan: RestartPlan) -> None:
        """A replica all of which is trimmed where it copies from begins anew there (rule 14)."""
        tpid, lsid = plan.executor.tpid, plan.executor.lsid
        base = base_of(plan.base, plan.epoch)

        def create() -> None:
            try:
                self._create(tpid, lsid, base)
            except errors.VarlogError as error:  # it is missing now, and the manager adds it again
                self.process.world.trace("not made anew", self.process, str(error))
                return
            self.node.syncing.resume(next(e for e in self.node.executors if e.lsid == lsid), plan)

        self._remove(lsid, create)

    def _tick(self) -> None:
        now = self.process.monotonic()
        if now - self._announced >= ANNOUNCE_EVERY or self._announced == 0.0:
            self._announce()
        self.node.tick(now)
        self._settle()
        self.process.at(TICK, self._tick)

    def _settle(self) -> None:
        """After every event: do the reads, report, write what is staged."""
        reads, self.node.reads = self.node.reads, []
        for plan in reads:
            self.process.at(self._delay(0.0001), self._read, plan)
        self._copy()
        self.node.flush(self.process.monotonic())
        self.node.stage()
        for lsid, storage in self.storages.items():
            if lsid not in self._busy and storage.staged and not storage.poisoned:
                self._write_next(lsid, storage)
        self._wake_for_copies()

    def _copy(self) -> None:
        """What copies ask of a node beside the messages they send."""
        syncing = self.node.syncing
        fetches, syncing.fetches = syncing.fetches, []
        for plan in fetches:
            self.process.at(self._delay(0.0002), self._fetch, plan)
        restarts, syncing.restarts = syncing.restarts, []
        for restart in restarts:
            self._restart(restart)

    def _wake_for_copies(self) -> None:
        due = self.node.syncing.due
        if due is not None and (self._wake is None or due < self._wake):
            self._wake = due
            self.process.at(max(0.0, due - self.process.monotonic()), self._woken, due)

    def _woken(self, due: float) -> None:
        if self._wake == due:
            self._wake = None
        self._settle()

    def _delay(self, mean: float) -> float:
        return mean * self.disk.slowness * (0.5 + self._rng.random())

    # Disk

    def _write_next(self, lsid: LogStreamID, storage: LogStreamStorage) -> None:
        group = storage.take()
        if group is not None:
            self._busy.add(lsid)
            self.process.at(self._delay(0.0002), self._write, lsid, storage, group)

    def _write(self, lsid: LogStreamID, storage: LogStreamStorage, group: WriteGroup) -> None:
        try:
            storage.write(group)
        except errors.VarlogError as error:
            self._failed(lsid, error)
            return
        if group.needs_sync:
            self.process.at(self._delay(SYNC_SECONDS), self._sync, lsid, storage, group)
        else:
            self._finish(lsid, storage, group)

    def _sync(self, lsid: LogStreamID, storage: LogStreamStorage, group: WriteGroup) -> None:
        try:
            storage.sync(group)
        except errors.VarlogError as error:
            self._failed(lsid, error)
            return
        self._finish(lsid, storage, group)

    def _finish(self, lsid: LogStreamID, storage: LogStreamStorage, group: WriteGroup) -> None:
        storage.finish(group)
        self._busy.discard(lsid)
        if lsid in self._closings:
            self._finish_closing(lsid)
        elif group.needs_sync:
            last = None
            if group.last_epoch is not None and group.last_llsn_end is not None:
                last = (group.last_epoch, group.last_llsn_end)
                self._durability.synced(lsid, *last, self.process.name)
            self.node.on_durable(lsid, last, group.epoch_records, storage.durable_version)
        self._settle()

    def _failed(self, lsid: LogStreamID, error: errors.VarlogError) -> None:
        self._busy.discard(lsid)
        if lsid in self._closings:
            self._finish_closing(lsid)
        else:
            self.node.on_failed(lsid, error)
        self._settle()

    def _read(self, plan: ReadPlan) -> None:
        storage = self._storage_of(plan.executor)
        if storage is None:
            return
        try:
            stored = storage.read(plan.scan.glsn_begin, plan.glsn_end, plan.scan.max_bytes)
        except errors.VarlogError as error:
            if isinstance(error, errors.Corrupt):
                storage.condemn(error)
            self.node.finish_scan(plan, error)
            return
        lines: list[StoredLine] = [
            (b.glsn, b.llsn, b.count, b.epoch, b.version, b.time, bytes(b.batch)) for b in stored
        ]
        self.node.finish_scan(plan, lines)

    def _storage_of(self, executor: LogStreamExecutor) -> LogStreamStorage | None:
        """None if the replica is not served any more."""
        served = any(e is executor for e in self.node.executors)
        return self.storages[executor.lsid] if served else None

    def _fetch(self, plan: FetchPlan) -> None:
        storage = self._storage_of(plan.executor)
        if storage is None:
            return
        fetch = plan.fetch
        result: CopiedPart | errors.VarlogError
        try:
            part = storage.copy_from(fetch.llsn_begin, fetch.after, fetch.max_bytes, plan.executor.dedup.fold)
            result = part._replace(batches=tuple(map(bytes, part.batches)))  # type: ignore[arg-type]  # to be told apart
        except errors.VarlogError as error:
            if isinstance(error, errors.Corrupt):
                storage.condemn(error)
            result = error
        self.node.finish_fetch(plan, result)
        self._settle()
