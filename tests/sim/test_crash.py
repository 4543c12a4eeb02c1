"""The enumeration of crash states, against what can be counted by hand and against random power losses."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from varlog.sim.crash import crash_states
from varlog.sim.disk import SimDisk
from varlog.sim.medium import Image


def contents(image: Image, path: str) -> bytes | None:
    file = image.files.get(path)
    return None if file is None else file.data + bytes(file.size - len(file.data))


def start() -> SimDisk:
    disk = SimDisk()
    disk.mkdir("/d")
    disk.create("/d/f").fdatasync()
    disk.sync_dir("/d")
    disk.start_recording()
    return disk


def test_one_write_is_absent_whole_zeros_or_cut_at_each_sector() -> None:
    disk = start()
    disk.open("/d/f").pwritev([b"x" * 1200], 100)
    states = list(crash_states(disk.recorded()))
    found = [contents(state.image, "/d/f") for state in states]
    whole = bytes(100) + b"x" * 1200
    assert sorted(map(str, found)) == sorted(map(str, [b"", whole, bytes(1300), whole[:512], whole[:1024]]))
    assert all(state.complete for state in states)


def test_synced_writes_are_whole_in_every_later_state() -> None:
    disk = start()
    file = disk.open("/d/f")
    file.pwritev([b"first"], 0)
    file.fdatasync()
    disk.note("first is durable")
    file.pwritev([b"second"], 5)
    states = list(crash_states(disk.recorded()))
    before = {contents(s.image, "/d/f") for s in states if not s.notes}
    after = {contents(s.image, "/d/f") for s in states if s.notes}
    assert before == {b"", b"first", bytes(5)}
    assert after == {b"first", b"firstsecond", b"first" + bytes(6)}
    assert len(states) == 6


def test_directory_operations_are_there_or_not_each_by_itself() -> None:
    disk = start()
    disk.create("/d/a")
    disk.create("/d/b")
    disk.unlink("/d/f")
    names = {frozenset(state.image.files) for state in crash_states(disk.recorded())}
    assert len(names) == 8
    disk.sync_dir("/d")
    disk.note("synced")
    last = [state for state in crash_states(disk.recorded()) if state.notes]
    assert [set(state.image.files) for state in last] == [{"/d/a", "/d/b"}]


def test_rename_is_one_step_and_content_follows_the_file() -> None:
    disk = start()
    disk.create("/d/t").pwritev([b"new"], 0)
    disk.rename("/d/t", "/d/f")
    found = {(contents(s.image, "/d/f"), contents(s.image, "/d/t")) for s in crash_states(disk.recorded())}
    versions = {b"", b"new", bytes(3)}
    assert found == {(v, None) for v in versions} | {(b"", v) for v in versions}


def test_files_are_independent() -> None:
    disk = start()
    disk.create("/d/g")
    disk.sync_dir("/d")
    disk.note("both there")
    disk.open("/d/f").pwritev([b"f"], 0)
    disk.open("/d/g").pwritev([b"g"], 0)
    found = {(contents(s.image, "/d/f"), contents(s.image, "/d/g")) for s in crash_states(disk.recorded()) if s.notes}
    assert found == {(f, g) for f in (b"", b"f", b"\0") for g in (b"", b"g", b"\0")}


def test_what_was_unsynced_before_the_recording_is_in_question_too() -> None:
    disk = SimDisk()
    disk.mkdir("/d")
    disk.create("/d/f").pwritev([b"x"], 0)
    disk.start_recording()
    disk.sync_dir("/d")
    disk.note("named")
    found = {contents(s.image, "/d/f") for s in crash_states(disk.recorded())}
    assert found == {None, b"", b"x", b"\0"}
    assert {contents(s.image, "/d/f") for s in crash_states(disk.recorded()) if s.notes} == {b"", b"x", b"\0"}


def test_a_failed_sync_leaves_the_past_open_for_good() -> None:
    disk = start()
    file = disk.open("/d/f")
    file.pwritev([b"ab"], 0)
    disk.fail_syncs()
    with pytest.raises(OSError, match="fsync"):
        file.fdatasync()
    file.pwritev([b"cd"], 2)
    file.fdatasync()
    disk.note("later sync")
    found = {contents(s.image, "/d/f") for s in crash_states(disk.recorded()) if s.notes}
    assert found == {b"abcd", b"\0\0cd"}


def test_a_small_file_rewritten_without_sync_has_few_states() -> None:
    disk = start()
    file = disk.open("/d/f")
    for i in range(100):
        file.pwritev([bytes([i + 1]) * 24], 0)
    states = list(crash_states(disk.recorded()))
    assert len(states) == 102
    assert all(state.complete for state in states)


def _group_commit(disk: SimDisk) -> None:
    for group in range(3):
        file = disk.create(f"/d/{group}")
        for part in range(2):
            file.pwritev([bytes([65 + group]) * 300], part * 300)
        file.fdatasync()
        disk.sync_dir("/d")
        disk.open("/d/f").pwritev([bytes([group])], 0)


def _unsynced(disk: SimDisk) -> None:
    file = disk.open("/d/f")
    file.pwritev([b"x" * 600], 0)
    file.truncate(100)
    file.allocate(200)
    file.pwritev([b"y" * 50], 90)
    disk.rename("/d/f", "/d/g")


@pytest.mark.parametrize("run", [_group_commit, _unsynced])
def test_every_random_power_loss_is_among_the_states(run: Callable[[SimDisk], None]) -> None:
    disk = start()
    run(disk)
    legal = {_shape(state.image) for state in crash_states(disk.recorded())}
    drawn = set()
    for seed in range(300):
        again = start()
        run(again)
        again.power_loss(random.Random(seed))
        drawn.add(_shape(again.image()))
    assert drawn <= legal


def _shape(image: Image) -> frozenset[tuple[str, bytes | None]]:
    return frozenset((path, contents(image, path)) for path in image.files)


def test_beyond_the_limit_a_systematic_part_is_taken() -> None:
    disk = start()
    file = disk.open("/d/f")
    for i in range(12):
        file.pwritev([bytes([i + 1])], i)
    states = list(crash_states(disk.recorded(), limit=500))
    found = {(contents(s.image, "/d/f") or b"").rstrip(b"\0") for s in states}
    assert not any(state.complete for state in states)
    whole = bytes(range(1, 13))
    assert {whole[:n] for n in range(13)} <= found
    assert {whole[:n] + b"\0" + whole[n + 1 :] for n in range(11)} <= found
    assert {bytes(n) + whole[n : n + 1] for n in range(12)} <= found
    assert len(states) == len({(contents(s.image, "/d/f"), s.notes) for s in states})


def test_too_many_files_are_combined_in_part() -> None:
    disk = start()
    for name in "abcdeghi":
        disk.create(f"/d/{name}").pwritev([name.encode()], 0)
    disk.sync_dir("/d")
    disk.note("named")
    states = [s for s in crash_states(disk.recorded(), limit=100) if s.notes]
    found = {tuple(contents(s.image, f"/d/{name}") for name in "abcdeghi") for s in states}
    whole = tuple(name.encode() for name in "abcdeghi")
    assert whole in found
    assert tuple(b"" for _ in whole) in found
    assert all((*whole[:i], b"\0", *whole[i + 1 :]) in found for i in range(8))
    assert 90 <= len(states) <= 200
    assert any("zeros" in state.how for state in states)
