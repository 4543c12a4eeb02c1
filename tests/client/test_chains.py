"""A topic that a sequencer orders, through the client: its calls, what they refuse, how it goes on when others die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import varlog
from tests.client.rig import run, turns, until
from varlog import batch, errors, limits
from varlog.client.log import Log
from varlog.core.messages import Granted, Next
from varlog.oneprocess import EmbeddedCluster
from varlog.types import GLSN


@asynccontextmanager
async def opened(path: Path, **options: int) -> AsyncIterator[tuple[EmbeddedCluster, Log]]:
    """A cluster and a client on its sequencer's topic."""
    cluster = await EmbeddedCluster.start(path, ordering="sequencer", **options)  # type: ignore[arg-type]
    try:
        async with varlog.connect(path, fill_after=0.2) as log:
            yield cluster, log
    finally:
        await cluster.stop()


async def take_positions(log: Log, count: int) -> int:
    """Have the sequencer give out positions that nobody will write; returns the first."""
    projection = log.topic.projection
    assert projection is not None
    link = log._session.sequencer(projection.sequencer)
    await until(lambda: link.connected)
    counts = (count,)
    granted = await log._session.asking.ask(
        lambda request: Next(request, log.topic.tpid, projection.epoch, counts), log._time() + 5, of=link, repeats=False
    )
    assert isinstance(granted, Granted)
    return granted.glsns[0]


# Calls


