"""The rows of metadata in etcd: each function measures one or some, with the limit they are held against.

`cluster_on` is what an operator would run: three metadata repositories on an etcd of three members, two managers, three
storage nodes, all with their defaults. Traffic and judgement of the runs with faults are those of `faults_runs`; loads
are those of `cluster_load`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final, NamedTuple

import varlog
from benchmarks import cluster_load
from benchmarks.cluster_load import Load
from benchmarks.faults_load import first_answer
from benchmarks.faults_runs import AFTER, CLIENT_SECONDS, LOOK_SECONDS, ORDER_SECONDS, Outcome, Stage
from benchmarks.harness import Row, against_limit
from varlog.client.log import Log
from varlog.core.messages import Standing
from varlog.core.store import Committed, Compare, MetadataStore, Put, ReadResult, Txn
from varlog.etcdserver import EtcdCluster
from varlog.metarepo.etcd.store import EtcdStore
from varlog.metarepo.stores import open_etcd
from varlog.processes import Daemon, LocalCluster

REPOSITORIES: Final = 3
MANAGERS: Final = 2
ROUNDS: Final = 5
SECONDS: Final = 2.0
"""Of each load."""
TXN_SECONDS: Final = 1.0
TXN_BYTES: Final = 128
"""About what a cut of one log stream is."""
ALONE: Final = Load(100, 1, 1)
MANY: Final = Load(100, 100, 256)
SETTLE_SECONDS: Final = 5.0
IDLE_SECONDS: Final = 60.0
WITHIN: Final = 3.0
"""Seconds without a leader, at most."""


def cluster_on(
    etcd: EtcdCluster, directory: Path, repositories: int = REPOSITORIES, managers: int = MANAGERS
) -> LocalCluster:
    return LocalCluster(
        directory,
        store=etcd.url(directory.name),
        repositories=repositories,
        managers=managers,
        any_version=not etcd.program.is_sound,
    )


@asynccontextmanager
async def store_on(etcd: EtcdCluster) -> AsyncIterator[EtcdStore]:
    """As a metadata repository has it, with keys of its own."""
    store = await open_etcd(etcd.url("measured"), any_version=not etcd.program.is_sound)
    try:
        yield store
    finally:
        await store.close()


async def ask(call: Callable[..., None], *args: Any) -> Any:
    """The outcome of a call of a store."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    call(*args, answer.set_result)
    return await asyncio.wait_for(answer, CLIENT_SECONDS)


# Without its leader


async def standings(stage: Stage) -> dict[str, Standing]:
    """All metadata repositories, once all of them stand: they agree on who leads and hear every storage node."""
    async with asyncio.timeout(ORDER_SECONDS):
        while True:
            found = await stage.operator.repositories(timeout=CLIENT_SECONDS)
            standing = {address: one for address, one in found.items() if isinstance(one, Standing)}
            leaders = {one.leader for one in standing.values()}
            heard = min(one.nodes for one in standing.values()) if standing else 0
            if len(standing) == len(found) and len(leaders) == 1 and heard == len(stage.cluster.nodes):
                (leader,) = leaders
                if leader in standing and standing[leader].role == "leading":
                    return standing
            await asyncio.sleep(LOOK_SECONDS)


async def leader_of(stage: Stage) -> Daemon:
    leader = next(iter((await standings(stage)).values())).leader
    return next(daemon for daemon in stage.cluster.vmrs if daemon.address == leader)


async def kill(leader: Daemon) -> None:
    await leader.kill()


async def start(leader: Daemon) -> None:
    await leader.start()


async def pause(leader: Daemon) -> None:
    leader.send(signal.SIGSTOP)


async def resume(leader: Daemon) -> None:
    leader.send(signal.SIGCONT)


class Fault(NamedTuple):
    """What befalls the leader, and how it ends."""

    row: str
    begin: Callable[[Daemon], Awaitable[None]]
    end: Callable[[Daemon], Awaitable[None]]


KILL: Final = Fault("leader-kill", kill, start)
PAUSE: Final = Fault("leader-pause", pause, resume)


async def without_leader(stage: Stage, fault: Fault, runs: int) -> None:
    """Let it befall whoever leads, again and again; it is over only after appends go on without the leader."""
    for _ in range(runs):
        leader = await leader_of(stage)
        async with stage.run():
            began = perf_counter()
            await fault.begin(leader)
            done = perf_counter()
            while not any(ack.asked > done for ack in stage.traffic.acks):
                await stage.answered(perf_counter())
            await asyncio.sleep(AFTER)
            stage.note(fault.row, first_answer(stage.traffic.acks, began, done), began)
            await fault.end(leader)
            await standings(stage)


