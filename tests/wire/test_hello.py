"""Two processes make sure of each other, and nobody else gets in."""

from __future__ import annotations

import asyncio
import hmac

import pytest

from tests.wire.made import fitted
from tests.wire.peers import CLIENT, CLUSTER, MEMBERS, NODE, SECRET, Recorder, Stranger, join, run, serve
from varlog import errors, limits
from varlog.core.messages import GetMetadata, Message
from varlog.types import ClusterID
from varlog.wire import Identity, Ping, Pong, Role, Secret, Server, catalogue, dial, hot
from varlog.wire.hello import (
    DIALER_LABEL,
    PROTOCOL_VERSION,
    SERVER_LABEL,
    Accepting,
    Dialing,
    Hello,
    Proof,
    Ready,
    Refused,
    Welcome,
    refusal,
    statement,
)

OTHER = Secret(b"another secret, as long as it must be")
NONCE = bytes(32)


def accepting(accepts: frozenset[Role] = MEMBERS, secret: Secret = SECRET) -> Accepting:
    return Accepting(NODE, accepts, secret)


def dialing(identity: Identity = CLIENT, wants: Role = Role.STORAGE_NODE, secret: Secret = SECRET) -> Dialing:
    return Dialing(identity, wants, secret)


def talk(dialer: Dialing, server: Accepting) -> list[Message]:
    """Let the two talk until neither has anything to say; everything that was said."""
    said: list[Message] = []
    speaking: Dialing | Accepting = dialer
    message: Message | None = dialer.begin()
    while message is not None:
        said.append(message)
        speaking = server if speaking is dialer else dialer
        message = speaking.receive(message)
    return said


def test_members_of_a_cluster_find_out_who_the_other_is() -> None:
    dialer, server = dialing(), accepting()
    said = talk(dialer, server)
    assert [type(message) for message in said] == [Hello, Welcome, Proof, Ready]
    assert (dialer.peer, server.peer) == (NODE, CLIENT)


def test_nobody_is_believed_before_the_proof() -> None:
    dialer, server = dialing(), accepting()
    welcome = server.receive(dialer.begin())
    assert server.peer is None
    assert isinstance(welcome, Welcome)
    dialer.receive(welcome)
    assert (dialer.peer, server.peer) == (None, None)


def test_every_hello_is_different() -> None:
    first, second = talk(dialing(), accepting()), talk(dialing(), accepting())
    assert not {message for message in first if not isinstance(message, Ready)} & set(second)


@pytest.mark.parametrize(
    ("dialer", "server", "error"),
    [
        (dialing(Identity(ClusterID(8), Role.CLIENT)), accepting(), errors.WrongCluster),
        (dialing(), accepting(frozenset({Role.MANAGER})), errors.WrongRole),
        (dialing(wants=Role.METADATA_REPOSITORY), accepting(), errors.WrongRole),
        (dialing(secret=OTHER), accepting(), errors.WrongSecret),
    ],
    ids=["cluster", "role of the dialer", "role of the server", "secret"],
)
def test_who_does_not_belong_is_refused(dialer: Dialing, server: Accepting, error: type[errors.VarlogError]) -> None:
    with pytest.raises(error):
        talk(dialer, server)
    assert (dialer.peer, server.peer) == (None, None)


def test_a_server_refuses_versions_and_roles_it_does_not_know() -> None:
    with pytest.raises(errors.UnsupportedProtocol, match="version 2"):
        accepting().receive(Hello(2, CLUSTER, Role.CLIENT, 0, NONCE))
    with pytest.raises(errors.WrongRole, match="of role 77"):
        accepting().receive(Hello(PROTOCOL_VERSION, CLUSTER, 77, 0, NONCE))


def test_a_dialer_refuses_a_version_it_does_not_know() -> None:
    with pytest.raises(errors.UnsupportedProtocol):
        dialing().receive(Welcome(2, CLUSTER, Role.STORAGE_NODE, 5, NONCE, NONCE))


def test_a_dialer_that_lies_about_the_secret_is_refused() -> None:
    server = accepting()
    server.receive(dialing().begin())
    with pytest.raises(errors.WrongSecret, match="dialer"):
        server.receive(Proof(bytes(32)))
    assert server.peer is None


def test_a_proof_is_worth_nothing_on_another_connection() -> None:
    hello, _, proof, _ = talk(dialing(), accepting())
    again = accepting()
    again.receive(hello)
    with pytest.raises(errors.WrongSecret):
        again.receive(proof)


def test_a_welcome_is_worth_nothing_on_another_connection() -> None:
    _, welcome, _, _ = talk(dialing(), accepting())
    with pytest.raises(errors.WrongSecret):
        dialing().receive(welcome)