def test_L4_fill_seal_and_peek(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (_, log):
            assert await log.peek() == await log.tail() == 0
            assert (await log.append(b"one")).glsn == 1
            hole = await take_positions(log, 3)
            assert (hole, await log.peek()) == (2, 4)
            await log.fill(hole, 2)
            await log.fill(hole)  # it is filled already
            with pytest.raises(errors.Filled):
                await log.read(2)
            assert await log.tail() == 4  # which fills the last one
            assert await log.seal() == 2
            result = await log.append(b"two")
            assert (result.glsn, result.llsn, result.epoch, result.replicas) == (5, 5, 2, 3)
            assert [entry.data async for entry in log.subscribe(end=6)] == [b"one", b"two"]

    run(main())


def test_what_cannot_be_is_refused_and_nothing_changed(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (_, log):
            await log.append_batch([b"one", b"two", b"three"])
            with pytest.raises(errors.Written, match="position 2 holds an entry"):
                await log.fill(2)
            with pytest.raises(errors.Unwritten, match="up to 3 were given out"):
                await log.fill(3, 2)
            for position in (0, -1):
                with pytest.raises(errors.InvalidArgument):
                    await log.fill(position)
                with pytest.raises(errors.InvalidArgument):
                    await log.read(position)
            with pytest.raises(errors.InvalidArgument):
                await log.fill(1, 0)
            with pytest.raises(errors.Unwritten):
                await log.read(4)
            with pytest.raises(errors.InvalidArgument, match="beyond the tail, which is 3"):
                await log.trim(4)
            with pytest.raises(errors.BatchTooLarge, match=f"at most {limits.STRIPE_BLOCK}"):
                await log.append_batch([b""] * (limits.STRIPE_BLOCK + 1))
            with pytest.raises(errors.InvalidArgument, match="window"):
                log.appender(window=0)
            with pytest.raises(errors.InvalidArgument, match="fill_after"):
                varlog.connect(tmp_path, fill_after=-1)
            assert await log.trim(2) == 2
            with pytest.raises(errors.Trimmed):
                await log.fill(1)
            with pytest.raises(errors.Trimmed):
                await log.read(2)
            assert (await log.peek(), await log.tail(), await log.first()) == (3, 3, 3)

    run(main())


def test_calls_for_a_sequencers_topic_are_refused_on_another(tmp_path: Path) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path) as log:
            for call in (log.fill(1), log.peek(), log.seal()):
                with pytest.raises(errors.WrongOrdering, match="commits make the order"):
                    await call

    run(main())


def test_an_appender_keeps_its_order_and_compresses(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, streams=2) as (_, log):
            async with log.appender(window=50, codec=batch.Codec.ZSTD) as appender:
                sent = [await appender.append(b"%d" % number * 50) for number in range(500)]
                sent.append(await appender.append_batch([b"x", b"y"]))
                sent.append(await appender.append_fill(3))
            assert [future.result().glsn for future in sent] == [*range(1, 502), 503]
            with pytest.raises(errors.Closed):
                await appender.append(b"late")
            assert await log.tail() == 505

    run(main())


def test_everything_ends_with_the_client(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (cluster, log):
            for sequencer in cluster.sequencers:
                await sequencer.stop()
            calls = [asyncio.ensure_future(call) for call in (log.append(b"x"), log.peek(), log.tail())]
            await until(lambda: log._chained is not None and log._chained.reconfiguring._task is not None)
            await log.close()
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(outcome, errors.Closed)

    run(main())


def test_a_fill_ends_with_the_client(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (cluster, log):
            hole = await take_positions(log, 1)
            await log.peek()
            for node in cluster.nodes:
                await node.stop()
            filling = asyncio.ensure_future(log.fill(hole))
            await until(lambda: log._chained is not None and log._chained.chains.outstanding == 1)
            await log.close()
            with pytest.raises(errors.Closed):
                await filling

    run(main())


def test_a_topic_that_is_removed_ends_its_clients_calls(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (_, log), varlog.admin(tmp_path) as admin:
            await log.append(b"x")
            await admin.remove_topic(log.name)
            with pytest.raises((errors.Unknown, errors.UnknownTopic), match="was removed"):  # it was sent, or not
                await log.append(b"y")
            with pytest.raises(errors.UnknownTopic):
                await log.append(b"z")

    run(main())


def test_what_was_sent_may_have_happened_whatever_ends_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (_, log):
            await log.append(b"x")
            appending = asyncio.ensure_future(log.append(b"y"))
            assert log._chained is not None
            while not log._chained.chains.outstanding:
                await turns(1)
            log._session.fail(errors.ConsistencyViolation("two nodes disagree"))
            with pytest.raises(errors.Unknown, match="may have happened, or may yet: two nodes disagree"):
                await appending

    run(main())


# Failures


@pytest.mark.parametrize("place", [0, 1, 2])
def test_S7_appends_go_on_without_a_replica_that_died(tmp_path: Path, place: int) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (cluster, log):
            await log.append(b"before")
            projection = log.topic.projection
            assert projection is not None
            nodes = projection.chains[0].nodes
            await cluster.nodes[nodes[place] - 1].stop()
            results = await asyncio.gather(*(log.append(b"%d" % number) for number in range(20)))
            assert sorted(result.glsn for result in results) == list(range(2, 22))
            assert {result.replicas for result in results} == {2}
            renewed = log.topic.projection
            assert renewed is not None
            assert renewed.chains[0].nodes == tuple(snid for snid in nodes if snid != nodes[place])

    run(main())


def test_S1_another_sequencer_takes_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, sequencers=2) as (cluster, log):
            await log.append(b"before")
            projection = log.topic.projection
            assert projection is not None
            (present,) = [each for each in cluster.sequencers if each.core.location == projection.sequencer]
            await present.stop()
            assert (await log.append(b"after")).glsn == 2
            assert log.topic.projection is not None
            assert log.topic.projection.sequencer != projection.sequencer
            assert await log.peek() == await log.tail() == 2

    run(main())


def test_why_nothing_is_appended_is_said(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (cluster, log):
            await log.append(b"before")
            for sequencer in cluster.sequencers:
                await sequencer.stop()
            with pytest.raises(errors.Unreachable, match="no sequencer answers") as caught:
                await log.append(b"x", timeout=2.0)
            assert caught.value.happened is False
            with pytest.raises(errors.Unreachable, match="no sequencer answers"):
                await log.peek(timeout=1.0)
            assert (await log.read(1)).data == b"before"

    run(main())


def test_S9_what_a_client_left_behind_is_filled_by_the_next_reader(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (_, log):
            await take_positions(log, 2)
            result = await log.append(b"x")
            assert result.glsn == GLSN(3)
            begun = log._time()
            assert [entry.glsn async for entry in log.subscribe(end=4)] == [3]
            assert log._time() - begun < 1.0

    run(main())
