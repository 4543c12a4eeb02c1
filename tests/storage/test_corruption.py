"""Damage: a flipped bit in any byte of any file is reported, with the place, and never served or cut off."""

from __future__ import annotations

import errno
import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.bad_sectors import BadSectors
from tests.storage.owner import EVERYTHING, IDENTITY, PATH, Model, Owner, check_readable, options
from varlog.errors import (
    ConsistencyViolation,
    Corrupt,
    NotWritable,
    Poisoned,
    Trimmed,
    UnsupportedFormat,
    VarlogError,
    WrongIdentity,
)
from varlog.sim.disk import SimDisk
from varlog.sim.medium import FileImage, Image
from varlog.storage import format as fmt
from varlog.storage.log import LogStreamStorage, StorageOptions
from varlog.types import GLSN, LLSN, CommitContext, Epoch, LogStreamIdentity, StorageNodeID, Version

SEGMENT_BYTES = 700


def a_log(*, trimmed: bool = True) -> tuple[Image, Model]:
    """A closed log of several segments with every kind of frame, void batches, and uncommitted ones at the end."""
    disk = SimDisk()
    owner = Owner(disk, options(SEGMENT_BYTES))
    owner.storage.snapshot_source = lambda: b"table"
    owner.unseal()
    for _ in range(3):
        owner.store(2, 30)
    owner.append(1, 60)
    owner.flush()
    owner.seal()
    owner.unseal()
    for _ in range(3):
        owner.store(1, 50)
    if trimmed:
        owner.trim(1)
    owner.append(2, 30)
    owner.append(1, 10)
    owner.storage.close()
    return disk.image(), owner.model


def files_of(image: Image) -> dict[str, FileImage]:
    """The files that hold anything."""
    return {path: file for path, file in image.files.items() if file.data}


def written_bytes(path: str, file: FileImage) -> int:
    """Up to where the file was written; the rest of the newest segment is reserved space."""
    return len(file.data.rstrip(b"\0")) if path.endswith(".seg") else file.size


def parts(path: str, file: FileImage) -> list[int]:
    """Where each part of an intact file begins: the segment header, every frame, the footer. Other files are one."""
    starts = [0]
    at = fmt.SEGMENT_HEADER_BYTES
    while path.endswith(".seg") and file.data.startswith(fmt.FRAME_MAGIC, at):
        starts.append(at)
        at += fmt.FRAME_HEADER_BYTES + int.from_bytes(file.data[at + 16 : at + 20], "little")
    footer = file.size - fmt.FOOTER_BYTES
    return [*starts, at] if at == footer else starts


def part_of(path: str, file: FileImage, offset: int) -> int:
    return max(start for start in parts(path, file) if start <= offset)


def open_image(image: Image) -> LogStreamStorage:
    return LogStreamStorage.open(SimDisk.from_image(image), PATH, IDENTITY, options(SEGMENT_BYTES))


def flipped(image: Image, path: str, offset: int, bit: int) -> SimDisk:
    disk = SimDisk.from_image(image)
    disk.flip_bit(path, offset, bit)
    return disk


def reports(storage: LogStreamStorage, model: Model) -> list[Corrupt]:
    """Everything that opening, reading and scrubbing say; what is read on the way must be right."""
    found = [storage.recovered.corruption] if storage.recovered.corruption is not None else []
    expected = {glsn: stored.data for glsn, stored, _ in model.kept()}
    seen: list[GLSN] = []
    position = GLSN(model.trim_glsn + 1)
    while position <= model.local_hwm:
        try:
            batches = storage.read(position, GLSN(EVERYTHING), 1)
        except Corrupt as e:
            found.append(e)
            break
        assert batches, "what is committed was answered as not there"
        for one in batches:
            assert bytes(one.batch) == expected[one.glsn]
            seen.append(one.glsn)
            position = GLSN(one.glsn + one.count)
    assert seen == list(expected)[: len(seen)]
    found.extend(storage.scrub())
    return found


