"""What clusters on etcd go through under load, each as a function, for tests and for the soak: metadata repositories,
members of etcd and managers that die, hang or are cut off.

Whatever becomes of one of them, appends go on by themselves before it is back; only without a majority of etcd they
wait for it. That a deposed leader changes nothing is seen where it speaks: no transaction of its succeeds, and the
chronicle knows every commit that any leader told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final, NamedTuple

from tests.cluster.load import Load
from tests.cluster.on_etcd import ClusterOnEtcd
from tests.cluster.processes import Daemon
from tests.cluster.proxy import BreakingProxy, Direction
from tests.cluster.repairs import goes_on_without, has_all
from tests.cluster.scenarios import live_through_on
from tests.cluster.waiting import pause, until
from tests.metarepo.etcds import leader_of
from varlog import limits
from varlog.etcdserver import EtcdCluster, EtcdMember
from varlog.sim.evidence import Evidence
from varlog.sim.history import Kind, Outcome

MetaScenario = Callable[[ClusterOnEtcd, Load, Random], Awaitable[None]]

GOES_ON_SECONDS: Final = 15.0
"""So soon appends go on without whoever is gone; many processes share few processors here."""
SHORT_PAUSE: Final = 3.0
LONG_PAUSE: Final = 15.0
LOST_MAJORITY_SECONDS: Final = 3.0
SETTLED_SECONDS: Final = 4.0
"""Everybody has noticed by then who is not heard any more."""
UNKNOWNS: Final = 8
LATE_SECONDS: Final = 1.3 * limits.ETCD_SECONDS


async def live_through_on_etcd(
    scenarios: tuple[MetaScenario, ...],
    directory: Path,
    etcd: EtcdCluster,
    *,
    seed: int = 1,
    repositories: int = 2,
    managers: int = 2,
    trims: bool = False,
) -> Evidence:
    """One after another on one cluster."""
    cluster = ClusterOnEtcd(directory, etcd, repositories=repositories, managers=managers)

    async def all_of_them(_: object, load: Load, rng: Random) -> None:
        for scenario in scenarios:
            await scenario(cluster, load, rng)

    return await live_through_on(cluster, all_of_them, seed=seed, trims=trims)


async def another_leads(cluster: ClusterOnEtcd, load: Load, before: int) -> None:
    """Somebody leads in a later term than that, and appends go on, of every client, within the deadline."""
    async with asyncio.timeout(GOES_ON_SECONDS):
        await cluster.chronicle.begins(before)
        await load.grows(10)


# Metadata repositories


async def kill_leader(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    leader, term = await cluster.leader(), cluster.chronicle.term
    await cluster.kill(leader)
    await another_leads(cluster, load, term)
    await cluster.start(leader)
    await load.grows(10)


async def kill_standby(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    """Nobody notices."""
    leader, term = await cluster.leader(), cluster.chronicle.term
    standbys = [daemon for daemon in cluster.repositories if daemon is not leader]
    await cluster.kill(*standbys)
    await load.grows()
    await cluster.start(*standbys)
    assert cluster.chronicle.term == term


async def stop_leader(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    """In good order, as for an upgrade."""
    leader, term = await cluster.leader(), cluster.chronicle.term
    assert await leader.stop() == 0
    await another_leads(cluster, load, term)
    await cluster.start(leader)


async def kill_all_repositories(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    term = cluster.chronicle.term
    await cluster.kill(*cluster.repositories)
    await cluster.start(*cluster.repositories)
    await another_leads(cluster, load, term)


async def pause_leader(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    await _pause_leader(cluster, load, SHORT_PAUSE)


async def pause_leader_for_long(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    await _pause_leader(cluster, load, LONG_PAUSE)


async def _pause_leader(cluster: ClusterOnEtcd, load: Load, seconds: float) -> None:
    """It hangs, and does not know it when it goes on: as if it still led. It can do nothing but find out."""
    leader, term = await cluster.leader(), cluster.chronicle.term
    writes = cluster.writes[leader.name]
    assert writes.succeeded_since(0) > 0
    leader.pause()
    hung = asyncio.create_task(pause(seconds))
    await another_leads(cluster, load, term)
    await hung
    resumed = monotonic()
    leader.resume()
    await load.grows()
    await _follows(leader)
    if await cluster.leader() is not leader:
        assert writes.succeeded_since(resumed) == 0


async def _follows(repository: Daemon) -> None:
    """Wait until its log says that it does no more lead."""

    async def has_said() -> bool:
        lines = repository.log.read_text(errors="replace").splitlines()
        roles = [line for line in lines if " term=" in line or "following" in line]
        return bool(roles) and "following" in roles[-1]

    await until(has_said)


async def cut_leader_off_etcd(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    """The nodes still hear it, and it them."""
    await _cut_off(cluster, load, cluster.ways_to_etcd(await cluster.leader()), silently=False)


async def cut_leader_off_etcd_silently(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    """The same, but nothing tells it: what it says does not arrive, and it hears nothing."""
    await _cut_off(cluster, load, cluster.ways_to_etcd(await cluster.leader()), silently=True)


async def cut_leader_off_nodes(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    """It still reaches etcd, and the clients and managers it."""
    await _cut_off(cluster, load, cluster.ways_of_nodes(await cluster.leader()), silently=False)


async def cut_leader_off_nodes_silently(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    await _cut_off(cluster, load, cluster.ways_of_nodes(await cluster.leader()), silently=True)


async def cut_leader_off_some_nodes(cluster: ClusterOnEtcd, load: Load, rng: Random) -> None:
    """It still hears one of them; the others hear all."""
    ways = cluster.ways_of_nodes(await cluster.leader())
    await _cut_off(cluster, load, rng.sample(ways, k=2), silently=rng.random() < 0.5)


async def _cut_off(cluster: ClusterOnEtcd, load: Load, ways: list[BreakingProxy], *, silently: bool) -> None:
    term = cluster.chronicle.term
    for way in ways:
        if silently:
            way.block()
        else:
            way.refuse()
            way.cut()
    await another_leads(cluster, load, term)
    for way in ways:
        await way.heal()
    await load.grows(10)


async def silence_node(cluster: ClusterOnEtcd, load: Load, rng: Random) -> None:
    """No metadata repository hears one of the nodes, which is no reason for another one to lead."""
    node = rng.choice(cluster.nodes)
    ways = [cluster.proxies[f"{node.name} to {repository.name}"] for repository in cluster.repositories]
    for way in ways:
        way.block()
    await goes_on_without(cluster, load, node)
    await pause(SETTLED_SECONDS)
    term = cluster.chronicle.term
    await pause(SETTLED_SECONDS)
    assert cluster.chronicle.term == term
    for way in ways:
        await way.heal()
    await has_all(cluster)


async def lose_requests(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    """The outcome of writes that did not happen is unknown."""
    await _lose(cluster, load, Direction.TO_TARGET)


async def lose_answers(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    """The outcome of writes that did happen is unknown."""
    await _lose(cluster, load, Direction.FROM_TARGET)


async def delay_leader(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    """What it asks of etcd arrives when it has given up waiting for the answer, and some of it after another leads."""
    term = cluster.chronicle.term
    ways = cluster.ways_to_etcd(await cluster.leader())
    for way in ways:
        way.delay(LATE_SECONDS, Direction.TO_TARGET)
    await another_leads(cluster, load, term)
    for way in ways:
        await way.heal()
    await load.grows(10)


async def _lose(cluster: ClusterOnEtcd, load: Load, direction: Direction) -> None:
    writes = cluster.writes[(await cluster.leader()).name]
    wanted = writes.lost + UNKNOWNS
    writes.lose(direction, UNKNOWNS)

    async def are_lost() -> bool:
        return writes.lost >= wanted

    async with asyncio.timeout(GOES_ON_SECONDS):
        await until(are_lost)
        await load.grows(10)


# etcd


async def kill_etcd_leader(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    member = await leader_of(cluster.etcd)
    await member.kill()
    async with asyncio.timeout(GOES_ON_SECONDS):
        await load.grows(10)
    await member.start()
    await load.grows(10)


async def pause_etcd_leader(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    member = await leader_of(cluster.etcd)
    member.pause()
    try:
        async with asyncio.timeout(GOES_ON_SECONDS):
            await load.grows(10)
    finally:
        member.resume()
    await load.grows(10)


async def lose_etcd_majority(cluster: ClusterOnEtcd, load: Load, rng: Random) -> None:
    """The log stops, nothing is lost, and it goes on by itself."""
    lost = rng.sample(cluster.etcd.members, k=2)
    for member in lost:
        await member.kill()
    killed = monotonic()
    await pause(LOST_MAJORITY_SECONDS)
    acknowledged = [op for op in load.history.of(Kind.APPEND) if op.outcome is Outcome.OK and op.invoked > killed]
    assert not acknowledged, "nothing is decided without a majority"
    await asyncio.gather(*(member.start() for member in lost))
    async with asyncio.timeout(GOES_ON_SECONDS):
        await load.grows(10)


# Whole machines


class _Machine(NamedTuple):
    """What would run on one of three machines, here the one that is missed the most: all that leads."""

    member: EtcdMember
    daemons: tuple[Daemon, ...]
    node: Daemon


async def _machine(cluster: ClusterOnEtcd) -> _Machine:
    node = await cluster.primary()
    return _Machine(await leader_of(cluster.etcd), (await cluster.leader(), cluster.manager(), node), node)


async def lose_machine(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    """A metadata repository, a manager, a member of etcd and a node at once, all of them leading."""
    term, machine = cluster.chronicle.term, await _machine(cluster)
    await asyncio.gather(machine.member.kill(), cluster.kill(*machine.daemons))
    await another_leads(cluster, load, term)
    await goes_on_without(cluster, load, machine.node)
    await machine.member.start()
    await cluster.start(*machine.daemons)
    await has_all(cluster)


async def freeze_machine(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    """The same, but they only hang, and none of them knows it afterwards."""
    term, machine = cluster.chronicle.term, await _machine(cluster)
    machine.member.pause()
    for daemon in machine.daemons:
        daemon.pause()
    try:
        await another_leads(cluster, load, term)
        await goes_on_without(cluster, load, machine.node)
    finally:
        machine.member.resume()
        for daemon in machine.daemons:
            daemon.resume()
    await load.grows()
    await has_all(cluster)


async def kill_all(cluster: ClusterOnEtcd, load: Load, _rng: Random) -> None:
    """Every process, etcd's too."""
    await asyncio.gather(cluster.kill(), *(member.kill() for member in cluster.etcd.members))
    await cluster.etcd.start()
    await cluster.start()
    await load.grows()


