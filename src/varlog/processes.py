"""A cluster of real processes on this machine: for demonstrations, benchmarks and tests.

    async with LocalCluster("varlog-data") as cluster:
        async with varlog.connect(cluster.path) as log:
            await log.append(b"hello")
            await cluster.nodes[0].kill()
            await cluster.nodes[0].start()

`Daemon` is one process: start, kill, stop, start again where it was. Its ports are the operating system's choice at the
first start, and the same ones afterwards, so that those who know its address find it again. What it says goes to a log
file in the directory of the cluster.

`LocalCluster` starts a metadata repository, a manager, sequencers and storage nodes in a directory, registers the nodes
and makes a topic; what an earlier one left there it starts again. The directory is laid out as `varlog.oneprocess` does
it. With a `store`, the address of an etcd, there may be several metadata repositories and several managers.

What always holds: every wait has a deadline; signals go to a process by its id; and a daemon ends with the process that
started it, however that ends (see `varlog.daemon.child`). Linux only.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final, Self

from varlog import layout
from varlog.children import SECONDS, Child, hold_port
from varlog.client.administering import Admin, admin
from varlog.client.cluster import CLUSTER_FILE, DEFAULT_TOPIC, ClusterFile, write_file
from varlog.oneprocess import CID, NODES, prepare
from varlog.types import Ordering

_LOOK_AGAIN: Final = 0.01


class StartFailed(Exception):
    """A daemon ended instead of serving."""

    def __init__(self, name: str, code: int, said: str) -> None:
        super().__init__(f"{name} ended with exit code {code} and said:\n{said}")
        self.code = code
        self.said = said


class Daemon(Child):
    """See the module's text. `program` is `vsn`, `vmr`, `vms` or `vsq`."""

    def __init__(self, name: str, program: str, directory: Path, options: Mapping[str, str]) -> None:
        super().__init__(name, directory / f"{name}.log")
        self.program = program
        self.options = {"listen": "127.0.0.1:0", "http": "127.0.0.1:0", "log_format": "console", **options}
        """By key of the config file; those that hold at the next start."""
        self.flags: list[str] = []
        """What options cannot say."""
        self.cwd: Path | None = None
        """Where it runs, if not where its starter does."""
        self.shares_layout = True
        """Its memory is laid out as that of the others: see `varlog.layout`."""

    @property
    def address(self) -> str:
        """Where it listens, from the first start on."""
        return self.options["listen"]

    @property
    def http(self) -> str:
        """Where it serves /metrics and /healthz, from the first start on."""
        return self.options["http"]

    async def start(self) -> None:
        """Start it and wait until it serves; `StartFailed` if it ends instead."""
        assert not self.alive, f"{self.name} is running"
        self._hold_ports()
        begin = self.log.stat().st_size if self.log.exists() else 0
        if not await self._launch():
            raise StartFailed(self.name, await self.ended(), self.log.read_bytes()[begin:].decode())

    def _hold_ports(self) -> None:
        """Have the operating system choose ports, and keep them while the daemon is down."""
        for key in ("listen", "http"):
            host, _, port = self.options[key].rpartition(":")
            if port == "0":
                self.options[key] = f"{host}:{hold_port(self, host, 0)}"

    async def _launch(self) -> str:
        """What it says when it is ready; nothing if it is never."""
        readable, writable = os.pipe()
        self._process = self._spawn(writable)
        os.close(writable)
        reader = asyncio.StreamReader()
        pipe = os.fdopen(readable, "rb")
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            return (await asyncio.wait_for(reader.read(), SECONDS)).decode()
        finally:
            transport.close()

    def _spawn(self, ready_fd: int) -> subprocess.Popen[bytes]:
        flags = [word for key, value in self.options.items() for word in (f"--{key.replace('_', '-')}", value)]
        command = [*self.command(), "start", *flags, *self.flags, "--ready-fd", str(ready_fd)]
        with self.log.open("ab") as log, layout.shared() if self.shares_layout else nullcontext():
            return subprocess.Popen(
                command, cwd=self.cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[ready_fd]
            )

    def command(self) -> Sequence[str]:
        """What starts the program."""
        return [sys.executable, "-m", "varlog.daemon.child", str(os.getpid()), self.program]

    async def stop(self) -> int:
        """SIGTERM, as its supervisor does; the exit code."""
        self.send(signal.SIGTERM)
        return await self.ended()


