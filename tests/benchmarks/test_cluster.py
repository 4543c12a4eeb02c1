"""The measures of the cluster: they count what they say they count. How fast anything is, is not asked here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import varlog
from benchmarks import bare_frames, cluster_load, cluster_matrix, cluster_processes, disk_limits, harness, slower_disk
from benchmarks.cluster_load import Appended, Calls, Load, Region
from benchmarks.cluster_rows import asleep_row, between, own_layouts_row
from benchmarks.harness import Row
from varlog.client.log import Log
from varlog.errors import VarlogError


def test_a_limit_is_the_mean_of_what_it_was_before_and_after() -> None:
    limits, values = iter([10.0, 20.0, 40.0]), iter([1.0, 2.0])

    async def next_of(numbers: Callable[[], float]) -> float:
        return numbers()

    pairs = asyncio.run(between(lambda: next_of(values.__next__), lambda: next_of(limits.__next__), 2))
    assert pairs == [(1.0, 15.0), (2.0, 30.0)]


def test_a_window_runs_from_its_first_acknowledgement_to_its_last() -> None:
    calls = Calls()
    ends = [0.5, 1.2, 1.4, 1.6, 2.5]
    for end in ends:
        calls.add(end - 0.1, end)
    seen = calls.window(Load(100, 10, 1), 1.0, 2.0)
    assert seen.batches_per_second == pytest.approx(2 / 0.4)
    assert seen.entries_per_second == pytest.approx(50)
    assert seen.megabytes_per_second == pytest.approx(0.005)
    assert seen.p50 == pytest.approx(0.1)
    assert seen.p99 == pytest.approx(0.1)


def test_a_window_with_too_little_in_it_is_no_figure() -> None:
    with pytest.raises(AssertionError, match="only 0 appends of 100-b10-c1"):
        Calls().window(Load(100, 10, 1), 1.0, 2.0)


def test_the_matrix_has_every_cell_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    results = {cell: Appended(cell.load, 10.0, 0.001, 0.002) for cell in cluster_matrix.CELLS}
    rows = cluster_matrix.rows(results)
    assert len({row.name for row in rows}) == 3 * 4 * 2 * 2 * 2
    assert "matrix-1k-b100-c256-rf3-ls4" in {row.name for row in rows}
    cluster_matrix.show(results)
    assert (tmp_path / "cluster-matrix.png").read_bytes().startswith(b"\x89PNG")


def test_disk_limits_leave_nothing_behind(tmp_path: Path) -> None:
    allowed = os.sched_getaffinity(0)
    assert disk_limits.fdatasync_seconds(tmp_path, 3) > 0
    assert disk_limits.fdatasyncs(tmp_path, 3).keys() == allowed == os.sched_getaffinity(0)
    assert disk_limits.synced_sequential(tmp_path, 2) > 0
    assert disk_limits.append_seconds(tmp_path, replicas=2, samples=3) > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [bare_frames.Awaiting, bare_frames.CallingBack])
def test_bare_frames_are_called(kind: type[bare_frames.Awaiting | bare_frames.CallingBack]) -> None:
    with bare_frames.echo_server() as address:
        assert asyncio.run(bare_frames.calls_per_second(address, 0.05, kind)) > 0


def test_a_process_is_seen_as_the_kernel_sees_it() -> None:
    used = cluster_processes.cpu_seconds(os.getpid())
    assert 0 < used <= cluster_processes.cpu_seconds(os.getpid())
    assert cluster_processes.status_bytes(os.getpid(), "VmHWM") > 1_000_000
    assert cluster_processes.written_bytes(os.getpid()) >= 0
    with pytest.raises(KeyError):
        cluster_processes.status_bytes(os.getpid(), "VmNothing")
    assert set(cluster_processes.CpuUse([]).shares()) == {"client", "others"}


def with_log(path: Path, test: Callable[[Log], Awaitable[None]], streams: int = 1) -> None:
    async def whole() -> None:
        async with varlog.embedded(path, streams=streams) as log:
            await test(log)

    asyncio.run(whole())


@pytest.mark.parametrize("load", [Load(100, 1, 8), Load(100, 10, 4)])
def test_appends_in_a_window_are_in_the_log(load: Load, tmp_path: Path) -> None:
    async def test(log: Log) -> None:
        seen = await cluster_load.append_for(log, load, 0.2, warm_up=0.05)
        assert seen.batches_per_second > 0
        assert 0 < seen.p50 <= seen.p99
        tail = await log.tail()
        sizes = [len(entry.data) async for entry in log.subscribe(1, end=tail + 1)]
        assert set(sizes) == {100, 0}, "what was appended, and what settling appends"

    with_log(tmp_path, test, streams=2)


def test_a_failing_append_is_no_figure(tmp_path: Path) -> None:
    async def test(log: Log) -> None:
        await log.close()
        with pytest.raises(VarlogError):
            await cluster_load.append_for(log, Load(100, 1, 2), 0.2)

    with_log(tmp_path, test)


def test_fewer_replicas_than_there_should_be_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_load, "_WHOLE_SECONDS", 0.3)

    async def test(log: Log) -> None:
        with pytest.raises(cluster_load.ReplicasMissing, match="not 4 replicas"):
            await cluster_load.append_for(log, Load(100, 1, 2), 0.1, replicas=4)
        assert (await cluster_load.append_for(log, Load(100, 1, 2), 0.1, replicas=3)).batches_per_second > 0

    with_log(tmp_path, test)


@pytest.mark.parametrize("epochs", [[2, 4, 4, 4], [2, 4, 4, 6, 6, 8]])
def test_what_was_measured_while_replicas_changed_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: list[int]
) -> None:
    seen = [{(1, epoch, 3)} for epoch in epochs]
    found = iter(
        [sets for before, after in zip(seen[::2], seen[1::2], strict=True) for sets in (before, before, after)]
    )
    monkeypatch.setattr(cluster_load, "_sets_now", lambda _log: next(found))

    async def test(log: Log) -> None:
        window = partial(cluster_load.append_for, log, Load(100, 1, 2), 0.1, warm_up=0.05, replicas=3)
        measuring = cluster_load.again(window)
        if epochs[-1] == epochs[-2]:
            assert (await measuring).batches_per_second > 0
        else:
            with pytest.raises(cluster_load.ReplicasMissing, match="nodes have left their log streams"):
                await measuring
        assert not list(found), "no more windows than it takes"

    with_log(tmp_path, test)


def test_a_region_is_read_whole(tmp_path: Path) -> None:
    async def test(log: Log) -> None:
        begin = await cluster_load.settle(log) + 1
        assert await cluster_load.append_bytes(log, Load(100, 10, 3), 9_500) == 10_000
        region = Region(begin, await log.tail() + 1)
        assert region.end - region.begin == 100
        assert region.part(30) == Region(begin, begin + 30)
        read = await cluster_load.scan(log, region, 100, 0.01)
        assert read.megabytes_per_second == pytest.approx(read.entries_per_second * 100 / 1_000_000)
        assert await cluster_load.iterate(log, region, 0.01) > 0

    with_log(tmp_path, test)


def test_a_subscriber_is_timed_against_append_and_acknowledgement(tmp_path: Path) -> None:
    async def test(log: Log) -> None:
        delivered = await cluster_load.deliver(log, 100, 0.1)
        assert delivered.after_append.p50 > 0
        assert delivered.after_acknowledgement.p50 < delivered.after_append.p50

    with_log(tmp_path, test)


def test_daemons_and_limit_are_on_the_same_slower_disk(tmp_path: Path) -> None:
    """Two syncs, one after the other, are the least that an append takes."""
    usual = os.fdatasync
    row = asyncio.run(slower_disk.latency_row(tmp_path, 0.005, rounds=1, measured=0.5))
    assert row.limit is not None
    assert row.limit >= 5
    assert row.value >= 10
    assert os.fdatasync is usual


@pytest.mark.parametrize("variant", [own_layouts_row, asleep_row])
def test_daemons_that_are_started_in_other_ways_are_measured_as_the_others_are(
    tmp_path: Path, variant: Callable[..., Coroutine[Any, Any, Row]]
) -> None:
    row = asyncio.run(variant(tmp_path, rounds=1, measured=0.5))
    assert row.limit is not None
    assert row.ratio == pytest.approx(row.value / row.limit)
    assert row.met is None
