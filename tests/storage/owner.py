"""An owner for a log stream's storage, and a model of what its log must hold.

`Owner` stages records as an executor does and remembers them. `Model` is what a log is after some of them, worked out
the plain way: lists of batches, no files, no index. `check` holds a storage against it.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from varlog import batch
from varlog.errors import Trimmed
from varlog.storage.files import FileSystem
from varlog.storage.format import LogBase
from varlog.storage.group import WriteGroup
from varlog.storage.log import LogStreamStorage, Recovered, StorageOptions
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

PATH = "/volume/cid=1/snid=2/lsid=4"
IDENTITY = LogStreamIdentity(ClusterID(1), StorageNodeID(2), TopicID(3), LogStreamID(4))
EVERYTHING = 1 << 40
NO_GLSN, NO_VERSION, NO_EPOCH = GLSN(0), Version(0), Epoch(0)


@dataclass(frozen=True)
class Batch:
    llsn: LLSN
    epoch: Epoch
    sequence: int
    data: bytes
    count: int

    @property
    def end(self) -> LLSN:
        return LLSN(self.llsn + self.count)


@dataclass(frozen=True)
class Commit:
    cc: CommitContext


@dataclass(frozen=True)
class Seal:
    epoch: Epoch
    llsn_end: LLSN


@dataclass(frozen=True)
class Unseal:
    epoch: Epoch
    replicas: tuple[StorageNodeID, ...]


@dataclass(frozen=True)
class Trim:
    glsn: GLSN


Record = Batch | Commit | Seal | Unseal | Trim


@dataclass
class Model:
    """A log stream after some records."""

    committed: list[tuple[GLSN, Batch, CommitContext]] = field(default_factory=list)
    uncommitted: list[Batch] = field(default_factory=list)
    committed_end: LLSN = FIRST_LLSN
    hwm: GLSN = NO_GLSN
    local_hwm: GLSN = NO_GLSN
    version: Version = NO_VERSION
    epoch: Epoch = NO_EPOCH
    replicas: tuple[StorageNodeID, ...] = ()
    trim_glsn: GLSN = NO_GLSN
    commits: list[CommitContext] = field(default_factory=list)
    dedup: list[list[Any]] = field(default_factory=list)

    @property
    def end(self) -> LLSN:
        return self.uncommitted[-1].end if self.uncommitted else self.committed_end

    def apply(self, record: Record) -> None:
        if isinstance(record, Batch):
            self.uncommitted.append(record)
            self.epoch = max(self.epoch, record.epoch)
            self.dedup.append(["batch", record.llsn, record.count, 7, record.sequence])
        elif isinstance(record, Commit):
            self._commit(record.cc)
        elif isinstance(record, Seal):
            self.uncommitted = [b for b in self.uncommitted if b.llsn < record.llsn_end]
            self.epoch = record.epoch
            self.dedup.append(["truncate", record.llsn_end])
        elif isinstance(record, Unseal):
            self.epoch = record.epoch
            self.replicas = record.replicas
        else:
            self.trim_glsn = record.glsn

    def _commit(self, cc: CommitContext) -> None:
        while self.uncommitted and self.uncommitted[0].llsn < cc.llsn_end:
            found = self.uncommitted.pop(0)
            self.committed.append((GLSN(found.llsn - cc.llsn_begin + cc.glsn_begin), found, cc))
        self.commits.append(cc)
        self.committed_end, self.version, self.hwm = cc.llsn_end, cc.version, cc.hwm
        self.local_hwm = GLSN(cc.glsn_end - 1)
        self.dedup.append(["commit", *cc])

    def llsn_after(self, glsn: GLSN) -> LLSN:
        for first, found, _ in self.committed:
            if first + found.count > glsn + 1:
                return LLSN(found.llsn + max(0, glsn + 1 - first))
        return self.committed_end

    @property
    def local_lwm(self) -> GLSN:
        kept = [first + i for first, found, _ in self.committed for i in range(found.count)]
        return GLSN(next((glsn for glsn in kept if glsn > self.trim_glsn), 0))

    def kept(self) -> list[tuple[GLSN, Batch, CommitContext]]:
        return [one for one in self.committed if one[0] + one[1].count - 1 > self.trim_glsn]


def model_at(base: LogBase | None) -> Model:
    """A log that has just begun."""
    if base is None:
        return Model()
    return Model(
        committed_end=base.llsn,
        hwm=base.hwm,
        local_hwm=base.local_hwm,
        version=base.version,
        epoch=base.epoch,
        trim_glsn=base.trim_glsn,
        dedup=json.loads(base.snapshot),
    )


def model_of(records: list[Record], base: LogBase | None = None) -> Model:
    model = model_at(base)
    for record in records:
        model.apply(record)
    return model


def nonces() -> StorageOptions:
    """Options whose nonces are the same in every run."""
    numbers = iter(range(1, 1 << 32))
    return StorageOptions(nonce=lambda: next(numbers) * 0x9E3779B97F4A7C15)


def options(segment_bytes: int = 1024, *, sync: bool = True) -> StorageOptions:
    return StorageOptions(segment_bytes=segment_bytes, sync=sync, nonce=nonces().nonce)


class Owner:
    """See the module's text. Every entry it appends is different."""

    def __init__(
        self,
        fs: FileSystem,
        settings: StorageOptions | None = None,
        *,
        path: str = PATH,
        base: LogBase | None = None,
    ) -> None:
        self._begin(fs, settings or options(), path, model_at(base))
        self.storage = LogStreamStorage.create(fs, path, IDENTITY, self.options, base)
        self.storage.snapshot_source = self._snapshot

    @classmethod
    def resume(cls, fs: FileSystem, settings: StorageOptions, model: Model) -> Owner:
        """An owner of a log that is there and is what `model` says."""
        owner = cls.__new__(cls)
        owner._begin(fs, settings, PATH, copy.deepcopy(model))
        owner.reopen()
        return owner

    @classmethod
    def resume_open(cls, other: Owner, model: Model) -> Owner:
        """An owner of a log that `other` has opened and is what `model` says."""
        owner = cls.__new__(cls)
        owner._begin(other.fs, other.options, other.path, copy.deepcopy(model))
        owner.storage = other.storage
        owner.storage.snapshot_source = owner._snapshot
        return owner

    def skip_to(self, sequence: int) -> None:
        """Go on with other batches than one would have appended by now."""
        self._sequence = sequence

    def _begin(self, fs: FileSystem, settings: StorageOptions, path: str, model: Model) -> None:
        self.fs = fs
        self.path = path
        self.options = settings
        self.records: list[Record] = []
        self.model = model
        self.undeleted = 0
        """How often a file could not be deleted."""
        self._sequence = max((one[4] for one in model.dedup if one[0] == "batch"), default=0)

    def _snapshot(self) -> bytes:
        return json.dumps(self.model.dedup).encode()

    def _stage(self, record: Record) -> None:
        # The order of an executor: the deduplication table first, then the log.
        self.records.append(record)
        self.model.apply(record)

    # Records

    def append(self, count: int = 2, size: int = 20) -> Batch:
        return self.copy(self.model.epoch, count, size)

    def copy(self, epoch: int, count: int = 2, size: int = 20) -> Batch:
        """A batch that was written in another epoch, elsewhere."""
        self._sequence += 1
        label = f"{epoch}:{self._sequence}:".encode()
        entries = [(label + bytes([65 + i])).ljust(size, b".") for i in range(count)]
        data = batch.encode(entries, writer_id=7, sequence=self._sequence)
        one = Batch(self.model.end, Epoch(epoch), self._sequence, data, count)
        self._stage(one)
        self.storage.stage_batch(one.llsn, one.epoch, self._sequence - 1, data, batch.peek_header(data))
        return one

    def commit(self, batches: int | None = None, *, skip: int = 0) -> CommitContext:
        """Commit so many of the uncommitted batches; `skip` GLSNs went to other log streams before."""
        model = self.model
        committed = model.uncommitted[:batches]
        count = sum(b.count for b in committed)
        prev_hwm = GLSN(model.hwm + skip)
        cc = CommitContext(
            Version(model.version + 1 + skip), committed[0].epoch, GLSN(prev_hwm + count), prev_hwm,
            model.committed_end, GLSN(prev_hwm + 1), count, 1000 * (model.version + 1),
        )  # fmt: skip
        self._stage(Commit(cc))
        self.storage.stage_commit(cc)
        return cc

    def seal(self, llsn_end: LLSN | None = None) -> None:
        """Seal at the committed end, or at a batch boundary above it."""
        llsn_end = self.model.committed_end if llsn_end is None else llsn_end
        epoch = Epoch(self.model.epoch + 1)
        self._stage(Seal(epoch, llsn_end))
        self.storage.stage_seal(epoch, llsn_end)

    def unseal(self, *replicas: int) -> None:
        epoch = Epoch(self.model.epoch + 1)
        members = tuple(map(StorageNodeID, replicas or (2, 5, 9)))
        self._stage(Unseal(epoch, members))
        self.storage.stage_unseal(epoch, members, members[0])

    def trim(self, glsn: int) -> None:
        record = Trim(GLSN(glsn))
        self._stage(record)
        llsn = self.storage.llsn_after(record.glsn)
        self.storage.stage_trim(llsn, record.glsn, self.model.version, self.model.epoch)

    # Writing

    def flush(self) -> None:
        """Write and sync everything staged, then delete what was trimmed."""
        while self.write_group() is not None:
            pass
        self.clear()

    def write_group(self) -> WriteGroup | None:
        storage = self.storage
        group = storage.take()
        if group is None:
            return None
        storage.write(group)
        if group.needs_sync:
            storage.sync(group)
        storage.finish(group)
        return group

    def clear(self) -> None:
        """Delete what trims have left, as far as the disk lets one."""
        try:
            while self.storage.doomed:
                self.storage.delete_doomed()
        except OSError:
            self.undeleted += 1

    def store(self, count: int = 2, size: int = 20) -> None:
        """Append a batch, make it durable, commit it, write the commit."""
        self.append(count, size)
        self.flush()
        self.commit()
        self.flush()

    # Looking

    def reopen(self) -> LogStreamStorage:
        """Open the files again; the former storage must be closed or its process dead."""
        self.storage = LogStreamStorage.open(self.fs, self.path, IDENTITY, self.options)
        self.storage.snapshot_source = self._snapshot
        return self.storage

    def check(self) -> None:
        check_readable(self.storage, self.model)


