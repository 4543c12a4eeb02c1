"""Recovery: what is found after a process or a machine ended in the middle of things."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.storage.counting import CountingFileSystem, Read
from tests.storage.owner import EVERYTHING, IDENTITY, PATH, Owner, check_opened, model_of, options
from varlog import batch, limits
from varlog.sim.disk import SimDisk
from varlog.sim.medium import FileImage, Image
from varlog.storage import format as fmt
from varlog.storage.log import LogStreamStorage, StorageOptions
from varlog.types import FIRST_LLSN, GLSN, LLSN, CommitContext, Epoch, Version


def newest_segment(disk: SimDisk) -> str:
    return max(f"{PATH}/{name}" for name in disk.listdir(PATH) if name.endswith(".seg"))


def test_whole_frames_after_the_last_commit_stay_uncommitted() -> None:
    disk = SimDisk()
    owner = Owner(disk)
    owner.unseal()
    owner.store()
    for _ in range(3):
        owner.append()
    owner.flush()
    disk.power_loss(random.Random(0))
    storage = owner.reopen()
    assert len(storage.recovered.uncommitted) == 3
    check_opened(storage, owner.model)


def test_uncommitted_frames_are_found_in_closed_segments_too() -> None:
    disk = SimDisk()
    owner = Owner(disk, options(600))
    owner.store()
    for _ in range(10):
        owner.append(2, 100)
    owner.flush()
    owner.commit(3)
    owner.flush()
    disk.kill()
    storage = owner.reopen()
    assert len(storage.recovered.uncommitted) == 7
    check_opened(storage, owner.model)
    owner.commit()
    owner.flush()
    owner.check()
    disk.kill()
    check_opened(owner.reopen(), owner.model)


def test_damage_in_an_uncommitted_frame_of_a_closed_segment_is_corruption() -> None:
    disk = SimDisk()
    owner = Owner(disk, options(600))
    for _ in range(6):
        owner.append(2, 100)
    owner.flush()
    owner.storage.close()
    first = min(name for name in disk.listdir(PATH) if name.endswith(".seg"))
    content = disk.image().files[f"{PATH}/{first}"].data
    disk.flip_bit(f"{PATH}/{first}", content.index(b"0:1:"))
    storage = owner.reopen()
    assert storage.recovered.corruption is not None
    assert storage.recovered.corruption.segment == first
    assert storage.recovered.uncommitted == []


def test_rule6_a_seal_voids_frames_also_across_segments_and_their_llsns_are_used_again() -> None:
    disk = SimDisk()
    owner = Owner(disk, options(600))
    owner.unseal()
    for _ in range(3):
        for _ in range(2):
            owner.append(2, 40)
        owner.flush()
        owner.commit(1)
        for _ in range(6):
            owner.append(3, 90)
        owner.flush()
        owner.seal()
        owner.unseal()
        owner.append(1, 40)
        owner.flush()
        owner.commit()
        owner.flush()
    owner.check()
    disk.power_loss(random.Random(3))
    check_opened(owner.reopen(), owner.model)
    assert not list(owner.storage.scrub())


def test_rule6_a_seal_above_the_committed_end_keeps_what_lies_below_it() -> None:
    disk = SimDisk()
    owner = Owner(disk)
    owner.unseal()
    for _ in range(4):
        owner.append(2)
    owner.flush()
    owner.commit(1)
    owner.seal(LLSN(5))
    owner.flush()
    disk.kill()
    storage = owner.reopen()
    assert [b.llsn for b in storage.recovered.uncommitted] == [3]
    check_opened(storage, owner.model)


def test_B10_a_partial_commit_is_dropped() -> None:
    """Without syncs a power loss may take entries and leave the commit after them: it is as if it never was, but for
    what it says of the high watermark before it."""
    disk = SimDisk()
    owner = Owner(disk, options(4096, sync=False))
    owner.store()
    before = model_of(owner.records)
    offset = written_end(disk)
    owner.append(1, 600)
    owner.flush()
    cc = owner.commit(skip=5)
    owner.flush()
    disk.kill()
    zero(disk, offset, 512)
    storage = owner.reopen()
    assert storage.recovered.corruption is None
    assert storage.recovered.dropped_commit
    assert storage.recovered.global_hwm == cc.prev_hwm == before.hwm + 5
    assert storage.recovered.committed_llsn_end == storage.recovered.uncommitted_llsn_end == before.committed_end
    assert storage.recovered.version == before.version
    assert storage.read(GLSN(1), GLSN(EVERYTHING), EVERYTHING)[-1].glsn == 1
    disk.power_loss(random.Random(0))
    assert owner.reopen().recovered.committed_llsn_end == before.committed_end


def test_B10_a_partial_commit_is_dropped_where_the_entries_are_damaged() -> None:
    disk = SimDisk()
    owner = Owner(disk, options(4096))
    owner.store()
    before = model_of(owner.records)
    offset = written_end(disk)
    owner.append(1, 600)
    owner.flush()
    cc = owner.commit(skip=5)
    owner.storage.close()
    disk.flip_bit(newest_segment(disk), offset + 100)
    recovered = owner.reopen().recovered
    assert recovered.corruption is not None
    assert recovered.corruption.offset == offset
    assert recovered.dropped_commit
    assert recovered.global_hwm == cc.prev_hwm
    assert recovered.committed_llsn_end == recovered.uncommitted_llsn_end == before.committed_end
    assert recovered.version == before.version


def test_B10_committing_again_after_a_partial_commit() -> None:
    """A partial commit is not completed from what is there; the cut comes again, and is applied to what is stored."""
    disk = SimDisk()
    owner = Owner(disk, options(4096, sync=False))
    owner.store()
    kept = len(owner.records)
    offset = written_end(disk)
    lost = owner.append(1, 600)
    owner.flush()
    cc = owner.commit()
    owner.flush()
    disk.kill()
    zero(disk, offset, 512)
    storage = owner.reopen()
    storage.stage_batch(lost.llsn, lost.epoch, lost.sequence - 1, lost.data, batch.peek_header(lost.data))
    group = storage.take()
    assert group is not None
    storage.write(group)
    storage.sync(group)
    storage.finish(group)
    storage.stage_commit(cc)
    assert len(owner.records) == kept + 2
    storage.close()
    check_opened(owner.reopen(), owner.model)


def written_end(disk: SimDisk) -> int:
    return len(disk.image().files[newest_segment(disk)].data.rstrip(b"\0")) // 8 * 8 + 8


def zero(disk: SimDisk, offset: int, length: int) -> None:
    file = disk.open(newest_segment(disk))
    file.pwritev([bytes(length)], offset)
    file.fdatasync()


def test_rule15_a_torn_tail_is_cut_and_the_log_goes_on() -> None:
    lengths = set()
    for seed in range(40):
        disk = SimDisk()
        owner = Owner(disk, options(1 << 16))
        owner.store()
        owner.append()
        owner.flush()
        kept = len(owner.records)
        owner.append(4, 1000)
        owner.append(1, 4000)
        group = owner.storage.take()
        assert group is not None
        owner.storage.write(group)
        disk.power_loss(random.Random(seed))
        storage = owner.reopen()
        found = kept + len(storage.recovered.uncommitted) - 1
        lengths.add(found - kept)
        owner = Owner.resume_open(owner, model_of(owner.records[:found]))
        check_opened(storage, owner.model)
        owner.store()
        owner.storage.flush_commits()
        owner.flush()
        owner.check()
        disk.power_loss(random.Random(seed))
        check_opened(owner.reopen(), owner.model)
    assert lengths == {0, 1, 2}


def test_rule15_a_tail_torn_into_any_pieces_is_cut_at_its_first_whole_frames() -> None:
    """More than a disk is expected to do: any of the sectors of an unsynced group may be missing."""
    rng = random.Random(4)
    lengths = set()
    for _ in range(150):
        disk = SimDisk()
        owner = Owner(disk, options(1 << 16))
        owner.append(1, 300)
        owner.flush()
        begin = written_end(disk)
        for _ in range(6):
            owner.append(1, rng.choice((10, 300, 900)))
        group = owner.storage.take()
        assert group is not None
        owner.storage.write(group)
        disk.kill()
        file = disk.open(newest_segment(disk))
        for sector in range(begin, group.offset, 512):
            if rng.random() < 0.1:
                first = max(begin, sector // 512 * 512)
                file.pwritev([bytes(min(512, group.offset - first))], first)
        recovered = owner.reopen().recovered
        found = len(recovered.uncommitted)
        lengths.add(found)
        check_opened(owner.storage, model_of(owner.records[:found]))
    assert len(lengths) > 4
    assert max(lengths) == 7


def test_a_payload_that_looks_like_frames_is_no_frame() -> None:
    """A torn tail whose payload holds frame headers that claim a later sync: taken at their word, they would make it
    look like damage. One is true but for its place, one but for its nonce."""
    disk = SimDisk()
    owner = Owner(disk, options(1 << 16))
    owner.store()
    owner.storage.flush_commits()
    owner.flush()
    path, offset = newest_segment(disk), written_end(disk)
    header = fmt.decode_segment_header(disk.image().files[path].data[: fmt.SEGMENT_HEADER_BYTES])
    assert header is not None
    at = offset + fmt.FRAME_HEADER_BYTES + batch.HEADER_BYTES + 8
    elsewhere, _ = fmt.encode_frame_header(64, 0, fmt.FrameKind.SEAL, 0, 0, 0, 1 << 31, 1, 1, 0, header.nonce)
    stranger, _ = fmt.encode_frame_header(at + 64, 0, fmt.FrameKind.SEAL, 0, 0, 0, 1 << 31, 1, 1, 0, header.nonce + 1)
    data = batch.encode([elsewhere + stranger], writer_id=7, sequence=9)
    owner.storage.stage_batch(owner.model.end, Epoch(0), 1, data, batch.peek_header(data))
    group = owner.storage.take()
    assert group is not None
    owner.storage.write(group)
    disk.kill()
    assert disk.image().files[path].data[at : at + 128] == elsewhere + stranger
    disk.flip_bit(path, offset + 40)
    check_opened(owner.reopen(), owner.model)


def test_frames_of_an_earlier_life_of_the_file_are_no_frames() -> None:
    """Of several frames the first is lost; it is cut there, and another one of the same size takes its place. What
    stood behind the first one must not come back, even if the cut itself is lost."""

    def grown(sequence: int, batches: int) -> Owner:
        owner = Owner(SimDisk(), options(1 << 16))
        owner.store()
        owner.storage.flush_commits()
        owner.flush()
        owner.skip_to(sequence)
        for _ in range(batches):
            owner.append(1, 30)
        owner.flush()
        return owner

    former, present = grown(20, 6), grown(30, 1)
    assert isinstance(former.fs, SimDisk)
    assert isinstance(present.fs, SimDisk)
    path, end = newest_segment(present.fs), written_end(present.fs)
    image = present.fs.image()
    stale = former.fs.image().files[path]
    mixed = image.files[path].data[:end].ljust(end, b"\0") + stale.data[end:]
    assert b"0:22:" in mixed
    crashed = SimDisk.from_image(Image(image.directories, {**image.files, path: FileImage(mixed, stale.size)}))
    check_opened(LogStreamStorage.open(crashed, PATH, IDENTITY, present.options), present.model)


def test_opening_again_changes_nothing() -> None:
    disk = SimDisk()
    owner = Owner(disk)
    for _ in range(10):
        owner.store()
    owner.append()
    owner.flush()
    disk.power_loss(random.Random(1))
    owner.reopen().close()
    first = disk.image()
    owner.reopen().close()
    assert disk.image() == first


def test_opening_a_gigabyte_reads_footers_and_the_last_segment(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    fs = CountingFileSystem()
    storage = LogStreamStorage.create(fs, path, IDENTITY, StorageOptions(sync=False))
    data = batch.encode([bytes(limits.MIB)] * 4, writer_id=1, sequence=1)
    header = batch.peek_header(data)
    llsn, version, total = FIRST_LLSN, 0, 0
    while total < 1 << 30:
        storage.stage_batch(llsn, Epoch(2), 0, data, header)
        write_all(storage)
        version += 1
        storage.stage_commit(
            CommitContext(Version(version), Epoch(2), GLSN(llsn + 3), GLSN(llsn - 1), llsn, GLSN(llsn), 4, version)
        )
        llsn = LLSN(llsn + 4)
        total += len(data)
    storage.close()
    first, *closed, newest = sorted(tmp_path.glob("log/*.seg"))
    assert len(closed) >= 14
    fs.reads.clear()
    storage = LogStreamStorage.open(fs, path, IDENTITY)
    assert storage.recovered.committed_llsn_end == llsn
    reads = {file.name: [read for read in fs.reads if read.name == file.name] for file in (first, *closed, newest)}
    for file in closed:
        footer = Read(file.name, file.stat().st_size - fmt.FOOTER_BYTES, fmt.FOOTER_BYTES)
        assert reads[file.name] == [footer]
    # The first kept position is looked up in the index of the segment that has it.
    footer, index_header, index = reads[first.name]
    assert footer == (first.name, first.stat().st_size - fmt.FOOTER_BYTES, fmt.FOOTER_BYTES)
    assert index_header.length == fmt.FRAME_HEADER_BYTES
    assert index.offset == index_header.offset + fmt.FRAME_HEADER_BYTES
    assert index.offset + index.length == footer.offset
    # A batch that is larger than a read is read once more from its beginning.
    size = newest.stat().st_size
    assert size <= sum(read.length for read in reads[newest.name]) <= size * (1 + limits.READ_CHUNK_BYTES / len(data))
    middle = GLSN(llsn // 2)
    assert storage.read(middle, GLSN(middle + 1), 1)[0].batch == data
    storage.close()
    for file in (first, *closed, newest):
        file.unlink()


def write_all(storage: LogStreamStorage) -> None:
    while (group := storage.take()) is not None:
        storage.write(group)
        storage.sync(group)
        storage.finish(group)


@pytest.mark.parametrize("snapshot", [b"", b"x", b"table" * 1000])
def test_rule18_the_deduplication_table_is_carried_from_segment_to_segment(snapshot: bytes) -> None:
    disk = SimDisk()
    owner = Owner(disk, options(400))
    owner.storage.snapshot_source = lambda: snapshot
    for _ in range(4):
        owner.append(1, 300)
        owner.flush()
    disk.kill()
    recovered = owner.reopen().recovered
    assert recovered.dedup_snapshot == (snapshot or None)
    assert recovered.dedup_tail == []
