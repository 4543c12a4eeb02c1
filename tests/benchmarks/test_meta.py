"""The measures of metadata in etcd: they count what they say they count. How fast anything is, is not asked here."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import varlog
from benchmarks import harness, meta, meta_rows
from benchmarks.cluster_load import Load
from benchmarks.faults_load import Verdict
from benchmarks.faults_runs import Figures, Outcome, stage
from benchmarks.meta_rows import KILL, PAUSE, Sides, Times, ask
from varlog.core.store import Put, Txn
from varlog.etcdserver import EtcdCluster

FEW = Load(100, 10, 4)


def test_rows_are_measured_from_a_cluster_on_etcd(etcd: EtcdCluster, tmp_path: Path) -> None:
    async def measured() -> None:
        cluster = meta_rows.cluster_on(etcd, tmp_path / "shared", repositories=2, managers=1)
        async with (
            varlog.embedded(tmp_path / "embedded") as embedded,
            meta_rows.store_on(etcd) as store,
            stage(cluster, lambda _: None) as here,
        ):
            for fault in (KILL, PAUSE):
                before = await meta_rows.leader_of(here)
                await meta_rows.without_leader(here, fault, 1)
                assert await meta_rows.leader_of(here) is not before
                assert before.alive
            for fault in (KILL, PAUSE):
                time, wrong = meta_rows.fault_rows(fault, here.outcome)
                assert time.value > 0
                assert (wrong.value, wrong.met) == (0, True)
            found = Sides(embedded, here.log, store)
            latency = await meta_rows.latency_row(found, rounds=1, seconds=1.5)
            assert latency.value > 0
            rate = await meta_rows.throughput_row(found, rounds=1, seconds=1.5, load=FEW)
            assert rate.value > 0
            idle = await meta_rows.idle_row(store, here.log, seconds=1.0, settle=1.0)
            assert (idle.value, idle.met) == (0, True)

    asyncio.run(measured())


def test_a_write_to_etcd_is_counted(etcd: EtcdCluster, tmp_path: Path) -> None:
    async def counted() -> None:
        async with varlog.embedded(tmp_path) as log, meta_rows.store_on(etcd) as store:
            idle = asyncio.create_task(meta_rows.idle_row(store, log, seconds=1.0, settle=0.0))
            while not idle.done():
                await ask(store.txn, Txn(puts=(Put("somebody", b"writes"),)))
            row = await idle
            assert row.value > 60
            assert not row.met

    asyncio.run(counted())


def test_an_append_may_take_as_long_as_an_embedded_one_and_two_transactions() -> None:
    row = meta_rows.latency([Times(0.001, 0.002, 0.004), Times(0.001, 0.002, 0.006), Times(0.001, 0.002, 0.005)])
    assert (row.value, row.limit, row.ratio, row.met) == (5.0, 5.0, 1.0, True)
    assert row.note == "medians; embedded 1.00 ms, transaction 2.00 ms"


def test_the_worst_run_counts() -> None:
    outcome = Outcome(Verdict(7, lost=1, reordered=1), {KILL.row: Figures([1.0, 4.0, 2.0])})
    time, wrong = meta_rows.fault_rows(KILL, outcome)
    assert (time.name, time.value, time.met) == ("leader-kill", 4.0, False)
    assert (wrong.value, wrong.met) == (2, False)


def test_rows_that_are_not_measured_again_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    assert not meta.kept()
    rows = [harness.Row("idle-etcd", 0, "writes/min", op="<=", target=0, note="idle")]
    assert harness.report("meta", rows) == 0
    assert meta.kept() == {"idle-etcd": rows[0]}