def test_the_log_of_these_tests_is_worth_damaging() -> None:
    image, model = a_log()
    storage = open_image(image)
    check_readable(storage, model)
    assert not list(storage.scrub())
    segments = [path for path in files_of(image) if path.endswith(".seg")]
    assert len(segments) >= 3
    assert len(files_of(image)) == len(segments) + 2
    *closed, newest = sorted(segments)
    assert all(parts(path, image.files[path])[-1] == image.files[path].size - fmt.FOOTER_BYTES for path in closed)
    frames = [image.files[path].data[at : at + 64] for path in segments for at in parts(path, image.files[path])]
    assert {frame[12] for frame in frames if frame.startswith(fmt.FRAME_MAGIC)} == set(fmt.FrameKind)
    assert len(parts(newest, image.files[newest])) > 2


def test_rule15_a_flipped_bit_in_any_byte_is_reported_with_its_place() -> None:
    image, model = a_log()
    flips = 0
    for path, file in files_of(image).items():
        name = path.rpartition("/")[2]
        for offset in range(written_bytes(path, file)):
            disk = flipped(image, path, offset, (offset + flips) % 8)
            before = disk.image()
            storage = LogStreamStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES))
            if name != "synced":  # a mark is rewritten by opening; a damaged one proves nothing and harms nothing
                found = reports(storage, model)
                assert found, f"bit {offset % 8} of byte {offset} of {name} was flipped unnoticed"
                place = name, part_of(path, file, offset)
                assert {(one.segment, one.offset) for one in found} == {place}
            if storage.recovered.corruption is not None:
                assert disk.image() == before, "damage was not left as it is"
            flips += 1
    assert flips > 2500


def test_rule15_a_flipped_bit_is_reported_while_the_log_is_open() -> None:
    """Damage that comes after opening: found by reading or by scrubbing, the mark included."""
    image, model = a_log()
    for path, file in files_of(image).items():
        name = path.rpartition("/")[2]
        for offset in range(0, written_bytes(path, file), 7):
            disk = SimDisk.from_image(image)
            storage = LogStreamStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES))
            disk.flip_bit(path, offset, offset % 8)
            found = reports(storage, model)
            assert found, f"byte {offset} of {name} was flipped unnoticed"
            assert {(one.segment, one.offset) for one in found} == {(name, part_of(path, file, offset))}


def without_mark(image: Image) -> Image:
    """As after a power loss that took the mark."""
    return Image(image.directories, {path: file for path, file in image.files.items() if not path.endswith("synced")})


def test_rule15_damage_below_a_later_frame_is_corruption_even_without_the_mark() -> None:
    """Every frame but those of the last synced group is protected by the frames after it."""
    disk = SimDisk()
    owner = Owner(disk, options(1 << 14))
    for _ in range(4):
        owner.store(2, 30)
    path = max(path for path in files_of(disk.image()) if path.endswith(".seg"))
    protected = disk.image().files[path].data.rindex(fmt.FRAME_MAGIC)
    for offset in range(0, protected, 3):
        damaged = flipped(without_mark(disk.image()), path, offset, 5)
        storage = LogStreamStorage.open(damaged, PATH, IDENTITY, options(SEGMENT_BYTES))
        corruption = storage.recovered.corruption
        assert corruption is not None
        assert corruption.offset == part_of(path, disk.image().files[path], offset)
        assert reports(storage, owner.model)


def test_rule15_a_trim_record_proves_the_commits_before_it() -> None:
    disk = SimDisk()
    owner = Owner(disk, options(1 << 14))
    owner.store()
    owner.store()
    owner.trim(1)
    owner.flush()
    path = max(path for path in files_of(disk.image()) if path.endswith(".seg"))
    last = disk.image().files[path].data.rindex(fmt.FRAME_MAGIC)
    damaged = flipped(without_mark(disk.image()), path, last + 20, 1)
    corruption = LogStreamStorage.open(damaged, PATH, IDENTITY, options(SEGMENT_BYTES)).recovered.corruption
    assert corruption is not None
    assert corruption.offset == last


