"""Simulated storage nodes of chains: the production core and storage on a simulated disk, in a simulated process.

What every host does is in `varlog.sim.hosts`; a witness is told of everything that a replica stores, and loses.
"""

from __future__ import annotations

from collections.abc import Sequence

from varlog import errors
from varlog.batch import BatchHeader
from varlog.core.branches import Branch, Observe
from varlog.core.chaincontext import ChainReadPlan, Result
from varlog.core.chainreplica import ChainReplica
from varlog.core.messages import AddLogStream, Info, ReplicaReply, StoredLine
from varlog.sim.chains.witness import Witness
from varlog.sim.disk import SimDisk
from varlog.sim.hosts import TOPIC, NodeHost
from varlog.sim.network import Network
from varlog.sim.process import Process
from varlog.storage.files import Buffer
from varlog.storage.group import WriteGroup
from varlog.storage.options import StorageOptions
from varlog.storage.writeonce import WriteOnceStorage
from varlog.types import GLSN, Epoch, LogStreamID, Ordering, StorageNodeID


class WitnessedStorage(WriteOnceStorage):
    """Tells the witness what a replica is given to store."""

    def watched_by(self, witness: Witness, node: str, lsid: LogStreamID) -> None:
        self._witness, self._node, self._lsid = witness, node, lsid

    def stage_writes(
        self,
        epoch: Epoch,
        glsns: Sequence[int],
        times: Sequence[int],
        batches: Sequence[Buffer],
        headers: Sequence[BatchHeader],
    ) -> None:
        ends = [glsn + header.count for glsn, header in zip(glsns, headers, strict=True)]
        self._witness.stored(self._node, self._lsid, epoch, ends)
        super().stage_writes(epoch, glsns, times, batches, headers)

    def stage_epoch(self, epoch: Epoch, wipe: GLSN | None = None) -> None:
        if wipe is not None:
            self._witness.wiped(self._node, self._lsid, wipe)
        super().stage_epoch(epoch, wipe)


class ChainNodeHost(NodeHost[WitnessedStorage]):
    """One storage node."""

    sync_seconds = 0.012

    def __init__(
        self,
        process: Process,
        network: Network,
        disk: SimDisk,
        snid: StorageNodeID,
        witness: Witness,
        observe: Observe,
        options: StorageOptions,
    ) -> None:
        super().__init__(process, network, disk, snid, observe, options)
        self._witness = witness
        self.mistaken: list[LogStreamID] = []
        """Replicas that are made anew, and empty, at the next start."""

    @property
    def is_writing(self) -> bool:
        return bool(self._busy)

    def replica(self, lsid: LogStreamID) -> ChainReplica | None:
        return next((replica for replica in self.node.chains.replicas if replica.lsid == lsid), None)

    def lose_disk(self) -> None:
        super().lose_disk()
        self._witness.forgotten(self.process.name)

    def _storage(self, lsid: LogStreamID) -> WitnessedStorage:
        path = self._replica_path(lsid)
        return self._witnessed(WitnessedStorage.open(self.disk, path, self._identity(lsid), self._options))

    @staticmethod
    def _witnessed(storage: WriteOnceStorage) -> WitnessedStorage:
        assert isinstance(storage, WitnessedStorage), "made by that class"
        return storage

    def _opened(self) -> None:
        mistaken, self.mistaken = self.mistaken, []
        for lsid in mistaken:
            self._create(lsid)

    def _serve(self, storage: WitnessedStorage, lsid: LogStreamID) -> None:
        storage.watched_by(self._witness, self.process.name, lsid)
        self._witness.wiped(self.process.name, lsid, storage.end)  # nobody was told of what a crash took
        if storage.torn_tail:
            self._observe(Branch.RULE15_TORN_TAIL)
        if storage.corruption is not None:
            self._observe(Branch.RULE15_CORRUPTION)
        self.storages[lsid] = storage
        self.node.chains.add(
            ChainReplica(self.snid, TOPIC, lsid, storage, self._send, self._observe, storage.corruption)
        )

    def _info(self, request: int) -> Info:
        replicas = (*[replica.info() for replica in self.node.chains.replicas], *self._unopened_infos)
        return Info(request, self.snid, self.node.boot, replicas, is_identified=self._prover.is_identified)

    # Replicas come and go

    def _add(self, message: AddLogStream) -> ReplicaReply:
        if message.ordering is not Ordering.SEQUENCER:
            raise errors.WrongOrdering("this run knows chains only")
        if message.lsid not in self.storages:
            self._create(message.lsid)
        return self._reply_of(message.request, message.lsid, 0)

    def _create(self, lsid: LogStreamID) -> None:
        path = self._replica_path(lsid)
        storage = WitnessedStorage.create(self.disk, path, self._identity(lsid), self._options)
        self._serve(self._witnessed(storage), lsid)

    def _gone(self, lsid: LogStreamID) -> None:
        self._witness.removed(self.process.name, lsid)

    def scrub(self) -> None:
        """Read everything, and tell the replicas that are damaged."""
        for lsid, storage in self.storages.items():
            damage = next(storage.scrub(), None)
            if damage is not None:
                storage.condemn(damage)
                self.node.on_corrupt(lsid)

    # Disk

    def _settle(self) -> None:
        chains = self.node.chains
        reads, chains.reads = chains.reads, []
        for plan in reads:
            self.process.at(self._delay(0.0001), self._read, plan)
        if not self.frugal or self.node.has_news:
            self.node.flush(self.process.monotonic())
        self.node.stage()
        for lsid, storage in self.storages.items():
            if lsid not in self._busy and storage.urgent_bytes is not None and not storage.poisoned:
                self._write_next(lsid, storage)
        self._wake_at(chains.copying.due)

    def _on_durable(self, lsid: LogStreamID, storage: WitnessedStorage, group: WriteGroup) -> None:  # noqa: ARG002
        self.node.chains.on_durable(lsid)

    def _read(self, plan: ChainReadPlan) -> None:
        replica = self.replica(plan.replica.lsid)
        if replica is not plan.replica:
            return  # it is not served any more
        storage = self.storages[replica.lsid]
        result: Result
        try:
            lines: list[StoredLine] = [
                (b.glsn, b.llsn, b.count, b.epoch, b.version, b.time, bytes(b.batch))
                for b in storage.read(plan.glsn, plan.max_bytes)
            ]
            result = lines
        except errors.VarlogError as error:
            if isinstance(error, errors.Corrupt):
                storage.condemn(error)
            result = error
        try:
            self.node.chains.finish_read(plan, result)
        except errors.ConsistencyViolation as violation:
            self._stop(violation)
            return
        self._settle()
