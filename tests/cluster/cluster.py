"""A whole cluster of real processes, and what can befall it.

`Cluster` makes a directory with a secret, a cluster file for clients and the daemons' data; starts the metadata
repository, the manager and the storage nodes; registers the nodes and makes a topic. Clients find it by `path`.

With `proxied`, every connection goes through a `BreakingProxy`: one before each node, which everybody who wants that
node passes, and one for each daemon (and one for all clients) on the way to the metadata repository, or to each of
them. A daemon that starts again then may have another port behind its proxy.

When a test fails inside of it, it prints the end of every daemon's log. In any case it ends every process it started.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final, Self

import varlog
from tests.cluster.inspection import metadata_in, replicas_in, topics_of
from tests.cluster.processes import Daemon
from tests.cluster.proxy import BreakingProxy
from tests.cluster.waiting import SECONDS, until
from varlog.core.metastate import MetadataState
from varlog.errors import VarlogError
from varlog.sim.evidence import Evidence, LivenessPhase
from varlog.sim.history import History
from varlog.types import ClusterID, StreamStatus
from varlog.wire.secret import Secret

CID: Final = ClusterID(7)
TOPIC: Final = "log"
SEGMENT_BYTES: Final = 1 << 18
"""Small, so that a short run fills several."""


class Files(Enum):
    """What the daemons' files are made of."""

    PLAIN = "plain"
    FORGETFUL = "forgetful"
    """They forget unsynced writes at a kill."""
    FILLABLE = "fillable"
    """The storage nodes' disks are full while there is a file `<name>.full`."""


def names_of(program: str, number: int) -> list[str]:
    """So many daemons of that program; of one, it is the program's own."""
    return [program, *(f"{program}{which}" for which in range(2, number + 1))]


