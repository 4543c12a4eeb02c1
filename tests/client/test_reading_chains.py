"""Reading topics that a sequencer orders, from a cluster in one process: at the tails, with holes waited for and then
filled, half-written positions repaired, and nothing told that might not be so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import varlog
from tests.client.hand import Hand
from tests.client.rig import run
from varlog import errors
from varlog.core.address import node_address
from varlog.core.messages import ChainRead
from varlog.oneprocess import EmbeddedCluster
from varlog.types import GLSN

FILL_AFTER = 0.4


def test_S9_what_a_dead_client_left_is_filled_or_completed_by_the_next_reader(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            varlog.embedded(tmp_path, ordering="sequencer", streams=2),
            varlog.connect(tmp_path, fill_after=FILL_AFTER) as log,
        ):
            hand = Hand(log)
            await log.append(b"one")
            await hand.grant(1, 2)
            await hand.write(await hand.grant(1), b"half", replicas=1)
            with pytest.raises(errors.Unwritten):
                await log.read(5)
            began = asyncio.get_running_loop().time()
            await log.append(b"six")
            assert [(entry.glsn, entry.data) async for entry in log.subscribe(end=7)] == [
                (1, b"one"),
                (5, b"half"),
                (6, b"six"),
            ]
            waited = asyncio.get_running_loop().time() - began
            assert FILL_AFTER <= waited < FILL_AFTER + 1.0, "all holes at once, after the interval"
            assert (await log.read(5)).data == b"half"
            for glsn in (2, 3, 4):
                with pytest.raises(errors.Filled):
                    await log.read(glsn)

    run(main())


def test_rule20_a_tail_is_not_waited_for_at_positions_that_never_happened(tmp_path: Path) -> None:
    """They were given out and not written, and the next epoch begins before them: nobody may ever write there again."""

    async def main() -> None:
        async with (
            varlog.embedded(tmp_path, ordering="sequencer"),
            varlog.connect(tmp_path, fill_after=60.0) as log,
            varlog.connect(tmp_path) as other,
        ):
            await log.append(b"one")
            await Hand(log).grant(3)
            tail = asyncio.ensure_future(log.tail(timeout=20))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(tail), 0.2)
            await other.seal()
            async with asyncio.timeout(8):
                assert await tail == 1

    run(main())


def test_rule24_the_tail_is_where_everything_is_written_and_counts_what_was_given_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            varlog.embedded(tmp_path, ordering="sequencer"),
            varlog.connect(tmp_path, fill_after=FILL_AFTER) as log,
        ):
            hand = Hand(log)
            assert await log.tail() == 0
            await log.append_batch([b"a", b"b"])
            assert await log.tail() == 2
            granted = await hand.grant(3)
            assert await log.peek() == 5
            tail = asyncio.ensure_future(log.tail())
            scan = [batch.payloads() async for batch in log.scan(1, 3)]
            assert scan == [[b"a", b"b"]]
            assert not tail.done()
            assert await tail == 5
            with pytest.raises(errors.Filled):
                await log.read(granted.glsns[0])
            assert [entry async for entry in log.subscribe(3, end=6)] == []
            with pytest.raises(errors.Unwritten):
                await log.read(6)

    run(main())


def test_a_subscription_goes_on_over_epochs_and_waits_at_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            varlog.embedded(tmp_path, ordering="sequencer", streams=3) as log,
            varlog.connect(tmp_path, fill_after=FILL_AFTER) as reader,
        ):
            wanted = [b"%d" % number for number in range(60)]

            async def read() -> list[bytes]:
                found = []
                async for entry in reader.subscribe():
                    found.append(entry.data)
                    if len(found) == len(wanted):
                        break
                return found

            reading = asyncio.ensure_future(read())
            for number, data in enumerate(wanted):
                await log.append(data)
                if number % 20 == 10:
                    await log.seal()
            assert await reading == wanted
            assert await log.tail() == await log.peek()

    run(main())


def test_S4_a_subscriber_at_the_end_asks_only_the_tail(tmp_path: Path) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path, ordering="sequencer") as log:
            await log.append(b"one")
            async with varlog.connect(tmp_path) as reader:
                subscription = reader.subscribe()
                assert (await anext(subscription)).data == b"one"
                projection = Hand(reader).projection
                asked = set(reader._session._connections)
                assert asked == {node_address(projection.chains[0].tail)}
                await subscription.aclose()

    run(main())


def test_S8_a_replica_of_another_epoch_is_not_believed(tmp_path: Path) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path, ordering="sequencer") as log:
            await log.append(b"one")
            hand = Hand(log)
            before = hand.projection
            lsid, tail = before.chains[0].lsid, before.chains[0].tail
            await log.seal()
            part = await hand.ask(
                node_address(tail), lambda request: ChainRead(request, lsid, before.epoch, GLSN(1), 1)
            )
            assert part.code == errors.StaleEpoch.code
            assert part.epoch > before.epoch
            assert (await log.read(1)).data == b"one"

    run(main())


def test_times_are_found_where_junk_has_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            varlog.embedded(tmp_path, ordering="sequencer"),
            varlog.connect(tmp_path, fill_after=0.0) as log,
        ):
            hand = Hand(log)
            times = {}
            for number in range(8):
                result = await log.append(b"%d" % number)
                times[int(result.glsn)] = (await log.read(result.glsn)).timestamp
                await hand.grant(5)
            await log.tail()
            for glsn, time in times.items():
                found = await log.find_time(time)
                entries = [entry.glsn async for entry in log.subscribe(found, end=glsn + 1)]
                assert min(entries) == min(other for other, at in times.items() if at == time)
            assert await log.find_time(max(times.values()) + 1) > max(times)

    run(main())


def test_what_is_trimmed_is_told_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path, ordering="sequencer", streams=2) as log:
            for number in range(6):
                await log.append(b"%d" % number)
            assert await log.trim(3) == 3
            with pytest.raises(errors.Trimmed):
                await log.read(2)
            with pytest.raises(errors.Trimmed):
                await anext(log.subscribe(1))
            assert [entry.data async for entry in log.subscribe(4, end=7)] == [b"3", b"4", b"5"]
            assert await log.first() == 4

    run(main())


def test_S7_readers_alone_go_on_without_a_tail_that_died(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = await EmbeddedCluster.start(tmp_path, ordering="sequencer")
        try:
            async with varlog.connect(tmp_path) as log, varlog.connect(tmp_path) as reader:
                for number in range(5):
                    await log.append(b"%d" % number)
                subscription = reader.subscribe()
                assert [(await anext(subscription)).data for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
                before = Hand(reader).projection
                await cluster.nodes[before.chains[0].tail - 1].stop()
                assert (await reader.read(3, timeout=10)).data == b"2"
                assert await reader.tail(timeout=10) == 5
                after = Hand(reader).projection
                assert after.epoch > before.epoch
                assert after.chains[0].nodes == before.chains[0].nodes[:-1]
                await log.append(b"5")
                assert (await anext(subscription)).data == b"5"
                await subscription.aclose()
        finally:
            await cluster.stop()

    run(main())