def test_wider_damage_is_reported_too() -> None:
    """Zeroed, overwritten and cut files: whatever happens to synced bytes."""
    image, model = a_log()
    rng = random.Random(1)
    for path, file in files_of(image).items():
        size = written_bytes(path, file)
        if not path.endswith(".seg"):
            continue
        for _ in range(60):
            begin = rng.randrange(size)
            length = rng.randint(1, 300)
            junk = rng.choice((bytes(length), rng.randbytes(length)))[: size - begin]
            data = file.data[:begin] + junk + file.data[begin + len(junk) :]
            if data[:size] == file.data[:size]:
                continue
            damaged = Image(image.directories, {**image.files, path: FileImage(data, file.size)})
            assert reports(open_image(damaged), model), (path, begin, length)
        for cut in range(0, size, 61):
            damaged = Image(image.directories, {**image.files, path: FileImage(file.data[:cut], cut)})
            assert reports(open_image(damaged), model), (path, cut)


def test_a_missing_segment_is_corruption() -> None:
    image, model = a_log()
    segments = sorted(path for path in files_of(image) if path.endswith(".seg"))
    for gone in segments:
        files = {path: file for path, file in image.files.items() if path != gone}
        storage = open_image(Image(image.directories, files))
        assert storage.recovered.corruption is not None
        assert storage.recovered.corruption.segment.startswith(gone.rpartition("/")[2][:10])
        assert reports(storage, model)
    files = {path: file for path, file in image.files.items() if path not in segments}
    assert open_image(Image(image.directories, files)).recovered.corruption is not None


def test_a_segment_under_another_number_is_corruption() -> None:
    image, model = a_log(trimmed=False)
    segments = sorted(path for path in files_of(image) if path.endswith(".seg"))
    files = dict(image.files)
    files[segments[0]], files[segments[1]] = files[segments[1]], files[segments[0]]
    assert reports(open_image(Image(image.directories, files)), model)
    files = {**image.files, f"{PATH}/0000000002-{7:020d}.seg": image.files[segments[1]]}
    assert reports(open_image(Image(image.directories, files)), model)


def test_a_segment_put_back_from_another_life_of_the_log_is_corruption() -> None:
    """Two logs of one identity that differ in a few bytes: each file is whole, and the log made of both is not."""

    def life(nonce: int) -> Image:
        disk = SimDisk()
        numbers = iter(range(nonce, nonce + 100))
        owner = Owner(disk, StorageOptions(segment_bytes=SEGMENT_BYTES, nonce=lambda: next(numbers)))
        for _ in range(8):
            owner.store(1, 100)
        owner.storage.close()
        return disk.image()

    former, present = life(1000), life(2000)
    segments = sorted(path for path in files_of(present) if path.endswith(".seg"))
    assert len(segments) > 3
    for path in segments:
        mixed = Image(present.directories, {**present.files, path: former.files[path]})
        corruption = open_image(mixed).recovered.corruption
        assert corruption is not None
        assert corruption.segment.endswith(".seg")


def test_a_corrupt_log_is_served_below_the_damage_and_takes_nothing() -> None:
    image, model = a_log(trimmed=False)
    segments = sorted(path for path in files_of(image) if path.endswith(".seg"))
    size = image.files[segments[1]].size
    disk = flipped(image, segments[1], size - 1, 0)
    before = disk.image()
    storage = LogStreamStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES))
    corruption = storage.recovered.corruption
    assert corruption is not None
    assert corruption.offset == size - fmt.FOOTER_BYTES
    assert storage.read(GLSN(1), GLSN(2), 1)[0].glsn == 1
    with pytest.raises(Corrupt):
        storage.read(model.local_hwm, GLSN(EVERYTHING), 1)
    with pytest.raises(Corrupt):
        list(storage.commit_contexts(Version(0)))
    storage.stage_seal(Epoch(99), model.end)
    storage.stage_unseal(Epoch(99), (), StorageNodeID(0))
    storage.stage_trim(LLSN(2), GLSN(1), Version(1), Epoch(1))
    assert not storage.staged
    with pytest.raises(Corrupt):
        storage.take()
    with pytest.raises(Trimmed):
        storage.read(GLSN(1), GLSN(2), 1)
    storage.close()
    assert disk.image() == before