def check_readable(storage: LogStreamStorage, model: Model) -> None:
    """Everything committed and kept is read back as it was, and nothing else."""
    if model.trim_glsn:
        with pytest.raises(Trimmed) as caught:
            storage.read(model.trim_glsn, GLSN(model.trim_glsn + 1), 1)
        assert caught.value.first == model.trim_glsn + 1
    begin = GLSN(model.trim_glsn + 1)
    found = storage.read(begin, GLSN(EVERYTHING), EVERYTHING)
    expected = [(glsn, b.llsn, b.count, b.epoch, cc.version, cc.time, b.data) for glsn, b, cc in model.kept()]
    assert [(*one[:-1], bytes(one.batch)) for one in found] == expected
    kept_versions = {cc.version for _, _, cc in model.kept()}
    contexts = list(storage.commit_contexts(Version(0)))
    assert contexts == model.commits[len(model.commits) - len(contexts) :]
    assert kept_versions <= {cc.version for cc in contexts}


def check_recovered(recovered: Recovered, model: Model) -> None:
    """B8: the context that was recovered is that of the model."""
    assert recovered.corruption is None
    assert recovered.committed_llsn_end == model.committed_end
    assert recovered.uncommitted_llsn_end == model.end
    assert recovered.global_hwm == model.hwm
    assert recovered.local_lwm == model.local_lwm
    assert recovered.local_hwm == model.local_hwm
    assert recovered.version == model.version
    assert recovered.epoch == model.epoch
    assert recovered.running_set == model.replicas
    assert recovered.trim_glsn == model.trim_glsn
    assert [
        (b.llsn, b.count, b.epoch, b.writer_id, b.sequence, b.prev_sequence, b.size) for b in recovered.uncommitted
    ] == [(b.llsn, b.count, b.epoch, 7, b.sequence, b.sequence - 1, len(b.data)) for b in model.uncommitted]
    assert dedup_events(recovered) == model.dedup


def dedup_events(recovered: Recovered) -> list[list[Any]]:
    """What the deduplication table has seen: the snapshot and what came after it."""
    events: list[list[Any]] = json.loads(recovered.dedup_snapshot) if recovered.dedup_snapshot else []
    for kind, *fields in recovered.dedup_tail:
        events.append([kind, *(fields[0] if kind == "commit" else fields)])
    return events


def check_opened(storage: LogStreamStorage, model: Model) -> None:
    check_recovered(storage.recovered, model)
    check_readable(storage, model)
