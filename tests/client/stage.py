"""A cluster that does as it is told: real connections, and behind them a few lines instead of a protocol.

It keeps a topic's entries in memory and gives positions as appends arrive; of appends in a passed epoch it tells what
became of them. A test can make any of its servers silent, let it answer something else, break its connections, or take
it away. What is proven against it is what the client makes of answers; that the answers are right is proven elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from varlog import batch, errors
from varlog.client.cluster import CLUSTER_FILE, ClusterFile, write_file
from varlog.core.messages import (
    Append,
    AppendReply,
    Decided,
    GetInfo,
    GetMetadata,
    GetTail,
    Info,
    Leading,
    Message,
    Metadata,
    NodeInfo,
    NotLeading,
    Scan,
    ScanReply,
    StoredLine,
    StreamInfo,
    Tail,
    TopicInfo,
    TrimTopic,
)
from varlog.types import GLSN, LLSN, ClusterID, Epoch, LogStreamID, StorageNodeID, StreamStatus, Term, TopicID, Version
from varlog.wire import Connection, Identity, Role, Secret, Server

CID = ClusterID(7)
TOPIC = TopicID(1)
ACCEPTS = frozenset(Role)
Answer = Callable[[Connection, Any], None]


class Puppet:
    """One server of the cluster."""

    def __init__(self, answers: dict[type[Message], Answer]) -> None:
        self.answers = answers
        self.silent = False
        """Hears everything and answers nothing."""
        self.heard: list[Message] = []
        self.connections: list[Connection] = []
        self.standing: Leading | NotLeading | None = None
        """What it says to whoever connects."""
        self._server: Server | None = None
        self.address = "127.0.0.1:0"

    async def start(self, identity: Identity, secret: Secret) -> None:
        """Listen, at the same address as before if there was one."""
        self._identity, self._secret = identity, secret
        self._server = await Server.start(self.address, identity, ACCEPTS, secret, self)
        self.address = self._server.address

    async def restart(self) -> None:
        await self.start(self._identity, self._secret)

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.close()

    def break_connections(self) -> None:
        for connection in list(self.connections):
            connection.close()

    def of(self, kind: type[Message]) -> list[Any]:
        """What was heard of a kind."""
        return [message for message in self.heard if type(message) is kind]

    def on_connected(self, connection: Connection) -> None:
        self.connections.append(connection)
        if self.standing is not None:
            connection.send(self.standing)

    def on_message(self, connection: Connection, message: Message) -> None:
        self.heard.append(message)
        if not self.silent:
            self.answers[type(message)](connection, message)

    def on_turn(self, connection: Connection) -> None: ...

    def on_closed(self, connection: Connection, _error: errors.VarlogError | None) -> None:
        self.connections.remove(connection)


class Stage:
    """The cluster: `repositories`, `nodes` by id, and what they have in common."""

    def __init__(self, *, nodes: int, streams: int, repositories: int) -> None:
        self.version = 1
        self.hwm = 0
        self.trim = 0
        self.topics = {TOPIC: "log"}
        self.streams = {
            LogStreamID(lsid): StreamInfo(
                LogStreamID(lsid),
                TOPIC,
                Epoch(2),
                StreamStatus.RUNNING,
                tuple(StorageNodeID(1 + (lsid - 1 + place) % nodes) for place in range(nodes)),
                StorageNodeID(1 + (lsid - 1) % nodes),
                LLSN(1),
                GLSN(0),
            )
            for lsid in range(1, streams + 1)
        }
        self.stored: dict[LogStreamID, list[StoredLine]] = {lsid: [] for lsid in self.streams}
        self.seen: dict[tuple[int, int, int], AppendReply] = {}
        self.min_replicas = 1
        self.manager = ""
        self.waiting: list[tuple[Connection, Scan]] = []
        metadata: dict[type[Message], Answer] = {
            GetMetadata: self._on_get_metadata,
            GetTail: self._on_get_tail,
            TrimTopic: self._on_trim,
        }
        self.repositories = [Puppet(dict(metadata)) for _ in range(repositories)]
        self.term = 0
        self.elect(0)
        self.nodes = {
            StorageNodeID(snid): Puppet(
                {Append: self._on_append, Scan: self._on_scan, GetInfo: self._info_of(StorageNodeID(snid))}
            )
            for snid in range(1, nodes + 1)
        }

    @classmethod
    async def start(cls, path: Path, *, nodes: int = 1, streams: int = 1, repositories: int = 1) -> Stage:
        """Listen, and write a cluster file into the directory."""
        stage = cls(nodes=nodes, streams=streams, repositories=repositories)
        secret = Secret.create(path / "secret")
        for repository in stage.repositories:
            await repository.start(Identity(CID, Role.METADATA_REPOSITORY), secret)
        for snid, node in stage.nodes.items():
            await node.start(Identity(CID, Role.STORAGE_NODE, snid), secret)
        addresses = tuple(repository.address for repository in stage.repositories)
        write_file(path / CLUSTER_FILE, ClusterFile(addresses, CID))
        return stage

    async def stop(self) -> None:
        for puppet in [*self.repositories, *self.nodes.values()]:
            await puppet.stop()

    async def __aenter__(self) -> Stage:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # The metadata repository

    def elect(self, number: int) -> None:
        """Let one of the metadata repositories lead, and all of them say so."""
        self.term += 1
        address = self.repositories[number].address
        for other, repository in enumerate(self.repositories):
            leads = other == number
            repository.standing = Leading(Term(self.term)) if leads else NotLeading(Term(self.term), address)
            for connection in repository.connections:
                connection.send(repository.standing)

    def change(self, lsid: int, **fields: Any) -> None:
        """Decide something about a log stream."""
        info = self.streams[LogStreamID(lsid)]
        known = {name: getattr(info, name) for name in info.__struct_fields__}
        self.streams[LogStreamID(lsid)] = StreamInfo(**(known | fields))
        self.version += 1

    def metadata(self, request: int = 0) -> Metadata:
        nodes = tuple(NodeInfo(snid, puppet.address) for snid, puppet in self.nodes.items())
        topics = tuple(
            TopicInfo(tpid, name, GLSN(self.hwm), GLSN(self.trim), len(self.nodes), self.min_replicas)
            for tpid, name in self.topics.items()
        )
        return Metadata(request, Version(self.version), nodes, topics, tuple(self.streams.values()), self.manager)

    def _on_get_metadata(self, connection: Connection, message: GetMetadata) -> None:
        connection.send(self.metadata(message.request))

    def _on_get_tail(self, connection: Connection, message: GetTail) -> None:
        connection.send(Tail(message.request, 0, GLSN(self.hwm), GLSN(self.trim)))

    def _on_trim(self, connection: Connection, message: TrimTopic) -> None:
        self.trim = max(self.trim, min(message.glsn, self.hwm))
        self.version += 1
        connection.send(Decided(message.request, 0, Version(self.version), self.trim))

    # Storage nodes

    def write(self, lsid: int, entries: list[bytes]) -> AppendReply:
        """Put a batch into a log stream."""
        return self._commit(LogStreamID(lsid), batch.encode(entries, writer_id=1), 0)

    def _commit(self, lsid: LogStreamID, data: bytes, request: int) -> AppendReply:
        header = batch.verify(data)
        stored = self.stored[lsid]
        llsn = stored[-1][1] + stored[-1][2] if stored else 1
        glsn, self.hwm = self.hwm + 1, self.hwm + header.count
        self.version += 1
        stored.append((glsn, llsn, header.count, 2, self.version, 1_000_000 + glsn, data))
        epoch = self.streams[lsid].epoch
        self.change(lsid, llsn_end=LLSN(llsn + header.count), last_glsn=GLSN(self.hwm))
        waiting, self.waiting = self.waiting, []
        for connection, scan in waiting:
            self._on_scan(connection, scan)
        return AppendReply(request, lsid, 0, epoch, GLSN(glsn), LLSN(llsn), header.count, 3, True)

    def _on_append(self, connection: Connection, message: Append) -> None:
        epoch = self.streams[message.lsid].epoch
        if message.epoch < epoch and self._name(message) not in self.seen:
            connection.send(AppendReply(message.request, message.lsid, errors.DidNotHappen.code, epoch))
        else:
            before = self.take(message)
            known = {field: getattr(before, field) for field in before.__struct_fields__}
            connection.send(AppendReply(**(known | {"request": message.request})))

    def take(self, message: Append) -> AppendReply:
        """Commit a batch, unless that was done before, and tell nobody."""
        name = self._name(message)
        if name not in self.seen:
            self.seen[name] = self._commit(message.lsid, bytes(message.batch), 0)
        return self.seen[name]

    def _name(self, message: Append) -> tuple[int, int, int]:
        header = batch.peek_header(message.batch)
        return message.lsid, header.writer_id, header.sequence

    def payloads(self, lsid: int) -> list[bytes]:
        """What a log stream holds."""
        return [entry for line in self.stored[LogStreamID(lsid)] for entry in batch.decode(line[6]).to_list()]

    def _on_scan(self, connection: Connection, scan: Scan) -> None:
        if scan.glsn_begin <= self.trim:
            connection.send(ScanReply(scan.request, scan.lsid, errors.Trimmed.code, first=GLSN(self.trim + 1)))
        elif scan.glsn_begin > self.hwm:
            self.waiting.append((connection, scan))
        else:
            connection.send(self.scanned(scan))

    def scanned(self, scan: Scan) -> ScanReply:
        """The honest answer to a scan of what is there."""
        found: list[StoredLine] = []
        size = 0
        for line in self.stored[scan.lsid]:
            if line[0] + line[2] > scan.glsn_begin:
                if size >= scan.max_bytes:
                    return ScanReply(scan.request, scan.lsid, 0, tuple(found), GLSN(line[0] - 1))
                found.append(line)
                size += len(line[6])
        return ScanReply(scan.request, scan.lsid, 0, tuple(found), GLSN(self.hwm))

    def _info_of(self, snid: StorageNodeID) -> Answer:
        def answer(connection: Connection, message: GetInfo) -> None:
            connection.send(Info(message.request, snid, 1, ()))

        return answer
