"""Scenarios that need a machine of their own: disks that are small, and networks whose links can be taken down.

`run_inside` starts this module again in name spaces of its own (`unshare`: user, mount and network), in which an
ordinary user may mount a tmpfs and make interfaces, and nothing of it is seen outside. A system on which that is not
permitted cannot run these tests, and they fail and say so.

In the network every daemon has a name space of its own, with one end of a veth pair; the other end is with the test,
which forwards between them, runs the clients, and cuts a daemon off by taking its link down.

    unshare --user --map-root-user --net --mount python -m tests.cluster.inside NAME DIRECTORY
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

import varlog
from tests.cluster.cluster import Cluster
from tests.cluster.load import Load, large_batches
from tests.cluster.processes import ROOT, Daemon
from tests.cluster.recorder import RecordedLog, judge
from tests.cluster.repairs import backup, goes_on_without, has_all
from tests.cluster.scenarios import live_through_on
from varlog.errors import DiskFull
from varlog.sim.history import History, Kind, Outcome

UNSHARE: Final = ("unshare", "--user", "--map-root-user", "--net", "--mount")
SECONDS: Final = 120.0
PORT: Final = 9000
SCARCE_BYTES: Final = 2 << 20
AMPLE_BYTES: Final = 256 << 20
PATIENCE: Final = 3.0
"""Long enough for a client to find out why nothing is appended."""


def run_inside(name: str, directory: Path) -> None:
    """Let a scenario run in name spaces of its own; what it says is printed, and its failure raised."""
    tried = subprocess.run([*UNSHARE, "true"], check=False, capture_output=True, text=True)
    assert tried.returncode == 0, f"this system does not permit {' '.join(UNSHARE)}: {tried.stderr.strip()}"
    command = [*UNSHARE, sys.executable, "-m", "tests.cluster.inside", name, str(directory)]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 0, f"{name} failed:\n{ended.stdout}\n{ended.stderr}"


def command(*words: str) -> None:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"


# Networks


class RemoteDaemon(Daemon):
    """One in a network name space of its own."""

    def command(self) -> Sequence[str]:
        return ["nsenter", f"--net=/run/netns/{self.name}", *super().command()]

    def _hold_ports(self) -> None:
        """Nobody else is there who could take them."""


class Network(Cluster):
    """A cluster whose daemons are on hosts of their own. The manager is where the clients are."""

    def __init__(self, directory: Path) -> None:
        self._hosts: dict[str, int] = {}
        command("mount", "-t", "tmpfs", "none", "/run")
        command("ip", "link", "set", "lo", "up")
        command("ip", "addr", "add", "10.0.0.1/32", "dev", "lo")
        command("sysctl", "-qw", "net.ipv4.ip_forward=1")
        super().__init__(directory)

    def _daemon(self, name: str, **options: str) -> Daemon:
        if name.startswith("vms"):
            return super()._daemon(name, listen="10.0.0.1:0", **options)
        host = self._hosts[name] = len(self._hosts) + 1
        self._connect(name, f"10.0.{host}")
        made = super()._daemon(name, listen=f"10.0.{host}.2:{PORT}", http="off", **options)
        return RemoteDaemon(name, made.program, self.path, made.options)

    def _connect(self, name: str, net: str) -> None:
        command("ip", "netns", "add", name)
        command("ip", "link", "add", "name", name, "type", "veth", "peer", "name", "eth", "netns", name)
        command("ip", "addr", "add", f"{net}.1/24", "dev", name)
        command("ip", "-n", name, "addr", "add", f"{net}.2/24", "dev", "eth")
        command("ip", "-n", name, "link", "set", "lo", "up")
        command("ip", "-n", name, "link", "set", "eth", "up")
        self.join(name)
        command("ip", "-n", name, "route", "add", "default", "via", f"{net}.1")

    def join(self, name: str) -> None:
        command("ip", "link", "set", name, "up")

    def cut(self, name: str) -> None:
        """Nothing comes or goes; nobody is told."""
        command("ip", "link", "set", name, "down")

    def mute(self, name: str, *, to: str, undo: bool = False) -> None:
        """What one says does not reach another any more; the other way it does."""
        pair = ("from", f"10.0.{self._hosts[name]}.2", "to", f"10.0.{self._hosts[to]}.2")
        command("ip", "rule", "del" if undo else "add", *pair, "blackhole")


async def take_primary_down(directory: Path) -> None:
    """The link of the primary, until the others have gone on without it."""
    network = Network(directory)

    async def cut(cluster: Cluster, load: Load, _rng: Random) -> None:
        await _cut(network, load, await cluster.primary())

    await live_through_on(network, cut)


async def take_backup_down(directory: Path) -> None:
    """The link of a backup."""
    network = Network(directory)

    async def cut(cluster: Cluster, load: Load, _rng: Random) -> None:
        await _cut(network, load, await backup(cluster))

    await live_through_on(network, cut)


async def _cut(network: Network, load: Load, node: Daemon) -> None:
    network.cut(node.name)
    await goes_on_without(network, load, node)
    network.join(node.name)
    await load.grows()
    await has_all(network)


async def mute_backup(directory: Path) -> None:
    """What a backup says does not reach the primary, while everybody else hears it and it hears everybody."""
    network = Network(directory)

    async def cut(cluster: Cluster, load: Load, _rng: Random) -> None:
        primary, node = await cluster.primary(), await backup(cluster)
        network.mute(node.name, to=primary.name)
        await load.grows()
        network.mute(node.name, to=primary.name, undo=True)
        await has_all(cluster)

    await live_through_on(network, cut)


# Disks


def resize(volume: Path, size: int) -> None:
    """Let a volume hold so many bytes."""
    how = f"remount,size={size}" if volume.is_mount() else f"size={size}"
    command("mount", "-t", "tmpfs", "-o", how, "none", str(volume))


def make_scarce(volume: Path) -> None:
    resize(volume, shutil.disk_usage(volume).used + SCARCE_BYTES)


async def fill_disks(directory: Path) -> None:
    """One node's disk is full, and appends go on with the others; then another's, and appends fail and say why, while
    reads go on. With space, and a restart, everybody is back."""
    command("ip", "link", "set", "lo", "up")
    history, batches = History(monotonic), large_batches()
    cluster = Cluster(directory, streams=1)
    for node in cluster.nodes:
        resize(cluster.volume(node.name), AMPLE_BYTES)
    async with cluster, varlog.connect(cluster.path) as log:
        client = RecordedLog("client", log, history)
        make_scarce(cluster.volume("vsn2"))
        while 2 in (await cluster.sets()).get(1, (2,)):
            assert await client.append(next(batches), seconds=PATIENCE)
        make_scarce(cluster.volume("vsn3"))
        while await client.append(next(batches), seconds=PATIENCE):
            pass
        assert history.of(Kind.APPEND)[-1].error == DiskFull.__name__
        await client.scan(1, await client.tail() + 1)
        assert history.of(Kind.SCAN)[-1].outcome is Outcome.OK
        for node in cluster.nodes[1:]:
            resize(cluster.volume(node.name), AMPLE_BYTES)
            assert await node.stop() == 0
            await node.start()
        assert await client.append([b"after"])
        await cluster.settled()
        assert set((await cluster.stop()).values()) == {0}
        judge(await cluster.evidence(history), directory)


SCENARIOS: Final[Mapping[str, Callable[[Path], Awaitable[None]]]] = {
    scenario.__name__: scenario for scenario in (take_primary_down, take_backup_down, mute_backup, fill_disks)
}


def main() -> None:
    """See the module's text."""
    name, directory = sys.argv[1:]

    async def run() -> None:
        await SCENARIOS[name](Path(directory))

    asyncio.run(run())


if __name__ == "__main__":
    main()
