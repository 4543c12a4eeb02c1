"""Crash consistency, enumerated: every state a crash may leave of several recorded runs is recovered and checked.

A run notes how many records it has handed to the disk (`issued`) and how many it was told are durable. A crash must
leave the log after some prefix of the records: at least all that were durable, at most all that were issued; whole in
every respect the model knows of. Then the machine loses power once more, right after the recovery, and the log must be
the same: what recovery believes must be durable.

For every fifth state it is tried further: a crash at any point of the recovery itself, and going on with the log.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.storage.owner import (
    IDENTITY,
    PATH,
    Model,
    Owner,
    check_opened,
    check_recovered,
    model_at,
    model_of,
    options,
)
from varlog.errors import NoSuchReplica
from varlog.sim.crash import CrashState, crash_states
from varlog.sim.disk import SimDisk
from varlog.sim.medium import Image
from varlog.storage.format import LogBase
from varlog.storage.log import LogStreamStorage, StorageOptions
from varlog.types import GLSN, LLSN, Epoch, Version

Run = Callable[["NotingOwner"], None]


class NotingOwner(Owner):
    """Notes in the recording what was issued and what is durable."""

    def __init__(self, disk: SimDisk, settings: StorageOptions, base: LogBase | None = None) -> None:
        self._disk = disk
        self.base = base
        super().__init__(disk, settings, base=base)
        disk.note(("durable", 0))

    def flush(self) -> None:
        while self.storage.staged:
            self._disk.note(("issued", len(self.records)))
            group = self.write_group()
            assert group is not None
            if group.needs_sync and self.storage.synced:
                self._disk.note(("durable", len(self.records)))
        self.clear()


def append_and_commit(owner: NotingOwner) -> None:
    owner.unseal()
    owner.append(2, 100)
    owner.flush()
    owner.commit()
    owner.flush()
    owner.append(1, 700)
    owner.append(1)
    owner.flush()
    owner.commit(1)
    owner.flush()
    owner.append(3)
    owner.flush()
    owner.storage.flush_commits()
    owner.flush()


def commits_without_sync(owner: NotingOwner) -> None:
    for _ in range(4):
        owner.append(1)
    owner.flush()
    for _ in range(3):
        owner.commit(1)
        owner.flush()
    owner.append(1, 600)
    owner.flush()


def roll(owner: NotingOwner) -> None:
    for size in (10, 250, 30, 300):
        owner.append(2, size)
        owner.flush()
        owner.commit()
        owner.flush()


def roll_in_one_group(owner: NotingOwner) -> None:
    for _ in range(6):
        owner.append(2, 150)
    owner.flush()
    owner.commit(4)
    owner.append(1, 500)
    owner.flush()


def seal_and_unseal(owner: NotingOwner) -> None:
    owner.unseal()
    owner.append(2, 50)
    owner.append(2, 50)
    owner.flush()
    owner.commit(1)
    owner.append(1, 300)
    owner.seal()
    owner.flush()
    owner.unseal(2, 9)
    owner.flush()
    owner.append(1, 40)
    owner.flush()
    owner.commit()
    owner.flush()


def seal_across_segments(owner: NotingOwner) -> None:
    owner.append(1, 100)
    owner.flush()
    owner.commit()
    for _ in range(3):
        owner.append(2, 120)
        owner.flush()
    owner.seal(LLSN(4))
    owner.unseal()
    owner.append(2, 90)
    owner.flush()
    owner.commit()
    owner.flush()


def trim(owner: NotingOwner) -> None:
    for _ in range(4):
        owner.append(2, 130)
    owner.flush()
    for _ in range(4):
        owner.commit(1)
    owner.trim(3)
    owner.flush()
    owner.append(1, 60)
    owner.flush()
    owner.trim(5)
    owner.commit()
    owner.flush()


def copy_of_another_replica(owner: NotingOwner) -> None:
    """M9: what was stored is voided, then batches of other epochs follow, later ones than the promised one too."""
    owner.append(2, 60)
    owner.flush()
    owner.commit()
    owner.append(2, 60)
    owner.flush()
    owner.seal()
    owner.flush()
    for epoch in (2, 2, 4, 8):
        owner.copy(epoch, 2, 150)
        owner.flush()
        owner.commit(1, skip=epoch)
    owner.copy(8, 1, 200)
    owner.seal(owner.model.end)
    owner.commit(1)
    owner.flush()


def trim_everything(owner: NotingOwner) -> None:
    for _ in range(3):
        owner.append(2, 130)
        owner.flush()
        owner.commit()
    owner.trim(6)
    owner.flush()
    owner.seal()
    owner.flush()


def everything(owner: NotingOwner) -> None:
    """All kinds of records, groups that span segments, and commits that wait for somebody else's sync."""
    owner.unseal()
    for size in (400, 20, 900):
        owner.append(2, size)
    owner.flush()
    owner.commit(1)
    owner.flush()
    owner.commit(1)
    owner.flush()
    owner.append(1, 1500)
    owner.append(3, 30)
    owner.flush()
    owner.trim(1)
    owner.commit(2)
    owner.flush()
    owner.append(1, 200)
    owner.flush()
    owner.seal()
    owner.unseal(2, 7)
    owner.append(1, 1100)
    owner.flush()
    owner.commit()
    owner.flush()
    owner.append(1, 10)
    owner.flush()


