"""A whole cluster in one process: metadata repository, manager, sequencer and storage nodes on one event loop.

The daemons are the real ones, with real files and sockets on loopback; only their processes are missing. What is
acknowledged is on disk as often as there are replicas, but all of them fail together: it is for scripts, tests and a
first look. What it leaves behind is opened again by the next start. A storage node whose directory is gone begins anew,
and is given its replicas by the others.

The directory holds `metadata`, `node-1` to `node-n`, `secret`, and `cluster.toml`, by which clients find the cluster.

With `etcd`, metadata is kept in an etcd of its own instead of in the directory `metadata`: three members, which are
processes, with their data in the directory `etcd`; and there are two metadata repositories, of which one leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from varlog import descriptors, errors, limits
from varlog.client.arguments import check_count, check_directory, check_text
from varlog.client.cluster import CLUSTER_FILE, DEFAULT_TOPIC, ClusterFile, write_file
from varlog.core.messages import AddNode, AddTopic
from varlog.daemon.config import ManagerConfig, MetadataRepositoryConfig, SequencerConfig, StorageNodeConfig
from varlog.manager.server import ManagerServer
from varlog.metarepo.server import MetadataRepositoryServer
from varlog.sequencer.server import SequencerServer
from varlog.storage.files import OSFileSystem
from varlog.storage.residents import OpenFiles
from varlog.storagenode.server import StorageNodeServer
from varlog.types import Ordering, StorageNodeID, StreamStatus
from varlog.wire.secret import Secret

if TYPE_CHECKING:
    from varlog.client.log import Log

NODES: Final = 3
CID: Final = 1
ANY_PORT: Final = "127.0.0.1:0"
START_SECONDS: Final = 30.0
_NO_POLL: Final = 0
"""Whoever looks for messages here looks for everybody's, and its looking is in everybody's way."""
_LOOK_AGAIN: Final = 0.005
_ASK_AGAIN: Final = 0.1


class EmbeddedCluster:
    """The daemons of one process. Made by `start`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends with the error that made a daemon stop to protect data."""
        self.repositories: list[MetadataRepositoryServer] = []
        self.manager: ManagerServer
        self.sequencers: list[SequencerServer] = []
        self.nodes: list[StorageNodeServer] = []
        self.renewed: list[StorageNodeID] = []
        """Nodes that had lost their disks, and have begun anew."""
        self._running = AsyncExitStack()

    @classmethod
    async def start(
        cls,
        path: str | Path,
        *,
        topic: str = DEFAULT_TOPIC,
        streams: int = 1,
        nodes: int = NODES,
        listen: str = ANY_PORT,
        etcd: bool = False,
        ordering: str = Ordering.COMMIT.label,
        sequencers: int = 1,
    ) -> EmbeddedCluster:
        """Start what the directory holds, or make it: `nodes` storage nodes or those there are, if they are more, and a
        topic of `streams` log streams with that ordering if there is none of that name. Clients are served at
        `listen`."""
        count = check_count("nodes", nodes, 1, limits.MAX_NODES_IN_ONE_PROCESS)
        wanted = AddTopic(
            0,
            check_text("topic", topic),
            0,
            0,
            check_count("streams", streams, 1),
            ordering=Ordering.labelled(ordering),
        )
        cluster = cls(check_directory("path", path))
        check_kind(cluster.path, etcd=etcd)
        try:
            await asyncio.wait_for(cluster._start(wanted, count, sequencers, listen, etcd), START_SECONDS)
        except TimeoutError:
            why = cluster._why_not()
            await cluster.stop()
            raise errors.Unreachable(f"the cluster in {path} did not start within {START_SECONDS:g} s{why}") from None
        except BaseException:
            await cluster.stop()
            raise
        return cluster

    async def _start(self, wanted: AddTopic, nodes: int, sequencers: int, listen: str, etcd: bool) -> None:
        nodes = max(nodes, _nodes_in(self.path))
        secret_file = prepare(self.path, nodes)
        files = OSFileSystem()
        descriptors.raise_limit()
        open_files = OpenFiles(descriptors.for_segments())
        for store in await self._metadata_configs(secret_file, listen, etcd):
            self.repositories.append(await MetadataRepositoryServer.start(store, files, self._fail))
            self._running.push_async_callback(self.repositories[-1].stop)
        address = self.address
        manager = ManagerConfig(secret_file=secret_file, listen=ANY_PORT, metadata_repository=address, http=None)
        self.manager = await ManagerServer.start(manager)
        self._running.push_async_callback(self.manager.stop)
        for _ in range(sequencers):
            about = SequencerConfig(secret_file=secret_file, listen=ANY_PORT, metadata_repository=address, http=None)
            self.sequencers.append(await SequencerServer.start(about))
            self._running.push_async_callback(self.sequencers[-1].stop)
        for number in range(1, nodes + 1):
            volume = str(self.path / f"node-{number}")
            node = StorageNodeConfig(
                secret_file=secret_file,
                snid=number,
                volumes=[volume],
                listen=ANY_PORT,
                metadata_repository=address,
                http=None,
                busy_poll=_NO_POLL,
            )
            self.nodes.append(await StorageNodeServer.start(node, files, self._fail, open_files))
            self._running.push_async_callback(self.nodes[-1].stop)
        await self._register(wanted)
        addresses = tuple(repository.address for repository in self.repositories)
        write_file(self.path / CLUSTER_FILE, ClusterFile(addresses, CID, Path(secret_file).name, wanted.name))

    async def _metadata_configs(self, secret_file: str, listen: str, etcd: bool) -> list[MetadataRepositoryConfig]:
        if not etcd:
            path = str(self.path / "metadata")
            only = MetadataRepositoryConfig(
                path=path, secret_file=secret_file, listen=listen, http=None, busy_poll=_NO_POLL
            )
            return [only]
        from varlog.etcdserver import EtcdCluster, EtcdFailed  # noqa: PLC0415  # few need one

        try:
            members = await self._running.enter_async_context(EtcdCluster(self.path / "etcd"))
        except EtcdFailed as error:
            raise errors.StoreUnavailable(str(error)) from None
        return [
            MetadataRepositoryConfig(
                store=members.url("varlog"),
                etcd_any_version=not members.program.is_sound,
                secret_file=secret_file,
                listen=place,
                http=None,
                busy_poll=_NO_POLL,
            )
            for place in (listen, ANY_PORT)
        ]

    async def _register(self, wanted: AddTopic) -> None:
        manager = self.manager
        await self._until(lambda: manager.metadata is not None and manager.leads)
        for node in self.nodes:
            if node.snid not in manager.registered:
                await manager.do(AddNode(0, node.address))
        await self._until(lambda: all(node.snid in manager.answering or _is_lost(node) for node in self.nodes))
        await self._begin_anew([node for node in self.nodes if _is_lost(node)])
        assert manager.metadata is not None
        if wanted.name not in {known.name for known in manager.metadata.topics}:
            await self._until(lambda: all(sequencer.core.is_registered for sequencer in self.sequencers))
            await manager.do(wanted)
        await self._until(lambda: self._is_running(wanted.name))

    async def _begin_anew(self, lost: Sequence[StorageNodeServer]) -> None:
        """Give nodes that have lost their disks another identity, once the others go on without them (B11). The manager
        would do so by itself, if it knew where they are: every start has them listen elsewhere."""
        metadata, snids = self.manager.metadata, {node.snid for node in lost}
        assert metadata is not None
        for stream in metadata.streams:
            if stream.replicas and snids.issuperset(stream.replicas):
                gone = " and ".join(f"{self.path}/node-{snid}" for snid in stream.replicas)
                raise errors.WrongIdentity(
                    f"{gone} held all replicas of log stream {stream.lsid}, and nothing is there any more; put it "
                    f"back, or remove {self.path} to begin anew"
                )
        for node in lost:
            while node.snid not in self.renewed:
                try:
                    await self.manager.do(AddNode(0, node.address))
                    self.renewed.append(node.snid)
                except errors.Conflict:  # a log stream still counts on what it had
                    await asyncio.sleep(_ASK_AGAIN)

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that the daemons bring about by themselves, unless one of them has to stop; the caller has
        a deadline."""
        while not holds():
            if self.failed.done():
                self.failed.result()
            await asyncio.sleep(_LOOK_AGAIN)

    def _why_not(self) -> str:
        """What can be said of a start that takes too long."""
        reasons = [f"node {node.snid}: {node.announcing.refusal}" for node in self.nodes if node.announcing.refusal]
        return f" ({'; '.join(reasons)})" if reasons else ""

    def _is_running(self, topic: str) -> bool:
        metadata = self.manager.metadata
        assert metadata is not None
        known = next((known for known in metadata.topics if known.name == topic), None)
        if known is None:
            return False
        of_topic = [s for s in metadata.streams if s.tpid == known.tpid and s.status is not StreamStatus.ABORTED]
        if known.ordering is Ordering.SEQUENCER:
            chained = {chain.lsid for chain in known.projection.chains} if known.projection is not None else set()
            return bool(of_topic) and all(stream.lsid in chained for stream in of_topic)
        return bool(of_topic) and all(stream.status is StreamStatus.RUNNING for stream in of_topic)

    def _fail(self, error: errors.VarlogError) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    @property
    def address(self) -> str:
        """Where clients find the cluster; several addresses are separated by commas."""
        return ",".join(repository.address for repository in self.repositories)

    async def stop(self) -> None:
        """Stop every daemon; what was acknowledged is on disk."""
        await self._running.aclose()
        if self.failed.done() and not self.failed.cancelled():
            self.failed.exception()
        self.failed.cancel()