class LocalCluster:
    """See the module's text. The topic is made if there is none of that name."""

    def __init__(
        self,
        path: str | Path,
        *,
        nodes: int = NODES,
        topic: str = DEFAULT_TOPIC,
        streams: int = 1,
        store: str | None = None,
        repositories: int = 1,
        managers: int = 1,
        sequencers: int = 1,
        ordering: str = Ordering.COMMIT.label,
        any_version: bool = False,
    ) -> None:
        """`any_version` takes also an etcd that `vmr` refuses by itself (see `varlog.etcdserver`)."""
        self.path = Path(path)
        """By which clients find it."""
        self._topic = topic
        self._streams = streams
        self._ordering = Ordering.labelled(ordering)
        self._secret_file = prepare(self.path, nodes)
        if store is None:
            assert repositories == 1, "a journal belongs to one metadata repository"
            self.vmrs = [self._daemon("vmr", path=str(self.path / "metadata"))]
        else:
            options = {"store": store, "etcd_any_version": "true"} if any_version else {"store": store}
            self.vmrs = [self._daemon(f"vmr{number}", **options) for number in range(1, repositories + 1)]
        self.managers = [self._daemon(f"vms{number}" if number else "vms") for number in range(managers)]
        self.sequencers = [self._daemon(f"vsq{number}") for number in range(1, sequencers + 1)]
        self.nodes = [
            self._daemon(f"vsn{number}", volumes=str(self.path / f"node-{number}"), snid=str(number))
            for number in range(1, nodes + 1)
        ]

    def _daemon(self, name: str, **options: str) -> Daemon:
        common = {"cluster": str(CID), "secret_file": self._secret_file}
        return Daemon(name, name.rstrip("0123456789"), self.path, common | options)

    @property
    def vmr(self) -> Daemon:
        """The metadata repository, or the first of several."""
        return self.vmrs[0]

    @property
    def vms(self) -> Daemon:
        """The manager, or the first of several."""
        return self.managers[0]

    @property
    def daemons(self) -> list[Daemon]:
        return [*self.vmrs, *self.managers, *self.sequencers, *self.nodes]

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _start(self) -> None:
        await asyncio.gather(*(daemon.start() for daemon in self.vmrs))
        addresses = tuple(daemon.address for daemon in self.vmrs)
        known = ClusterFile(addresses, CID, Path(self._secret_file).name, self._topic)
        write_file(self.path / CLUSTER_FILE, known)
        async with asyncio.TaskGroup() as starting:
            for daemon in (*self.managers, *self.sequencers, *self.nodes):
                daemon.options["metadata_repository"] = ",".join(addresses)
                starting.create_task(daemon.start())
        async with admin(self.path) as operator:
            registered = {node.snid for node in await operator.nodes()}
            for number, node in enumerate(self.nodes, 1):
                if number not in registered:
                    await operator.add_node(node.address)
            if self._topic not in {topic.name for topic in await operator.topics()}:
                await self._until_registered(operator)
                await operator.add_topic(self._topic, streams=self._streams, ordering=self._ordering.label)

    async def _until_registered(self, operator: Admin) -> None:
        """Wait for what the sequencers do by themselves: a topic that is made now may need one."""
        wanted = {sequencer.address for sequencer in self.sequencers}
        async with asyncio.timeout(SECONDS):
            while not wanted <= {known.address for known in (await operator.metadata()).sequencers}:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_AGAIN)

    async def stop(self) -> None:
        """End every daemon in good order; one that does not end in time is killed."""
        for daemon in reversed(self.daemons):
            daemon.send(signal.SIGTERM)
            daemon.send(signal.SIGCONT)
        for daemon in self.daemons:
            if daemon.was_started:
                try:
                    await daemon.ended()
                except TimeoutError:
                    await daemon.kill()