def without_sync(owner: NotingOwner) -> None:
    """Nothing is promised; what is found must be a prefix all the same, and what a roll has closed must be there."""
    for size in (20, 700, 20):
        owner.append(1, size)
        owner.flush()
        owner.commit()
        owner.flush()


def without_sync_over_a_roll(owner: NotingOwner) -> None:
    for size in (20, 400, 20):
        owner.append(1, size)
        owner.flush()
        owner.commit()
        owner.flush()
    owner.trim(2)
    owner.flush()
    owner.append(1, 30)
    owner.flush()


def by_chance(seed: int) -> Run:
    """A run of twenty records or so, written in groups of different sizes."""

    def run(owner: NotingOwner) -> None:
        rng = random.Random(seed)
        owner.unseal()
        for _ in range(20):
            uncommitted = owner.model.uncommitted
            kind = rng.choice(("append", "append", "append", "commit", "commit", "seal", "trim"))
            if kind == "append":
                owner.append(rng.randint(1, 3), rng.choice((10, 90, 300, 600)))
            elif kind == "commit" and uncommitted:
                owner.flush()
                owner.commit(rng.randint(1, len(uncommitted)), skip=rng.randint(0, 2))
            elif kind == "seal":
                owner.seal(rng.choice([owner.model.committed_end, *(b.end for b in uncommitted)]))
                owner.unseal()
            elif kind == "trim" and owner.model.hwm > owner.model.trim_glsn:
                owner.trim(rng.randint(owner.model.trim_glsn + 1, owner.model.hwm))
            if rng.random() < 0.6:
                owner.flush()

    run.__name__ = f"by_chance_{seed}"
    return run


RUNS: dict[Run, StorageOptions] = {
    append_and_commit: options(4096),
    commits_without_sync: options(4096),
    roll: options(700),
    roll_in_one_group: options(900),
    seal_and_unseal: options(2048),
    seal_across_segments: options(600),
    trim: options(900),
    trim_everything: options(600),
    copy_of_another_replica: options(700),
    everything: options(3000),
    without_sync: options(4096, sync=False),
    without_sync_over_a_roll: options(700, sync=False),
    **{by_chance(seed): options(500 + 50 * seed) for seed in range(40)},
}


