"""ManagerServer: the manager on an event loop.

It asks the metadata repository and every storage node how they are, a few times a second, and sends what
`varlog.core.manager` decides; when something it asked for has been done it looks again at once, so a restart flow of
many steps takes as long as its messages. It keeps nothing: the next look at the world shows what has happened.

Operators' requests are conversations of `varlog.core.registration`; here they are carried, each with a deadline.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final

from varlog import errors, limits
from varlog.core.address import METADATA_REPOSITORY, Address, node_address, unnamed_address
from varlog.core.conversing import Answer, Conversation
from varlog.core.identity import SECRET_BYTES, new_secret
from varlog.core.manager import reconcile
from varlog.core.messages import (
    AddNode,
    AddStream,
    AddTopic,
    Decided,
    DeclareLost,
    DrainNode,
    GetInfo,
    GetMetadata,
    HoldLogStream,
    IdentityAdopted,
    Info,
    Managed,
    Message,
    Metadata,
    MoveReplica,
    RegisterManager,
    RemoveNode,
    RemoveStream,
    RemoveTopic,
    ReplaceNode,
    ReplicaReply,
    SyncLogStream,
    SyncReply,
)
from varlog.core.registration import Registrar
from varlog.daemon import logs
from varlog.daemon.config import ManagerConfig
from varlog.daemon.peers import Peers, answers_ping
from varlog.manager.asking import ANSWER_SECONDS, Asking
from varlog.types import ClusterID, StorageNodeID
from varlog.wire.connection import Connection
from varlog.wire.hello import Identity, Role
from varlog.wire.link import Link, dial
from varlog.wire.secret import Secret
from varlog.wire.server import Server

HEARTBEAT: Final = 0.5
FRESH: Final = 1.5
"""A node that has not answered for so long is not counted on."""

_ACCEPTED: Final[dict[Role, frozenset[type[Message]]]] = {
    Role.CLIENT: frozenset[type[Message]](
        {
            *(AddNode, RemoveNode, DrainNode, ReplaceNode),
            *(AddTopic, RemoveTopic),
            *(AddStream, RemoveStream, HoldLogStream, SyncLogStream, MoveReplica, DeclareLost),
        }
    ),
    Role.METADATA_REPOSITORY: frozenset[type[Message]]({Metadata, Decided}),
    Role.STORAGE_NODE: frozenset[type[Message]]({Info, ReplicaReply, SyncReply, IdentityAdopted}),
}


class ManagerServer:
    """See the module's text. Made by `start`."""

    def __init__(self, config: ManagerConfig, secret: Secret) -> None:
        self._config = config
        self._secret = secret
        self._loop = asyncio.get_running_loop()
        self._log = logs.get()
        self._identity = Identity(ClusterID(config.cluster), Role.MANAGER)
        self._server: Server
        self._links: dict[Address, Link] = {}
        self._locations: dict[Address, str] = {}
        self._requests = 0
        self._asking = Asking()
        self._conversations: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._sent: dict[str, float] = {}
        """When the steps of late were sent, by their sentences: what goes on is said once, and asked for again only
        after a while."""
        self._looked = -HEARTBEAT
        self._looks_again = False
        self._metadata_request = 0
        """What was asked for after this is newer than the metadata."""
        self.steps = 0
        self.peers = Peers()
        self.metadata: Metadata | None = None
        self.infos: dict[StorageNodeID, tuple[float, Info]] = {}
        self._met = asyncio.Event()
        """A node has said how it is."""
        self._registration = 0
        self._is_registered = False
        self._registrar = Registrar(self._request, self._fresh_infos, _new_secret)

    @classmethod
    async def start(cls, config: ManagerConfig) -> ManagerServer:
        secret = Secret.load(config.secret_file)
        manager = cls(config, secret)
        accepts = frozenset({Role.CLIENT})
        manager._server = await Server.start(config.listen, manager._identity, accepts, secret, manager)
        manager._link(METADATA_REPOSITORY, config.metadata_repository, Role.METADATA_REPOSITORY)
        manager._beat()
        return manager

    @property
    def listening(self) -> str:
        """The address it listens on."""
        return self._server.address

    @property
    def address(self) -> str:
        return self._config.advertise or self._server.address

    @property
    def is_connected(self) -> bool:
        """To the metadata repository."""
        return self.peers.at(METADATA_REPOSITORY) is not None

    @property
    def registered(self) -> list[StorageNodeID]:
        return [node.snid for node in self.metadata.nodes] if self.metadata is not None else []

    @property
    def answering(self) -> list[StorageNodeID]:
        return sorted(self._fresh_infos())

    @property
    def doing(self) -> list[str]:
        """What it is about, in sentences."""
        return list(self._sent)

    async def stop(self) -> None:
        """Serve no more. What operators asked for and is under way is left as it is: nothing half-made counts."""
        if self._timer is not None:
            self._timer.cancel()
        await self._server.close()
        for task in self._conversations:
            task.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)
        for link in self._links.values():
            link.close()

    # Connections

    def _link(self, address: Address, location: str, role: Role, node_id: int = 0) -> None:
        link = self._links[address] = Link(location, self._identity, role, self._secret, self, node_id)
        self._locations[address] = location
        link.open()

    def on_connected(self, connection: Connection) -> None:
        address = self.peers.admit(connection)
        self._log.debug("connected", peer=address, remote=connection.remote)
        if address == METADATA_REPOSITORY:
            self._is_registered = False
            self._register()
            connection.send(GetMetadata(self._request()))
        elif connection.peer.role is Role.STORAGE_NODE:
            connection.send(GetInfo(self._request()))

    def on_message(self, connection: Connection, message: Message) -> None:
        role = connection.peer.role
        if type(message) not in _ACCEPTED[role]:
            if answers_ping(connection, message):
                return
            raise errors.ProtocolError(f"a manager does not take {type(message).__name__} from a {role.name}")
        if role is Role.CLIENT:
            self._on_asked(connection, message)
            return
        if isinstance(message, Metadata):
            self._on_metadata(message)
        elif isinstance(message, Info):
            self._on_info(connection, message)
        if not self._asking.answers(connection, message) and isinstance(message, Decided | ReplicaReply):
            self._on_done(message)

    def on_turn(self, connection: Connection) -> None:
        pass

    def on_closed(self, connection: Connection, error: errors.VarlogError | None) -> None:
        self._asking.on_closed(connection, error)
        address = self.peers.drop(connection)
        if address is not None and error is not None:
            self._log.info("connection closed", peer=address, reason=str(error))

    def _request(self) -> int:
        self._requests += 1
        return self._requests

    # Watching

    def _beat(self) -> None:
        self._timer = self._loop.call_later(HEARTBEAT, self._beat)
        if not self._is_registered:
            self._register()
        self._look()

    def _register(self) -> None:
        """Say where this manager is, until the metadata repository knows. Another one that says so later stands."""
        self._registration = self._request()
        self.peers.send(METADATA_REPOSITORY, RegisterManager(self._registration, self.address))

    def _look(self) -> None:
        """Ask the metadata repository, and when it has answered the nodes: what a node says must not be older than what
        it is compared with, or a replica that has just done what it was told would seem to have fallen behind."""
        now = self._loop.time()
        if now - self._looked < HEARTBEAT:
            self._looks_again = True  # what is under way may be from before what this look is for
            return
        self._looked = now
        self.peers.send(METADATA_REPOSITORY, GetMetadata(self._request()))

    def _on_metadata(self, metadata: Metadata) -> None:
        """The latest of the one connection there is; after a reconnect it counts also if it is older (rule 5)."""
        self.metadata = metadata
        self._looked = -HEARTBEAT
        self._follow_nodes(metadata)
        self._metadata_request = self._requests
        for node in metadata.nodes:
            self.peers.send(node_address(node.snid), GetInfo(self._request()))
        if self._looks_again:
            self._looks_again = False
            self._look()

    def _follow_nodes(self, metadata: Metadata) -> None:
        wanted = {node_address(node.snid): node for node in metadata.nodes if node.address}
        for address in self._locations.keys() - {METADATA_REPOSITORY}:
            if address not in wanted or wanted[address].address != self._locations[address]:
                self._links.pop(address).close()
                del self._locations[address]
        for address, node in wanted.items():
            if address not in self._links:
                self._link(address, node.address, Role.STORAGE_NODE, node.snid)
        for snid in self.infos.keys() - {node.snid for node in metadata.nodes}:
            del self.infos[snid]

    def _on_info(self, connection: Connection, info: Info) -> None:
        _check_own(connection, info)
        before = self.infos.get(info.snid)
        if before is None or info.boot >= before[1].boot:
            self.infos[info.snid] = (self._loop.time(), info)
            self._met.set()
            self._act()

    def _fresh_infos(self) -> dict[StorageNodeID, Info]:
        now = self._loop.time()
        return {snid: info for snid, (heard, info) in self.infos.items() if now - heard < FRESH}

    def _act(self) -> None:
        """Take the next steps. Acting on answers as they come may repeat a request, which is harmless."""
        if self.metadata is None:
            return
        now = self._loop.time()
        sent = {sentence: when for sentence, when in self._sent.items() if now - when < FRESH}
        infos = {snid: info for snid, info in self._fresh_infos().items() if info.request > self._metadata_request}
        for step in reconcile(self.metadata, infos, self._request):
            before = sent.get(step.sentence)
            if before is None:
                self._log.info(step.sentence)
            if before is None or now - before >= HEARTBEAT:
                self.peers.send(step.address, step.message)
                self.steps += 1
                sent[step.sentence] = now
        self._sent = sent

    def _on_done(self, message: Decided | ReplicaReply) -> None:
        if message.request == self._registration:
            self._is_registered = message.code == 0
        if message.code:
            self._log.debug("refused", answer=message)
        self._look()

    # Operators

    def _on_asked(self, connection: Connection, message: Message) -> None:
        if len(self._conversations) >= limits.MAX_PENDING_DECISIONS:
            busy = errors.Busy("the manager has as many requests under way as it takes")
            connection.send(Managed(message.request, busy.code, str(busy)))  # type: ignore[attr-defined]
            return
        task = self._loop.create_task(self._converse(connection, message))
        self._conversations.add(task)
        task.add_done_callback(self._conversations.discard)

    async def _converse(self, connection: Connection, asked: Message) -> None:
        request: int = asked.request  # type: ignore[attr-defined]
        try:
            value = await self.do(asked)
        except errors.VarlogError as error:
            connection.send(Managed(request, error.code, str(error)[: limits.MAX_DETAIL]))
        else:
            connection.send(Managed(request, 0, value=value))

    async def do(self, asked: Message) -> int:
        """Do what an operator asks for; returns the id of what was made."""
        try:
            made = await self._run(self._registrar.begin(asked))
        finally:
            self._look()
        if isinstance(asked, AddNode):
            await self._meet(StorageNodeID(made))
        return made

    async def _meet(self, snid: StorageNodeID) -> None:
        """Wait for a new node's first answer: a topic that is asked for next may need it."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while snid not in self.infos:
                    self._met.clear()
                    await self._met.wait()
        except TimeoutError:
            self._log.warning("a node was added and does not answer", snid=snid)

    async def _run(self, conversation: Conversation) -> int:
        answers: Sequence[Answer] | None = None
        try:
            while True:
                requests = conversation.send(answers)  # type: ignore[arg-type]  # the first one is None
                answers = await asyncio.gather(*(self._ask(address, message) for address, message in requests))
        except StopIteration as stop:
            value: int = stop.value
            return value

    async def _ask(self, address: Address, message: Message) -> Answer:
        """The answer to a request, or why there is none."""
        try:
            if address.startswith(unnamed_address("")):
                return await self._ask_unnamed(address.removeprefix(unnamed_address("")), message)
            connection = self.peers.at(address)
            if connection is None:
                link = self._links.get(address)
                why = str(link.error) if link is not None and link.error is not None else "not connected"
                raise errors.Unreachable(f"{address} ({self._locations.get(address, 'unknown address')}): {why}")
            return await self._asking.ask(connection, message)
        except errors.VarlogError as error:
            return error

    async def _ask_unnamed(self, location: str, message: Message) -> Message:
        """Of a node that is not known by name yet."""
        asking = Asking()
        connection = await dial(
            location, self._identity, Role.STORAGE_NODE, self._secret, asking, timeout=ANSWER_SECONDS
        )
        try:
            answer = await asking.ask(connection, message)
            if isinstance(answer, Info):
                _check_own(connection, answer)
            return answer
        finally:
            connection.close()


def _check_own(connection: Connection, info: Info) -> None:
    if info.snid != connection.peer.node_id:
        raise errors.ProtocolError(f"storage node {connection.peer.node_id} speaks for another one")


def _new_secret() -> str:
    return new_secret(secrets.token_bytes(SECRET_BYTES))
