"""Log streams that fail under appends: each append ends once, on one log stream or another, and the caller is told
which; or that it cannot be known (rules 17-19)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import pytest

import varlog
from tests.client.rig import run, until
from tests.client.stage import Puppet, Stage
from varlog import errors
from varlog.core.messages import Append, AppendReply
from varlog.types import Epoch, LogStreamID, StorageNodeID, StreamStatus
from varlog.wire import Connection

T = TypeVar("T")
ADDED: float = 0.3
"""What the client may add to the time in which a log stream is sealed."""


async def timed(work: Awaitable[T]) -> tuple[T, float]:
    """What comes of it, and how long it took."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    found = await work
    return found, loop.time() - begun


async def stuck_appends(
    stage: Stage, log: varlog.Log, count: int, *, taken: int = 0
) -> list[asyncio.Task[varlog.AppendResult]]:
    """Log stream 2 is sealed for a while, so that all of these go to log stream 1; its primary takes the first few, and
    answers none."""
    primary = stage.nodes[StorageNodeID(1)]
    heard: list[Append] = []

    def hang(_connection: Connection, message: Append) -> None:
        heard.append(message)
        if len(heard) <= taken:
            stage.take(message)

    stage.change(2, status=StreamStatus.SEALED, epoch=Epoch(3))
    await log.refresh()
    primary.answers[Append] = hang
    appends = [asyncio.create_task(log.append(b"%d" % number)) for number in range(count)]
    await until(lambda: len(heard) >= count)
    stage.change(2, status=StreamStatus.RUNNING, epoch=Epoch(4))
    return appends


def honest(stage: Stage, *nodes: int) -> None:
    for snid in nodes:
        stage.nodes[StorageNodeID(snid)].answers[Append] = stage._on_append


async def killed(stage: Stage, primary: Puppet) -> None:
    """The primary is killed, and its log stream sealed."""
    await primary.stop()
    stage.change(1, status=StreamStatus.SEALED, epoch=Epoch(3), replicas=tuple(map(StorageNodeID, (1, 2, 3))))


@pytest.mark.parametrize("hangs", [False, True], ids=["killed", "hangs"])
def test_M6_rule19_what_the_seal_kept_is_committed_and_what_it_did_not_goes_elsewhere_once(
    tmp_path: Path, hangs: bool
) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=3, streams=2) as stage, varlog.connect(tmp_path) as log:
            appends = await stuck_appends(stage, log, 20, taken=8)
            if hangs:
                stage.change(1, status=StreamStatus.SEALED, epoch=Epoch(3))
            else:
                await killed(stage, stage.nodes[StorageNodeID(1)])
            results, seconds = await timed(asyncio.gather(*appends))
            assert seconds < (0.5 if hangs else 0) + ADDED
            assert [(r.log_stream, r.epoch) for r in results] == [(1, 2)] * 8 + [(2, 4)] * 12
            assert stage.payloads(1) == [b"%d" % number for number in range(8)]
            assert stage.payloads(2) == [b"%d" % number for number in range(8, 20)]
            assert [r.glsn for r in results] == list(range(1, 21))
            moved = {message.batch for node in stage.nodes.values() for message in node.of(Append) if message.lsid == 2}
            sent = {message.batch for message in stage.nodes[StorageNodeID(1)].of(Append)}
            assert moved < sent, "the same bytes, which carry the same sequence"

    run(main())


def test_rule19_what_cannot_be_known_in_time_is_unknown_and_sent_nowhere_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=3, streams=2) as stage, varlog.connect(tmp_path, timeout=2) as log:
            withheld = await stuck_appends(stage, log, 3, taken=1)
            for snid in (2, 3):
                stage.nodes[StorageNodeID(snid)].answers[Append] = lambda _, __: None
            await killed(stage, stage.nodes[StorageNodeID(1)])
            for append in withheld:
                with pytest.raises(errors.Unknown, match="may have happened") as caught:
                    await append
                assert caught.value.happened is None
            honest(stage, 2, 3)
            assert (await log.append(b"next")).log_stream == 2
            assert stage.payloads(1) == [b"0"]
            assert stage.payloads(2) == [b"next"]

    run(main())


def test_rule19_an_expired_fate_is_unknown(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=3, streams=2) as stage, varlog.connect(tmp_path) as log:
            (append,) = await stuck_appends(stage, log, 1)

            def forgotten(connection: Connection, message: Append) -> None:
                connection.send(AppendReply(message.request, message.lsid, errors.FateExpired.code, Epoch(3)))

            for snid in (2, 3):
                stage.nodes[StorageNodeID(snid)].answers[Append] = forgotten
            await killed(stage, stage.nodes[StorageNodeID(1)])
            with pytest.raises(errors.Unknown):
                await append

    run(main())


def test_rule19_replicas_that_do_not_know_are_passed_over_for_one_that_does(tmp_path: Path) -> None:
    """One has not heard of the seal, one does not answer; the set has changed, and a new member knows."""

    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=4, streams=2) as stage, varlog.connect(tmp_path) as log:
            (append,) = await stuck_appends(stage, log, 1, taken=1)

            def refuse(connection: Connection, message: Append) -> None:
                connection.send(AppendReply(message.request, message.lsid, errors.NotPrimary.code, Epoch(2)))

            stage.nodes[StorageNodeID(2)].answers[Append] = refuse
            stage.nodes[StorageNodeID(3)].answers[Append] = lambda _, __: None
            await stage.nodes[StorageNodeID(1)].stop()
            stage.change(1, status=StreamStatus.SEALED, epoch=Epoch(3), replicas=(1, 2, 3, 4))
            result, seconds = await timed(append)
            assert result.log_stream == 1
            assert seconds < 2 * 0.1 + ADDED

    run(main())


