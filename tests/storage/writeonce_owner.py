"""An owner for a write-once log, and beside it the log on paper that it must be equal to.

Every batch it writes is different. `check` holds a storage against a log on paper.
"""

from __future__ import annotations

import pytest

from tests.core.writeonce_paper import PaperWriteOnceLog
from tests.storage.owner import EVERYTHING, IDENTITY, PATH, options
from varlog import batch
from varlog.core.writeoncelog import WriteOnceLog
from varlog.errors import Trimmed
from varlog.storage.files import FileSystem
from varlog.storage.group import WriteGroup
from varlog.storage.options import StorageOptions
from varlog.storage.reader import StoredBatch
from varlog.storage.writeonce import WriteOnceStorage
from varlog.types import GLSN, Epoch

Place = int | tuple[int, int]
"""A position, or one and how many from there on."""


class WriteOnceOwner:
    """See the module's text."""

    def __init__(self, fs: FileSystem, settings: StorageOptions | None = None, *, path: str = PATH) -> None:
        self._begin(fs, settings or options(), path, PaperWriteOnceLog())
        self.storage = WriteOnceStorage.create(fs, path, IDENTITY, self.options)

    @classmethod
    def resume(cls, fs: FileSystem, settings: StorageOptions, paper: PaperWriteOnceLog) -> WriteOnceOwner:
        """An owner of a log that is there and is what `paper` says."""
        owner = cls.__new__(cls)
        owner._begin(fs, settings, PATH, paper)
        owner.sequence = 1000
        owner.reopen()
        return owner

    def _begin(self, fs: FileSystem, settings: StorageOptions, path: str, paper: PaperWriteOnceLog) -> None:
        self.fs = fs
        self.options = settings
        self.path = path
        self.paper = paper
        self.sequence = 0
        self.undeleted = 0
        """How often a file could not be deleted."""

    # Records

    def write(self, *places: Place, size: int = 20, epoch: int | None = None) -> None:
        """Stage batches at these positions together."""
        epoch = Epoch(self.paper.epoch if epoch is None else epoch)
        glsns, times, batches = [], [], []
        for place in places:
            glsn, count = place if isinstance(place, tuple) else (place, 1)
            self.sequence += 1
            label = f"{epoch}:{self.sequence}:".encode()
            entries = [(label + bytes([65 + i])).ljust(size, b".") for i in range(count)]
            glsns.append(glsn)
            times.append(1000 + self.sequence)
            batches.append(batch.encode(entries, writer_id=7, sequence=self.sequence))
        headers = [batch.peek_header(data) for data in batches]
        self.storage.stage_writes(epoch, glsns, times, batches, headers)
        self.paper.stage_writes(epoch, glsns, times, batches, headers)

    def append(self, count: int = 1, size: int = 20) -> None:
        self.write((max(self.paper.end, self.paper.trim + 1), count), size=size)

    def promise(self, wipe: int | None = None) -> None:
        epoch, floor = Epoch(self.paper.epoch + 1), None if wipe is None else GLSN(wipe)
        self.storage.stage_epoch(epoch, floor)
        self.paper.stage_epoch(epoch, floor)

    def trim(self, glsn: int) -> None:
        self.storage.stage_trim(GLSN(glsn))
        self.paper.stage_trim(GLSN(glsn))

    # Writing

    def write_group(self) -> WriteGroup | None:
        storage = self.storage
        group = storage.take()
        if group is not None:
            storage.write(group)
            storage.sync(group)
            storage.finish(group)
            self.paper.make_durable(storage.durable)
        return group

    def flush(self) -> None:
        """Write and sync everything staged, then delete what was trimmed."""
        while self.write_group() is not None:
            pass
        self.clear()

    def clear(self) -> None:
        """Delete what trims have left, as far as the disk lets one."""
        try:
            while self.storage.doomed:
                self.storage.delete_doomed()
        except OSError:
            self.undeleted += 1

    # Looking

    def reopen(self) -> WriteOnceStorage:
        """Open the files again; the former storage must be closed or its process dead."""
        self.storage = WriteOnceStorage.open(self.fs, self.path, IDENTITY, self.options)
        return self.storage

    def check(self) -> None:
        check(self.storage, self.paper)


def told(storage: WriteOnceLog) -> tuple[object, ...]:
    """All that a log says without reading a batch."""
    held = storage.digest(GLSN(1), EVERYTHING)
    return storage.epoch, storage.end, storage.time, storage.trim, list(held)


def contents(found: list[StoredBatch]) -> list[tuple[object, ...]]:
    return [(*one[:-1], bytes(one.batch)) for one in found]


def check(storage: WriteOnceStorage, paper: PaperWriteOnceLog) -> None:
    """Everything that is there is told and read as it is on paper, and nothing else."""
    assert storage.corruption is None
    assert told(storage) == told(paper)
    assert (storage.staged, storage.durable) == (paper.staged, paper.durable)
    first = GLSN(paper.trim + 1)
    assert contents(storage.read(first, EVERYTHING)) == contents(paper.read(first, EVERYTHING))
    if paper.trim:
        with pytest.raises(Trimmed) as caught:
            storage.read(paper.trim, 1)
        assert caught.value.first == first


def check_every_position(storage: WriteOnceStorage, paper: PaperWriteOnceLog) -> None:
    """The same, asked for one by one."""
    for glsn in map(GLSN, range(1, paper.end + 3)):
        for end in (glsn + 1, glsn + 4):
            assert storage.held(glsn, GLSN(end)) == paper.held(glsn, GLSN(end))
        for most in (1, 3, EVERYTHING):
            assert storage.runs(glsn, most) == paper.runs(glsn, most)
            assert storage.digest(glsn, most) == paper.digest(glsn, most)
        for size in (1, 150, 500):
            if glsn > paper.trim:
                assert contents(storage.read(glsn, size))[:1] == contents(paper.read(glsn, size))[:1]
        one = storage.read_one(glsn)
        if one is not None:
            assert contents([one]) == contents(paper.read(glsn, 1))
            assert one.glsn <= glsn
