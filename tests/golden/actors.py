"""The processes of a golden script: production core and storage on a simulated disk, and nothing that moves by itself.

Each actor is handed messages and told to write what it has staged; what it sends goes to the stage. A crash takes its
memory, a power loss also what was not synced, all of it unless the script says otherwise.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import count

from varlog import errors
from varlog.core.address import Address, Send, node_address
from varlog.core.branches import Branch, Observe
from varlog.core.executor import LogStreamExecutor
from varlog.core.messages import Message, Scan, StoredLine
from varlog.core.metarepo import MetadataRepository, Role, entry_key
from varlog.core.metastate import AnyEntry, decode_entry
from varlog.core.storagenode import StorageNode
from varlog.core.store import ReadOutcome, ReadResult
from varlog.metarepo.journal import Journal, JournalOptions
from varlog.sim.disk import SimDisk
from varlog.sim.medium import Content, FileImage, Image, NameKind, Write, apply
from varlog.storage.log import LogStreamStorage, StorageOptions
from varlog.types import ClusterID, LogStreamID, LogStreamIdentity, StorageNodeID, TopicID

CID = ClusterID(1)
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


class StorageNodeActor:
    """One storage node and its disk."""

    def __init__(self, snid: StorageNodeID, send: Send, observe: Observe, *, sync: bool) -> None:
        self.address = node_address(snid)
        self.snid = snid
        self.disk = SimDisk()
        self.alive = False
        self._send = send
        self._observe = observe
        nonces = count(snid * 1000)
        self._options = StorageOptions(segment_bytes=1 << 16, sync=sync, nonce=lambda: next(nonces))
        self._boot = 0
        self._lsids: list[LogStreamID] = []
        self.disk.mkdir("/volume")
        self.start()

    def start(self) -> None:
        """Recover what is on the disk (B3)."""
        self.alive = True
        self._boot += 1
        self.node = StorageNode(self.snid, self._boot, self._send, self._observe)
        self._storages: dict[LogStreamID, LogStreamStorage] = {}
        for lsid in self._lsids:
            self._serve(lsid, LogStreamStorage.open(self.disk, *self._place(lsid), self._options))

    def add_log_stream(self, lsid: LogStreamID) -> None:
        self._lsids.append(lsid)
        self._serve(lsid, LogStreamStorage.create(self.disk, *self._place(lsid), self._options))

    def _place(self, lsid: LogStreamID) -> tuple[str, LogStreamIdentity]:
        identity = LogStreamIdentity(CID, self.snid, TOPIC, lsid)
        return f"/volume/cid={CID}/snid={self.snid}/lsid={lsid}", identity

    def _serve(self, lsid: LogStreamID, storage: LogStreamStorage) -> None:
        executor = LogStreamExecutor(self.snid, TOPIC, lsid, storage, self._send, self._observe)
        storage.snapshot_source = executor.dedup.snapshot
        executor.recover(storage.recovered, storage.recovered.corruption)
        if storage.recovered.dropped_commit:
            self._observe(Branch.B10_PARTIAL_COMMIT)
        self._storages[lsid] = storage
        self.node.add(executor)

    def crash(self) -> None:
        self.alive = False
        self.disk.kill()

    def lose_power(self, lost: Collection[int] | None) -> int:
        """Returns how many writes were not synced."""
        self.crash()
        self.disk, writes = lose_power(self.disk, lost)
        return writes

    def receive(self, source: Address, message: Message, now: float) -> None:
        self.node.on_message(source, message, now)
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
        self.node.flush(now)
        self.node.stage()

    @property
    def staged(self) -> bool:
        return self.alive and any(storage.staged for storage in self._storages.values())

    def sync(self, now: float) -> None:
        """Write everything staged, and sync what needs it."""
        for lsid, storage in self._storages.items():
            while (group := storage.take()) is not None:
                storage.write(group)
                if group.needs_sync:
                    storage.sync(group)
                storage.finish(group)
                if group.needs_sync:
                    last = None
                    if group.last_epoch is not None and group.last_llsn_end is not None:
                        last = (group.last_epoch, group.last_llsn_end)
                    self.node.on_durable(lsid, last, group.epoch_records, storage.durable_version)
        self.node.flush(now)
        self.node.stage()


class MetadataActor:
    """The metadata repository over its journal. `decided` is told every entry once the journal has it."""

    def __init__(self, send: Send, observe: Observe) -> None:
        self.address = "mr"
        self.disk = SimDisk()
        self.alive = False
        self._send = send
        self._observe = observe
        self._nonces = count(1)
        self.start()

    def start(self) -> None:
        """Open the journal and lead."""
        self.alive = True
        self._journal = Journal.open(self.disk, "/metadata", CID, JournalOptions(nonce=lambda: next(self._nonces)))
        self.repository = MetadataRepository(self._journal, self._send, self._observe)
        self.repository.campaign(0.0)
        self.sync()
        assert self.repository.role is Role.LEADING

    def crash(self) -> None:
        self.alive = False
        self.disk.kill()

    def receive(self, source: Address, message: Message, now: float) -> None:
        self.repository.on_message(source, message, now)

    def tick(self, now: float) -> None:
        self.repository.tick(now)

    def sync(self) -> bool:
        """Carry what the journal has staged to the disk; whether there was anything."""
        busy = False
        while (group := self._journal.take()) is not None:
            busy = True
            self._journal.write(group)
            self._journal.sync(group)
            self._journal.finish(group)
        return busy

    def entries(self, after: int) -> list[tuple[int, AnyEntry]]:
        """The decisions after a version."""
        found: list[ReadOutcome] = []
        versions = range(after + 1, self.repository.state.version + 1)
        self._journal.read([entry_key(version) for version in versions], found.append)
        self.sync()
        (read,) = found
        assert isinstance(read, ReadResult)
        return [(version, decode_entry(read.kvs[entry_key(version)].value)) for version in versions]
