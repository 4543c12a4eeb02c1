"""SequencerServer: the sequencer on an event loop.

It listens for clients and managers and follows the metadata repositories as every daemon does. Requests for positions
come by the ten thousand and are answered as they are read: all of one read by one write. It has no data and no id;
each start of it draws a number, its boot, by which projections tell it from every other start.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from itertools import count
from typing import Final

from varlog import errors
from varlog.core.address import METADATA_REPOSITORY, Address
from varlog.core.messages import Decided, Message, Metadata, Next, Peek
from varlog.core.sequencer import Sequencer
from varlog.daemon import logs
from varlog.daemon.config import SequencerConfig
from varlog.daemon.peers import Peers, answers_ping
from varlog.daemon.repositories import Repositories
from varlog.types import ClusterID
from varlog.wire.connection import Connection
from varlog.wire.credentials import Credentials, FileCredentials
from varlog.wire.hello import Identity, Role
from varlog.wire.link import Link
from varlog.wire.server import Server

TICK: Final = 0.1
_BOOT_BITS: Final = 53
"""So that whoever reads it as JSON has it exactly."""

_ASKED: Final = frozenset[type[Message]]({Next, Peek})
_ACCEPTED: Final[dict[Role, frozenset[type[Message]]]] = {
    Role.CLIENT: _ASKED,
    Role.MANAGER: _ASKED,
    Role.METADATA_REPOSITORY: frozenset[type[Message]]({Metadata, Decided}),
}


class SequencerServer:
    """See the module's text. Made by `start`."""

    def __init__(self, config: SequencerConfig, credentials: Credentials) -> None:
        self._config = config
        self._credentials = credentials
        self._loop = asyncio.get_running_loop()
        self._log = logs.get()
        self._identity = Identity(ClusterID(config.cluster), Role.SEQUENCER)
        self._server: Server
        self._timer: asyncio.TimerHandle | None = None
        self._told = ""
        self.core: Sequencer
        self.peers = Peers()
        self.repositories = Repositories(config.metadata_repository, self._dial, self.peers, self._on_leader)

    @classmethod
    async def start(cls, config: SequencerConfig) -> SequencerServer:
        credentials = FileCredentials(config.secret_file, config.tls)
        server = cls(config, credentials)
        accepts = frozenset({Role.CLIENT, Role.MANAGER})
        server._server = await Server.start(config.listen, server._identity, accepts, credentials, server)
        boot = secrets.randbits(_BOOT_BITS) + 1
        server.core = Sequencer(server.address, boot, _clock, count(1).__next__, server._send)
        server.repositories.open()
        server._look_after()
        return server

    @property
    def listening(self) -> str:
        """The address it listens on."""
        return self._server.address

    @property
    def address(self) -> str:
        """Where others reach it."""
        return self._config.advertise or self._server.address

    @property
    def is_connected(self) -> bool:
        """To a metadata repository that leads."""
        return self.peers.at(METADATA_REPOSITORY) is not None

    async def stop(self) -> None:
        """Serve no more. Positions that were given out stay valid for as long as their epoch lasts."""
        if self._timer is not None:
            self._timer.cancel()
        await self._server.close()
        self.repositories.close()

    def _tick(self) -> None:
        self._timer = None
        self.core.tick(self._loop.time())
        self._look_after()

    def _look_after(self) -> None:
        """Say what is wrong, and look at the time for as long as somebody waits for something."""
        if self.core.complaint != self._told:
            self._told = self.core.complaint
            if self._told:
                self._log.warning("not registered", reason=self._told)
        if self._timer is None and self.core.awaits:
            self._timer = self._loop.call_later(TICK, self._tick)

    def _send(self, address: Address, message: Message) -> None:
        self.peers.send(address, message)

    # Connections

    def _dial(self, location: str, role: Role) -> Link:
        return Link(location, self._identity, role, self._credentials, self)

    def _on_leader(self, _leader: Connection) -> None:
        self.core.on_leader(self._loop.time())
        self._look_after()

    def on_connected(self, connection: Connection) -> None:
        address = self.peers.admit(connection)
        self._log.debug("connected", peer=address, remote=connection.remote)

    def on_message(self, connection: Connection, message: Message) -> None:
        role = connection.peer.role
        if type(message) is Next and role is not Role.METADATA_REPOSITORY:
            granted = self.core.grant(message)
            if granted is not None:
                connection.send(granted, held=True)
                return
        if role is Role.METADATA_REPOSITORY and self.repositories.takes(connection, message):
            return
        if type(message) not in _ACCEPTED[role]:
            if answers_ping(connection, message):
                return
            raise errors.ProtocolError(f"a sequencer does not take {type(message).__name__} from a {role.name}")
        self.core.on_message(self.peers.name(connection), message, self._loop.time())
        self._look_after()

    def on_turn(self, connection: Connection) -> None:
        connection.flush()

    def on_closed(self, connection: Connection, error: errors.VarlogError | None) -> None:
        address = self.peers.drop(connection)
        self.repositories.on_closed(connection)
        if error is not None:
            self._log.debug("connection closed", peer=address, reason=str(error))


def _clock() -> int:
    return time.time_ns() // 1000
