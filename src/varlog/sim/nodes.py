"""Simulated storage nodes: the production core and storage on a simulated disk, in a simulated process.

The host does what a daemon does around the core: it opens the log streams it finds, hands messages in, carries staged
groups to the disk (the write after one delay, the sync after another) and tells the core when they are durable. It adds
nothing to the protocol. When the process is killed everything in memory is gone; `start` builds it anew from the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from varlog import errors
from varlog.batch import BatchHeader
from varlog.core.branches import Branch, Observe
from varlog.core.dedup import DedupTable
from varlog.core.executor import LogStreamExecutor
from varlog.core.messages import AddLogStream, Message, ReplicaReply, StoredLine
from varlog.core.storagenode import ReadPlan, StorageNode
from varlog.sim.disk import SimDisk
from varlog.sim.evidence import Durability, Frames
from varlog.sim.network import Network
from varlog.sim.process import Process
from varlog.storage.group import WriteGroup
from varlog.storage.log import LogStreamStorage, StorageOptions
from varlog.types import (
    LLSN,
    ClusterID,
    Epoch,
    LogStreamID,
    LogStreamIdentity,
    ReplicaState,
    Sequence,
    StorageNodeID,
    TopicID,
)

CID: Final = ClusterID(1)
TICK: Final = 0.1
SYNC_SECONDS: Final = 0.004
"""A disk slow enough that something is under way whenever a fault strikes."""
_VOLUME: Final = "/volume"


class RecordingLog:
    """A replica's log that notes every batch staged in it, for the checkers."""

    def __init__(self, storage: LogStreamStorage, lsid: LogStreamID, frames: Frames, where: str) -> None:
        self._lsid = lsid
        self._frames = frames
        self._where = where
        self.synced = storage.synced
        self._stage_batch = storage.stage_batch
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
        self._stage_batch(llsn, epoch, prev_sequence, batch, header)


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
        self._boot = 0
        self._busy: set[LogStreamID] = set()
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
        self._boot += 1
        self._busy.clear()
        self.storages.clear()
        self.node = StorageNode(self.snid, self._boot, self._send, self._observe)
        try:
            names = self.disk.listdir(self._path) if self.disk.exists(self._path) else []
            for name in names:
                self._open(LogStreamID(int(name.removeprefix("lsid="))))
        except errors.VarlogError as error:
            self._stop(error)
            return
        self._tick()

    def _open(self, lsid: LogStreamID) -> None:
        # A directory whose log stream was never created whole holds nothing anybody was told of.
        path = f"{self._path}/lsid={lsid}"
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

    def reopened(self, lsid: LogStreamID) -> LogStreamStorage:
        """What a node that is down has on its disk, looked at without touching it."""
        identity = LogStreamIdentity(CID, self.snid, TopicID(1), lsid)
        copy = SimDisk.from_image(self.disk.image())
        return LogStreamStorage.open(copy, f"{self._path}/lsid={lsid}", identity, self._options)

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
        try:
            if isinstance(message, AddLogStream):
                self._add_log_stream(source, message)
            else:
                self.node.on_message(source, message, self.process.monotonic())
        except errors.ConsistencyViolation as error:
            self._stop(error)
            return
        except errors.InvalidArgument as error:
            self.process.world.trace("stray message", self.process, str(error))
        self._settle()

    def _add_log_stream(self, source: str, message: AddLogStream) -> None:
        lsid = message.lsid
        if lsid not in self.storages:
            identity = LogStreamIdentity(CID, self.snid, message.tpid, lsid)
            path = f"{self._path}/lsid={lsid}"
            try:
                storage = LogStreamStorage.create(self.disk, path, identity, self._options)
            except errors.VarlogError as error:
                state = ReplicaState.SEALING
                self._send(source, ReplicaReply(message.request, lsid, error.code, self.snid, Epoch(0), state, LLSN(0)))
                return
            self._serve(storage, lsid)
        info = next(e for e in self.node.executors if e.lsid == lsid)
        reply = ReplicaReply(message.request, lsid, 0, self.snid, info.epoch, info.state, info.committed_end)
        self._send(source, reply)

    def _tick(self) -> None:
        self.node.tick(self.process.monotonic())
        self._settle()
        self.process.at(TICK, self._tick)

    def _settle(self) -> None:
        """After every event: do the reads, report, write what is staged."""
        reads, self.node.reads = self.node.reads, []
        for plan in reads:
            self.process.at(self._delay(0.0001), self._read, plan)
        self.node.flush(self.process.monotonic())
        for lsid, storage in self.storages.items():
            if lsid not in self._busy and storage.staged and not storage.poisoned:
                self._write_next(lsid, storage)

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
        if group.needs_sync:
            last = None
            if group.last_epoch is not None and group.last_llsn_end is not None:
                last = (group.last_epoch, group.last_llsn_end)
                self._durability.synced(lsid, *last, self.process.name)
            self.node.on_durable(lsid, last, group.epoch_records, storage.durable_version)
        self._settle()

    def _failed(self, lsid: LogStreamID, error: errors.VarlogError) -> None:
        self._busy.discard(lsid)
        self.node.on_failed(lsid, error)
        self._settle()

    def _read(self, plan: ReadPlan) -> None:
        storage = self.storages[plan.executor.lsid]
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
