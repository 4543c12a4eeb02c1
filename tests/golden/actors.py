"""The processes of a golden script: production core and storage on a simulated disk, and nothing that moves by itself.

Each actor is handed messages and told to write what it has staged; what it sends goes to the stage. A crash takes its
memory, a power loss also what was not synced, all of it unless the script says otherwise. What others copy from a node
is read at once, and so is a replica made, removed or made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from itertools import count

from varlog import errors
from varlog.core.address import METADATA_REPOSITORY, Address, Send, node_address
from varlog.core.branches import Branch, Observe
from varlog.core.executor import LogStreamExecutor
from varlog.core.messages import (
    AddLogStream,
    AdoptIdentity,
    Decided,
    GetInfo,
    Info,
    Message,
    RegisterManager,
    RemoveLogStream,
    ReopenLogStream,
    ReplicaReply,
    Scan,
    StoredLine,
)
from varlog.core.metarepo import MetadataRepository, Role
from varlog.core.metastate import AnyEntry, decode_entry
from varlog.core.proving import Outcome, Prover
from varlog.core.replicalog import CopiedPart
from varlog.core.restoring import go_on_above
from varlog.core.storagenode import StorageNode
from varlog.core.store import ReadOutcome, ReadResult, entry_key
from varlog.metarepo import backup
from varlog.metarepo.journal import Journal, JournalOptions
from varlog.metarepo.offline import OfflineStore
from varlog.sim.disk import SimDisk
from varlog.sim.medium import Content, FileImage, Image, NameKind, Write, apply
from varlog.storage.copying import base_of
from varlog.storage.format import LogBase
from varlog.storage.log import LogStreamStorage, StorageOptions
from varlog.storagenode.identity import Secrets
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

CID = ClusterID(1)
MANAGER = "manager"
TOPIC = TopicID(1)


def lose_power(disk: SimDisk, lost: Collection[int] | None) -> tuple[SimDisk, int]:
    """What is left of a disk: of the unsynced writes to the log those numbered in `lost` are gone, or all, and
    everything else that was not synced too. Also tells how many unsynced writes there were."""
    disk.start_recording()
    recording = disk.recorded()
    names = recording.names
    logs = {target for path, target in names.items() if path.endswith(".seg")}
    contents = {number: Content(image.data, image.size) for number, image in recording.files.items()}
    writes = 0
    for operation in recording.operations:
        if isinstance(operation, Write) and operation.file in logs:
            writes += 1
            if lost is not None and writes not in lost:
                apply(contents[operation.file], operation)
    files = {
        path: FileImage(bytes(contents[target].data), contents[target].size)
        for path, target in names.items()
        if isinstance(target, int)
    }
    directories = frozenset(path for path, target in names.items() if target is NameKind.DIRECTORY and path != "/")
    return SimDisk.from_image(Image(directories, files)), writes


def _drive(journal: Journal) -> bool:
    """Carry out what a journal was asked; whether there was anything."""
    busy = False
    while (group := journal.take()) is not None:
        busy = True
        journal.write(group)
        journal.sync(group)
        journal.finish(group)
    return busy


class StorageNodeActor:
    """One storage node and its disk."""

    def __init__(self, snid: StorageNodeID, send: Send, observe: Observe, *, sync: bool, announces: bool) -> None:
        self.address = node_address(snid)
        self.snid = snid
        self.alive = False
        self.stopped = ""
        """Why it ended itself, if it did."""
        self._send = send
        self._observe = observe
        self._announces = announces
        nonces = count(snid * 1000)
        self._options = StorageOptions(segment_bytes=1 << 16, sync=sync, nonce=lambda: next(nonces))
        self._secrets_made = count(1)
        self._starts = 0
        self.disk = SimDisk()
        self.disk.mkdir("/volume")
        self.start()

    @property
    def _path(self) -> str:
        return f"/volume/cid={CID}/snid={self.snid}"

    def start(self) -> None:
        """Recover what is on the disk (B3)."""
        self.alive, self.stopped = True, ""
        self._starts += 1
        self._requests = count(1)
        self.disk.mkdir(self._path)
        secrets = Secrets.load(self.disk, CID, self.snid, [self._path], [])
        self._prover = Prover(self.snid, self._starts, secrets, self._random_bytes)
        self.node = StorageNode(self.snid, self._prover.boot, self._send, self._observe)
        self._storages: dict[LogStreamID, LogStreamStorage] = {}
        for name in self.disk.listdir(self._path):
            if name.startswith("lsid="):
                lsid = LogStreamID(int(name.removeprefix("lsid=")))
                self._serve(lsid, LogStreamStorage.open(self.disk, *self._place(lsid), self._options))
        if self._announces:
            self._announce()

    def _random_bytes(self) -> bytes:
        """A secret that shows whose it is, and which one: nobody guesses on a stage."""
        return bytes([self.snid, next(self._secrets_made)] * 16)

    def add_log_stream(self, lsid: LogStreamID, base: LogBase | None = None) -> None:
        self._serve(lsid, LogStreamStorage.create(self.disk, *self._place(lsid), self._options, base))

    def _place(self, lsid: LogStreamID) -> tuple[str, LogStreamIdentity]:
        return f"{self._path}/lsid={lsid}", LogStreamIdentity(CID, self.snid, TOPIC, lsid)

    def _serve(self, lsid: LogStreamID, storage: LogStreamStorage) -> None:
        executor = LogStreamExecutor(self.snid, TOPIC, lsid, storage, self._send, self._observe)
        storage.snapshot_source = executor.dedup.snapshot
        executor.recover(storage.recovered, storage.recovered.corruption)
        if storage.recovered.dropped_commit:
            self._observe(Branch.B10_PARTIAL_COMMIT)
        self._storages[lsid] = storage
        self.node.add(executor)

    def remove_log_stream(self, lsid: LogStreamID) -> None:
        self.node.remove(lsid)
        self._storages.pop(lsid).abandon()
        path, _ = self._place(lsid)
        for name in self.disk.listdir(path):
            self.disk.unlink(f"{path}/{name}")
        self.disk.rmdir(path)

    def crash(self) -> None:
        self.alive = False
        self.disk.kill()

    def lose_power(self, lost: Collection[int] | None) -> int:
        """Returns how many writes were not synced."""
        self.crash()
        self.disk, writes = lose_power(self.disk, lost)
        return writes

    def lose_disk(self) -> None:
        """The disk is gone, and there is an empty one in its place. The process does not run."""
        self.alive = False
        self.disk = SimDisk()
        self.disk.mkdir("/volume")
        self._starts = 0

    def info(self, request: int, now: float) -> Info:
        """What the node says of itself."""
        replicas = tuple(executor.info() for executor in self.node.executors)
        identified = self._prover.is_identified or not self._announces
        unanswered = self.node.unanswered(now)
        return Info(
            request, self.snid, self.node.boot, replicas, self.address, is_identified=identified, unanswered=unanswered
        )

    def receive(self, source: Address, message: Message, now: float) -> None:
        try:
            self._handle(source, message, now)
        except (errors.WrongIdentity, errors.ConsistencyViolation) as error:
            self.stopped = str(error)
            self.crash()
            return
        self._settle(now)

    def _handle(self, source: Address, message: Message, now: float) -> None:
        match message:
            case GetInfo(request):
                self._send(source, self.info(request, now))
            case AddLogStream(request, _, lsid):
                if lsid not in self._storages:
                    self.add_log_stream(lsid)
                self._reply(source, request, lsid)
            case RemoveLogStream(request, lsid):
                if lsid in self._storages and self._may_remove(message):
                    self.remove_log_stream(lsid)
                self._reply(source, request, lsid)
            case ReopenLogStream(request, lsid):
                if lsid in self._storages and not self._executor(lsid).healthy:
                    self.node.remove(lsid)
                    self._storages.pop(lsid).abandon()
                    self._serve(lsid, LogStreamStorage.open(self.disk, *self._place(lsid), self._options))
                self._reply(source, request, lsid)
            case AdoptIdentity():
                self._send(source, self._prover.adopt(message))
                self.node.boot = self._prover.boot
                self._announce()
            case Decided():
                if self._prover.on_decided(message) is Outcome.PROVEN:
                    self._announce()
            case _:
                self.node.on_message(source, message, now)

    def _announce(self) -> None:
        """Say where it is and who it is, as after every connect."""
        self._send(METADATA_REPOSITORY, self._prover.announce(next(self._requests), self.address, ()))

    def _may_remove(self, message: RemoveLogStream) -> bool:
        executor = self._executor(message.lsid)
        if message.until and executor.epoch > message.until:
            return False
        return not (message.new_only and executor.epoch) and not (message.failed_only and executor.healthy)

    def _executor(self, lsid: LogStreamID) -> LogStreamExecutor:
        return next(executor for executor in self.node.executors if executor.lsid == lsid)

    def _reply(self, source: Address, request: int, lsid: LogStreamID) -> None:
        """The answer to AddLogStream, RemoveLogStream and ReopenLogStream; LLSN 0 says that there is nothing."""
        epoch, state, end = Epoch(0), ReplicaState.SEALING, LLSN(0)
        if lsid in self._storages:
            executor = self._executor(lsid)
            epoch, state, end = executor.epoch, executor.state, executor.committed_end
        self._send(source, ReplicaReply(request, lsid, 0, self.snid, epoch, state, end))

    def _settle(self, now: float) -> None:
        """After everything that happens: give parts of the log to others, begin anew, report, stage."""
        syncing = self.node.syncing
        fetches, syncing.fetches = syncing.fetches, []
        for plan in fetches:
            result: CopiedPart | errors.VarlogError
            try:
                storage, fetch = self._storages[plan.executor.lsid], plan.fetch
                result = storage.copy_from(fetch.llsn_begin, fetch.after, fetch.max_bytes, plan.executor.dedup.fold)
            except errors.VarlogError as error:
                result = error
            self.node.finish_fetch(plan, result)
        restarts, syncing.restarts = syncing.restarts, []
        for restart in restarts:
            self.remove_log_stream(restart.executor.lsid)
            self.add_log_stream(restart.executor.lsid, base_of(restart.base, restart.epoch))
        self.node.flush(now)
        self.node.stage()

    def read(self, source: Address, scan: Scan, now: float) -> None:
        self.node.on_message(source, scan, now)
        reads, self.node.reads = self.node.reads, []
        for plan in reads:
            try:
                storage = self._storages[plan.executor.lsid]
                stored = storage.read(plan.scan.glsn_begin, plan.glsn_end, plan.scan.max_bytes)
            except errors.VarlogError as error:
                self.node.finish_scan(plan, error)
                continue
            lines: list[StoredLine] = [
                (b.glsn, b.llsn, b.count, b.epoch, b.version, b.time, bytes(b.batch)) for b in stored
            ]
            self.node.finish_scan(plan, lines)

    def tick(self, now: float) -> None:
        self.node.tick(now)
        self._settle(now)

    @property
    def staged(self) -> bool:
        return self.alive and any(storage.staged and not storage.poisoned for storage in self._storages.values())

    def sync(self, now: float) -> None:
        """Write everything staged, and sync what needs it."""
        for lsid, storage in list(self._storages.items()):
            try:
                self._write(lsid, storage)
            except errors.VarlogError as error:
                self.node.on_failed(lsid, error)
        self._settle(now)

    def _write(self, lsid: LogStreamID, storage: LogStreamStorage) -> None:
        while not storage.poisoned and (group := storage.take()) is not None:
            storage.write(group)
            if group.needs_sync:
                storage.sync(group)
            storage.finish(group)
            if group.needs_sync:
                last = None
                if group.last_epoch is not None and group.last_llsn_end is not None:
                    last = (group.last_epoch, group.last_llsn_end)
                self.node.on_durable(lsid, last, group.epoch_records, storage.durable_version)


class MetadataActor:
    """The metadata repository over its journal, at which the manager is registered."""

    def __init__(self, send: Send, observe: Observe) -> None:
        self.address = "mr"
        self.disk = SimDisk()
        self.alive = False
        self._send_on = send
        self._observe = observe
        self._nonces = count(1)
        self.start()

    def start(self) -> None:
        """Open the journal and lead. That the manager registers is not shown."""
        self.alive = False
        self._journal = Journal.open(self.disk, "/metadata", CID, JournalOptions(nonce=lambda: next(self._nonces)))
        self.repository = MetadataRepository(self._journal, self._send, self._observe)
        self.repository.campaign(0.0)
        self.sync()
        assert self.repository.role is Role.LEADING
        self.repository.on_message(MANAGER, RegisterManager(0, ""), 0.0)
        self.sync()
        self.alive = True

    def restore(self, seconds: int) -> None:
        """What is on the disk is put back as a backup that was made so many seconds ago."""
        journal = Journal.open(self.disk, "/metadata", CID, JournalOptions(nonce=lambda: next(self._nonces)))

        def drive() -> None:
            _drive(journal)

        store = OfflineStore("metadata", journal, drive, CID)

        async def put() -> None:
            taken = await backup.take(store, 0)
            checkpoint = backup.checkpoint_of(taken.keys)
            go_on_above(checkpoint.state, seconds)
            await backup.put(store, checkpoint, taken.term, replace=True)

        asyncio.run(put())
        journal.close()

    def _send(self, address: Address, message: Message) -> None:
        if self.alive:
            self._send_on(address, message)

    def crash(self) -> None:
        self.alive = False
        self.disk.kill()

    def receive(self, source: Address, message: Message, now: float) -> None:
        self.repository.on_message(source, message, now)

    def tick(self, now: float) -> None:
        self.repository.tick(now)

    def sync(self) -> bool:
        """Carry what the journal has staged to the disk; whether there was anything."""
        return _drive(self._journal)

    def entries(self, after: int) -> list[tuple[int, AnyEntry]]:
        """The decisions after a version."""
        found: list[ReadOutcome] = []
        versions = range(after + 1, self.repository.state.version + 1)
        self._journal.read([entry_key(version) for version in versions], found.append)
        self.sync()
        (read,) = found
        assert isinstance(read, ReadResult)
        return [(version, decode_entry(read.kvs[entry_key(version)].value)) for version in versions]
