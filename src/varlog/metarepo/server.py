"""MetadataRepositoryServer: a metadata repository on an event loop, over the embedded journal.

It carries messages between connections and the core (`varlog.core.metarepo`), and the journal's groups to the disk. A
group is written and synced in the event loop itself: nothing can be decided before the decision before it is on disk,
so there is nothing the loop could do meanwhile but collect the reports that make up the next cut, and those wait in the
sockets just as well.

A journal that fails ends the daemon (rule 16): whether its last write is on disk is unknown, and only opening it anew
can tell.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from varlog import errors
from varlog.core.address import Address, node_address
from varlog.core.messages import (
    AbortStream,
    AnnounceNode,
    Commit,
    CreateStream,
    CreateTopic,
    DeleteTopic,
    FetchCuts,
    GetMetadata,
    GetTail,
    HoldStream,
    Leading,
    LoseStream,
    Message,
    PlanStream,
    RegisterManager,
    RegisterNode,
    RegisterStream,
    RenewNode,
    Report,
    RunStream,
    SealStream,
    SetArchive,
    SetDraining,
    TrimTopic,
    UnregisterNode,
    UnregisterStream,
    UnsealStream,
)
from varlog.core.metarepo import MetadataRepository
from varlog.core.metarepo import Role as Lead
from varlog.daemon import logs
from varlog.daemon.config import MetadataRepositoryConfig
from varlog.daemon.peers import Peers, answers_ping
from varlog.metarepo.journal import Journal
from varlog.storage.files import FileSystem
from varlog.types import ClusterID, StorageNodeID
from varlog.wire.connection import Connection
from varlog.wire.credentials import FileCredentials
from varlog.wire.endpoint import parse_address
from varlog.wire.hello import Identity, Role
from varlog.wire.server import Server

TICK: Final = 0.2
IDLE_TICK: Final = 1.0

_ACCEPTED: Final[dict[Role, frozenset[type[Message]]]] = {
    Role.CLIENT: frozenset[type[Message]]({GetMetadata, GetTail, TrimTopic}),
    Role.STORAGE_NODE: frozenset[type[Message]]({Report, FetchCuts, AnnounceNode, GetMetadata}),
    Role.MANAGER: frozenset[type[Message]](
        {
            GetMetadata,
            RegisterManager,
            RegisterNode,
            UnregisterNode,
            RenewNode,
            SetDraining,
            CreateTopic,
            DeleteTopic,
            SetArchive,
            CreateStream,
            RegisterStream,
            UnregisterStream,
            AbortStream,
            PlanStream,
            HoldStream,
            LoseStream,
            SealStream,
            UnsealStream,
            RunStream,
        }
    ),
}
"""What each may ask for; only the manager may ask for changes of the cluster (M4)."""

_OF_A_NODE: Final = frozenset[type[Message]]({Report, FetchCuts, AnnounceNode})
_WITH_ADDRESS: Final = frozenset[type[Message]]({RegisterNode, AnnounceNode, RegisterManager})


class MetadataRepositoryServer:
    """See the module's text. Made by `start`."""

    def __init__(self, journal: Journal, failed: Callable[[errors.VarlogError], None]) -> None:
        self._journal = journal
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._log = logs.get()
        self._timer: asyncio.TimerHandle | None = None
        self._is_active = True
        self._has_failed = False
        self._is_in_turn = False
        """A message has arrived, and the end of its turn will see to what comes of it."""
        self._server: Server
        self.peers = Peers()
        self.branches: Counter[object] = Counter()
        self.repository = MetadataRepository(journal, self._send, self._observe)
        self.groups = 0
        """How often the journal was synced."""
        journal.wake = self._wake

    @classmethod
    async def start(
        cls, config: MetadataRepositoryConfig, fs: FileSystem, failed: Callable[[errors.VarlogError], None]
    ) -> MetadataRepositoryServer:
        """Open the journal, take the lead, listen."""
        credentials = FileCredentials(config.secret_file, config.tls)
        cid = ClusterID(config.cluster)
        if not fs.is_writable_directory(config.path):  # rather than to begin anew where a disk is not mounted
            raise errors.NotWritable(f"{config.path} is not an existing directory that can be written")
        journal = Journal.open(fs, config.path, cid)
        try:
            metadata = cls(journal, failed)
            metadata.repository.campaign(time.time())
            while metadata.repository.role in (Lead.CAMPAIGNING, Lead.LOADING) and not metadata._has_failed:
                metadata._drive()
            if metadata.repository.role is not Lead.LEADING:
                raise errors.JournalFailed(f"the metadata journal in {config.path} cannot be led: {journal.failed}")
            identity = Identity(cid, Role.METADATA_REPOSITORY)
            metadata._server = await Server.start(config.listen, identity, frozenset(_ACCEPTED), credentials, metadata)
        except BaseException:
            journal.close()
            raise
        metadata._tick()
        return metadata

    @property
    def address(self) -> str:
        return self._server.address

    async def stop(self) -> None:
        """Serve no more; every decision that was answered is on disk already."""
        if self._timer is not None:
            self._timer.cancel()
        await self._server.close()
        self._drive()
        self._journal.close()

    # Connections

    def on_connected(self, connection: Connection) -> None:
        address = self.peers.admit(connection, by_id=False)
        self._log.debug("connected", peer=_named(connection), address=address, remote=connection.remote)
        connection.send(Leading(self.repository.term))

    def on_message(self, connection: Connection, message: Message) -> None:
        peer = connection.peer
        if type(message) not in _ACCEPTED[peer.role]:
            if answers_ping(connection, message):
                return
            name = type(message).__name__
            raise errors.ProtocolError(f"the metadata repository does not take {name} from a {peer.role.name}")
        _check(peer, message)
        self._is_active = True
        self._is_in_turn = True
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
        self._is_in_turn = False
        self._drive()
        self.peers.release()

    def on_closed(self, connection: Connection, error: errors.VarlogError | None) -> None:
        address = self.peers.drop(connection)
        if address is None:
            return
        self.repository.on_closed(address)
        if error is not None:
            self._log.info("connection closed", peer=_named(connection), reason=str(error))

    def _send(self, address: Address, message: Message) -> None:
        # Who is not there finds out what it missed when it is again (rule 5).
        if message.__class__ is Commit:
            self.peers.send_now(address, message)
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

    # The journal

    def _wake(self) -> None:
        if not self._is_in_turn:
            self._loop.call_soon(self._drive)

    def _drive(self) -> None:
        journal = self._journal
        while not self._has_failed and (group := journal.take()) is not None:
            journal.write(group)
            journal.sync(group, mark=False)
            self.groups += group.needs_sync
            try:
                journal.finish(group)
            except errors.VarlogError as error:
                self._fail(error)
                return
            if journal.failed is not None:
                self._fail(errors.JournalFailed(f"the metadata journal cannot be written: {journal.failed}"))
                return

    def _tick(self) -> None:
        if self._has_failed:
            return
        self._timer = self._loop.call_later(TICK if self._is_active else IDLE_TICK, self._tick)
        self._is_active = False
        try:
            self._journal.mark()  # nobody waits for it
            self._journal.tick(self._loop.time())
            self.repository.tick(time.time())
        except errors.VarlogError as error:
            self._fail(error)


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
