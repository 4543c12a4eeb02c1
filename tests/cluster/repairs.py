"""More of what real clusters go through under load: nodes that stay away, sets that change, disks that are lost.

In each of them the log goes on with those that are left, before anybody comes back, and nobody does anything for it;
afterwards every log stream has all its replicas again.
"""

from __future__ import annotations

import asyncio
import shutil
from random import Random
from typing import Final

import varlog
from tests.cluster.cluster import Cluster
from tests.cluster.load import Load
from tests.cluster.processes import Daemon
from tests.cluster.proxy import Direction
from tests.cluster.scenarios import Scenario, kill_everything
from tests.cluster.waiting import pause

LONG_HANG_SECONDS: Final = 10.0


def number_of(node: Daemon) -> int:
    return int(node.options["snid"])


async def backup(cluster: Cluster) -> Daemon:
    """Of the first log stream."""
    primary = await cluster.primary()
    return next(node for node in cluster.nodes if node is not primary)


async def goes_on_without(cluster: Cluster, load: Load, node: Daemon) -> None:
    """No log stream counts on the node any more, and all writers write."""
    await cluster.is_on(lambda replicas: number_of(node) not in replicas)
    await load.grows()


async def has_all(cluster: Cluster) -> None:
    """Every log stream has all its replicas."""
    await cluster.is_on(lambda replicas: len(replicas) == cluster.factor)


# Nodes that are away


async def lose_primary(cluster: Cluster, load: Load, _rng: Random) -> None:
    """The primary is killed and stays away for a while."""
    await _lose(cluster, load, await cluster.primary())


async def lose_backup(cluster: Cluster, load: Load, _rng: Random) -> None:
    """A backup is killed and stays away for a while."""
    await _lose(cluster, load, await backup(cluster))


async def _lose(cluster: Cluster, load: Load, node: Daemon) -> None:
    await cluster.kill(node)
    await goes_on_without(cluster, load, node)
    await cluster.start(node)
    await has_all(cluster)


async def lose_manager(cluster: Cluster, load: Load, _rng: Random) -> None:
    """Nobody needs the manager while nothing fails; and what fails meanwhile is repaired when it is back."""
    await cluster.kill(cluster.vms)
    await load.grows()
    node = await cluster.primary()
    await cluster.kill(node)
    await cluster.start(cluster.vms)
    await goes_on_without(cluster, load, node)
    await cluster.start(node)
    await has_all(cluster)


async def lose_node_for_good(cluster: Cluster, load: Load, _rng: Random) -> None:
    """A spare takes the place of a node that does not come back."""
    node = await cluster.primary()
    await cluster.kill(node)
    await goes_on_without(cluster, load, node)
    await has_all(cluster)
    await cluster.is_on(lambda replicas: number_of(node) not in replicas)
    await cluster.start(node)


async def hang_primary(cluster: Cluster, load: Load, _rng: Random) -> None:
    """It hangs for ten seconds, while the others go on; then it goes on as if it still were the primary."""
    await _hang(cluster, load, await cluster.primary(), LONG_HANG_SECONDS)


async def hang_backup(cluster: Cluster, load: Load, rng: Random) -> None:
    """The same with a backup, not so long."""
    await _hang(cluster, load, await backup(cluster), rng.uniform(0.0, 2.0))


async def _hang(cluster: Cluster, load: Load, node: Daemon, seconds: float) -> None:
    node.pause()
    hung = asyncio.create_task(pause(seconds))
    await goes_on_without(cluster, load, node)
    await hung
    node.resume()
    await load.grows()


async def lose_power(cluster: Cluster, load: Load, rng: Random) -> None:
    """Everything is killed at once, and one node stays away when the others come back."""
    node = rng.choice(cluster.nodes)
    await cluster.kill()
    await cluster.start(*(daemon for daemon in cluster.daemons if daemon is not node))
    await goes_on_without(cluster, load, node)
    await cluster.start(node)
    await kill_everything(cluster, load, rng)


# Nodes that are cut off


async def cut_off_deaf(cluster: Cluster, load: Load, rng: Random) -> None:
    """Nobody's words reach a node, though its own reach everybody."""
    await _cut_off(cluster, load, await _some_node(cluster, rng), Direction.TO_TARGET)


