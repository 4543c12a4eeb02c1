"""The replicated key-value store: replicas agree, decide compare-and-sets alike, read what was acknowledged, and start
from snapshots (L8)."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import varlog
from examples import replicated_kv
from examples.replicated_kv import ABSENT, TOPIC, Replica, Store, count
from varlog.errors import Closed

Join = Callable[[], Awaitable[Replica]]


@asynccontextmanager
async def store_in(path: Path, ordering: str = "commit") -> AsyncIterator[tuple[varlog.Log, Join]]:
    """A cluster with the topic, and how replicas join, each with a connection of its own."""
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(varlog.embedded(path, topic=TOPIC, streams=2, ordering=ordering))

        async def join() -> Replica:
            own = await stack.enter_async_context(varlog.connect(path, topic=TOPIC))
            return await stack.enter_async_context(Replica(own))

        yield log, join


async def contents(replica: Replica) -> dict[str, replicated_kv.Value]:
    return {key: await replica.get(key) for key in await replica.keys()}


@pytest.mark.parametrize("ordering", ["commit", "sequencer"])
def test_L8_every_increment_counts_whichever_replica_makes_it(tmp_path: Path, ordering: str) -> None:
    async def test() -> None:
        async with store_in(tmp_path, ordering) as (_, join):
            replicas = [await join() for _ in range(3)]
            conflicts = await asyncio.gather(*(count(replica, "n", 15) for replica in replicas))
            assert [(await replica.get("n")).text for replica in replicas] == ["45"] * 3
            assert sum(conflicts), "they got in each other's way"

    asyncio.run(test())


def test_L8_one_of_many_concurrent_compare_and_sets_wins_and_all_replicas_say_which(tmp_path: Path) -> None:
    async def test() -> None:
        async with store_in(tmp_path) as (_, join):
            replicas = [await join() for _ in range(4)]
            version = 0
            for _ in range(10):
                tries = [replica.compare_and_set("owner", version, str(n)) for n, replica in enumerate(replicas)]
                won = [n for n, did in enumerate(await asyncio.gather(*tries)) if did]
                assert len(won) == 1
                (owner,) = {await replica.get("owner") for replica in replicas}
                assert owner.text == str(won[0])
                assert owner.version > version
                version = owner.version

    asyncio.run(test())


def test_L8_a_read_sees_what_was_acknowledged_to_anybody_before(tmp_path: Path) -> None:
    async def test() -> None:
        async with store_in(tmp_path) as (_, join):
            one, other = await join(), await join()
            for n in range(50):
                await one.put("n", str(n))
                assert (await other.get("n")).text == str(n)
                one, other = other, one

    asyncio.run(test())


def test_a_key_is_deleted_by_its_version(tmp_path: Path) -> None:
    async def test() -> None:
        async with store_in(tmp_path) as (_, join):
            replica = await join()
            await replica.put("a", "1")
            old = (await replica.get("a")).version
            await replica.put("a", "2")
            assert not await replica.delete("a", old)
            assert (await replica.get("a")).text == "2"
            assert await replica.delete("a")
            assert await replica.get("a") == ABSENT
            assert await replica.compare_and_set("a", 0, "3"), "it is not there"

    asyncio.run(test())


def test_L8_a_replica_starts_from_a_snapshot(tmp_path: Path) -> None:
    async def test() -> None:
        async with store_in(tmp_path) as (log, join):
            replica = await join()
            await asyncio.gather(*(replica.put(f"key {n}", str(n)) for n in range(100)))
            assert await replica.snapshot() == 100
            assert await log.first() == 101, "what the snapshot has is trimmed"
            await replica.put("key 7", "again")
            newcomer = await join()
            await newcomer.put("key 8", "from the newcomer")
            assert await contents(newcomer) == await contents(replica)
            assert (await replica.get("key 8")).text == "from the newcomer"

    asyncio.run(test())


def test_a_replica_that_was_away_while_the_log_was_trimmed_goes_on_from_the_snapshot(tmp_path: Path) -> None:
    async def test() -> None:
        async with store_in(tmp_path) as (log, join):
            replica, away = await join(), Replica(log)
            async with away:
                await away.put("a", "1")
            await replica.put("a", "2")
            await replica.delete("a")
            await replica.put("b", "3")
            await replica.snapshot()
            async with away:
                assert await contents(away) == await contents(replica)
                await away.put("a", "4")
            assert (await replica.get("a")).text == "4"

    asyncio.run(test())


def test_two_replicas_make_snapshots_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with store_in(tmp_path) as (_, join):
            replicas = [await join() for _ in range(2)]
            for n in range(10):
                counting = [count(replica, "n", 5) for replica in replicas]
                await asyncio.gather(*counting, *(replica.snapshot() for replica in replicas))
                newcomer = await join()
                assert (await newcomer.get("n")).text == str(10 * (n + 1))

    asyncio.run(test())


def test_the_store_is_there_after_a_restart_of_the_cluster(tmp_path: Path) -> None:
    async def test() -> None:
        async with store_in(tmp_path) as (_, join):
            replica = await join()
            await replica.put("a", "1")
            await replica.snapshot()
            await replica.put("b", "2")
            before = await contents(replica)
        async with store_in(tmp_path) as (_, join):
            assert await contents(await join()) == before

    asyncio.run(test())


def test_a_replica_that_cannot_follow_the_log_says_why(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            store_in(tmp_path) as (_, join),
            varlog.connect(tmp_path, topic=TOPIC) as own,
            Replica(own) as replica,
        ):
            await replica.put("a", "1")
            await own.close()
            with pytest.raises(Closed):
                await replica.get("a")
            assert (await (await join()).get("a")).text == "1"

    asyncio.run(test())


KEYS = st.sampled_from(["a", "b"])
COMMANDS = st.one_of(
    st.builds(
        lambda key, text, expected: {"do": "put", "key": key, "text": text, "expected": expected},
        KEYS,
        st.text(),
        st.none() | st.integers(0, 10),
    ),
    st.builds(
        lambda key, expected: {"do": "delete", "key": key, "expected": expected}, KEYS, st.none() | st.integers(0, 10)
    ),
    st.just({"do": "snapshot"}),
)


@given(st.lists(COMMANDS), st.lists(COMMANDS))
def test_a_store_made_from_a_snapshot_goes_on_like_the_one_it_was_taken_from(
    before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> None:
    store, copy = Store(), Store()
    for position, command in enumerate(before, 1):
        store.apply(position, command)
    copy.restore(json.loads(json.dumps(store.snapshot())))
    for position, command in enumerate(after, len(before) + 1):
        assert store.apply(position, command) == copy.apply(position, command)
    assert (store.values, store.applied) == (copy.values, copy.applied)


def test_it_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, replicated_kv.__file__], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(
        r"three replicas added 20 each: 60, 60, 60\n"
        r"compare-and-set was refused \d+ times, because another replica was quicker\n"
        r"snapshot: the log is trimmed up to \d+\n"
        r"a new replica starts from the snapshot and agrees\n",
        done.stdout,
    )
