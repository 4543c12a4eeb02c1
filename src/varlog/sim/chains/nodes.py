"""Simulated storage nodes of chains: the production core and storage on a simulated disk, in a simulated process.

The host does what a daemon does around the core: it opens the log streams it finds, hands messages in, carries staged
groups to the disk (the write after one delay, the sync after another) and tells the core when they are durable, and
reads what it is asked to read. It adds nothing to the protocol. When the process is killed everything in memory is
gone; `start` builds it anew from the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from varlog import errors, limits
from varlog.batch import BatchHeader
from varlog.core.address import METADATA_REPOSITORY
from varlog.core.branches import Branch, Observe
from varlog.core.chaincontext import ChainReadPlan, Result
from varlog.core.chainreplica import ChainReplica
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
    ReplicaReply,
    StoredLine,
)
from varlog.core.proving import Outcome, Prover
from varlog.core.storagenode import StorageNode
from varlog.sim.chains.witness import Witness
from varlog.sim.disk import SimDisk
from varlog.sim.network import Network
from varlog.sim.nodes import ANNOUNCE_EVERY, CID, TICK
from varlog.sim.process import Process
from varlog.storage.files import Buffer
from varlog.storage.group import WriteGroup
from varlog.storage.logfiles import make_room, publish
from varlog.storage.options import StorageOptions
from varlog.storage.writeonce import WriteOnceStorage
from varlog.storagenode.identity import Secrets
from varlog.types import (
    GLSN,
    LLSN,
    Epoch,
    LogStreamID,
    LogStreamIdentity,
    Ordering,
    ReplicaState,
    StorageNodeID,
    TopicID,
)

SYNC_SECONDS = 0.012
"""A disk slow enough that something is under way whenever a fault strikes."""
_VOLUME = "/volume"
_REMOVED = "removed"
"""In the directory of a replica that is being removed: what is left of it counts for nothing."""
_TOPIC = TopicID(1)


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


class ChainNodeHost:
    """One storage node."""

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
        self.process = process
        self.disk = disk
        self.snid = snid
        self._network = network
        self._witness = witness
        self._observe = observe
        self._rng = process.world.rng(f"disk of {process.name}")
        self._options = replace(options, nonce=self._nonce)
        self._starts = 0
        self._requests = 0
        self._announced = 0.0
        self._busy: set[LogStreamID] = set()
        self._closings: dict[LogStreamID, Callable[[], None]] = {}
        """Replicas that are served no more, and what is done when they are closed."""
        self._reopened: dict[LogStreamID, float] = {}
        self._wake: float | None = None
        self.storages: dict[LogStreamID, WitnessedStorage] = {}
        self.mistaken: list[LogStreamID] = []
        """Replicas that are made anew, and empty, at the next start."""
        self.stopped: errors.VarlogError | None = None
        """Why the node ended itself, if it did."""
        disk.mkdir(_VOLUME)
        network.attach(process.name, process, self._receive)

    def _nonce(self) -> int:
        return self._rng.getrandbits(64)

    @property
    def _path(self) -> str:
        return f"{_VOLUME}/cid={CID}/snid={self.snid}"

    def _replica_path(self, lsid: LogStreamID) -> str:
        return f"{self._path}/lsid={lsid}"

    def replica(self, lsid: LogStreamID) -> ChainReplica | None:
        return next((replica for replica in self.node.chains.replicas if replica.lsid == lsid), None)

    # Life

    def start(self) -> None:
        """Open what is on the disk (B3) and begin to serve. The process is alive."""
        self._starts += 1
        self._busy.clear()
        self._closings.clear()
        self._reopened.clear()
        self._wake = None
        self.storages.clear()
        try:
            self.disk.mkdir(self._path)
            secrets = Secrets.load(self.disk, CID, self.snid, [self._path], [])
            self._prover = Prover(self.snid, self._starts, secrets, self._random_bytes)
            self.node = StorageNode(self.snid, self._prover.boot, self._send, self._observe)
            for name in self.disk.listdir(self._path):
                if name.startswith("lsid="):
                    self._open(LogStreamID(int(name.removeprefix("lsid="))))
            mistaken, self.mistaken = self.mistaken, []
            for lsid in mistaken:
                self._create(lsid)
        except errors.VarlogError as error:
            self._stop(error)
            return
        self._tick()

    def _random_bytes(self) -> bytes:
        return self._rng.randbytes(SECRET_BYTES)

    def lose_disk(self) -> None:
        """The process ends and the disk is gone; what is put in its place is empty."""
        self.kill()
        self._witness.forgotten(self.process.name)
        self.disk = SimDisk()
        self.disk.mkdir(_VOLUME)
        self._starts = 0

    @property
    def is_writing(self) -> bool:
        return bool(self._busy)

    def _open(self, lsid: LogStreamID) -> None:
        path = self._replica_path(lsid)
        if self.disk.exists(f"{path}/{_REMOVED}"):
            self._delete(lsid)
            return
        try:
            storage = WitnessedStorage.open(self.disk, path, self._identity(lsid), self._options)
        except errors.NoSuchReplica:
            return  # it was never made whole, so nobody was told of it
        self._serve(storage, lsid)

    def _identity(self, lsid: LogStreamID) -> LogStreamIdentity:
        return LogStreamIdentity(CID, self.snid, _TOPIC, lsid)

    def _serve(self, storage: WriteOnceStorage, lsid: LogStreamID) -> None:
        assert isinstance(storage, WitnessedStorage)
        storage.watched_by(self._witness, self.process.name, lsid)
        self._witness.wiped(self.process.name, lsid, storage.end)  # nobody was told of what a crash took
        if storage.torn_tail:
            self._observe(Branch.RULE15_TORN_TAIL)
        if storage.corruption is not None:
            self._observe(Branch.RULE15_CORRUPTION)
        self.storages[lsid] = storage
        self.node.chains.add(
            ChainReplica(self.snid, _TOPIC, lsid, storage, self._send, self._observe, storage.corruption)
        )

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
            self._handle(source, message)
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
                replicas = tuple(replica.info() for replica in self.node.chains.replicas)
                identified = self._prover.is_identified
                self._send(source, Info(request, self.snid, self.node.boot, replicas, is_identified=identified))
            case _:
                self.node.on_message(source, message, self.process.monotonic())

    def _announce(self) -> None:
        self._announced = self.process.monotonic()
        self._requests += 1
        self._send(METADATA_REPOSITORY, self._prover.announce(self._requests, "", ()))

    def _tick(self) -> None:
        now = self.process.monotonic()
        if now - self._announced >= ANNOUNCE_EVERY or self._announced == 0.0:
            self._announce()
        self.node.tick(now)
        self._settle()
        self.process.at(TICK, self._tick)

    # Replicas come and go

    def _add_log_stream(self, source: str, message: AddLogStream) -> None:
        lsid = message.lsid
        try:
            if message.ordering is not Ordering.SEQUENCER:
                raise errors.WrongOrdering("this run knows chains only")
            if lsid in self._closings:
                raise errors.Busy(f"log stream {lsid} is being removed from this node")
            if lsid not in self.storages:
                self._create(lsid)
        except errors.VarlogError as error:
            self._reply(source, message.request, lsid, error.code)
            return
        self._reply(source, message.request, lsid, 0)

    def _create(self, lsid: LogStreamID) -> None:
        path = self._replica_path(lsid)
        self._serve(WitnessedStorage.create(self.disk, path, self._identity(lsid), self._options), lsid)

    def _remove_log_stream(self, source: str, message: RemoveLogStream) -> None:
        lsid, replica = message.lsid, self.replica(message.lsid)
        if replica is None and lsid not in self._closings:
            self._reply(source, message.request, lsid, 0)
        elif replica is not None and message.new_only and replica.epoch > 0:
            self._reply(source, message.request, lsid, errors.AlreadyExists.code)
        elif replica is not None and ((message.failed_only and replica.healthy) or 0 < message.until < replica.epoch):
            self._reply(source, message.request, lsid, errors.Conflict.code)
        elif replica is not None:
            self._close(lsid, lambda: self._finish_removal(source, message))

    def _reopen_log_stream(self, source: str, message: ReopenLogStream) -> None:
        lsid, replica = message.lsid, self.replica(message.lsid)
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
        self._close(lsid, lambda: self._open_anew(source, message))

    def _open_anew(self, source: str, message: ReopenLogStream) -> None:
        """Until it can be opened its files are in the way of anything else."""
        try:
            self._open(message.lsid)
        except errors.VarlogError as error:
            self.process.world.trace("not opened", self.process, str(error))
            self.process.at(limits.REOPEN_SECONDS, self._open_anew, source, message)
            return
        del self._closings[message.lsid]
        self._observe(Branch.M8_REOPENED)
        self._reply(source, message.request, message.lsid, 0)

    def _reply(self, source: str, request: int, lsid: LogStreamID, code: int) -> None:
        self._send(source, ReplicaReply(request, lsid, code, self.snid, Epoch(0), ReplicaState.SEALING, LLSN(0)))

    def _close(self, lsid: LogStreamID, then: Callable[[], None]) -> None:
        """Serve a replica no more; go on when no group of it is under way."""
        self.node.remove(lsid)
        self._closings[lsid] = then
        if lsid not in self._busy:
            self._finish_closing(lsid)

    def _finish_closing(self, lsid: LogStreamID) -> None:
        self.storages.pop(lsid).abandon()
        self._closings[lsid]()

    def _finish_removal(self, source: str, message: RemoveLogStream) -> None:
        lsid = message.lsid
        del self._closings[lsid]
        try:
            publish(self.disk, self._replica_path(lsid), _REMOVED, b"").close()
            self._delete(lsid)
        except (OSError, errors.VarlogError) as error:
            self.process.world.trace("not removed", self.process, str(error))
            return
        self._reply(source, message.request, lsid, 0)

    def _delete(self, lsid: LogStreamID) -> None:
        path = self._replica_path(lsid)
        self._witness.removed(self.process.name, lsid)
        for name in self.disk.listdir(path):
            if name != _REMOVED:
                self.disk.unlink(f"{path}/{name}")
        self.disk.sync_dir(path)
        self.disk.unlink(f"{path}/{_REMOVED}")
        self.disk.rmdir(path)
        self.disk.sync_dir(self._path)

    def scrub(self) -> None:
        """Read everything, and tell the replicas that are damaged."""
        for lsid, storage in self.storages.items():
            damage = next(storage.scrub(), None)
            if damage is not None:
                storage.condemn(damage)
                self.node.on_corrupt(lsid)

    # Disk

    def _settle(self) -> None:
        """After every event: do the reads, let copies go on, write what is staged."""
        chains = self.node.chains
        reads, chains.reads = chains.reads, []
        for plan in reads:
            self.process.at(self._delay(0.0001), self._read, plan)
        self.node.flush(self.process.monotonic())
        self.node.stage()
        for lsid, storage in self.storages.items():
            if lsid not in self._busy and storage.urgent_bytes is not None and not storage.poisoned:
                self._write_next(lsid, storage)
        due = chains.copying.due
        if due is not None and (self._wake is None or due < self._wake):
            self._wake = due
            self.process.at(max(0.0, due - self.process.monotonic()), self._woken, due)

    def _woken(self, due: float) -> None:
        if self._wake == due:
            self._wake = None
        self._settle()

    def _delay(self, mean: float) -> float:
        return mean * self.disk.slowness * (0.5 + self._rng.random())

    def _write_next(self, lsid: LogStreamID, storage: WriteOnceStorage) -> None:
        group = storage.take()
        if group is not None:
            self._busy.add(lsid)
            self.process.at(self._delay(0.0002), self._write, lsid, storage, group)

    def _write(self, lsid: LogStreamID, storage: WriteOnceStorage, group: WriteGroup) -> None:
        try:
            storage.write(group)
        except errors.VarlogError as error:
            self._failed(lsid, error)
            return
        self.process.at(self._delay(SYNC_SECONDS), self._sync, lsid, storage, group)

    def _sync(self, lsid: LogStreamID, storage: WriteOnceStorage, group: WriteGroup) -> None:
        try:
            storage.sync(group)
        except errors.VarlogError as error:
            self._failed(lsid, error)
            return
        storage.finish(group)
        self._busy.discard(lsid)
        if lsid in self._closings:
            self._finish_closing(lsid)
        else:
            self.node.chains.on_durable(lsid)
        self._settle()

    def _failed(self, lsid: LogStreamID, error: errors.VarlogError) -> None:
        self._busy.discard(lsid)
        if lsid in self._closings:
            self._finish_closing(lsid)
        else:
            self.node.on_failed(lsid, error)
        self._settle()

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