def test_a_proof_cannot_be_sent_back() -> None:
    """Someone without the secret answers with what the other side has just proven."""
    server = accepting()
    welcome = server.receive(dialing().begin())
    assert isinstance(welcome, Welcome)
    with pytest.raises(errors.WrongSecret):
        server.receive(Proof(welcome.proof))


def test_a_server_cannot_be_made_to_prove_for_a_dialer() -> None:
    """Someone without the secret asks a second server, in the first one's name, for what the first one wants."""
    first, second = accepting(), accepting()
    welcome = first.receive(Hello(PROTOCOL_VERSION, CLUSTER, Role.STORAGE_NODE, NODE.node_id, NONCE))
    assert isinstance(welcome, Welcome)
    reflected = second.receive(Hello(PROTOCOL_VERSION, CLUSTER, Role.STORAGE_NODE, NODE.node_id, welcome.nonce))
    assert isinstance(reflected, Welcome)
    with pytest.raises(errors.WrongSecret):
        first.receive(Proof(reflected.proof))


def test_everything_said_is_in_the_proof() -> None:
    """Whoever changes a word on the way breaks both proofs."""
    parts = [
        (label, Identity(cid, role, dialer), Identity(cid, server_role, server), own, other)
        for label in (SERVER_LABEL, DIALER_LABEL)
        for cid in (CLUSTER, ClusterID(8))
        for role in (Role.CLIENT, Role.MANAGER)
        for dialer in (0, 1)
        for server_role in (Role.STORAGE_NODE, Role.METADATA_REPOSITORY)
        for server in (0, 1)
        for own in (bytes(32), b"1" * 32)
        for other in (bytes(32), b"1" * 32)
    ]
    assert len({statement(*each) for each in parts}) == len(parts)
    assert {len(statement(*each)) for each in parts} == {112}


@pytest.mark.parametrize("first", [Proof(NONCE), Ready(), Welcome(1, CLUSTER, 2, 5, NONCE, NONCE)])
def test_a_server_takes_only_what_comes_next(first: Message) -> None:
    with pytest.raises(errors.ProtocolError, match="no place here"):
        accepting().receive(first)


def test_a_hello_is_said_once() -> None:
    server = accepting()
    hello = dialing().begin()
    server.receive(hello)
    with pytest.raises(errors.ProtocolError, match="Hello has no place here"):
        server.receive(hello)


@pytest.mark.parametrize("first", [Proof(NONCE), Ready(), Hello(1, CLUSTER, 2, 5, NONCE)])
def test_a_dialer_takes_only_what_comes_next(first: Message) -> None:
    with pytest.raises(errors.ProtocolError, match="no place here"):
        dialing().receive(first)


def test_proofs_are_hmac_sha256_of_the_file_s_bytes() -> None:
    key = bytes(range(32))
    assert Secret(key).proof(b"statement") == hmac.digest(key, b"statement", "sha256")


# Over sockets


@pytest.mark.parametrize(
    ("identity", "wants", "secret", "error", "says"),
    [
        (Identity(ClusterID(8), Role.CLIENT), Role.STORAGE_NODE, SECRET, errors.WrongCluster, "cluster 8"),
        (CLIENT, Role.STORAGE_NODE, SECRET, errors.WrongRole, "the dialer is CLIENT"),
        (Identity(CLUSTER, Role.MANAGER), Role.MANAGER, SECRET, errors.WrongRole, "the server is STORAGE_NODE"),
        (Identity(CLUSTER, Role.MANAGER), Role.STORAGE_NODE, OTHER, errors.WrongSecret, "the server could not prove"),
    ],
    ids=["cluster", "role of the dialer", "role of the server", "secret"],
)
def test_dialing_says_why_it_was_refused(
    identity: Identity, wants: Role, secret: Secret, error: type[errors.VarlogError], says: str
) -> None:
    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await Server.start("127.0.0.1:0", NODE, frozenset({Role.MANAGER}), SECRET, there)
        with pytest.raises(error, match=says):
            await dial(server.address, identity, wants, secret, here)
        await server.close()
        assert not here.connections + there.connections
        assert not here.closed + there.closed
        assert server.refusals == 1

    run(main())


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ([Hello(1, 8, Role.CLIENT, 0, NONCE)], errors.WrongCluster),
        ([Hello(9, CLUSTER, Role.CLIENT, 0, NONCE)], errors.UnsupportedProtocol),
        ([Hello(1, CLUSTER, 9, 0, NONCE)], errors.WrongRole),
        ([Hello(1, CLUSTER, Role.CLIENT, 0, NONCE), Proof(NONCE)], errors.WrongSecret),
        ([Proof(NONCE)], errors.ProtocolError),
        ([GetMetadata(1)], errors.ProtocolError),
        ([b"GET / HTTP/1.1\r\n\r\n"], errors.ProtocolError),
        ([b"\0" * 12], errors.ProtocolError),
        ([fitted(catalogue.encode(Hello(1, CLUSTER, 1, 0, NONCE)) + b"\xc1" * 8)], errors.ProtocolError),
    ],
    ids=["cluster", "version", "role", "secret", "proof first", "no hello", "http", "zeros", "long body"],
)
def test_a_server_says_why_it_refuses(said: list[bytes | Message], error: type[errors.VarlogError]) -> None:
    async def main() -> None:
        there = Recorder()
        server = await serve(there)
        async with await Stranger.to(server) as stranger:
            await stranger.say(*said)
            refused = await stranger.refused()
        assert refused is not None
        assert refused.code == error.code
        assert not there.connections
        await server.close()

    run(main())


