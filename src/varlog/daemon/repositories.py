"""Repositories: a daemon's links to all metadata repositories, and the one of them that it follows.

Each of them says whether it leads (`varlog.core.following`); what the daemon sends to the metadata repository goes to
the one that does, and to nobody while there is none. What another one says is of a leadership that has passed, and is
not listened to. The daemon is told of every new leader, and begins anew with it as with a new connection (rule 5).

The one that hears the most storage nodes leads (`varlog.core.leading`), so a storage node lets the others hear from it
as well, by a ping now and then: that a connection is open says nothing when the network drops what is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from varlog.core.following import Following
from varlog.core.messages import Leading, Message, NotLeading
from varlog.daemon import logs
from varlog.daemon.peers import Peers
from varlog.wire.connection import Connection
from varlog.wire.endpoint import split_addresses
from varlog.wire.hello import Role
from varlog.wire.hot import Ping, Pong
from varlog.wire.link import Link

PING_SECONDS: Final = 1.0
"""As often as a storage node reports to the one it follows, at least."""

_SAYS: Final = (Leading, NotLeading)

Dial = Callable[[str, Role], Link]
"""Makes a link to an address where somebody of that role is expected."""


class Repositories:
    """See the module's text."""

    def __init__(self, addresses: str, dial: Dial, peers: Peers, on_leader: Callable[[Connection], None]) -> None:
        self._peers = peers
        self._on_leader = on_leader
        self._log = logs.get()
        self._following: Following[Connection] = Following()
        self._ping_at = 0.0
        self._links = [dial(address, Role.METADATA_REPOSITORY) for address in split_addresses(addresses)]

    def open(self) -> None:
        """Begin to dial."""
        for link in self._links:
            link.open()

    def close(self) -> None:
        for link in self._links:
            link.close()

    @property
    def leader(self) -> Connection | None:
        return self._following.leader

    def told(self, *, answers: bool) -> str:
        """How it is with the one that leads, in words; `answers` says whether it has answered lately."""
        leader = self._following.leader
        if leader is None:
            return self.missing()
        return "connected" if answers else f"{leader.remote}: does not answer"

    def missing(self) -> str:
        """Why there is none to speak to, of each of them."""
        return "; ".join(f"{link.address}: {_state(link)}" for link in self._links)

    def takes(self, connection: Connection, message: Message) -> bool:
        """Whether a message from a metadata repository is nothing for the daemon: it says who leads, or comes from one
        that does not."""
        if isinstance(message, _SAYS):
            if self._following.on_said(connection, message):
                self._follow()
            return True
        return connection is not self._following.leader or isinstance(message, Pong)

    def tick(self, now: float) -> None:
        """Called a few times a second by who wants to be heard by all of them."""
        if now < self._ping_at:
            return
        self._ping_at = now + PING_SECONDS
        for link in self._links:
            if link.connection is not None and link.connection is not self._following.leader:
                link.connection.send(Ping(0, b""))

    def on_closed(self, connection: Connection) -> None:
        """A connection has ended, of whomever."""
        if self._following.on_closed(connection):
            self._follow()

    def _follow(self) -> None:
        leader = self._following.leader
        self._peers.follow(leader)
        if leader is None:
            self._log.info("no metadata repository leads", tried=self.missing())
        else:
            self._log.info("following", metadata_repository=leader.remote, term=self._following.term)
            self._on_leader(leader)


def _state(link: Link) -> str:
    return "does not lead" if link.connected else str(link.error or "not connected")
