"""A listening socket and the connections it accepted.

The number of connections is bounded, and so is the number of those that have not finished their hello: a further one
takes the place of the oldest of these, which has had the most time to prove itself. So strangers cannot keep members of
the cluster out by connecting and saying nothing. Nor can clients, by being many: some connections are not for them.
"""

from __future__ import annotations

import asyncio
import logging

from varlog import limits
from varlog.errors import Busy, PeerStalled
from varlog.wire.connection import Connection, Receiver
from varlog.wire.credentials import Credentials
from varlog.wire.endpoint import bind, cannot_listen, format_address
from varlog.wire.hello import Accepting, Identity, Role
from varlog.wire.secure import SecureConnection

_log = logging.getLogger(__name__)
_BACKLOG = 512
_LOOK_SECONDS = 1.0
_TELL_SECONDS = 10.0
_TELL_REFUSALS = 20
"""As many connections without a hello are told of one by one in that time; a scan of ports should fill no disk."""


class Server:
    """Accepts connections of certain roles for one receiver."""

    def __init__(
        self, identity: Identity, accepts: frozenset[Role], credentials: Credentials, receiver: Receiver
    ) -> None:
        self.address = ""
        """Where it listens, with the port it was given."""
        self.connections: set[Connection] = set()
        """Those whose hello is done."""
        self.refusals = 0
        """How many connections ended before their hello was done."""
        self._telling_since = 0.0
        self._refusals_then = 0
        self._identity = identity
        self._accepts = accepts
        self._credentials = credentials
        self._receiver = receiver
        self._greeting: dict[Connection, None] = {}
        self._clients = 0
        self._listener: asyncio.Server
        self._socket = -1
        self._look: asyncio.TimerHandle | None = None
        self._closing = False

    @classmethod
    async def start(
        cls, address: str, identity: Identity, accepts: frozenset[Role], credentials: Credentials, receiver: Receiver
    ) -> Server:
        """Listen at the address; port 0 lets the system choose one."""
        server = cls(identity, accepts, credentials, receiver)
        loop = asyncio.get_running_loop()
        listening = await bind(address)
        try:
            server._listener = await loop.create_server(server._accept, sock=listening, backlog=_BACKLOG)
        except OSError as error:
            listening.close()
            raise cannot_listen(address, error) from error
        server._socket = listening.fileno()
        server.address = format_address(listening.getsockname())
        server._look_at_credentials()
        return server

    async def close(self) -> None:
        """Stop listening and close every connection; returns when all have ended."""
        self._closing = True
        if self._look is not None:
            self._look.cancel()
        asyncio.get_running_loop().remove_reader(self._socket)
        await asyncio.sleep(0)  # what asyncio has accepted in this turn would be lost if the listener was gone already
        self._listener.close()
        while ending := [*self._greeting, *self.connections]:
            for connection in ending:
                connection.close()
            await asyncio.gather(*(connection.gone() for connection in ending))
        await self._listener.wait_closed()

    def _look_at_credentials(self) -> None:
        """Whoever changed a file need not wait for the next connection to read in the log what became of it."""
        _ = self._credentials.secret, self._credentials.tls
        self._look = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look_at_credentials)

    def _accept(self) -> Connection:
        hello = Accepting(self._identity, self._accepts, self._credentials.secret, self._admit)
        tls = self._credentials.tls
        if tls is None:
            return Connection(hello, self._receiver, self, accepted=True)
        return SecureConnection(hello, self._receiver, self, tls.accept(), accepted=True)

    def _admit(self, peer: Identity) -> None:
        most = limits.MAX_CONNECTIONS - limits.RESERVED_CONNECTIONS
        if peer.role is Role.CLIENT and self._clients >= most:
            raise Busy(f"this server has {most} clients, and takes no more of them")

    # The connections' owner

    def on_opened(self, connection: Connection) -> None:
        self._greeting[connection] = None
        if self._closing:  # it was being accepted when the listener was closed
            connection.close()
        elif len(self.connections) + len(self._greeting) > limits.MAX_CONNECTIONS:
            connection.close(Busy(f"this server has {limits.MAX_CONNECTIONS} connections, and takes no more"))
        elif len(self._greeting) > limits.MAX_HELLOS:
            oldest = next(iter(self._greeting))
            if oldest.closed:  # and is to hear why
                oldest.abort()
            else:
                oldest.close(PeerStalled("too many connections have not finished their hello, and this is the oldest"))

    def on_established(self, connection: Connection) -> None:
        del self._greeting[connection]
        self.connections.add(connection)
        self._clients += connection.peer.role is Role.CLIENT

    def on_lost(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
            self._clients -= connection.peer.role is Role.CLIENT
        else:
            del self._greeting[connection]
            self.refusals += 1
            self._tell_of_refusal(connection)

    def _tell_of_refusal(self, connection: Connection) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._telling_since >= _TELL_SECONDS:
            self._telling_since, self._refusals_then = now, self.refusals - 1
        nth = self.refusals - self._refusals_then
        if nth <= _TELL_REFUSALS:
            _log.info("no hello with %s (%d so far): %s", connection.remote, self.refusals, connection.error)
        if nth == _TELL_REFUSALS:
            _log.warning("so many connections end without a hello that not all are told of, only how many")
