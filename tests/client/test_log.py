"""The log as an application uses it, on a cluster in this process: every call, and every way a call is wrong."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import varlog
from tests.client.rig import run, until
from tests.client.stage import Stage
from varlog import errors, limits


def test_L4_append_read_tail_trim(tmp_path: Path) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path) as log:
            assert await log.tail() == 0
            assert await log.first() == 1
            one = await log.append(b"one")
            assert one == (1, 1, 1, one.log_stream, one.epoch, 3, True)
            batch = await log.append_batch([b"two", b"", b"four"])
            assert (batch.glsn, batch.count, batch.end) == (2, 3, 5)
            assert await log.tail() == 4
            assert [(await log.read(glsn)).data for glsn in range(1, 5)] == [b"one", b"two", b"", b"four"]
            entry = await log.read(3)
            assert (entry.glsn, entry.llsn, entry.log_stream) == (3, 3, one.log_stream)
            assert entry.timestamp > 1_600_000_000_000_000
            assert await log.trim(2) == 2
            assert await log.first() == 3
            assert await log.trim(1) == 2, "what is trimmed stays trimmed"
            assert await log.tail() == 4

    run(main())


def test_L1_appends_that_follow_each_other_are_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path, streams=3) as log:
            last, streams = 0, set()
            for number in range(30):
                result = await log.append(b"%d" % number)
                assert result.glsn > last
                last = result.glsn
                streams.add(result.log_stream)
            assert len(streams) == 3, "log streams take turns"

    run(main())


def test_L5_a_trimmed_position_is_refused_and_says_where_the_log_begins(tmp_path: Path) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path) as log:
            await log.append_batch([b"%d" % number for number in range(10)])
            await log.trim(4)
            for trimmed in (1, 4):
                with pytest.raises(errors.Trimmed, match="begins at 5") as caught:
                    await log.read(trimmed)
                assert caught.value.first == 5
            with pytest.raises(errors.Trimmed):
                await anext(log.scan())
            with pytest.raises(errors.Trimmed):
                await anext(log.subscribe(4))
            assert (await log.read(5)).data == b"4"
            assert [entry.data async for entry in log.subscribe(5, end=8)] == [b"4", b"5", b"6"]

    run(main())


def test_positions_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path) as log:
            await log.append(b"one")
            for wrong in (0, -1, 1 << 63, "1", None):
                with pytest.raises(errors.InvalidArgument, match="from 1 on"):
                    await log.read(wrong)  # type: ignore[arg-type]
                with pytest.raises(errors.InvalidArgument):
                    log.scan(wrong)  # type: ignore[arg-type]
                with pytest.raises(errors.InvalidArgument):
                    log.subscribe(wrong)  # type: ignore[arg-type]
                with pytest.raises(errors.InvalidArgument):
                    await log.trim(wrong)  # type: ignore[arg-type]
            with pytest.raises(errors.Unwritten, match="the tail is 1"):
                await log.read(2)
            with pytest.raises(errors.InvalidArgument):
                await log.trim(2)

    run(main())


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf")])
def test_a_timeout_is_a_number_of_seconds(tmp_path: Path, timeout: float) -> None:
    with pytest.raises(errors.InvalidArgument, match="timeout"):
        varlog.connect(tmp_path, timeout=timeout)


WRONG_ENTRIES: list[tuple[Any, type[errors.VarlogError]]] = [
    ("text", errors.InvalidArgument),
    (7, errors.InvalidArgument),
    (bytes(limits.MAX_ENTRY_BYTES + 1), errors.EntryTooLarge),
]
WRONG_BATCHES: list[tuple[Any, type[errors.VarlogError]]] = [
    ([], errors.EmptyBatch),
    (b"bytes", errors.InvalidArgument),
    (["text"], errors.InvalidArgument),
    (7, errors.InvalidArgument),
    (pa.array(["text"]), errors.InvalidArgument),
    (pa.array([], pa.binary()), errors.EmptyBatch),
]


def test_entries_that_no_log_takes_are_refused_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            for wrong, error in WRONG_ENTRIES:
                with pytest.raises(error) as caught:
                    await log.append(wrong)
                assert caught.value.happened is False
            for entries, error in WRONG_BATCHES:
                with pytest.raises(error):
                    await log.append_batch(entries)
            assert (await log.append(b"well")).glsn == 1
            assert stage.hwm == 1

    run(main())


def test_any_bytes_like_entry_is_taken_as_it_was_at_the_call(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path), varlog.connect(tmp_path) as log:
            changing = bytearray(b"before")
            appending = asyncio.ensure_future(log.append(changing))
            await asyncio.wait([appending])
            changing[:] = b"after!"
            assert (await log.read(appending.result().glsn)).data == b"before"
            assert (await log.read((await log.append(memoryview(b"abc")[1:])).glsn)).data == b"bc"

    run(main())


def test_arrow_columns_go_in_and_come_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path) as log:
            payloads = [b"row %d" % number for number in range(1000)]
            await log.append_batch(pa.array(payloads, pa.binary()))
            await log.append_batch(pa.chunked_array([pa.array(payloads[:3], pa.large_binary())]))
            (first, second) = [batch async for batch in log.scan()]
            columns = first.to_arrow()
            columns.validate(full=True)
            assert columns.schema.names == ["glsn", "llsn", "log_stream", "timestamp", "payload"]
            assert columns.column("glsn").to_pylist() == list(range(1, 1001))
            assert columns.column("payload").to_pylist() == payloads
            assert second.to_arrow().column("glsn").to_pylist() == [1001, 1002, 1003]

    run(main())


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))])
def test_what_a_scan_yields_can_be_copied_and_sent_elsewhere(
    tmp_path: Path, copied: Callable[[varlog.EntryBatch], varlog.EntryBatch]
) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path) as log:
            await log.append(b"one")
            await log.append_batch([b"two", b"", b"four" * 100])
            async with log.appender(codec=varlog.Codec.ZSTD) as appender:
                await appender.append_batch([b"five" * 1000, b"six"])
            async with log.transaction("job") as transaction:
                await transaction.append_batch([b"seven", b"eight"])
            found = [batch async for batch in log.scan(3, 8)]  # from the middle of a batch to the middle of one
            assert [batch.count for batch in found] == [2, 2, 1]
            for batch in found:
                same = copied(batch)
                assert list(same) == list(batch)
                assert same.to_arrow() == batch.to_arrow()
                assert (same.glsn, same.end, same.llsn) == (batch.glsn, batch.end, batch.llsn)
                assert (same.epoch, same.version, same.time) == (batch.epoch, batch.version, batch.time)
                assert (same.writer_timestamp, same.nbytes) == (batch.writer_timestamp, batch.nbytes)
                assert varlog.EntryBatch.join([same]) == varlog.EntryBatch.join([batch])

    run(main())


def test_an_unknown_topic_is_refused_with_those_there_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path):
            with pytest.raises(errors.UnknownTopic, match="no topic 'other'; the cluster has 'log'"):
                await varlog.connect(tmp_path, topic="other")

    run(main())


def test_a_topic_that_is_removed_ends_what_is_under_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            await log.append(b"there")
            for puppet in stage.nodes.values():
                puppet.silent = True
            waiting = asyncio.ensure_future(anext(log.subscribe(2)))
            appending = asyncio.ensure_future(log.append(b"gone"))
            await until(lambda: len(stage.nodes[next(iter(stage.nodes))].heard) >= 3)
            stage.topics.clear()
            stage.streams.clear()
            stage.version += 1
            await log.refresh()
            with pytest.raises(errors.UnknownTopic, match="'log' was removed"):
                await waiting
            with pytest.raises(errors.Unknown, match="may have happened, or may yet: topic 'log' was removed") as told:
                await appending
            assert (told.value.happened, type(told.value.__cause__)) == (None, errors.UnknownTopic)
            for call in (log.append(b"again"), log.read(1), anext(log.scan(1, 2))):
                with pytest.raises(errors.UnknownTopic):
                    await call
            with pytest.raises(errors.UnknownTopic):
                _ = log.topic

    run(main())


def test_metadata_can_be_looked_at_and_refreshed(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=3, streams=2) as stage, varlog.connect(tmp_path) as log:
            assert log.name == log.topic.name == "log"
            assert [stream.lsid for stream in log.log_streams] == [1, 2]
            assert len(log.metadata.nodes) == 3
            stage.write(1, [b"x"])
            assert log.topic.hwm == 0
            await log.refresh()
            assert log.topic.hwm == 1
            assert stage.repositories[0].address in repr(log)

    run(main())


def test_L4_a_log_that_is_used_in_another_event_loop_says_so_and_goes_on_in_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path) as log:
            await log.append(b"one")
            appender, subscription = log.appender(), log.subscribe()
            assert (await anext(subscription)).data == b"one"

            async def make_appender() -> object:
                return log.appender()

            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: appender.append(b"x"),
                appender.flush,
                make_appender,
                lambda: anext(subscription),
                lambda: log.append(b"x"),
                lambda: log.append_batch([b"x"]),
                lambda: log.read(1),
                lambda: anext(log.scan()),
                lambda: anext(log.subscribe()),
                log.tail,
                lambda: log.trim(1),
                lambda: log.begin("x"),
                log.close,
            ]

            async def make(call: Callable[[], Awaitable[object]]) -> None:
                with pytest.raises(errors.InvalidArgument, match="another event loop"):
                    await call()

            for call in calls:
                await asyncio.to_thread(asyncio.run, make(call))
            assert (await log.append(b"two")).glsn == 2
            assert [entry.data async for entry in log.subscribe(end=3)] == [b"one", b"two"]

    run(main())


def test_a_place_that_is_open_is_refused_also_in_the_same_process(tmp_path: Path) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path) as log:
            with pytest.raises(errors.DirectoryLocked, match="is open already, in this process or another one"):
                async with varlog.embedded(tmp_path):
                    pass
            assert (await log.append(b"goes on")).glsn == 1

    run(main())


def test_a_place_that_cannot_hold_a_cluster_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def main(path: Path) -> None:
        with pytest.raises(errors.NotWritable, match=f"{path} cannot hold a cluster: .*; name a directory"):
            async with varlog.embedded(path):
                pass

    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nothing")):
        run(main(path))
