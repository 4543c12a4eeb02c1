"""Peers: the open connections of a daemon, by the addresses the core knows them by.

A storage node is known by its id, whoever dialled whom; anybody else gets an address that is never given again, so that
an answer reaches the connection that asked or nobody. The metadata repository is whichever of them is followed
(`varlog.daemon.repositories`). Two connections to the same node are both kept, and the newer one is used.
"""

from __future__ import annotations

import time

from varlog.core.address import METADATA_REPOSITORY, Address, node_address
from varlog.core.messages import Message
from varlog.types import StorageNodeID
from varlog.wire.connection import Connection
from varlog.wire.hello import Role
from varlog.wire.hot import Ping, Pong


class Peers:
    """See the module's text."""

    def __init__(self) -> None:
        self._connections: dict[Address, list[Connection]] = {}
        self._newest: dict[Address, Connection] = {}
        self._names: dict[Connection, Address] = {}
        self._unflushed: dict[Connection, None] = {}
        self._held = False
        self._guests = 0

    def __len__(self) -> int:
        return len(self._names)

    @property
    def connections(self) -> list[Connection]:
        """All of them, whoever is at their other ends."""
        return [*self._names]

    def admit(self, connection: Connection, *, by_id: bool = True) -> Address:
        """A connection is ready. With `by_id` False storage nodes too get an address for each connection: who has yet
        to prove that it is that node must not be sent what is meant for it."""
        role, node_id = connection.peer.role, connection.peer.node_id
        if role is Role.STORAGE_NODE and by_id:
            address = node_address(StorageNodeID(node_id))
        else:
            self._guests += 1
            kind = METADATA_REPOSITORY if role is Role.METADATA_REPOSITORY else "guest"
            address = f"{kind}/{self._guests}"
        self._names[connection] = address
        self._connections.setdefault(address, []).append(connection)
        self._newest[address] = connection
        return address

    def drop(self, connection: Connection) -> Address | None:
        """A connection is closed; its address, if it was the last one there."""
        self._unflushed.pop(connection, None)
        address = self._names.pop(connection, None)
        if address is None:
            return None
        if self._newest.get(METADATA_REPOSITORY) is connection:
            del self._newest[METADATA_REPOSITORY]
        others = self._connections[address]
        others.remove(connection)
        if others:
            self._newest[address] = others[-1]
            return None
        del self._connections[address], self._newest[address]
        return address

    def follow(self, leader: Connection | None) -> None:
        """What is meant for the metadata repository goes there; with None to nobody."""
        self._newest.pop(METADATA_REPOSITORY, None)
        if leader is not None:
            self._newest[METADATA_REPOSITORY] = leader

    def name(self, connection: Connection) -> Address:
        return self._names[connection]

    def at(self, address: Address) -> Connection | None:
        return self._newest.get(address)

    def send(self, address: Address, message: Message) -> bool:
        """False if nobody is there, or more is waiting to be sent than may."""
        connection = self._newest.get(address)
        if connection is None:
            return False
        self._unflushed[connection] = None
        return connection.send(message, held=self._held)

    def send_now(self, address: Address, message: Message) -> bool:
        """The same, and the kernel has it before anything else is done."""
        connection = self._newest.get(address)
        if connection is None or not connection.send(message, held=True):
            return False
        connection.flush()
        return True

    def hold(self) -> None:
        """What is sent from now on waits for `release`, and the event loop need not be asked to see to it."""
        self._held = True

    def release(self) -> None:
        """Hand what was sent to the kernel now, instead of at the end of the loop's turn."""
        self._held = False
        if self._unflushed:
            for connection in self._unflushed:
                connection.flush()
            self._unflushed.clear()

    def close(self) -> None:
        """Close every connection: nothing more is received from any."""
        for connection in [*self._names]:
            connection.close()


def answers_ping(connection: Connection, message: Message) -> bool:
    """Whether it was a ping, which every server answers whoever asks."""
    if not isinstance(message, Ping):
        return False
    connection.send(Pong(message.request, int(time.time() * 1_000_000)))
    return True
