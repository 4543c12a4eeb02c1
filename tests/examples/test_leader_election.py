"""Leader election: one leads at a time, tokens only grow, and whoever led before is fenced (L8)."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

import varlog
from examples import leader_election
from examples.leader_election import TOPIC, Contender, Fenced, FencedFile, Lease
from varlog.types import GLSN, LLSN, LogStreamID

SECONDS = 0.6
"""A short lease."""


@asynccontextmanager
async def contenders(path: Path, *names: str, ordering: str = "commit") -> AsyncIterator[list[Contender]]:
    """A cluster with the topic, and contenders, each with a connection of its own."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(varlog.embedded(path, topic=TOPIC, ordering=ordering))
        yield [
            await stack.enter_async_context(
                Contender(await stack.enter_async_context(varlog.connect(path, topic=TOPIC)), name, seconds=SECONDS)
            )
            for name in names
        ]


# The state machine


def entry(glsn: int, timestamp: int, do: str, who: str, token: int) -> varlog.Entry:
    data = json.dumps({"do": do, "who": who, "token": token, "seconds": 3e-6}).encode()
    return varlog.Entry(GLSN(glsn), data, LLSN(glsn), LogStreamID(1), timestamp)


STEPS = st.tuples(
    st.integers(0, 3), st.sampled_from(["acquire", "renew", "release"]), st.sampled_from("abc"), st.integers(0, 3)
)


@given(st.lists(STEPS, max_size=40))
def test_L8_tokens_only_grow_and_a_lease_passes_on_only_when_it_has_ended(
    steps: list[tuple[int, str, str, int]],
) -> None:
    lease, now = Lease(), 0
    for glsn, (passed, do, who, back) in enumerate(steps, 1):
        now += passed
        before = copy(lease)
        lease.apply(entry(glsn, now, do, who, max(0, lease.token - back)))
        if lease.token != before.token:
            assert (do, lease.holder, lease.token) == ("acquire", who, glsn)
            assert not before.holder or now >= before.expires
        elif lease.holder != before.holder:
            assert (do, lease.holder, back) == ("release", "", 0), "only its holder lets it go"


@given(st.lists(STEPS, max_size=40))
def test_nothing_before_the_acquire_of_the_leader_matters(steps: list[tuple[int, str, str, int]]) -> None:
    lease, now, log, leads_since = Lease(), 0, [], 1
    for glsn, (passed, do, who, back) in enumerate(steps, 1):
        now += passed
        log.append(entry(glsn, now, do, who, max(0, lease.token - back)))
        lease.apply(log[-1])
        leads_since = lease.token or 1
        newcomer = Lease()
        for later in log[leads_since - 1 :]:
            newcomer.apply(later)
        assert (newcomer.holder, newcomer.token) == (lease.holder, lease.token)


# Contenders


def test_L8_one_leads_and_the_other_waits_until_it_resigns(tmp_path: Path) -> None:
    async def test() -> None:
        async with contenders(tmp_path, "alice", "bob") as (alice, bob):
            first = await alice.lead()
            waiting = asyncio.create_task(bob.lead())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiting), 3 * SECONDS)
            assert not first.lost.is_set(), "it has renewed its lease for longer than that lasts"
            begun = monotonic()
            await first.resign()
            second = await waiting
            assert monotonic() - begun < SECONDS, "it did not have to wait for the end of the lease"
            assert second.token > first.token
            assert first.lost.is_set()
            assert not second.lost.is_set()

    asyncio.run(test())


@pytest.mark.parametrize("ordering", ["commit", "sequencer"])
def test_L8_leaders_follow_each_other_without_overlap(tmp_path: Path, ordering: str) -> None:
    async def test() -> None:
        store = FencedFile(tmp_path / "store")
        async with contenders(tmp_path / "cluster", *"abcd", ordering=ordering) as rivals:

            async def reign(contender: Contender, name: str) -> None:
                for _ in range(4):
                    leadership = await contender.lead()
                    for _ in range(3):
                        store.write(leadership.token, name)
                        await contender.say("renew", leadership.token)
                    assert not leadership.lost.is_set()
                    await leadership.resign()

            await asyncio.gather(*(reign(contender, name) for contender, name in zip(rivals, "abcd", strict=True)))
        lines = store.lines()
        tokens = [token for token, _ in lines]
        assert tokens == sorted(tokens)
        assert len(lines) == 4 * 4 * 3
        assert len(set(lines)) == len(set(tokens)) == 4 * 4, "every reign has a token of its own"

    asyncio.run(test())


def test_L8_the_log_is_trimmed_up_to_the_leader_and_a_newcomer_still_knows_who_leads(tmp_path: Path) -> None:
    async def test() -> None:
        async with contenders(tmp_path, "alice", "bob") as (alice, bob):
            for _ in range(3):
                await (await alice.lead()).resign()
                await (await bob.lead()).resign()
            leadership = await alice.lead()
            async with varlog.connect(tmp_path, topic=TOPIC) as log, Contender(log, "carol", seconds=SECONDS) as carol:
                assert await log.first() == leadership.token
                await carol.say("renew", 0)  # a wrong token: it changes nothing, and carol has heard of everything
                assert carol.lease == alice.lease
                assert carol.lease.token == leadership.token

    asyncio.run(test())


def test_a_leader_that_is_cut_off_steps_down_when_its_lease_is_over(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as cluster, AsyncExitStack() as clients:
            await cluster.enter_async_context(varlog.embedded(tmp_path, topic=TOPIC))
            log = await clients.enter_async_context(varlog.connect(tmp_path, topic=TOPIC, timeout=5))
            leadership = await (await clients.enter_async_context(Contender(log, "alice", seconds=SECONDS))).lead()
            await cluster.aclose()
            begun = monotonic()
            await asyncio.wait_for(leadership.lost.wait(), 10)
            assert monotonic() - begun < 3 * SECONDS

    asyncio.run(test())


# The outside world


def test_L8_a_store_takes_no_token_that_is_smaller_than_one_it_has_seen(tmp_path: Path) -> None:
    store = FencedFile(tmp_path / "store")
    store.write(3, "alice")
    store.write(3, "alice")
    store.write(7, "bob")
    with pytest.raises(Fenced, match="token 3 is refused: 7 was here"):
        store.write(3, "alice")
    assert store.lines() == [(3, "alice"), (3, "alice"), (7, "bob")]


def test_L8_a_paused_leader_is_fenced_and_a_killed_one_succeeded() -> None:
    done = subprocess.run([sys.executable, leader_election.__file__], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    told = re.fullmatch(
        r"alice leads with token 1\n"
        r"alice is paused in the midst of its work\n"
        r"bob leads with token (\d+)\n"
        r"alice goes on, and does not know\n"
        r"alice is fenced: token 1 is refused: \1 was here\n"
        r"bob is killed\n"
        r"alice leads with token (\d+)\n"
        r"the store has \d+ lines of 3 leaders, one after another:\n"
        r"  token 1: alice, 19 lines\n"
        r"  token \1: bob, \d+ lines\n"
        r"  token \2: alice, \d+ lines\n",
        done.stdout,
    )
    assert told is not None, done.stdout
    assert 1 < int(told[1]) < int(told[2])
