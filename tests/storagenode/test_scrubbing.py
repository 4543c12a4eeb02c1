"""The scrub: it finds what nobody reads, goes slowly, and gets out of the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.replica import Replica as CoreReplica
from tests.daemon.small import cluster, run, until
from tests.storage.owner import Owner, options
from tests.storagenode.test_fingerprinting import flip, segment_of
from varlog import errors
from varlog.core.messages import RemoveLogStream, ReplicaReply, Scrub, ScrubState
from varlog.storage.files import OSFileSystem
from varlog.storage.grouped import AnyLog
from varlog.storage.log import LogStreamStorage
from varlog.storagenode import scrubbing
from varlog.storagenode.replicas import Replica
from varlog.storagenode.scrubbing import Pace, Scrubbing
from varlog.types import LogStreamID, StorageNodeID
from varlog.wire import Role

FAST, SLOW = 100_000.0, 1e-6
"""Megabytes in a second."""


class Shelves:
    """Replicas of several segments, and a scrub of them."""

    def __init__(self, path: Path, count: int = 1, rate: float = FAST) -> None:
        self.owners = [
            Owner(OSFileSystem(), options(4096), path=str(path / f"log-{number}")) for number in range(count)
        ]
        self._replicas: dict[LogStreamID, Replica] = {}
        for number, owner in enumerate(self.owners, 1):
            owner.unseal()
            for _ in range(40):
                owner.store(3, 40)
            executor = CoreReplica().executor
            executor.lsid = LogStreamID(number)
            self._replicas[executor.lsid] = Replica("", owner.storage, executor)
        self.released: list[tuple[LogStreamStorage, errors.Corrupt | None]] = []
        self.scrubbing = Scrubbing(StorageNodeID(2), self, rate, lambda *what: self.released.append(what))  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def __len__(self) -> int:
        return len(self._replicas)

    def get(self, lsid: LogStreamID) -> Replica | None:
        return self._replicas.get(lsid)

    def segments(self, number: int = 0) -> list[Path]:
        return sorted(Path(self.owners[number].path).glob("*.seg"))

    def close(self) -> None:
        for owner in self.owners:
            owner.storage.close()


def test_a_pass_reads_every_replica_and_finds_nothing_in_sound_ones(tmp_path: Path) -> None:
    async def main() -> None:
        shelves = Shelves(tmp_path, 3)
        await shelves.scrubbing.go_through()
        assert {storage for storage, _ in shelves.released} == {owner.storage for owner in shelves.owners}
        assert {damage for _, damage in shelves.released} == {None}
        assert shelves.scrubbing.passes == 1
        shelves.close()

    run(main())


def test_what_was_read_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "STRIDE_BYTES", 1)
    monkeypatch.setattr(scrubbing, "CPU_SHARE", 1.0)

    async def main() -> None:
        shelves = Shelves(tmp_path)
        stored = sum(segment.stat().st_size for segment in shelves.segments()[:-1])
        await shelves.scrubbing.go_through()
        assert 0.7 * stored < shelves.scrubbing.bytes < 1.5 * stored
        shelves.close()

    run(main())


@pytest.mark.parametrize("content", [b":3:", b":15:", b":40:"], ids=["first segment", "second", "newest"])
def test_rule15_a_flipped_bit_that_nobody_reads_is_found(tmp_path: Path, content: bytes) -> None:
    async def main() -> None:
        shelves = Shelves(tmp_path, 2)
        segment = next(segment for segment in shelves.segments(1) if content in segment.read_bytes())
        flip(segment, content)
        await shelves.scrubbing.go_through()
        found = dict(shelves.released)
        damage = found[shelves.owners[1].storage]
        assert found[shelves.owners[0].storage] is None
        assert damage is not None
        assert damage.segment == segment.name
        shelves.close()

    run(main())


def test_a_file_that_is_gone_is_found(tmp_path: Path) -> None:
    async def main() -> None:
        shelves = Shelves(tmp_path)
        shelves.segments()[0].unlink()
        await shelves.scrubbing.go_through()
        ((_, damage),) = shelves.released
        assert damage is not None
        shelves.close()

    run(main())


def test_a_replica_in_need_of_repair_is_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        shelves = Shelves(tmp_path)
        next(iter(shelves)).executor.on_corrupt()
        await shelves.scrubbing.go_through()
        assert not shelves.released
        shelves.close()

    run(main())


def test_it_may_run_while_the_log_is_written_and_trimmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "STRIDE_BYTES", 256)
    monkeypatch.setattr(scrubbing, "CPU_SHARE", 0.1)

    async def main() -> None:
        shelves = Shelves(tmp_path, rate=0.1)
        owner = shelves.owners[0]
        under_way = asyncio.ensure_future(shelves.scrubbing.go_through())
        while not under_way.done():
            owner.store(3, 400)
            owner.trim(owner.model.hwm - 60)
            owner.flush()
            await asyncio.wait({under_way}, timeout=0.001)
        assert [damage for _, damage in shelves.released] == [None]
        shelves.close()

    run(main())


def test_it_reads_no_faster_than_it_may() -> None:
    pace = Pace(50e6)
    began = time.monotonic()
    for _ in range(1000):
        pace(10_000)
    assert time.monotonic() - began > 0.9 * (pace.bytes - scrubbing.STRIDE_BYTES) / 50e6
    assert pace.bytes > 9_000_000


def test_it_uses_no_more_of_a_core_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "CPU_SHARE", 0.1)
    pace = Pace(1e12)
    pace(1)
    began, cpu = time.monotonic(), time.thread_time()
    while time.monotonic() - began < 0.5:
        sum(range(100_000))
        pace(scrubbing.STRIDE_BYTES)
    assert time.thread_time() - cpu < 0.2 * (time.monotonic() - began)


def test_who_closes_a_replica_waits_for_a_moment_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "STRIDE_BYTES", 1)

    async def main() -> None:
        shelves = Shelves(tmp_path, 2, rate=SLOW)
        under_way = asyncio.ensure_future(shelves.scrubbing.go_through())
        read = await _begun(shelves)
        (other,) = [owner.storage for owner in shelves.owners if owner.storage is not read]
        assert shelves.scrubbing.vacate(other), "nobody reads there"
        assert not shelves.scrubbing.vacate(read)
        await until(lambda: bool(shelves.released))
        assert shelves.released == [(read, None)]
        assert shelves.scrubbing.vacate(read)
        await until(lambda: not shelves.scrubbing.vacate(other))
        await under_way
        shelves.close()

    run(main())


async def _begun(shelves: Shelves) -> AnyLog:
    """What is read at present."""
    await until(lambda: shelves.scrubbing._reading is not None)
    assert shelves.scrubbing._reading is not None
    return shelves.scrubbing._reading[0]


def test_passes_begin_by_themselves_and_stopping_ends_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "FIRST_SECONDS", -10 * scrubbing.SPREAD_SECONDS)
    monkeypatch.setattr(scrubbing, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(scrubbing, "STRIDE_BYTES", 1)
    monkeypatch.setattr(scrubbing, "CPU_SHARE", 1.0)

    async def live(rate: float) -> None:
        shelves = Shelves(tmp_path / str(rate), rate=rate)
        shelves.scrubbing.start()
        if rate == FAST:
            await until(lambda: shelves.scrubbing.passes > 1)
        elif rate == SLOW:
            await _begun(shelves)
        await shelves.scrubbing.stop()
        assert rate or not shelves.released, "0 is never"
        shelves.close()

    for rate in (FAST, SLOW, 0.0):
        run(live(rate))


def test_waiting_for_the_first_pass_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        shelves = Shelves(tmp_path)
        shelves.scrubbing.start()
        await shelves.scrubbing.stop()
        shelves.close()

    run(main())


def test_M8_a_node_condemns_what_its_scrub_finds(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            assert (await small.append(b"some content")).code == 0
            for manager in list(small.managers):
                await small.stop_manager(manager)
            segment = segment_of(small.volumes(2)[0])
            flip(segment, b"some content")
            await small.nodes[2].scrubbing.go_through()
            (replica,) = (await small.info(2)).replicas
            assert (replica.healthy, replica.fault) == (False, errors.Corrupt.code)
            assert (segment.parent / "condemned").exists()
            for sound in (1, 3):
                await small.nodes[sound].scrubbing.go_through()
                assert (await small.info(sound)).replicas[0].healthy

    run(main())


def test_a_replica_is_removed_while_it_is_scrubbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "STRIDE_BYTES", 1)

    async def main() -> None:
        async with cluster(tmp_path) as small:
            for manager in list(small.managers):
                await small.stop_manager(manager)
            scrub = small.nodes[2].scrubbing
            scrub._rate = 1.0
            under_way = asyncio.ensure_future(scrub.go_through())
            await until(lambda: scrub._reading is not None)
            caller = await small.call_node(2, Role.MANAGER)
            removed = await caller.ask(ReplicaReply, lambda request: RemoveLogStream(request, LogStreamID(1)))
            assert removed.code == 0
            await under_way
            assert not (await small.info(2)).replicas

    run(main())


def test_an_operator_has_a_pass_begin_at_once(tmp_path: Path) -> None:
    """Also on a node where none begins by itself."""

    async def main() -> None:
        shelves = Shelves(tmp_path, count=2, rate=0.0)
        shelves.scrubbing.start()
        idle = shelves.scrubbing.answer(Scrub(1))
        assert (idle.passes, idle.is_under_way, idle.left, idle.bytes) == (0, False, 0, 0)
        begun = shelves.scrubbing.answer(Scrub(2, begin=True))
        assert (begun.passes, begun.is_under_way, begun.left) == (0, True, 2)
        await until(lambda: shelves.scrubbing.answer(Scrub(3)).passes == 1)
        ended = shelves.scrubbing.answer(Scrub(4))
        assert (ended.is_under_way, ended.left, ended.damaged) == (False, 0, ())
        stored = sum(path.stat().st_size for number in (0, 1) for path in shelves.segments(number))
        assert 0.9 * stored < ended.bytes <= stored, "but for room that is not written to yet"
        await shelves.scrubbing.stop()
        shelves.close()

    run(main())


def test_a_pass_that_is_under_way_hurries_for_an_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "STRIDE_BYTES", 2048)

    async def main() -> None:
        shelves = Shelves(tmp_path, count=2, rate=SLOW)
        under_way = asyncio.ensure_future(shelves.scrubbing.go_through())
        await _begun(shelves)
        assert shelves.scrubbing.answer(Scrub(1, begin=True)).is_under_way
        await under_way
        assert shelves.scrubbing.answer(Scrub(2)).passes == 1
        shelves.close()

    run(main())


def test_rule15_what_a_pass_has_found_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as small:
            assert (await small.append(b"some content")).code == 0
            flip(segment_of(small.volumes(2)[0]), b"some content")
            client = await small.call_node(2)
            await client.ask(ScrubState, lambda request: Scrub(request, begin=True))
            state = await client.ask(ScrubState, Scrub)
            while state.passes == 0:
                state = await client.ask(ScrubState, Scrub)
            assert (state.snid, state.damaged) == (2, (1,))

    run(main())