def test_a_frame_that_does_not_follow_is_corruption() -> None:
    """A whole, chained frame that the state does not allow: no torn write makes one."""
    disk = SimDisk()
    owner = Owner(disk, options(4096))
    owner.store()
    cc = CommitContext(Version(9), Epoch(0), GLSN(50), GLSN(2), LLSN(3), GLSN(3), 48, 0)
    with pytest.raises(ConsistencyViolation):
        owner.storage.stage_commit(cc)
    active = owner.storage._active
    assert active is not None
    offset = active.offset
    frame = active.frame(fmt.FrameKind.COMMIT, fmt.encode_commit(cc), cc.llsn_begin, cc.epoch)
    file = disk.open(f"{PATH}/{active.name}")
    file.pwritev([frame], offset)
    file.fdatasync()
    disk.kill()
    storage = owner.reopen()
    assert storage.recovered.corruption is not None
    assert storage.recovered.corruption.offset == offset
    assert storage.recovered.committed_llsn_end == 3


@pytest.mark.parametrize("field", range(4))
def test_files_of_another_log_stream_are_refused_untouched(field: int) -> None:
    image, _ = a_log()
    other = LogStreamIdentity._make(9 if i == field else number for i, number in enumerate(IDENTITY))
    disk = SimDisk.from_image(image)
    with pytest.raises(WrongIdentity):
        LogStreamStorage.open(disk, PATH, other, options(SEGMENT_BYTES))
    assert disk.image() == image
    image, _ = a_log(trimmed=False)
    disk = SimDisk.from_image(image)
    with pytest.raises(WrongIdentity):
        LogStreamStorage.open(disk, PATH, other, options(SEGMENT_BYTES))
    assert disk.image() == image


def test_one_segment_of_another_log_stream_is_refused_untouched() -> None:
    image, _ = a_log(trimmed=False)
    disk = SimDisk()
    other = LogStreamIdentity._make(number + 1 for number in IDENTITY)
    LogStreamStorage.create(disk, PATH, other, options(SEGMENT_BYTES)).close()
    foreign = disk.image().files[f"{PATH}/{1:010d}-{1:020d}.seg"]
    newest = max(path for path in files_of(image) if path.endswith(".seg"))
    parsed = fmt.decode_segment_header(image.files[newest].data[: fmt.SEGMENT_HEADER_BYTES])
    assert parsed is not None
    header = fmt.encode_segment_header(other, parsed.ordering, parsed.seq, parsed.first_llsn, 1, parsed.prev_nonce)
    files = {**image.files, newest: FileImage(header + foreign.data[len(header) :], foreign.size)}
    disk = SimDisk.from_image(Image(image.directories, files))
    before = disk.image()
    with pytest.raises(WrongIdentity):
        LogStreamStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES))
    assert disk.image() == before


