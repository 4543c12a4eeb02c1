"""Appending: turns among log streams, pipelines, backpressure, and what is said when it does not work."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import accumulate
from pathlib import Path

import pytest

import varlog
from tests.client.rig import pass_time, run, turns, until
from tests.client.stage import Stage
from varlog import batch, errors, limits
from varlog.client.writing import Pool
from varlog.core.messages import Append, AppendReplies, AppendReply, GetInfo, GetMetadata, Info, ReplicaInfo
from varlog.types import GLSN, LLSN, Epoch, LogStreamID, ReplicaState, StorageNodeID, StreamStatus
from varlog.wire import Connection

# Log streams


def test_appends_are_spread_over_the_log_streams_and_over_new_ones(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, streams=3) as stage, varlog.connect(tmp_path) as log:
            third = stage.streams.pop(LogStreamID(3))
            stage.version += 1
            await log.refresh()
            results = await asyncio.gather(*(log.append(b"x") for _ in range(20)))
            assert Counter(result.log_stream for result in results) == {1: 10, 2: 10}
            stage.streams[LogStreamID(3)] = third
            stage.version += 1
            await log.refresh()
            results = await asyncio.gather(*(log.append(b"x") for _ in range(30)))
            assert Counter(result.log_stream for result in results) == {1: 10, 2: 10, 3: 10}

    run(main())


def test_M6_a_log_stream_that_does_not_answer_is_passed_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=2, streams=2) as stage, varlog.connect(tmp_path) as log:
            await asyncio.gather(log.append(b"x"), log.append(b"y"))
            silent = stage.nodes[StorageNodeID(1)]
            silent.silent = True
            stuck = [asyncio.ensure_future(log.append(b"stuck")) for _ in range(2)]
            done, pending = await asyncio.wait(stuck, timeout=2.5)
            assert len(done) == len(pending) == 1
            results = await asyncio.gather(*(log.append(b"well") for _ in range(10)))
            assert {result.log_stream for result in results} == {2}
            silent.silent = False
            assert (await pending.pop()).log_stream == 1
            pool = log._pool
            assert isinstance(pool, Pool)
            await until(lambda: len(pool._usable) == 2)
            results = await asyncio.gather(*(log.append(b"again") for _ in range(10)))
            assert {result.log_stream for result in results} == {1, 2}

    run(main())


def test_M11_a_sealed_log_stream_is_left_and_returned_to(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, streams=2) as stage, varlog.connect(tmp_path) as log:
            stage.change(1, status=StreamStatus.SEALED, epoch=Epoch(3))
            await log.refresh()
            assert {(await log.append(b"x")).log_stream for _ in range(4)} == {2}
            stage.change(1, status=StreamStatus.RUNNING, epoch=Epoch(4))
            await log.refresh()
            assert {(await log.append(b"x")).log_stream for _ in range(4)} == {1, 2}

    run(main())


# Backpressure


def test_bytes_in_flight_are_bounded_and_appends_stay_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENT_BYTES_IN_FLIGHT", 10_000)

    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            (node,) = stage.nodes.values()
            await log.append(b"x")
            node.silent = True
            appends = [asyncio.ensure_future(log.append(b"%02d" % number + bytes(998))) for number in range(50)]
            await until(lambda: len(node.of(Append)) >= 11)
            await turns(10)
            assert len(node.of(Append)) == 11, "the first, and ten that fit"
            node.silent = False
            node.break_connections()
            results = await asyncio.gather(*appends)
            assert [result.glsn for result in results] == list(range(2, 52))

    run(main())


def test_waiting_for_room_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENT_APPENDS_IN_FLIGHT", 1)

    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            (node,) = stage.nodes.values()
            node.silent = True
            ahead = asyncio.ensure_future(log.append(b"ahead"))
            await turns(2)
            with pytest.raises(errors.DeadlineExceeded, match="nothing was sent") as caught:
                await log.append(b"behind", timeout=0.05)
            assert caught.value.happened is False
            node.silent = False
            node.break_connections()
            assert (await ahead).glsn == 1

    run(main())


# What is said when it does not work


def test_an_append_nobody_answers_is_unknown(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            await log.append(b"x")
            (node,) = stage.nodes.values()
            node.silent = True
            with pytest.raises(errors.Unknown, match="may have happened") as caught:
                await log.append(b"y", timeout=0.3)
            assert caught.value.happened is None
            node.silent = False
            assert (await log.append(b"z")).glsn in {2, 3}

    run(main())


def test_an_append_that_cannot_be_sent_did_not_happen(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            await stage.nodes[StorageNodeID(1)].stop()
            with pytest.raises(errors.Unreachable, match="storage node 1 cannot be reached") as caught:
                await log.append(b"x", timeout=0.4)
            assert caught.value.happened is False
            await stage.nodes[StorageNodeID(1)].restart()
            assert (await log.append(b"y")).glsn == 1

    run(main())


def test_a_full_disk_is_named_with_what_to_do(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=3) as stage, varlog.connect(tmp_path) as log:
            replica = ReplicaInfo(
                LogStreamID(1),
                Epoch(2),
                ReplicaState.SEALING,
                LLSN(1),
                LLSN(1),
                healthy=False,
                fault=errors.DiskFull.code,
                volume="/data",
            )
            full = stage.nodes[StorageNodeID(2)]
            full.answers[GetInfo] = lambda connection, message: _send(
                connection, Info(message.request, StorageNodeID(2), 1, (replica,))
            )
            stage.change(1, status=StreamStatus.SEALED, epoch=Epoch(3))
            await log.refresh()
            told = "storage node 2 has no space left on /data; free space there and restart the node"
            with pytest.raises(errors.DiskFull, match=told) as caught:
                await log.append(b"x", timeout=1.5)
            assert caught.value.happened is False
            stage.nodes[StorageNodeID(1)].silent = True
            stage.change(1, status=StreamStatus.RUNNING, epoch=Epoch(4))
            with pytest.raises(errors.Unknown, match=told) as unknown:
                await log.append(b"x", timeout=1.5)
            assert isinstance(unknown.value.__cause__, errors.DiskFull)

    run(main())


def _send(connection: Connection, message: Info) -> None:
    connection.send(message)


def test_below_min_replicas_a_topic_can_only_be_read_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=3) as stage, varlog.connect(tmp_path) as log:
            stage.min_replicas = 2
            stage.change(1, status=StreamStatus.SEALED, epoch=Epoch(3))
            stage.write(1, [b"x"])
            await stage.nodes[StorageNodeID(1)].stop()
            stage.nodes[StorageNodeID(2)].silent = True
            await log.refresh()
            told = r"^nothing was appended in time: reads only: log stream 1 has 1 of at least 2 replicas; storage node"
            with pytest.raises(errors.Unreachable, match=told) as caught:
                await log.append(b"y", timeout=1.5)
            assert caught.value.happened is False
            assert "storage node 1 cannot be reached (cannot connect to" in str(caught.value)
            assert "storage node 2 cannot be reached (it has not answered for" in str(caught.value)
            assert "no manager repairs it: none has registered; start one with `vms start`" in str(caught.value)
            with pytest.raises(errors.Unreachable, match="reads only"):
                async with log.appender(timeout=1.5) as appender:
                    await appender.append(b"y")
            assert (await log.read(1, timeout=3)).data == b"x"

    run(main())


def test_a_log_stream_that_an_operator_sealed_or_lost_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, streams=2) as stage, varlog.connect(tmp_path) as log:
            sealed = {"status": StreamStatus.SEALED, "epoch": Epoch(3)}
            stage.change(1, is_held=True, **sealed)
            stage.change(2, is_held=True, lost_begin=GLSN(1), lost_end=GLSN(2), **sealed)
            stage.manager = "127.0.0.1:1"
            await log.refresh()
            with pytest.raises(errors.VarlogError) as caught:
                await log.append(b"x", timeout=1.5)
            told = str(caught.value)
            assert "log stream 1 was sealed by an operator; `varlog stream unseal 1` lets it run" in told
            assert "log stream 2 was declared lost; add another one with `varlog stream add`" in told
            assert "no manager repairs it: cannot connect to 127.0.0.1:1" in told
            assert caught.value.happened is False
            assert log._session._manager is not None
            stage.change(1, is_held=False, status=StreamStatus.RUNNING, epoch=Epoch(4))
            await log.append(b"x")
            await log.append(b"y")
            await until(lambda: log._session._manager is None)

    run(main())


def test_a_metadata_repository_that_does_not_answer_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            await log.append(b"x")
            stage.nodes[StorageNodeID(1)].silent = stage.repositories[0].silent = True
            with pytest.raises(errors.Unknown, match=r"no metadata repository answers \(.*connected, but silent\)"):
                await log.append(b"y", timeout=2)

    run(main())


def test_who_waits_for_long_asks_for_metadata_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times a second at first; many clients that wait for hours must not wear the metadata repository out."""
    monkeypatch.setattr("varlog.client.session.REFRESH_SHARE", 1.0)

    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            await log.append(b"x")
            stage.nodes[StorageNodeID(1)].silent = True
            before = len(stage.repositories[0].of(GetMetadata))
            with pytest.raises(errors.Unknown):
                await log.append(b"y", timeout=3)
            assert 3 <= len(stage.repositories[0].of(GetMetadata)) - before <= 10
            stage.nodes[StorageNodeID(1)].silent = False
            await log.append(b"z", timeout=5)

    run(main())


