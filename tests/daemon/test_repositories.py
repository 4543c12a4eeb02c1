"""A daemon that knows several metadata repositories speaks to the one that leads; over real sockets, by a real node."""

from __future__ import annotations

from pathlib import Path

from tests.daemon.small import CID, Small, run, until
from varlog.core.messages import AnnounceNode, Decided, Leading, Message, NotLeading, Report
from varlog.errors import UnknownNode, VarlogError
from varlog.types import Term, Version
from varlog.wire import Connection, Identity, Ping, Pong, Role, Server


class Puppet:
    """A metadata repository that says what the test wants."""

    def __init__(self) -> None:
        self.standing: Leading | NotLeading = NotLeading(Term(0))
        self.heard: list[Message] = []
        self.pings = 0
        self.connections: list[Connection] = []
        self.server: Server

    async def start(self, small: Small) -> None:
        identity = Identity(CID, Role.METADATA_REPOSITORY)
        accepts = frozenset({Role.STORAGE_NODE})
        self.server = await Server.start("127.0.0.1:0", identity, accepts, small.secret, self)

    def say(self, standing: Leading | NotLeading) -> None:
        self.standing = standing
        for connection in self.connections:
            connection.send(standing)

    def of(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.heard if type(message) is kind]

    def on_connected(self, connection: Connection) -> None:
        self.connections.append(connection)
        connection.send(self.standing)

    def on_message(self, connection: Connection, message: Message) -> None:
        if isinstance(message, Ping):
            self.pings += 1
            connection.send(Pong(message.request, 1))
            return
        self.heard.append(message)
        if isinstance(message, AnnounceNode):
            connection.send(Decided(message.request, UnknownNode.code, Version(1), detail="not registered"))

    def on_turn(self, connection: Connection) -> None: ...

    def on_closed(self, connection: Connection, _error: VarlogError | None) -> None:
        self.connections.remove(connection)


def test_O3_a_node_reports_to_the_leader_alone_and_begins_anew_with_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        async with Small(tmp_path) as small:
            first, second = puppets = [Puppet(), Puppet()]
            for puppet in puppets:
                await puppet.start(small)
            addresses = ",".join(puppet.server.address for puppet in puppets)
            node = await small.start_node(1, metadata_repository=addresses)
            await until(lambda: all(puppet.connections for puppet in puppets))
            await until(lambda: all(puppet.pings for puppet in puppets))
            assert not node.is_connected
            assert not first.heard + second.heard, "nobody leads"
            assert node.repositories.missing().count("does not lead") == 2

            first.say(Leading(Term(1)))
            await until(lambda: len(first.of(Report)) > 1)
            assert (node.is_connected, len(first.of(AnnounceNode))) == (True, 1)
            assert not second.heard
            pings = second.pings
            await until(lambda: second.pings > pings)

            second.say(Leading(Term(2)))
            await until(lambda: bool(second.of(AnnounceNode) and second.of(Report)))
            report = second.of(Report)[0]
            assert isinstance(report, Report)
            assert (report.full, report.ask) == (True, True), "nothing is assumed known there"
            heard = len(first.heard)
            await until(lambda: len(second.of(Report)) > 2)
            assert len(first.heard) == heard, "it leads no more, whatever it says"

            await second.server.close()
            await until(lambda: len(first.heard) > heard)
            first.say(NotLeading(Term(2)))
            await until(lambda: not node.is_connected)
            await small.stop_node(1)
            await first.server.close()

    run(main())
