"""What real clusters go through under load, each as a function, for tests and for the soak.

`live_through` is the frame: a cluster, recorded clients, the scenario, then more appends to show that it goes on by
itself, an orderly end, and the verdict of the simulator's checkers over the history and the disks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

from tests.cluster.cluster import Cluster, Files
from tests.cluster.load import PIPELINE, Load, load_on
from tests.cluster.processes import Daemon
from tests.cluster.proxy import Direction
from tests.cluster.recorder import judge, out_of_order
from tests.cluster.strangers import Strangers, resident_bytes
from tests.cluster.waiting import pause
from varlog.sim.evidence import Evidence

Scenario = Callable[[Cluster, Load, Random], Awaitable[None]]

REPLACE_AFTER: Final = 2.0
"""How long a node is away before a spare takes its place."""
HANG_SECONDS: Final = 1.5
"""Long enough for others to give up on who hangs."""
PESTER_SECONDS: Final = 4.0
MOST_MEMORY: Final = 200 << 20


async def live_through(
    scenario: Scenario,
    directory: Path,
    *,
    seed: int = 1,
    files: Files = Files.PLAIN,
    proxied: bool = False,
    trims: bool = False,
    spares: int = 0,
    managers: int = 1,
) -> Evidence:
    """See the module's text."""
    cluster = Cluster(
        directory, files=files, proxied=proxied, spares=spares, managers=managers, replace_after=REPLACE_AFTER
    )
    return await live_through_on(cluster, scenario, seed=seed, trims=trims)


async def live_through_on(cluster: Cluster, scenario: Scenario, *, seed: int = 1, trims: bool = False) -> Evidence:
    """The same on a cluster that was made for it."""
    async with cluster:
        async with load_on(cluster, seed=seed, trims=trims) as load:
            await load.grows()
            await scenario(cluster, load, Random(seed))
            healed = monotonic()
            await load.grows()
            await load.stop()
            await cluster.settled()
            liveness = load.liveness(healed)
        assert set((await cluster.stop()).values()) == {0}
        evidence = await cluster.evidence(load.history, liveness)
        judge(evidence, cluster.path)
        assert not out_of_order(load.history, PIPELINE)
        return evidence


async def kill_everything(cluster: Cluster, _load: Load, _rng: Random) -> None:
    """Every process at once, as when the power goes."""
    await cluster.kill()
    await cluster.start()


async def kill_everything_twice(cluster: Cluster, load: Load, rng: Random) -> None:
    """The second time while it is just coming back."""
    await kill_everything(cluster, load, rng)
    await pause(rng.uniform(0.0, 0.5))
    await kill_everything(cluster, load, rng)


async def kill_each(cluster: Cluster, load: Load, rng: Random) -> None:
    """One daemon after another, of each kind, with a while in between for the others to notice."""
    for daemon in (cluster.vmr, cluster.vms, *cluster.nodes):
        await cluster.kill(daemon)
        await pause(rng.uniform(0.0, 0.3))
        await cluster.start(daemon)
        await load.grows()


async def stop_each(cluster: Cluster, load: Load, _rng: Random) -> None:
    """SIGTERM under load: an orderly end, of each in turn."""
    for daemon in (cluster.vmr, cluster.vms, *cluster.nodes):
        assert await daemon.stop() == 0
        await cluster.start(daemon)
        await load.grows()


async def hang_each(cluster: Cluster, load: Load, rng: Random) -> None:
    """SIGSTOP, and later SIGCONT: who hangs does not know that it did."""
    node = rng.choice(cluster.nodes)
    for daemon in (node, cluster.vmr):
        daemon.pause()
        await pause(HANG_SECONDS)
        daemon.resume()
        await load.grows()


async def cut_everything(cluster: Cluster, load: Load, rng: Random) -> None:
    """Connections are reset, several times, in the midst of whatever they carry."""
    for _ in range(5):
        for proxy in rng.sample(list(cluster.proxies.values()), k=3):
            proxy.cut()
        await load.grows(5)
    for proxy in cluster.proxies.values():
        proxy.cut()


async def truncate_everything(cluster: Cluster, load: Load, rng: Random) -> None:
    """Connections end amid a frame."""
    for _ in range(3):
        for proxy in cluster.proxies.values():
            proxy.truncate(rng.choice(list(Direction)), after=rng.randrange(3000))
        await load.grows(20)
    for proxy in cluster.proxies.values():
        await proxy.heal()


async def block_each(cluster: Cluster, load: Load, rng: Random) -> None:
    """A node that nobody reaches, one that does not reach the metadata repository, clients that do not; then each in
    one direction only. Nobody's connection is closed, they just hear nothing."""
    node = rng.choice(cluster.nodes).name
    for name in (node, f"{node} to vmr", "clients to vmr"):
        for directions in ((), (rng.choice(list(Direction)),)):
            proxy = cluster.proxies[name]
            proxy.block(*directions)
            await pause(rng.uniform(0.2, HANG_SECONDS))
            await proxy.heal()
            await load.grows(20)


async def refuse_each(cluster: Cluster, load: Load, rng: Random) -> None:
    """Connections are reset and cannot be made again for a while."""
    for name in (rng.choice(cluster.nodes).name, "vms to vmr", f"{rng.choice(cluster.nodes).name} to vmr"):
        proxy = cluster.proxies[name]
        proxy.refuse()
        proxy.cut()
        await pause(rng.uniform(0.2, HANG_SECONDS))
        await proxy.heal()
        await load.grows(20)


async def slow_down(cluster: Cluster, load: Load, rng: Random) -> None:
    """A far-away node, and a narrow way to the metadata repository."""
    cluster.proxies[rng.choice(cluster.nodes).name].delay(0.05)
    cluster.proxies[f"{rng.choice(cluster.nodes).name} to vmr"].throttle(20_000.0)
    await load.grows()
    for proxy in cluster.proxies.values():
        await proxy.heal()


async def pester(cluster: Cluster, load: Load, rng: Random) -> None:
    """Strangers talk nonsense to every daemon. The daemons go on, in the same processes, within their memory."""
    processes = [daemon.pid for daemon in cluster.daemons]
    strangers = Strangers(cluster, rng)
    await asyncio.gather(strangers.pester(PESTER_SECONDS), load.grows())
    assert strangers.encounters > PESTER_SECONDS
    assert [daemon.pid for daemon in cluster.daemons if daemon.alive] == processes
    assert max(map(resident_bytes, cluster.daemons)) < MOST_MEMORY


async def kill_some(cluster: Cluster, load: Load, rng: Random) -> None:
    """Any of them, any number of times, some while others are still down."""
    down: list[Daemon] = []
    for _ in range(8):
        alive = [daemon for daemon in cluster.daemons if daemon.alive]
        if down and (rng.random() < 0.5 or not alive):
            await cluster.start(down.pop(rng.randrange(len(down))))
        else:
            down.append(rng.choice(alive))
            await cluster.kill(down[-1])
        await pause(rng.uniform(0.0, 0.4))
    await cluster.start()
    await load.grows(5)


ON_DIRECT: Final[tuple[Scenario, ...]] = (
    kill_everything,
    kill_everything_twice,
    kill_each,
    kill_some,
    stop_each,
    hang_each,
    pester,
)
ON_PROXIES: Final[tuple[Scenario, ...]] = (cut_everything, truncate_everything, block_each, refuse_each, slow_down)