def test_waiting_for_room_tells_why_there_is_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            await log.append(b"x")
            stage.change(1, status=StreamStatus.SEALED, epoch=Epoch(3))
            await log.refresh()
            async with log.appender(window=1) as appender:
                await appender.append(b"ahead")
                appender._timeout = 0.1
                with pytest.raises(errors.Unreachable, match=r"nothing was sent: 1 appends .* log stream 1 is sealed"):
                    await appender.append(b"behind")
                stage.change(1, status=StreamStatus.RUNNING, epoch=Epoch(4))

    run(main())


def test_a_topic_without_log_streams_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            stage.streams.clear()
            stage.version += 1
            await log.refresh()
            with pytest.raises(errors.Sealed, match="no log stream; add one"):
                await log.append(b"x", timeout=0.2)

    run(main())


def test_a_batch_the_node_refuses_for_good_is_rejected(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            (node,) = stage.nodes.values()
            honest = node.answers[Append]

            def refuse(connection: Connection, message: Append) -> None:
                code = errors.ChecksumMismatch.code
                connection.send(AppendReply(message.request, message.lsid, code, message.epoch))

            node.answers[Append] = refuse
            with pytest.raises(errors.ChecksumMismatch):
                await log.append(b"x")
            node.answers[Append] = honest
            assert (await log.append(b"y")).glsn == 1

    run(main())


def test_answers_that_come_together_reach_everyone_they_are_for(tmp_path: Path) -> None:
    """Of one client: of several writers, and one that nobody waits for any more."""

    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            (node,) = stage.nodes.values()
            held: list[Append] = []
            node.answers[Append] = lambda _, message: held.append(message)
            async with log.appender() as one, log.appender() as other:
                futures = [await appender.append_batch([b"a", b"b"]) for appender in (one, other, one)]
                alone = asyncio.ensure_future(log.append(b"c"))
                await until(lambda: len(held) == 4)
                (connection,) = node.connections
                requests = (held[0].request ^ 1 << 40, *(message.request for message in held))
                counts = (1, *(batch.peek_header(message.batch).count for message in held))
                llsns = tuple(accumulate(counts[:-1], initial=1))
                connection.send(AppendReplies(LogStreamID(1), Epoch(2), 3, True, 100, requests, llsns, counts))
                results = [*(await asyncio.gather(*futures)), await alone]
            wanted = [(100 + llsn, llsn, count) for llsn, count in zip(llsns[1:], counts[1:], strict=True)]
            assert sorted((r.glsn, r.llsn, r.count) for r in results) == wanted
            assert [r.count for r in results] == [2, 2, 2, 1]
            assert results[0].glsn < results[2].glsn, "one writer's in its order"
            assert {(r.log_stream, r.epoch, r.replicas, r.synced) for r in results} == {(1, 2, 3, True)}

    run(main())


# Appenders


def test_an_appender_keeps_its_log_stream_and_its_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path, streams=3) as log:

            async def pipeline(name: int) -> list[varlog.AppendResult]:
                async with log.appender(window=8) as appender:
                    futures = [await appender.append(b"%d:%d" % (name, number)) for number in range(100)]
                return [future.result() for future in futures]

            for results in await asyncio.gather(*map(pipeline, range(4))):
                assert len({result.log_stream for result in results}) == 1
                glsns = [result.glsn for result in results]
                assert glsns == sorted(glsns)
            seen: dict[int, int] = {}
            async for entry in log.subscribe(end=401):
                name, number = map(int, entry.data.split(b":"))
                assert seen.get(name, -1) == number - 1
                seen[name] = number

    run(main())


