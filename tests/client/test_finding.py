"""From a time to a position: in the log, over what holds nothing, what was lost or trimmed, and in an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import varlog
from tests.client.archiving import archive
from tests.client.rig import run
from tests.client.stage import Stage
from tests.client.test_archives import opened
from varlog import batch, errors
from varlog.core.messages import Scan
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID, StreamStatus


def time_of(glsn: int) -> int:
    """As the stage gives it to the batch that begins there."""
    return 1_000_000 + glsn


def test_the_first_position_that_is_as_late(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, streams=3) as stage, varlog.connect(tmp_path) as log:
            assert await log.find_time(0) == 1, "nothing is written: the one after the tail"
            begins = [stage.write(1 + number % 3, [b"x"] * (1 + number % 4)).glsn for number in range(20)]
            for begin in begins:
                assert await log.find_time(time_of(begin)) == begin
                assert await log.find_time(time_of(begin) - 1) in {begin, begin - 1}
            assert await log.find_time(-5) == 1
            assert await log.find_time(time_of(begins[-1]) + 1) == stage.hwm + 1
            with pytest.raises(errors.InvalidArgument, match="microseconds"):
                await log.find_time(1.5)  # type: ignore[arg-type]

    run(main())


def test_what_holds_nothing_has_its_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            stage.write(1, [b"a", b"b"])
            stage._commit(LogStreamID(1), batch.encode([b""] * 50, writer_id=1, flags=batch.BatchFlag.JUNK), 0)
            stage.write(1, [b"c"])
            assert await log.find_time(time_of(3)) == 3
            assert await log.find_time(time_of(4)) == 53
            assert [entry.data async for entry in log.subscribe(await log.find_time(time_of(3)), end=54)] == [b"c"]

    run(main())


def test_what_was_trimmed_counts_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            for _ in range(30):
                stage.write(1, [b"x"])
            await log.trim(10)
            assert await log.find_time(time_of(4)) == 11
            assert await log.find_time(time_of(11)) == 11
            assert await log.find_time(time_of(12)) == 12
            node, asked = stage.nodes[StorageNodeID(1)], 0
            honest = node.answers[Scan]

            def trim_meanwhile(connection: Any, scan: Scan) -> None:
                nonlocal asked
                asked += 1
                if asked == 2:
                    stage.trim = 25
                honest(connection, scan)

            node.answers[Scan] = trim_meanwhile
            assert await log.find_time(time_of(14)) == 26
            await log.trim(30)
            assert await log.find_time(0) == 31

    run(main())


def test_what_was_lost_is_not_passed_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=2, streams=2) as stage, varlog.connect(tmp_path) as log:
            for number in range(1, 31):
                stage.write(1 if 10 <= number < 21 else 2, [b"%d" % number])
            stage.stored[LogStreamID(1)] = []
            stage.change(1, status=StreamStatus.SEALED, epoch=Epoch(3), lost_begin=GLSN(10), lost_end=GLSN(21))
            assert await log.find_time(time_of(9)) == 9
            for lost in (10, 15, 20, 21):
                found = await log.find_time(time_of(lost))
                assert found == 10, "from where on it could have been"
                with pytest.raises(errors.Lost):
                    await log.read(found)
            assert await log.find_time(time_of(22)) == 22

    run(main())


def test_a_replica_that_does_not_answer_is_told_in_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            stage.write(1, [b"x"] * 9)
            stage.nodes[StorageNodeID(1)].silent = True
            with pytest.raises(errors.DeadlineExceeded):
                await log.find_time(time_of(1), timeout=0.3)

    run(main())


def test_P1_the_archive_is_asked_for_what_was_trimmed(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (log, admin):
            for number in range(60):
                await log.append_batch([b"%d" % number] * 2)
            await archive(log, tmp_path / "archive", 11, 71, files=3)
            times: dict[int, int] = {entry.glsn: entry.timestamp async for entry in log.subscribe(end=121)}

            def expected(time: int, begin: int) -> int:
                return min((glsn for glsn, known in times.items() if known >= time and glsn >= begin), default=121)

            await admin.attach_archive("log", str(tmp_path / "archive"))
            await log.trim(50)
            for glsn in (11, 30, 45, 50, 51, 60, 71, 100, 120):
                assert await log.find_time(times[glsn]) == expected(times[glsn], 11)
            assert await log.find_time(0) == 11, "the first that there is"
            assert await log.find_time(times[120] + 1) == 121
            await log.trim(90)
            assert await log.find_time(times[60]) == expected(times[60], 11)
            with pytest.raises(errors.Trimmed, match="71 to 90 are neither") as gone:
                await log.find_time(times[80])
            assert (gone.value.begin, gone.value.first) == (71, 91)
            assert await log.find_time(times[95]) == expected(times[95], 91)

    run(main())