def test_a_silent_peer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HELLO_SECONDS", 0.05)

    async def main() -> None:
        there, here = Recorder(), Recorder()
        server = await serve(there)
        connection = await join(server, here)
        async with await Stranger.to(server) as silent, await Stranger.to(server) as half:
            await half.say(catalogue.encode(Hello(1, CLUSTER, 1, 0, NONCE))[:20])
            for stranger in (silent, half):
                refused = await stranger.refused()
                assert refused is not None
                assert refused.code == errors.PeerStalled.code
        connection.send(Ping(1))
        assert await here.received(1) == [Pong(1, 0)], "the limit is for the hello, not for a quiet connection"
        await server.close()

    run(main())


def test_a_silent_server_is_given_up() -> None:
    async def main() -> None:
        async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)

        writers: list[asyncio.StreamWriter] = []
        listener = await asyncio.start_server(silent, "127.0.0.1", 0)
        host, port = listener.sockets[0].getsockname()
        with pytest.raises(errors.Unreachable, match="did not answer within"):
            await dial(f"{host}:{port}", CLIENT, Role.STORAGE_NODE, SECRET, Recorder(), timeout=0.05)
        for writer in writers:
            writer.transport.abort()
        listener.close()

    run(main())


def test_a_server_that_is_none_of_ours_is_refused() -> None:
    async def main() -> None:
        async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            heard.append(await reader.read())
            writer.close()

        heard: list[bytes] = []
        listener = await asyncio.start_server(other, "127.0.0.1", 0)
        host, port = listener.sockets[0].getsockname()
        with pytest.raises(errors.ProtocolError):
            await dial(f"{host}:{port}", CLIENT, Role.STORAGE_NODE, SECRET, Recorder())
        listener.close()

    run(main())


def test_messages_that_follow_the_hello_at_once_are_not_lost() -> None:
    """Whoever has proven itself may speak before it hears that it was believed; its words wait for their turn."""

    async def main() -> None:
        there = Recorder()
        server = await serve(there)
        async with await Stranger.to(server) as stranger:
            dialer = dialing()
            await stranger.say(dialer.begin())
            proof = dialer.receive(await stranger.hear())
            assert proof is not None
            large = Ping(2, bytes(limits.MAX_PING_BYTES))
            await stranger.say(b"".join(map(catalogue.encode, [proof, Ping(1), large, Ping(3)])))
            assert isinstance(await stranger.hear(), Ready)
            assert [await stranger.hear() for _ in range(3)] == [Pong(1, 0), Pong(2, limits.MAX_PING_BYTES), Pong(3, 0)]
        await server.close()

    run(main())


def test_a_refusal_fits_into_a_frame_whatever_it_says() -> None:
    told = refusal(errors.ProtocolError("\U0001f600\udc80" * 1000))
    assert isinstance(told, Refused)
    assert len(catalogue.encode(told)) <= hot.HEADER_BYTES + limits.HELLO_BYTES


def test_a_server_of_the_right_role_may_still_be_another_one() -> None:
    """An address can change hands: who wants one node of several says which."""

    async def main() -> None:
        server = await serve(Recorder())
        with pytest.raises(errors.WrongRole, match=f"STORAGE_NODE {NODE.node_id}; the dialer wants 6"):
            await dial(server.address, CLIENT, Role.STORAGE_NODE, SECRET, Recorder(), node_id=6)
        there = await dial(server.address, CLIENT, Role.STORAGE_NODE, SECRET, Recorder(), node_id=NODE.node_id)
        assert there.peer == NODE
        await server.close()

    run(main())
