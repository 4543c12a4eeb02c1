"""Connecting to a server: once (`dial`), or for as long as one is wanted (`Link`)."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from contextlib import suppress
from typing import Final

from varlog.core.messages import Message
from varlog.errors import ConnectionLost, Unreachable, VarlogError
from varlog.wire.connection import Connection, Owner, Receiver
from varlog.wire.credentials import Credentials
from varlog.wire.endpoint import parse_address
from varlog.wire.hello import Dialing, Identity, Role
from varlog.wire.secure import SecureConnection

_log = logging.getLogger(__name__)

DIAL_SECONDS: Final = 5.0


class _Nobody:
    """The owner of a connection that nobody keeps track of."""

    def on_opened(self, connection: Connection) -> None: ...

    def on_established(self, connection: Connection) -> None: ...

    def on_lost(self, connection: Connection) -> None: ...


_NOBODY = _Nobody()


async def dial(
    address: str,
    identity: Identity,
    wants: Role,
    credentials: Credentials,
    receiver: Receiver,
    *,
    timeout: float = DIAL_SECONDS,  # noqa: ASYNC109  # what is raised has to say which address it was
    owner: Owner = _NOBODY,
    node_id: int = 0,
) -> Connection:
    """Connect and finish the hello, or raise why that was not possible. With a `node_id`, whoever else of that role is
    found at the address is not what was wanted."""
    host, port = parse_address(address)
    loop = asyncio.get_running_loop()
    hello = Dialing(identity, wants, credentials.secret, node_id)
    tls = credentials.tls
    if tls is None:
        connection = Connection(hello, receiver, owner, accepted=False)
    else:
        connection = SecureConnection(hello, receiver, owner, tls.dial(host), accepted=False)
    try:
        async with asyncio.timeout(timeout):
            await loop.create_connection(lambda: connection, host, port)
            await connection.settled()
    except TimeoutError:
        connection.close()
        raise Unreachable(f"{address} did not answer within {timeout} s") from None
    except OSError as error:
        connection.close()
        # asyncio says in place of the reason whom it could not reach, which is said already.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        raise Unreachable(f"cannot connect to {address}: {reason}") from error
    except BaseException:
        connection.close()
        raise
    if connection.closed:
        raise _why_refused(address, connection)
    return connection


def _why_refused(address: str, connection: Connection) -> VarlogError:
    error = connection.error
    if error is None or isinstance(error, ConnectionLost):
        return Unreachable(f"{address} closed the connection before the hello was done")
    return error


class Link:
    """A connection to one server that is dialled again, for as long as the link is open, whenever it is lost.

    Between two attempts it waits 50 ms at first, twice as long each time, one second at most; whoever has reason to
    believe that the server is back says so by `hasten`. What is sent while there is no connection is dropped: whoever
    sends has to be ready for that anyway, since it may be lost on the way as well. The receiver's `on_connected` tells
    of each new connection.
    """

    first_wait = 0.05
    longest_wait = 1.0

    def __init__(
        self,
        address: str,
        identity: Identity,
        wants: Role,
        credentials: Credentials,
        receiver: Receiver,
        node_id: int = 0,
    ) -> None:
        self.address = address
        self.connection: Connection | None = None
        """The present one; None between two."""
        self.error: VarlogError | None = None
        """Why the last attempt failed or the last connection ended."""
        self._identity = identity
        self._wants = wants
        self._credentials = credentials
        self._receiver = receiver
        self._node_id = node_id
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether the hello is done and nothing has ended the connection since."""
        return self.connection is not None and not self.connection.closed

    def open(self) -> None:
        """Begin to dial."""
        parse_address(self.address)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"link to {self.address}")

    def hasten(self) -> None:
        """Wait no longer before the next attempt, if there is no connection."""
        if not self.connected:
            self._hurry.set()

    def send(self, message: Message) -> bool:
        """Send if there is a connection; False if the message was dropped."""
        return self.connection is not None and self.connection.send(message)

    def close(self) -> None:
        """Close the connection and dial no more."""
        if self._task is not None:
            self._task.cancel()
        if self.connection is not None:
            self.connection.close()

    async def gone(self) -> None:
        """Wait until a link that was closed has ended, and its connection with it."""
        if self._task is not None:
            await asyncio.wait([self._task])
        if self.connection is not None:
            await self.connection.gone()

    async def _run(self) -> None:
        wait = self.first_wait
        told = ""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                connection = await dial(
                    self.address,
                    self._identity,
                    self._wants,
                    self._credentials,
                    self._receiver,
                    owner=self,
                    node_id=self._node_id,
                )
                told = ""
                await connection.gone()
            except VarlogError as error:
                self.error = error
                if str(error) != told:  # once, not at every attempt
                    told = str(error)
                    passes = isinstance(error, Unreachable | ConnectionLost)  # the rest is for somebody to mend
                    level = logging.INFO if passes else logging.WARNING
                    _log.log(level, "no connection to %s: %s", self.address, told)
            if loop.time() - began > self.longest_wait or self._hurry.is_set():
                wait = self.first_wait
            with suppress(TimeoutError):
                async with asyncio.timeout(wait * random.uniform(0.75, 1)):
                    await self._hurry.wait()
            wait = self.first_wait if self._hurry.is_set() else min(2 * wait, self.longest_wait)
            self._hurry.clear()

    # The connection's owner

    def on_opened(self, connection: Connection) -> None: ...

    def on_established(self, connection: Connection) -> None:
        self.connection = connection
        self.error = None

    def on_lost(self, connection: Connection) -> None:
        if connection is self.connection:
            self.connection = None
            self.error = connection.error
