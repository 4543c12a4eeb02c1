"""Cancellation at every await of every call: what is under way happens once or not at all, nothing is left behind, and
the client goes on as if nothing had been."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import varlog
from tests.client.rig import run, turns
from tests.client.stage import Stage
from tests.client.stepping import cancelled_at_every_await
from varlog import errors, limits
from varlog.client.room import Room
from varlog.oneprocess import EmbeddedCluster

Call = Callable[[], Coroutine[Any, Any, Any]]


def tasks() -> int:
    """How many there are, besides those that keep the links to servers open."""
    return sum(not task.get_name().startswith("link to ") for task in asyncio.all_tasks())


async def drive(call: Call, well: Callable[[], Awaitable[None]]) -> None:
    """Cancel at every await, and see each time that all is well afterwards."""
    cancelled = []
    before = tasks()
    async for was_cancelled in cancelled_at_every_await(call):
        cancelled.append(was_cancelled)
        await well()
        await turns(2)
        assert tasks() <= before, "no task is left behind"
    assert any(cancelled), "the call waits somewhere"
    assert not all(cancelled), "it can also run through"


@pytest.mark.parametrize("connects", ["connect", "admin"])
def test_connecting(tmp_path: Path, connects: str) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage:

            async def connect_and_close() -> None:
                client = await (varlog.connect(tmp_path) if connects == "connect" else varlog.admin(tmp_path))
                await client.close()

            async def well() -> None:
                async with varlog.connect(tmp_path) as log:
                    await log.append(b"well")

            await drive(connect_and_close, well)
            await turns(10)
            assert stage.repositories[0].connections == [], "no connection is left open"

    run(main())


async def all_of(log: varlog.Log) -> None:
    async for batch in log.scan(2):
        assert batch.count


async def pipeline(log: varlog.Log, payload: bytes) -> None:
    async with log.appender(window=2) as appender:
        for number in range(5):
            await appender.append(payload + b"-%d" % number)
        await appender.flush()


CALLS: dict[str, Callable[[varlog.Log, bytes], Coroutine[Any, Any, Any]]] = {
    "append": lambda log, payload: log.append(payload),
    "append_batch": lambda log, payload: log.append_batch([payload, payload + b"+"]),
    "read": lambda log, _: log.read(1),
    "tail": lambda log, _: log.tail(),
    "first": lambda log, _: log.first(),
    "trim": lambda log, _: log.trim(1),
    "refresh": lambda log, _: log.refresh(),
    "scan": lambda log, _: all_of(log),
    "subscribe": lambda log, _: anext(log.subscribe(2)),
    "pipeline": pipeline,
}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_of_a_log(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        numbers = count()
        acknowledged: list[bytes] = []
        async with varlog.embedded(tmp_path) as log:
            await log.append_batch([b"first", b"second"])

            async def call() -> None:
                payload = b"%s %d" % (name.encode(), next(numbers))
                await CALLS[name](log, payload)
                if name == "append":
                    acknowledged.append(payload)

            async def well() -> None:
                payload = b"well %d" % next(numbers)
                result = await log.append(payload)
                acknowledged.append(payload)
                assert (await log.read(result.glsn)).data == payload

            await drive(call, well)
            times = Counter([payload async for batch in log.scan(2) for payload in batch.payloads()])
            assert {payload: times[payload] for payload in acknowledged} == dict.fromkeys(acknowledged, 1)
            assert set(times.values()) <= {1}, "what was cancelled happened once or not at all"

    run(main())


def test_closing(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage:
            logs: list[varlog.Log] = []

            async def connect_and_close() -> None:
                log = await varlog.connect(tmp_path)
                logs.append(log)
                await log.append(b"x")
                under_way = asyncio.gather(log.tail(), anext(log.subscribe(2)), return_exceptions=True)
                await turns(1)
                try:
                    await log.close()
                finally:
                    assert [type(error) for error in await under_way] == [errors.Closed, errors.Closed]

            async def well() -> None:
                for log in logs:
                    await log.close()

            await drive(connect_and_close, well)
            await turns(10)
            assert not stage.repositories[0].connections

    run(main())


ADMIN_CALLS: dict[str, Callable[[varlog.Admin, str], Coroutine[Any, Any, Any]]] = {
    "metadata": lambda admin, _: admin.metadata(),
    "node": lambda admin, _: admin.node(1),
    "add_topic": lambda admin, name: admin.add_topic(name),
    "add_stream": lambda admin, _: admin.add_stream("log"),
}


@pytest.mark.parametrize("name", ADMIN_CALLS)
def test_every_call_of_an_admin(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        cluster = await EmbeddedCluster.start(tmp_path)
        names = (f"topic-{number}" for number in count())
        async with varlog.admin(tmp_path) as admin:

            async def call() -> None:
                await ADMIN_CALLS[name](admin, next(names))

            async def well() -> None:
                assert await admin.nodes()

            await drive(call, well)
        await cluster.stop()

    run(main())


def test_waiting_for_room_in_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENT_APPENDS_IN_FLIGHT", 1)

    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:

            async def append_behind_another() -> None:
                ahead = asyncio.ensure_future(log.append(b"ahead"))
                await turns(1)
                try:
                    await log.append(b"behind")
                finally:
                    await asyncio.wait([ahead])

            async def well() -> None:
                await log.append(b"well")

            await drive(append_behind_another, well)
            assert stage.hwm >= 2

    run(main())


def test_room_that_is_handed_over_in_the_moment_of_cancelling_is_not_lost() -> None:
    async def main() -> None:
        room = Room(100, 1)
        loop = asyncio.get_running_loop()

        async def take_and_give_back() -> None:
            assert room.try_take(1)
            loop.call_soon(room.give_back, 1)
            await room.take(1, loop.time() + 10)
            room.give_back(1)

        async def well() -> None:
            await turns(2)
            assert (room.items, room.bytes) == (0, 0)

        await drive(take_and_give_back, well)

    run(main())


def test_a_cancelled_append_counts_until_it_is_decided(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            await log.append(b"x")
            (node,) = stage.nodes.values()
            node.silent = True
            appending = asyncio.ensure_future(log.append(b"y" * 1000))
            await turns(2)
            appending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await appending
            assert log._appends.room.bytes == 1000
            node.silent = False
            node.break_connections()
            await log.append(b"z")
            assert log._appends.room.bytes == 0
            assert [e.data async for e in log.subscribe(end=4)] == [b"x", b"y" * 1000, b"z"]

    run(main())


def test_a_cancelled_future_of_an_appender_disturbs_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path), varlog.connect(tmp_path) as log:
            async with log.appender() as appender:
                futures = [await appender.append(b"%d" % number) for number in range(4)]
                futures[1].cancel()
                await appender.flush()
            assert [future.cancelled() for future in futures] == [False, True, False, False]
            assert [entry.data async for entry in log.subscribe(end=5)] == [b"0", b"1", b"2", b"3"]
            with pytest.raises(errors.Closed):
                await appender.append(b"late")

    run(main())