def test_files_of_a_newer_release_are_refused_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Header, footer and trim record, each written as the next release would."""
    current, _ = a_log()
    with monkeypatch.context() as patch:
        patch.setattr(fmt, "FORMAT", fmt.FORMAT + 1)
        newer, _ = a_log()
    for path in files_of(current):
        disk = SimDisk.from_image(Image(current.directories, {**current.files, path: newer.files[path]}))
        before = disk.image()
        with pytest.raises(UnsupportedFormat, match="upgrade"):
            LogStreamStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES))
        assert disk.image() == before


GARBAGE_IN, _ = a_log()


@given(
    path=st.sampled_from(sorted(GARBAGE_IN.files)),
    begin=st.integers(min_value=0, max_value=SEGMENT_BYTES),
    junk=st.one_of(st.binary(max_size=200), st.builds(bytes, st.integers(min_value=0, max_value=2 * SEGMENT_BYTES))),
    cut=st.booleans(),
)
def test_opening_any_garbage_raises_nothing_but_typed_errors(path: str, begin: int, junk: bytes, cut: bool) -> None:
    """A file that holds anything, from its beginning or from somewhere on, to its end or with the rest behind it."""
    data = GARBAGE_IN.files[path].data
    damaged = data[:begin] + junk + (b"" if cut else data[begin + len(junk) :])
    files = {**GARBAGE_IN.files, path: FileImage(damaged, len(damaged))}
    try:
        storage = open_image(Image(GARBAGE_IN.directories, files))
    except VarlogError:
        return
    list(storage.scrub())
    with suppress(VarlogError):
        storage.read(GLSN(1), GLSN(EVERYTHING), EVERYTHING)


def test_rule15_damage_found_by_a_read_is_remembered_over_a_restart() -> None:
    image, _ = a_log(trimmed=False)
    path = min(path for path in files_of(image) if path.endswith(".seg"))
    offset = image.files[path].data.index(b"VLRB") + 80
    disk = flipped(image, path, offset, 0)
    storage = LogStreamStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES))
    assert storage.recovered.corruption is None, "opening does not look into closed segments"
    with pytest.raises(Corrupt) as found:
        storage.read(GLSN(1), GLSN(EVERYTHING), EVERYTHING)
    storage.condemn(found.value)
    storage.condemn(found.value)
    disk.power_loss(random.Random(1))
    again = LogStreamStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES)).recovered.corruption
    assert again is not None
    assert (again.segment, again.offset) == (found.value.segment, found.value.offset)


def test_rule15_a_condemnation_counts_whatever_it_says() -> None:
    image, _ = a_log()
    disk = SimDisk.from_image(image)
    disk.create(f"{PATH}/condemned").close()
    assert LogStreamStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES)).recovered.corruption is not None


def test_a_disk_that_cannot_take_a_condemnation_poisons_the_log() -> None:
    image, _ = a_log()
    disk = SimDisk.from_image(image)
    storage = LogStreamStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES))
    disk.set_free_bytes(0)
    storage.condemn(Corrupt("a damaged frame", segment="some.seg", offset=8))
    assert storage.poisoned


def test_rule15_what_the_disk_does_not_give_back_is_corruption_and_is_left_as_it_is() -> None:
    image, model = a_log()
    for path in files_of(image):
        disk = BadSectors.under(image, path)
        storage = LogStreamStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES))
        found = storage.recovered.corruption
        assert found is not None
        assert (found.segment, found.offset) == (path.rpartition("/")[2], 0)
        assert storage.recovered.committed_llsn_end <= model.committed_end
        assert not storage.recovered.uncommitted
        storage.abandon()
        assert disk.image().files.items() >= image.files.items()


def test_rule15_an_unreadable_condemnation_counts_as_well() -> None:
    image, _ = a_log()
    disk = BadSectors.under(image, f"{PATH}/condemned")
    disk.create(f"{PATH}/condemned").close()
    assert LogStreamStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES)).recovered.corruption is not None


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.EMFILE, Poisoned), (errno.ENFILE, Poisoned), (errno.ENOMEM, Poisoned), (errno.EACCES, NotWritable)],
)
def test_what_the_process_lacks_or_may_not_is_no_damage(number: int, error: type[VarlogError]) -> None:
    image, _ = a_log()
    for path in files_of(image):
        with pytest.raises(error):
            LogStreamStorage.open(BadSectors.under(image, path, error=number), PATH, IDENTITY, options(SEGMENT_BYTES))


def test_a_mark_without_a_segment_is_damage_whatever_it_says() -> None:
    image, _ = a_log(trimmed=False)
    mark = f"{PATH}/synced"
    for content in (image.files[mark], FileImage(b"garbage", 7)):
        storage = open_image(Image(image.directories, {mark: content}))
        assert storage.recovered.corruption is not None
        storage.abandon()