def test_M7_a_log_stream_that_runs_again_without_the_dead_one_is_used_at_once(tmp_path: Path) -> None:
    """There is no other log stream: what was under way ends where it was, in the next epoch."""

    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=3, streams=2) as stage, varlog.connect(tmp_path) as log:
            appends = await stuck_appends(stage, log, 10, taken=4)
            stage.change(2, status=StreamStatus.SEALED, epoch=Epoch(5))
            await stage.nodes[StorageNodeID(1)].stop()
            await until(lambda: log.log_streams[1].epoch == 5)
            survivors = (StorageNodeID(2), StorageNodeID(3))
            stage.change(1, status=StreamStatus.RUNNING, epoch=Epoch(4), replicas=survivors, primary=StorageNodeID(2))
            results, seconds = await timed(asyncio.gather(*appends))
            assert seconds < ADDED
            assert [r.log_stream for r in results] == [1] * 10
            assert stage.payloads(1) == [b"%d" % number for number in range(10)]

    run(main())


def test_M6_new_appends_go_to_a_healthy_log_stream_at_once(tmp_path: Path) -> None:
    """Also in the moment in which the node is killed, before anybody has sealed anything."""

    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=4, streams=2) as stage, varlog.connect(tmp_path) as log:
            stage.change(1, replicas=(StorageNodeID(1), StorageNodeID(2)))
            stage.change(2, replicas=(StorageNodeID(3), StorageNodeID(4)), primary=StorageNodeID(3))
            await log.refresh()
            async with log.appender() as appender:
                await asyncio.gather(*(log.append(b"before") for _ in range(4)))
                mine = await (await appender.append(b"before"))
                await stage.nodes[StorageNodeID(1 if mine.log_stream == 1 else 3)].stop()
                results, seconds = await timed(asyncio.gather(*(log.append(b"after") for _ in range(20))))
                assert seconds < ADDED
                assert {r.log_stream for r in results} == {3 - mine.log_stream}
                after, seconds = await timed(await appender.append(b"after"))
                assert seconds < ADDED, "nothing of the appender's is undecided: it need not wait either"
                assert after.log_stream == 3 - mine.log_stream

    run(main())


def test_M7_a_primary_that_sealed_itself_is_left_by_all_that_is_new(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=2, streams=2) as stage, varlog.connect(tmp_path) as log:
            sealed = stage.nodes[StorageNodeID(1)]

            def refuse(connection: Connection, message: Append) -> None:
                connection.send(AppendReply(message.request, message.lsid, errors.Sealed.code, message.epoch))

            await asyncio.gather(log.append(b"x"), log.append(b"y"))
            sealed.answers[Append] = refuse
            refused = [asyncio.ensure_future(log.append(b"refused")) for _ in range(2)]
            done, pending = await asyncio.wait(refused, timeout=0.3)
            assert (len(done), len(pending)) == (1, 1)
            results = await asyncio.gather(*(log.append(b"new") for _ in range(10)))
            assert {result.log_stream for result in results} == {2}
            sealed.answers[Append] = stage._on_append
            stage.change(1, epoch=Epoch(4))
            (result,), seconds = await timed(asyncio.gather(*pending))
            assert (result.log_stream, result.epoch) == (1, 4)
            assert seconds < ADDED
            assert stage.payloads(1).count(b"refused") == 1

    run(main())


def test_rule18_an_appender_moves_with_everything_in_its_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=3, streams=2) as stage, varlog.connect(tmp_path) as log:
            taken = {LogStreamID(1): 0, LogStreamID(2): 0}

            def some(connection: Connection, message: Append) -> None:
                taken[message.lsid] += 1
                if taken[message.lsid] <= 30:
                    stage._on_append(connection, message)

            for node in stage.nodes.values():
                node.answers[Append] = some
            async with log.appender(window=100) as appender:
                futures = [await appender.append(b"%d" % number) for number in range(60)]
                await until(lambda: sum(future.done() for future in futures) == 30)
                first = futures[0].result().log_stream
                honest(stage, 1, 2, 3)
                await stage.nodes[StorageNodeID(first)].stop()
                late = [await appender.append(b"%d" % number) for number in range(60, 80)]
                assert not any(future.done() for future in futures[30:] + late), "what was sent there is not decided"
                stage.change(first, status=StreamStatus.SEALED, epoch=Epoch(3))
                results, seconds = await timed(asyncio.gather(*futures, *late))
                assert seconds < ADDED
            assert [r.log_stream for r in results] == [first] * 30 + [3 - first] * 50
            assert [r.glsn for r in results] == list(range(1, 81)), "in the order they were sent"
            entries = [entry.data async for entry in log.subscribe(end=81)]
            assert entries == [b"%d" % number for number in range(80)]

    run(main())


def test_M11_a_log_stream_that_is_back_gets_its_share_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=2, streams=2) as stage, varlog.connect(tmp_path) as log:
            await asyncio.gather(*(log.append(b"x") for _ in range(4)))
            await stage.nodes[StorageNodeID(1)].stop()
            results = [await log.append(b"y") for _ in range(6)]
            assert {result.log_stream for result in results} == {2}
            await stage.nodes[StorageNodeID(1)].restart()
            stage.version += 1

            async def both() -> None:
                while len({r.log_stream for r in await asyncio.gather(*(log.append(b"z") for _ in range(4)))}) < 2:
                    pass

            await both()

    run(main())
