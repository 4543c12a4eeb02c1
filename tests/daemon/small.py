"""A small cluster in the test's own process: the real daemons on one event loop, with real files and sockets.

Each can be stopped and started by itself; and there is somebody who talks to them in any role.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import uvloop

from tests.cluster.waiting import pause
from varlog import batch, errors
from varlog.core.address import METADATA_REPOSITORY
from varlog.core.describing import describe
from varlog.core.messages import (
    AddNode,
    AddTopic,
    Append,
    AppendReply,
    Decided,
    GetInfo,
    GetMetadata,
    Info,
    Leading,
    Managed,
    Message,
    Metadata,
    NotLeading,
    RegisterManager,
    StreamInfo,
)
from varlog.daemon.config import ManagerConfig, MetadataRepositoryConfig, StorageNodeConfig
from varlog.manager.server import ManagerServer
from varlog.metarepo.server import MetadataRepositoryServer
from varlog.storage.files import FileSystem, OSFileSystem
from varlog.storagenode.server import StorageNodeServer
from varlog.types import LLSN, ClusterID, Sequence, StreamStatus
from varlog.wire.connection import Connection
from varlog.wire.hello import Identity, Role
from varlog.wire.link import dial
from varlog.wire.secret import Secret

CID: Final = ClusterID(3)
TOPIC: Final = "log"
SECONDS: Final = 20.0
LOOK_SECONDS: Final = 0.005
ANY_PORT: Final = "127.0.0.1:0"

M = TypeVar("M", bound=Message)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run on the loop of the daemons; a test that hangs fails, and so does one that lets an exception escape."""
    strays: list[dict[str, Any]] = []

    async def whole() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: strays.append(context))
        await asyncio.wait_for(main, SECONDS)

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    runner.run(whole())
    runner.close()  # not after a failure: uvloop would wait here for whatever the test has left open
    assert not strays, strays


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what daemons bring about by themselves; the test as a whole has a deadline."""
    while not holds():
        await pause(LOOK_SECONDS)


class Caller:
    """One connection to a daemon, in some role."""

    def __init__(self) -> None:
        self.connection: Connection
        self.heard: list[Message] = []
        self.standings: list[Leading | NotLeading] = []
        """What a metadata repository said of itself."""
        self.ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        """Why the connection ended, an error or None."""
        self._requests = 0
        self._waiting: dict[int, asyncio.Future[Message]] = {}

    async def ask(self, kind: type[M], build: Callable[[int], Message]) -> M:
        """Send a request, made with its number, and wait for its answer; raises if the connection ends instead."""
        self._requests += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._requests] = answer
        self.connection.send(build(self._requests))
        await asyncio.wait({answer, self.ended}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise self.ended.result() or errors.ConnectionLost("closed")
        reply = answer.result()
        assert isinstance(reply, kind), reply
        return reply

    def on_connected(self, connection: Connection) -> None: ...

    def on_message(self, _connection: Connection, message: Message) -> None:
        answer = self._waiting.pop(getattr(message, "request", 0), None)
        if answer is not None:
            answer.set_result(message)
        elif isinstance(message, Leading | NotLeading):
            self.standings.append(message)
        else:
            self.heard.append(message)

    def on_turn(self, connection: Connection) -> None: ...

    def on_closed(self, _connection: Connection, error: errors.VarlogError | None) -> None:
        self.ended.set_result(error)


class Small:
    """See the module's text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failures: list[BaseException] = []
        """What daemons said they must stop for."""
        self.vmr: MetadataRepositoryServer
        self._has_vmr = False
        self.nodes: dict[int, StorageNodeServer] = {}
        self.managers: list[ManagerServer] = []
        self._callers: list[Caller] = []
        self.secret_file = path / "secret"
        self.secret = Secret.create(self.secret_file)
        (path / "metadata").mkdir()

    # Daemons

    async def start_vmr(self, listen: str = ANY_PORT, fs: FileSystem | None = None) -> None:
        config = MetadataRepositoryConfig(
            cluster=CID, secret_file=str(self.secret_file), path=str(self.path / "metadata"), listen=listen, http=None
        )
        self.vmr = await MetadataRepositoryServer.start(config, fs or OSFileSystem(), self.failures.append)
        self._has_vmr = True

    async def stop_vmr(self) -> None:
        self._has_vmr = False
        await self.vmr.stop()

    async def restart_vmr(self) -> None:
        """At the same address, since everybody else is told only one."""
        address = self.vmr.address
        await self.stop_vmr()
        await self.start_vmr(address)

    async def start_manager(self, **options: Any) -> ManagerServer:
        about: dict[str, Any] = {"listen": ANY_PORT, "metadata_repository": self.vmr.address, "http": None}
        config = ManagerConfig(cluster=CID, secret_file=str(self.secret_file), **(about | options))
        self.managers.append(await ManagerServer.start(config))
        return self.managers[-1]

    async def stop_manager(self, manager: ManagerServer) -> None:
        self.managers.remove(manager)
        await manager.stop()

    def volumes(self, number: int, count: int = 1) -> list[str]:
        paths = [self.path / f"node-{number}-{volume}" for volume in range(count)]
        for path in paths:
            path.mkdir(exist_ok=True)
        return [str(path) for path in paths]

    def node_config(self, number: int, **options: Any) -> StorageNodeConfig:
        given: dict[str, Any] = {"volumes": self.volumes(number), "snid": number, "listen": ANY_PORT, "cluster": CID}
        about = {"secret_file": str(self.secret_file), "http": None}
        if "metadata_repository" not in options:
            about["metadata_repository"] = self.vmr.address
        return StorageNodeConfig(**(given | about | options))

    async def start_node(self, number: int, fs: FileSystem | None = None, **options: Any) -> StorageNodeServer:
        config = self.node_config(number, **options)
        node = await StorageNodeServer.start(config, fs or OSFileSystem(), self.failures.append)
        self.nodes[number] = node
        return node

    async def stop_node(self, number: int) -> None:
        await self.nodes.pop(number).stop()

    async def stop(self) -> None:
        for caller in self._callers:
            caller.connection.close()
        for manager in self.managers:
            await manager.stop()
        for node in self.nodes.values():
            await node.stop()
        if self._has_vmr:
            await self.vmr.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # Talking to them

    async def call(
        self, address: str, wants: Role, role: Role = Role.CLIENT, node_id: int = 0, cid: int = CID
    ) -> Caller:
        caller = Caller()
        identity = Identity(ClusterID(cid), role, node_id)
        caller.connection = await dial(address, identity, wants, self.secret, caller)
        self._callers.append(caller)
        return caller

    async def call_vmr(self, role: Role = Role.CLIENT, node_id: int = 0) -> Caller:
        return await self.call(self.vmr.address, Role.METADATA_REPOSITORY, role, node_id)

    async def call_node(self, number: int, role: Role = Role.CLIENT, node_id: int = 0) -> Caller:
        return await self.call(self.nodes[number].address, Role.STORAGE_NODE, role, node_id)

    async def call_manager(self, manager: ManagerServer | None = None) -> Caller:
        return await self.call((manager or self.managers[0]).address, Role.MANAGER)

    async def manage(self, build: Callable[[int], Message], manager: ManagerServer | None = None) -> int:
        """Ask a manager for something, as an operator does; raises what it refuses with."""
        caller = await self.call_manager(manager)
        managed = await caller.ask(Managed, build)
        caller.connection.close()
        if managed.code:
            raise errors.VarlogError.of(managed.code, managed.detail)
        return managed.value

    async def decide(self, build: Callable[[int], Message]) -> Decided:
        """Ask the metadata repository for a decision, through the manager that leads or as the only one there is."""
        leading = [manager for manager in self.managers if manager.leads]
        if leading:
            carrier = leading[0]._carrier
            answer = await carrier.asking.ask(carrier._reach(METADATA_REPOSITORY), build(leading[0]._request()))
            assert isinstance(answer, Decided)
            return answer
        caller = await self.call_vmr(Role.MANAGER)
        assert (await caller.ask(Decided, lambda request: RegisterManager(request, "127.0.0.1:1"))).code == 0
        decided = await caller.ask(Decided, build)
        caller.connection.close()
        return decided

    async def metadata(self) -> Metadata:
        caller = await self.call_vmr()
        metadata = await caller.ask(Metadata, GetMetadata)
        caller.connection.close()
        return metadata

    async def info(self, number: int) -> Info:
        caller = await self.call_node(number)
        info = await caller.ask(Info, GetInfo)
        caller.connection.close()
        return info

    # What takes several of them

    async def start(self, nodes: int = 3, streams: int = 1, manager: bool = True) -> None:
        """Everything, up to a topic whose log streams run."""
        await self.start_vmr()
        if manager:
            await self.start_manager()
        for number in range(1, nodes + 1):
            await self.start_node(number)
        if manager:
            await self.add_nodes()
        if manager and streams:
            await self.add_topic(streams)

    async def add_topic(self, streams: int = 1, name: str = TOPIC, factor: int = 0) -> None:
        """Make a topic, and wait until all there is runs."""
        await self.manage(lambda request: AddTopic(request, name, factor, 0, streams))
        await self.running(len(self.streams()))

    async def add_nodes(self) -> None:
        await until(lambda: self.managers[0].leads)
        for node in self.nodes.values():
            await self.add_node(node)

    async def add_node(self, node: StorageNodeServer) -> int:
        return await self.manage(lambda request: AddNode(request, node.address))

    def streams(self) -> list[StreamInfo]:
        return list(describe(self.vmr.repository.state, 0).streams)

    async def running(self, count: int = 1, beyond: int = 0) -> list[StreamInfo]:
        """Wait until so many log streams run, each in an epoch beyond the one that was."""

        def all_run() -> bool:
            streams = self.streams()
            running = [s for s in streams if s.status is StreamStatus.RUNNING and s.epoch > beyond]
            return len(streams) == len(running) == count

        await until(all_run)
        return self.streams()

    async def append(self, *entries: bytes, lsid: int = 1, writer: int = 7, sequence: int = 1) -> AppendReply:
        """Append a batch to a log stream through its primary; wait until it is committed. A primary may be known to run
        before its record of that is durable: then it is asked again, as a client does."""
        packed = batch.encode(entries, writer_id=writer, sequence=sequence)
        while True:
            stream = next(stream for stream in self.streams() if stream.lsid == lsid)
            append = partial(
                Append,
                lsid=stream.lsid,
                epoch=stream.epoch,
                prev_sequence=Sequence(sequence - 1),
                horizon=LLSN(1),
                batch=packed,
            )
            caller = await self.call_node(stream.primary)
            reply = await caller.ask(AppendReply, append)
            caller.connection.close()
            if reply.code != errors.Sealed.code:
                return reply


@asynccontextmanager
async def cluster(path: Path, nodes: int = 3, streams: int = 1, manager: bool = True) -> AsyncIterator[Small]:
    """A whole cluster for as long as the block lasts, in which nothing has to stop to protect data."""
    async with Small(path) as small:
        await small.start(nodes, streams, manager)
        yield small
    assert not small.failures
