"""ManagerServer: the manager on an event loop.

It asks the metadata repository and every storage node how they are, and sends what `varlog.core.manager` decides. It
looks twice a second at a cluster at rest, oftener while entries are appended, and oftener still when something has
happened or a log stream is sealed. When something it asked for has been done it goes on at once, so a flow of many
steps takes as long as its messages. It keeps nothing that another manager would need: the next look at the world shows
what has happened.

Of several managers one leads: the one that the metadata repository has registered (`varlog.core.managership`). The
others stand by. They look as it does, so that whoever takes over knows the cluster already, and change nothing; twice a
second they ask to be registered, which is refused while the leader is heard.

Operators' requests are conversations of `varlog.core.registration`; here they are carried, each with a deadline.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Coroutine
from typing import Final

from varlog import errors, limits
from varlog.core.address import METADATA_REPOSITORY, Address, node_address
from varlog.core.diagnosing import diagnose
from varlog.core.identity import SECRET_BYTES, new_secret
from varlog.core.manager import COLLECT_AFTER, reconcile
from varlog.core.managership import SILENT_SECONDS
from varlog.core.messages import (
    AddLogStream,
    AddNode,
    AddStream,
    AddTopic,
    AttachArchive,
    ChainCopied,
    ChainSealed,
    Decided,
    DeclareLost,
    Diagnose,
    Diagnosis,
    Digest,
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
    RenewNode,
    ReplaceNode,
    ReplicaReply,
    RunStream,
    Seal,
    SealStream,
    SyncLogStream,
    SyncReply,
    Unseal,
    UnsealStream,
)
from varlog.core.reconfiguring import reconfigure
from varlog.core.registration import Registrar
from varlog.core.steps import Reconfigure
from varlog.core.world import Memory, World
from varlog.daemon import logs
from varlog.daemon.config import ManagerConfig
from varlog.daemon.peers import Peers, answers_ping
from varlog.daemon.repositories import Repositories
from varlog.manager.asking import ANSWER_SECONDS
from varlog.manager.carrying import Carrier, check_own
from varlog.manager.doing import Doing
from varlog.manager.lookout import Lookout
from varlog.manager.reconfiguring import Reconfigurations
from varlog.types import ClusterID, StorageNodeID, Version
from varlog.wire.connection import Connection
from varlog.wire.credentials import Credentials, FileCredentials
from varlog.wire.hello import Identity, Role
from varlog.wire.link import Link
from varlog.wire.server import Server

AT_REST: Final = 0.5
"""Between two looks at a cluster where nothing happens,"""
AT_WORK: Final = 0.25
"""where entries are appended,"""
STIRRED: Final = 0.1
"""and where a connection has ended, a node is late, or something is being done about it,"""
STIRRED_SECONDS: Final = 3.0
"""for so long afterwards;"""
BRISK: Final = 0.03
"""and while a log stream takes no appends because of what the manager has just asked for,"""
BRISK_SECONDS: Final = 0.6
"""for so long at most."""
LATE: Final = 0.3
"""A node that takes so long to answer is worth a closer look; and so is a manager that looks so late itself."""
GATHERING: Final = 0.02
"""For so long answers are waited for that belong together."""
FRESH: Final = 1.5
"""A node that has not answered for so long is not counted on by operators' requests."""
RECONFIGURING: Final = 2.0
"""So long each answer is waited for when a topic is reconfigured: nobody appends to it meanwhile."""

_HOLDS_UP: Final = (SealStream, Seal, UnsealStream, Unseal, RunStream)
"""While these are under way a log stream takes no appends."""

