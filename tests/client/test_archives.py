"""Reading goes on in a topic's archive where the log was trimmed, and back in the log, without a gap or a repeat."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

import varlog
import varlog.sync
from tests.client.archiving import archive
from tests.client.rig import run, until
from varlog import errors, limits
from varlog.client.archives import ArchiveFeed
from varlog.client.columns import SCHEMA
from varlog.oneprocess import EmbeddedCluster

MIB = limits.MIB


@asynccontextmanager
async def opened(path: Path, streams: int = 3) -> AsyncIterator[tuple[varlog.Log, varlog.Admin]]:
    cluster = await EmbeddedCluster.start(path / "cluster", streams=streams)
    async with varlog.connect(path / "cluster") as log, varlog.admin(path / "cluster") as admin:
        yield log, admin
    await cluster.stop()


async def written(log: varlog.Log, count: int, seed: int = 1) -> dict[int, bytes]:
    """Append batches of many sizes on several log streams, and some that hold nothing; what is where."""
    rng = Random(seed)
    expected: dict[int, bytes] = {}
    async with log.appender() as one, log.appender() as other:
        while await log.tail() < count:
            writer = rng.choice((one, other))
            if rng.random() < 0.2:
                await (await writer.append_fill(rng.randint(1, 9)))
            else:
                entries = [b"%d" % rng.randrange(1 << 40) for _ in range(rng.randint(1, 12))]
                result = await (await writer.append_batch(entries))
                expected |= {result.glsn + at: data for at, data in enumerate(entries)}
    return expected


async def read_all(batches: varlog.client.reading.Batches) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    async for batch in batches:
        for entry in batch:
            assert entry.glsn not in found
            assert entry.glsn > max(found, default=0)
            found[entry.glsn] = entry.data
    return found


def test_P1_one_scan_covers_archive_and_log(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (log, admin):
            expected = await written(log, 400)
            tail = await log.tail()
            before: dict[int, varlog.Entry] = {entry.glsn: entry async for entry in log.subscribe(end=tail + 1)}
            await archive(log, tmp_path / "archive", 1, 301, files=4)
            topic = await admin.attach_archive("log", str(tmp_path / "archive"))
            assert topic.archive == str(tmp_path / "archive")
            await log.trim(250)
            scan = log.scan()
            assert await read_all(scan) == expected
            assert (scan.position, scan.filled) == (tail + 1, tail - len(expected))
            for begin, end in ((1, 5), (40, 41), (240, 260), (250, 251), (251, 252), (299, 310), (300, 301), (9, 9)):
                part = log.scan(begin, end)
                wanted = {glsn: data for glsn, data in expected.items() if begin <= glsn < end}
                assert await read_all(part) == wanted
                assert (part.position, part.filled) == (end, end - begin - len(wanted))
            after = {entry.glsn: entry async for entry in log.subscribe(end=tail + 1)}
            assert after == before, "also llsn, log stream and timestamp are the same"
            for glsn in range(1, 260, 13):
                if glsn in expected:
                    assert await log.read(glsn) == before[glsn]
                else:
                    with pytest.raises(errors.Filled):
                        await log.read(glsn)
            assert (await log.first(), await log.earliest()) == (251, 1)

    run(main())


def test_P1_batches_of_an_archive_are_as_those_of_the_log(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (log, admin):
            await written(log, 300)
            of_log = [batch async for batch in log.scan()]
            await archive(log, tmp_path / "archive", 1, await log.tail() + 1)
            await admin.attach_archive("log", str(tmp_path / "archive"))
            await log.trim(await log.tail())
            of_archive = [batch async for batch in log.scan()]
            assert all((batch.epoch, batch.version, batch.writer_timestamp) == (0, 0, 0) for batch in of_archive)
            for batch in of_archive:
                rows = batch.to_arrow()
                assert rows.schema == SCHEMA
                assert rows.column("payload").to_pylist() == batch.payloads() == batch.column().to_pylist()
                assert rows.column("glsn").to_pylist() == list(range(batch.glsn, batch.end))
                assert rows.column("llsn").to_pylist() == list(range(batch.llsn, batch.llsn + len(batch)))
                assert set(rows.column("log_stream").to_pylist()) == {batch.log_stream}
                assert [entry.timestamp for entry in batch] == [batch.time] * batch.count
                assert batch.nbytes > 0
                assert f"{batch.count} from {batch.glsn}" in repr(batch)
            columns = [[entry for batch in batches for entry in batch] for batches in (of_log, of_archive)]
            assert columns[0] == columns[1]
            whole = log.scan().whole()
            parts = [batch async for batch in whole]
            assert len(parts) < len(of_archive)
            assert [entry for batch in parts for entry in batch] == columns[0]
            assert {(batch.log_stream, batch.llsn, batch.time) for batch in parts} == {(0, 0, 0)}
            assert (whole.position, whole.filled) == (await log.tail() + 1, await log.tail() - len(columns[0]))

    run(main())


def test_P1_a_trim_that_overtakes_a_scan_sends_it_to_the_archive(tmp_path: Path) -> None:
    """Of the large entries only some are read ahead; the rest is gone from the log when they are asked for."""

    async def main() -> None:
        async with opened(tmp_path, streams=2) as (log, admin):
            for number in range(40):
                await log.append(bytes([number]) * MIB)
            await archive(log, tmp_path / "archive", 1, 36, files=5)
            scan, subscription = log.scan(), log.subscribe()
            assert (await anext(scan)).payloads()[0][0] == 0
            assert (await anext(subscription)).data[0] == 0
            await admin.attach_archive("log", str(tmp_path / "archive"))
            await log.trim(30)
            assert [batch.payloads()[0][0] async for batch in scan] == list(range(1, 40))
            assert scan.position == 41
            for number in range(1, 40):
                entry = await anext(subscription)
                assert (entry.glsn, entry.data[0]) == (number + 1, number)
            await log.append(b"later")
            assert (await anext(subscription)).data == b"later"
            await subscription.aclose()

    run(main())


def test_P1_a_reader_follows_an_archive_that_grows_while_the_log_is_trimmed(tmp_path: Path) -> None:
    """Whatever is archived and trimmed meanwhile, it sees every position once."""

    async def main() -> None:
        async with opened(tmp_path) as (log, admin):
            expected = await written(log, 200)
            path = tmp_path / "archive"
            await archive(log, path, 1, 21)
            await admin.attach_archive("log", str(path))
            subscription, found, end = log.subscribe(), [], 21
            for glsn in sorted(expected)[:60]:
                if glsn + 10 > end and end < 150:
                    made = await archive_on(log, path, end, end + 25)
                    await log.trim(made - 5)
                    end = made
                entry = await anext(subscription)
                assert entry.data == expected[entry.glsn]
                found.append(entry.glsn)
            assert found == sorted(expected)[:60]
            await subscription.aclose()
            assert await read_all(log.scan()) == expected

    run(main())


async def archive_on(log: varlog.Log, path: Path, begin: int, end: int) -> int:
    await archive(log, path, begin, end, files=1)
    return end


def test_what_neither_has_is_told_with_the_range(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (log, admin):
            await log.append_batch([b"%d" % number for number in range(100)])
            await archive(log, tmp_path / "archive", 11, 41)
            await admin.attach_archive("log", str(tmp_path / "archive"))
            await log.trim(60)
            with pytest.raises(errors.Trimmed, match=r"4 to 10 are neither in the log nor in its archive") as early:
                await anext(log.scan(4))
            assert (early.value.begin, early.value.first) == (4, 11)
            scan = log.scan(30)
            assert [len(await anext(scan))] == [11]
            with pytest.raises(errors.Trimmed, match=r"41 to 60 are neither in the log nor in its archive") as late:
                await anext(scan)
            assert (late.value.begin, late.value.first) == (41, 61)
            assert await log.earliest() == 61, "from there on nothing is missing"
            with pytest.raises(errors.Trimmed):
                await log.read(50)
            assert (await log.read(40)).data == b"39"
            await admin.detach_archive("log")
            async with varlog.connect(tmp_path / "cluster") as fresh:
                with pytest.raises(errors.Trimmed, match="now begins at 61") as without:
                    await fresh.read(40)
            assert (without.value.begin, without.value.first) == (40, 61)

    run(main())


def test_only_an_archive_of_the_topic_is_attached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (log, admin):
            await log.append(b"one")
            await archive(log, tmp_path / "other", 1, 2, files=1, tpid=9)
            (tmp_path / "empty").mkdir()
            (tmp_path / "file").write_text("no archive")
            for place, error in (
                (tmp_path / "nowhere", errors.NoArchive),
                (tmp_path / "empty", errors.NoArchive),
                (tmp_path / "other", errors.WrongIdentity),
            ):
                with pytest.raises(error):
                    await admin.attach_archive("log", str(place))
            for uri in (str(tmp_path / "file"), "", "nothing://there"):
                with pytest.raises(errors.VarlogError):
                    await admin.attach_archive("log", uri)
            with pytest.raises(errors.UnknownTopic):
                await admin.attach_archive("none", str(tmp_path / "other"))
            with pytest.raises(errors.UnknownTopic):
                await admin.detach_archive("none")
            await archive(log, tmp_path / "own", 1, 2, files=1)
            monkeypatch.chdir(tmp_path)
            assert (await admin.attach_archive("log", "own/")).archive == str(tmp_path / "own")
            assert log.topic.archive == "", "what it knows may be old"
            await log.refresh()
            assert log.topic.archive == str(tmp_path / "own")
            assert (await admin.detach_archive("log")).archive == ""
            assert (await admin.detach_archive("log")).archive == ""

    run(main())


def flip_a_bit(path: Path) -> bytes:
    """Damage a file; what it was."""
    sound = path.read_bytes()
    path.write_bytes(sound[:200] + bytes([sound[200] ^ 1]) + sound[201:])
    return sound


def remove(path: Path) -> None:
    path.unlink()


def restore(path: Path, sound: bytes) -> None:
    path.write_bytes(sound)


def test_a_damaged_or_missing_archive_is_told_and_never_read_as_data(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (log, admin):
            await log.append_batch([b"%d" % number for number in range(1000)])
            made = await archive(log, tmp_path / "archive", 1, 901, files=3)
            await admin.attach_archive("log", str(tmp_path / "archive"))
            await log.trim(900)
            second = Path(made.path(made.ranges[1]))
            sound = flip_a_bit(second)
            scan = log.scan()
            with pytest.raises(errors.BrokenArchive, match=second.name):
                await read_all(scan)
            assert scan.position == 301
            with pytest.raises(errors.BrokenArchive):
                await anext(scan)
            remove(second)
            with pytest.raises(errors.BrokenArchive, match="is not there"):
                await log.read(400)
            restore(second, sound)
            assert (await log.read(400)).data == b"399"
            (tmp_path / "archive").rename(tmp_path / "moved")
            async with varlog.connect(tmp_path / "cluster") as fresh:
                with pytest.raises(errors.NoArchive):
                    await fresh.read(400)
                assert (await fresh.read(901)).data == b"900", "the log itself is as it was"

    run(main())


# Threads


def test_the_loop_goes_on_while_an_archive_is_slow(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (log, admin):
            await log.append_batch([b"%d" % number for number in range(100)])
            await archive(log, tmp_path / "archive", 1, 51)
            await admin.attach_archive("log", str(tmp_path / "archive"))
            await log.trim(50)
            assert (await log.read(1)).data == b"0"
            busy = threading.Event()
            with ThreadPoolExecutor(1) as executor:
                loop = asyncio.get_running_loop()
                loop.set_default_executor(executor)
                executor.submit(busy.wait)
                scan = log.scan(timeout=0.2)
                with pytest.raises(errors.DeadlineExceeded, match="did not bring position 1 within"):
                    await anext(scan)
                assert (await log.append(b"meanwhile")).glsn == 101
                assert (await log.read(60)).data == b"59"
                waiting = asyncio.ensure_future(anext(log.subscribe(10)))
                closing = log.scan(20)
                waiting_too = asyncio.ensure_future(anext(closing))
                await until(lambda: len(log._archives._feeds) == 3)
                closing.close()
                with pytest.raises(errors.Closed):
                    await waiting_too
                busy.set()
                assert (await anext(scan)).glsn == 1, "it goes on where it was"
                assert (await waiting).data == b"9"
                assert [batch.end async for batch in scan][-1] == 101

    run(main())


def test_a_closed_log_ends_what_reads_its_archive(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (log, admin):
            await log.append_batch([b"%d" % number for number in range(100)])
            await archive(log, tmp_path / "archive", 1, 51)
            await admin.attach_archive("log", str(tmp_path / "archive"))
            await log.trim(50)
            async with varlog.connect(tmp_path / "cluster") as other:
                assert (await other.read(1)).data == b"0"
                busy = threading.Event()
                with ThreadPoolExecutor(1) as executor:
                    asyncio.get_running_loop().set_default_executor(executor)
                    executor.submit(busy.wait)
                    reading = asyncio.ensure_future(other.read(2))
                    await until(lambda: len(other._archives._feeds) == 1)
                    await other.close()
                    with pytest.raises(errors.Closed):
                        await reading
                    busy.set()
                with pytest.raises(errors.Closed):
                    await anext(other.scan())

    run(main())


def test_a_slow_reader_stops_the_reading_of_an_archive(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (log, admin):
            for number in range(40):
                await log.append(bytes([number]) * MIB)
            await archive(log, tmp_path / "archive", 1, 41, files=4)
            await admin.attach_archive("log", str(tmp_path / "archive"))
            await log.trim(40)
            scan = log.scan()
            await anext(scan)
            feed = scan._source
            assert isinstance(feed, ArchiveFeed)
            await until(lambda: not feed._is_reading)
            assert MIB < feed._held <= limits.CLIENT_READ_AHEAD_BYTES + 5 * MIB
            assert feed._read_to < 30, "most of it was not read"
            assert [batch.payloads()[0][0] async for batch in scan] == list(range(1, 40))

    run(main())


def test_without_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (log, _):
            expected = await written(log, 100)
            await archive(log, tmp_path / "archive", 1, 81)

            def work() -> None:
                with varlog.sync.admin(tmp_path / "cluster") as admin:
                    assert admin.attach_archive("log", str(tmp_path / "archive")).archive
                with varlog.sync.connect(tmp_path / "cluster") as blocking:
                    blocking.trim(70)
                    assert {entry.glsn: entry.data for batch in blocking.scan() for entry in batch} == expected
                    assert {entry.glsn for batch in blocking.scan().whole() for entry in batch} == set(expected)
                    first = blocking.read(min(expected))
                    assert blocking.find_time(first.timestamp) == first.glsn
                    assert blocking.earliest() == 1
                with varlog.sync.admin(tmp_path / "cluster") as admin:
                    assert admin.detach_archive("log").archive == ""

            await asyncio.to_thread(work)

    run(main())
