"""A real etcd of three members whose processes are frozen and killed: what the store makes of it (O2, O3, M4).

Safety is told by counting: every number is written once, whatever became of the answers, and a watch is told each once
and in order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.metarepo.etcds import Counter, ask, commit, leader_of, opened, value_of
from varlog import limits
from varlog.core.store import Lease, Remaining
from varlog.errors import OutcomeUnknown, StoreUnavailable
from varlog.etcdserver import EtcdCluster


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """An etcd that tests break and leave whole. It is quicker to notice that its leader is gone than one should be
    whose members are apart."""
    cluster = EtcdCluster(
        tmp_path_factory.mktemp("an etcd"), flags=["--heartbeat-interval=50", "--election-timeout=500"]
    )
    asyncio.run(cluster.start())
    yield cluster
    asyncio.run(cluster.stop())


def test_O3_a_frozen_member_costs_the_patience_for_one_request(breakable: EtcdCluster) -> None:
    async def scenario() -> None:
        leader = await leader_of(breakable)
        frozen, other = [member for member in breakable.members if member is not leader]
        async with opened(breakable, frozen.endpoint, other.endpoint) as store:
            assert store.health().endpoint == frozen.endpoint
            counter = await Counter.at(store)
            await counter.up()
            frozen.pause()
            with ExitStack() as thaw:
                thaw.callback(frozen.resume)
                begin = time.monotonic()
                await counter.up()
                assert time.monotonic() - begin < limits.ETCD_SECONDS + 0.8
                assert counter.unknown == 1
                assert store.health().endpoint == other.endpoint
                assert frozen.endpoint in store.health().error
                await counter.up()
                await counter.check()
            await counter.up()
            await counter.check()

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_O2_counting_goes_on_by_itself_when_the_leader_of_etcd_is(breakable: EtcdCluster, how: str) -> None:
    async def scenario() -> None:
        leader = await leader_of(breakable)
        async with opened(breakable) as store:
            counter = await Counter.at(store)
            for _ in range(20):
                await counter.up()
            if how == "killed":
                await leader.kill()
            else:
                leader.pause()
            try:
                for _ in range(20):
                    await counter.up()
                await counter.check()
            finally:
                leader.resume()
            if how == "killed":
                await leader.start()
            for _ in range(20):
                await counter.up()
            await counter.check()

    asyncio.run(scenario())


def test_O3_without_a_majority_nothing_is_written_or_read_and_it_goes_on_when_there_is_one(
    breakable: EtcdCluster,
) -> None:
    async def scenario() -> None:
        lost = breakable.members[:2]
        async with opened(breakable) as store:
            counter = await Counter.at(store)
            lease = await ask(store.lease_grant, 60)
            assert isinstance(lease, Lease)
            for _ in range(5):
                await counter.up()
            for member in lost:
                await member.kill()
            written, *read = await asyncio.gather(
                commit(store, "alone", b"1"), ask(store.read, (Counter.KEY,)), ask(store.read_prefix, "")
            )
            assert isinstance(written, OutcomeUnknown | StoreUnavailable)
            assert all(isinstance(outcome, StoreUnavailable) for outcome in read)
            going_on = asyncio.ensure_future(counter.up())
            await asyncio.gather(*(member.start() for member in lost))
            await going_on
            for _ in range(5):
                await counter.up()
            await counter.check()
            assert isinstance(await ask(store.lease_remaining, lease.id), Remaining)
            found = await value_of(store, "alone")
            assert found is None or isinstance(written, OutcomeUnknown), "what is refused never happens"

    asyncio.run(scenario())