class Cluster:
    """See the module's text."""

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 3,
        spares: int = 0,
        managers: int = 1,
        streams: int = 2,
        files: Files = Files.PLAIN,
        proxied: bool = False,
        replace_after: float = 30.0,
    ) -> None:
        self.path = directory
        self.factor = nodes
        self.proxies: dict[str, BreakingProxy] = {}
        """By whom they lead to, and on the way to the metadata repository by who comes."""
        self.about: dict[str, str] = {}
        """What the cluster file says besides the usual."""
        self._streams = streams
        self._files = files
        self._proxied = proxied
        (directory / "meta").mkdir(parents=True)
        Secret.create(directory / "secret")
        self.repositories = self._repositories()
        self.managers = [self._daemon(name, replace_after=str(replace_after)) for name in names_of("vms", managers)]
        self.nodes = [self._node(number) for number in range(1, nodes + spares + 1)]

    def _repositories(self) -> list[Daemon]:
        return [self._daemon("vmr", path=str(self.path / "meta"))]

    def _node(self, number: int) -> Daemon:
        volume = self.volume(f"vsn{number}")
        volume.mkdir()
        return self._daemon(f"vsn{number}", volumes=str(volume), snid=str(number), segment_bytes=str(SEGMENT_BYTES))

    def _daemon(self, name: str, **options: str) -> Daemon:
        layer: list[str] = []
        if self._files is Files.FORGETFUL and not name.startswith("vms"):
            layer = ["--forgetful", str(self.path / f"{name}.scratch")]
        elif self._files is Files.FILLABLE and name.startswith("vsn"):
            layer = ["--fillable", str(self.full_marker(name))]
        common = {"cluster": str(CID), "secret_file": str(self.path / "secret")}
        return Daemon(name, name.rstrip("0123456789"), self.path, common | options, layer)

    def volume(self, name: str) -> Path:
        """Where a node's data is."""
        return self.path / f"{name}.volume"

    def full_marker(self, name: str) -> Path:
        """The file that makes a node's disk full."""
        return self.path / f"{name}.full"

    @property
    def daemons(self) -> list[Daemon]:
        return [*self.repositories, *self.managers, *self.nodes]

    @property
    def vmr(self) -> Daemon:
        return self.repositories[0]

    @property
    def vms(self) -> Daemon:
        return self.managers[0]

    # Life

    async def __aenter__(self) -> Self:
        try:
            await self._begin()
        except BaseException:
            await self._end(failed=True)
            raise
        return self

    async def __aexit__(self, error: type[BaseException] | None, *_: object) -> None:
        await self._end(failed=error is not None)

    async def _begin(self) -> None:
        others = [*self.managers, *self.nodes]
        await self._start_repositories()
        if self._proxied:
            for name in ("clients", *(daemon.name for daemon in others)):
                for repository in self.repositories:
                    self.proxies[f"{name} to {repository.name}"] = await self._lay_way(name, repository)
            for node in self.nodes:
                self.proxies[node.name] = await BreakingProxy.start("127.0.0.1:0")
                node.options["advertise"] = self.proxies[node.name].address
        for daemon in others:
            daemon.options["metadata_repository"] = ",".join(self._ways_to_repositories(daemon.name))
        (self.path / "cluster.toml").write_text(
            f"metadata_repositories = {self._ways_to_repositories('clients')}\n"
            f'cluster = {CID}\nsecret_file = "secret"\ntopic = "{TOPIC}"\n'
            + "".join(f'{key} = "{value}"\n' for key, value in self.about.items())
        )
        await self.start(*others)
        async with varlog.admin(self.path) as admin:
            for node in self.nodes[: self.factor]:
                await admin.add_node(node.options.get("advertise", node.address))
            await admin.add_topic(TOPIC, replication_factor=self.factor, streams=self._streams)
            for node in self.nodes[self.factor :]:
                await admin.add_node(node.options.get("advertise", node.address))

    async def _start_repositories(self) -> None:
        await self.start(*self.repositories)

    async def _lay_way(self, _name: str, repository: Daemon) -> BreakingProxy:
        """For that daemon, or for clients."""
        return await BreakingProxy.start(repository.address)

    def _ways_to_repositories(self, name: str) -> list[str]:
        if self._proxied:
            return [self.proxies[f"{name} to {repository.name}"].address for repository in self.repositories]
        return [repository.address for repository in self.repositories]

    async def _end(self, *, failed: bool) -> None:
        for daemon in self.daemons:
            daemon.send(signal.SIGKILL)
        for daemon in self.daemons:
            if daemon.was_started:
                await daemon.ended()
        for proxy in self.proxies.values():
            await proxy.close()
        if failed:
            for daemon in self.daemons:
                print(f"\n--- {daemon.name} said ---\n{daemon.said()}")  # noqa: T201

    # What can befall it

    async def start(self, *daemons: Daemon) -> None:
        """Start these, by default whatever is down, all at the same time."""
        wanted = daemons or [daemon for daemon in self.daemons if not daemon.alive]
        async with asyncio.TaskGroup() as starting:
            for daemon in wanted:
                starting.create_task(daemon.start())
        for daemon in self.daemons:
            for name, proxy in self.proxies.items():
                if name.rpartition(" to ")[2] == daemon.name:
                    proxy.target = daemon.address

    async def kill(self, *daemons: Daemon) -> None:
        """SIGKILL for these, by default for all, before any of them is waited for."""
        victims = daemons or self.daemons
        for daemon in victims:
            daemon.send(signal.SIGKILL)
        for daemon in victims:
            await daemon.ended()

    async def stop(self) -> dict[str, int]:
        """SIGTERM for all, one after another, those that hold data last; their exit codes."""
        return {daemon.name: await daemon.stop() for daemon in (*self.managers, *self.nodes, *self.repositories)}

    async def settled(self, seconds: float = SECONDS) -> None:
        """Wait until every log stream runs on as many replicas as it is to have, and every replica knows all that is
        committed."""
        told: list[str] = []

        async def is_settled() -> bool:
            try:
                told[:] = await unsettled(admin)
            except VarlogError as error:
                told[:] = [str(error)]
            return not told

        async with varlog.admin(self.path) as admin:
            try:
                await until(is_settled, seconds)
            except TimeoutError:
                raise AssertionError("the cluster is not in order:\n" + "\n".join(told)) from None

    async def sets(self) -> dict[int, tuple[int, ...]]:
        """On which nodes each log stream that runs is."""
        async with varlog.admin(self.path) as admin:
            streams = await admin.streams()
        return {stream.lsid: stream.replicas for stream in streams if stream.status is StreamStatus.RUNNING}

    async def is_on(self, condition: Callable[[tuple[int, ...]], bool]) -> None:
        """Wait until every log stream runs, on nodes that are as they should be."""

        async def are_all() -> bool:
            sets = await self.sets()
            return len(sets) == self._streams and all(map(condition, sets.values()))

        await until(are_all)

    async def primary(self) -> Daemon:
        """Of the first log stream."""
        async with varlog.admin(self.path) as admin:
            return self.nodes[min(await admin.streams(), key=lambda stream: stream.lsid).primary - 1]

    # Evidence

    async def evidence(self, history: History, liveness: LivenessPhase | None = None) -> Evidence:
        """What the stopped cluster's disks hold, beside what clients saw."""
        scratch = self.path / "inspected"
        topics = topics_of(await self._metadata(scratch))
        replicas = [dump for node in self.nodes for dump in replicas_in(self.volume(node.name), node.name, scratch)]
        return Evidence(history, topics, replicas, liveness=liveness)

    async def _metadata(self, scratch: Path) -> MetadataState:
        return metadata_in(self.path / "meta", CID, scratch)

    def keep(self, name: str) -> Path:
        """A copy of a node's volume as it is now."""
        kept = self.path / f"{name}.kept"
        shutil.copytree(self.volume(name), kept)
        return kept


async def unsettled(admin: varlog.Admin) -> list[str]:
    """What is not in order, in words."""
    told = []
    metadata = await admin.metadata()
    replicas = {}
    for snid in {snid for stream in metadata.streams for snid in stream.replicas}:
        info = await admin.node(snid)
        replicas.update({(snid, replica.lsid): replica for replica in info.replicas})
    hwms = {topic.tpid: topic.hwm for topic in metadata.topics}
    factors = {topic.tpid: topic.replication_factor for topic in metadata.topics}
    for stream in metadata.streams:
        if stream.status is not StreamStatus.RUNNING:
            told.append(f"log stream {stream.lsid} is {stream.status.name}")
        if len(stream.replicas) != factors[stream.tpid]:
            told.append(f"log stream {stream.lsid} is on nodes {stream.replicas} alone")
        wanted = (True, stream.epoch, stream.llsn_end, hwms[stream.tpid])
        for snid in stream.replicas:
            replica = replicas.get((snid, stream.lsid))
            if replica is None or wanted != (
                replica.healthy,
                replica.epoch,
                replica.committed_end,
                replica.global_hwm,
            ):
                who = f"the replica of log stream {stream.lsid} on node {snid}"
                told.append(f"{who} is to be (healthy, epoch, end, hwm) {wanted}, and is {replica}")
    return told
