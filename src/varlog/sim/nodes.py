"""Simulated storage nodes: the production core and storage on a simulated disk, in a simulated process.

Beside what every host does (`varlog.sim.hosts`) it takes appends together that come together, reads what others copy,
and makes replicas anew whose beginning is trimmed.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Final

from varlog import errors
from varlog.batch import BatchHeader
from varlog.core.branches import Branch, Observe
from varlog.core.dedup import DedupTable
from varlog.core.executor import LogStreamExecutor
from varlog.core.messages import AddLogStream, Append, Info, Message, ReplicaReply, StoredLine
from varlog.core.replicalog import CopiedPart
from varlog.core.storagenode import ReadPlan
from varlog.core.syncing import FetchPlan, RestartPlan
from varlog.sim.disk import SimDisk
from varlog.sim.evidence import Durability, Frames
from varlog.sim.hosts import TOPIC, NodeHost
from varlog.sim.network import Network
from varlog.sim.process import Process
from varlog.storage.copying import base_of
from varlog.storage.format import LogBase
from varlog.storage.group import WriteGroup
from varlog.storage.log import LogStreamStorage, StorageOptions
from varlog.storagenode.identity import IDENTITY_NAME
from varlog.types import LLSN, Epoch, LogStreamID, Room, Sequence, StorageNodeID

SYNC_SECONDS: Final = 0.004
READ_SECONDS: Final = 0.00001
"""What a client sent within so short a time comes with one read."""


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


class StorageNodeHost(NodeHost[LogStreamStorage]):
    """One storage node."""

    sync_seconds = SYNC_SECONDS

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
        super().__init__(process, network, disk, snid, observe, options)
        self._frames = frames
        self._durability = durability
        self._dedup = dedup
        self._appends: list[Append] = []
        """Of the read that is under way, and"""
        self._appends_from = ""

    @property
    def has_identity(self) -> bool:
        return self.disk.exists(f"{self._path}/{IDENTITY_NAME}")

    def replica(self, lsid: LogStreamID) -> LogStreamExecutor | None:
        return next((executor for executor in self.node.executors if executor.lsid == lsid), None)

    def _forget(self) -> None:
        self._appends = []

    def _storage(self, lsid: LogStreamID) -> LogStreamStorage:
        return LogStreamStorage.open(self.disk, self._replica_path(lsid), self._identity(lsid), self._options)

    def _serve(self, storage: LogStreamStorage, lsid: LogStreamID) -> None:
        log = RecordingLog(storage, lsid, self._frames, self.process.name)
        executor = LogStreamExecutor(self.snid, TOPIC, lsid, log, self._send, self._observe, self._dedup())
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
        copy = SimDisk.from_image(self.disk.image())
        return LogStreamStorage.open(copy, self._replica_path(lsid), self._identity(lsid), self._options)

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
            self._stir()
            self._guarded(lambda: self.node.on_appends(self._appends_from, appends, self.process.monotonic()))

    def _info(self, request: int) -> Info:
        replicas = (*[executor.info() for executor in self.node.executors], *self._unopened_infos)
        unanswered = self.node.unanswered(self.process.monotonic())
        identified = self._prover.is_identified
        return Info(request, self.snid, self.node.boot, replicas, is_identified=identified, unanswered=unanswered)

    # Replicas come and go

    def _add(self, message: AddLogStream) -> ReplicaReply:
        lsid = message.lsid
        if lsid not in self.storages:
            self._create(lsid, None)
        executor = self.replica(lsid)
        assert executor is not None, "it is served"
        return ReplicaReply(message.request, lsid, 0, self.snid, executor.epoch, executor.state, executor.committed_end)

    def _create(self, lsid: LogStreamID, base: LogBase | None) -> None:
        path = self._replica_path(lsid)
        self._serve(LogStreamStorage.create(self.disk, path, self._identity(lsid), self._options, base), lsid)

    def _restart(self, plan: RestartPlan) -> None:
        """A replica all of which is trimmed where it copies from begins anew there (rule 14)."""
        lsid, base = plan.executor.lsid, base_of(plan.base, plan.epoch)

        def create() -> None:
            try:
                self._create(lsid, base)
            except errors.VarlogError as error:  # it is missing now, and the manager adds it again
                self.process.world.trace("not made anew", self.process, str(error))
                return
            executor = self.replica(lsid)
            assert executor is not None, "it is served"
            self.node.syncing.resume(executor, plan)

        self._remove(lsid, create)

    # Disk

    def _settle(self) -> None:
        """After every event: do the reads, report, write what is staged, or what somebody waits for."""
        reads, self.node.reads = self.node.reads, []
        for plan in reads:
            self.process.at(self._delay(0.0001), self._read, plan)
        if not self.frugal or self.node.has_news:
            self._copy()
            self.node.flush(self.process.monotonic())
        self.node.stage()
        for lsid, storage in self.storages.items():
            is_due = storage.urgent_bytes is not None if self.frugal else storage.staged
            if is_due and lsid not in self._busy and not storage.poisoned:
                self._write_next(lsid, storage)
        self._wake_at(self.node.syncing.due)

    def _copy(self) -> None:
        """What copies ask of a node beside the messages they send."""
        syncing = self.node.syncing
        fetches, syncing.fetches = syncing.fetches, []
        for plan in fetches:
            self.process.at(self._delay(0.0002), self._fetch, plan)
        restarts, syncing.restarts = syncing.restarts, []
        for restart in restarts:
            self._restart(restart)

    def _is_synced(self, group: WriteGroup) -> bool:
        return group.needs_sync

    def _on_durable(self, lsid: LogStreamID, storage: LogStreamStorage, group: WriteGroup) -> None:
        if not group.needs_sync:
            return
        last = None
        if group.last_epoch is not None and group.last_llsn_end is not None:
            last = (group.last_epoch, group.last_llsn_end)
            self._durability.synced(lsid, *last, self.process.name)
        self.node.on_durable(lsid, last, group.epoch_records, storage.durable_version)

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
