"""Room: how much is under way at once, in the order of asking."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.client.rig import run, turns
from varlog import errors
from varlog.client.room import Room


async def begun(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.ensure_future(work)
    await turns(2)
    return task


def soon() -> float:
    return asyncio.get_running_loop().time() + 10


def test_what_fits_is_taken_at_once() -> None:
    room = Room(100, 3)
    assert room.try_take(60)
    assert room.try_take(40)
    assert not room.try_take(1), "no bytes are left"
    room.give_back(60)
    assert room.try_take(0)
    assert room.try_take(0)
    assert not room.try_take(0), "no items are left"


def test_one_that_is_larger_than_all_of_it_goes_alone() -> None:
    room = Room(100, 3)
    assert room.try_take(500)
    assert not room.try_take(1)
    room.give_back(500)
    assert room.try_take(1)
    assert not room.try_take(500)


def test_who_waits_is_served_in_order_and_not_overtaken() -> None:
    async def main() -> None:
        room = Room(100, 10)
        assert room.try_take(90)
        large = await begun(room.take(50, soon()))
        small = await begun(room.take(5, soon()))
        assert not room.try_take(1), "others wait already"
        assert not large.done()
        assert not small.done()
        room.give_back(90)
        await asyncio.gather(large, small)
        assert (room.bytes, room.items) == (55, 2)

    run(main())


def test_who_gives_up_lets_those_behind_pass() -> None:
    async def main() -> None:
        room = Room(100, 10)
        assert room.try_take(90)
        large = await begun(room.take(50, soon()))
        small = await begun(room.take(5, soon()))
        large.cancel()
        await small
        assert (room.bytes, room.items) == (95, 2)

    run(main())


def test_waiting_ends_at_the_deadline() -> None:
    async def main() -> None:
        room = Room(100, 10)
        assert room.try_take(90)
        with pytest.raises(errors.DeadlineExceeded, match="1 appends with 90 bytes") as caught:
            await room.take(50, asyncio.get_running_loop().time() + 0.01)
        assert caught.value.happened is False
        assert room.try_take(10), "nobody is in line any more"

    run(main())


def test_closing_tells_everyone() -> None:
    async def main() -> None:
        room = Room(100, 10)
        assert room.try_take(90)
        tasks = [await begun(room.take(50, soon())) for _ in range(2)]
        room.close(errors.Closed("closed here"))
        for task in tasks:
            with pytest.raises(errors.Closed, match="closed here"):
                await task
        assert not room.try_take(1)
        with pytest.raises(errors.Closed, match="closed here"):
            await room.take(1, soon())
        room.give_back(90)

    run(main())