def fault_rows(fault: Fault, outcome: Outcome) -> list[Row]:
    """The worst of the runs, and what went wrong in any."""
    values = sorted(outcome.figures[fault.row].values)
    note = f"the worst of {len(values)} runs; median {median(values):.3f} s"
    verdict = outcome.verdict
    wrong = verdict.lost + verdict.repeated + verdict.reordered
    judged = f"lost, repeated or reordered of {verdict.acknowledged:,} acknowledged; {verdict.failed} appends failed"
    return [
        Row(fault.row, values[-1], "s", op="<=", target=WITHIN, note=note),
        Row(f"{fault.row}-wrong", wrong, "entries", op="<=", target=0, note=judged),
    ]


# Beside an embedded journal


class Sides(NamedTuple):
    """The same cluster with its metadata in an embedded journal and in etcd, and the etcd by itself."""

    embedded: Log
    on_etcd: Log
    store: MetadataStore


class Times(NamedTuple):
    """Of one round, in seconds: medians of appends one at a time, and of transactions."""

    embedded: float
    txn: float
    on_etcd: float


@asynccontextmanager
async def sides(directory: Path) -> AsyncIterator[Sides]:
    async with (
        EtcdCluster(directory / "etcd") as etcd,
        LocalCluster(directory / "embedded") as embedded,
        cluster_on(etcd, directory / "shared") as shared,
        varlog.connect(embedded.path, timeout=CLIENT_SECONDS) as one,
        varlog.connect(shared.path, timeout=CLIENT_SECONDS) as other,
        store_on(etcd) as store,
    ):
        yield Sides(one, other, store)


async def txn_seconds(store: MetadataStore, seconds: float) -> float:
    """The median time of a transaction that compares a key and puts it, when it is the only one."""
    times: list[float] = []
    found = await ask(store.read, ("counted",))
    assert isinstance(found, ReadResult)
    revision = found.kvs["counted"].revision if found.kvs else 0
    until = perf_counter() + seconds
    while perf_counter() < until:
        txn = Txn((Compare("counted", revision),), (Put("counted", os.urandom(TXN_BYTES)),))
        began = perf_counter()
        outcome = await ask(store.txn, txn)
        times.append(perf_counter() - began)
        assert isinstance(outcome, Committed)
        revision = outcome.revision
    return median(times)


async def latency_row(found: Sides, rounds: int = ROUNDS, seconds: float = SECONDS) -> Row:
    times: list[Times] = []
    for _ in range(rounds + 1):
        embedded = (await cluster_load.append_for(found.embedded, ALONE, seconds)).p50
        txn = await txn_seconds(found.store, min(TXN_SECONDS, seconds))
        times.append(Times(embedded, txn, (await cluster_load.append_for(found.on_etcd, ALONE, seconds)).p50))
    return latency(times[1:])


def latency(times: Sequence[Times]) -> Row:
    pairs = [(one.on_etcd * 1e3, (one.embedded + 2 * one.txn) * 1e3) for one in times]
    row = against_limit("latency-etcd", "ms", pairs, "embedded + 2 transactions", "<=", 1)
    shown = times[[value for value, _ in pairs].index(row.value)]
    return replace(row, note=f"medians; embedded {shown.embedded * 1e3:.2f} ms, transaction {shown.txn * 1e3:.2f} ms")


async def throughput_row(found: Sides, rounds: int = ROUNDS, seconds: float = SECONDS, load: Load = MANY) -> Row:
    rates = []
    for _ in range(rounds + 1):
        embedded = (await cluster_load.append_for(found.embedded, load, seconds)).entries_per_second
        rates.append(((await cluster_load.append_for(found.on_etcd, load, seconds)).entries_per_second, embedded))
    row = against_limit("throughput-etcd", "entries/s", rates[1:], "embedded", ">=", 0.7)
    return replace(row, note=f"100 B x 100, {load.in_flight} in flight")


# Without work


async def idle_row(
    store: MetadataStore, log: Log, seconds: float = IDLE_SECONDS, settle: float = SETTLE_SECONDS
) -> Row:
    """How many revisions etcd makes: every write that changes anything makes one, and a lease kept alive none."""
    await log.append(b"the last one")
    await asyncio.sleep(settle)
    before = await ask(store.read, ())
    await asyncio.sleep(seconds)
    after = await ask(store.read, ())
    assert isinstance(before, ReadResult)
    assert isinstance(after, ReadResult)
    note = f"revisions in {seconds:g} s, {settle:g} s after an append; a client is connected"
    return Row(
        "idle-etcd", (after.revision - before.revision) * 60 / seconds, "writes/min", op="<=", target=0, note=note
    )
