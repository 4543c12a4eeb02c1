"""Reading: bounded memory, many threads, and segments that go while they are read."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.storage.counting import CountingFileSystem
from tests.storage.owner import EVERYTHING, Owner, options
from varlog import batch, limits
from varlog.errors import Trimmed
from varlog.sim.disk import SimDisk
from varlog.storage import format as fmt
from varlog.storage.files import OSFileSystem
from varlog.types import GLSN


def test_L3_a_read_is_one_look_up_and_one_disk_read(tmp_path: Path) -> None:
    """Wherever the entry is: in the newest segment or a closed one, at the beginning of a batch or in its middle."""
    fs = CountingFileSystem()
    owner = Owner(fs, options(4000, sync=False), path=str(tmp_path / "log"))
    for _ in range(40):
        owner.store(3, 100)
    positions = range(1, owner.model.local_hwm + 1)

    def read_all() -> list[bytes]:
        return [bytes(owner.storage.read(GLSN(at), GLSN(at + 1), 1)[0].batch) for at in positions]

    expected = read_all()
    assert len({read.name for read in fs.reads}) > 3, "the indexes of several closed segments were loaded"
    fs.reads.clear()
    assert read_all() == expected
    assert [read.length for read in fs.reads] == [fmt.FRAME_HEADER_BYTES + len(data) for data in expected]
    owner.storage.close()


def test_indexes_and_files_of_closed_segments_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESIDENT_SEGMENT_INDEXES", 3)
    owner = Owner(SimDisk(), options(400))
    for _ in range(40):
        owner.store(1, 100)
    for _ in range(3):
        for glsn, stored, _ in owner.model.kept():
            found = owner.storage.read(glsn, GLSN(glsn + 1), 1)
            assert bytes(found[0].batch) == stored.data
            assert owner.storage._reader.residents <= 3
    in_memory = [segment for segment in owner.storage._segments if segment.index is not None]
    assert len(in_memory) == 1
    owner.check()


def test_a_long_read_goes_on_over_segments_and_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_CHUNK_BYTES", 700)
    owner = Owner(SimDisk(), options(3000))
    for i in range(30):
        owner.append(1 + i % 3, 50 + 37 * (i % 11))
        if i % 4 == 3:
            owner.flush()
            owner.commit(i % 5 + 1)
    owner.flush()
    owner.check()
    storage = owner.storage
    storage.close()
    owner.reopen()
    owner.check()


def test_a_segment_is_closed_by_the_number_of_its_records_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that opening never has more to scan than that, however small batches are."""
    monkeypatch.setattr(limits, "SEGMENT_RECORDS", 10)
    disk = SimDisk()
    owner = Owner(disk, options(1 << 20))
    owner.unseal()
    for number in range(30):
        owner.store(1, 1)
        if number % 7 == 0:
            disk.kill()
            owner.reopen()
    assert len([name for name in disk.listdir(owner.path) if name.endswith(".seg")]) == 7
    owner.check()


def test_reads_in_many_threads_while_the_log_grows_and_is_trimmed(tmp_path: Path) -> None:
    owner = Owner(OSFileSystem(), options(4000, sync=False), path=str(tmp_path / "log"))
    owner.store(3, 100)
    done = threading.Event()
    problems: list[BaseException] = []
    reads = [0] * 2

    def read(number: int) -> None:
        position = GLSN(1)
        try:
            while not done.is_set() or reads[number] == 0:
                try:
                    found = owner.storage.read(position, GLSN(EVERYTHING), 2000)
                except Trimmed as e:
                    position = GLSN(e.first)
                    continue
                for one in found:
                    assert one.glsn <= position < one.glsn + one.count
                    assert batch.decode(one.batch).count == one.count
                    position = GLSN(one.glsn + one.count)
                reads[number] += 1
                if not found:
                    position = GLSN(owner.storage._trim_glsn + 1)
        except BaseException as e:
            problems.append(e)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for round_ in range(60):
            grow(owner, round_)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not problems, problems
    assert min(reads) > 0
    owner.check()
    owner.storage.close()


def grow(owner: Owner, round_: int) -> None:
    owner.append(2, 300)
    owner.append(1, 1000)
    owner.flush()
    owner.commit(1)
    owner.flush()
    if round_ % 6 == 5:
        owner.seal()
        owner.unseal()
    if round_ % 8 == 7:
        owner.trim(owner.model.hwm - 5)
    owner.flush()
