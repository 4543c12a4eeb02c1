"""Crash consistency of a write-once log, enumerated, as `test_crash` does it for the other ordering.

A crash must leave the log after some prefix of its records: at least all that were durable, at most all that were
issued. Then the machine loses power once more, right after the recovery, and the log must be the same. For every fifth
state it is tried further: a crash at any point of the recovery itself, and going on with the log.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.core.writeonce_paper import PaperWriteOnceLog
from tests.storage.owner import IDENTITY, PATH, options
from tests.storage.test_writeonce import act
from tests.storage.writeonce_owner import WriteOnceOwner, check, told
from varlog.errors import NoSuchReplica
from varlog.sim.crash import CrashState, crash_states
from varlog.sim.disk import SimDisk
from varlog.sim.medium import Image
from varlog.storage import format as fmt
from varlog.storage.group import Trim, WriteGroup
from varlog.storage.logfiles import TRIM_NAME, LogFiles, publish
from varlog.storage.options import StorageOptions
from varlog.storage.positions import PositionIndex
from varlog.storage.writeonce import WriteOnceRecovery, WriteOnceStorage


class NotingOwner(WriteOnceOwner):
    """Notes in the recording what was issued and what is durable."""

    def __init__(self, disk: SimDisk, settings: StorageOptions) -> None:
        self._disk = disk
        super().__init__(disk, settings)
        disk.note(("durable", 0))

    def write_group(self) -> WriteGroup | None:
        self._disk.note(("issued", self.storage.staged))
        group = super().write_group()
        if self.storage.synced:
            self._disk.note(("durable", self.storage.durable))
        return group


Run = Callable[[NotingOwner], None]


def in_any_order(owner: NotingOwner) -> None:
    owner.promise()
    owner.write((5, 2), 1)
    owner.flush()
    owner.write(2, 9, 3, size=200)
    owner.flush()
    owner.write(4)
    owner.promise()
    owner.write(7)
    owner.flush()


def roll(owner: NotingOwner) -> None:
    for glsn, size in ((3, 10), (1, 250), (6, 30), (2, 300), (5, 40)):
        owner.write(glsn, size=size)
        owner.flush()


def roll_in_one_group(owner: NotingOwner) -> None:
    owner.write(*range(8, 0, -1), size=150)
    owner.flush()
    owner.write(9, size=500)
    owner.flush()


def wipe(owner: NotingOwner) -> None:
    """Rule 22: a returner voids what it has beyond its verified prefix, and copies."""
    for glsn in (1, 4, 2, 6, 8):
        owner.write((glsn, 2) if glsn > 2 else glsn, size=90)
        owner.flush()
    owner.promise(5)
    owner.flush()
    owner.write(4, 5, 6, size=90)
    owner.flush()
    owner.promise(6)
    owner.write(9, 6, size=200)
    owner.flush()


def trim(owner: NotingOwner) -> None:
    for glsn in (2, 1, 4, 3, 6, 5):
        owner.write(glsn, size=150)
    owner.flush()
    owner.trim(3)
    owner.flush()
    owner.write(8, 7, size=60)
    owner.trim(5)
    owner.promise()
    owner.flush()
    owner.trim(100)
    owner.flush()
    owner.write(101)
    owner.flush()


def without_sync(owner: NotingOwner) -> None:
    for glsn, size in ((2, 20), (1, 700), (4, 20), (3, 20)):
        owner.write(glsn, size=size)
        owner.flush()
    owner.trim(2)
    owner.flush()


def by_chance(seed: int) -> Run:
    def run(owner: NotingOwner) -> None:
        rng = random.Random(seed)
        owner.promise()
        for _ in range(10):
            act(owner, rng)
            if rng.random() < 0.6:
                owner.flush()

    run.__name__ = f"by_chance_{seed}"
    return run


RUNS: dict[Run, StorageOptions] = {
    in_any_order: options(4096),
    roll: options(600),
    roll_in_one_group: options(900),
    wipe: options(600),
    trim: options(700),
    without_sync: options(900, sync=False),
    **{by_chance(seed): options(500 + 100 * seed) for seed in range(8)},
}


class Judge:
    """Knows which logs a crash may leave."""

    def __init__(self, owner: NotingOwner) -> None:
        self.options = owner.options
        self.papers = [owner.paper.restarted(k) for k in range(owner.paper.staged + 1)]
        self.states = 0
        self.chosen: set[int] = set()

    def check(self, state: CrashState) -> None:
        self.states += 1
        durable = max((number for kind, number in _pairs(state) if kind == "durable"), default=-1)
        issued = max((number for kind, number in _pairs(state) if kind == "issued"), default=0)
        disk = SimDisk.from_image(state.image)
        try:
            paper = self._open(disk, max(durable, 0), issued)
        except NoSuchReplica:
            assert durable < 0, "the log was made, and is gone"
            WriteOnceStorage.create(disk, PATH, IDENTITY, self.options).close()
            check(self._opened(disk), PaperWriteOnceLog())
            return
        disk.power_loss(random.Random(self.states))
        check(self._opened(disk), paper)
        if self.states % 5 == 0:
            self._go_on(disk, paper)
            self._crash_in_recovery(state.image, paper)

    def _opened(self, disk: SimDisk) -> WriteOnceStorage:
        return WriteOnceStorage.open(disk, PATH, IDENTITY, self.options)

    def _open(self, disk: SimDisk, durable: int, issued: int) -> PaperWriteOnceLog:
        """Open the log; it must be that of one of the allowed prefixes. Returns which."""
        storage = self._opened(disk)
        assert storage.corruption is None
        found = told(storage)
        for k in range(issued, durable - 1, -1):
            if told(self.papers[k]) == found:
                self.chosen.add(k)
                check(storage, self.papers[k])
                assert not list(storage.scrub())
                return self.papers[k]
        raise AssertionError(f"no prefix of {durable} to {issued} records: {found}")

    def _go_on(self, disk: SimDisk, paper: PaperWriteOnceLog) -> None:
        disk.kill()
        owner = WriteOnceOwner.resume(disk, self.options, paper.restarted())
        owner.write(max(paper.end, paper.trim + 1) + 3, size=200)
        owner.flush()
        owner.promise(paper.end)
        owner.append()
        owner.flush()
        if self.options.sync:
            disk.power_loss(random.Random(self.states))
        else:
            disk.kill()
        owner.reopen()
        check(owner.storage, owner.paper.restarted())

    def _crash_in_recovery(self, image: Image, paper: PaperWriteOnceLog) -> None:
        disk = SimDisk.from_image(image)
        disk.start_recording()
        WriteOnceOwner.resume(disk, self.options, paper).clear()
        for state in crash_states(disk.recorded(), limit=256):
            check(self._opened(SimDisk.from_image(state.image)), paper)


def _pairs(state: CrashState) -> list[tuple[str, int]]:
    return [note for note in state.notes if isinstance(note, tuple)]


def judge_run(run: Run) -> Judge:
    """Record a run and check every state a crash may leave of it."""
    disk = SimDisk()
    disk.start_recording()
    owner = NotingOwner(disk, RUNS[run])
    run(owner)
    judge = Judge(owner)
    for state in crash_states(disk.recorded()):
        try:
            judge.check(state)
        except Exception as e:
            raise AssertionError(f"crash after operation {state.position}: {state.how}") from e
        assert state.complete
    return judge


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_every_crash_state_recovers(run: Run) -> None:
    judge = judge_run(run)
    assert judge.states > 60
    assert len(judge.chosen) >= len(judge.papers) // 2, "the crashes left too few different logs"


# Teeth: broken on purpose, storage is found out.

Break = Callable[[pytest.MonkeyPatch], None]


def a_group_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogFiles, "sync", LogFiles._mark)


def a_trim_record_comes_before_what_it_speaks_of(patch: pytest.MonkeyPatch) -> None:
    def write_trim(files: LogFiles, step: Trim) -> None:
        publish(files._fs, files._directory, TRIM_NAME, step.record).close()
        for name in step.victims:
            files._fs.unlink(f"{files._directory}/{name}")

    patch.setattr(LogFiles, "_trim", write_trim)


def a_wipe_does_not_reach_earlier_segments(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WriteOnceRecovery, "_apply_floors", lambda _: None)


def a_wipe_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PositionIndex, "drop_beyond", lambda *_: None)


def a_torn_tail_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fmt, "is_body_whole", lambda *_: True)


BREAKS: dict[Break, Run] = {
    a_group_is_not_synced: roll,
    a_trim_record_comes_before_what_it_speaks_of: trim,
    a_wipe_does_not_reach_earlier_segments: wipe,
    a_wipe_is_forgotten: wipe,
    a_torn_tail_is_believed: in_any_order,
}


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.__name__)
def test_it_is_noticed_if(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        judge_run(BREAKS[broken])
