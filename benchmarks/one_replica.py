"""A replica's log to measure: batches of 100 entries of 1 KiB, stored as a storage node stores them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from varlog import batch
from varlog.batch import BatchHeader
from varlog.storage.files import OSFileSystem
from varlog.storage.group import WriteGroup
from varlog.storage.log import LogStreamStorage, StorageOptions
from varlog.types import (
    FIRST_LLSN,
    GLSN,
    LLSN,
    ClusterID,
    CommitContext,
    Epoch,
    LogStreamID,
    LogStreamIdentity,
    StorageNodeID,
    TopicID,
    Version,
)

IDENTITY = LogStreamIdentity(ClusterID(1), StorageNodeID(1), TopicID(1), LogStreamID(1))
ENTRIES = 100
ENTRY_BYTES = 1024
EPOCH = Epoch(2)
MB = 1_000_000


class Arrived(NamedTuple):
    """A batch that a storage node has received and verified."""

    data: bytes
    header: BatchHeader


def make_batches(count: int) -> list[Arrived]:
    """So many batches, all different."""
    entry = bytes(range(256)) * (ENTRY_BYTES // 256)
    made = []
    for number in range(count):
        entries = [number.to_bytes(8, "little") + entry[8:]] * ENTRIES
        data = batch.encode(entries, writer_id=1, sequence=number + 1)
        made.append(Arrived(data, batch.verify(data)))
    return made


class Replica:
    """The only replica of a log stream that is alone in its topic: what it has stored is committed, GLSN is LLSN."""

    def __init__(self, storage: LogStreamStorage, llsn: LLSN, committed: LLSN, version: Version) -> None:
        self.storage = storage
        self._llsn = llsn
        self._committed = committed
        self._version = version

    @classmethod
    def create(cls, path: Path, *, sync: bool = True) -> Replica:
        storage = LogStreamStorage.create(OSFileSystem(), str(path), IDENTITY, StorageOptions(sync=sync))
        storage.stage_unseal(EPOCH, (IDENTITY.snid,), IDENTITY.snid)
        return cls(storage, FIRST_LLSN, FIRST_LLSN, Version(0))

    @classmethod
    def open(cls, path: Path) -> Replica:
        storage = LogStreamStorage.open(OSFileSystem(), str(path), IDENTITY)
        found = storage.recovered
        assert found.corruption is None
        return cls(storage, found.uncommitted_llsn_end, found.committed_llsn_end, found.version)

    def stage(self, arrived: Arrived) -> None:
        data, header = arrived
        self.storage.stage_batch(self._llsn, EPOCH, header.sequence - 1, data, header)
        self._llsn = LLSN(self._llsn + header.count)

    def finish(self, group: WriteGroup) -> int:
        """A group is durable, and a cut commits what is in it; how many batches were."""
        self.storage.finish(group)
        if group.last_llsn_end is None:
            return 0
        count = (group.last_llsn_end - self._committed) // ENTRIES
        self._commit(group.last_llsn_end)
        return count

    def _commit(self, llsn_end: LLSN) -> None:
        begin, count = self._committed, llsn_end - self._committed
        self._version = Version(self._version + 1)
        hwm, prev_hwm = GLSN(llsn_end - 1), GLSN(begin - 1)
        self.storage.stage_commit(CommitContext(self._version, EPOCH, hwm, prev_hwm, begin, GLSN(begin), count, 0))
        self._committed = llsn_end

    def write(self) -> None:
        """Carry everything staged to the disk, and commit it."""
        while (group := self.storage.take()) is not None:
            self.storage.write(group)
            self.storage.sync(group)
            self.finish(group)


def fill(path: Path, batches: int) -> Replica:
    """A log of so many batches. Nobody waits for its syncs."""
    replica = Replica.create(path, sync=False)
    made = make_batches(50)
    for number in range(batches):
        replica.stage(made[number % len(made)])
        if number % len(made) == 0:
            replica.write()
    replica.write()
    return replica


def segments_of(path: Path) -> list[Path]:
    """The files of a log, in order."""
    return sorted(path.glob("*.seg"))