def test_an_appender_waits_only_for_room_in_its_window(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            (node,) = stage.nodes.values()
            node.silent = True
            async with log.appender(window=3, codec=varlog.Codec.ZSTD) as appender:
                futures = [await appender.append(b"a" * 500) for _ in range(2)]
                futures.append(await appender.append_batch([b"b" * 500, b"c"]))
                fourth = asyncio.ensure_future(appender.append(b"late"))
                await until(lambda: len(node.of(Append)) == 3)
                await turns(5)
                assert not fourth.done()
                assert batch.peek_header(node.of(Append)[0].batch).codec == varlog.Codec.ZSTD
                node.silent = False
                node.break_connections()
                futures.append(await fourth)
                assert [(await future).glsn for future in futures] == [1, 2, 3, 5]
            assert stage.hwm == 5

    run(main())


def test_a_failure_is_told_by_flush_and_the_appender_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            (node,) = stage.nodes.values()
            await log.append(b"x")
            async with log.appender(timeout=0.3) as appender:
                node.silent = True
                lost = await appender.append(b"lost")
                with pytest.raises(errors.Unknown):
                    await appender.flush()
                with pytest.raises(errors.Unknown):
                    await lost
                await appender.flush()
                node.silent = False
                found = await appender.append(b"found")
            assert found.result().glsn in {2, 3}
            node.silent = True
            with pytest.raises(errors.Unknown):
                await _send_one(log)

    run(main())


async def _send_one(log: varlog.Log, error: type[Exception] | None = None) -> None:
    async with log.appender(timeout=0.3) as appender:
        await appender.append(b"one")
        if error is not None:
            raise error


def test_an_error_in_the_block_is_not_hidden_by_what_is_under_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            (node,) = stage.nodes.values()
            node.silent = True
            with pytest.raises(ZeroDivisionError):
                await _send_one(log, ZeroDivisionError)
            node.silent = False
            node.break_connections()
            await until(lambda: stage.hwm == 1)

    run(main())


@pytest.mark.parametrize("window", [0, limits.DEDUP_SEQUENCES_PER_WRITER + 1])
def test_a_window_has_bounds(tmp_path: Path, window: int) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path), varlog.connect(tmp_path) as log:
            with pytest.raises(errors.InvalidArgument, match="window"):
                log.appender(window=window)

    run(main())


# Closing


def test_closing_ends_what_is_under_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage:
            log = await varlog.connect(tmp_path)
            (node,) = stage.nodes.values()
            node.silent = stage.repositories[0].silent = True
            appender = log.appender(window=1)
            future = await appender.append(b"one")
            tasks = [
                asyncio.ensure_future(work)
                for work in (
                    log.append(b"x"),
                    log.append_batch([b"y"]),
                    appender.append(b"two"),
                    appender.flush(),
                    log.tail(),
                    log.trim(1),
                    log.refresh(),
                    anext(log.scan(1, 2)),
                    anext(log.subscribe()),
                )
            ]
            await pass_time(0.05)
            assert not any(task.done() for task in tasks)
            await log.close()
            for task in tasks:
                with pytest.raises(errors.Closed):
                    await task
            with pytest.raises(errors.Closed):
                await future
            for call in (log.append(b"z"), log.read(1), log.tail(), log.refresh(), appender.append(b"three")):
                with pytest.raises(errors.Closed):
                    await call

    run(main())