async def cut_off_mute(cluster: Cluster, load: Load, rng: Random) -> None:
    """A node's words reach nobody, though it hears everybody."""
    await _cut_off(cluster, load, await _some_node(cluster, rng), Direction.FROM_TARGET)


async def cut_off_both_ways(cluster: Cluster, load: Load, rng: Random) -> None:
    """A node on its own."""
    await _cut_off(cluster, load, await _some_node(cluster, rng), *Direction)


async def _some_node(cluster: Cluster, rng: Random) -> Daemon:
    return rng.choice((await cluster.primary(), await backup(cluster)))


async def _cut_off(cluster: Cluster, load: Load, node: Daemon, *directions: Direction) -> None:
    """Its connections stay open; nothing arrives. Who connects to the node is on the near side of its proxy, and the
    node itself is on that of the proxy to the metadata repository."""
    opposite = {Direction.TO_TARGET: Direction.FROM_TARGET, Direction.FROM_TARGET: Direction.TO_TARGET}
    to_node, to_vmr = cluster.proxies[node.name], cluster.proxies[f"{node.name} to vmr"]
    to_node.block(*directions)
    to_vmr.block(*(opposite[direction] for direction in directions))
    await goes_on_without(cluster, load, node)
    await to_node.heal()
    await to_vmr.heal()
    await has_all(cluster)


# Disks


async def delete_data(cluster: Cluster, load: Load, rng: Random) -> None:
    """Of a node that is down; it comes back with an empty disk, as if that had been replaced."""
    node = rng.choice(cluster.nodes)
    await cluster.kill(node)
    _empty(cluster, node)
    await cluster.start(node)
    await load.grows()
    await has_all(cluster)


async def delete_data_in_use(cluster: Cluster, load: Load, rng: Random) -> None:
    """Of a node that runs. It may not notice before it makes a new file; at the latest it does at its next start."""
    node = rng.choice(cluster.nodes)
    _empty(cluster, node)
    await load.grows()
    await cluster.kill(node)
    await cluster.start(node)
    await load.grows()
    await has_all(cluster)


def _empty(cluster: Cluster, node: Daemon) -> None:
    for path in cluster.volume(node.name).iterdir():
        shutil.rmtree(path)


# What operators do


async def drain_each(cluster: Cluster, load: Load, _rng: Random) -> None:
    """One node after another, as for an upgrade: drained, stopped, started, let in again."""
    for node in cluster.nodes:
        async with varlog.admin(cluster.path) as admin:
            await admin.drain_node(number_of(node))
            await goes_on_without(cluster, load, node)
            assert await node.stop() == 0
            await cluster.start(node)
            await admin.undrain_node(number_of(node))
        await has_all(cluster)


async def move_and_replace(cluster: Cluster, load: Load, _rng: Random) -> None:
    """A replica moves to the spare; then the spare takes the place of a whole node."""
    spare = number_of(cluster.nodes[-1])
    async with varlog.admin(cluster.path) as admin:
        stream = min(await admin.streams(), key=lambda stream: stream.lsid)
        await admin.move_replica(stream.lsid, to=spare, away_from=stream.primary)
        await asyncio.gather(load.grows(), _is_moved(cluster, stream.lsid, spare, stream.primary))
        await admin.replace_node(stream.primary, spare)
        await cluster.is_on(lambda replicas: spare in replicas and len(replicas) == cluster.factor)
        await load.grows()
        await admin.undrain_node(stream.primary)


async def _is_moved(cluster: Cluster, lsid: int, to: int, away_from: int) -> None:
    def is_there(replicas: tuple[int, ...]) -> bool:
        return to in replicas and away_from not in replicas

    while not is_there((await cluster.sets()).get(lsid, ())):
        await pause(0.05)


ON_REPAIR: Final[tuple[Scenario, ...]] = (
    lose_primary,
    lose_backup,
    lose_manager,
    hang_primary,
    hang_backup,
    lose_power,
    delete_data,
    delete_data_in_use,
    drain_each,
)
WITH_SPARE: Final[tuple[Scenario, ...]] = (lose_node_for_good, move_and_replace)
ON_PROXIED_REPAIR: Final[tuple[Scenario, ...]] = (cut_off_deaf, cut_off_mute, cut_off_both_ways)