class Judge:
    """Knows which logs a crash may leave."""

    def __init__(self, owner: NotingOwner) -> None:
        self.records = len(owner.records)
        self._models = [model_of(owner.records[:k], owner.base) for k in range(len(owner.records) + 1)]
        self._base = owner.base
        self.options = owner.options
        self.states = 0
        self.chosen: set[int] = set()

    def check(self, state: CrashState) -> None:
        self.states += 1
        durable = max((number for kind, number in _pairs(state) if kind == "durable"), default=-1)
        issued = max((number for kind, number in _pairs(state) if kind == "issued"), default=0)
        disk = SimDisk.from_image(state.image)
        try:
            model = self.open(disk, max(durable, 0), issued)
        except NoSuchReplica:
            assert durable < 0, "the log was made, and is gone"
            base = self._base if self.states % 2 else None
            LogStreamStorage.create(disk, PATH, IDENTITY, self.options, base).close()
            check_opened(LogStreamStorage.open(disk, PATH, IDENTITY, self.options), model_at(base))
            return
        disk.power_loss(random.Random(self.states))
        check_opened(LogStreamStorage.open(disk, PATH, IDENTITY, self.options), model)
        if self.states % 5 == 0:
            self._go_on(disk, model)
            self._crash_in_recovery(state.image, model)

    def open(self, disk: SimDisk, durable: int, issued: int) -> Model:
        """Open the log; it must be that of one of the allowed prefixes. Returns which."""
        storage = LogStreamStorage.open(disk, PATH, IDENTITY, self.options)
        assert storage.recovered.corruption is None
        tried: list[AssertionError] = []
        for k in range(issued, durable - 1, -1):
            try:
                check_recovered(storage.recovered, self._models[k])
            except AssertionError as e:
                tried.append(e)
                continue
            self.chosen.add(k)
            check_opened(storage, self._models[k])
            assert not list(storage.scrub())
            return self._models[k]
        raise AssertionError(f"no prefix of {durable} to {issued} records: {storage.recovered}") from tried[-1]

    def _go_on(self, disk: SimDisk, model: Model) -> None:
        disk.kill()
        owner = Owner.resume(disk, self.options, model)
        owner.append(1, 200)
        owner.flush()
        owner.commit(1)
        owner.seal()
        owner.flush()
        if self.options.sync:
            disk.power_loss(random.Random(self.states))
        else:
            disk.kill()
        check_opened(owner.reopen(), owner.model)

    def _crash_in_recovery(self, image: Image, model: Model) -> None:
        disk = SimDisk.from_image(image)
        disk.start_recording()
        Owner.resume(disk, self.options, model).clear()
        for state in crash_states(disk.recorded(), limit=256):
            again = SimDisk.from_image(state.image)
            check_opened(LogStreamStorage.open(again, PATH, IDENTITY, self.options), model)


def _pairs(state: CrashState) -> list[tuple[str, int]]:
    return [note for note in state.notes if isinstance(note, tuple)]


def judge_run(run: Run, settings: StorageOptions | None = None, base: LogBase | None = None) -> Judge:
    """Record a run and check every state a crash may leave of it."""
    disk = SimDisk()
    disk.start_recording()
    owner = NotingOwner(disk, settings or RUNS[run], base)
    run(owner)
    recording = disk.recorded()
    judge = Judge(owner)
    for state in crash_states(recording):
        try:
            judge.check(state)
        except Exception as e:
            raise AssertionError(f"crash after operation {state.position}: {state.how}") from e
        assert state.complete
    return judge


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_every_crash_state_recovers(run: Run) -> None:
    judge = judge_run(run)
    assert judge.states > 100
    assert len(judge.chosen) >= judge.records // 2, "the crashes left too few different logs"


IN_THE_MIDDLE = LogBase(
    LLSN(15), LLSN(17), GLSN(20), Version(6), Epoch(5), GLSN(18), GLSN(17), b'[["batch", 13, 2, 7, 3]]'
)  # fmt: skip


def trim_beyond_the_base(owner: NotingOwner) -> None:
    for _ in range(4):
        owner.append(2, 130)
        owner.flush()
        owner.commit()
    owner.trim(23)
    owner.flush()
    owner.append(1, 60)
    owner.flush()


IN_THE_MIDDLE_RUNS: dict[Run, StorageOptions] = {
    append_and_commit: options(4096),
    roll: options(700),
    copy_of_another_replica: options(700),
    trim_beyond_the_base: options(700),
}


@pytest.mark.parametrize("run", IN_THE_MIDDLE_RUNS, ids=lambda run: run.__name__)
def test_rule14_every_crash_state_of_a_log_that_begins_in_the_middle_recovers(run: Run) -> None:
    """It is there as a whole or not at all, and can be made again where it is not."""
    judge = judge_run(run, IN_THE_MIDDLE_RUNS[run], IN_THE_MIDDLE)
    assert judge.states > 100
    assert len(judge.chosen) >= judge.records // 2
