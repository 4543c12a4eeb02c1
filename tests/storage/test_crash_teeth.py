"""The enumeration of crash states has teeth: broken on purpose, storage is found out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.storage.test_crash import Run, everything, judge_run, roll, seal_across_segments, trim
from varlog.sim.disk import SimDisk
from varlog.storage import format as fmt
from varlog.storage import logfiles
from varlog.storage.group import Trim
from varlog.storage.logfiles import TRIM_NAME, LogFiles, publish
from varlog.storage.recovery import Recovery

Break = Callable[[pytest.MonkeyPatch], None]


def a_directory_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimDisk, "sync_dir", lambda *_: None)


def a_group_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogFiles, "sync", LogFiles._mark)


def a_mark_comes_before_its_sync(patch: pytest.MonkeyPatch) -> None:
    def sync(files: LogFiles, offset: int) -> None:
        files._mark(offset)
        files._active.fdatasync()

    patch.setattr(LogFiles, "sync", sync)


def a_trim_record_comes_before_what_it_speaks_of(patch: pytest.MonkeyPatch) -> None:
    def write_trim(files: LogFiles, step: Trim) -> None:
        publish(files._fs, files._directory, TRIM_NAME, step.record).close()
        files.doom(step.victims)

    patch.setattr(LogFiles, "_trim", write_trim)


def a_file_is_deleted_before_the_trim_record(patch: pytest.MonkeyPatch) -> None:
    def write_trim(files: LogFiles, step: Trim) -> None:
        files._active.fdatasync()
        for name in step.victims:
            files._fs.unlink(f"{files._directory}/{name}")
        publish(files._fs, files._directory, TRIM_NAME, step.record).close()

    patch.setattr(LogFiles, "_trim", write_trim)


def a_name_comes_before_its_content(patch: pytest.MonkeyPatch) -> None:
    def publish_early(fs, directory, name, data, allocate=0):  # type: ignore[no-untyped-def]
        file = fs.create(f"{directory}/{name}")
        fs.sync_dir(directory)
        file.allocate(allocate)
        file.pwritev([data], 0)
        file.fdatasync()
        return file

    patch.setattr(logfiles, "publish", publish_early)


def a_seal_does_not_reach_earlier_segments(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recovery, "_apply_floors", lambda _: None)


def a_torn_tail_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fmt, "is_body_whole", lambda *_: True)


BREAKS: dict[Break, Run] = {
    a_directory_is_not_synced: roll,
    a_group_is_not_synced: roll,
    a_mark_comes_before_its_sync: roll,
    a_trim_record_comes_before_what_it_speaks_of: trim,
    a_file_is_deleted_before_the_trim_record: trim,
    a_name_comes_before_its_content: roll,
    a_seal_does_not_reach_earlier_segments: seal_across_segments,
    a_torn_tail_is_believed: everything,
}


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.__name__)
def test_it_is_noticed_if(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    run = BREAKS[broken]
    assert judge_run(run).states > 100
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        judge_run(run)
