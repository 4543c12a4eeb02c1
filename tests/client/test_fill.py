"""Positions that hold nothing: they are appended, counted, and passed over by every reader."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import varlog
import varlog.sync
from tests.client.rig import run
from tests.client.stage import Stage
from varlog import errors, limits
from varlog.core.messages import Append
from varlog.types import StorageNodeID


def test_P1_readers_pass_over_what_was_filled(tmp_path: Path) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path, streams=2) as log:
            await log.append(b"one")
            result = await log.append_fill(5)
            assert (result.glsn, result.count, result.end, result.replicas) == (2, 5, 7, 3)
            await log.append(b"seven")
            await log.append_fill(1)
            assert await log.tail() == 8
            scan = log.scan()
            assert (scan.position, scan.filled) == (1, 0)
            assert [(batch.glsn, batch.payloads()) async for batch in scan] == [(1, [b"one"]), (7, [b"seven"])]
            assert (scan.position, scan.filled) == (9, 6)
            assert [entry.glsn async for entry in log.subscribe(3, end=8)] == [7]
            assert [batch async for batch in log.scan(3, 6)] == [], "a part of a filled batch"
            for filled in (2, 6, 8):
                with pytest.raises(errors.Filled, match=f"position {filled} was filled"):
                    await log.read(filled)
            assert (await log.read(7)).data == b"seven"
            subscription = log.subscribe(8)
            await log.append(b"nine")
            assert (await anext(subscription)).glsn == 9
            await subscription.aclose()

    run(main())


def test_fill_keeps_its_place_in_a_pipeline(tmp_path: Path) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path) as log:
            async with log.appender() as appender:
                sent = []
                for number in range(50):
                    sent.append(await appender.append(b"%d" % number))
                    sent.append(await appender.append_fill(number + 1))
            ends = [(await each).end for each in sent]
            assert [(await each).glsn for each in sent] == [1, *ends[:-1]]
            found = [entry.data async for entry in log.subscribe(end=ends[-1])]
            assert found == [b"%d" % number for number in range(50)]

    run(main())


def test_a_million_positions_take_no_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            result = await log.append_fill(limits.MAX_BATCH_ENTRIES)
            assert result.count == limits.MAX_BATCH_ENTRIES
            (line,) = stage.stored[stage.streams[next(iter(stage.streams))].lsid]
            assert len(line[6]) < 4096
            assert [batch async for batch in log.scan()] == []

    run(main())


WRONG: list[tuple[Any, type[errors.VarlogError]]] = [
    (0, errors.InvalidArgument),
    (-3, errors.InvalidArgument),
    ("5", errors.InvalidArgument),
    (limits.MAX_BATCH_ENTRIES + 1, errors.BatchTooLarge),
    (1 << 80, errors.BatchTooLarge),
]


def test_what_cannot_be_filled_is_refused_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            appender = log.appender()
            for wrong, error in WRONG:
                with pytest.raises(error):
                    await log.append_fill(wrong)
                with pytest.raises(error):
                    await appender.append_fill(wrong)
            assert stage.hwm == 0
            assert (await log.append(b"goes on")).glsn == 1

    run(main())


def test_a_fill_that_was_not_answered_is_sent_again_and_kept_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            node = stage.nodes[StorageNodeID(1)]
            answer = node.answers
            honest = dict(answer)
            taken: list[object] = []

            def take_and_break(connection: Any, message: Any) -> None:
                stage.take(message)
                taken.append(message)
                answer.update(honest)
                connection.close()

            answer[Append] = take_and_break
            result = await log.append_fill(7)
            assert (len(taken), result.glsn, result.count, stage.hwm) == (1, 1, 7, 7)

    run(main())


def test_without_asyncio(tmp_path: Path) -> None:
    async def fill() -> None:
        async with varlog.embedded(tmp_path) as log:
            await log.append(b"one")

            def work() -> None:
                with varlog.sync.connect(tmp_path) as blocking:
                    assert blocking.append_fill(3).glsn == 2
                    with blocking.appender() as appender:
                        assert appender.append_fill(4).result().end == 9
                    scan = blocking.scan(affinity=1)
                    assert [batch.glsn for batch in scan] == [1]
                    assert (scan.position, scan.filled) == (9, 7)

            await asyncio.to_thread(work)

    run(fill())