_ACCEPTED: Final[dict[Role, frozenset[type[Message]]]] = {
    Role.CLIENT: frozenset[type[Message]](
        {
            *(AddNode, RemoveNode, DrainNode, ReplaceNode),
            *(AddTopic, RemoveTopic, AttachArchive),
            *(AddStream, RemoveStream, HoldLogStream, SyncLogStream, MoveReplica, DeclareLost, Diagnose),
        }
    ),
    Role.METADATA_REPOSITORY: frozenset[type[Message]]({Metadata, Decided}),
    Role.STORAGE_NODE: frozenset[type[Message]](
        {Info, ReplicaReply, SyncReply, IdentityAdopted, ChainSealed, ChainCopied, Digest}
    ),
}


class ManagerServer:
    """See the module's text. Made by `start`."""

    def __init__(self, config: ManagerConfig, credentials: Credentials) -> None:
        self._config = config
        self._credentials = credentials
        self._loop = asyncio.get_running_loop()
        self._log = logs.get()
        self._identity = Identity(ClusterID(config.cluster), Role.MANAGER)
        self._server: Server
        self.peers = Peers()
        self.repositories = Repositories(config.metadata_repository, self._dial, self.peers, self._on_leader)
        self._links: dict[Address, Link] = {}
        self._locations: dict[Address, str] = {}
        self._requests = 0
        self._registration = 0
        """The request to be registered that is not answered yet."""
        self._registration_sent = 0.0
        self._is_registered = False
        self.leader_elsewhere = ""
        """What the metadata repository says of the manager that leads, if it is another."""

        self._lookout = Lookout()
        self._memory = Memory()
        self._doing = Doing()
        self._reconfigurations = Reconfigurations()
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._loop.time()
        """When the next look is to be."""
        self._stirred_until = 0.0
        self._brisk_until = 0.0
        self._gathering: asyncio.TimerHandle | None = None
        self._asked: float | None = None
        """When the metadata was asked for, if it has not come yet."""
        self._looks_again = False
        self._version = Version(0)
        """As of the last look."""
        self._met = asyncio.Event()
        """A node has said how it is."""

        self._carrier = Carrier(self._identity, credentials, self._reach)
        self._conversations: set[asyncio.Task[None]] = set()
        self._registrar = Registrar(self._request, self._fresh_infos, _new_secret)

    @classmethod
    async def start(cls, config: ManagerConfig) -> ManagerServer:
        credentials = FileCredentials(config.secret_file, config.tls)
        manager = cls(config, credentials)
        accepts = frozenset({Role.CLIENT})
        manager._server = await Server.start(config.listen, manager._identity, accepts, credentials, manager)
        manager.repositories.open()
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
        """To a metadata repository that leads."""
        return self.peers.at(METADATA_REPOSITORY) is not None

    @property
    def is_answered(self) -> bool:
        """Whether that one has answered lately: one that hangs keeps its connections."""
        return self.is_connected and self._lookout.metadata_silence(self._loop.time()) <= limits.NODE_LEASE_SECONDS

    @property
    def leads(self) -> bool:
        """Whether it is the manager that acts. One that has slept may have been replaced, and asks before it acts."""
        return self._is_registered and self.is_connected and self._loop.time() - self._due < SILENT_SECONDS

    @property
    def metadata(self) -> Metadata | None:
        """The latest it knows."""
        return self._lookout.metadata

    @property
    def infos(self) -> dict[StorageNodeID, Info]:
        """What the nodes said last."""
        return self._lookout.infos

    @property
    def registered(self) -> list[StorageNodeID]:
        return [node.snid for node in self.metadata.nodes] if self.metadata is not None else []

    @property
    def answering(self) -> list[StorageNodeID]:
        return sorted(self._fresh_infos())

    @property
    def doing(self) -> list[str]:
        """What it is about, and for how long, in sentences."""
        now = self._loop.time()
        if not self.leads:
            return []
        return [f"{sentence} (for {now - since:.0f} s)" for sentence, since in self._doing.sentences]

    @property
    def sent(self) -> Counter[str]:
        """How many requests of each kind it has made to bring the cluster in order."""
        return self._doing.sent

    @property
    def steps(self) -> int:
        return self.sent.total()

    async def stop(self) -> None:
        """Serve no more. What operators asked for and is under way is left as it is: nothing half-made counts."""
        for timer in (self._timer, self._gathering):
            if timer is not None:
                timer.cancel()
        await self._server.close()
        for task in self._conversations:
            task.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)
        self.repositories.close()
        for link in self._links.values():
            link.close()

    # Connections

    def _dial(self, location: str, role: Role, node_id: int = 0) -> Link:
        return Link(location, self._identity, role, self._credentials, self, node_id)

    def _reach(self, address: Address) -> Connection:
        connection = self.peers.at(address)
        if connection is None and address == METADATA_REPOSITORY:
            raise errors.Unreachable(f"no metadata repository leads ({self.repositories.missing()})")
        if connection is None:
            link = self._links.get(address)
            why = str(link.error) if link is not None and link.error is not None else "not connected"
            raise errors.Unreachable(f"{address} ({self._locations.get(address, 'unknown address')}): {why}")
        return connection

    def on_connected(self, connection: Connection) -> None:
        address = self.peers.admit(connection)
        self._log.debug("connected", peer=address, remote=connection.remote)
        if connection.peer.role is Role.STORAGE_NODE:
            self._ask_node(StorageNodeID(connection.peer.node_id))

    def _on_leader(self, _leader: Connection) -> None:
        self._register()
        self._asked = None
        self._look()

    def on_message(self, connection: Connection, message: Message) -> None:
        role = connection.peer.role
        if role is Role.METADATA_REPOSITORY and self.repositories.takes(connection, message):
            return
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
            check_own(connection, message)
            self._on_info(message)
        if self._carrier.asking.answers(connection, message):
            return
        if isinstance(message, Decided | ReplicaReply | SyncReply):
            self._on_done(message)
        elif isinstance(message, ChainCopied) and self._lookout.on_copied(message):
            self._act()

    def on_turn(self, connection: Connection) -> None:
        pass

    def on_closed(self, connection: Connection, error: errors.VarlogError | None) -> None:
        self._carrier.asking.on_closed(connection, error)
        address = self.peers.drop(connection)
        self.repositories.on_closed(connection)
        if address is None:
            return
        if error is not None:
            self._log.info("connection closed", peer=address, reason=str(error))
        if connection.peer.role is Role.STORAGE_NODE:
            self._lookout.on_closed(StorageNodeID(connection.peer.node_id))
            self._stir()

    def _request(self) -> int:
        self._requests += 1
        return self._requests

    # Watching

    def _beat(self) -> None:
        now = self._loop.time()
        if now - self._due > LATE:
            self._lookout.excuse(now - self._due)
        if not self.leads and (not self._registration or now - self._registration_sent >= AT_REST):
            self._register()  # and not sooner: an answer that takes long would never be to the last request
        if self._lookout.silence(now) > LATE:
            self._stirred_until = max(self._stirred_until, now + STIRRED)
        is_waiting = self._asked is not None
        self._look()
        if is_waiting:
            self._ask_nodes()  # that the metadata repository does not answer says nothing of them
        self._act()
        self._arm()

    def _arm(self) -> None:
        """Set the time of the next look."""
        now = self._loop.time()
        version = self.metadata.version if self.metadata is not None else Version(0)
        at_work, self._version = version != self._version, version
        if now < self._stirred_until:
            pause = BRISK if now < self._brisk_until else STIRRED
        else:
            pause = AT_WORK if at_work else AT_REST
        self._due = now + pause
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due, self._beat)

    def _stir(self, *, brisk: bool = False) -> None:
        """Something has happened: look more often for a while."""
        now = self._loop.time()
        self._stirred_until = now + STIRRED_SECONDS
        if brisk:
            self._brisk_until = now + BRISK_SECONDS
        if self._due > now + (BRISK if brisk else STIRRED):
            self._arm()

    def _register(self) -> None:
        """Ask to lead, and say where this manager is."""
        self._is_registered = False
        self._registration = self._request()
        self._registration_sent = self._loop.time()
        self.peers.send(METADATA_REPOSITORY, RegisterManager(self._registration, self.address))

    def _look(self) -> None:
        """Ask the metadata repository, and when it has answered the nodes."""
        now = self._loop.time()
        if self._asked is not None and now - self._asked < AT_REST:
            self._looks_again = True  # what is under way may be from before what this look is for
            return
        self._asked = now
        self.peers.send(METADATA_REPOSITORY, GetMetadata(self._request()))

    def _on_metadata(self, metadata: Metadata) -> None:
        self._asked = None
        changed = self._lookout.on_metadata(metadata, self._requests, self._loop.time())
        self._follow_nodes(metadata)
        if changed:
            self._act()
        self._ask_nodes()
        if self._looks_again:
            self._looks_again = False
            self._look()

    def _ask_nodes(self) -> None:
        for snid in self.registered:
            self._ask_node(snid)

    def _ask_node(self, snid: StorageNodeID) -> None:
        if self.peers.send(node_address(snid), GetInfo(self._request())):
            self._lookout.on_asked(snid)

    def _follow_nodes(self, metadata: Metadata) -> None:
        wanted = {node_address(node.snid): node for node in metadata.nodes if node.address}
        for address in [*self._locations]:
            if address not in wanted or wanted[address].address != self._locations[address]:
                self._links.pop(address).close()
                del self._locations[address]
        for address, node in wanted.items():
            if address not in self._links:
                self._links[address] = self._dial(node.address, Role.STORAGE_NODE, node.snid)
                self._locations[address] = node.address
                self._links[address].open()

    def _on_info(self, info: Info) -> None:
        """Act when everybody has answered, or soon. Not at each answer: a node that is about to join would be missed by
        a moment, and what follows would have to be done again."""
        if not self._lookout.on_info(info, self._loop.time()):
            return
        self._met.set()
        if self._lookout.has_all_answers:
            self._act()
        elif self._gathering is None:
            self._gathering = self._loop.call_later(GATHERING, self._act)

    def _fresh_infos(self) -> dict[StorageNodeID, Info]:
        return self._lookout.fresh_infos(FRESH, self._loop.time())

    def world(self) -> World | None:
        """The cluster as it is known now; None before the metadata repository has answered once."""
        return self._lookout.world(
            self._loop.time(), lambda snid: self.peers.at(node_address(snid)) is not None, self._carrier.making
        )

    def _act(self) -> None:
        """Take the next steps. Acting on answers as they come may repeat a request, which is harmless."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        world = self.world()
        if world is None:
            return
        self._memory.observe(world)
        if not self.leads:
            return
        replace_after = self._config.replace_after
        steps = reconcile(world, self._memory, self._request, replace_after=replace_after, collect_after=COLLECT_AFTER)
        for step, is_new in self._doing.take(steps, world.now):
            if is_new:
                self._log.info(step.sentence)
                self._stir(brisk=isinstance(step.message, _HOLDS_UP))
            if isinstance(step.message, RenewNode):
                self._renew(step.message.snid)
            elif step.message is not None:
                self.peers.send(step.address, step.message)
            elif step.reconfigure is not None and self._reconfigurations.begin(step.reconfigure, world.now):
                self._begin(self._reconfigure(step.reconfigure))

    async def _reconfigure(self, wanted: Reconfigure) -> None:
        self._doing.sent[Reconfigure.__name__] += 1
        topics = self.metadata.topics if self.metadata is not None else ()
        topic = next((topic.name for topic in topics if topic.tpid == wanted.tpid), str(wanted.tpid))
        try:
            conversation = reconfigure(self._request, wanted.tpid, wanted.change)
            epoch = await self._carrier.run(conversation, RECONFIGURING)
        except errors.VarlogError as error:
            self._log.warning("a topic could not be reconfigured", topic=topic, reason=str(error))
        else:
            self._log.info("a topic was reconfigured", topic=topic, epoch=epoch)
        finally:
            self._reconfigurations.end(wanted, self._loop.time())
        self._stir()
        self._look()

    def _on_done(self, message: Decided | ReplicaReply | SyncReply) -> None:
        answers_registration = message.request == self._registration
        if answers_registration:
            self._registration = 0
        if message.code == errors.StandBy.code:
            self._stand_by(message.detail)
            return
        if answers_registration:
            self._is_registered = message.code == 0
            self.leader_elsewhere = ""
        if message.code:
            self._log.debug("refused", answer=message)
            self._on_refused(message)
        if isinstance(message, ReplicaReply) and self._lookout.on_reply(message):
            self._act()
        else:
            self._look()

    def _on_refused(self, message: Decided | ReplicaReply | SyncReply) -> None:
        now = self._loop.time()
        self._doing.refused(message.request, now)
        if not isinstance(message, ReplicaReply) or not isinstance(self._doing.asked(message.request), AddLogStream):
            return
        if self._lookout.on_refused(message, now):
            what = errors.VarlogError.of(message.code, message.detail)
            self._log.warning("a node made no replica", snid=message.snid, lsid=message.lsid, reason=str(what))

    def _stand_by(self, why: str) -> None:
        if why != self.leader_elsewhere:
            self._log.info("standing by", reason=why)
        self._is_registered = False
        self.leader_elsewhere = why

    def _renew(self, snid: StorageNodeID) -> None:
        if snid not in self._registrar.giving:
            self._begin(self._renewal(snid))

    async def _renewal(self, snid: StorageNodeID) -> None:
        try:
            await self._carrier.run(self._registrar.renew_node(snid))
        except errors.VarlogError as error:
            self._log.warning("a node that lost its disks was given no new secret", snid=snid, reason=str(error))
        else:
            self._log.info("a node that lost its disks has a new secret", snid=snid)
        self._look()

    # Operators

    def _begin(self, conversation: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(conversation)
        self._conversations.add(task)
        task.add_done_callback(self._conversations.discard)

    def _on_asked(self, connection: Connection, message: Message) -> None:
        if isinstance(message, Diagnose):
            connection.send(self._diagnose(message.request))
        elif len(self._conversations) >= limits.MAX_PENDING_DECISIONS:
            busy = errors.Busy("the manager has as many requests under way as it takes")
            connection.send(Managed(message.request, busy.code, str(busy)))  # type: ignore[attr-defined]
        else:
            self._begin(self._converse(connection, message))

    def _diagnose(self, request: int) -> Diagnosis:
        world = self.world()
        if world is None:
            why = errors.Unreachable("the manager has not reached the metadata repository yet")
            return Diagnosis(request, why.code, detail=str(why))
        findings = diagnose(world, self._memory, self._config.replace_after)
        return Diagnosis(request, 0, findings, tuple(self.doing)[: limits.MAX_FINDINGS])

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
        if not self.leads:
            raise errors.StandBy(self.leader_elsewhere or "this manager has not been registered yet; ask again")
        try:
            made = await self._carrier.run(self._registrar.begin(asked))
        finally:
            self._stir()
            self._look()
        if isinstance(asked, AddNode):
            await self._meet(StorageNodeID(made))
        return made

    async def _meet(self, snid: StorageNodeID) -> None:
        """Wait until a new node has said that it has its identity: a topic that is asked for next may need it."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while snid not in self.infos or not self.infos[snid].is_identified:
                    self._met.clear()
                    await self._met.wait()
        except TimeoutError:
            self._log.warning("a node was added and does not answer", snid=snid)


def _new_secret() -> str:
    return new_secret(secrets.token_bytes(SECRET_BYTES))
