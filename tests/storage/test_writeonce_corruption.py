"""Damage to a write-once log: reported with its place, never served, never taken for "not there", never cut off."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.writeonce_paper import PaperWriteOnceLog
from tests.storage.owner import EVERYTHING, IDENTITY, PATH, options
from tests.storage.test_corruption import files_of, flipped, part_of, parts, without_mark, written_bytes
from tests.storage.writeonce_owner import WriteOnceOwner, check
from varlog.errors import Corrupt, VarlogError
from varlog.sim.disk import SimDisk
from varlog.sim.medium import FileImage, Image
from varlog.storage import format as fmt
from varlog.storage.options import StorageOptions
from varlog.storage.writeonce import WriteOnceStorage
from varlog.types import GLSN, Epoch

SEGMENT_BYTES = 600


def a_log(*, trimmed: bool = True) -> tuple[Image, PaperWriteOnceLog]:
    """A closed log of several segments with batches in any order, promises, a wipe that reaches back over a segment."""
    disk = SimDisk()
    owner = WriteOnceOwner(disk, options(SEGMENT_BYTES))
    owner.promise()
    for glsn in (1, 4, 2, 7, 5, 6, 9):
        owner.write(glsn, size=40)
        owner.flush()
    owner.promise(6)
    owner.write((6, 2), 10, 8, size=30)
    owner.flush()
    if trimmed:
        owner.trim(1)
    owner.write(11, 3)
    owner.promise()
    owner.storage.close()
    owner.paper.make_durable()
    return disk.image(), owner.paper.restarted()


def open_image(image: Image) -> WriteOnceStorage:
    return WriteOnceStorage.open(SimDisk.from_image(image), PATH, IDENTITY, options(SEGMENT_BYTES))


def reports(storage: WriteOnceStorage, paper: PaperWriteOnceLog) -> list[Corrupt]:
    """Everything that opening, reading and scrubbing say; what is read on the way must be right."""
    found = [storage.corruption] if storage.corruption is not None else []
    expected = {one.glsn: bytes(one.batch) for one in paper.read(GLSN(paper.trim + 1), EVERYTHING)}
    for glsn, data in expected.items():
        try:
            batches = storage.read(glsn, 1)
        except Corrupt as e:
            found.append(e)
            continue
        assert [(one.glsn, bytes(one.batch)) for one in batches[:1]] == [(glsn, data)]
    found.extend(storage.scrub())
    return found


def test_the_log_of_these_tests_is_worth_damaging() -> None:
    image, paper = a_log()
    storage = open_image(image)
    check(storage, paper)
    assert not reports(storage, paper)
    segments = sorted(path for path in files_of(image) if path.endswith(".seg"))
    assert len(segments) >= 3
    newest = segments[-1]
    assert len(parts(newest, image.files[newest])) > 3


def test_rule15_a_flipped_bit_in_any_byte_is_reported_with_its_place() -> None:
    image, paper = a_log()
    for path, file in files_of(image).items():
        name = path.rpartition("/")[2]
        for offset in range(0, written_bytes(path, file), 1 if path.endswith("lwm") else 3):
            disk = flipped(image, path, offset, offset % 8)
            before = disk.image()
            storage = WriteOnceStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES))
            if name == "synced":  # a mark is rewritten by opening; a damaged one proves nothing and harms nothing
                check(storage, paper)
                continue
            found = reports(storage, paper)
            assert found, f"bit {offset % 8} of byte {offset} of {name} was flipped unnoticed"
            place = part_of(path, file, offset)
            assert any(one.segment == name and one.offset == place for one in found), (name, offset, found)
            if storage.corruption is not None:
                storage.close()
                assert disk.image() == before


def test_rule15_damage_below_a_later_frame_is_corruption_even_without_the_mark() -> None:
    disk = SimDisk()
    owner = WriteOnceOwner(disk, options(1 << 14))
    for glsn in (3, 1, 2):
        owner.write(glsn, size=30)
        owner.flush()
    path = max(path for path in files_of(disk.image()) if path.endswith(".seg"))
    protected = disk.image().files[path].data.rindex(fmt.FRAME_MAGIC)
    for offset in range(0, protected, 3):
        damaged = flipped(without_mark(disk.image()), path, offset, 5)
        corruption = WriteOnceStorage.open(damaged, PATH, IDENTITY, options(SEGMENT_BYTES)).corruption
        assert corruption is not None
        assert corruption.offset == part_of(path, disk.image().files[path], offset)


def test_rule15_a_trim_record_proves_the_records_before_it() -> None:
    """Also a promise, though the end of the log is the same without it."""
    disk = SimDisk()
    owner = WriteOnceOwner(disk, options(1 << 14))
    owner.write(1, 2)
    owner.promise()
    owner.trim(1)
    owner.flush()
    path = max(path for path in files_of(disk.image()) if path.endswith(".seg"))
    last = disk.image().files[path].data.rindex(fmt.FRAME_MAGIC)
    damaged = flipped(without_mark(disk.image()), path, last + 20, 1)
    corruption = WriteOnceStorage.open(damaged, PATH, IDENTITY, options(SEGMENT_BYTES)).corruption
    assert corruption is not None
    assert corruption.offset == last


def test_wider_damage_is_reported_too() -> None:
    image, paper = a_log()
    rng = random.Random(1)
    for path, file in files_of(image).items():
        size = written_bytes(path, file)
        if not path.endswith(".seg"):
            continue
        for _ in range(25):
            begin, length = rng.randrange(size), rng.randint(1, 300)
            junk = rng.choice((bytes(length), rng.randbytes(length)))[: size - begin]
            data = file.data[:begin] + junk + file.data[begin + len(junk) :]
            if data[:size] != file.data[:size]:
                damaged = Image(image.directories, {**image.files, path: FileImage(data, file.size)})
                assert reports(open_image(damaged), paper), (path, begin, length)
        for cut in range(0, size, 97):
            damaged = Image(image.directories, {**image.files, path: FileImage(file.data[:cut], cut)})
            assert reports(open_image(damaged), paper), (path, cut)


QUESTIONS: list[Callable[[WriteOnceStorage], object]] = [
    lambda log: log.read(GLSN(2), 1),
    lambda log: log.held(GLSN(2), GLSN(3)),
    lambda log: log.digest(GLSN(2), 1),
    lambda log: log.runs(GLSN(2), 1),
    lambda log: log.take(),
]


def test_a_missing_segment_is_corruption_and_nothing_is_told_of_what_is_left() -> None:
    """It could have held a promise that wiped what the others hold."""
    image, _ = a_log()
    for gone in [path for path in files_of(image) if path.endswith(".seg")]:
        files = {path: file for path, file in image.files.items() if path != gone}
        disk = SimDisk.from_image(Image(image.directories, files))
        before = disk.image()
        storage = WriteOnceStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES))
        assert storage.corruption is not None
        for question in QUESTIONS:
            with pytest.raises(Corrupt):
                question(storage)
        storage.stage_epoch(Epoch(99))
        storage.stage_trim(GLSN(99))
        assert storage.staged == 0
        storage.close()
        assert disk.image() == before


def test_a_segment_put_back_from_another_life_of_the_log_is_corruption() -> None:
    """Two logs of one identity: each file is whole, and the log made of both is not."""

    def life(nonce: int) -> Image:
        disk = SimDisk()
        numbers = iter(range(nonce, nonce + 100))
        owner = WriteOnceOwner(disk, StorageOptions(segment_bytes=SEGMENT_BYTES, nonce=lambda: next(numbers)))
        for glsn in range(1, 16):
            owner.write(glsn, size=100)
        owner.storage.close()
        return disk.image()

    former, present = life(1000), life(2000)
    segments = sorted(path for path in files_of(present) if path.endswith(".seg"))
    assert len(segments) > 3
    for path in segments:
        mixed = Image(present.directories, {**present.files, path: former.files[path]})
        assert open_image(mixed).corruption is not None


def test_a_frame_that_does_not_follow_is_corruption() -> None:
    """A whole, chained frame that the state does not allow: no torn write makes one."""
    disk = SimDisk()
    owner = WriteOnceOwner(disk, options(4096))
    owner.promise()
    owner.promise()
    owner.write(1)
    owner.flush()
    active = owner.storage._active
    assert active is not None
    offset = active.offset
    frame = active.frame(fmt.FrameKind.SEAL, b"", 1, 1)
    file = disk.open(f"{PATH}/{active.name}")
    file.pwritev([frame], offset)
    file.fdatasync()
    disk.kill()
    corruption = owner.reopen().corruption
    assert corruption is not None
    assert corruption.offset == offset


def test_rule15_damage_found_by_a_read_is_remembered_and_the_rest_is_read() -> None:
    image, paper = a_log(trimmed=False)
    path = min(path for path in files_of(image) if path.endswith(".seg"))
    disk = flipped(image, path, image.files[path].data.index(b"VLRB") + 80, 0)
    storage = WriteOnceStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES))
    assert storage.corruption is None, "opening does not look into closed segments"
    with pytest.raises(Corrupt) as found:
        storage.read(GLSN(1), 1)
    storage.condemn(found.value)
    disk.power_loss(random.Random(1))
    storage = WriteOnceStorage.open(disk, PATH, IDENTITY, options(SEGMENT_BYTES))
    again = storage.corruption
    assert again is not None
    assert (again.segment, again.offset) == (found.value.segment, found.value.offset)
    with pytest.raises(Corrupt):
        storage.read(GLSN(1), 1)
    assert [one.glsn for one in storage.read(GLSN(2), EVERYTHING)] == [
        one.glsn for one in paper.read(GLSN(2), EVERYTHING)
    ]
    assert storage.digest(GLSN(1), EVERYTHING) == paper.digest(GLSN(1), EVERYTHING)
    storage.stage_epoch(Epoch(99))
    assert storage.staged == 0
    with pytest.raises(Corrupt):
        storage.take()


GARBAGE_IN, _ = a_log()


@given(
    path=st.sampled_from(sorted(GARBAGE_IN.files)),
    begin=st.integers(min_value=0, max_value=SEGMENT_BYTES),
    junk=st.one_of(st.binary(max_size=200), st.builds(bytes, st.integers(min_value=0, max_value=2 * SEGMENT_BYTES))),
    cut=st.booleans(),
)
def test_opening_any_garbage_raises_nothing_but_typed_errors(path: str, begin: int, junk: bytes, cut: bool) -> None:
    data = GARBAGE_IN.files[path].data
    damaged = data[:begin] + junk + (b"" if cut else data[begin + len(junk) :])
    files = {**GARBAGE_IN.files, path: FileImage(damaged, len(damaged))}
    try:
        storage = open_image(Image(GARBAGE_IN.directories, files))
    except VarlogError:
        return
    list(storage.scrub())
    with suppress(VarlogError):
        storage.read(GLSN(2), EVERYTHING)
    with suppress(VarlogError):
        storage.digest(GLSN(1), EVERYTHING)