# Managers


async def kill_manager(cluster: ClusterOnEtcd, load: Load, rng: Random) -> None:
    """A standby repairs what fails then."""
    manager = cluster.manager()
    await cluster.kill(manager)
    await _repair_without(cluster, load, rng, manager)
    await cluster.start(manager)
    await load.grows(10)


async def pause_manager(cluster: ClusterOnEtcd, load: Load, rng: Random) -> None:
    """And one that hung takes nothing back when it goes on."""
    manager = cluster.manager()
    manager.pause()
    await _repair_without(cluster, load, rng, manager)
    manager.resume()
    await load.grows()
    assert cluster.manager() is not manager


async def _repair_without(cluster: ClusterOnEtcd, load: Load, rng: Random, manager: Daemon) -> None:
    node = rng.choice(cluster.nodes)
    await cluster.kill(node)
    await goes_on_without(cluster, load, node)
    assert cluster.manager() is not manager
    await cluster.start(node)
    await has_all(cluster)


ON_REPOSITORIES: Final[tuple[MetaScenario, ...]] = (
    kill_leader,
    kill_standby,
    stop_leader,
    kill_all_repositories,
    pause_leader,
    pause_leader_for_long,
    cut_leader_off_etcd,
    cut_leader_off_etcd_silently,
    cut_leader_off_nodes,
    cut_leader_off_nodes_silently,
    cut_leader_off_some_nodes,
    silence_node,
    lose_requests,
    lose_answers,
    delay_leader,
)
ON_ETCD: Final[tuple[MetaScenario, ...]] = (kill_etcd_leader, pause_etcd_leader, lose_etcd_majority)
ON_MANAGERS: Final[tuple[MetaScenario, ...]] = (kill_manager, pause_manager)
ON_MACHINES: Final[tuple[MetaScenario, ...]] = (lose_machine, freeze_machine, kill_all)
WITHOUT_NODE: Final = (silence_node, lose_machine, freeze_machine, *ON_MANAGERS)
"""A node is away for a while in these, and copies what it lacks; not while clients trim all but the last moment."""
