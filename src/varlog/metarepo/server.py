"""MetadataRepositoryServer: a metadata repository on an event loop.

It carries messages between connections and the core (`varlog.core.metarepo`), and says to everybody who is connected
whether it leads: when they connect, and when that changes. How its store is kept going is `varlog.metarepo.keeping`'s.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from varlog import errors
from varlog.core.address import Address, node_address
from varlog.core.managership import MANAGERS_REQUESTS
from varlog.core.messages import (
    AnnounceNode,
    BeginTransaction,
    Commit,
    EndTransaction,
    FetchCuts,
    ForgetTransactions,
    GetMetadata,
    GetStanding,
    GetTail,
    GetTransactions,
    Leading,
    Message,
    NotLeading,
    ProposeProjection,
    RegisterManager,
    RegisterNode,
    RegisterSequencer,
    Report,
    Standing,
    TrimTopic,
)
from varlog.core.metarepo import MetadataRepository
from varlog.core.metarepo import Role as Lead
from varlog.daemon import logs
from varlog.daemon.config import MetadataRepositoryConfig
from varlog.daemon.peers import Peers, answers_ping
from varlog.daemon.polling import Polling
from varlog.metarepo.keeping import EtcdKeeper, JournalKeeper, Keeper
from varlog.storage.files import FileSystem
from varlog.types import ClusterID, StorageNodeID, Version
from varlog.wire.connection import Connection
from varlog.wire.credentials import FileCredentials
from varlog.wire.endpoint import parse_address
from varlog.wire.hello import Identity, Role
from varlog.wire.server import Server

HEARD_SECONDS: Final = 2.5
"""Who has said nothing for so long is not heard, though it may be connected."""
FEW_ENTRIES: Final = 4
"""A cut of no more is taken for one of an append that came alone. Where there are more, appends keep everybody busy."""

_ACCEPTED: Final[dict[Role, frozenset[type[Message]]]] = {
    Role.CLIENT: frozenset[type[Message]](
        {
            GetMetadata,
            GetStanding,
            GetTail,
            TrimTopic,
            ProposeProjection,
            BeginTransaction,
            EndTransaction,
            ForgetTransactions,
            GetTransactions,
        }
    ),
    Role.STORAGE_NODE: frozenset[type[Message]]({Report, FetchCuts, AnnounceNode, GetMetadata}),
    Role.MANAGER: frozenset[type[Message]]({GetMetadata, GetTail, RegisterManager, ProposeProjection})
    | MANAGERS_REQUESTS,
    Role.SEQUENCER: frozenset[type[Message]]({GetMetadata, RegisterSequencer}),
}
"""What each may ask for. Only the manager may ask for changes of the cluster (M4); a projection any client may propose
(S7)."""

_OF_A_NODE: Final = frozenset[type[Message]]({Report, FetchCuts, AnnounceNode})
_WITH_ADDRESS: Final = frozenset[type[Message]]({RegisterNode, AnnounceNode, RegisterManager, RegisterSequencer})


class MetadataRepositoryServer:
    """See the module's text. Made by `start`."""

    def __init__(
        self, config: MetadataRepositoryConfig, keeper: Keeper, failed: Callable[[errors.VarlogError], None]
    ) -> None:
        self._config = config
        self.keeper = keeper
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._log = logs.get()
        self._timer: asyncio.TimerHandle | None = None
        self._has_failed = False
        self._said: Leading | NotLeading | None = None
        # An etcd takes longer to answer than it pays to look.
        self._polling = Polling(self._loop, config.busy_poll if config.store is None else 0)
        self._is_quiet = False
        """Of the last cut every node was told one range of few entries."""
        self._has_report = self._has_cut = False
        """There was one in this turn."""
        self._server: Server
        self.peers = Peers()
        self._heard: dict[int, float] = {}
        """When each storage node was last heard."""
        self._awaited = Version(0)
        self._awaited_since = self._loop.time()
        """Since when that decision has been awaited, or none at all."""
        self.branches: Counter[object] = Counter()
        self.repository = MetadataRepository(keeper.store, self._send, self._observe)

    @classmethod
    async def start(
        cls, config: MetadataRepositoryConfig, fs: FileSystem, failed: Callable[[errors.VarlogError], None]
    ) -> MetadataRepositoryServer:
        """Open the store, listen, and lead or stand by."""
        credentials = FileCredentials(config.secret_file, config.tls)
        keeper: Keeper = await EtcdKeeper.open(config) if config.store is not None else JournalKeeper.open(config, fs)
        try:
            metadata = cls(config, keeper, failed)
            keeper.begin(metadata.repository, metadata._observe, metadata._fail)
            identity = Identity(ClusterID(config.cluster), Role.METADATA_REPOSITORY)
            metadata._server = await Server.start(config.listen, identity, frozenset(_ACCEPTED), credentials, metadata)
        except BaseException:
            await keeper.close()
            raise
        metadata.repository.on_turn_of_role = metadata._on_turn_of_role
        keeper.listen(metadata.address)
        metadata._tick()
        return metadata

    @property
    def listening(self) -> str:
        """The address it listens on."""
        return self._server.address

    @property
    def address(self) -> str:
        """Where others reach it."""
        return self._config.advertise or self._server.address

    @property
    def nodes(self) -> int:
        """How many storage nodes are there: they say something every second."""
        now = self._loop.time()
        return sum(now - heard < HEARD_SECONDS for heard in self._heard.values())

    async def stop(self) -> None:
        """Serve no more, and let another lead; every decision that was answered is in the store already."""
        if self._timer is not None:
            self._timer.cancel()
        await self.keeper.resign()
        await self._server.close()
        await self.keeper.close()

    # Connections

    def on_connected(self, connection: Connection) -> None:
        address = self.peers.admit(connection, by_id=False)
        self._log.debug("connected", peer=_named(connection), address=address, remote=connection.remote)
        connection.send(self.keeper.standing())
        if connection.peer.role is Role.STORAGE_NODE:
            self._heard[connection.peer.node_id] = self._loop.time()

    def _on_turn_of_role(self) -> None:
        self._log.info(self.repository.role.value, term=self.keeper.standing().term)
        self._say_standing()

    def _say_standing(self) -> None:
        """To all who are connected, whenever it changes: also that another leads now, so that nobody stays with one
        that was deposed and has not found out."""
        standing = self.keeper.standing()
        if standing != self._said:
            self._said = standing
            for connection in self.peers.connections:
                connection.send(standing)

    def on_message(self, connection: Connection, message: Message) -> None:
        peer = connection.peer
        if peer.role is Role.STORAGE_NODE:
            self._heard[peer.node_id] = self._loop.time()
        if type(message) not in _ACCEPTED[peer.role]:
            if answers_ping(connection, message):
                return
            name = type(message).__name__
            raise errors.ProtocolError(f"the metadata repository does not take {name} from a {peer.role.name}")
        _check(peer, message)
        if isinstance(message, GetStanding):
            connection.send(self.standing(message.request))
            return
        if self.repository.role is not Lead.LEADING:
            connection.send(self.keeper.standing())
            return
        if type(message) is Report:
            self._has_report = True
        self.keeper.hold()
        self.peers.hold()
        try:
            self.repository.on_message(self.peers.name(connection), message, time.time())
        except errors.InvalidArgument as error:
            raise errors.ProtocolError(str(error)) from error
        except errors.VarlogError as error:
            self._fail(error)

    def on_turn(self, _connection: Connection) -> None:
        # Whoever has reported waits for nothing else; and so that the nodes need not wait for the end of the loop's
        # turn, what comes of it is sent at once.
        self._polling.wake()
        self.keeper.drive()
        self.peers.release()
        if self._is_quiet and self._has_report:
            self._polling.rest(self._has_cut)
        self._has_report = self._has_cut = False

    def on_closed(self, connection: Connection, error: errors.VarlogError | None) -> None:
        address = self.peers.drop(connection)
        if address is None:
            return
        others = (other.peer for other in self.peers.connections if other.peer.role is Role.STORAGE_NODE)
        if connection.peer.role is Role.STORAGE_NODE and connection.peer.node_id not in {it.node_id for it in others}:
            self._heard.pop(connection.peer.node_id, None)
        self.repository.on_closed(address)
        if error is not None:
            self._log.info("connection closed", peer=_named(connection), reason=str(error))

    def _send(self, address: Address, message: Message) -> None:
        # Who is not there finds out what it missed when it is again (rule 5).
        if isinstance(message, Commit):
            self.peers.send_now(address, message)
            if message.ranges:
                is_first, self._has_cut = not self._has_cut, True
                are_few = len(message.ranges) == 1 and message.ranges[0][4] <= FEW_ENTRIES
                self._is_quiet = are_few and (is_first or self._is_quiet)
                if are_few and is_first:
                    self._polling.give_way()  # the primary, whom clients wait for, is told first
        else:
            self.peers.send(address, message)

    def _observe(self, what: object) -> None:
        self.branches[what] += 1

    def _fail(self, error: errors.VarlogError) -> None:
        """Decide nothing more, whatever has arrived already."""
        self._log.critical("stopping to protect data", error=str(error))
        self._has_failed = True
        self.peers.close()
        self._failed(error)

    def _tick(self) -> None:
        if self._has_failed:
            return
        self._timer = self._loop.call_later(self.keeper.pause(), self._tick)
        try:
            self.keeper.hears(self.nodes)
            self.keeper.tick()
            self.repository.tick(time.time())
            self._say_standing()
        except errors.VarlogError as error:
            self._fail(error)
        if not self.repository.awaits_store or self.repository.state.version != self._awaited:
            self._awaited, self._awaited_since = self.repository.state.version, self._loop.time()

    @property
    def lag(self) -> float:
        """For how many seconds the decision that is being written has been waiting for the store."""
        version = self.repository.state.version
        is_late = self.repository.awaits_store and version == self._awaited
        return self._loop.time() - self._awaited_since if is_late else 0.0

    def standing(self, request: int) -> Standing:
        """How it is."""
        said = self.keeper.standing()
        leads = isinstance(said, Leading)
        return Standing(
            request,
            self.address,
            self.repository.role.value,
            said.term,
            said.address if isinstance(said, NotLeading) else self.address,
            self.repository.state.version if leads else Version(0),
            self.keeper.silence(),
            self.lag,
            self.nodes,
            self.keeper.health(),
            self.keeper.members(),
        )


def _named(connection: Connection) -> str:
    peer = connection.peer
    return node_address(StorageNodeID(peer.node_id)) if peer.role is Role.STORAGE_NODE else peer.role.name.lower()


def _check(peer: Identity, message: Message) -> None:
    """A storage node speaks of itself only, and an address is one."""
    kind = type(message)
    if kind in _OF_A_NODE and message.snid != peer.node_id:  # type: ignore[attr-defined]
        raise errors.ProtocolError(f"storage node {peer.node_id} speaks for another one")
    if kind in _WITH_ADDRESS:
        try:
            parse_address(message.address)  # type: ignore[attr-defined]
        except errors.InvalidArgument as error:
            raise errors.ProtocolError(str(error)) from error