def check_kind(path: Path, *, etcd: bool) -> None:
    """Refuse to begin anew beside metadata of the other kind: the storage nodes know of that."""
    other = path / ("metadata" if etcd else "etcd")
    if other.is_dir() and any(other.iterdir()):
        made, way = ("without", "drop --etcd") if etcd else ("with", "add --etcd")
        raise errors.BadConfig(f"{path} was made {made} an etcd; {way}, or name another directory")


def prepare(path: Path, nodes: int) -> str:
    """Make what is missing in a cluster's directory; the path of its secret."""
    secret_file = path / "secret"
    try:
        for name in ("metadata", *(f"node-{number}" for number in range(1, nodes + 1))):
            (path / name).mkdir(parents=True, exist_ok=True)
        if not secret_file.exists():
            Secret.create(secret_file)
    except OSError as error:
        raise errors.NotWritable(
            f"{path} cannot hold a cluster: {error.strerror or error}; name a directory"
        ) from error
    return str(secret_file)


def _nodes_in(path: Path) -> int:
    """How many storage nodes a cluster's directory is known to have."""
    numbers = [entry.name.removeprefix("node-") for entry in path.glob("node-*")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _is_lost(node: StorageNodeServer) -> bool:
    """It is registered, and has nothing to prove it with."""
    return bool(node.announcing.refusal) and not node.announcing.is_identified


@asynccontextmanager
async def embedded(
    path: str | Path,
    *,
    topic: str = DEFAULT_TOPIC,
    streams: int = 1,
    nodes: int = NODES,
    ordering: str = Ordering.COMMIT.label,
) -> AsyncIterator[Log]:
    """A log in a directory, with the cluster that keeps it running in this process for as long as the block lasts.
    If there is no such topic it is made with that ordering, `commit` or `sequencer`.

    >>> import asyncio, tempfile, varlog
    >>> async def main() -> bytes:
    ...     with tempfile.TemporaryDirectory() as path:
    ...         async with varlog.embedded(path) as log:
    ...             result = await log.append(b"hello")
    ...             return (await log.read(result.glsn)).data
    >>> asyncio.run(main())
    b'hello'
    """
    from varlog.client import connect  # noqa: PLC0415  # the daemons need no client

    cluster = await EmbeddedCluster.start(path, topic=topic, streams=streams, nodes=nodes, ordering=ordering)
    try:
        async with connect(cluster.path, topic=topic) as log:
            yield log
    finally:
        await cluster.stop()
