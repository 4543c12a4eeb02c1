"""Reading: every position once and in order, whatever the replicas answer; no more held than a reader takes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path

import pytest

import varlog
from tests.client.rig import pass_time, run, turns, until
from tests.client.stage import Stage
from varlog import errors, limits
from varlog.client.reading import Feed
from varlog.core.messages import GetTail, Scan, ScanReply
from varlog.types import GLSN, Epoch, LogStreamID, StorageNodeID, StreamStatus
from varlog.wire import Connection

MIB = limits.MIB


# Scans


def test_a_scan_ends_at_the_tail_it_found(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            assert [batch async for batch in log.scan()] == []
            stage.write(1, [b"a", b"b"])
            scan = log.scan()
            first = await anext(scan)
            stage.write(1, [b"too late"])
            assert (first.glsn, first.count, first.payloads()) == (1, 2, [b"a", b"b"])
            assert [batch async for batch in scan] == []
            assert [batch.payloads() async for batch in log.scan(2, 4)] == [[b"b"], [b"too late"]]
            assert [batch async for batch in log.scan(3, 2)] == [], "an end before the beginning"

    run(main())


def test_L6_log_streams_are_merged_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=3, streams=3) as stage, varlog.connect(tmp_path) as log:
            for number in range(60):
                stage.write(1 + number * number % 3, [b"%d" % number] * (1 + number % 3))
            expected = [b"%d" % number for number in range(60) for _ in range(1 + number % 3)]
            entries = [entry async for entry in log.subscribe(end=len(expected) + 1)]
            assert [entry.glsn for entry in entries] == list(range(1, len(expected) + 1))
            assert [entry.data for entry in entries] == expected
            assert [payload async for batch in log.scan() for payload in batch.payloads()] == expected

    run(main())


def test_a_batch_shows_what_is_known_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            stage.write(1, [b"a"])
            result = await log.append_batch([b"b", b"c", b"d"])
            (batch,) = [batch async for batch in log.scan(3, 5)]
            assert (batch.glsn, batch.llsn, batch.count, len(batch), batch.end) == (3, 3, 2, 2, 5)
            assert (batch.log_stream, batch.epoch, batch.time) == (1, 2, 1_000_002)
            assert batch.writer_timestamp > 1_600_000_000_000_000
            assert batch.payloads() == [b"c", b"d"]
            assert list(batch) == [(3, b"c", 3, 1, 1_000_002), (4, b"d", 4, 1, 1_000_002)]
            assert [entry.data for entry in batch] == [b"c", b"d"]
            columns = batch.to_arrow()
            assert columns.column("payload").to_pylist() == [b"c", b"d"]
            assert columns.column("glsn").to_pylist() == [3, 4]
            assert columns.column("llsn").to_pylist() == [3, 4]
            assert columns.column("log_stream").to_pylist() == [1, 1]
            assert "of 2 from 3 on" in repr(batch)
            assert result.end == 5

    run(main())


# Subscriptions


def test_L6_a_subscription_waits_at_the_tail(tmp_path: Path) -> None:
    async def main() -> None:
        async with varlog.embedded(tmp_path) as log:
            subscription = log.subscribe()
            waiting = asyncio.ensure_future(anext(subscription))
            await pass_time(0.2)
            assert not waiting.done()
            result = await log.append(b"here")
            entry = await waiting
            assert (entry.glsn, entry.data) == (result.glsn, b"here")

    run(main())


def test_a_subscription_as_batches(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            stage.write(1, [b"a", b"b"])
            stage.write(1, [b"c"])
            async with log.subscribe(2) as subscription:
                batches = subscription.batches()
                assert [(await anext(batches)).payloads() for _ in range(2)] == [[b"b"], [b"c"]]
            with pytest.raises(errors.Closed):
                await anext(batches)

    run(main())


def test_tasks_that_share_a_subscription_get_each_entry_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            stage.write(1, [b"x"] * 20)
            shared = log.subscribe(end=61)
            seen: list[int] = []

            async def share() -> None:
                async for entry in shared:
                    seen.append(entry.glsn)
                    await turns(1)

            tasks = [asyncio.ensure_future(share()) for _ in range(3)]
            await until(lambda: len(seen) == 20)
            for _ in range(2):  # all of them wait at the tail
                stage.write(1, [b"x"] * 20)
            await asyncio.gather(*tasks)
            assert sorted(seen) == list(range(1, 61))

    run(main())


def test_tasks_that_share_a_scan_get_each_batch_once_and_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            stage.write(1, [b"a", b"b"])
            stage.write(1, [b"c"])
            scan = log.scan()
            found = await asyncio.gather(*(anext(scan, None) for _ in range(4)))
            assert [batch.glsn if batch is not None else None for batch in found] == [1, 3, None, None]

    run(main())


def test_a_subscription_that_nobody_holds_any_more_is_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            stage.write(1, [b"a", b"b"])
            enrolled = len(log._session._participants)
            async for entry in log.subscribe():
                assert entry.data == b"a"
                assert len(log._session._participants) == enrolled + 1
                break
            del entry
            gc.collect()
            assert len(log._session._participants) == enrolled

    run(main())


def test_a_trim_meanwhile_ends_a_subscription(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            stage.write(1, [b"a", b"b"])
            subscription = log.subscribe()
            assert (await anext(subscription)).glsn == 1
            stage.write(1, [b"c", b"d", b"e"])
            await until(lambda: stage.hwm == 5)
            assert (await anext(subscription)).glsn == 2
            await turns(5)
            await log.trim(4)
            found = [(await anext(subscription)).glsn for _ in range(3)]
            assert found == [3, 4, 5], "what was read before it is delivered"
            behind = log.subscribe(3)
            with pytest.raises(errors.Trimmed) as caught:
                await anext(behind)
            assert caught.value.first == 5

    run(main())


# Slow readers


def test_a_slow_reader_stops_the_reading(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            for number in range(40):
                stage.write(1, [bytes([number]) * MIB])
            (node,) = stage.nodes.values()
            subscription = log.subscribe(end=41)
            assert (await anext(subscription)).data[0] == 0
            await pass_time(0.3)
            asked = len(node.of(Scan))
            most = limits.CLIENT_READ_AHEAD_BYTES + 2 * (limits.CLIENT_SCAN_BYTES + MIB)
            feed = subscription.batches()._source
            assert isinstance(feed, Feed)
            assert feed._held <= most
            await pass_time(0.3)
            assert len(node.of(Scan)) == asked, "nothing more is asked for"
            assert [entry.data[0] async for entry in subscription] == list(range(1, 40))

    run(main())


# Replicas


def test_readers_with_different_affinities_ask_different_replicas(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=3) as stage, varlog.connect(tmp_path) as log:
            stage.write(1, [b"a", b"b"])
            asked = []
            for affinity in (0, 1, 2, 3, 301):
                before = {snid: len(node.of(Scan)) for snid, node in stage.nodes.items()}
                assert [batch.payloads() async for batch in log.scan(affinity=affinity)] == [[b"a", b"b"]]
                asked += [snid for snid, node in stage.nodes.items() if len(node.of(Scan)) > before[snid]]
            assert asked == [1, 2, 3, 1, 2]
            for wrong in (-1, "1", 0.5):
                with pytest.raises(errors.InvalidArgument, match="affinity"):
                    log.scan(affinity=wrong)  # type: ignore[arg-type]

    run(main())


def test_a_damaged_batch_is_read_from_another_replica(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=3) as stage, varlog.connect(tmp_path) as log:
            stage.write(1, [b"whole", b"sound"])
            damaged = StorageNodeID(2)

            def lie(connection: Connection, scan: Scan) -> None:
                (line,) = stage.scanned(scan).batches
                spoilt = bytes(line[6])[:-9] + b"?" + bytes(line[6])[-8:]
                reply = ScanReply(scan.request, scan.lsid, 0, ((*line[:6], spoilt),), GLSN(stage.hwm))
                connection.send(reply)

            def miscount(connection: Connection, scan: Scan) -> None:
                (line,) = stage.scanned(scan).batches
                connection.send(ScanReply(scan.request, scan.lsid, 0, ((*line[:2], 3, *line[3:]),), GLSN(stage.hwm)))

            stage.nodes[damaged].answers[Scan] = lie
            stage.nodes[StorageNodeID(3)].answers[Scan] = miscount
            for _ in range(10):
                assert [(await log.read(glsn)).data for glsn in (1, 2)] == [b"whole", b"sound"]
                assert [entry.data async for entry in log.subscribe(end=3)] == [b"whole", b"sound"]
            stage.nodes[StorageNodeID(1)].answers[Scan] = lie
            stage.nodes[StorageNodeID(3)].answers[Scan] = lie
            with pytest.raises(errors.ChecksumMismatch):
                await log.read(1)
            with pytest.raises(errors.ChecksumMismatch):
                await anext(log.scan(1, 3))

    run(main())


def test_a_lost_connection_is_made_up_for_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=2) as stage, varlog.connect(tmp_path) as log:
            stage.write(1, [b"a"])
            for node in stage.nodes.values():
                node.silent = True
            reading = asyncio.ensure_future(log.read(1))
            await until(lambda: any(node.of(Scan) for node in stage.nodes.values()))
            for node in stage.nodes.values():
                node.silent = False
            begun = asyncio.get_running_loop().time()
            for node in stage.nodes.values():
                node.break_connections()
            assert (await reading).data == b"a"
            assert asyncio.get_running_loop().time() - begun < 2, "no timeout of a read was waited for"

    run(main())


def test_a_replica_that_is_down_is_passed_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=3) as stage, varlog.connect(tmp_path) as log:
            stage.write(1, [b"a"])
            await stage.nodes[StorageNodeID(1)].stop()
            await stage.nodes[StorageNodeID(3)].stop()
            for _ in range(6):
                assert (await log.read(1, timeout=3.0)).data == b"a"

    run(main())


def test_a_replica_that_hangs_costs_a_subscription_no_seconds(tmp_path: Path) -> None:
    """Wherever the subscription begins, and whichever replica hangs while it reads."""

    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=3) as stage, varlog.connect(tmp_path) as log:
            loop, slowest, expected = asyncio.get_running_loop(), 0.0, 0
            subscriptions = [log.subscribe() for _ in range(3)]
            for snid in (1, 2, 3):
                hanging = stage.nodes[StorageNodeID(snid)]
                hanging.silent = True
                for _ in range(20):
                    stage.write(1, [b"%d" % (expected := expected + 1)])
                    for subscription in subscriptions:
                        begun = loop.time()
                        entry = await anext(subscription)
                        assert (entry.glsn, entry.data) == (expected, b"%d" % expected)
                        slowest = max(slowest, loop.time() - begun)
                hanging.silent = False
                hanging.break_connections()
            assert slowest < 1.0
            begun = loop.time()
            stage.nodes[StorageNodeID(1)].silent = True
            for glsn in range(1, 21):
                await log.read(glsn)
            assert loop.time() - begun < 3.0, "who does not answer is soon asked no more"

    run(main())


def test_L6_a_subscription_goes_on_without_gap_or_repeat_while_sets_change(tmp_path: Path) -> None:
    """A replica that left the set knows nothing of what came after, and says so only after long."""

    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=4, streams=2) as stage, varlog.connect(tmp_path) as log:
            epochs, subscription, expected = {1: 2, 2: 2}, log.subscribe(), 0

            def scan_of(snid: int) -> Callable[[Connection, Scan], None]:
                def answer(connection: Connection, scan: Scan) -> None:
                    if snid in stage.streams[scan.lsid].replicas:
                        stage._on_scan(connection, scan)

                return answer

            for snid, node in stage.nodes.items():
                node.answers[Scan] = scan_of(snid)
            for turn in range(6):
                lsid = 1 + turn % 2
                for _ in range(10):
                    stage.write(1 + expected % 2, [b"%d" % (expected := expected + 1)])
                for number in range(expected - 9, expected + 1):
                    entry = await anext(subscription)
                    assert (entry.glsn, entry.data) == (number, b"%d" % number)
                stage.change(lsid, status=StreamStatus.SEALED, epoch=Epoch(epochs[lsid] + 1))
                epochs[lsid] += 2
                members = tuple(StorageNodeID(1 + (turn + place) % 4) for place in range(2))
                stage.waiting = [w for w in stage.waiting if w[1].lsid != lsid]
                stage.change(
                    lsid,
                    status=StreamStatus.RUNNING,
                    epoch=Epoch(epochs[lsid]),
                    replicas=members,
                    primary=members[0],
                )
            await log.refresh()
            asked = {snid: len(node.of(Scan)) for snid, node in stage.nodes.items()}
            await pass_time(1.5)
            silent = set(stage.nodes) - {snid for info in stage.streams.values() for snid in info.replicas}
            assert all(len(stage.nodes[snid].of(Scan)) == asked[snid] for snid in silent), (
                "who is outside is left alone"
            )

    run(main())


def test_what_is_lost_is_told_and_the_log_goes_on_behind_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, nodes=2, streams=2) as stage, varlog.connect(tmp_path) as log:
            for number in range(1, 13):
                stage.write(1 if number in {4, 5, 9} else 2, [b"%d" % number])
            subscription = log.subscribe()
            assert [(await anext(subscription)).glsn for _ in range(3)] == [1, 2, 3]
            whole = stage.stored[LogStreamID(1)]
            stage.stored[LogStreamID(1)] = []
            stage.change(1, status=StreamStatus.SEALED, epoch=Epoch(3), lost_begin=GLSN(4), lost_end=GLSN(10))
            found: list[int] = []
            reader = log.scan(1, 13)
            ends: list[tuple[int, int]] = []
            while not found or found[-1] < 12:
                try:
                    found += [entry.glsn for batch in [await anext(reader)] for entry in batch]
                except errors.Lost as gone:
                    ends.append((gone.begin, gone.end))
                    reader = log.scan(gone.end, 13)
            assert found == [1, 2, 3, 6, 7, 8, 10, 11, 12]
            assert ends == [(4, 6), (9, 10)]
            with pytest.raises(errors.Lost, match="every copy of 5 to 5 is gone; the log goes on at 6"):
                await log.read(5)
            assert (await log.read(10)).data == b"10"
            stage.stored[LogStreamID(1)] = whole
            with pytest.raises(errors.Lost):
                await log.read(9)
            assert (await log.append(b"13")).log_stream == 2

    run(main())


def test_no_replica_at_all_is_told_in_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            stage.write(1, [b"a"])
            (node,) = stage.nodes.values()
            node.silent = True
            with pytest.raises(errors.DeadlineExceeded, match="no replica brought position 1"):
                await log.read(1, timeout=0.2)
            with pytest.raises(errors.DeadlineExceeded):
                await anext(log.scan(1, 2, timeout=0.2))

    run(main())


def test_a_new_log_stream_is_found_by_who_already_reads(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path, streams=2) as stage:
            second = stage.streams.pop(LogStreamID(2))
            async with varlog.connect(tmp_path) as log:
                stage.write(1, [b"a"])
                subscription = log.subscribe()
                assert (await anext(subscription)).data == b"a"
                stage.streams[LogStreamID(2)] = second
                stage.write(2, [b"b"])
                stage.write(1, [b"c"])
                assert [(await anext(subscription)).data for _ in range(2)] == [b"b", b"c"]

    run(main())


def test_a_read_below_the_known_tail_asks_only_storage_nodes(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Stage.start(tmp_path) as stage, varlog.connect(tmp_path) as log:
            glsn = (await log.append(b"mine")).glsn
            assert (await log.read(glsn)).data == b"mine"
            assert stage.repositories[0].of(GetTail) == []
            stage.write(1, [b"another's"])
            assert (await log.read(2)).data == b"another's"
            assert len(stage.repositories[0].of(GetTail)) == 1

    run(main())
